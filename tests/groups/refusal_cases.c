/* Calls that do not fit together, and calls that cannot be right. */
#include "tests/groups/rank_cases.h"

typedef enum mismatch {
    OTHER_COLLECTIVE,
    OTHER_COUNT,
    OTHER_DTYPE,
    OTHER_REDUCTION,
    OTHER_NAME,
    OTHER_ROOT,
    OTHER_UNEVEN_COUNTS,
    OTHER_TRANSFER_COUNT,
    NO_TRANSFER,
    MISMATCHES
} mismatch;

static void change_call(pl_call *call, rank_run *run, pl_transfer *transfer, int64_t *counts)
{
    bool odd = run->rank == 1;
    switch ((mismatch)run->variant) {
    case OTHER_COLLECTIVE:
        call->collective = odd ? PL_BARRIER : PL_ALL_REDUCE;
        if (odd) call->reduction = PL_REDUCTION_NONE;
        return;
    case OTHER_COUNT: call->count += odd; return;
    case OTHER_DTYPE: call->dtype = odd ? PL_FP32 : PL_I32; return;
    case OTHER_REDUCTION: call->reduction = odd ? PL_REDUCTION_MAX : PL_REDUCTION_SUM; return;
    case OTHER_NAME: run->name.layer += odd; return;
    case OTHER_ROOT:
        call->collective = PL_BROADCAST;
        call->reduction = PL_REDUCTION_NONE;
        call->send = NULL;
        call->root = odd;
        return;
    case OTHER_UNEVEN_COUNTS:
        call->collective = PL_ALL_TO_ALL_UNEVEN;
        call->reduction = PL_REDUCTION_NONE;
        for (int i = 0; i < MOST; ++i) counts[i] = 2;
        counts[MOST] = counts[MOST + 1] = counts[MOST + 2] = 2;
        if (odd) counts[MOST + 2] = 3; /* from rank 2 */
        call->send_counts = counts;
        call->recv_counts = counts + MOST;
        return;
    case OTHER_TRANSFER_COUNT:
    case NO_TRANSFER: break;
    case MISMATCHES: return;
    }
    /* 0 sends 4 elements to 1, which expects 5 or nothing. */
    call->collective = PL_SEND_RECEIVE;
    call->reduction = PL_REDUCTION_NONE;
    call->transfers = transfer;
    call->transfer_count = run->rank == 0 || (odd && run->variant == OTHER_TRANSFER_COUNT);
    *transfer = (pl_transfer){.peer = odd ? 0 : 1,
                              .is_send = !odd,
                              .buffer = odd ? run->recv : run->send,
                              .count = odd ? 5 : 4};
}

static void body_mismatch(rank_run *run)
{
    pl_transfer transfer;
    int64_t counts[2 * MOST] = {0};
    pl_call call = reduce_call(run);
    change_call(&call, run, &transfer, counts);
    record(run, pl_process_group_do(run->world, &call));
}

void test_mismatches(void **state)
{
    (void)state;
    static const struct {
        const char *difference, *one, *other;
    } expected[MISMATCHES] = {
        {"(operation)", "all-reduce sum (gather layer.3, 8 x i32)", "barrier (gather layer.3)"},
        {"(count)", "(gather layer.3, 8 x i32)", "(gather layer.3, 9 x i32)"},
        {"(element type)", "(gather layer.3, 8 x i32)", "(gather layer.3, 8 x fp32)"},
        {"(reduction)", "all-reduce sum (", "all-reduce max ("},
        {"(entry)", "(gather layer.3, 8 x i32)", "(gather layer.4, 8 x i32)"},
        {"(root)", "broadcast (gather layer.3, 8 x i32, root 0)", "8 x i32, root 1)"},
        {"disagree", "rank 2: all-to-all-uneven (gather layer.3, i32) sends 2 elements to rank 1",
         "rank 1: all-to-all-uneven (gather layer.3, i32) expects 3 elements from rank 2"},
        {"disagree", "1 transfers of i32) sends 4 elements to rank 1",
         "1 transfers of i32) expects 5 elements from rank 0"},
        {"disagree", "sends 4 elements to rank 1",
         "0 transfers of i32) expects nothing more from rank 0"}};
    rank_run runs[MOST];
    for (int variant = 0; variant < MISMATCHES; ++variant) {
        run_ranks(runs, 3, LONG_LIMIT, body_mismatch, variant);
        for (int i = 0; i < 3; ++i)
            assert_words(&runs[i], PL_INTERNAL,
                         WORDS(expected[variant].difference, expected[variant].one,
                               expected[variant].other, "rank 1", "world {0,1,2}"));
    }
}

