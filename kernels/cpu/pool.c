#include "kernels/cpu/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "common/memory.h"

enum { SCRATCH_ALIGNMENT = 64 };

/* The right to run tasks, with the scratch that goes with it. */
typedef struct place {
    struct place *next;
    void *scratch; /* aligned, inside of block */
    void *block;
    size_t scratch_bytes;
} place;

/* On the stack of the thread that brings it. */
typedef struct job {
    struct job *next;
    pl_task task;
    void *context;
    int64_t tasks;
    size_t scratch_bytes;
    atomic_llong next_task;
    int helpers;         /* under the lock: workers that are in it */
    bool closed;         /* under the lock: nobody joins any more */
    pthread_cond_t done; /* helpers came to 0 */
} job;

struct pl_pool {
    pthread_mutex_t lock;
    pthread_cond_t place_free, work;
    place *free_places;
    job *jobs; /* those that workers may join */
    int workers, thread_count;
    int free_count;                  /* places */
    int waiting, idle;               /* ranks that wait for a place, workers that wait for work */
    bool rank_called, worker_called; /* one of them was woken and has not looked yet */
    bool closing;
    place *places;
    pthread_t *threads;
};

/* Whom to wake once the lock is let go, so that they do not run into it. */
typedef struct calls {
    int ranks, workers;
} calls;

static void wake(pl_pool *pool, calls wanted)
{
    if (wanted.ranks > 0) pthread_cond_signal(&pool->place_free);
    for (int i = 0; i < wanted.workers; ++i) pthread_cond_signal(&pool->work);
}

/* --- places, under the lock --- */

static place *take_place(pl_pool *pool)
{
    place *taken = pool->free_places;
    pool->free_places = taken->next;
    --pool->free_count;
    return taken;
}

static place *wait_for_place(pl_pool *pool)
{
    while (pool->free_count == 0) {
        ++pool->waiting;
        pthread_cond_wait(&pool->place_free, &pool->lock);
        --pool->waiting;
        pool->rank_called = false;
    }
    return take_place(pool);
}

/* Whoever comes first gets a free place, not whoever waited longest: a rank that brings job after
 * job keeps its caches and costs no switch. One waiter at a time is called to have a look. */
static calls give_place(pl_pool *pool, place *given)
{
    calls wanted = {0, 0};
    given->next = pool->free_places;
    pool->free_places = given;
    ++pool->free_count;
    if (pool->waiting > 0) {
        wanted.ranks = !pool->rank_called;
        pool->rank_called = true;
    } else if (pool->idle > 0 && pool->jobs) {
        wanted.workers = !pool->worker_called;
        pool->worker_called = true;
    }
    return wanted;
}

/* --- jobs --- */

static pl_status ensure_scratch(place *mine, size_t bytes)
{
    if (bytes <= mine->scratch_bytes) return PL_OK;
    size_t padded = 0;
    void *block = NULL;
    if (__builtin_add_overflow(bytes, (size_t)SCRATCH_ALIGNMENT, &padded))
        return PL_FAIL(PL_NO_MEMORY, "out of memory: %zu bytes of a worker's scratch", bytes);
    PL_TRY(pl_allocate(&block, padded, 1, "a worker's scratch"));
    pl_free(mine->block);
    mine->block = block;
    uintptr_t gap = SCRATCH_ALIGNMENT - (uintptr_t)block % SCRATCH_ALIGNMENT;
    mine->scratch = (char *)block + gap;
    mine->scratch_bytes = bytes;
    return PL_OK;
}

static void do_tasks(job *shared, void *scratch)
{
    for (;;) {
        int64_t index = atomic_fetch_add_explicit(&shared->next_task, 1, memory_order_relaxed);
        if (index >= shared->tasks) return;
        shared->task(shared->context, index, scratch);
    }
}

static void close_job(pl_pool *pool, job *closed)
{
    if (closed->closed) return;
    closed->closed = true;
    for (job **link = &pool->jobs; *link; link = &(*link)->next) {
        if (*link != closed) continue;
        *link = closed->next;
        return;
    }
}

/* Take part in the first job that wants helpers. The lock is held, but not while tasks run. */
static void help(pl_pool *pool)
{
    job *joined = pool->jobs;
    place *mine = take_place(pool);
    ++joined->helpers;
    pthread_mutex_unlock(&pool->lock);
    bool able = ensure_scratch(mine, joined->scratch_bytes) == PL_OK;
    if (able) do_tasks(joined, mine->scratch);
    pthread_mutex_lock(&pool->lock);
    close_job(pool, joined); /* nothing is left to do, or no memory to do it with */
    if (--joined->helpers == 0) pthread_cond_signal(&joined->done);
    wake(pool, give_place(pool, mine));
}

