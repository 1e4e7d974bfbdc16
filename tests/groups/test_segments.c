/* Calls of several segments: what does not match, what is refused, what is allowed. Their results
 * are in the conformance cases (tests/groups/segments.c). */
#include "tests/groups/rank_cases.h"

#include "common/memory.h"
#include "sim/fake_group.h"
#include "tests/groups/exchange.h"

enum { ARENA = 512, RANDOM_SEGMENTS = 7 };

typedef struct random_segment {
    int send_at, recv_at, count; /* bytes of the arena */
} random_segment;

/* Byte by byte: what is received is touched by nothing else, but for an all-reduce in place. */
static bool fits(const random_segment *segments, int number)
{
    unsigned char received[ARENA] = {0}, sent[ARENA] = {0};
    for (int s = 0; s < number; ++s)
        for (int i = 0; i < segments[s].count; ++i) {
            ++received[segments[s].recv_at + i];
            if (segments[s].send_at != segments[s].recv_at) sent[segments[s].send_at + i] = 1;
        }
    for (int i = 0; i < ARENA; ++i)
        if (received[i] > 1 || (received[i] && sent[i])) return false;
    return true;
}

/* Either anywhere, or one behind the other as buffers mostly lie. */
static void place_segments(random_segment *segments, int number, uint64_t seed)
{
    bool in_order = seed % 2 == 0;
    int next = RANDOM_SEGMENTS + (int)(seed % 7);
    for (int s = 0; s < number; ++s) {
        uint64_t bits = scramble(5, seed, (uint64_t)s);
        random_segment *own = &segments[s];
        own->count = (int)(bits % 12);
        own->recv_at = in_order ? next : (int)(bits / 12 % (ARENA - 12));
        own->send_at = (int)(bits / 12 / ARENA % (ARENA - 12));
        if (bits >> 62 == 0) own->send_at = own->recv_at;
        next += own->count + (int)(bits >> 60 & 1);
        if (in_order && (bits >> 56) % 8 == 0) --next;
    }
}

static pl_status reduce_in_self(const pl_segment *segments, int number)
{
    pl_process_group *group = NULL;
    pl_entry_name name = pl_entry_name_make(PL_OP_REDUCE, PL_SUBJECT_GRADIENTS);
    pl_call call = {.collective = PL_ALL_REDUCE,
                    .reduction = PL_REDUCTION_MAX,
                    .name = &name,
                    .segments = segments,
                    .segment_count = number};
    PL_TRY(pl_group_self_open(&group));
    pl_status status = pl_process_group_do(group, &call);
    pl_process_group_close(group);
    return status;
}

static void test_overlaps_at_random(void **state)
{
    (void)state;
    static unsigned char arena[ARENA];
    int allowed = 0, refused = 0;
    for (uint64_t seed = 0; seed < 20000; ++seed) {
        random_segment placed[RANDOM_SEGMENTS];
        pl_segment segments[RANDOM_SEGMENTS];
        int number = 2 + (int)(seed / 2 % (RANDOM_SEGMENTS - 1));
        place_segments(placed, number, seed);
        for (int s = 0; s < number; ++s)
            segments[s] = (pl_segment){arena + placed[s].send_at, arena + placed[s].recv_at,
                                       placed[s].count, PL_U8};
        pl_status status = reduce_in_self(segments, number);
        bool right = fits(placed, number);
        if (status != (right ? PL_OK : PL_INTERNAL))
            fail_msg("seed %" PRIu64 ": %s", seed, status == PL_OK ? "allowed" : pl_error_text());
        if (right)
            ++allowed;
        else
            ++refused;
    }
    assert_true(allowed > 5000 && refused > 5000);
}

/* Several segments may send the same buffer, and buffers may touch. */
static void test_what_is_allowed(void **state)
{
    (void)state;
    static int32_t sent[4] = {1, 2, 3, 4}, received[12];
    pl_process_group *group = NULL;
    pl_entry_name name = pl_entry_name_make(PL_OP_GATHER, PL_SUBJECT_HEAD);
    const pl_segment segments[3] = {{sent, received, 4, PL_I32},
                                    {sent, received + 4, 4, PL_FP32},
                                    {sent, received + 8, 4, PL_I32}};
    pl_call call = {
        .collective = PL_ALL_GATHER, .name = &name, .segments = segments, .segment_count = 3};
    assert_ok(pl_group_self_open(&group));
    assert_ok(pl_process_group_do(group, &call));
    for (int i = 0; i < 3; ++i) assert_memory_equal(received + (ptrdiff_t)4 * i, sent, sizeof sent);
    pl_process_group_close(group);
}

