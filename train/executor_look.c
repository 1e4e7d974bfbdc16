/* Looking at what an executor holds. */
#include <inttypes.h>
#include <string.h>

#include "train/executor_state.h"

/* The buffer while it lives; NULL when it does not, or is none of SECTION's. */
static pl_live *find(const pl_executor *executor, const pl_section *section, uint32_t buffer)
{
    const pl_section_state *state = &executor->program[section->program];
    if (state->section != section || buffer >= section->buffer_count) return NULL;
    return state->live[buffer]->alive ? state->live[buffer] : NULL;
}

static pl_status complete_users(pl_executor *executor, const pl_live *live)
{
    for (size_t i = 0; live->in_flight > 0 && i < executor->pending_count;) {
        const pl_section *section = executor->running->section;
        const pl_entry *entry = &section->entries[executor->pending[i].entry];
        const pl_use *uses = section->uses + entry->use_first;
        bool user = false;
        for (uint32_t j = 0; j < entry->use_count; ++j)
            user |= executor->running->live[uses[j].buffer] == live;
        if (user)
            PL_TRY(pl_order_complete(executor, i));
        else
            ++i;
    }
    return PL_OK;
}

pl_status pl_executor_read(pl_executor *executor, const pl_section *section, uint32_t buffer,
                           void *out, int64_t bytes)
{
    pl_device *device = executor->device;
    const pl_call_log *log = device->log;
    pl_live *live = find(executor, section, buffer);
    if (!live)
        return PL_FAIL(PL_BAD_INPUT, "buffer %" PRIu32 " of program %s does not live", buffer,
                       pl_program_name(section->program));
    PL_TRY(complete_users(executor, live));
    if (live->bytes != bytes)
        return PL_FAIL(PL_BAD_INPUT,
                       "buffer %" PRIu32 " of program %s has %" PRId64 " bytes, not %" PRId64,
                       buffer, pl_program_name(section->program), live->bytes, bytes);
    if (bytes == 0) return PL_OK;
    for (int i = 0; i < PL_STREAM_COUNT; ++i)
        PL_TRY(device->functions->synchronize(device, (pl_stream)i));
    if (live->host) {
        memcpy(out, live->memory, (size_t)bytes);
        return PL_OK;
    }
    device->log = NULL; /* no entry asked for it */
    pl_status status =
        device->functions->copy(device, PL_STREAM_COPY, out, live->memory, bytes, PL_COPY_TO_HOST);
    device->log = log;
    PL_TRY(status);
    return device->functions->synchronize(device, PL_STREAM_COPY);
}

int64_t pl_executor_buffer_bytes(const pl_executor *executor, const pl_section *section,
                                 uint32_t buffer)
{
    const pl_live *live = find(executor, section, buffer);
    return live ? live->bytes : -1;
}

const void *pl_executor_buffer_address(const pl_executor *executor, const pl_section *section,
                                       uint32_t buffer)
{
    const pl_live *live = find(executor, section, buffer);
    return live ? live->memory : NULL;
}

bool pl_executor_tensor_place(const pl_executor *executor, pl_buffer_kind kind, int64_t tensor,
                              pl_tensor_place *out)
{
    pl_map_place place;
    if (tensor < 0 || tensor >= executor->plan->model.tensor_count) return false;
    if (!pl_part_map_place(&executor->map, kind, tensor, &place)) return false;
    *out = (pl_tensor_place){place.offset, place.begin, place.end, place.dtype};
    return true;
}

pl_memory_use pl_executor_memory(const pl_executor *executor) { return executor->use; }
