#include "common/call_check.h"

#include <inttypes.h>

#include "common/call_match.h"

/* What is being looked at. */
typedef struct place {
    const pl_process_group *group;
    const pl_call *call;
    pl_dtype dtype; /* of the elements */
    int segment;    /* -1 where the call has none */
} place;

static pl_status refuse(const place *at, const char *format, ...)
    __attribute__((cold, format(printf, 2, 3)));

static pl_status refuse(const place *at, const char *format, ...)
{
    pl_text text = {0};
    pl_call_print(&text, at->call);
    pl_text_add(&text, " of rank %" PRId64 " in ", at->group->rank);
    pl_group_print(&text, at->group->role, &at->group->members);
    pl_text_add_string(&text, ": ");
    if (at->segment >= 0) pl_text_add(&text, "segment %d: ", at->segment);
    va_list arguments;
    va_start(arguments, format);
    pl_text_add_list(&text, format, arguments);
    va_end(arguments);
    return pl_fail_with_text(PL_INTERNAL, &text);
}

static pl_status check_kinds(const place *at)
{
    const pl_call *call = at->call;
    if ((unsigned)call->collective >= PL_COLLECTIVE_COUNT ||
        (unsigned)call->dtype >= PL_DTYPE_COUNT ||
        (unsigned)call->reduction >= PL_REDUCTION_COUNT ||
        (unsigned)call->stream >= PL_STREAM_COUNT || !call->name ||
        call->name->operation >= PL_OPERATION_COUNT || call->name->subject >= PL_SUBJECT_COUNT ||
        call->name->pass >= PL_PASS_COUNT)
        return PL_FAIL(PL_INTERNAL,
                       "rank %" PRId64 " started a call that is none: collective %d, element type "
                       "%d, reduction %d, stream %d, or its entry name is %s",
                       at->group->rank, (int)call->collective, (int)call->dtype,
                       (int)call->reduction, (int)call->stream,
                       call->name ? "of unknown kind" : "missing");
    bool reduces = call->collective == PL_REDUCE_SCATTER || call->collective == PL_ALL_REDUCE;
    if (reduces && call->reduction == PL_REDUCTION_NONE)
        return refuse(at, "needs a reduction: sum, average or max");
    if (!reduces && call->reduction != PL_REDUCTION_NONE)
        return refuse(at, "takes no reduction, given %s", pl_reduction_name(call->reduction));
    return PL_OK;
}

static pl_status check_form(const place *at)
{
    const pl_call *call = at->call;
    if (call->segment_count == 0) return PL_OK;
    if (call->segment_count < 0)
        return refuse(at, "a segment_count of %d; it is at least 0", call->segment_count);
    if (!pl_collective_has_segments(call->collective))
        return refuse(at, "takes no segments, given %d", call->segment_count);
    if (!call->segments) return refuse(at, "the array of segments is missing");
    if (call->send || call->recv || call->count != 0 || (int)call->dtype != 0)
        return refuse(at, "with segments, the call's own send, recv, count and dtype must be "
                          "NULL and 0");
    return PL_OK;
}

/* A buffer of COUNT x FACTOR elements: its size in *BYTES. */
static pl_status check_buffer(const place *at, const char *what, const void *buffer, int64_t count,
                              int64_t factor, int64_t *bytes)
{
    int64_t elements = 0;
    if (count < 0)
        return refuse(at, "%s: a count of %" PRId64 "; counts are at least 0", what, count);
    if (__builtin_mul_overflow(count, factor, &elements) ||
        __builtin_mul_overflow(elements, (int64_t)pl_dtype_bytes(at->dtype), bytes))
        return refuse(at, "%s: %" PRId64 " x %" PRId64 " elements do not fit 63 bits", what, count,
                      factor);
    if (elements > 0 && !buffer)
        return refuse(at, "%s: the buffer is missing (%" PRId64 " elements)", what, elements);
    return PL_OK;
}

/* The addresses of a buffer; 0 to 0 when it is empty. */
typedef struct extent {
    uintptr_t first, end;
} extent;

