/* Backend mpi: the conformance cases, and the bits of backend threads. mpirun -np 8. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/groups_mpi.h"
#include "common/memory.h"
#include "tests/groups/conformance.h"
#include "tests/groups/exchange.h"
#include "tests/groups/mpi_ranks.h"

enum { MOST = 8 };

static const pl_dtype all_dtypes[] = {PL_U8, PL_I32, PL_I64, PL_BF16, PL_FP16, PL_FP32, PL_FP64};

static const conformance_backend mpi_backend = {"mpi", all_dtypes, PL_DTYPE_COUNT, NULL};

/* What a process has to say. */
typedef struct finding {
    bool wrong;
    char words[CONFORMANCE_WORDS];
} finding;

/* Fail, on all processes alike, when one found something wrong. */
static void assert_right(const finding *own, int64_t ranks, const char *what)
{
    static finding all[MOST];
    mpi_share(own, all, sizeof *own);
    for (int i = 0; i < MOST; ++i)
        if (all[i].wrong) fail_msg("%" PRId64 " ranks, %s: %s", ranks, what, all[i].words);
}

/* LARGEST 0: messages as they are. */
static void conform(int64_t ranks, int64_t largest, int64_t with_call)
{
    static conformance_case cases[CONFORMANCE_CASES];
    finding own = {.wrong = false};
    pl_process_group *world = NULL;
    int count = conformance_list(cases, &mpi_backend, ranks);
    assert_true(count > 100);
    if (mpi_open(&world, ranks, 120.0)) {
        if (largest > 0) pl_group_mpi_set_message_bytes(world, largest, with_call);
        own.wrong = conformance_run_rank(&mpi_backend, world, &mpi_shared()->at_barrier, cases,
                                         count, own.words);
    }
    assert_right(&own, ranks, largest > 0 ? "small messages" : "messages as they are");
}

static void test_1_to_4(void **state)
{
    (void)state;
    for (int64_t ranks = 1; ranks <= 4; ++ranks) conform(ranks, 0, 0);
}

static void test_5_to_8(void **state)
{
    (void)state;
    for (int64_t ranks = 5; ranks <= 8; ++ranks) conform(ranks, 0, 0);
}

/* Everything in pieces: as for counts that do not fit one message. */
static void test_small_messages(void **state)
{
    (void)state;
    conform(2, 64, 0);
    conform(3, 4096, 0);
    conform(3, 1000, 40);
    conform(5, 100, 16);
}

/* --- the bits of backend threads --- */

enum { COUNT = 3000 };

/* One rank of a world of threads, with the values of a rank of the world of processes. */
typedef struct thread_rank {
    pl_process_group *world;
    unsigned char *values, *result;
    pl_collective collective;
    pl_dtype dtype;
    pl_reduction reduction;
    pl_status status;
} thread_rank;

static pl_status reduce(thread_rank *rank)
{
    const pl_entry_name name = pl_entry_name_make(PL_OP_REDUCE, PL_SUBJECT_GRADIENTS);
    const int64_t count = rank->collective == PL_REDUCE_SCATTER ? COUNT / rank->world->size : COUNT;
    const pl_call call = {.collective = rank->collective,
                          .dtype = rank->dtype,
                          .reduction = rank->reduction,
                          .name = &name,
                          .send = rank->values,
                          .recv = rank->result,
                          .count = count};
    for (int64_t p = 0; p < COUNT; ++p) {
        uint64_t bits = encode_value(rank->dtype, order_value(rank->world->rank, p));
        size_t bytes = (size_t)pl_dtype_bytes(rank->dtype);
        memcpy(rank->values + (size_t)p * bytes, &bits, bytes);
    }
    return pl_process_group_do(rank->world, &call);
}

static void *thread_main(void *argument)
{
    thread_rank *rank = argument;
    rank->status = reduce(rank);
    pl_process_group_close(rank->world);
    return NULL;
}

