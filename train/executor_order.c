/* Who comes after whom: clocks of the streams, events of the device, collectives under way. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/memory.h"
#include "train/executor_state.h"

static const pl_entry *entry_at(const pl_executor *executor, int32_t index)
{
    return &executor->running->section->entries[index];
}

/* Take over what an entry was ordered after. */
static void merge(pl_executor *executor, pl_stream stream, const pl_ticks *after)
{
    pl_ticks *clock = &executor->clock[stream];
    for (int i = 0; i < PL_STREAM_COUNT; ++i)
        if (after->of[i] > clock->of[i]) clock->of[i] = after->of[i];
}

/* Wait for the pending collectives of stream FROM up to TICK. */
static pl_status complete_until(pl_executor *executor, pl_stream from, int64_t tick)
{
    for (size_t i = 0; i < executor->pending_count;) {
        int32_t index = executor->pending[i].entry;
        bool wanted = entry_at(executor, index)->stream == (uint8_t)from &&
                      executor->running->entry[index].tick <= tick;
        if (wanted)
            PL_TRY(pl_order_complete(executor, i));
        else
            ++i;
    }
    return PL_OK;
}

static pl_status order_device(pl_executor *executor, pl_stream stream, pl_stream from,
                              pl_entry_state *entry)
{
    pl_device *device = executor->device;
    /* An event that was moved says too little: one recorded now says more than is needed. */
    if (executor->events - entry->event >= PL_DEVICE_EVENTS) {
        entry->event = executor->events++;
        PL_TRY(device->functions->record(device, from, (int32_t)(entry->event % PL_DEVICE_EVENTS)));
    }
    return device->functions->wait(device, stream, (int32_t)(entry->event % PL_DEVICE_EVENTS));
}

static pl_status order_after(pl_executor *executor, pl_stream stream, pl_stream from, int64_t tick)
{
    pl_device *device = executor->device;
    if (stream == from || executor->clock[stream].of[from] >= tick) return PL_OK;
    pl_entry_state *entry = &executor->running->entry[executor->running->issued[tick - 1]];
    PL_TRY(complete_until(executor, from, tick));
    if (from != PL_STREAM_HOST && stream == PL_STREAM_HOST)
        PL_TRY(device->functions->synchronize(device, from));
    else if (from != PL_STREAM_HOST)
        PL_TRY(order_device(executor, stream, from, entry));
    merge(executor, stream, &entry->after);
    return PL_OK;
}

pl_status pl_order_after_entry(pl_executor *executor, pl_stream stream, int32_t index)
{
    return order_after(executor, stream, (pl_stream)entry_at(executor, index)->stream,
                       executor->running->entry[index].tick);
}

pl_status pl_order_after_ticks(pl_executor *executor, pl_stream stream, const pl_ticks *ticks)
{
    for (int i = 0; i < PL_STREAM_COUNT; ++i)
        PL_TRY(order_after(executor, stream, (pl_stream)i, ticks->of[i]));
    return PL_OK;
}

void pl_order_tick(pl_executor *executor, int32_t index)
{
    pl_entry_state *entry = &executor->running->entry[index];
    entry->tick = ++executor->tick;
    executor->running->issued[entry->tick - 1] = index;
}

pl_status pl_order_record(pl_executor *executor, int32_t index)
{
    pl_entry_state *entry = &executor->running->entry[index];
    pl_stream stream = (pl_stream)entry_at(executor, index)->stream;
    pl_device *device = executor->device;
    if (stream == PL_STREAM_HOST) return device->functions->synchronize(device, stream);
    entry->event = executor->events++;
    return device->functions->record(device, stream, (int32_t)(entry->event % PL_DEVICE_EVENTS));
}

/* --- collectives under way --- */

static void forget_pending(pl_executor *executor, size_t number)
{
    pl_pending *pending = &executor->pending[number];
    const pl_entry *entry = entry_at(executor, pending->entry);
    const pl_use *uses = executor->running->section->uses + entry->use_first;
    for (uint32_t i = 0; i < entry->use_count; ++i)
        --executor->running->live[uses[i].buffer]->in_flight;
    pl_free(pending->kept);
    --executor->pending_count;
    memmove(pending, pending + 1, (executor->pending_count - number) * sizeof *pending);
}

pl_status pl_order_complete(pl_executor *executor, size_t number)
{
    int32_t index = executor->pending[number].entry;
    pl_status status =
        pl_process_group_wait(executor->pending[number].group, executor->pending[number].request);
    forget_pending(executor, number);
    if (status == PL_OK) status = pl_executor_retire(executor, index);
    if (status != PL_OK) pl_entry_context(executor, index);
    return status;
}

pl_status pl_order_complete_all(pl_executor *executor)
{
    while (executor->pending_count > 0) PL_TRY(pl_order_complete(executor, 0));
    return PL_OK;
}

pl_status pl_order_settle(pl_executor *executor)
{
    pl_device *device = executor->device;
    PL_TRY(pl_order_complete_all(executor));
    for (int i = 0; i < PL_STREAM_COUNT; ++i)
        PL_TRY(device->functions->synchronize(device, (pl_stream)i));
    for (int i = 0; i < PL_STREAM_COUNT; ++i)
        for (int j = 0; j < PL_STREAM_COUNT; ++j)
            merge(executor, (pl_stream)i, &executor->clock[j]);
    pl_arena_forget(&executor->memory);
    pl_arena_forget(&executor->host);
    return PL_OK;
}

void pl_order_abandon(pl_executor *executor)
{
    char words[4096];
    snprintf(words, sizeof words, "%s", pl_error_text());
    while (executor->pending_count > 0) {
        pl_pending *pending = &executor->pending[0];
        (void)!pl_process_group_wait(pending->group, pending->request);
        forget_pending(executor, 0);
    }
    for (int i = 0; i < PL_STREAM_COUNT; ++i)
        (void)!executor->device->functions->synchronize(executor->device, (pl_stream)i);
    pl_error_set(words);
}
