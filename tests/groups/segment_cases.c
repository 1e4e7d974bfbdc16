/* Calls of several segments that do not match, or cannot be right. */
#include "tests/groups/rank_cases.h"

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

void test_segment_mismatches(void **state)
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

void test_segment_bad_calls(void **state)
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
