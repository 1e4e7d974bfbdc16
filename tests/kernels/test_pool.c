#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "common/memory.h"
#include "kernels/cpu/pool.h"
#include "tests/test.h"

enum { MANY = 1000, RANKS = 8, SCRATCH = 100 };

/* --- meeting of tasks: each waits until all have come, or gives up after a long time --- */

typedef struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int wanted, come;
    bool missed;
} meeting;

static meeting new_meeting(int wanted)
{
    return (meeting){
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .wanted = wanted};
}

static void come(meeting *m)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 60;
    pthread_mutex_lock(&m->lock);
    if (++m->come >= m->wanted) pthread_cond_broadcast(&m->changed);
    while (m->come < m->wanted && !m->missed)
        if (pthread_cond_timedwait(&m->changed, &m->lock, &limit) != 0) m->missed = true;
    pthread_mutex_unlock(&m->lock);
}

/* --- one job --- */

typedef struct count {
    atomic_int done[MANY];
    atomic_int wrong_scratch;
} count;

static void count_task(void *context, int64_t index, void *scratch)
{
    count *c = context;
    unsigned char *bytes = scratch;
    if ((uintptr_t)scratch % 64 != 0) atomic_fetch_add(&c->wrong_scratch, 1);
    for (int i = 0; i < SCRATCH; ++i) bytes[i] = (unsigned char)index;
    for (int i = 0; i < SCRATCH; ++i)
        if (bytes[i] != (unsigned char)index) atomic_fetch_add(&c->wrong_scratch, 1);
    atomic_fetch_add(&c->done[index], 1);
}

static void try_job(pl_pool *pool, int64_t tasks)
{
    count c = {0};
    assert_ok(pl_pool_run(pool, tasks, SCRATCH, count_task, &c));
    for (int64_t t = 0; t < MANY; ++t) assert_int_equal(atomic_load(&c.done[t]), t < tasks);
    assert_int_equal(atomic_load(&c.wrong_scratch), 0);
}

static void every_task_is_done_once(void **state)
{
    (void)state;
    static const int64_t tasks[] = {0, 1, 2, 3, 17, MANY};
    for (int workers = 1; workers <= 4; ++workers) {
        pl_pool *pool = NULL;
        assert_ok(pl_pool_open(&pool, workers));
        assert_int_equal(pl_pool_workers(pool), workers);
        for (size_t i = 0; i < sizeof tasks / sizeof *tasks; ++i) try_job(pool, tasks[i]);
        pl_pool_close(pool);
    }
    pl_pool_close(NULL);
}

typedef struct order {
    pthread_t caller;
    int64_t next;
    bool wrong;
} order;

static void order_task(void *context, int64_t index, void *scratch)
{
    order *o = context;
    (void)scratch;
    if (index != o->next++ || !pthread_equal(pthread_self(), o->caller)) o->wrong = true;
}

static void one_worker_is_the_calling_thread(void **state)
{
    (void)state;
    pl_pool *pool = NULL;
    order o = {.caller = pthread_self()};
    assert_ok(pl_pool_open(&pool, 1));
    assert_ok(pl_pool_run(pool, MANY, 0, order_task, &o));
    assert_false(o.wrong);
    assert_int_equal(o.next, MANY);
    pl_pool_close(pool);
}

static void meet_task(void *context, int64_t index, void *scratch)
{
    (void)index;
    (void)scratch;
    come(context);
}

static void workers_join_a_job(void **state)
{
    (void)state;
    pl_pool *pool = NULL;
    assert_ok(pl_pool_open(&pool, 3));
    for (int i = 0; i < 20; ++i) { /* three tasks that cannot end without one another */
        meeting m = new_meeting(3);
        assert_ok(pl_pool_run(pool, 3, 0, meet_task, &m));
        assert_false(m.missed);
    }
    pl_pool_close(pool);
}

/* --- jobs of several ranks --- */

typedef struct crowd {
    pl_pool *pool;
    int rounds;
    atomic_int running, most, failures;
    atomic_llong sum;
} crowd;

static void crowd_task(void *context, int64_t index, void *scratch)
{
    crowd *c = context;
    int running = atomic_fetch_add(&c->running, 1) + 1, most = atomic_load(&c->most);
    while (running > most && !atomic_compare_exchange_weak(&c->most, &most, running)) continue;
    volatile char *bytes = scratch;
    for (int i = 0; i < SCRATCH; ++i) bytes[i] = 1;
    atomic_fetch_add(&c->sum, index);
    atomic_fetch_sub(&c->running, 1);
}

