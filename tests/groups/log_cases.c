/* What process groups write to a log. */
#include "tests/groups/rank_cases.h"

#include <limits.h>

enum { RECORDS = 16, LOG_RANKS = 3 };

typedef struct kept_log {
    int count;
    pl_call_record record[RECORDS];
    pl_rank_set members[RECORDS];
} kept_log;

static void keep(void *context, const pl_call_record *record)
{
    kept_log *log = context;
    if (log->count == RECORDS) return;
    log->record[log->count] = *record;
    log->members[log->count++] = *record->members;
}

/* What is expected of a record, touches as bytes from the start of the run's send or recv. */
typedef struct expected_record {
    const char *what;
    int64_t bytes;
    int touches;
    struct {
        int of_recv, at, bytes, read, written;
    } touch[3];
} expected_record;

static bool has_touches(const rank_run *run, const pl_call_record *record,
                        const expected_record *expected)
{
    if (record->touch_count != expected->touches) return false;
    for (int i = 0; i < expected->touches; ++i) {
        const char *base = (const char *)(expected->touch[i].of_recv ? run->recv : run->send);
        if (record->touch[i].start != base + expected->touch[i].at ||
            record->touch[i].bytes != expected->touch[i].bytes ||
            record->touch[i].read != expected->touch[i].read ||
            record->touch[i].written != expected->touch[i].written)
            return false;
    }
    return true;
}

static pl_status compare_record(const rank_run *run, const kept_log *log, int at,
                                const expected_record *expected)
{
    const pl_call_record *record = &log->record[at];
    if (strcmp(record->what, expected->what) != 0 || record->bytes != expected->bytes ||
        !record->collective || !pl_entry_name_equal(&record->entry, &run->name) ||
        record->stream != PL_STREAM_COMMUNICATION || record->flops != 0 ||
        !pl_rank_set_equal(&log->members[at], &run->world->members))
        return PL_FAIL(PL_CHECK_FAILED,
                       "record %d: %s of %" PRId64 " bytes, expected %s of %" PRId64, at,
                       record->what, record->bytes, expected->what, expected->bytes);
    if (!has_touches(run, record, expected))
        return PL_FAIL(PL_CHECK_FAILED, "record %d: %s touches other memory, %d ranges", at,
                       record->what, record->touch_count);
    return PL_OK;
}

/* One call of each kind, started and waited for. */
static pl_status make_calls(rank_run *run)
{
    const int64_t sends[LOG_RANKS] = {1, 2, 3}, own = sends[run->rank];
    const int64_t receives[LOG_RANKS] = {own, own, own};
    const pl_transfer transfers[3] = {
        {(int)(run->rank + 1) % LOG_RANKS, 1, run->send + 4, 5},
        {(int)(run->rank + LOG_RANKS - 1) % LOG_RANKS, 0, run->recv + 8, 5},
        {(int)run->rank, 1, run->send + 9, 0}};
    pl_call call = reduce_call(run);
    call.stream = PL_STREAM_COMMUNICATION;
    PL_TRY(pl_process_group_do(run->world, &call));
    call.send = run->recv;
    PL_TRY(pl_process_group_do(run->world, &call)); /* in place */
    call.send = run->send;
    call.collective = PL_REDUCE_SCATTER;
    PL_TRY(pl_process_group_do(run->world, &call));
    call.reduction = PL_REDUCTION_NONE;
    call.collective = PL_ALL_GATHER;
    PL_TRY(pl_process_group_do(run->world, &call));
    call.collective = PL_ALL_TO_ALL;
    PL_TRY(pl_process_group_do(run->world, &call));
    call.collective = PL_ALL_TO_ALL_UNEVEN;
    call.send_counts = sends;
    call.recv_counts = receives;
    PL_TRY(pl_process_group_do(run->world, &call));
    call.collective = PL_BROADCAST;
    call.send = NULL;
    call.root = 1;
    PL_TRY(pl_process_group_do(run->world, &call));
    call.collective = PL_BARRIER;
    PL_TRY(pl_process_group_do(run->world, &call));
    call.collective = PL_SEND_RECEIVE;
    call.transfers = transfers;
    call.transfer_count = 2;
    return pl_process_group_do(run->world, &call);
}

