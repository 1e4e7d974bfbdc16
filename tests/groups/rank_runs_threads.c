/* Ranks are threads of the test. */
#include "tests/groups/rank_runs.h"

#include <pthread.h>

const bool ranks_share_clock = true;

static void *thread_main(void *argument)
{
    rank_run *run = argument;
    run->body(run);
    pl_process_group_close(run->world);
    return NULL;
}

void run_ranks(rank_run *runs, int64_t ranks, double limit, void (*body)(rank_run *), int variant)
{
    pl_process_group *handles[MOST];
    pthread_t threads[MOST];
    atomic_int ended = 0;
    assert_ok(pl_group_threads_open(handles, ranks, limit));
    memset(runs, 0, (size_t)ranks * sizeof *runs);
    for (int64_t i = 0; i < ranks; ++i) {
        runs[i].world = handles[i];
        runs[i].rank = i;
        runs[i].ranks = ranks;
        runs[i].body = body;
        runs[i].ended = &ended;
        runs[i].variant = variant;
        prepare_run(&runs[i]);
        assert_int_equal(pthread_create(&threads[i], NULL, thread_main, &runs[i]), 0);
    }
    for (int64_t i = 0; i < ranks; ++i) pthread_join(threads[i], NULL);
}
