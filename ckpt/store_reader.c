#include "ckpt/store_reader.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "common/file_bytes.h"
#include "common/memory.h"

/* Most bytes that are read before they are hashed: they are still in a cache then. */
enum { MOST_AT_ONCE = PL_CHECKPOINT_BLOCK };

struct pl_store_reader {
    pl_text folder;
    pl_manifest manifest;
    pl_checkpoint_map map;
    uint64_t **sums; /* [ranks of the manifest]; read when they are needed, under the lock */
    pthread_mutex_t lock;
    bool has_lock;
    int64_t bytes; /* atomic */
};

/* --- opening --- */

static pl_status check_length(const pl_store_reader *reader, const char *name, int64_t bytes)
{
    int descriptor = -1;
    int64_t found = 0;
    pl_text path = {0};
    pl_status status = pl_manifest_path(&path, pl_text_string(&reader->folder), name);
    if (status == PL_OK) status = pl_file_open(&descriptor, &found, pl_text_string(&path));
    if (descriptor >= 0) close(descriptor);
    if (status == PL_OK && found != bytes)
        status = PL_FAIL(PL_BAD_INPUT, "%s: damaged: %" PRId64 " bytes; the manifest has %" PRId64,
                         pl_text_string(&path), found, bytes);
    pl_text_free(&path);
    return status;
}

static pl_status check_lengths(const pl_store_reader *reader)
{
    const pl_manifest *m = &reader->manifest;
    char name[PL_MANIFEST_NAME];
    for (int64_t i = 0; i < m->rank_count; ++i) {
        const pl_manifest_rank *rank = &m->ranks[i];
        pl_manifest_rank_file(rank->rank, ".sums", name);
        PL_TRY(check_length(reader, name, rank->sums.bytes));
        pl_manifest_rank_file(rank->rank, ".h5", name);
        PL_TRY(check_length(reader, name, rank->data.bytes));
    }
    return check_length(reader, PL_MANIFEST_INDEX, m->index.bytes);
}

static pl_status open_reader(pl_store_reader *reader, const char *folder)
{
    pl_text_add_string(&reader->folder, folder);
    PL_TRY(pl_text_status(&reader->folder));
    if (pthread_mutex_init(&reader->lock, NULL) != 0)
        return PL_FAIL(PL_NO_MEMORY, "no lock for the reader of a checkpoint");
    reader->has_lock = true;
    PL_TRY(pl_manifest_read(&reader->manifest, folder));
    PL_TRY(pl_checkpoint_map_read(&reader->map, &reader->manifest, folder));
    PL_TRY(pl_allocate(&reader->sums, (size_t)reader->manifest.rank_count, sizeof(uint64_t *),
                       "sums of ranks"));
    return check_lengths(reader);
}

pl_status pl_store_reader_open(pl_store_reader **out, const char *folder)
{
    pl_store_reader *reader = NULL;
    PL_TRY(pl_allocate(&reader, 1, sizeof *reader, "a reader of a checkpoint"));
    pl_status status = open_reader(reader, folder);
    if (status == PL_OK)
        *out = reader;
    else
        pl_store_reader_close(reader);
    return status;
}

void pl_store_reader_close(pl_store_reader *reader)
{
    if (!reader) return;
    for (int64_t i = 0; reader->sums && i < reader->manifest.rank_count; ++i)
        pl_free(reader->sums[i]);
    pl_free(reader->sums);
    pl_checkpoint_map_free(&reader->map);
    pl_manifest_free(&reader->manifest);
    pl_text_free(&reader->folder);
    if (reader->has_lock) pthread_mutex_destroy(&reader->lock);
    pl_free(reader);
}

const pl_manifest *pl_store_reader_manifest(const pl_store_reader *reader)
{
    return &reader->manifest;
}

const pl_checkpoint_map *pl_store_reader_map(const pl_store_reader *reader) { return &reader->map; }

const char *pl_store_reader_folder(const pl_store_reader *reader)
{
    return pl_text_string(&reader->folder);
}

int64_t pl_store_reader_bytes(const pl_store_reader *reader)
{
    return __atomic_load_n(&reader->bytes, __ATOMIC_RELAXED);
}

/* --- sums --- */

static pl_status check_sums(const char *path, const char *bytes, size_t length,
                            const pl_checkpoint_source *source)
{
    char found[PL_HASH_TEXT], wanted[PL_HASH_TEXT];
    uint64_t hash = pl_hash(bytes, length);
    if (length == (size_t)source->sums * 8 && hash == source->sums_hash) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT,
                   "%s: damaged: %zu bytes with hash %s; the rank's list has %" PRId64
                   " bytes with hash %s",
                   path, length, pl_hash_print(hash, found), source->sums * 8,
                   pl_hash_print(source->sums_hash, wanted));
}

