/* When something goes wrong every rank gets the words, and nobody hangs. */
#include "tests/groups/rank_cases.h"

#include "common/memory.h"

static pl_status split_pair(rank_run *run, pl_process_group **out)
{
    pl_rank_set members = pl_rank_set_single(run->rank % 2);
    pl_rank_set_nest(&members, run->ranks / 2, 2);
    return pl_process_group_split(run->world, PL_GROUP_DENSE_SHARD, &members, out);
}

/* Rank 2 reports a failure; 0 waits for it in {0,2}; 1 and 3 form a group of their own, where 3
 * comes only after everybody else has got words. */
static void body_error(rank_run *run)
{
    pl_process_group *pair = NULL;
    pl_call call = reduce_call(run);
    pl_status status = split_pair(run, &pair);
    if (status == PL_OK && run->rank == 2) {
        sleep_seconds(0.05);
        pl_process_group_fail(run->world, PL_IO_FAILED, "no space left for step-5");
    } else if (status == PL_OK && run->rank == 3) {
        sleep_until_ended(run, 2);
    }
    if (status == PL_OK) status = pl_process_group_do(pair, &call);
    record(run, status);
    pl_process_group_close(pair);
}

void test_a_rank_errors(void **state)
{
    (void)state;
    rank_run runs[MOST];
    run_ranks(runs, 4, LONG_LIMIT, body_error, 0);
    for (int i = 0; i < 4; ++i)
        assert_words(&runs[i], PL_PEER_FAILED,
                     WORDS("rank 2 failed (IO_FAILED): no space left for step-5",
                           "all-reduce sum (gather layer.3, 8 x i32)", "dense-shard"));
    assert_words(&runs[0], PL_PEER_FAILED,
                 WORDS("rank 0 waited for", "dense-shard {0,2}; not arrived: 2"));
    assert_words(&runs[1], PL_PEER_FAILED,
                 WORDS("rank 1 waited for", "dense-shard {1,3}; not arrived: 3"));
    assert_words(&runs[3], PL_PEER_FAILED, WORDS("rank 3 was to start"));
}

/* Rank 3 never comes to {1,3}; {0,2} works, and then its members wait for 1 and 3 in the world. */
static void body_absent(rank_run *run)
{
    pl_process_group *pair = NULL;
    pl_call call = reduce_call(run);
    pl_status status = split_pair(run, &pair);
    if (run->rank == 3) sleep_until_ended(run, 3);
    if (status == PL_OK && run->rank != 3) status = pl_process_group_do(pair, &call);
    if (status == PL_OK && run->rank != 1) status = pl_process_group_do(run->world, &call);
    record(run, status);
    pl_process_group_close(pair);
}

void test_a_rank_never_comes(void **state)
{
    (void)state;
    rank_run runs[MOST];
    run_ranks(runs, 4, SHORT_LIMIT, body_absent, 0);
    const char *cause = WAITED "all-reduce sum (gather layer.3, 8 x i32) in ";
    for (int i = 0; !ranks_share_clock && i < 4; ++i)
        assert_words(&runs[i], runs[i].status == PL_TIMED_OUT ? PL_TIMED_OUT : PL_PEER_FAILED,
                     WORDS(cause, "not arrived: "));
    if (!ranks_share_clock) return;
    /* Which deadline is noticed first is the machine's business: both name what is missing. */
    bool pair_first = strstr(runs[1].words, "rank 1 " WAITED) == runs[1].words;
    assert_words(&runs[1], pair_first ? PL_TIMED_OUT : PL_PEER_FAILED, WORDS(cause, "not arrived"));
    if (pair_first)
        assert_words(&runs[1], PL_TIMED_OUT, WORDS("in dense-shard {1,3}; not arrived: 3"));
    for (int i = 0; i < 4; i += 2)
        assert_words(&runs[i], pair_first ? PL_PEER_FAILED : PL_TIMED_OUT,
                     WORDS(cause, "not arrived: "));
    assert_words(&runs[3], pair_first ? PL_PEER_FAILED : PL_TIMED_OUT, WORDS(cause));
}

