#include "ckpt/store_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/manifest_map.h"
#include "ckpt/store_layout.h"
#include "common/file_bytes.h"
#include "common/memory.h"

struct pl_store_writer {
    pl_text folder, path; /* path: of the HDF5 file */
    const pl_model *model;
    pl_rank_boxes rank; /* what the list will say */
    uint64_t *sums;     /* [blocks] */
    uint8_t *written;   /* [blocks]: whether the block's sum is there */
    int descriptor;
};

/* --- new files --- */

pl_status pl_store_new_file(const char *path, const void *bytes, size_t length)
{
    int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0) return PL_FAIL(PL_IO_FAILED, "%s: %s", path, strerror(errno));
    pl_status status = pl_file_write(descriptor, path, 0, (int64_t)length, bytes);
    if (status == PL_OK && fsync(descriptor) != 0)
        status = PL_FAIL(PL_IO_FAILED, "%s: fsync: %s", path, strerror(errno));
    if (close(descriptor) != 0 && status == PL_OK)
        status = PL_FAIL(PL_IO_FAILED, "%s: close: %s", path, strerror(errno));
    return status;
}

static pl_status new_rank_file(const pl_store_writer *writer, const char *ending, const void *bytes,
                               size_t length)
{
    char name[PL_MANIFEST_NAME];
    pl_text path = {0};
    pl_status status = pl_manifest_path(&path, pl_text_string(&writer->folder),
                                        pl_manifest_rank_file(writer->rank.rank, ending, name));
    if (status == PL_OK) status = pl_store_new_file(pl_text_string(&path), bytes, length);
    pl_text_free(&path);
    return status;
}

/* --- opening --- */

static pl_status open_data(pl_store_writer *writer)
{
    char name[PL_MANIFEST_NAME];
    pl_rank_boxes *rank = &writer->rank;
    PL_TRY(pl_manifest_path(&writer->path, pl_text_string(&writer->folder),
                            pl_manifest_rank_file(rank->rank, ".h5", name)));
    const char *path = pl_text_string(&writer->path);
    PL_TRY(pl_store_lay_out(path, &rank->boxes, writer->model, &rank->data_bytes));
    PL_TRY(pl_allocate(&writer->sums, (size_t)rank->boxes.sums, sizeof *writer->sums,
                       "sums of blocks"));
    PL_TRY(pl_allocate(&writer->written, (size_t)rank->boxes.sums, 1, "sums of blocks"));
    writer->descriptor = open(path, O_RDWR | O_CLOEXEC);
    if (writer->descriptor < 0) return PL_FAIL(PL_IO_FAILED, "%s: %s", path, strerror(errno));
    return PL_OK;
}

pl_status pl_store_writer_open(pl_store_writer **out, const char *folder, int64_t rank,
                               const pl_model *model, pl_checkpoint_boxes *boxes)
{
    pl_store_writer *writer = NULL;
    pl_status status = pl_allocate(&writer, 1, sizeof *writer, "a rank's files");
    if (status != PL_OK) {
        pl_checkpoint_boxes_free(boxes);
        return status;
    }
    writer->descriptor = -1;
    writer->model = model;
    writer->rank.rank = rank;
    writer->rank.boxes = *boxes;
    *boxes = (pl_checkpoint_boxes){0};
    pl_text_add_string(&writer->folder, folder);
    status = pl_text_status(&writer->folder);
    if (status == PL_OK) status = open_data(writer);
    if (status == PL_OK)
        *out = writer;
    else
        pl_store_writer_close(writer);
    return status;
}

const pl_checkpoint_boxes *pl_store_writer_boxes(const pl_store_writer *writer)
{
    return &writer->rank.boxes;
}

/* --- values --- */

/* The block of BOX at byte AT, where values end at END: hashed, and written while it is in a cache.
 */
static pl_status write_block(pl_store_writer *writer, const pl_checkpoint_box *box, int64_t at,
                             int64_t end, const void *values)
{
    int64_t number = box->first_sum + at / PL_CHECKPOINT_BLOCK;
    int64_t bytes = end - at < PL_CHECKPOINT_BLOCK ? end - at : PL_CHECKPOINT_BLOCK;
    writer->sums[number] = pl_hash(values, (size_t)bytes);
    writer->written[number] = 1;
    return pl_file_write(writer->descriptor, pl_text_string(&writer->path), box->offset + at, bytes,
                         values);
}

pl_status pl_store_write(pl_store_writer *writer, const pl_checkpoint_box *box, int64_t first,
                         int64_t bytes, const void *values)
{
    int64_t end = first + bytes;
    if (first < 0 || bytes < 0 || end > box->bytes || first % PL_CHECKPOINT_BLOCK != 0 ||
        (end % PL_CHECKPOINT_BLOCK != 0 && end != box->bytes))
        return PL_FAIL(PL_INTERNAL, "blocks of a box are written whole");
    pl_status status = PL_OK;
    for (int64_t at = first; status == PL_OK && at < end; at += PL_CHECKPOINT_BLOCK)
        status = write_block(writer, box, at, end, (const char *)values + (at - first));
    if (status == PL_OK) return PL_OK;
    pl_text rows = {0};
    pl_checkpoint_rows_print(&rows, &writer->model->tensors[box->tensor], (pl_value_kind)box->kind,
                             box->row_begin, box->row_end);
    pl_error_context("%s", pl_text_string(&rows));
    pl_text_free(&rows);
    return status;
}

/* --- the end --- */

