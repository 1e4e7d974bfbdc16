/* The queue of calls of a group: posting, matching, handing out parts, waiting. */
#include <inttypes.h>
#include <stdio.h>

#include "common/group_domain.h"
#include "common/memory.h"

static pl_group_slot *slot_of(const pl_group_shared *group, int64_t number)
{
    return group->slots[number & (group->capacity - 1)];
}

static pl_status grow_queue(pl_group_shared *group)
{
    int64_t capacity = group->capacity ? 2 * group->capacity : 4;
    pl_group_slot **slots = NULL;
    PL_TRY(pl_allocate(&slots, (size_t)capacity, sizeof(pl_group_slot *),
                       "the calls of a process group"));
    for (int64_t number = group->base; number < group->end; ++number)
        slots[number & (capacity - 1)] = slot_of(group, number);
    pl_free(group->slots);
    group->slots = slots;
    group->capacity = capacity;
    return PL_OK;
}

/* A slot without calls at the end of the queue. Used ones come first: they are still in cache. */
static pl_status add_slot(pl_group_shared *group)
{
    if (group->end - group->base == group->capacity) PL_TRY(grow_queue(group));
    pl_group_slot *slot = group->free_slots;
    if (slot) {
        group->free_slots = slot->next_free;
    } else {
        PL_TRY(pl_allocate(&slot, 1, sizeof *slot, "the calls of a process group"));
        pl_status status = pl_allocate(&slot->posted, (size_t)group->size, sizeof *slot->posted,
                                       "the calls of a process group");
        if (status != PL_OK) {
            pl_free(slot);
            return status;
        }
    }
    slot->arrived = slot->waited = slot->work_bytes = 0;
    for (int64_t i = 0; i < group->size; ++i) slot->posted[i].state = PL_CALL_ABSENT;
    group->slots[group->end & (group->capacity - 1)] = slot;
    ++group->end;
    return PL_OK;
}

/* Elements of PL_ALL_TO_ALL_UNEVEN and PL_SEND_RECEIVE. */
static int64_t uneven_elements(const pl_call *call, int64_t size)
{
    int64_t elements = 0;
    for (int64_t i = 0; call->collective == PL_ALL_TO_ALL_UNEVEN && i < size; ++i)
        elements += call->recv_counts[i];
    /* The sum of transfers is not checked to fit 63 bits. */
    for (int i = 0; call->collective == PL_SEND_RECEIVE && i < call->transfer_count; ++i)
        if (call->transfers[i].count > elements) elements = call->transfers[i].count;
    return elements;
}

/* Count what the member's call moves, up to the size at which splitting begins. */
static void add_work(const pl_group_shared *group, pl_group_slot *slot,
                     const pl_posted_call *posted)
{
    const pl_call *call = &posted->call;
    const int64_t limit = group->domain->split_bytes + 1;
    const bool whole = call->collective != PL_ALL_REDUCE && call->collective != PL_BROADCAST;
    if (call->collective == PL_BARRIER) return;
    for (int i = 0; i < posted->segment_count && slot->work_bytes < limit; ++i) {
        const pl_segment *segment = &posted->segments[i];
        int64_t elements = whole ? segment->count * group->size : segment->count;
        if (!pl_collective_has_segments(call->collective))
            elements = uneven_elements(call, group->size);
        int64_t bytes = elements * pl_dtype_bytes(segment->dtype);
        if (bytes > limit - slot->work_bytes) bytes = limit - slot->work_bytes;
        slot->work_bytes += bytes;
    }
}

/* The domain's failure as seen by a member: its own group's status, PL_PEER_FAILED elsewhere. */
static pl_status failure_of(const pl_group_handle *handle)
{
    const pl_group_domain *domain = handle->shared->domain;
    bool own = domain->failure_serial == handle->shared->serial;
    return PL_FAIL(own ? domain->failure : PL_PEER_FAILED, "%s", domain->failure_words);
}

