/* Calls of several segments: what does not match, what is refused, what is allowed. Their results
 * are in the conformance cases (tests/groups/segments.c). */
#include "tests/groups/rank_runs.h"

#include "common/memory.h"
#include "sim/fake_group.h"
#include "tests/groups/exchange.h"

enum { SEGMENTS = 3 };

/* Three segments of 8, 0 and 4 elements, summed. */
static pl_call segments_call(rank_run *run, pl_segment *segments)
{
    segments[0] = (pl_segment){run->send, run->recv, 8, PL_I32};
    segments[1] = (pl_segment){NULL, NULL, 0, PL_U8};
    segments[2] = (pl_segment){run->send + 8, run->recv + 8, 4, PL_I64};
    return (pl_call){.collective = PL_ALL_REDUCE,
                     .reduction = PL_REDUCTION_SUM,
                     .name = &run->name,
                     .segments = segments,
                     .segment_count = SEGMENTS};
}

typedef enum mismatch {
    FEWER_SEGMENTS,
    PLAIN_FORM,
    PLAIN_FORM_OF_ONE,
    OTHER_COUNT,
    OTHER_DTYPE,
    OTHER_BOTH,
    OTHER_EMPTY_DTYPE,
    OTHER_REDUCTION,
    EQUAL,
    MISMATCHES
} mismatch;

static void body_mismatch(rank_run *run)
{
    pl_segment segments[SEGMENTS];
    pl_call call = segments_call(run, segments);
    if (run->variant == PLAIN_FORM_OF_ONE) call.segment_count = 1;
    if (run->rank == 1) {
        switch ((mismatch)run->variant) {
        case FEWER_SEGMENTS: call.segment_count = 2; break;
        case PLAIN_FORM:
        case PLAIN_FORM_OF_ONE: call = reduce_call(run); break;
        case OTHER_COUNT: segments[2].count = 3; break;
        case OTHER_DTYPE: segments[2].dtype = PL_FP64; break;
        case OTHER_BOTH: segments[0] = (pl_segment){run->send, run->recv, 7, PL_BF16}; break;
        case OTHER_EMPTY_DTYPE: segments[1].dtype = PL_FP32; break;
        case OTHER_REDUCTION: call.reduction = PL_REDUCTION_MAX; break;
        default: break;
        }
    }
    record(run, pl_process_group_do(run->world, &call));
}

static void test_mismatches(void **state)
{
    (void)state;
    static const struct {
        const char *difference, *one, *other;
    } expected[MISMATCHES] = {
        {"(number of segments)", "(gather layer.3, 3 segments)", "(gather layer.3, 2 segments)"},
        {"(number of segments)", "(gather layer.3, 3 segments)", "(gather layer.3, 8 x i32)"},
        {"(number of segments)", "(gather layer.3, 1 segment)", "(gather layer.3, 8 x i32)"},
        {"(count of segment 2)", "3 segments), segment 2: 4 x i64", "segment 2: 3 x i64"},
        {"(element type of segment 2)", "segment 2: 4 x i64", "segment 2: 4 x fp64"},
        {"(element type of segment 0, count of segment 0)", "segment 0: 8 x i32",
         "segment 0: 7 x bf16"},
        {"(element type of segment 1)", "segment 1: 0 x u8", "segment 1: 0 x fp32"},
        {"(reduction)", "all-reduce sum (gather layer.3, 3 segments)", "all-reduce max ("}};
    rank_run runs[MOST];
    for (int variant = 0; variant < EQUAL; ++variant) {
        run_ranks(runs, 3, LONG_LIMIT, body_mismatch, variant);
        for (int i = 0; i < 3; ++i)
            assert_words(&runs[i], PL_INTERNAL,
                         WORDS(expected[variant].difference, expected[variant].one,
                               expected[variant].other, "rank 1", "world {0,1,2}"));
    }
    run_ranks(runs, 3, LONG_LIMIT, body_mismatch, EQUAL);
    for (int i = 0; i < 3; ++i) assert_words(&runs[i], PL_OK, WORDS(""));
}

typedef enum bad_call {
    NEGATIVE_NUMBER,
    NO_ARRAY,
    OWN_SEND,
    OWN_RECV,
    OWN_COUNT,
    OWN_DTYPE,
    OF_BARRIER,
    OF_UNEVEN,
    OF_TRANSFERS,
    NEGATIVE_COUNT,
    HUGE_COUNT,
    NO_SEND,
    NO_RECV,
    NO_DTYPE,
    INTEGER_AVERAGE,
    OWN_OVERLAP,
    RECEIVES_OVERLAP,
    RECEIVES_IN_SENT,
    SENDS_RECEIVED,
    IN_PLACE_TWICE,
    OTHER_BROADCAST,
    BROADCASTS_OVERLAP,
    BAD_CALLS
} bad_call;