/* The result of rank OWN in a world of threads, in RESULT. */
static bool reduce_in_threads(const thread_rank *like, int64_t ranks, int64_t own,
                              unsigned char *result)
{
    static unsigned char values[MOST][COUNT * 8], results[MOST][COUNT * 8];
    pl_process_group *handles[MOST];
    thread_rank all[MOST];
    pthread_t threads[MOST];
    bool right = pl_group_threads_open(handles, ranks, 120.0) == PL_OK;
    if (!right) return false;
    for (int64_t i = 0; i < ranks; ++i) {
        all[i] = *like;
        all[i].world = handles[i];
        all[i].values = values[i];
        all[i].result = results[i];
        if (pthread_create(&threads[i], NULL, thread_main, &all[i]) != 0) abort();
    }
    for (int64_t i = 0; i < ranks; ++i) {
        pthread_join(threads[i], NULL);
        right = right && all[i].status == PL_OK;
    }
    memcpy(result, results[own], sizeof results[own]);
    return right;
}

static void compare_with_threads(pl_process_group *world, thread_rank *rank, finding *own)
{
    static unsigned char values[COUNT * 8], result[COUNT * 8], expected[COUNT * 8];
    const int64_t share = rank->collective == PL_REDUCE_SCATTER ? world->size : 1;
    const size_t bytes = (size_t)(COUNT / share * pl_dtype_bytes(rank->dtype));
    rank->world = world;
    rank->values = values;
    rank->result = result;
    if (own->wrong) return;
    if (reduce(rank) != PL_OK) {
        own->wrong = true;
        snprintf(own->words, sizeof own->words, "%s", pl_error_text());
    } else if (!reduce_in_threads(rank, world->size, world->rank, expected) ||
               memcmp(result, expected, bytes) != 0) {
        own->wrong = true;
        snprintf(own->words, sizeof own->words,
                 "rank %" PRId64 ": %s %s of %s has other bits than backend threads", world->rank,
                 pl_collective_name(rank->collective), pl_reduction_name(rank->reduction),
                 pl_dtype_name(rank->dtype));
    }
}

static void test_bits_of_threads(void **state)
{
    (void)state;
    static const pl_dtype dtypes[] = {PL_BF16, PL_FP16, PL_FP32, PL_FP64};
    for (int64_t ranks = 2; ranks <= MOST; ranks += ranks == 3 ? 2 : ranks == 5 ? 3 : 1) {
        finding own = {.wrong = false};
        pl_process_group *world = NULL;
        if (mpi_open(&world, ranks, 120.0)) {
            for (int i = 0; i < 4 * 2 * 3; ++i) {
                thread_rank rank = {.collective = i % 2 ? PL_ALL_REDUCE : PL_REDUCE_SCATTER,
                                    .dtype = dtypes[i / 6],
                                    .reduction = (pl_reduction)(PL_REDUCTION_SUM + i / 2 % 3)};
                compare_with_threads(world, &rank, &own);
            }
            pl_process_group_close(world);
        }
        assert_right(&own, ranks, "bits");
    }
}

/* --- what only processes can show --- */

/* A rank goes on to the next group of a name while others still hold the old one. */
static void test_generations(void **state)
{
    (void)state;
    finding own = {.wrong = false};
    rank_report report = {.rank = mpi_rank()};
    pl_process_group *world = NULL, *both = NULL;
    pl_rank_set members = pl_rank_set_single(0);
    const pl_entry_name name = pl_entry_name_make(PL_OP_CONTROL, PL_SUBJECT_FLAGS);
    const pl_call call = {.collective = PL_BARRIER, .name = &name};
    pl_rank_set_nest(&members, 2, 1);
    if (mpi_open(&world, 2, 120.0)) {
        for (int i = 0; i < 50; ++i) {
            pl_request request = -1;
            report_status(&report, "split",
                          pl_process_group_split(world, PL_GROUP_DATA, &members, &both));
            for (int j = 0; j < i % 3; ++j) /* also groups that are never used */
                report_status(&report, "start", pl_process_group_start(both, &call, &request));
            for (int j = 0; j < i % 3; ++j)
                report_status(&report, "wait", pl_process_group_wait(both, j));
            pl_process_group_close(both);
        }
        report_status(&report, "do", pl_process_group_do(world, &call));
        pl_process_group_close(world);
    }
    own.wrong = report.wrong;
    memcpy(own.words, report.words, sizeof own.words);
    assert_right(&own, 2, "groups one after another");
}