/* Add to the failure what this rank was doing; absent members of SLOT (may be NULL) are named. */
static void add_context(const pl_group_handle *handle, const char *doing, const pl_call *call,
                        const pl_group_slot *slot)
{
    pl_text text = {0};
    pl_call_print(&text, call);
    pl_text_add_string(&text, " in ");
    pl_group_print(&text, handle->base.role, &handle->base.members);
    if (slot) pl_call_print_absent(&text, &handle->base, slot->posted);
    if (!text.out_of_memory)
        pl_error_context("rank %" PRId64 " %s %s", handle->base.rank, doing, pl_text_string(&text));
    pl_text_free(&text);
}

/* A member that left before call NUMBER, or -1. */
static int64_t gone_before(const pl_group_shared *group, int64_t number)
{
    const pl_group_domain *domain = group->domain;
    if (group->gone == 0 && domain->left_count == 0) return -1;
    for (int64_t i = 0; i < group->size; ++i) {
        int64_t rank = pl_rank_set_member(&group->family->members, i);
        if ((group->member[i].gone || domain->left[rank]) && group->member[i].posted <= number)
            return rank;
    }
    return -1;
}

static pl_status fail_for_gone(pl_group_handle *handle, const pl_call *call, int64_t gone)
{
    pl_text text = {0};
    pl_text_add(&text, "rank %" PRId64 " closed its handle before ", gone);
    pl_call_print(&text, call);
    pl_text_add_string(&text, " in ");
    pl_group_print(&text, handle->base.role, &handle->base.members);
    return pl_fail_with_text(PL_PEER_FAILED, &text);
}

static void put(pl_group_slot *slot, int64_t index, const pl_call *call)
{
    pl_call_put(&slot->posted[index], call);
    if (slot->arrived++ == 0) slot->first = index;
}

static pl_status post(pl_group_handle *handle, const pl_call *call)
{
    pl_group_shared *group = handle->shared;
    int64_t index = handle->base.index, number = group->member[index].posted;
    int64_t gone = gone_before(group, number);
    if (gone >= 0) return fail_for_gone(handle, call, gone);
    if (number == group->end) PL_TRY(add_slot(group));
    pl_group_slot *slot = slot_of(group, number);
    put(slot, index, call);
    PL_TRY(pl_call_match(&handle->base, slot->posted, slot->first, index));
    if (group->domain->split_bytes > 0) add_work(group, slot, &slot->posted[index]);
    if (slot->arrived == group->size) PL_TRY(pl_call_match_counts(&handle->base, slot->posted));
    ++group->member[index].posted;
    return PL_OK;
}

pl_status pl_group_post(pl_group_handle *handle, const pl_call *call, pl_request *request_out)
{
    pl_group_shared *group = handle->shared;
    pl_request request = group->member[handle->base.index].posted;
    if (group->domain->failure != PL_OK) {
        pl_status failure = failure_of(handle);
        add_context(handle, "was to start", call, NULL);
        return failure;
    }
    pl_status status = post(handle, call);
    if (status == PL_OK) {
        *request_out = request;
    } else {
        if (status == PL_NO_MEMORY) /* nothing the other members did */
            pl_group_fail_rank(group->domain->local ? group->domain->local : handle, status,
                               pl_error_text());
        else
            pl_group_domain_fail(group->domain, status, group->serial, pl_error_text());
    }
    return status;
}

bool pl_group_head_ready(const pl_group_shared *group)
{
    return group->head < group->end && slot_of(group, group->head)->arrived == group->size;
}

bool pl_group_head_small(const pl_group_shared *group)
{
    const pl_group_domain *domain = group->domain;
    return group->size == 1 || domain->split_bytes == 0 ||
           slot_of(group, group->head)->work_bytes <= domain->split_bytes;
}

