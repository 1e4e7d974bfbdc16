/* Memory of buffers and of entries, and what it comes to by class. */
#include <inttypes.h>
#include <string.h>

#include "common/memory.h"
#include "train/executor_state.h"

static const pl_buffer *buffer_at(const pl_executor *executor, uint32_t buffer)
{
    return &executor->running->section->buffers[buffer];
}

pl_status pl_buffer_refuse(const pl_executor *executor, uint32_t buffer, const char *words)
{
    pl_text name = {0};
    pl_buffer_print(&name, buffer_at(executor, buffer));
    pl_status status = pl_text_status(&name);
    if (status == PL_OK)
        status = PL_FAIL(PL_BAD_INPUT, "buffer %s %s", pl_text_string(&name), words);
    pl_text_free(&name);
    return status;
}

void pl_binding_free(pl_binding *binding)
{
    if (!binding) return;
    pl_free(binding->sent);
    pl_free(binding);
}

/* --- lending --- */

/* The random order finds out who reads what nobody wrote: NaN in every element, odd integers. The
 * log is of what entries ask for, and this is not. */
static pl_status poison(pl_executor *executor, pl_stream stream, bool host, void *memory,
                        int64_t bytes)
{
    pl_device *device = executor->device;
    const pl_call_log *log = device->log;
    if (executor->order != PL_ORDER_RANDOM || bytes == 0) return PL_OK;
    if (host) {
        memset(memory, 0xFF, (size_t)bytes);
        return PL_OK;
    }
    device->log = NULL;
    pl_status status = device->functions->fill(device, stream, memory, 0xFF, bytes);
    device->log = log;
    return status;
}

static pl_status allocate(pl_executor *executor, bool host, int64_t bytes, pl_arena_grant *out)
{
    pl_arena *arena = host ? &executor->host : &executor->memory;
    pl_status status = pl_arena_allocate(arena, bytes, out);
    if (status != PL_NO_MEMORY) return status;
    /* What is under way may hold memory, and free memory may lie in pieces. */
    PL_TRY(pl_order_settle(executor));
    pl_arena_trim(arena);
    return pl_arena_allocate(arena, bytes, out);
}

/* Memory that entry INDEX may write. */
static pl_status lend(pl_executor *executor, int32_t index, bool host, int64_t bytes,
                      pl_arena_grant *out)
{
    pl_stream stream = (pl_stream)executor->running->section->entries[index].stream;
    PL_TRY(allocate(executor, host, bytes, out));
    pl_status status = pl_order_after_ticks(executor, stream, &out->after);
    if (status == PL_OK) status = poison(executor, stream, host, out->memory, bytes);
    if (status != PL_OK)
        pl_arena_free(host ? &executor->host : &executor->memory, out->block, &out->after);
    return status;
}

static void take_back(pl_executor *executor, int32_t index, bool host, void *memory, int64_t bytes,
                      int32_t block)
{
    pl_stream stream = (pl_stream)executor->running->section->entries[index].stream;
    pl_ticks after = {{0}};
    after.of[stream] = executor->running->entry[index].tick;
    /* Host memory may still be read by a copy under way. */
    if (!host || stream == PL_STREAM_HOST) (void)!poison(executor, stream, host, memory, bytes);
    pl_arena_free(host ? &executor->host : &executor->memory, block, &after);
}

pl_status pl_memory_lend(pl_executor *executor, int32_t index, bool host, int64_t bytes,
                         pl_arena_grant *out)
{
    PL_TRY(lend(executor, index, host, bytes, out));
    if (host) return PL_OK;
    executor->now_workspace += bytes;
    if (executor->now_workspace > executor->use.peak_workspace)
        executor->use.peak_workspace = executor->now_workspace;
    return PL_OK;
}

void pl_memory_take_back(pl_executor *executor, int32_t index, bool host, void *memory,
                         int64_t bytes, int32_t block)
{
    take_back(executor, index, host, memory, bytes, block);
    if (!host) executor->now_workspace -= bytes;
}

/* --- buffers --- */

static void account(pl_executor *executor, const pl_buffer *buffer, int64_t bytes)
{
    pl_memory_use *use = &executor->use;
    use->now[buffer->class_] += bytes;
    if (use->now[buffer->class_] > use->peak[buffer->class_])
        use->peak[buffer->class_] = use->now[buffer->class_];
    if (buffer->class_ == PL_BUFFER_HOST) return;
    executor->now_total += bytes;
    if (executor->now_total > use->peak_total) use->peak_total = executor->now_total;
}