static pl_status unpack_sums(uint64_t **out, const char *path, const pl_checkpoint_source *source)
{
    enum { MORE = 64 }; /* so that a longer file is one of the wrong length */
    char *bytes = NULL;
    size_t length = 0;
    PL_TRY(pl_read_file(&bytes, &length, path, (size_t)source->sums * 8 + MORE));
    pl_status status = check_sums(path, bytes, length, source);
    if (status == PL_OK)
        status = pl_allocate(out, (size_t)source->sums, sizeof **out, "sums of a rank");
    for (int64_t i = 0; status == PL_OK && i < source->sums; ++i)
        (*out)[i] = pl_get_little_endian(bytes + 8 * i);
    pl_free(bytes);
    return status;
}

pl_status pl_store_read_sums(uint64_t **out, const char *folder, const pl_checkpoint_source *source)
{
    char name[PL_MANIFEST_NAME];
    pl_text path = {0};
    pl_manifest_rank_file(source->rank, ".sums", name);
    pl_status status = pl_manifest_path(&path, folder, name);
    if (status == PL_OK) status = unpack_sums(out, pl_text_string(&path), source);
    pl_text_free(&path);
    return status;
}

static pl_status get_sums(const uint64_t **out, pl_store_reader *reader, int64_t source)
{
    pl_status status = PL_OK;
    pthread_mutex_lock(&reader->lock);
    if (!reader->sums[source])
        status = pl_store_read_sums(&reader->sums[source], pl_text_string(&reader->folder),
                                    &reader->map.source[source]);
    *out = reader->sums[source];
    pthread_mutex_unlock(&reader->lock);
    return status;
}

/* --- blocks --- */

/* A piece that is being read. */
typedef struct reading {
    pl_store_reader *reader;
    const pl_checkpoint_piece *piece;
    const uint64_t *sums; /* of the piece's blocks */
    pl_text path;
    int descriptor;
    int64_t bytes, row_bytes; /* of the piece; of one row */
    char *room;               /* of a block, once one is needed only in part */
} reading;

int64_t pl_store_piece_bytes(const pl_store_reader *reader, const pl_checkpoint_piece *piece)
{
    const pl_manifest *m = &reader->manifest;
    return (piece->row_end - piece->row_begin) *
           pl_kept_kind_row_bytes(&m->model.tensors[piece->tensor], &m->kept[piece->tensor],
                                  (pl_value_kind)piece->kind);
}

static pl_status open_reading(reading *out, pl_store_reader *reader,
                              const pl_checkpoint_piece *piece)
{
    char name[PL_MANIFEST_NAME];
    int64_t length = 0;
    const uint64_t *sums = NULL;
    *out = (reading){.reader = reader, .piece = piece, .descriptor = -1};
    PL_TRY(get_sums(&sums, reader, piece->source));
    out->sums = sums + piece->first_sum;
    out->bytes = pl_store_piece_bytes(reader, piece);
    out->row_bytes = out->bytes / (piece->row_end - piece->row_begin);
    pl_manifest_rank_file(reader->map.source[piece->source].rank, ".h5", name);
    PL_TRY(pl_manifest_path(&out->path, pl_text_string(&reader->folder), name));
    return pl_file_open(&out->descriptor, &length, pl_text_string(&out->path));
}

static void close_reading(reading *r)
{
    if (r->descriptor >= 0) close(r->descriptor);
    pl_text_free(&r->path);
    pl_free(r->room);
}

static pl_status damaged(const reading *r, int64_t first, int64_t bytes, uint64_t found)
{
    const pl_checkpoint_piece *piece = r->piece;
    char is[PL_HASH_TEXT], should[PL_HASH_TEXT];
    int64_t begin = piece->row_begin + first / r->row_bytes;
    int64_t end = piece->row_begin + (first + bytes - 1) / r->row_bytes + 1;
    pl_text rows = {0};
    pl_checkpoint_rows_print(&rows, &r->reader->manifest.model.tensors[piece->tensor],
                             (pl_value_kind)piece->kind, begin, end);
    pl_status status = pl_text_status(&rows);
    if (status == PL_OK)
        status = PL_FAIL(PL_BAD_INPUT,
                         "%s: damaged: %s, bytes %" PRId64 " to %" PRId64
                         " of the file: their hash is %s and should be %s",
                         pl_text_string(&r->path), pl_text_string(&rows), piece->offset + first,
                         piece->offset + first + bytes - 1, pl_hash_print(found, is),
                         pl_hash_print(r->sums[first / PL_CHECKPOINT_BLOCK], should));
    pl_text_free(&rows);
    return status;
}

/* Read BYTES bytes from byte FIRST of the piece, whole blocks, and check them. */
static pl_status read_blocks(const reading *r, int64_t first, int64_t bytes, char *out)
{
    for (int64_t done = 0; done < bytes;) {
        int64_t some = bytes - done < MOST_AT_ONCE ? bytes - done : MOST_AT_ONCE;
        PL_TRY(pl_file_read(r->descriptor, pl_text_string(&r->path),
                            r->piece->offset + first + done, some, out + done));
        for (int64_t end = done + some; done < end;) {
            int64_t block = end - done < PL_CHECKPOINT_BLOCK ? end - done : PL_CHECKPOINT_BLOCK;
            uint64_t hash = pl_hash(out + done, (size_t)block);
            if (hash != r->sums[(first + done) / PL_CHECKPOINT_BLOCK])
                return damaged(r, first + done, block, hash);
            done += block;
        }
    }
    __atomic_fetch_add(&r->reader->bytes, bytes, __ATOMIC_RELAXED);
    return PL_OK;
}

