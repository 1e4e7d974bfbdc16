#include "tests/groups/segments.h"

#include <stdlib.h>
#include <string.h>

struct segment_run {
    rank_report *report;
    pl_process_group *group;
    conformance_case test;
    pl_entry_name name;
    exchange *exchanges;             /* one a segment: buffers, and what is expected in them */
    pl_segment *segments;            /* the call's */
    unsigned char **repeats;         /* recv of the plain calls */
    pl_request request, first_plain; /* of the call, of the first plain one */
    int plain_calls;                 /* started */
    bool started;
};

/* Every fifth segment is empty, the last of a hundred is not; COUNT is the size of the second one
 * when it is above 0. */
static int64_t count_of(const conformance_case *test, int segment)
{
    if (segment == 1 && test->count > 0) return test->count;
    return segment % 5 == 2 ? 0 : 1 + segment * 13 % 41;
}

/* The types of BACKEND in turn; of floats only for averages. */
static pl_dtype dtype_of(const conformance_backend *backend, pl_reduction reduction, int segment)
{
    int carried = 0;
    pl_dtype dtypes[PL_DTYPE_COUNT] = {PL_U8};
    for (int i = 0; i < backend->dtype_count; ++i)
        if (reduction != PL_REDUCTION_AVERAGE || !dtype_is_integer(backend->dtypes[i]))
            dtypes[carried++] = backend->dtypes[i];
    return dtypes[segment % carried];
}

static bool carries_floats(const conformance_backend *backend)
{
    for (int i = 0; i < backend->dtype_count; ++i)
        if (!dtype_is_integer(backend->dtypes[i])) return true;
    return false;
}

int segments_list(conformance_case *cases, int count, const conformance_backend *backend,
                  int64_t ranks)
{
    static const pl_collective collectives[] = {PL_ALL_GATHER, PL_ALL_TO_ALL, PL_BROADCAST,
                                                PL_REDUCE_SCATTER, PL_ALL_REDUCE};
    static const int numbers[] = {0, 1, 3, 100};
    for (int c = 0; c < 5; ++c) {
        bool reduces = c >= 3;
        for (int r = 0; r < PL_REDUCTION_COUNT; ++r) {
            if (reduces == (r == PL_REDUCTION_NONE)) continue;
            if (r == PL_REDUCTION_AVERAGE && !carries_floats(backend)) continue;
            for (int n = 0; n < 8; ++n) {
                conformance_case test = {.body = BODY_SEGMENTS,
                                         .collective = collectives[c],
                                         .reduction = (pl_reduction)r,
                                         .segments = numbers[n / 2],
                                         .in_place = n % 2};
                if (test.in_place && collectives[c] != PL_ALL_REDUCE) continue;
                /* The plain form of zero bytes, which cannot be averaged. */
                if (test.segments == 0 && test.reduction == PL_REDUCTION_AVERAGE) continue;
                if (test.segments == 100 && ranks > 5 && ranks < 16) continue;
                if (test.segments == 3 && ranks == 3) test.count = 20001; /* done in parts */
                cases[count++] = test;
            }
        }
    }
    return count;
}

static void free_run(segment_run *run)
{
    for (int i = 0; run->exchanges && i < run->test.segments; ++i)
        exchange_free(&run->exchanges[i]);
    for (int i = 0; run->repeats && i < run->test.segments; ++i) free(run->repeats[i]);
    free(run->exchanges);
    free(run->segments);
    free(run->repeats);
    free(run);
}

static pl_status start_call(segment_run *run)
{
    pl_call call = {.collective = run->test.collective,
                    .reduction = run->test.reduction,
                    .name = &run->name,
                    .root = (int)((run->group->size - 1) / 2),
                    .segments = run->segments,
                    .segment_count = run->test.segments};
    return pl_process_group_start(run->group, &call, &run->request);
}