/* Bytes that BUFFER is to have: known, or R rows of what bind fixed. */
static pl_status size_of(const pl_executor *executor, uint32_t number, int64_t *out)
{
    const pl_buffer *buffer = buffer_at(executor, number);
    int32_t rows = executor->running->rows_of[number];
    *out = buffer->bytes;
    if (!buffer->per_row) return PL_OK;
    const pl_binding *binding = rows < 0 ? NULL : executor->running->live[rows]->binding;
    if (!binding)
        return pl_buffer_refuse(executor, number,
                                "is begun before bind has fixed the rows that it is to hold");
    return pl_multiply(out, buffer->bytes, binding->rows, "bytes of a buffer");
}

static bool is_gradient(const pl_buffer *buffer)
{
    return buffer->kind == PL_BUF_GRADIENT_SUM || buffer->kind == PL_BUF_GRADIENT ||
           buffer->kind == PL_BUF_IGNORED_GRADIENT;
}

static pl_status make_gradient_marks(const pl_executor *executor, uint32_t number, pl_live *live)
{
    const pl_buffer *buffer = buffer_at(executor, number);
    if (!is_gradient(buffer)) return PL_OK;
    int32_t part = pl_part_map_part(&executor->map, (pl_subject)buffer->subject, buffer->layer);
    if (part < 0) return pl_buffer_refuse(executor, number, "is of a part that the model lacks");
    return pl_allocate(&live->gradients, (size_t)executor->map.parts.part[part].tensor_count, 1,
                       "marks of gradients");
}

pl_status pl_buffer_begin(pl_executor *executor, int32_t index, uint32_t number)
{
    const pl_buffer *buffer = buffer_at(executor, number);
    pl_live *live = executor->running->live[number];
    pl_arena_grant grant;
    int64_t bytes = 0;
    if (live->alive) return pl_buffer_refuse(executor, number, "is begun while it lives");
    PL_TRY(size_of(executor, number, &bytes));
    live->host = buffer->class_ == PL_BUFFER_HOST;
    PL_TRY(make_gradient_marks(executor, number, live));
    pl_status status = lend(executor, index, live->host, bytes, &grant);
    if (status != PL_OK) {
        pl_free(live->gradients);
        live->gradients = NULL;
        return status;
    }
    live->memory = grant.memory;
    live->block = grant.block;
    live->bytes = bytes;
    live->alive = true;
    account(executor, buffer, bytes);
    return PL_OK;
}

/* --- buffers that stay --- */

static bool stays(const pl_executor *executor, const pl_live *live)
{
    return live->host && executor->keeps_saved &&
           executor->running->section->program == PL_PROGRAM_SAVE;
}

static pl_status keep(pl_executor *executor, const pl_live *live)
{
    PL_TRY(pl_grow(&executor->saved, &executor->saved_capacity, executor->saved_count + 1,
                   sizeof *executor->saved, "host buffers of a save"));
    executor->saved[executor->saved_count++] = (pl_saved){live->block, live->bytes};
    return PL_OK;
}

void pl_executor_release_saved(pl_executor *executor)
{
    static const pl_ticks none = {{0}};
    for (size_t i = 0; i < executor->saved_count; ++i) {
        pl_arena_free(&executor->host, executor->saved[i].block, &none);
        executor->use.now[PL_BUFFER_HOST] -= executor->saved[i].bytes;
    }
    executor->saved_count = 0;
}

/* --- the end of buffers --- */

static void forget(pl_executor *executor, const pl_buffer *buffer, pl_live *live)
{
    if (!stays(executor, live)) account(executor, buffer, -live->bytes);
    pl_free(live->gradients);
    pl_binding_free(live->binding);
    int32_t in_flight = live->in_flight;
    memset(live, 0, sizeof *live);
    live->in_flight = in_flight;
    live->block = PL_ARENA_NO_BLOCK;
}

pl_status pl_buffer_end(pl_executor *executor, int32_t index, uint32_t number)
{
    pl_live *live = executor->running->live[number];
    if (!live->alive) return pl_buffer_refuse(executor, number, "is ended where it does not live");
    if (stays(executor, live))
        PL_TRY(keep(executor, live));
    else
        take_back(executor, index, live->host, live->memory, live->bytes, live->block);
    forget(executor, buffer_at(executor, number), live);
    return PL_OK;
}

void pl_live_release(pl_executor *executor, const pl_buffer *buffer, pl_live *live)
{
    static const pl_ticks none = {{0}};
    if (!live->alive) return;
    if (stays(executor, live))
        (void)!keep(executor, live); /* if it cannot be noted, it stays until the end */
    else
        pl_arena_free(live->host ? &executor->host : &executor->memory, live->block, &none);
    forget(executor, buffer, live);
}