/* A broadcast of more than fits one type of MPI's counts of pieces: many small segments. */
static void test_many_segments(void **state)
{
    (void)state;
    enum { SEGMENTS = 2000, EACH = 7 };
    static int32_t values[SEGMENTS][EACH];
    static pl_segment segments[SEGMENTS];
    finding own = {.wrong = false};
    rank_report report = {.rank = mpi_rank()};
    pl_process_group *world = NULL;
    if (mpi_open(&world, 3, 120.0)) {
        for (int i = 0; i < SEGMENTS * EACH; ++i)
            values[i / EACH][i % EACH] = world->rank == 2 ? i * i : -1;
        for (int i = 0; i < SEGMENTS; ++i)
            segments[i] = (pl_segment){NULL, values[SEGMENTS - 1 - i], EACH, PL_I32};
        const pl_entry_name name = pl_entry_name_make(PL_OP_GATHER, PL_SUBJECT_HEAD);
        const pl_call call = {.collective = PL_BROADCAST,
                              .name = &name,
                              .root = 2,
                              .segment_count = SEGMENTS,
                              .segments = segments};
        report_status(&report, "do", pl_process_group_do(world, &call));
        for (int i = 0; i < SEGMENTS * EACH; ++i)
            if (values[i / EACH][i % EACH] != i * i) report_wrong(&report, "element %d", i);
        pl_process_group_close(world);
    }
    own.wrong = report.wrong;
    memcpy(own.words, report.words, sizeof own.words);
    assert_right(&own, 3, "many segments");
}

/* --- allocations that fail, in a world of one --- */

static pl_process_group *alone;

static pl_status use(void)
{
    pl_process_group *part = NULL;
    int32_t sent[4] = {1, 2, 3, 4}, received[4];
    const pl_entry_name name = pl_entry_name_make(PL_OP_CONTROL, PL_SUBJECT_FLAGS);
    const pl_call call = {.collective = PL_ALL_REDUCE,
                          .reduction = PL_REDUCTION_SUM,
                          .dtype = PL_I32,
                          .name = &name,
                          .send = sent,
                          .recv = received,
                          .count = 4};
    pl_rank_set members = pl_rank_set_single(0);
    pl_status status = pl_process_group_split(alone, PL_GROUP_DATA, &members, &part);
    if (status == PL_OK) status = pl_process_group_do(part, &call);
    if (status == PL_OK) status = pl_process_group_do(alone, &call);
    pl_process_group_close(part);
    return status;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    finding own = {.wrong = false};
    int failures = 0;
    for (bool injected = true; injected && !own.wrong; ++failures) {
        injected = false;
        if (mpi_open(&alone, 1, 120.0)) {
            pl_allocation_fail_after(failures);
            pl_status status = use();
            injected = pl_allocation_failed() != 0;
            pl_allocation_fail_after(-1);
            pl_process_group_close(alone);
            own.wrong = status != (injected ? PL_NO_MEMORY : PL_OK);
            snprintf(own.words, sizeof own.words, "allocation %d: %s: %s", failures,
                     pl_status_name(status), pl_error_text());
        }
        bool all[MOST];
        mpi_share(&injected, all, sizeof injected);
        injected = all[0];
    }
    assert_right(&own, 1, "failing allocations");
    assert_true(failures > 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_1_to_4),         cmocka_unit_test(test_5_to_8),
        cmocka_unit_test(test_small_messages), cmocka_unit_test(test_bits_of_threads),
        cmocka_unit_test(test_generations),    cmocka_unit_test(test_many_segments),
        cmocka_unit_test(test_out_of_memory)};
    return mpi_run_suite("mpi_conformance", tests, sizeof tests / sizeof *tests);
}