static pl_status check_log(rank_run *run)
{
    kept_log kept = {.count = 0};
    const pl_call_log log = {keep, &kept};
    const int root = run->rank == 1, received = 12 * (int)(run->rank + 1);
    const expected_record expected[] = {
        {"all-reduce", 32, 2, {{0, 0, 32, 1, 0}, {1, 0, 32, 0, 1}}},
        {"all-reduce", 32, 1, {{1, 0, 32, 1, 1}}},
        {"reduce-scatter", 96, 2, {{0, 0, 96, 1, 0}, {1, 0, 32, 0, 1}}},
        {"all-gather", 96, 2, {{0, 0, 32, 1, 0}, {1, 0, 96, 0, 1}}},
        {"all-to-all", 96, 2, {{0, 0, 96, 1, 0}, {1, 0, 96, 0, 1}}},
        {"all-to-all-uneven", 24, 2, {{0, 0, 24, 1, 0}, {1, 0, received, 0, 1}}},
        {"broadcast", 32, 1, {{1, 0, 32, root, !root}}},
        {"barrier", 0, 0, {{0}}},
        {"send-receive", 20, 2, {{0, 16, 20, 1, 0}, {1, 32, 20, 0, 1}}}};
    const int count = sizeof expected / sizeof *expected;
    pl_process_group_set_log(run->world, &log);
    PL_TRY(make_calls(run));
    pl_process_group_set_log(run->world, NULL);
    PL_TRY(make_calls(run)); /* leaves no records */
    if (kept.count != count)
        return PL_FAIL(PL_CHECK_FAILED, "%d records, expected %d", kept.count, count);
    for (int i = 0; i < count; ++i) PL_TRY(compare_record(run, &kept, i, &expected[i]));
    return PL_OK;
}

static void body_log(rank_run *run) { record(run, check_log(run)); }

void test_log(void **state)
{
    (void)state;
    rank_run runs[MOST];
    run_ranks(runs, LOG_RANKS, LONG_LIMIT, body_log, 0);
    for (int i = 0; i < LOG_RANKS; ++i) assert_words(&runs[i], PL_OK, WORDS(""));
}

/* Segments that lie one behind the other are one range; others are counted when there are too many
 * to keep. A group that is split off has the log of the world; a call that is refused leaves no
 * record. */
static pl_status check_segments(rank_run *run)
{
    kept_log kept = {.count = 0};
    const pl_call_log log = {keep, &kept};
    pl_segment segments[PL_CALL_TOUCHES + 2];
    pl_process_group *part = NULL;
    pl_call call = {
        .collective = PL_ALL_GATHER, .name = &run->name, .segments = segments, .segment_count = 3};
    pl_process_group_set_log(run->world, &log);
    PL_TRY(pl_process_group_split(run->world, PL_GROUP_DATA, &run->world->members, &part));
    segments[0] = (pl_segment){run->send, run->recv, 2, PL_I32};
    segments[1] = (pl_segment){run->send + 2, run->recv + 2 * run->ranks, 4, PL_BF16};
    segments[2] = (pl_segment){run->send + 10, run->recv + 4 * run->ranks, 1, PL_I32};
    pl_status status = pl_process_group_do(part, &call);
    for (int i = 0; i < PL_CALL_TOUCHES + 2; ++i)
        segments[i] = (pl_segment){run->send, run->recv + (ptrdiff_t)2 * i, 1, PL_U8};
    call.collective = PL_ALL_REDUCE;
    call.reduction = PL_REDUCTION_SUM;
    call.segment_count = PL_CALL_TOUCHES + 2;
    if (status == PL_OK) status = pl_process_group_do(part, &call);
    call.reduction = PL_REDUCTION_NONE;
    bool refused = pl_process_group_do(part, &call) == PL_INTERNAL;
    pl_process_group_close(part);
    PL_TRY(status);
    const pl_call_record *first = &kept.record[0], *second = &kept.record[1];
    if (!refused || kept.count != 2)
        return PL_FAIL(PL_CHECK_FAILED, "%d records, expected 2", kept.count);
    if (first->bytes != run->ranks * 20 || first->one_dtype || first->dtype != PL_I32 ||
        first->touch_count != 3 || first->touch[0].bytes != 16 ||
        first->touch[1].bytes != 20 * run->ranks || first->touch[2].bytes != 4)
        return PL_FAIL(PL_CHECK_FAILED, "%" PRId64 " bytes, %d ranges", first->bytes,
                       first->touch_count);
    if (second->bytes != PL_CALL_TOUCHES + 2 || !second->one_dtype ||
        second->reduction != PL_REDUCTION_SUM || second->touch_count != 2 * (PL_CALL_TOUCHES + 2))
        return PL_FAIL(PL_CHECK_FAILED, "%" PRId64 " bytes, %d ranges", second->bytes,
                       second->touch_count);
    return PL_OK;
}

static void body_segments(rank_run *run) { record(run, check_segments(run)); }

void test_log_of_segments(void **state)
{
    (void)state;
    rank_run runs[MOST];
    run_ranks(runs, 2, LONG_LIMIT, body_segments, 0);
    for (int i = 0; i < 2; ++i) assert_words(&runs[i], PL_OK, WORDS(""));
}
