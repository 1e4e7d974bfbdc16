/* Backend threads: the conformance cases. tests/groups/test_failure.c has what goes wrong. */
#include "tests/test.h"

#include <inttypes.h>

#include "tests/groups/conformance.h"

static const pl_dtype all_dtypes[] = {PL_U8, PL_I32, PL_I64, PL_BF16, PL_FP16, PL_FP32, PL_FP64};

static pl_status open_threads(pl_process_group **out, int64_t ranks)
{
    return pl_group_threads_open(out, ranks, 120.0);
}

static const conformance_backend threads_backend = {"threads", all_dtypes, PL_DTYPE_COUNT,
                                                    open_threads};

static void conform(int64_t first, int64_t last)
{
    conformance_case cases[CONFORMANCE_CASES];
    char words[CONFORMANCE_WORDS];
    for (int64_t ranks = first; ranks <= last; ++ranks) {
        int count = conformance_list(cases, &threads_backend, ranks);
        assert_true(count > 100);
        if (conformance_run_threads(&threads_backend, ranks, cases, count, words))
            fail_msg("%" PRId64 " ranks: %s", ranks, words);
    }
}

static void test_1_to_4(void **state)
{
    (void)state;
    conform(1, 4);
}

static void test_5_to_8(void **state)
{
    (void)state;
    conform(5, 8);
}

static void test_9_to_16(void **state)
{
    (void)state;
    conform(9, 16);
}

static void test_refuses(void **state)
{
    (void)state;
    pl_process_group *out[2] = {NULL, NULL};
    assert_fails(PL_BAD_INPUT, pl_group_threads_open(out, 0, 1.0), "0 ranks", "threads");
    assert_fails(PL_BAD_INPUT, pl_group_threads_open(out, -3, 1.0), "-3 ranks");
    assert_fails(PL_BAD_INPUT, pl_group_threads_open(out, INT64_MAX, 1.0), "ranks asked for");
    assert_fails(PL_BAD_INPUT, pl_group_threads_open(out, 2, 0.0), "time limit of 0 s");
    assert_fails(PL_BAD_INPUT, pl_group_threads_open(out, 2, -1.0), "time limit of -1 s");
    assert_fails(PL_BAD_INPUT, pl_group_threads_open(out, 2, 1e300), "time limit");
    assert_null(out[0]);
}

/* A rank that computes after it has started a call holds nobody up: the other one does all the
 * work of a call that is large enough to be cut. */
static void test_others_do_the_work(void **state)
{
    (void)state;
    enum { COUNT = 1 << 17 };
    pl_process_group *ranks[2];
    pl_request requests[2];
    pl_entry_name name = pl_entry_name_make(PL_OP_GATHER, PL_SUBJECT_HEAD);
    static int32_t sent[2 * COUNT], received[2][2 * COUNT];
    assert_ok(pl_group_threads_open(ranks, 2, 120.0));
    for (int i = 0; i < 2; ++i) {
        pl_call call = {.collective = PL_ALL_GATHER,
                        .dtype = PL_I32,
                        .name = &name,
                        .send = sent + (ptrdiff_t)i * COUNT,
                        .recv = received[i],
                        .count = COUNT};
        for (int j = 0; j < COUNT; ++j) sent[i * COUNT + j] = i + 2 * j;
        assert_ok(pl_process_group_start(ranks[i], &call, &requests[i]));
    }
    assert_ok(pl_process_group_wait(ranks[1], requests[1]));
    assert_memory_equal(received[0], sent, sizeof sent);
    assert_memory_equal(received[1], sent, sizeof sent);
    assert_ok(pl_process_group_wait(ranks[0], requests[0]));
    pl_process_group_close(ranks[0]);
    pl_process_group_close(ranks[1]);
}

static pl_status open_and_use(void)
{
    pl_process_group *world = NULL, *part = NULL;
    pl_entry_name name = pl_entry_name_make(PL_OP_CONTROL, PL_SUBJECT_FLAGS);
    pl_call call = {.collective = PL_BARRIER, .name = &name};
    pl_rank_set members = pl_rank_set_single(0);
    PL_TRY(pl_group_threads_open(&world, 1, 120.0));
    pl_status status = pl_process_group_split(world, PL_GROUP_DATA, &members, &part);
    if (status == PL_OK) status = pl_process_group_do(part, &call);
    if (status == PL_OK) status = pl_process_group_do(world, &call);
    pl_process_group_close(part);
    pl_process_group_close(world);
    return status;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    char words[CONFORMANCE_WORDS];
    int failures = conformance_fail_allocations(open_and_use, words);
    if (failures < 0) fail_msg("%s", words);
    assert_true(failures > 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_1_to_4),
                                       cmocka_unit_test(test_5_to_8),
                                       cmocka_unit_test(test_9_to_16),
                                       cmocka_unit_test(test_refuses),
                                       cmocka_unit_test(test_others_do_the_work),
                                       cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