/* Rank 1 comes late, or after the limit. */
static void body_late(rank_run *run)
{
    pl_call call = reduce_call(run);
    if (run->rank == 1 && run->variant == 0) sleep_seconds(0.2);
    if (run->rank == 1 && run->variant == 1) sleep_until_ended(run, 2);
    record(run, pl_process_group_do(run->world, &call));
}

void test_late_arrival(void **state)
{
    (void)state;
    rank_run runs[MOST];
    run_ranks(runs, 3, LONG_LIMIT, body_late, 0);
    for (int i = 0; i < 3; ++i) assert_words(&runs[i], PL_OK, WORDS(""));
    run_ranks(runs, 3, SHORT_LIMIT, body_late, 1);
    for (int i = 0; i < 3; ++i)
        assert_words(&runs[i], PL_TIMED_OUT,
                     WORDS(WAITED "all-reduce sum", "world {0,1,2}; not arrived: 1"));
    assert_words(&runs[1], PL_TIMED_OUT, WORDS("rank 1 was to start"));
}

/* Rank 0 closes: its pair before the others' call (0), its world only, never having asked for the
 * pair (1), or with a call in flight (2). */
static void body_closes(rank_run *run)
{
    pl_process_group *pair = NULL;
    pl_request request = 0;
    pl_call call = reduce_call(run);
    if (run->rank == 0 && run->variant == 1) {
        record(run, PL_OK);
        return;
    }
    pl_status status = split_pair(run, &pair);
    if (status == PL_OK && run->rank == 0) {
        if (run->variant == 2) status = pl_process_group_start(pair, &call, &request);
        pl_process_group_close(pair);
        memset(run->send, 1, sizeof run->send); /* nobody reads them now */
        memset(run->recv, 1, sizeof run->recv);
        record(run, status);
        sleep_until_ended(run, 4);
        return;
    }
    if (run->rank == 2 && run->variant == 2) sleep_until_ended(run, 1);
    if (status == PL_OK && run->rank == 3) sleep_until_ended(run, 3);
    if (status == PL_OK) status = pl_process_group_do(pair, &call);
    record(run, status);
    pl_process_group_close(pair);
}

void test_a_rank_closes_early(void **state)
{
    (void)state;
    rank_run runs[MOST];
    for (int variant = 0; variant < 3; ++variant) {
        run_ranks(runs, 4, LONG_LIMIT, body_closes, variant);
        assert_words(&runs[0], PL_OK, WORDS(""));
        for (int i = 1; i < 4; ++i)
            assert_words(&runs[i], PL_PEER_FAILED,
                         WORDS("rank 0 closed its handle before", "dense-shard {0,2}",
                               "all-reduce sum (gather layer.3, 8 x i32)"));
    }
}

/* After a failure a wait returns only when nobody reads this rank's buffers: they are freed right
 * away, while the others may be copying. A sanitizer sees it if they do. */
static pl_status start_large(rank_run *run, int32_t **send, int32_t **recv, pl_request *request)
{
    enum { LARGE = 1 << 16 };
    PL_TRY(pl_allocate(send, LARGE, sizeof **send, "send"));
    PL_TRY(pl_allocate(recv, LARGE * (size_t)run->ranks, sizeof **recv, "recv"));
    pl_call call = {.collective = PL_ALL_GATHER,
                    .dtype = PL_I32,
                    .name = &run->name,
                    .send = *send,
                    .recv = *recv,
                    .count = LARGE};
    return pl_process_group_start(run->world, &call, request);
}

static void body_frees(rank_run *run)
{
    enum { CALLS = 3 };
    int32_t *send[CALLS] = {NULL}, *recv[CALLS] = {NULL};
    pl_request requests[CALLS];
    int started = 0;
    pl_status status = PL_OK;
    while (started < CALLS && status == PL_OK) {
        status = start_large(run, &send[started], &recv[started], &requests[started]);
        if (status == PL_OK) ++started;
    }
    if (run->rank == 0 && run->variant % 2 == 0)
        pl_process_group_fail(run->world, PL_IO_FAILED, "planted");
    for (int i = 0; i < CALLS; ++i) {
        pl_status waited = PL_OK;
        if (i < started) waited = pl_process_group_wait(run->world, requests[i]);
        if (status == PL_OK) status = waited;
        if (run->rank == 0 && i == 0) pl_process_group_fail(run->world, PL_IO_FAILED, "planted");
        pl_free(send[i]);
        pl_free(recv[i]);
    }
    record(run, status);
}