static void *work(void *context)
{
    pl_pool *pool = context;
    pthread_mutex_lock(&pool->lock);
    while (!pool->closing) {
        if (pool->jobs && pool->free_count > 0) {
            help(pool);
        } else {
            ++pool->idle;
            pthread_cond_wait(&pool->work, &pool->lock);
            --pool->idle;
            pool->worker_called = false;
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static int least(int64_t a, int b, int c)
{
    int64_t smaller = a < b ? a : b;
    return (int)(smaller < c ? smaller : c);
}

/* Workers may join from now on; those to be woken for it. */
static calls offer(pl_pool *pool, job *offered)
{
    offered->next = pool->jobs;
    pool->jobs = offered;
    return (calls){0, least(offered->tasks - 1, pool->free_count, pool->idle)};
}

pl_status pl_pool_run(pl_pool *pool, int64_t tasks, size_t scratch_bytes, pl_task task,
                      void *context)
{
    if (tasks <= 0) return PL_OK;
    job brought = {.task = task,
                   .context = context,
                   .tasks = tasks,
                   .scratch_bytes = scratch_bytes,
                   .closed = true,
                   .done = PTHREAD_COND_INITIALIZER};
    atomic_init(&brought.next_task, 0);
    pthread_mutex_lock(&pool->lock);
    place *mine = wait_for_place(pool);
    pl_status status = ensure_scratch(mine, scratch_bytes);
    calls wanted = {0, 0};
    if (status == PL_OK && tasks > 1 && pool->thread_count > 0) {
        brought.closed = false;
        wanted = offer(pool, &brought);
    }
    pthread_mutex_unlock(&pool->lock);
    wake(pool, wanted);
    if (status == PL_OK) do_tasks(&brought, mine->scratch);
    pthread_mutex_lock(&pool->lock);
    close_job(pool, &brought);
    wanted = give_place(pool, mine);
    if (brought.helpers > 0) {
        wake(pool, wanted);
        wanted.ranks = wanted.workers = 0;
        while (brought.helpers > 0) pthread_cond_wait(&brought.done, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    wake(pool, wanted);
    pthread_cond_destroy(&brought.done);
    return status;
}

/* --- opening and closing --- */

/* Signals are for the program's own threads. */
static pl_status start_threads(pl_pool *pool)
{
    sigset_t all, before;
    sigfillset(&all);
    int error = pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; error == 0 && i < pool->workers - 1; ++i) {
        error = pthread_create(&pool->threads[i], NULL, work, pool);
        if (error == 0) ++pool->thread_count;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) return PL_OK;
    return PL_FAIL(PL_IO_FAILED, "cannot start worker thread %d of %d: %s", pool->thread_count + 1,
                   pool->workers - 1, strerror(error));
}

pl_status pl_pool_open(pl_pool **out, int workers)
{
    if (workers < 1) return PL_FAIL(PL_INTERNAL, "a pool of %d workers; at least 1", workers);
    pl_pool *pool = NULL;
    pl_status status = PL_OK;
    PL_TRY(pl_allocate(&pool, 1, sizeof *pool, "a worker pool"));
    pool->workers = workers;
    pool->lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    pool->place_free = pool->work = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    PL_TRY_TO(status, failed,
              pl_allocate(&pool->places, (size_t)workers, sizeof *pool->places, "workers"));
    PL_TRY_TO(status, failed,
              pl_allocate(&pool->threads, (size_t)workers, sizeof *pool->threads, "workers"));
    for (int i = workers; i-- > 0;) (void)give_place(pool, &pool->places[i]);
    PL_TRY_TO(status, failed, start_threads(pool));
    *out = pool;
    return PL_OK;
failed:
    pl_pool_close(pool);
    return status;
}

void pl_pool_close(pl_pool *pool)
{
    if (!pool) return;
    pthread_mutex_lock(&pool->lock);
    pool->closing = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->thread_count; ++i) pthread_join(pool->threads[i], NULL);
    for (int i = 0; pool->places && i < pool->workers; ++i) pl_free(pool->places[i].block);
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->place_free);
    pthread_mutex_destroy(&pool->lock);
    pl_free(pool->threads);
    pl_free(pool->places);
    pl_free(pool);
}

int pl_pool_workers(const pl_pool *pool) { return pool->workers; }
