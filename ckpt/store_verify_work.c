/* The part of verifying that reads: threads, and what each does with a task. */
#include "ckpt/store_verify_work.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/store_layout.h"
#include "ckpt/store_writer.h"
#include "common/file_bytes.h"
#include "common/memory.h"

enum {
    BLOCKS_OF_A_TASK = 16,
    LOOK_AHEAD = 3 /* tasks of each thread */,
    LOOK_NANOSECONDS = 100000000,
    BILLION = 1000000000
};

/* A thread: room for a block, and the file of the rank that it read last. */
typedef struct worker {
    pl_verification *v;
    char *room;
    int64_t rank; /* place in the manifest's list; -1: none */
    int descriptor;
    pl_text path;
} worker;

static void count(pl_verification *v, int64_t bytes)
{
    __atomic_fetch_add(&v->done, bytes, __ATOMIC_RELAXED);
}

static const char *file_of(const worker *w, int64_t rank, char *name)
{
    return pl_manifest_rank_file(w->v->report->manifest.ranks[rank].rank, ".h5", name);
}

/* Open the HDF5 file of a rank, unless it is open. */
static pl_status open_rank(worker *w, int64_t rank)
{
    char name[PL_MANIFEST_NAME];
    int64_t length = 0;
    if (w->rank == rank) return PL_OK;
    if (w->descriptor >= 0) close(w->descriptor);
    w->descriptor = -1;
    w->rank = -1;
    PL_TRY(pl_manifest_path(&w->path, w->v->request->folder, file_of(w, rank, name)));
    PL_TRY(pl_file_open(&w->descriptor, &length, pl_text_string(&w->path)));
    w->rank = rank;
    return PL_OK;
}

/* --- blocks --- */

/* A block: the bytes [first, first + bytes) of a box. */
typedef struct block {
    const pl_checkpoint_box *box;
    int64_t number; /* of its sum */
    int64_t first, bytes;
} block;

/* The box that has the block NUMBER. */
static const pl_checkpoint_box *find_box(const pl_checkpoint_boxes *boxes, int64_t number)
{
    size_t low = 0, high = boxes->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (boxes->box[middle].first_sum <= number)
            low = middle;
        else
            high = middle;
    }
    return &boxes->box[low];
}

static block find_block(const pl_checkpoint_box *box, int64_t number)
{
    int64_t first = (number - box->first_sum) * PL_CHECKPOINT_BLOCK;
    int64_t left = box->bytes - first;
    return (block){box, number, first, left < PL_CHECKPOINT_BLOCK ? left : PL_CHECKPOINT_BLOCK};
}

static pl_damage damage_of(const block *b)
{
    const pl_checkpoint_box *box = b->box;
    int64_t row = box->bytes / (box->row_end - box->row_begin);
    return (pl_damage){.tensor = box->tensor,
                       .kept = (pl_value_kind)box->kind,
                       .row_begin = box->row_begin + b->first / row,
                       .row_end = box->row_begin + (b->first + b->bytes - 1) / row + 1,
                       .byte_begin = box->offset + b->first,
                       .byte_end = box->offset + b->first + b->bytes};
}

static pl_status check_block(worker *w, int64_t index, const block *b)
{
    pl_verify_rank *rank = &w->v->rank[index];
    const pl_damage damage = damage_of(b);
    char name[PL_MANIFEST_NAME];
    const char *file = file_of(w, index, name);
    if (damage.byte_end > rank->data_bytes) {
        __atomic_store_n(&rank->unreadable, 1, __ATOMIC_RELAXED);
        return pl_verify_tell(w->v, PL_DAMAGE_VALUES, &damage, file, "the file ends before");
    }
    pl_status status = open_rank(w, index);
    if (status == PL_OK)
        status = pl_file_read(w->descriptor, pl_text_string(&w->path), damage.byte_begin, b->bytes,
                              w->room);
    if (status != PL_OK) {
        __atomic_store_n(&rank->unreadable, 1, __ATOMIC_RELAXED);
        return pl_verify_tell_failure(w->v, PL_DAMAGE_VALUES, &damage, file, status);
    }
    uint64_t hash = pl_hash(w->room, (size_t)b->bytes);
    count(w->v, b->bytes);
    if (rank->found) rank->found[b->number] = hash;
    if (!rank->sums || rank->sums[b->number] == hash) return PL_OK;
    return pl_verify_tell(w->v, PL_DAMAGE_VALUES, &damage, file, "not what their sums say");
}

static pl_status check_blocks(worker *w, int64_t index, int64_t begin, int64_t end)
{
    const pl_checkpoint_boxes *boxes = &w->v->rank[index].boxes.boxes;
    const pl_checkpoint_box *box = find_box(boxes, begin);
    for (int64_t number = begin; number < end; ++number) {
        if (number >= box->first_sum + pl_checkpoint_blocks(box->bytes)) ++box;
        const block b = find_block(box, number);
        PL_TRY(check_block(w, index, &b));
    }
    return PL_OK;
}