static void *crowd_rank(void *context)
{
    crowd *c = context;
    for (int i = 0; i < c->rounds; ++i)
        if (pl_pool_run(c->pool, i % 9, (size_t)SCRATCH * (size_t)(i % 3 + 1), crowd_task, c) !=
            PL_OK)
            atomic_fetch_add(&c->failures, 1);
    return NULL;
}

static void no_more_tasks_run_at_once_than_there_are_workers(void **state)
{
    (void)state;
    for (int workers = 1; workers <= 3; ++workers) {
        crowd c = {.rounds = 300};
        pthread_t ranks[RANKS];
        assert_ok(pl_pool_open(&c.pool, workers));
        for (int i = 0; i < RANKS; ++i)
            assert_int_equal(pthread_create(&ranks[i], NULL, crowd_rank, &c), 0);
        for (int i = 0; i < RANKS; ++i) pthread_join(ranks[i], NULL);
        pl_pool_close(c.pool);
        long long sum = 0;
        for (int i = 0; i < c.rounds; ++i) sum += (i % 9) * (i % 9 - 1) / 2;
        assert_int_equal(atomic_load(&c.failures), 0);
        assert_true(atomic_load(&c.sum) == sum * RANKS);
        assert_in_range(atomic_load(&c.most), 1, workers);
    }
}

/* A rank holds the second place until the first task of the other rank's job runs: when the rank
 * is done, the idle worker must find the task that is left, which the first one waits for. */
typedef struct late {
    pl_pool *pool;
    meeting holding, started, both;
} late;

static void holding_task(void *context, int64_t index, void *scratch)
{
    late *l = context;
    (void)index;
    (void)scratch;
    come(&l->holding);
    come(&l->started);
}

static void *holding_rank(void *context)
{
    late *l = context;
    if (pl_pool_run(l->pool, 1, 0, holding_task, l) != PL_OK) l->holding.missed = true;
    return NULL;
}

static void late_task(void *context, int64_t index, void *scratch)
{
    late *l = context;
    (void)scratch;
    if (index == 0) come(&l->started);
    come(&l->both);
}

static void a_worker_joins_when_a_place_becomes_free(void **state)
{
    (void)state;
    for (int i = 0; i < 20; ++i) {
        late l = {.holding = new_meeting(2), .started = new_meeting(2), .both = new_meeting(2)};
        pthread_t holder;
        assert_ok(pl_pool_open(&l.pool, 2));
        assert_int_equal(pthread_create(&holder, NULL, holding_rank, &l), 0);
        come(&l.holding);
        assert_ok(pl_pool_run(l.pool, 2, 0, late_task, &l));
        pthread_join(holder, NULL);
        assert_false(l.holding.missed || l.started.missed || l.both.missed);
        pl_pool_close(l.pool);
    }
}

/* --- failures --- */

static void opening_fails_in_words(void **state)
{
    (void)state;
    pl_pool *pool = NULL;
    assert_fails(PL_INTERNAL, pl_pool_open(&pool, 0), "0 workers", "at least 1");
    for (int64_t after = 0; after < 3; ++after) {
        pl_allocation_fail_after(after);
        assert_fails(PL_NO_MEMORY, pl_pool_open(&pool, 3), "worker");
        assert_null(pool);
    }
    pl_allocation_fail_after(3);
    assert_ok(pl_pool_open(&pool, 3));
    assert_false(pl_allocation_failed());
    pl_allocation_fail_after(-1);
    pl_pool_close(pool);
}

static void without_scratch_no_task_runs(void **state)
{
    (void)state;
    for (int workers = 1; workers <= 2; ++workers) {
        pl_pool *pool = NULL;
        count c = {0};
        assert_ok(pl_pool_open(&pool, workers));
        pl_allocation_fail_after(0);
        assert_fails(PL_NO_MEMORY, pl_pool_run(pool, 5, SCRATCH, count_task, &c), "scratch");
        pl_allocation_fail_after(-1);
        assert_fails(PL_NO_MEMORY, pl_pool_run(pool, 5, SIZE_MAX - 8, count_task, &c), "scratch");
        for (int i = 0; i < 5; ++i) assert_int_equal(atomic_load(&c.done[i]), 0);
        assert_ok(pl_pool_run(pool, 5, SCRATCH, count_task, &c)); /* the place was given back */
        for (int i = 0; i < 5; ++i) assert_int_equal(atomic_load(&c.done[i]), 1);
        pl_pool_close(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_is_done_once),
        cmocka_unit_test(one_worker_is_the_calling_thread),
        cmocka_unit_test(workers_join_a_job),
        cmocka_unit_test(no_more_tasks_run_at_once_than_there_are_workers),
        cmocka_unit_test(a_worker_joins_when_a_place_becomes_free),
        cmocka_unit_test(opening_fails_in_words),
        cmocka_unit_test(without_scratch_no_task_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