static void test_fake_names_the_segment(void **state)
{
    (void)state;
    double values[2] = {0};
    pl_process_group *group = NULL;
    pl_entry_name name = pl_entry_name_make(PL_OP_REDUCE, PL_SUBJECT_HEAD);
    const pl_segment segments[2] = {{values, values, 1, PL_I64},
                                    {values + 1, values + 1, 1, PL_FP64}};
    pl_call call = {.collective = PL_ALL_REDUCE,
                    .reduction = PL_REDUCTION_SUM,
                    .name = &name,
                    .segments = segments,
                    .segment_count = 2};
    assert_ok(pl_group_fake_open(&group, 1, PL_FAKE_SUMS_WRAP));
    assert_fails(PL_UNSUPPORTED, pl_process_group_do(group, &call), "2 segments) in world {0}",
                 "segment 1 of fp64", "integers only");
    pl_process_group_close(group);
}

/* Two ranks of backend fake do a call each. */
static pl_status do_both(pl_process_group *const *ranks, const pl_call *calls)
{
    pl_request requests[2];
    for (int i = 0; i < 2; ++i) PL_TRY(pl_process_group_start(ranks[i], &calls[i], &requests[i]));
    for (int i = 0; i < 2; ++i) PL_TRY(pl_process_group_wait(ranks[i], requests[i]));
    return PL_OK;
}

/* Once a group has done a call, calls of either form allocate nothing. */
static void test_no_allocation(void **state)
{
    (void)state;
    static int64_t values[2][4];
    pl_process_group *ranks[2];
    pl_segment segments[2][2];
    pl_call plain[2], both[2];
    pl_entry_name name = pl_entry_name_make(PL_OP_REDUCE, PL_SUBJECT_HEAD);
    for (int i = 0; i < 2; ++i) {
        segments[i][0] = (pl_segment){&values[i][0], &values[i][0], 1, PL_I64};
        segments[i][1] = (pl_segment){&values[i][1], &values[i][2], 1, PL_U8};
        plain[i] = (pl_call){.collective = PL_ALL_REDUCE,
                             .reduction = PL_REDUCTION_SUM,
                             .name = &name,
                             .send = &values[i][3],
                             .recv = &values[i][3],
                             .count = 1,
                             .dtype = PL_I64};
        both[i] = (pl_call){.collective = PL_ALL_REDUCE,
                            .reduction = PL_REDUCTION_SUM,
                            .name = &name,
                            .segments = segments[i],
                            .segment_count = 2};
    }
    assert_ok(pl_group_fake_open(ranks, 2, PL_FAKE_SUMS_MODULO));
    assert_ok(do_both(ranks, plain));
    pl_allocation_fail_after(0);
    for (int round = 0; round < 100; ++round) {
        pl_status status = do_both(ranks, plain);
        if (status == PL_OK) status = do_both(ranks, both);
        if (status != PL_OK) pl_allocation_fail_after(-1);
        assert_ok(status);
    }
    assert_false(pl_allocation_failed());
    /* An allocation would have failed. */
    pl_process_group *more = NULL;
    assert_int_equal(pl_group_fake_open(&more, 1, PL_FAKE_SUMS_MODULO), PL_NO_MEMORY);
    pl_allocation_fail_after(-1);
    for (int i = 0; i < 2; ++i) pl_process_group_close(ranks[i]);
}

/* Open a world, do a call of segments on both ranks. */
static pl_status open_and_use(void)
{
    static unsigned char values[2][8];
    pl_process_group *ranks[2];
    pl_segment segments[2][2];
    pl_call calls[2];
    pl_entry_name name = pl_entry_name_make(PL_OP_REDUCE, PL_SUBJECT_HEAD);
    PL_TRY(pl_group_fake_open(ranks, 2, PL_FAKE_SUMS_WRAP));
    for (int i = 0; i < 2; ++i) {
        segments[i][0] = (pl_segment){&values[i][0], &values[i][1], 1, PL_U8};
        segments[i][1] = (pl_segment){&values[i][2], &values[i][3], 1, PL_U8};
        calls[i] = (pl_call){.collective = PL_ALL_REDUCE,
                             .reduction = PL_REDUCTION_SUM,
                             .name = &name,
                             .segments = segments[i],
                             .segment_count = 2};
    }
    pl_status status = do_both(ranks, calls);
    for (int i = 0; i < 2; ++i) pl_process_group_close(ranks[i]);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_segment_mismatches),     cmocka_unit_test(test_segment_bad_calls),
        cmocka_unit_test(test_overlaps_at_random),     cmocka_unit_test(test_what_is_allowed),
        cmocka_unit_test(test_fake_names_the_segment), cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
