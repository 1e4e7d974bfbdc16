#include "ckpt/store_reshard.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/store_folder.h"
#include "ckpt/store_writer.h"
#include "common/memory.h"

/* A rank of the new layout whose files are being written. */
typedef struct target {
    pl_store_writer *writer;
    int64_t left; /* chunks that are not written yet; under the lock */
} target;

/* What the threads share. */
typedef struct job {
    const pl_reshard_request *request;
    const pl_manifest *from;
    pl_manifest manifest; /* the new one */
    pl_text folder;
    int64_t chunk;
    pthread_mutex_t lock; /* of all that follows */
    int64_t next_rank;
    target *now;   /* the one that chunks are taken from; NULL: the next is to be opened */
    size_t box;    /* ... of this box */
    int64_t first; /* ... from this byte on */
    int64_t done, bytes;
    pl_reshard_result result;
    pl_status status; /* of the first failure */
    char words[2048];
} job;

/* Bytes [first, first + bytes) of a box. */
typedef struct chunk {
    target *target;
    const pl_checkpoint_box *box;
    int64_t first, bytes;
} chunk;

int64_t pl_reshard_chunk(int64_t memory, int threads)
{
    int64_t each = memory / threads / PL_CHECKPOINT_BLOCK * PL_CHECKPOINT_BLOCK;
    int64_t most = (int64_t)64 << 20;
    if (each < PL_RESHARD_LEAST_CHUNK) each = PL_RESHARD_LEAST_CHUNK;
    return each < most ? each : most;
}

/* --- ranks --- */

/* Whether the files of RANK are there from an earlier attempt, complete: its list is written last,
 * and says what the boxes are. */
static bool is_complete(const job *j, int64_t rank, const pl_checkpoint_boxes *boxes)
{
    enum { MOST_BYTES = 1 << 30 };
    char name[PL_MANIFEST_NAME], *text = NULL;
    size_t length = 0;
    struct stat info;
    pl_text path = {0};
    pl_rank_boxes found;
    pl_manifest_rank_file(rank, ".json", name);
    bool same = pl_manifest_path(&path, pl_text_string(&j->folder), name) == PL_OK &&
                stat(pl_text_string(&path), &info) == 0 &&
                pl_read_file(&text, &length, pl_text_string(&path), MOST_BYTES) == PL_OK &&
                pl_rank_boxes_parse(&found, &j->manifest, text, length, name) == PL_OK;
    if (same) {
        same = found.boxes.count == boxes->count && found.boxes.bytes == boxes->bytes;
        for (size_t i = 0; same && i < boxes->count; ++i)
            same = found.boxes.box[i].tensor == boxes->box[i].tensor &&
                   found.boxes.box[i].kind == boxes->box[i].kind &&
                   found.boxes.box[i].row_begin == boxes->box[i].row_begin &&
                   found.boxes.box[i].row_end == boxes->box[i].row_end;
        pl_rank_boxes_free(&found);
    }
    pl_free(text);
    pl_text_free(&path);
    return same;
}

/* What an attempt that was killed has left of RANK. */
static void remove_parts(const job *j, int64_t rank)
{
    static const char *const endings[] = {".json", ".sums", ".h5"};
    char name[PL_MANIFEST_NAME];
    pl_text path = {0};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; ++i) {
        pl_manifest_rank_file(rank, endings[i], name);
        if (pl_manifest_path(&path, pl_text_string(&j->folder), name) == PL_OK)
            (void)remove(pl_text_string(&path));
    }
    pl_text_free(&path);
}

static int64_t count_chunks(const pl_checkpoint_boxes *boxes, int64_t chunk_bytes)
{
    int64_t count = 0;
    for (size_t i = 0; i < boxes->count; ++i)
        count += pl_divide_up(boxes->box[i].bytes, chunk_bytes);
    return count;
}

static pl_status open_target(job *j, int64_t rank, pl_checkpoint_boxes *boxes)
{
    target *t = NULL;
    pl_status status = pl_allocate(&t, 1, sizeof *t, "a rank that is written");
    if (status != PL_OK) {
        pl_checkpoint_boxes_free(boxes);
        return status;
    }
    t->left = count_chunks(boxes, j->chunk);
    remove_parts(j, rank);
    status = pl_store_writer_open(&t->writer, pl_text_string(&j->folder), rank, &j->manifest.model,
                                  boxes);
    if (status != PL_OK) {
        pl_free(t);
        return status;
    }
    j->now = t;
    j->box = 0;
    j->first = 0;
    return PL_OK;
}