void test_buffers_are_free_after_a_failure(void **state)
{
    (void)state;
    rank_run runs[MOST];
    for (int round = 0; round < 40; ++round) {
        run_ranks(runs, 4, LONG_LIMIT, body_frees, round);
        for (int i = 0; i < 4; ++i)
            if (runs[i].status != PL_OK)
                assert_words(&runs[i], PL_PEER_FAILED, WORDS("rank 0 failed (IO_FAILED): planted"));
    }
}

/* An allocation that fails on one rank is told to the other. */
static void body_no_memory(rank_run *run)
{
    pl_call call = reduce_call(run);
    if (run->rank == 0) {
        pl_allocation_fail_after(0);
        record(run, pl_process_group_do(run->world, &call));
        pl_allocation_fail_after(-1);
    } else {
        sleep_until_ended(run, 1);
        record(run, pl_process_group_do(run->world, &call));
    }
}

void test_no_memory_on_one_rank(void **state)
{
    (void)state;
    rank_run runs[MOST];
    run_ranks(runs, 2, LONG_LIMIT, body_no_memory, 0);
    assert_words(&runs[0], PL_NO_MEMORY, WORDS("out of memory"));
    assert_words(&runs[1], PL_PEER_FAILED, WORDS("rank 0 failed (NO_MEMORY): out of memory"));
}

/* A call that is done stays done, whatever fails later. */
static void body_done(rank_run *run)
{
    pl_request request = 0;
    pl_call call = reduce_call(run);
    pl_status status = pl_process_group_do(run->world, &call);
    if (status == PL_OK) status = pl_process_group_start(run->world, &call, &request);
    if (run->rank == 1 && status == PL_OK) {
        status = pl_process_group_wait(run->world, request);
        pl_process_group_fail(run->world, PL_IO_FAILED, "after the last call");
        record(run, status);
        return;
    }
    sleep_until_ended(run, 1);
    if (status == PL_OK) status = pl_process_group_wait(run->world, request);
    record(run, status);
}

void test_done_stays_done(void **state)
{
    (void)state;
    rank_run runs[MOST];
    run_ranks(runs, 2, LONG_LIMIT, body_done, 0);
    assert_words(&runs[0], PL_OK, WORDS(""));
    assert_words(&runs[1], PL_OK, WORDS(""));
}

/* Rank 0 was asked to stop when its wait begins, 2 was not; 1 comes when both have got words (0) or
 * after a while (1). */
static void body_interrupted(rank_run *run)
{
    static sig_atomic_t asked = 1, not_asked = 0;
    pl_process_group *all = NULL;
    pl_call call = reduce_call(run);
    pl_process_group_set_interrupt(run->world, run->rank == 0 ? &asked : &not_asked,
                                   run->variant == 0 ? 0.2 : (double)LONG_LIMIT);
    pl_status status =
        pl_process_group_split(run->world, PL_GROUP_DATA, &run->world->members, &all);
    if (run->rank == 1 && run->variant == 0) sleep_until_ended(run, 2);
    if (run->rank == 1 && run->variant == 1) sleep_seconds(0.3);
    if (status == PL_OK) status = pl_process_group_do(all, &call);
    record(run, status);
    pl_process_group_close(all);
}

void test_interrupted(void **state)
{
    (void)state;
    rank_run runs[MOST];
    run_ranks(runs, 3, LONG_LIMIT, body_interrupted, 0);
    for (int i = 0; i < 3; ++i)
        assert_words(&runs[i], PL_TIMED_OUT,
                     WORDS("rank 0 was interrupted while waiting for all-reduce sum (gather "
                           "layer.3, 8 x i32) in data {0,1,2}; not arrived: 1"));
}

/* The others come before the grace is over. */
void test_interrupted_in_time(void **state)
{
    (void)state;
    rank_run runs[MOST];
    run_ranks(runs, 3, LONG_LIMIT, body_interrupted, 1);
    for (int i = 0; i < 3; ++i) assert_words(&runs[i], PL_OK, WORDS(""));
}