static extent extent_of(const void *buffer, int64_t bytes)
{
    if (bytes == 0) return (extent){0, 0};
    return (extent){(uintptr_t)buffer, (uintptr_t)buffer + (uintptr_t)bytes};
}

static bool overlap(extent a, extent b) { return a.first < b.end && b.first < a.end; }

/* The extent from the first to the last address of both. */
static extent span(extent a, extent b)
{
    if (a.end == 0) return b;
    if (b.end == 0) return a;
    return (extent){a.first < b.first ? a.first : b.first, a.end > b.end ? a.end : b.end};
}

/* Times the count that a member sends, and receives. */
static int64_t send_factor(const place *at)
{
    pl_collective collective = at->call->collective;
    return collective == PL_REDUCE_SCATTER || collective == PL_ALL_TO_ALL ? at->group->size : 1;
}

static int64_t receive_factor(const place *at)
{
    pl_collective collective = at->call->collective;
    return collective == PL_ALL_GATHER || collective == PL_ALL_TO_ALL ? at->group->size : 1;
}

/* What a segment reads and writes. A broadcast names what it reads by recv alone. */
typedef struct segment_extents {
    extent sent, received;
} segment_extents;

static segment_extents extents_of(const place *at, const pl_segment *segment)
{
    int64_t bytes = segment->count * pl_dtype_bytes(segment->dtype);
    int64_t send_bytes = at->call->collective == PL_BROADCAST ? 0 : bytes * send_factor(at);
    return (segment_extents){extent_of(segment->send, send_bytes),
                             extent_of(segment->recv, bytes * receive_factor(at))};
}

static bool is_integer(pl_dtype dtype)
{
    return dtype == PL_U8 || dtype == PL_I32 || dtype == PL_I64;
}

/* Check SEGMENT by itself; where it lies in *OUT. */
static pl_status check_segment(const place *at, const pl_segment *segment, segment_extents *out)
{
    pl_collective collective = at->call->collective;
    int64_t send_bytes = 0, receive_bytes = 0;
    if ((unsigned)segment->dtype >= PL_DTYPE_COUNT)
        return refuse(at, "element type %d is none", (int)segment->dtype);
    if (at->call->reduction == PL_REDUCTION_AVERAGE && is_integer(segment->dtype))
        return refuse(at, "an average of integers is not exact; use sum");
    if (collective != PL_BROADCAST)
        PL_TRY(
            check_buffer(at, "send", segment->send, segment->count, send_factor(at), &send_bytes));
    PL_TRY(check_buffer(at, "recv", segment->recv, segment->count, receive_factor(at),
                        &receive_bytes));
    if (collective == PL_BROADCAST && segment->send && segment->send != segment->recv)
        return refuse(at, "broadcasts recv; send must be NULL or the same");
    *out = (segment_extents){extent_of(segment->send, send_bytes),
                             extent_of(segment->recv, receive_bytes)};
    if (collective == PL_ALL_REDUCE && segment->send == segment->recv) return PL_OK;
    if (overlap(out->sent, out->received)) return refuse(at, "send and recv overlap");
    return PL_OK;
}

/* Segment AT->segment with extents OWN against all before it, one by one. */
static pl_status check_pairs(const place *at, const pl_segment *segments, segment_extents own)
{
    for (int i = 0; i < at->segment; ++i) {
        segment_extents other = extents_of(at, &segments[i]);
        if (overlap(own.received, other.received))
            return refuse(at, "its recv and the recv of segment %d overlap", i);
        if (overlap(own.received, other.sent))
            return refuse(at, "its recv and the send of segment %d overlap", i);
        if (overlap(own.sent, other.received))
            return refuse(at, "its send and the recv of segment %d overlap", i);
    }
    return PL_OK;
}

/* Buffers are mostly listed as they lie in memory: then each is clear of the span of all before,
 * and only where that is not so are pairs compared. */