typedef enum bad_call {
    NEGATIVE_COUNT,
    HUGE_COUNT,
    NO_SEND,
    NO_RECV,
    NO_REDUCTION,
    NEEDLESS_REDUCTION,
    INTEGER_AVERAGE,
    OVERLAP,
    GATHER_IN_PLACE,
    ROOT_TOO_LARGE,
    OTHER_SEND,
    NO_COUNTS,
    NEGATIVE_PIECE,
    PEER_TOO_LARGE,
    NO_TRANSFER_BUFFER,
    TRANSFERS_OVERLAP,
    NO_TRANSFERS,
    NO_NAME,
    NO_COLLECTIVE,
    BAD_CALLS
} bad_call;

static void spoil(pl_call *call, rank_run *run, pl_transfer *transfers, int64_t *counts)
{
    switch ((bad_call)run->variant) {
    case NEGATIVE_COUNT: call->count = -1; return;
    case HUGE_COUNT: call->count = INT64_MAX / 2; return;
    case NO_SEND: call->send = NULL; return;
    case NO_RECV: call->recv = NULL; return;
    case NO_REDUCTION: call->reduction = PL_REDUCTION_NONE; return;
    case NEEDLESS_REDUCTION: call->collective = PL_ALL_GATHER; return;
    case INTEGER_AVERAGE: call->reduction = PL_REDUCTION_AVERAGE; return;
    case OVERLAP: call->send = run->recv + 7; return;
    case NO_NAME: call->name = NULL; return;
    case NO_COLLECTIVE: call->collective = PL_COLLECTIVE_COUNT; return;
    default: break;
    }
    call->reduction = PL_REDUCTION_NONE;
    switch ((bad_call)run->variant) {
    case GATHER_IN_PLACE:
        call->collective = PL_ALL_GATHER;
        call->send = run->recv + 8;
        return;
    case ROOT_TOO_LARGE:
    case OTHER_SEND:
        call->collective = PL_BROADCAST;
        call->root = run->variant == OTHER_SEND ? 0 : 2;
        return;
    case NO_COUNTS:
    case NEGATIVE_PIECE:
        call->collective = PL_ALL_TO_ALL_UNEVEN;
        counts[1] = -2;
        call->send_counts = counts;
        call->recv_counts = run->variant == NO_COUNTS ? NULL : counts;
        if (run->variant == NO_COUNTS) counts[1] = 2;
        return;
    default: break;
    }
    call->collective = PL_SEND_RECEIVE;
    call->transfers = run->variant == NO_TRANSFERS ? NULL : transfers;
    call->transfer_count = 2;
    if (run->variant == PEER_TOO_LARGE) transfers[1].peer = 2;
    if (run->variant == NO_TRANSFER_BUFFER) transfers[1].buffer = NULL;
    if (run->variant == TRANSFERS_OVERLAP) transfers[1].buffer = run->send + 3;
}

static void body_bad_call(rank_run *run)
{
    int64_t counts[2] = {2, 2};
    pl_transfer transfers[2] = {{.peer = 0, .is_send = 1, .buffer = run->send, .count = 4},
                                {.peer = 0, .is_send = 0, .buffer = run->recv, .count = 4}};
    pl_call call = reduce_call(run);
    if (run->rank == 1) spoil(&call, run, transfers, counts);
    record(run, pl_process_group_do(run->world, &call));
}

void test_bad_calls(void **state)
{
    (void)state;
    static const char *const expected[BAD_CALLS] = {
        "send: a count of -1; counts are at least 0",
        "do not fit 63 bits",
        "send: the buffer is missing (8 elements)",
        "recv: the buffer is missing (8 elements)",
        "needs a reduction: sum, average or max",
        "takes no reduction, given sum",
        "average of integers",
        "send and recv overlap",
        "send and recv overlap",
        "root 2 is none; roots are indices in the group, 0 to 1",
        "broadcasts recv; send must be NULL or the same",
        "the array recv_counts is missing",
        "send_counts[1] is -2",
        "transfer 1 names peer 2; peers are indices in the group, 0 to 1",
        "a transfer: the buffer is missing (4 elements)",
        "the buffers of transfers 0 and 1 overlap",
        "the list of transfers is missing",
        "entry name is missing",
        "collective 8"};
    rank_run runs[MOST];
    for (int variant = 0; variant < BAD_CALLS; ++variant) {
        run_ranks(runs, 2, LONG_LIMIT, body_bad_call, variant);
        assert_words(&runs[1], PL_INTERNAL, WORDS(expected[variant], "rank 1"));
        assert_words(&runs[0], PL_PEER_FAILED,
                     WORDS("rank 1 failed (INTERNAL)", expected[variant],
                           "all-reduce sum (gather layer.3, 8 x i32)", "world {0,1}"));
    }
}