/* --- what stands around them --- */

/* Only where the bytes outside boxes are right may HDF5 look at the file. */
static pl_status check_outside(worker *w, int64_t index)
{
    const pl_verify_rank *rank = &w->v->rank[index];
    char name[PL_MANIFEST_NAME], found[PL_HASH_TEXT], wanted[PL_HASH_TEXT], words[128];
    const char *file = file_of(w, index, name);
    uint64_t hash = 0;
    if (rank->data_bytes < rank->boxes.data_bytes) return PL_OK; /* its length is told */
    pl_status status = open_rank(w, index);
    const char *path = pl_text_string(&w->path);
    if (status == PL_OK)
        status = pl_store_outside_hash(&hash, w->descriptor, path, rank->boxes.data_bytes,
                                       &rank->boxes.boxes);
    if (status != PL_OK) return pl_verify_tell_failure(w->v, PL_DAMAGE_OUTSIDE, NULL, file, status);
    count(w->v, rank->boxes.data_bytes - rank->boxes.boxes.bytes);
    if (hash != rank->boxes.outside_hash) {
        snprintf(words, sizeof words, "the hash of the bytes outside boxes is %s, not %s",
                 pl_hash_print(hash, found), pl_hash_print(rank->boxes.outside_hash, wanted));
        return pl_verify_tell(w->v, PL_DAMAGE_OUTSIDE, NULL, file, words);
    }
    if (rank->data_bytes != rank->boxes.data_bytes) return PL_OK;
    status = pl_store_check_layout(path, &rank->boxes.boxes, &w->v->report->manifest.model);
    return status == PL_OK ? PL_OK
                           : pl_verify_tell_failure(w->v, PL_DAMAGE_DATASETS, NULL, file, status);
}

static pl_status check_index(pl_verification *v)
{
    char found[PL_HASH_TEXT], wanted[PL_HASH_TEXT], words[96];
    const pl_file_facts *facts = &v->report->manifest.index;
    int descriptor = -1;
    int64_t length = 0;
    uint64_t hash = 0;
    pl_text path = {0};
    pl_status status = pl_manifest_path(&path, v->request->folder, PL_MANIFEST_INDEX);
    if (status == PL_OK) status = pl_file_open(&descriptor, &length, pl_text_string(&path));
    if (status == PL_OK)
        status = pl_store_whole_hash(&hash, descriptor, pl_text_string(&path), facts->bytes);
    if (descriptor >= 0) close(descriptor);
    pl_text_free(&path);
    if (status != PL_OK)
        return pl_verify_tell_failure(v, PL_DAMAGE_INDEX, NULL, PL_MANIFEST_INDEX, status);
    count(v, facts->bytes);
    if (hash == facts->hash) return PL_OK;
    snprintf(words, sizeof words, "its hash is %s, and the manifest says %s",
             pl_hash_print(hash, found), pl_hash_print(facts->hash, wanted));
    return pl_verify_tell(v, PL_DAMAGE_INDEX, NULL, PL_MANIFEST_INDEX, words);
}

/* --- tasks --- */

static bool has_values(const pl_verify_rank *rank)
{
    return rank->has_boxes && rank->data_bytes >= 0;
}

static int64_t longest_block(const pl_checkpoint_boxes *boxes)
{
    int64_t longest = 0;
    for (size_t i = 0; i < boxes->count; ++i)
        if (boxes->box[i].bytes > longest) longest = boxes->box[i].bytes;
    return longest < PL_CHECKPOINT_BLOCK ? longest : PL_CHECKPOINT_BLOCK;
}

/* Rank by rank: runs of its blocks, then what stands around them, which has been fetched with them.
 * The index is last. */
static void number_tasks(pl_verification *v)
{
    int64_t ranks = v->report->manifest.rank_count;
    for (int64_t i = 0; i < ranks; ++i) {
        const pl_checkpoint_boxes *boxes = &v->rank[i].boxes.boxes;
        int64_t longest = longest_block(boxes);
        v->rank[i].first_task = v->tasks;
        if (!has_values(&v->rank[i])) continue;
        if (longest > v->longest) v->longest = longest;
        v->tasks += pl_divide_up(boxes->sums, BLOCKS_OF_A_TASK) + 1;
        v->report->blocks += boxes->sums;
    }
    ++v->tasks;
    v->report->bytes = v->bytes;
}

/* What a task is about. */
typedef struct task {
    int64_t rank;       /* place in the manifest's list; -1: the index */
    int64_t begin, end; /* blocks; none: what is around them */
} task;