static void spoil_call(pl_call *call, rank_run *run)
{
    switch ((bad_call)run->variant) {
    case NEGATIVE_NUMBER: call->segment_count = -1; return;
    case NO_ARRAY: call->segments = NULL; return;
    case OWN_SEND: call->send = run->send; return;
    case OWN_RECV: call->recv = run->recv; return;
    case OWN_COUNT: call->count = 1; return;
    case OWN_DTYPE: call->dtype = PL_I32; return;
    case INTEGER_AVERAGE: call->reduction = PL_REDUCTION_AVERAGE; return;
    case OF_BARRIER: call->collective = PL_BARRIER; break;
    case OF_UNEVEN: call->collective = PL_ALL_TO_ALL_UNEVEN; break;
    case OF_TRANSFERS: call->collective = PL_SEND_RECEIVE; break;
    case OTHER_BROADCAST:
    case BROADCASTS_OVERLAP: call->collective = PL_BROADCAST; break;
    default: return;
    }
    call->reduction = PL_REDUCTION_NONE;
}

static void spoil_segments(pl_segment *segments, rank_run *run)
{
    switch ((bad_call)run->variant) {
    case NEGATIVE_COUNT: segments[2].count = -4; return;
    case HUGE_COUNT: segments[2].count = INT64_MAX / 4; return;
    case NO_SEND: segments[2].send = NULL; return;
    case NO_RECV: segments[2].recv = NULL; return;
    case NO_DTYPE: segments[1].dtype = PL_DTYPE_COUNT; return;
    case INTEGER_AVERAGE: segments[0].dtype = PL_FP32; return;
    case OWN_OVERLAP: segments[2].send = run->recv + 9; return;
    case RECEIVES_OVERLAP: segments[2].recv = run->recv + 7; return;
    case RECEIVES_IN_SENT: segments[2].recv = run->send; return;
    case SENDS_RECEIVED: segments[2].send = run->recv; return;
    case IN_PLACE_TWICE:
        segments[0].send = segments[0].recv;
        segments[2].send = segments[2].recv = segments[0].recv;
        return;
    case OTHER_BROADCAST: segments[0].send = NULL; return;
    case BROADCASTS_OVERLAP:
        segments[0].send = segments[2].send = NULL;
        segments[2].recv = run->recv + 7;
        return;
    default: return;
    }
}

static void body_bad_call(rank_run *run)
{
    pl_segment segments[SEGMENTS];
    pl_call call = segments_call(run, segments);
    if (run->rank == 1) {
        spoil_segments(segments, run);
        spoil_call(&call, run);
    }
    record(run, pl_process_group_do(run->world, &call));
}

static void test_bad_calls(void **state)
{
    (void)state;
    static const char *const expected[BAD_CALLS] = {
        "a segment_count of -1; it is at least 0",
        "the array of segments is missing",
        "own send, recv, count and dtype must be NULL and 0",
        "own send, recv, count and dtype must be NULL and 0",
        "own send, recv, count and dtype must be NULL and 0",
        "own send, recv, count and dtype must be NULL and 0",
        "takes no segments, given 3",
        "takes no segments, given 3",
        "takes no segments, given 3",
        "segment 2: send: a count of -4; counts are at least 0",
        "segment 2: send: ",
        "segment 2: send: the buffer is missing (4 elements)",
        "segment 2: recv: the buffer is missing (4 elements)",
        "segment 1: element type 7 is none",
        "segment 1: an average of integers",
        "segment 2: send and recv overlap",
        "segment 2: its recv and the recv of segment 0 overlap",
        "segment 2: its recv and the send of segment 0 overlap",
        "segment 2: its send and the recv of segment 0 overlap",
        "segment 2: its recv and the recv of segment 0 overlap",
        "segment 2: broadcasts recv; send must be NULL or the same",
        "segment 2: its recv and the recv of segment 0 overlap"};
    rank_run runs[MOST];
    for (int variant = 0; variant < BAD_CALLS; ++variant) {
        run_ranks(runs, 2, LONG_LIMIT, body_bad_call, variant);
        assert_words(&runs[1], PL_INTERNAL, WORDS(expected[variant], "rank 1"));
        assert_words(&runs[0], PL_PEER_FAILED,
                     WORDS("rank 1 failed (INTERNAL)", expected[variant],
                           "all-reduce sum (gather layer.3, 3 segments)", "world {0,1}"));
    }
}

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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mismatches),
                                       cmocka_unit_test(test_bad_calls),
                                       cmocka_unit_test(test_overlaps_at_random),
                                       cmocka_unit_test(test_what_is_allowed),
                                       cmocka_unit_test(test_fake_names_the_segment),
                                       cmocka_unit_test(test_no_allocation),
                                       cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
