#include "common/process_group.h"

#include <inttypes.h>
#include <string.h>

#include "common/call_match.h"
#include "common/memory.h"

static const char *const collective_names[PL_COLLECTIVE_COUNT] = {
    "all-gather",        "reduce-scatter", "all-reduce", "all-to-all",
    "all-to-all-uneven", "send-receive",   "broadcast",  "barrier"};

static const char *const reduction_names[PL_REDUCTION_COUNT] = {"-", "sum", "average", "max"};

const char *pl_collective_name(pl_collective collective) { return collective_names[collective]; }

const char *pl_reduction_name(pl_reduction reduction) { return reduction_names[reduction]; }

bool pl_reduction_parse(pl_reduction *out, const char *name)
{
    for (int i = 0; i < PL_REDUCTION_COUNT; ++i) {
        if (strcmp(name, reduction_names[i]) != 0) continue;
        *out = (pl_reduction)i;
        return true;
    }
    return false;
}

/* A call that cannot be right whatever the others do. */
static pl_status refuse(const pl_process_group *group, const pl_call *call, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static pl_status refuse(const pl_process_group *group, const pl_call *call, const char *format, ...)
{
    pl_text text = {0};
    pl_call_print(&text, call);
    pl_text_add(&text, " of rank %" PRId64 " in ", group->rank);
    pl_group_print(&text, group->role, &group->members);
    pl_text_add_string(&text, ": ");
    va_list arguments;
    va_start(arguments, format);
    pl_text_add_list(&text, format, arguments);
    va_end(arguments);
    return pl_fail_with_text(PL_INTERNAL, &text);
}

static pl_status check_values(const pl_process_group *group, const pl_call *call)
{
    if ((unsigned)call->collective >= PL_COLLECTIVE_COUNT ||
        (unsigned)call->dtype >= PL_DTYPE_COUNT ||
        (unsigned)call->reduction >= PL_REDUCTION_COUNT ||
        (unsigned)call->stream >= PL_STREAM_COUNT || !call->name ||
        call->name->operation >= PL_OPERATION_COUNT || call->name->subject >= PL_SUBJECT_COUNT ||
        call->name->pass >= PL_PASS_COUNT)
        return PL_FAIL(PL_INTERNAL,
                       "rank %" PRId64 " started a call that is none: collective %d, element type "
                       "%d, reduction %d, stream %d, or its entry name is %s",
                       group->rank, (int)call->collective, (int)call->dtype, (int)call->reduction,
                       (int)call->stream, call->name ? "of unknown kind" : "missing");
    bool reduces = call->collective == PL_REDUCE_SCATTER || call->collective == PL_ALL_REDUCE;
    if (reduces && call->reduction == PL_REDUCTION_NONE)
        return refuse(group, call, "needs a reduction: sum, average or max");
    if (!reduces && call->reduction != PL_REDUCTION_NONE)
        return refuse(group, call, "takes no reduction, given %s",
                      pl_reduction_name(call->reduction));
    bool integers = call->dtype == PL_U8 || call->dtype == PL_I32 || call->dtype == PL_I64;
    if (call->reduction == PL_REDUCTION_AVERAGE && integers)
        return refuse(group, call, "an average of integers is not exact; use sum");
    return PL_OK;
}

/* A buffer of COUNT x FACTOR elements: its size in *BYTES. */
static pl_status check_buffer(const pl_process_group *group, const pl_call *call, const char *what,
                              const void *buffer, int64_t count, int64_t factor, int64_t *bytes)
{
    int64_t elements = 0;
    if (count < 0)
        return refuse(group, call, "%s: a count of %" PRId64 "; counts are at least 0", what,
                      count);
    if (__builtin_mul_overflow(count, factor, &elements) ||
        __builtin_mul_overflow(elements, (int64_t)pl_dtype_bytes(call->dtype), bytes))
        return refuse(group, call, "%s: %" PRId64 " x %" PRId64 " elements do not fit 63 bits",
                      what, count, factor);
    if (elements > 0 && !buffer)
        return refuse(group, call, "%s: the buffer is missing (%" PRId64 " elements)", what,
                      elements);
    return PL_OK;
}

static bool overlap(const void *a, int64_t a_bytes, const void *b, int64_t b_bytes)
{
    if (a_bytes == 0 || b_bytes == 0) return false;
    uintptr_t a_first = (uintptr_t)a, b_first = (uintptr_t)b;
    return a_first < b_first + (uintptr_t)b_bytes && b_first < a_first + (uintptr_t)a_bytes;
}

/* Calls whose two buffers hold SEND_FACTOR and RECEIVE_FACTOR times the count. */
static pl_status check_even(const pl_process_group *group, const pl_call *call)
{
    bool send_whole = call->collective == PL_REDUCE_SCATTER || call->collective == PL_ALL_TO_ALL;
    bool receive_whole = call->collective == PL_ALL_GATHER || call->collective == PL_ALL_TO_ALL;
    int64_t send_bytes = 0, receive_bytes = 0;
    PL_TRY(check_buffer(group, call, "send", call->send, call->count, send_whole ? group->size : 1,
                        &send_bytes));
    PL_TRY(check_buffer(group, call, "recv", call->recv, call->count,
                        receive_whole ? group->size : 1, &receive_bytes));
    if (call->collective == PL_ALL_REDUCE && call->send == call->recv) return PL_OK;
    if (overlap(call->send, send_bytes, call->recv, receive_bytes))
        return refuse(group, call, "send and recv overlap");
    return PL_OK;
}

static pl_status sum_counts(const pl_process_group *group, const pl_call *call, const char *what,
                            const int64_t *counts, int64_t *sum)
{
    if (!counts) return refuse(group, call, "the array %s is missing", what);
    *sum = 0;
    for (int64_t i = 0; i < group->size; ++i) {
        if (counts[i] < 0)
            return refuse(group, call, "%s[%" PRId64 "] is %" PRId64 "; counts are at least 0",
                          what, i, counts[i]);
        if (__builtin_add_overflow(*sum, counts[i], sum))
            return refuse(group, call, "the sum of %s does not fit 63 bits", what);
    }
    return PL_OK;
}

static pl_status check_uneven(const pl_process_group *group, const pl_call *call)
{
    int64_t sent = 0, received = 0, send_bytes = 0, receive_bytes = 0;
    PL_TRY(sum_counts(group, call, "send_counts", call->send_counts, &sent));
    PL_TRY(sum_counts(group, call, "recv_counts", call->recv_counts, &received));
    PL_TRY(check_buffer(group, call, "send", call->send, sent, 1, &send_bytes));
    PL_TRY(check_buffer(group, call, "recv", call->recv, received, 1, &receive_bytes));
    if (overlap(call->send, send_bytes, call->recv, receive_bytes))
        return refuse(group, call, "send and recv overlap");
    return PL_OK;
}

static pl_status check_transfers(const pl_process_group *group, const pl_call *call)
{
    if (call->transfer_count < 0 || (call->transfer_count > 0 && !call->transfers))
        return refuse(group, call, "the list of transfers is missing");
    for (int i = 0; i < call->transfer_count; ++i) {
        const pl_transfer *transfer = &call->transfers[i];
        int64_t bytes = 0;
        if (transfer->peer < 0 || transfer->peer >= group->size)
            return refuse(
                group, call,
                "transfer %d names peer %d; peers are indices in the group, 0 to %" PRId64, i,
                transfer->peer, group->size - 1);
        PL_TRY(
            check_buffer(group, call, "a transfer", transfer->buffer, transfer->count, 1, &bytes));
        for (int before = 0; before < i; ++before) {
            const pl_transfer *other = &call->transfers[before];
            if (transfer->is_send && other->is_send) continue;
            if (overlap(transfer->buffer, bytes, other->buffer,
                        other->count * pl_dtype_bytes(call->dtype)))
                return refuse(group, call, "the buffers of transfers %d and %d overlap", before, i);
        }
    }
    return PL_OK;
}

static pl_status check_broadcast(const pl_process_group *group, const pl_call *call)
{
    int64_t bytes = 0;
    if (call->root < 0 || call->root >= group->size)
        return refuse(group, call, "root %d is none; roots are indices in the group, 0 to %" PRId64,
                      call->root, group->size - 1);
    PL_TRY(check_buffer(group, call, "recv", call->recv, call->count, 1, &bytes));
    if (call->send && call->send != call->recv)
        return refuse(group, call, "broadcasts recv; send must be NULL or the same");
    return PL_OK;
}

static pl_status check_call(const pl_process_group *group, const pl_call *call)
{
    PL_TRY(check_values(group, call));
    switch (call->collective) {
    case PL_ALL_TO_ALL_UNEVEN: return check_uneven(group, call);
    case PL_SEND_RECEIVE: return check_transfers(group, call);
    case PL_BROADCAST: return check_broadcast(group, call);
    case PL_BARRIER: return PL_OK;
    default: return check_even(group, call);
    }
}

pl_status pl_process_group_start(pl_process_group *group, const pl_call *call,
                                 pl_request *request_out)
{
    pl_status status = check_call(group, call);
    if (status == PL_OK) status = group->backend->start(group, call, request_out);
    /* The others must not wait for a call that this rank could not make. */
    if (status != PL_OK) group->backend->fail(group, status, pl_error_text());
    return status;
}

pl_status pl_process_group_wait(pl_process_group *group, pl_request request)
{
    return group->backend->wait(group, request);
}

pl_status pl_process_group_do(pl_process_group *group, const pl_call *call)
{
    pl_request request = 0;
    PL_TRY(pl_process_group_start(group, call, &request));
    return pl_process_group_wait(group, request);
}

static pl_status refuse_members(const pl_process_group *world, pl_group_role role,
                                const pl_rank_set *members, const char *why)
{
    pl_text text = {0};
    pl_text_add(&text, "rank %" PRId64 " of %" PRId64 " asks for the group ", world->rank,
                world->size);
    pl_group_print(&text, role, members);
    pl_text_add(&text, ": %s", why);
    return pl_fail_with_text(PL_INTERNAL, &text);
}

/* Whether strides nest, in member order; then the last member is the largest rank, *SPAN_OUT
 * above the first. */
static bool nests(const pl_rank_set *members, int64_t *span_out)
{
    if (members->axes < 0 || members->axes > PL_RANK_SET_AXES) return false;
    int64_t span = 0;
    for (int axis = members->axes - 1; axis >= 0; --axis) {
        int64_t count = members->axis[axis].count, stride = members->axis[axis].stride, reach = 0;
        if (count < 2 || stride <= span) return false;
        if (__builtin_mul_overflow(count - 1, stride, &reach) ||
            __builtin_add_overflow(span, reach, &span))
            return false;
    }
    *span_out = span;
    return true;
}

pl_status pl_process_group_split(pl_process_group *world, pl_group_role role,
                                 const pl_rank_set *members, pl_process_group **out)
{
    int64_t span = 0;
    if ((unsigned)role >= PL_GROUP_ROLE_COUNT)
        return PL_FAIL(PL_INTERNAL, "rank %" PRId64 " asks for a group of role %d, which is none",
                       world->rank, (int)role);
    if (!nests(members, &span))
        return PL_FAIL(PL_INTERNAL,
                       "rank %" PRId64 " asks for a group of role %s whose strides do not nest",
                       world->rank, pl_group_role_name(role));
    if (world->role != PL_GROUP_WORLD)
        return refuse_members(world, role, members, "groups are made from the world's group only");
    if (members->base < 0 || members->base >= world->size || span >= world->size - members->base)
        return PL_FAIL(PL_INTERNAL,
                       "rank %" PRId64 " asks for a group of role %s from rank %" PRId64
                       ", %" PRId64 " wide; ranks of the world are 0 to %" PRId64,
                       world->rank, pl_group_role_name(role), members->base, span, world->size - 1);
    if (pl_rank_set_index(members, world->rank) < 0)
        return refuse_members(world, role, members, "the asking rank is not a member");
    return world->backend->split(world, role, members, out);
}

void pl_process_group_fail(pl_process_group *group, pl_status status, const char *words)
{
    group->backend->fail(group, status, words);
}

void pl_process_group_close(pl_process_group *group)
{
    if (group) group->backend->close(group);
}