static task find_task(const pl_verification *v, int64_t number)
{
    int64_t low = 0, high = v->report->manifest.rank_count;
    if (number == v->tasks - 1) return (task){.rank = -1};
    while (high - low > 1) { /* the last rank that begins at the task or before it */
        int64_t middle = low + (high - low) / 2;
        if (v->rank[middle].first_task <= number)
            low = middle;
        else
            high = middle;
    }
    int64_t begin = (number - v->rank[low].first_task) * BLOCKS_OF_A_TASK;
    int64_t end = begin + BLOCKS_OF_A_TASK, all = v->rank[low].boxes.boxes.sums;
    return (task){low, begin < all ? begin : all, end < all ? end : all};
}

/* Task NUMBER will be done soon: all that stands from its first block to its last. What is wrong
 * with the file is told where it is read. */
static void expect_task(const pl_verification *v, int64_t number)
{
    if (number >= v->tasks) return;
    const task t = find_task(v, number);
    if (t.begin == t.end) return;
    const pl_checkpoint_boxes *boxes = &v->rank[t.rank].boxes.boxes;
    const block first = find_block(find_box(boxes, t.begin), t.begin);
    const block last = find_block(find_box(boxes, t.end - 1), t.end - 1);
    int64_t offset = t.begin == 0 ? 0 : first.box->offset + first.first;
    int64_t end = t.end == boxes->sums ? v->rank[t.rank].boxes.data_bytes
                                       : last.box->offset + last.first + last.bytes;
    pl_verify_expect(v, t.rank, ".h5", offset, end - offset);
}

static pl_status do_task(worker *w, int64_t number)
{
    const int64_t ahead = (int64_t)LOOK_AHEAD * w->v->request->threads;
    const task t = find_task(w->v, number);
    expect_task(w->v, number + ahead);
    if (t.rank < 0) return w->v->has_index ? check_index(w->v) : PL_OK;
    if (t.begin < t.end) return check_blocks(w, t.rank, t.begin, t.end);
    return check_outside(w, t.rank);
}

static pl_status do_tasks(worker *w)
{
    pl_verification *v = w->v;
    PL_TRY(pl_allocate(&w->room, (size_t)v->longest, 1, "a block"));
    for (;;) {
        int64_t number = __atomic_fetch_add(&v->next, 1, __ATOMIC_RELAXED);
        if (number >= v->tasks) return PL_OK;
        PL_TRY(do_task(w, number));
    }
}

static void *work(void *context)
{
    pl_verification *v = context;
    worker w = {.v = v, .rank = -1, .descriptor = -1};
    pl_status status = do_tasks(&w);
    if (w.descriptor >= 0) close(w.descriptor);
    pl_text_free(&w.path);
    pl_free(w.room);
    pthread_mutex_lock(&v->lock);
    if (status != PL_OK && v->status == PL_OK) {
        v->status = status;
        pl_text_add_string(&v->words, pl_error_text());
        __atomic_store_n(&v->next, v->tasks, __ATOMIC_RELAXED); /* no more for the others */
    }
    --v->running;
    pthread_cond_signal(&v->changed);
    pthread_mutex_unlock(&v->lock);
    return NULL;
}

/* --- threads --- */

/* Signals are for the program's own thread. */
static int start(pl_verification *v, pthread_t *threads, int *started)
{
    sigset_t all, before;
    sigfillset(&all);
    int error = pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; error == 0 && i < v->request->threads && i < v->tasks; ++i) {
        pthread_mutex_lock(&v->lock);
        ++v->running;
        pthread_mutex_unlock(&v->lock);
        error = pthread_create(&threads[i], NULL, work, v);
        if (error == 0) {
            ++*started;
            continue;
        }
        pthread_mutex_lock(&v->lock);
        --v->running;
        pthread_mutex_unlock(&v->lock);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static void wait_for_all(pl_verification *v)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    pthread_mutex_lock(&v->lock);
    while (v->running > 0) {
        until.tv_nsec += LOOK_NANOSECONDS;
        until.tv_sec += until.tv_nsec / BILLION;
        until.tv_nsec %= BILLION;
        while (v->running > 0 && pthread_cond_timedwait(&v->changed, &v->lock, &until) == 0) {
        }
        pthread_mutex_unlock(&v->lock);
        if (v->request->progress)
            v->request->progress(v->request->context, __atomic_load_n(&v->done, __ATOMIC_RELAXED),
                                 v->bytes);
        pthread_mutex_lock(&v->lock);
    }
    pthread_mutex_unlock(&v->lock);
}

pl_status pl_verify_work(pl_verification *v)
{
    pthread_t *threads = NULL;
    int started = 0;
    number_tasks(v);
    PL_TRY(pl_allocate(&threads, (size_t)v->request->threads, sizeof *threads, "threads"));
    int error = start(v, threads, &started);
    wait_for_all(v);
    for (int i = 0; i < started; ++i) pthread_join(threads[i], NULL);
    pl_free(threads);
    if (started == 0) /* fewer than asked for will do */
        return PL_FAIL(PL_IO_FAILED, "cannot start a thread: %s", strerror(error));
    if (v->status != PL_OK) pl_error_set(pl_text_string(&v->words));
    return v->status;
}
