#include "train/checkpointing.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/store_folder.h"
#include "ckpt/store_writer.h"
#include "common/json.h"
#include "common/memory.h"
#include "train/run_folder.h"

/* A save between its beginning and its commit. */
typedef struct save {
    bool begun;
    pl_manifest_progress progress;
    uint64_t nonce;
    pl_store_writer *writer; /* NULL: this rank has nothing to write */
    bool has_thread;         /* that writes, or commits */
    pthread_t thread;
    bool done; /* atomic: written, or failed */
    pl_status status;
    char words[1024]; /* of the thread's failure */
} save;

struct pl_checkpointing {
    const pl_setup *setup;
    const pl_run_facts *facts;
    int64_t rank;
    pl_text root;
    pl_kept_values *kept; /* [tensors] */
    int lock;             /* rank 0's; -1 elsewhere */
    uint64_t nonce;
    const void **values; /* [boxes] behind: what was taken */
    save before, now;    /* `before` waits for its commit while `now` is taken */
    save leaving;        /* which a thread of rank 0 commits */
};

static const pl_model *model_of(const pl_checkpointing *c) { return &c->setup->plan.model; }

bool pl_checkpointing_is_behind(const pl_run *run)
{
    return run->checkpoint.every > 0 && run->checkpoint.write == PL_CHECKPOINT_BEHIND;
}

static bool is_behind(const pl_checkpointing *c)
{
    return pl_checkpointing_is_behind(&c->setup->run);
}

/* --- opening and closing --- */

static pl_status find_kept(pl_checkpointing *c)
{
    const pl_setup *setup = c->setup;
    PL_TRY(pl_allocate(&c->kept, (size_t)model_of(c)->tensor_count, sizeof *c->kept,
                       "values of tensors"));
    pl_kept_values_of_training(c->kept, model_of(c), &setup->settings.precision,
                               setup->settings.optimizer);
    return PL_OK;
}

static pl_status open_folder(pl_checkpointing *c)
{
    if (c->rank != 0) return PL_OK;
    PL_TRY(pl_checkpoint_draw_nonce(&c->nonce));
    PL_TRY(pl_checkpoint_lock(&c->lock, pl_text_string(&c->root)));
    return pl_checkpoint_clean(pl_text_string(&c->root), 0, NULL);
}

pl_status pl_checkpointing_open(pl_checkpointing **out, const pl_checkpointing_request *request)
{
    pl_checkpointing *c = NULL;
    PL_TRY(pl_allocate(&c, 1, sizeof *c, "checkpoints of a rank"));
    c->setup = request->setup;
    c->facts = request->facts;
    c->rank = request->rank;
    c->lock = -1;
    pl_run_folder_path(&c->root, pl_text_string(&c->setup->folder), PL_RUN_FOLDER_CHECKPOINTS);
    pl_status status = pl_text_status(&c->root);
    if (status == PL_OK) status = find_kept(c);
    if (status == PL_OK) status = open_folder(c);
    if (status == PL_OK)
        *out = c;
    else
        pl_checkpointing_close(c);
    return status;
}

static void join(save *s)
{
    if (s->has_thread) pthread_join(s->thread, NULL);
    s->has_thread = false;
}

/* Let go of SAVE, and of its files where it was not committed. */
static void drop(const pl_checkpointing *c, save *s)
{
    join(s);
    pl_store_writer_close(s->writer);
    if (s->begun && c->rank == 0)
        pl_checkpoint_discard(pl_text_string(&c->root), s->progress.step, s->nonce);
    memset(s, 0, sizeof *s);
}

void pl_checkpointing_close(pl_checkpointing *c)
{
    if (!c) return;
    drop(c, &c->leaving);
    drop(c, &c->before);
    drop(c, &c->now);
    pl_checkpoint_unlock(c->lock);
    pl_free(c->values);
    pl_free(c->kept);
    pl_text_free(&c->root);
    pl_free(c);
}

int64_t pl_checkpointing_nonce(const pl_checkpointing *c) { return (int64_t)c->nonce; }

/* --- beginning --- */