/* Open the next rank that has something to write; j->now stays NULL when there is none. */
static pl_status next_target(job *j)
{
    while (!j->now && j->next_rank < j->request->layout->world) {
        int64_t rank = j->next_rank++;
        pl_checkpoint_boxes boxes;
        PL_TRY(pl_checkpoint_boxes_of_rank(&boxes, &j->manifest.model, j->manifest.kept,
                                           j->request->layout, rank));
        bool writes = boxes.count > 0, complete = writes && is_complete(j, rank, &boxes);
        j->result.ranks += writes;
        j->result.reused += complete;
        if (complete) j->bytes -= boxes.bytes;
        if (writes && !complete)
            PL_TRY(open_target(j, rank, &boxes));
        else
            pl_checkpoint_boxes_free(&boxes);
    }
    return PL_OK;
}

/* --- chunks --- */

/* Take the next chunk; *OUT has no target when there is none. Under the lock. */
static pl_status take_chunk(job *j, chunk *out)
{
    *out = (chunk){0};
    PL_TRY(next_target(j));
    if (!j->now) return PL_OK;
    const pl_checkpoint_boxes *boxes = pl_store_writer_boxes(j->now->writer);
    const pl_checkpoint_box *box = &boxes->box[j->box];
    int64_t left = box->bytes - j->first;
    *out = (chunk){j->now, box, j->first, left < j->chunk ? left : j->chunk};
    j->first += out->bytes;
    if (j->first < box->bytes) return PL_OK;
    j->first = 0;
    if (++j->box == boxes->count) j->now = NULL;
    return PL_OK;
}

static pl_status move_chunk(job *j, const chunk *c, char *room)
{
    const pl_checkpoint_box *box = c->box;
    int64_t row = box->bytes / (box->row_end - box->row_begin);
    int64_t begin = box->row_begin * row + c->first;
    PL_TRY(pl_store_read_bytes(j->request->from, (pl_value_kind)box->kind, box->tensor, begin,
                               begin + c->bytes, room));
    return pl_store_write(c->target->writer, box, c->first, c->bytes, room);
}

static void close_target(target *t)
{
    pl_store_writer_close(t->writer);
    pl_free(t);
}

/* C is written, or has failed: count it, and with the last chunk of a rank finish its files. */
static pl_status count_chunk(job *j, const chunk *c, pl_status status)
{
    pl_manifest_rank facts;
    pthread_mutex_lock(&j->lock);
    bool last = --c->target->left == 0;
    bool whole = j->status == PL_OK;
    if (status == PL_OK) {
        j->done += c->bytes;
        if (j->request->progress) j->request->progress(j->request->context, j->done, j->bytes);
    }
    pthread_mutex_unlock(&j->lock);
    if (!last) return status;
    if (status == PL_OK && whole) status = pl_store_writer_finish(c->target->writer, &facts);
    close_target(c->target);
    return status;
}

/* --- threads --- */

static void keep_failure(job *j, pl_status status)
{
    pthread_mutex_lock(&j->lock);
    if (j->status == PL_OK) {
        j->status = status;
        snprintf(j->words, sizeof j->words, "%s", pl_error_text());
    }
    pthread_mutex_unlock(&j->lock);
}

/* After a failure the chunks of open ranks are still taken, so that these are closed. */
static bool take_next(job *j, chunk *c)
{
    pthread_mutex_lock(&j->lock);
    pl_status status = PL_OK;
    *c = (chunk){0};
    if (j->status == PL_OK || j->now) status = take_chunk(j, c);
    pthread_mutex_unlock(&j->lock);
    if (status != PL_OK) keep_failure(j, status);
    return c->target != NULL;
}

static bool has_failed(job *j)
{
    pthread_mutex_lock(&j->lock);
    bool failed = j->status != PL_OK;
    pthread_mutex_unlock(&j->lock);
    return failed;
}

static void *move_chunks(void *context)
{
    job *j = context;
    char *room = NULL;
    pl_status status = pl_allocate(&room, (size_t)j->chunk, 1, "values on their way");
    if (status != PL_OK) keep_failure(j, status);
    for (chunk c; take_next(j, &c);) {
        status = has_failed(j) || !room ? PL_OK : move_chunk(j, &c, room);
        if (status != PL_OK) keep_failure(j, status);
        status = count_chunk(j, &c, status);
        if (status != PL_OK) keep_failure(j, status);
    }
    pl_free(room);
    return NULL;
}

static pl_status run_threads(job *j)
{
    pthread_t threads[PL_RESHARD_THREADS_MOST];
    int started = 0;
    while (started + 1 < j->request->threads &&
           pthread_create(&threads[started], NULL, move_chunks, j) == 0)
        ++started;
    move_chunks(j); /* this thread takes part, also where no other could be started */
    for (int i = 0; i < started; ++i) pthread_join(threads[i], NULL);
    if (j->status != PL_OK) pl_error_set(j->words);
    return j->status;
}

/* --- the whole --- */

