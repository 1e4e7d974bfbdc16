/* One entry: order, buffers, its function, and what it leaves. */
#include <inttypes.h>

#include "train/entries.h"

static const pl_entry *entry_at(const pl_executor *executor, int32_t index)
{
    return &executor->running->section->entries[index];
}

static pl_work make_work(pl_executor *executor, int32_t index)
{
    const pl_entry *entry = entry_at(executor, index);
    return (pl_work){.executor = executor,
                     .section = executor->running->section,
                     .entry = entry,
                     .sizes = &executor->sizes,
                     .device = executor->device,
                     .stream = (pl_stream)entry->stream,
                     .index = index};
}

/* --- order --- */

/* A plan that was edited may wait for an entry that was taken out. What was done before that one
 * still comes first: everything issued so far does. */
static pl_status wait_for_all(pl_executor *executor, pl_stream stream)
{
    pl_ticks all = {{0}};
    for (int i = 0; i < PL_STREAM_COUNT; ++i) all.of[i] = executor->clock[i].of[i];
    return pl_order_after_ticks(executor, stream, &all);
}

static pl_status do_waits(pl_executor *executor, const pl_entry *entry)
{
    const pl_section *section = executor->running->section;
    for (uint32_t i = 0; i < entry->wait_count; ++i) {
        int32_t index = section->waits[entry->wait_first + i];
        if (index == PL_WAIT_MISSING) {
            PL_TRY(wait_for_all(executor, (pl_stream)entry->stream));
            continue;
        }
        if (executor->running->entry[index].tick == 0)
            return PL_FAIL(PL_BAD_INPUT,
                           "it waits for entry %" PRIu32 ", which comes later in the program",
                           section->entries[index].label);
        PL_TRY(pl_order_after_entry(executor, (pl_stream)entry->stream, index));
    }
    return PL_OK;
}

/* How ENTRY uses BUFFER; NULL: not at all. */
static const pl_use *use_of(const pl_section *section, const pl_entry *entry, uint32_t buffer)
{
    const pl_use *uses = section->uses + entry->use_first;
    for (uint32_t i = 0; i < entry->use_count; ++i)
        if (uses[i].buffer == buffer) return &uses[i];
    return NULL;
}

/* What a collective under way uses may be used only after it: by stream order it is waited for, by
 * nothing else was it meant to be. */
static pl_status meet_pending(pl_executor *executor, const pl_entry *entry, const pl_use *use)
{
    const uint32_t changes = PL_USE_WRITE | PL_USE_END;
    const pl_section *section = executor->running->section;
    for (size_t i = 0; i < executor->pending_count;) {
        const pl_entry *other = entry_at(executor, executor->pending[i].entry);
        const pl_use *others = use_of(section, other, use->buffer);
        if (!others || !((others->flags | use->flags) & changes)) {
            ++i;
        } else if (other->stream == entry->stream) {
            PL_TRY(pl_order_complete(executor, i));
        } else {
            return pl_buffer_refuse(executor, use->buffer,
                                    "is in use by a collective under way, and the entry does not "
                                    "wait for it");
        }
    }
    return PL_OK;
}

static pl_status check_uses(pl_executor *executor, const pl_entry *entry)
{
    const pl_use *uses = executor->running->section->uses + entry->use_first;
    for (uint32_t i = 0; i < entry->use_count; ++i) {
        const pl_live *live = executor->running->live[uses[i].buffer];
        if (live->in_flight > 0) PL_TRY(meet_pending(executor, entry, &uses[i]));
        if (!live->alive && !(uses[i].flags & PL_USE_BEGIN))
            return pl_buffer_refuse(executor, uses[i].buffer, "is used where it does not live");
    }
    return PL_OK;
}

static pl_status begin_buffers(pl_executor *executor, int32_t index)
{
    const pl_entry *entry = entry_at(executor, index);
    const pl_use *uses = executor->running->section->uses + entry->use_first;
    for (uint32_t i = 0; i < entry->use_count; ++i)
        if (uses[i].flags & PL_USE_BEGIN) PL_TRY(pl_buffer_begin(executor, index, uses[i].buffer));
    return PL_OK;
}

/* --- before and after --- */

/* Whoever looks between entries sees what the entry will see. */
static pl_status call_before(pl_executor *executor, int32_t index)
{
    const pl_executor_outside *outside = &executor->outside;
    pl_device *device = executor->device;
    const pl_section *section = executor->running->section;
    if (outside->before_control && entry_at(executor, index)->name.operation == PL_OP_CONTROL)
        PL_TRY(outside->before_control(outside->context, section->program));
    if (!outside->before_entry) return PL_OK;
    for (int i = 0; i < PL_STREAM_COUNT; ++i)
        PL_TRY(device->functions->synchronize(device, (pl_stream)i));
    return outside->before_entry(outside->context, executor, section, index);
}

static bool is_pending(const pl_executor *executor, int32_t index)
{
    size_t count = executor->pending_count;
    return count > 0 && executor->pending[count - 1].entry == index;
}

pl_status pl_executor_retire(pl_executor *executor, int32_t index)
{
    const pl_entry *entry = entry_at(executor, index);
    const pl_use *uses = executor->running->section->uses + entry->use_first;
    if (entry->name.operation == PL_OP_CONTROL) {
        pl_work work = make_work(executor, index);
        PL_TRY(pl_do_control_finish(&work));
    }
    PL_TRY(pl_order_record(executor, index));
    for (uint32_t i = 0; i < entry->use_count; ++i)
        if (uses[i].flags & PL_USE_END) PL_TRY(pl_buffer_end(executor, index, uses[i].buffer));
    return PL_OK;
}

static pl_status issue(pl_executor *executor, int32_t index)
{
    const pl_entry *entry = entry_at(executor, index);
    pl_work work = make_work(executor, index);
    PL_TRY(do_waits(executor, entry));
    PL_TRY(check_uses(executor, entry));
    PL_TRY(call_before(executor, index));
    pl_order_tick(executor, index);
    PL_TRY(begin_buffers(executor, index));
    executor->device->entry = entry->name;
    pl_status status = pl_entry_function_of((pl_operation)entry->name.operation)(&work);
    if (status == PL_OK) status = pl_work_finish_gradients(&work);
    pl_work_end_space(&work);
    PL_TRY(status);
    executor->clock[entry->stream].of[entry->stream] = executor->running->entry[index].tick;
    executor->running->entry[index].after = executor->clock[entry->stream];
    return is_pending(executor, index) ? PL_OK : pl_executor_retire(executor, index);
}

pl_status pl_executor_issue(pl_executor *executor, int32_t index)
{
    pl_status status = issue(executor, index);
    if (status != PL_OK) pl_entry_context(executor, index);
    return status;
}