static int by_offset(const void *a, const void *b)
{
    const pl_checkpoint_box *left = a, *right = b;
    return (left->offset > right->offset) - (left->offset < right->offset);
}

typedef struct outside {
    pl_hash_stream *stream;
    char *room; /* of a block */
    int descriptor;
    const char *file;
} outside;

static pl_status add_outside(const outside *o, int64_t begin, int64_t end)
{
    for (int64_t at = begin; at < end; at += PL_CHECKPOINT_BLOCK) {
        int64_t bytes = end - at < PL_CHECKPOINT_BLOCK ? end - at : PL_CHECKPOINT_BLOCK;
        PL_TRY(pl_file_read(o->descriptor, o->file, at, bytes, o->room));
        pl_hash_add(o->stream, o->room, (size_t)bytes);
    }
    return PL_OK;
}

static pl_status add_gaps(const outside *o, int64_t length, const pl_checkpoint_boxes *boxes)
{
    pl_checkpoint_box *order = NULL;
    int64_t next = 0;
    PL_TRY(pl_allocate(&order, boxes->count, sizeof *order, "boxes of a rank"));
    if (boxes->count > 0) memcpy(order, boxes->box, boxes->count * sizeof *order);
    qsort(order, boxes->count, sizeof *order, by_offset);
    pl_status status = PL_OK;
    for (size_t i = 0; status == PL_OK && i < boxes->count; ++i) {
        status = add_outside(o, next, order[i].offset);
        next = order[i].offset + order[i].bytes;
    }
    if (status == PL_OK) status = add_outside(o, next, length);
    pl_free(order);
    return status;
}

pl_status pl_store_outside_hash(uint64_t *out, int descriptor, const char *file, int64_t length,
                                const pl_checkpoint_boxes *boxes)
{
    outside o = {.stream = pl_hash_begin(), .descriptor = descriptor, .file = file};
    pl_status status = o.stream ? PL_OK : PL_NO_MEMORY;
    int64_t most = length < PL_CHECKPOINT_BLOCK ? length : PL_CHECKPOINT_BLOCK;
    if (status == PL_OK) status = pl_allocate(&o.room, (size_t)most, 1, "a block");
    if (status == PL_OK) status = add_gaps(&o, length, boxes);
    if (status == PL_OK) *out = pl_hash_so_far(o.stream);
    pl_free(o.room);
    pl_hash_end(o.stream);
    return status;
}

pl_status pl_store_whole_hash(uint64_t *out, int descriptor, const char *file, int64_t length)
{
    const pl_checkpoint_boxes none = {0};
    return pl_store_outside_hash(out, descriptor, file, length, &none);
}

/* The sums as they stand in their file; freed by the caller. */
static pl_status pack_sums(char **out, const pl_store_writer *writer)
{
    int64_t count = writer->rank.boxes.sums;
    for (int64_t i = 0; i < count; ++i)
        if (!writer->written[i])
            return PL_FAIL(PL_INTERNAL, "%s: a block was never written",
                           pl_text_string(&writer->path));
    PL_TRY(pl_allocate(out, (size_t)count, 8, "sums of blocks"));
    for (int64_t i = 0; i < count; ++i) pl_put_little_endian(*out + 8 * i, writer->sums[i]);
    return PL_OK;
}

static pl_status write_sums(pl_store_writer *writer, pl_manifest_rank *facts)
{
    char *packed = NULL;
    PL_TRY(pack_sums(&packed, writer));
    size_t length = (size_t)writer->rank.boxes.sums * 8;
    writer->rank.sums_hash = pl_hash(packed, length);
    facts->sums = (pl_file_facts){(int64_t)length, writer->rank.sums_hash};
    pl_status status = new_rank_file(writer, ".sums", packed, length);
    pl_free(packed);
    return status;
}

static pl_status write_list(pl_store_writer *writer, pl_manifest_rank *facts)
{
    pl_text text = {0};
    pl_status status = pl_rank_boxes_write(&text, &writer->rank);
    if (status == PL_OK) {
        facts->boxes = (pl_file_facts){(int64_t)text.length, pl_hash(text.bytes, text.length)};
        status = new_rank_file(writer, ".json", text.bytes, text.length);
    }
    pl_text_free(&text);
    return status;
}

pl_status pl_store_writer_finish(pl_store_writer *writer, pl_manifest_rank *facts)
{
    pl_rank_boxes *rank = &writer->rank;
    const char *path = pl_text_string(&writer->path);
    *facts = (pl_manifest_rank){.rank = rank->rank};
    PL_TRY(write_sums(writer, facts));
    PL_TRY(pl_store_outside_hash(&rank->outside_hash, writer->descriptor, path, rank->data_bytes,
                                 &rank->boxes));
    if (fsync(writer->descriptor) != 0)
        return PL_FAIL(PL_IO_FAILED, "%s: fsync: %s", path, strerror(errno));
    facts->data =
        (pl_file_facts){rank->data_bytes, pl_hash_pair(rank->sums_hash, rank->outside_hash)};
    return write_list(writer, facts);
}

void pl_store_writer_close(pl_store_writer *writer)
{
    if (!writer) return;
    if (writer->descriptor >= 0) close(writer->descriptor);
    pl_checkpoint_boxes_free(&writer->rank.boxes);
    pl_text_free(&writer->folder);
    pl_text_free(&writer->path);
    pl_free(writer->sums);
    pl_free(writer->written);
    pl_free(writer);
}