static int64_t bytes_of_all(const pl_checkpointing *c)
{
    const pl_model *model = model_of(c);
    int64_t bytes = 0;
    for (int64_t i = 0; i < model->tensor_count; ++i)
        bytes += pl_tensor_total_rows(&model->tensors[i]) *
                 pl_kept_row_bytes(&model->tensors[i], &c->kept[i]);
    return bytes;
}

static pl_status open_writer(pl_checkpointing *c, const char *folder)
{
    pl_checkpoint_boxes boxes;
    PL_TRY(pl_checkpoint_boxes_of_rank(&boxes, model_of(c), c->kept, &c->setup->layout, c->rank));
    if (boxes.count == 0) {
        pl_checkpoint_boxes_free(&boxes);
        return PL_OK;
    }
    pl_free(c->values);
    c->values = NULL;
    pl_status status = is_behind(c) ? pl_allocate(&c->values, boxes.count, sizeof *c->values,
                                                  "places of values that are saved")
                                    : PL_OK;
    if (status != PL_OK) {
        pl_checkpoint_boxes_free(&boxes);
        return status;
    }
    return pl_store_writer_open(&c->now.writer, folder, c->rank, model_of(c), &boxes);
}

/* What a thread could not do. */
static pl_status outcome_of(const save *s)
{
    if (s->status != PL_OK) pl_error_set(s->words);
    return s->status;
}

pl_status pl_checkpointing_wait(pl_checkpointing *c)
{
    join(&c->now);
    return outcome_of(&c->now);
}

pl_status pl_checkpointing_begin(pl_checkpointing *c, const pl_manifest_progress *progress,
                                 int64_t nonce)
{
    const char *root = pl_text_string(&c->root);
    pl_text folder = {0};
    PL_TRY(pl_checkpointing_wait(c));
    c->before = c->now;
    c->now = (save){.progress = *progress, .nonce = (uint64_t)nonce};
    if (c->rank == 0) PL_TRY(pl_checkpoint_check(root, progress->step, bytes_of_all(c)));
    pl_status status = pl_checkpoint_begin(&folder, root, progress->step, (uint64_t)nonce);
    c->now.begun = status == PL_OK;
    if (status == PL_OK) status = open_writer(c, pl_text_string(&folder));
    pl_text_free(&folder);
    return status;
}

/* --- taking --- */

pl_status pl_checkpointing_take(pl_checkpointing *c, pl_value_kind kind, const pl_tensor *tensor,
                                int64_t row_begin, int64_t row_end, pl_dtype dtype,
                                const void *values)
{
    save *s = &c->now;
    if (!s->writer) return PL_OK;
    const pl_checkpoint_box *box = pl_checkpoint_boxes_find(pl_store_writer_boxes(s->writer), kind,
                                                            tensor - model_of(c)->tensors);
    if (!box) return PL_OK; /* a replica writes it */
    if (box->row_begin != row_begin || box->row_end != row_end || box->dtype != (uint8_t)dtype)
        return PL_FAIL(PL_INTERNAL, "a save gave other rows or another type than are placed here");
    if (!is_behind(c)) return pl_store_write(s->writer, box, 0, box->bytes, values);
    c->values[box - pl_store_writer_boxes(s->writer)->box] = values;
    return PL_OK;
}

/* --- writing beside the steps --- */

static pl_status write_values(const pl_checkpointing *c)
{
    pl_store_writer *writer = c->now.writer;
    const pl_checkpoint_boxes *boxes = pl_store_writer_boxes(writer);
    pl_manifest_rank facts;
    for (size_t i = 0; i < boxes->count; ++i) {
        if (!c->values[i]) return PL_FAIL(PL_INTERNAL, "a save left out what this rank holds");
        PL_TRY(pl_store_write(writer, &boxes->box[i], 0, boxes->box[i].bytes, c->values[i]));
    }
    return pl_store_writer_finish(writer, &facts);
}

static void keep_outcome(save *s, pl_status status)
{
    s->status = status;
    if (status != PL_OK) snprintf(s->words, sizeof s->words, "%s", pl_error_text());
}

static void *write_beside(void *context)
{
    pl_checkpointing *c = context;
    keep_outcome(&c->now, write_values(c));
    __atomic_store_n(&c->now.done, true, __ATOMIC_RELEASE);
    return NULL;
}