static pl_status check_segments(const pl_process_group *group, const pl_call *call)
{
    extent sent = {0, 0}, received = {0, 0};
    for (int i = 0; i < call->segment_count; ++i) {
        const place at = {group, call, call->segments[i].dtype, i};
        segment_extents own = {{0, 0}, {0, 0}};
        PL_TRY(check_segment(&at, &call->segments[i], &own));
        if (overlap(own.received, received) || overlap(own.received, sent) ||
            overlap(own.sent, received))
            PL_TRY(check_pairs(&at, call->segments, own));
        sent = span(sent, own.sent);
        received = span(received, own.received);
    }
    return PL_OK;
}

static pl_status check_plain(const place *at)
{
    const pl_call *call = at->call;
    const pl_segment plain = {call->send, call->recv, call->count, call->dtype};
    segment_extents own = {{0, 0}, {0, 0}};
    return check_segment(at, &plain, &own);
}

static pl_status sum_counts(const place *at, const char *what, const int64_t *counts, int64_t *sum)
{
    if (!counts) return refuse(at, "the array %s is missing", what);
    *sum = 0;
    for (int64_t i = 0; i < at->group->size; ++i) {
        if (counts[i] < 0)
            return refuse(at, "%s[%" PRId64 "] is %" PRId64 "; counts are at least 0", what, i,
                          counts[i]);
        if (__builtin_add_overflow(*sum, counts[i], sum))
            return refuse(at, "the sum of %s does not fit 63 bits", what);
    }
    return PL_OK;
}

static pl_status check_uneven(const place *at)
{
    const pl_call *call = at->call;
    int64_t sent = 0, received = 0, send_bytes = 0, receive_bytes = 0;
    PL_TRY(sum_counts(at, "send_counts", call->send_counts, &sent));
    PL_TRY(sum_counts(at, "recv_counts", call->recv_counts, &received));
    PL_TRY(check_buffer(at, "send", call->send, sent, 1, &send_bytes));
    PL_TRY(check_buffer(at, "recv", call->recv, received, 1, &receive_bytes));
    if (overlap(extent_of(call->send, send_bytes), extent_of(call->recv, receive_bytes)))
        return refuse(at, "send and recv overlap");
    return PL_OK;
}

static pl_status check_transfers(const place *at)
{
    const pl_call *call = at->call;
    if (call->transfer_count < 0 || (call->transfer_count > 0 && !call->transfers))
        return refuse(at, "the list of transfers is missing");
    for (int i = 0; i < call->transfer_count; ++i) {
        const pl_transfer *transfer = &call->transfers[i];
        int64_t bytes = 0;
        if (transfer->peer < 0 || transfer->peer >= at->group->size)
            return refuse(
                at, "transfer %d names peer %d; peers are indices in the group, 0 to %" PRId64, i,
                transfer->peer, at->group->size - 1);
        PL_TRY(check_buffer(at, "a transfer", transfer->buffer, transfer->count, 1, &bytes));
        for (int before = 0; before < i; ++before) {
            const pl_transfer *other = &call->transfers[before];
            if (transfer->is_send && other->is_send) continue;
            int64_t other_bytes = other->count * pl_dtype_bytes(call->dtype);
            if (overlap(extent_of(transfer->buffer, bytes), extent_of(other->buffer, other_bytes)))
                return refuse(at, "the buffers of transfers %d and %d overlap", before, i);
        }
    }
    return PL_OK;
}

pl_status pl_call_check(const pl_process_group *group, const pl_call *call)
{
    const place at = {group, call, call->dtype, -1};
    PL_TRY(check_kinds(&at));
    PL_TRY(check_form(&at));
    if (call->collective == PL_BROADCAST && (call->root < 0 || call->root >= group->size))
        return refuse(&at, "root %d is none; roots are indices in the group, 0 to %" PRId64,
                      call->root, group->size - 1);
    switch (call->collective) {
    case PL_ALL_TO_ALL_UNEVEN: return check_uneven(&at);
    case PL_SEND_RECEIVE: return check_transfers(&at);
    case PL_BARRIER: return PL_OK;
    default: return call->segment_count > 0 ? check_segments(group, call) : check_plain(&at);
    }
}
