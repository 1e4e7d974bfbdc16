#include "train/executor.h"

#include <inttypes.h>
#include <string.h>

#include "common/memory.h"
#include "train/executor_state.h"
#include "train/rotary.h"

void pl_entry_context(const pl_executor *executor, int32_t index)
{
    const pl_section *section = executor->running->section;
    pl_text name = {0};
    pl_entry_name_print(&name, &section->entries[index].name);
    pl_error_context("rank %" PRId64 ", program %s, entry %" PRIu32 ": %s", executor->rank,
                     pl_program_name(section->program), section->entries[index].label,
                     pl_text_string(&name));
    pl_text_free(&name);
}

/* --- opening --- */

static pl_status allocate_device(void *context, void **out, int64_t bytes)
{
    pl_device *device = context;
    return device->functions->allocate(device, out, bytes, "buffers of a plan");
}

static void release_device(void *context, void *memory)
{
    pl_device *device = context;
    device->functions->release(device, memory);
}

static pl_status allocate_host(void *context, void **out, int64_t bytes)
{
    pl_device *device = context;
    return device->functions->allocate_host(device, out, bytes, "host buffers of a plan");
}

static void release_host(void *context, void *memory)
{
    pl_device *device = context;
    device->functions->release_host(device, memory);
}

/* Whether the device computes with the plan's type: an operation on nothing is refused if not. */
static pl_status check_type(pl_executor *executor)
{
    pl_device *device = executor->device;
    const pl_call_log *log = device->log;
    pl_sum_arguments nothing = {.dtype = executor->sizes.dtype};
    device->log = NULL;
    device->entry = pl_entry_name_make(PL_OP_MERGE, PL_SUBJECT_PARAMETERS);
    pl_status status = device->operations->sum
                           ? device->operations->sum(device, PL_STREAM_COMPUTE, &nothing)
                           : PL_OK;
    device->log = log;
    if (status != PL_OK)
        pl_error_context("the plan computes in %s", pl_dtype_name(executor->sizes.dtype));
    return status;
}

/* Groups of one rank are never asked: what they would do is a copy. */
static pl_status open_groups(pl_executor *executor)
{
    const pl_layout *layout = &executor->plan->layout;
    for (int i = 0; i < PL_PROGRAM_COUNT; ++i) {
        const pl_section *section = executor->program[i].section;
        for (size_t j = 0; section && j < section->entry_count; ++j) {
            pl_group_role role = (pl_group_role)section->entries[j].group;
            if (role == PL_GROUP_NONE || executor->group[role]) continue;
            if (section->entries[j].name.operation == PL_OP_LOAD_BATCH) continue;
            pl_rank_set members = pl_layout_group(layout, role, executor->rank);
            if (pl_rank_set_size(&members) == 1) continue;
            if (role == PL_GROUP_WORLD)
                executor->group[role] = executor->world;
            else
                PL_TRY(pl_process_group_split(executor->world, role, &members,
                                              &executor->group[role]));
        }
    }
    return PL_OK;
}

static pl_status make_rotary(pl_executor *executor)
{
    pl_device *device = executor->device;
    const pl_model *model = &executor->plan->model;
    int64_t count = 0, bytes = 0;
    void *table = NULL, *on_device = NULL;
    PL_TRY(pl_multiply(&count, executor->sizes.sequence, model->head_dim, "rotary table"));
    PL_TRY(pl_multiply(&bytes, count, 4, "rotary table"));
    PL_TRY(device->functions->allocate(device, &on_device, bytes, "rotary table"));
    executor->rotary = on_device;
    PL_TRY(device->functions->allocate_host(device, &table, bytes, "rotary table"));
    pl_rotary_table(table, model, executor->sizes.sequence);
    pl_status status =
        device->functions->copy(device, PL_STREAM_COPY, on_device, table, bytes, PL_COPY_TO_DEVICE);
    if (status == PL_OK) status = device->functions->synchronize(device, PL_STREAM_COPY);
    device->functions->release_host(device, table);
    return status;
}

static pl_status check_options(const pl_executor_options *options)
{
    int64_t world = options->plan->layout.world;
    if (options->world->size == world) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT, "the plan is for a world of %" PRId64 " ranks, there are %" PRId64,
                   world, options->world->size);
}