pl_status pl_checkpointing_taken(pl_checkpointing *c)
{
    save *s = &c->now;
    pl_manifest_rank facts;
    s->done = true;
    if (!s->writer) return PL_OK;
    if (!is_behind(c)) return pl_store_writer_finish(s->writer, &facts);
    s->done = false;
    if (pthread_create(&s->thread, NULL, write_beside, c) != 0)
        return PL_FAIL(PL_NO_MEMORY, "no thread to write a checkpoint");
    s->has_thread = true;
    return PL_OK;
}

bool pl_checkpointing_is_writing(const pl_checkpointing *c)
{
    return c->now.begun && !__atomic_load_n(&c->now.done, __ATOMIC_ACQUIRE);
}

/* --- the commit --- */

static pl_status fill_manifest(pl_manifest *m, const pl_checkpointing *c, const save *s)
{
    const pl_run *run = &c->setup->run;
    m->trained = true;
    m->optimizer = c->setup->settings.optimizer;
    m->progress = s->progress;
    m->layout = c->setup->layout;
    PL_TRY(pl_manifest_set_model(m, &c->setup->model, (const char *const *)run->keep_fp32.words,
                                 (int)run->keep_fp32.count, (const char *const *)run->frozen.words,
                                 (int)run->frozen.count));
    PL_TRY(
        pl_allocate(&m->kept, (size_t)m->model.tensor_count, sizeof *m->kept, "values of tensors"));
    memcpy(m->kept, c->kept, (size_t)m->model.tensor_count * sizeof *m->kept);
    PL_TRY(pl_run_log_settings(&m->settings, run));
    return pl_run_log_provenance(&m->provenance, c->facts);
}

static pl_status commit(const pl_checkpointing *c, save *s)
{
    const char *root = pl_text_string(&c->root);
    const pl_run *run = &c->setup->run;
    pl_manifest manifest = {0};
    pl_status status = fill_manifest(&manifest, c, s);
    if (status == PL_OK) status = pl_checkpoint_collect(root, s->nonce, &manifest);
    if (status == PL_OK) status = pl_checkpoint_commit(root, s->nonce, &manifest);
    pl_manifest_free(&manifest);
    PL_TRY(status);
    s->begun = false;
    if (run->checkpoint.keep == 0) return PL_OK;
    return pl_checkpoint_prune(root, run->checkpoint.keep, run->checkpoint.keep_every, NULL);
}

static void *commit_beside(void *context)
{
    pl_checkpointing *c = context;
    keep_outcome(&c->leaving, commit(c, &c->leaving));
    return NULL;
}

/* The commit that a thread is at, if any, is done. */
static pl_status settle_leaving(pl_checkpointing *c)
{
    join(&c->leaving);
    PL_TRY(outcome_of(&c->leaving));
    drop(c, &c->leaving);
    return PL_OK;
}

static pl_status commit_leaving(pl_checkpointing *c, save *s)
{
    PL_TRY(settle_leaving(c));
    c->leaving = *s;
    *s = (save){.begun = false};
    if (pthread_create(&c->leaving.thread, NULL, commit_beside, c) != 0)
        return PL_FAIL(PL_NO_MEMORY, "no thread to commit a checkpoint");
    c->leaving.has_thread = true;
    return PL_OK;
}

/* All ranks have written SAVE: rank 0 commits it, beside the next steps where it was written beside
 * them: a file system may let a commit wait for all that is being written. */
static pl_status finish(pl_checkpointing *c, save *s)
{
    if (!s->begun) return PL_OK;
    join(s);
    PL_TRY(outcome_of(s));
    if (c->rank == 0 && is_behind(c)) return commit_leaving(c, s);
    if (c->rank == 0) PL_TRY(commit(c, s));
    s->begun = false;
    drop(c, s);
    return PL_OK;
}

pl_status pl_checkpointing_saved(pl_checkpointing *c)
{
    PL_TRY(finish(c, &c->before));
    return c->now.has_thread ? PL_OK : finish(c, &c->now);
}

pl_status pl_checkpointing_settle(pl_checkpointing *c) { return finish(c, &c->now); }

pl_status pl_checkpointing_end(pl_checkpointing *c)
{
    PL_TRY(finish(c, &c->now));
    return settle_leaving(c);
}