/* Bytes [BEGIN, END) of the piece, which begin or end inside a block. */
static pl_status read_part(reading *r, int64_t begin, int64_t end, char *out)
{
    int64_t first = begin / PL_CHECKPOINT_BLOCK * PL_CHECKPOINT_BLOCK;
    int64_t most = r->bytes < PL_CHECKPOINT_BLOCK ? r->bytes : PL_CHECKPOINT_BLOCK;
    int64_t bytes = r->bytes - first < most ? r->bytes - first : most;
    if (!r->room) PL_TRY(pl_allocate(&r->room, (size_t)most, 1, "a block"));
    PL_TRY(read_blocks(r, first, bytes, r->room));
    memcpy(out, r->room + (begin - first), (size_t)(end - begin));
    return PL_OK;
}

/* Bytes [BEGIN, END) of the piece: whole blocks go to OUT at once. */
static pl_status read_range(reading *r, int64_t begin, int64_t end, char *out)
{
    for (int64_t at = begin; at < end;) {
        int64_t block = at / PL_CHECKPOINT_BLOCK * PL_CHECKPOINT_BLOCK;
        int64_t stop = end == r->bytes ? end : end / PL_CHECKPOINT_BLOCK * PL_CHECKPOINT_BLOCK;
        if (at == block && stop > at) {
            PL_TRY(read_blocks(r, at, stop - at, out + (at - begin)));
            at = stop;
            continue;
        }
        stop = block + PL_CHECKPOINT_BLOCK < end ? block + PL_CHECKPOINT_BLOCK : end;
        PL_TRY(read_part(r, at, stop, out + (at - begin)));
        at = stop;
    }
    return PL_OK;
}

/* Bytes [BEGIN, END) of a piece. */
static pl_status read_piece(pl_store_reader *reader, const pl_checkpoint_piece *piece,
                            int64_t begin, int64_t end, char *out)
{
    reading r;
    pl_status status = open_reading(&r, reader, piece);
    if (status == PL_OK) status = read_range(&r, begin, end, out);
    close_reading(&r);
    return status;
}

static pl_status check_bytes(const pl_store_reader *reader, pl_value_kind kind, int64_t tensor,
                             int64_t begin, int64_t end)
{
    const pl_manifest *m = &reader->manifest;
    if (tensor >= 0 && tensor < m->model.tensor_count && begin >= 0 && begin <= end &&
        pl_keeps(&m->kept[tensor], kind) &&
        end <= pl_tensor_total_rows(&m->model.tensors[tensor]) *
                   pl_kept_kind_row_bytes(&m->model.tensors[tensor], &m->kept[tensor], kind))
        return PL_OK;
    return PL_FAIL(PL_INTERNAL,
                   "bytes %" PRId64 "-%" PRId64 " (%s) of tensor %" PRId64
                   " are not in the checkpoint",
                   begin, end, pl_value_kind_name(kind), tensor);
}

pl_status pl_store_read_bytes(pl_store_reader *reader, pl_value_kind kind, int64_t tensor,
                              int64_t begin, int64_t end, void *out)
{
    const pl_manifest *m = &reader->manifest;
    size_t count = 0;
    char *to = out;
    PL_TRY(check_bytes(reader, kind, tensor, begin, end));
    const pl_checkpoint_piece *pieces =
        pl_checkpoint_map_pieces(&reader->map, m->model.tensor_count, kind, tensor, &count);
    int64_t row = pl_kept_kind_row_bytes(&m->model.tensors[tensor], &m->kept[tensor], kind);
    pl_status status = PL_OK;
    for (size_t i = pl_checkpoint_piece_at(pieces, count, begin / row);
         status == PL_OK && begin < end; ++i) {
        int64_t first = pieces[i].row_begin * row, last = pieces[i].row_end * row;
        int64_t stop = last < end ? last : end;
        status = read_piece(reader, &pieces[i], begin - first, stop - first, to);
        to += stop - begin;
        begin = stop;
    }
    return status;
}

pl_status pl_store_read(pl_store_reader *reader, pl_value_kind kind, int64_t tensor,
                        int64_t row_begin, int64_t row_end, void *out)
{
    const pl_manifest *m = &reader->manifest;
    bool known = tensor >= 0 && tensor < m->model.tensor_count;
    int64_t row =
        known ? pl_kept_kind_row_bytes(&m->model.tensors[tensor], &m->kept[tensor], kind) : 0;
    return pl_store_read_bytes(reader, kind, tensor, row_begin * row, row_end * row, out);
}