static bool prepare(segment_run *run, const conformance_backend *backend)
{
    const size_t number = (size_t)run->test.segments + 1; /* never none */
    run->exchanges = calloc(number, sizeof *run->exchanges);
    run->segments = calloc(number, sizeof *run->segments);
    run->repeats = calloc(number, sizeof *run->repeats);
    if (!run->exchanges || !run->segments || !run->repeats) {
        report_wrong(run->report, "no memory for the test's segments");
        return false;
    }
    for (int i = 0; i < run->test.segments; ++i) {
        conformance_case test = run->test;
        test.count = count_of(&run->test, i);
        test.dtype = dtype_of(backend, test.reduction, i);
        exchange *own = &run->exchanges[i];
        if (!exchange_prepare(own, run->report, run->group, &test, (uint64_t)i)) return false;
        run->segments[i] =
            (pl_segment){own->call.send, own->call.recv, own->call.count, own->call.dtype};
    }
    return true;
}

segment_run *segments_start(rank_report *report, pl_process_group *group,
                            const conformance_backend *backend, const conformance_case *test)
{
    segment_run *run = calloc(1, sizeof *run);
    if (!run) {
        report_wrong(report, "no memory for the test's segments");
        return NULL;
    }
    run->report = report;
    run->group = group;
    run->test = *test;
    run->name = pl_entry_name_make(PL_OP_GATHER, PL_SUBJECT_GRADIENTS);
    if (prepare(run, backend)) run->started = report_status(report, "start", start_call(run));
    if (run->started) return run;
    free_run(run);
    return NULL;
}

/* What is sent in the second call. */
static void refill(const exchange *own, int segment, unsigned char *buffer, int64_t elements)
{
    size_t bytes = (size_t)pl_dtype_bytes(own->test.dtype);
    for (int64_t p = 0; p < elements; ++p) {
        uint64_t bits = scramble((uint64_t)segment + 1000, (uint64_t)own->group->rank, (uint64_t)p);
        if (!dtype_is_integer(own->test.dtype))
            bits = encode_value(own->test.dtype, order_value(own->group->rank, p + segment));
        memcpy(buffer + (size_t)p * bytes, &bits, bytes);
    }
}

/* Other values in the buffers of SEGMENT, and the plain call with the same ones. */
static bool start_plain(segment_run *run, int segment)
{
    exchange *own = &run->exchanges[segment];
    size_t received = (size_t)own->recv_elements * (size_t)pl_dtype_bytes(own->test.dtype);
    pl_call call = own->call;
    pl_request request = 0;
    pl_request *out = segment == 0 ? &run->first_plain : &request;
    refill(own, segment, own->send, own->send_elements);
    bool reads_recv = call.send == call.recv || run->test.collective == PL_BROADCAST;
    memset(own->recv, 0, received);
    if (reads_recv) refill(own, segment, own->recv, own->recv_elements);
    run->repeats[segment] = malloc(received + 1);
    if (!run->repeats[segment]) {
        report_wrong(run->report, "no memory for the test's repeats");
        return false;
    }
    memcpy(run->repeats[segment], own->recv, received);
    call.name = &run->name;
    call.recv = run->repeats[segment];
    if (own->call.send == own->call.recv) call.send = call.recv;
    return report_status(run->report, "start", pl_process_group_start(run->group, &call, out));
}

void segments_repeat(segment_run *run)
{
    run->started =
        report_status(run->report, "wait", pl_process_group_wait(run->group, run->request));
    for (int i = 0; run->started && i < run->test.segments; ++i)
        exchange_compare(&run->exchanges[i], run->report);
    while (run->started && run->plain_calls < run->test.segments &&
           start_plain(run, run->plain_calls))
        ++run->plain_calls;
    run->started = run->started && run->plain_calls == run->test.segments &&
                   report_status(run->report, "start", start_call(run));
}

void segments_finish(segment_run *run)
{
    for (int i = 0; i < run->plain_calls; ++i)
        report_status(run->report, "wait", pl_process_group_wait(run->group, run->first_plain + i));
    if (run->started)
        report_status(run->report, "wait", pl_process_group_wait(run->group, run->request));
    for (int i = 0; run->started && i < run->test.segments; ++i) {
        const exchange *own = &run->exchanges[i];
        size_t bytes = (size_t)own->recv_elements * (size_t)pl_dtype_bytes(own->test.dtype);
        if (memcmp(own->recv, run->repeats[i], bytes) != 0)
            report_wrong(run->report, "segment %d of %d: other bits than the plain %s %s of %s", i,
                         run->test.segments, pl_collective_name(run->test.collective),
                         pl_reduction_name(run->test.reduction), pl_dtype_name(own->test.dtype));
    }
    free_run(run);
}