static pl_status make_manifest(job *j)
{
    const pl_manifest *from = j->from;
    pl_manifest *m = &j->manifest;
    m->progress = from->progress;
    m->trained = from->trained;
    m->optimizer = from->optimizer;
    m->layout = *j->request->layout;
    m->settings = from->settings ? json_incref(from->settings) : NULL;
    struct json_t *provenance = j->request->provenance ? j->request->provenance : from->provenance;
    m->provenance = provenance ? json_incref(provenance) : NULL;
    PL_TRY(pl_manifest_set_model(m, &from->model, (const char *const *)from->keep_fp32,
                                 from->keep_fp32_count, (const char *const *)from->frozen,
                                 from->frozen_count));
    PL_TRY(
        pl_allocate(&m->kept, (size_t)m->model.tensor_count, sizeof *m->kept, "values of tensors"));
    memcpy(m->kept, from->kept, (size_t)m->model.tensor_count * sizeof *m->kept);
    return pl_reshard_check(&m->layout, &m->model);
}

/* The same for the same job: of what is read, and of the layout it comes into. */
static uint64_t name_of_job(const job *j)
{
    char notation[PL_LAYOUT_TEXT];
    uint64_t hash = j->from->index.hash;
    for (int64_t i = 0; i < j->from->rank_count; ++i)
        hash = pl_hash_pair(
            hash, pl_hash_pair(j->from->ranks[i].boxes.hash, j->from->ranks[i].data.hash));
    pl_layout_format(j->request->layout, notation);
    return pl_hash_pair(hash, pl_hash(notation, strlen(notation))) >> 1 | 1;
}

static int64_t bytes_of_all(const pl_manifest *m)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < m->model.tensor_count; ++i)
        bytes += pl_tensor_total_rows(&m->model.tensors[i]) *
                 pl_kept_row_bytes(&m->model.tensors[i], &m->kept[i]);
    return bytes;
}

/* Whether the job was done before: a repeat of a job that was killed behind its commit. */
static bool is_done(const job *j, uint64_t nonce)
{
    pl_text folder = {0};
    pl_manifest there;
    char digits[PL_HASH_TEXT];
    bool done = false;
    if (pl_checkpoint_path(&folder, j->request->root, j->manifest.progress.step) == PL_OK &&
        pl_manifest_read(&there, pl_text_string(&folder)) == PL_OK) {
        const char *by = json_string_value(json_object_get(there.provenance, "reshard"));
        done = by && strcmp(by, pl_hash_print(nonce, digits)) == 0;
        pl_manifest_free(&there);
    }
    pl_text_free(&folder);
    return done;
}

/* The new manifest says which job made it. */
static pl_status sign(job *j, uint64_t nonce)
{
    char digits[PL_HASH_TEXT];
    pl_manifest *m = &j->manifest;
    struct json_t *copy = m->provenance ? json_copy(m->provenance) : json_object();
    bool done =
        json_object_set_new(copy, "reshard", json_string(pl_hash_print(nonce, digits))) == 0;
    json_decref(m->provenance);
    m->provenance = copy;
    return done ? PL_OK : PL_FAIL(PL_NO_MEMORY, "out of memory for a manifest");
}

/* What is there of the job's own folder needs no room any more. */
static pl_status reshard(job *j, uint64_t nonce)
{
    const char *root = j->request->root;
    int64_t step = j->manifest.progress.step;
    PL_TRY(pl_checkpoint_clean(root, nonce, NULL));
    if (is_done(j, nonce)) return PL_OK;
    PL_TRY(sign(j, nonce));
    int64_t found = pl_checkpoint_found(root, step, nonce);
    PL_TRY(pl_checkpoint_check(root, step, found < j->bytes ? j->bytes - found : 0));
    PL_TRY(pl_checkpoint_begin(&j->folder, root, step, nonce));
    PL_TRY(pl_checkpoint_uncommit(pl_text_string(&j->folder)));
    PL_TRY(run_threads(j));
    PL_TRY(pl_checkpoint_collect(root, nonce, &j->manifest));
    return pl_checkpoint_commit(root, nonce, &j->manifest);
}

pl_status pl_store_reshard(pl_reshard_result *out, const pl_reshard_request *request)
{
    int lock = -1;
    job j = {.request = request, .from = pl_store_reader_manifest(request->from)};
    j.chunk = pl_reshard_chunk(request->memory, request->threads);
    int64_t before = pl_store_reader_bytes(request->from);
    if (pthread_mutex_init(&j.lock, NULL) != 0)
        return PL_FAIL(PL_NO_MEMORY, "no lock for the threads of a reshard");
    pl_status status = make_manifest(&j);
    if (status == PL_OK) j.bytes = bytes_of_all(&j.manifest);
    if (status == PL_OK) status = pl_checkpoint_lock(&lock, request->root);
    if (status == PL_OK) status = reshard(&j, name_of_job(&j));
    pl_checkpoint_unlock(lock);
    pl_manifest_free(&j.manifest);
    pl_text_free(&j.folder);
    pthread_mutex_destroy(&j.lock);
    j.result.bytes = j.done;
    j.result.bytes_read = pl_store_reader_bytes(request->from) - before;
    if (status == PL_OK) *out = j.result;
    return status;
}