static pl_status open_executor(pl_executor *executor)
{
    const pl_plan *plan = executor->plan;
    pl_device *device = executor->device;
    void *staging = NULL;
    PL_TRY(pl_sizes_make(&executor->sizes, plan, executor->rank));
    PL_TRY(check_type(executor));
    PL_TRY(pl_part_map_make(&executor->map, &plan->model, &plan->layout, &plan->settings.precision,
                            executor->rank));
    PL_TRY(pl_sections_open(executor));
    PL_TRY(device->functions->allocate_host(device, &staging, PL_STAGING, "small numbers"));
    executor->staging = staging;
    PL_TRY(make_rotary(executor));
    return open_groups(executor);
}

pl_status pl_executor_open(pl_executor **out, const pl_executor_options *options)
{
    pl_executor *executor = NULL;
    PL_TRY(check_options(options));
    PL_TRY(pl_allocate(&executor, 1, sizeof *executor, "an executor"));
    executor->plan = options->plan;
    executor->world = options->world;
    executor->device = options->device;
    executor->outside = options->outside;
    executor->order = options->order;
    executor->order_seed = options->order_seed;
    executor->keeps_saved = options->keeps_saved;
    executor->rank = options->world->rank;
    executor->memory.source = (pl_arena_source){options->device, allocate_device, release_device};
    executor->host.source = (pl_arena_source){options->device, allocate_host, release_host};
    pl_status status = open_executor(executor);
    if (status == PL_OK)
        *out = executor;
    else
        pl_executor_close(executor);
    return status;
}

void pl_executor_close(pl_executor *executor)
{
    if (!executor) return;
    pl_device *device = executor->device;
    for (int i = 0; i < PL_GROUP_ROLE_COUNT; ++i)
        if (executor->group[i] != executor->world) pl_process_group_close(executor->group[i]);
    pl_sections_close(executor);
    pl_arena_close(&executor->memory);
    pl_arena_close(&executor->host);
    if (executor->rotary) device->functions->release(device, executor->rotary);
    if (executor->staging) device->functions->release_host(device, executor->staging);
    pl_part_map_free(&executor->map);
    pl_free(executor->pending);
    pl_free(executor->saved);
    pl_free(executor);
}

/* --- running --- */

static void begin_run(pl_executor *executor, pl_program program, const pl_program_input *input)
{
    pl_section_state *state = &executor->program[program];
    executor->running = state;
    executor->tick = executor->events = 0;
    memset(executor->clock, 0, sizeof executor->clock);
    memset(state->entry, 0, state->section->entry_count * sizeof *state->entry);
    executor->input = *input;
    executor->result = (pl_program_result){0};
}

static pl_status run_in_order(pl_executor *executor)
{
    size_t count = executor->running->section->entry_count;
    for (size_t i = 0; i < count; ++i) PL_TRY(pl_executor_issue(executor, (int32_t)i));
    return PL_OK;
}

/* A plan that was edited may leave buffers behind. */
static void release_left_over(pl_executor *executor)
{
    const pl_section_state *state = executor->running;
    for (size_t i = 0; i < state->section->buffer_count; ++i)
        pl_live_release(executor, &state->section->buffers[i], &state->own[i]);
}

pl_status pl_executor_run(pl_executor *executor, pl_program program, const pl_program_input *input,
                          pl_program_result *result)
{
    if (executor->failed)
        return PL_FAIL(PL_INTERNAL,
                       "the executor of rank %" PRId64 " has failed before; it can only be closed",
                       executor->rank);
    if ((unsigned)program >= PL_PROGRAM_COUNT || !executor->program[program].section)
        return PL_FAIL(PL_BAD_INPUT, "the plan has no program %s for rank %" PRId64,
                       (unsigned)program < PL_PROGRAM_COUNT ? pl_program_name(program)
                                                            : "of that number",
                       executor->rank);
    begin_run(executor, program, input);
    pl_status status = executor->order == PL_ORDER_RANDOM ? pl_executor_run_random(executor)
                                                          : run_in_order(executor);
    if (status == PL_OK) status = pl_order_settle(executor);
    if (status != PL_OK) {
        executor->failed = true;
        pl_process_group_fail(executor->world, status, pl_error_text());
        pl_order_abandon(executor);
        return status;
    }
    release_left_over(executor);
    *result = executor->result;
    return PL_OK;
}