bool pl_group_take_part(pl_group_shared *group, pl_call_part *out)
{
    if (group->domain->failure != PL_OK || !pl_group_head_ready(group)) return false;
    if (group->parts == 0) group->parts = pl_group_head_small(group) ? 1 : group->size;
    if (group->taken == group->parts) return false;
    *out = (pl_call_part){.posted = slot_of(group, group->head)->posted,
                          .size = group->size,
                          .part = group->taken,
                          .parts = group->parts,
                          .offsets = group->offsets};
    ++group->taken;
    ++group->working;
    return true;
}

void pl_group_part_done(pl_group_shared *group)
{
    --group->working;
    bool whole = ++group->done == group->parts;
    if (whole) {
        ++group->head;
        group->parts = group->taken = group->done = 0;
    }
    bool idle_after_failure = group->domain->failure != PL_OK && group->working == 0;
    if ((whole || idle_after_failure) && group->domain->hooks->changed)
        group->domain->hooks->changed(group);
}

pl_status pl_group_check_request(const pl_group_handle *handle, pl_request request)
{
    const pl_group_shared *group = handle->shared;
    int64_t index = handle->base.index;
    bool started = request >= 0 && request < group->member[index].posted;
    bool waited = started && (request < group->base ||
                              slot_of(group, request)->posted[index].state != PL_CALL_POSTED);
    if (started && !waited) return PL_OK;
    pl_text text = {0};
    pl_text_add(&text, "rank %" PRId64 " waits for request %" PRId64 " of ", handle->base.rank,
                request);
    pl_group_print(&text, handle->base.role, &handle->base.members);
    if (started)
        pl_text_add_string(&text, ", which it has waited for already");
    else
        pl_text_add(&text, ", but it has started %" PRId64 " requests, numbered from 0",
                    group->member[index].posted);
    return pl_fail_with_text(PL_INTERNAL, &text);
}

pl_status pl_group_finish(pl_group_handle *handle, pl_request request)
{
    pl_group_shared *group = handle->shared;
    pl_group_slot *slot = slot_of(group, request);
    pl_posted_call *own = &slot->posted[handle->base.index];
    pl_status status = PL_OK;
    if (!pl_group_is_done(group, request)) {
        status = failure_of(handle);
        if (group->domain->failure_serial != group->serial)
            add_context(handle, "waited for", &own->call, slot);
    }
    own->state = PL_CALL_WAITED;
    ++slot->waited;
    while (group->base < group->head && slot_of(group, group->base)->waited == group->size) {
        pl_group_slot *used = slot_of(group, group->base++);
        used->next_free = group->free_slots;
        group->free_slots = used;
    }
    return status;
}

void pl_group_print_missing(pl_text *text, const pl_group_handle *handle, pl_request request)
{
    const pl_group_shared *group = handle->shared;
    int64_t first = group->head < request ? group->head : request;
    const pl_group_slot *slot = slot_of(group, first);
    pl_call_print(text, &slot->posted[handle->base.index].call);
    pl_text_add_string(text, " in ");
    pl_group_print(text, handle->base.role, &handle->base.members);
    pl_call_print_absent(text, &handle->base, slot->posted);
}

void pl_group_give_up(pl_group_handle *handle, pl_request request, pl_status status,
                      const char *did, const char *more)
{
    pl_text text = {0};
    pl_text_add(&text, "rank %" PRId64 " %s ", handle->base.rank, did);
    pl_group_print_missing(&text, handle, request);
    pl_text_add_string(&text, more);
    pl_group_domain_fail(handle->shared->domain, status, handle->shared->serial,
                         pl_text_string(&text));
    pl_text_free(&text);
}

void pl_group_time_out(pl_group_handle *handle, pl_request request, double seconds)
{
    char did[64];
    snprintf(did, sizeof did, "waited %.1f s for", seconds);
    pl_group_give_up(handle, request, PL_TIMED_OUT, did, "");
}

void pl_group_interrupt(pl_group_handle *handle, pl_request request)
{
    pl_group_give_up(handle, request, PL_TIMED_OUT, "was interrupted while waiting for", "");
}
