/* One rank by itself: the executor of a world of one over the CPU backend, with data and values
 * that any test may use. For suites that look inside, or put their own device or callbacks in.
 */
#ifndef PL_TESTS_TRAIN_LONE_RANK_H
#define PL_TESTS_TRAIN_LONE_RANK_H

#include "kernels/cpu/cpu.h"
#include "tests/common/plan_cases.h"
#include "train/executor.h"
#include "train/value_source.h"

typedef struct lone_rank {
    pl_value_source values;
    pl_plan plan;
    pl_process_group *world;
    pl_backend *backend;
    pl_device *device;
    pl_executor *executor;
    pl_executor_outside outside;           /* its context is this */
    pl_device *(*wrap)(pl_device *device); /* what the executor gets instead; NULL: the device */
    void *context;                         /* of the test */
} lone_rank;

/* Tokens that depend on the place and the data index alone; every fifth label is not valid. */
static inline void lone_batch(const pl_shape *shape, int64_t data_index, int64_t data_ranks,
                              int64_t vocabulary, int32_t *batch)
{
    int64_t tokens = shape->micro_batch * shape->sequence;
    for (int64_t i = 0; i < shape->rounds * shape->intra_layer; ++i) {
        for (int64_t t = 0; t < tokens; ++t) {
            uint32_t x = (uint32_t)(((i * data_ranks + data_index) * tokens + t + 1) * 2654435761);
            batch[2 * i * tokens + t] = (int32_t)((x >> 7) % (uint32_t)vocabulary);
            batch[(2 * i + 1) * tokens + t] =
                x % 5 == 0 ? -1 : (int32_t)((x >> 11) % (uint32_t)vocabulary);
        }
    }
}

static inline pl_status lone_load(void *context, const pl_shape *shape, int64_t data_index,
                                  int64_t data_ranks, int32_t *batch)
{
    const lone_rank *lone = context;
    lone_batch(shape, data_index, data_ranks, lone->plan.model.vocab_size, batch);
    return PL_OK;
}

static inline pl_status lone_values(void *context, const pl_tensor *tensor, int64_t row_begin,
                                    int64_t row_end, pl_dtype dtype, void *out)
{
    lone_rank *lone = context;
    return pl_value_source_initial(&lone->values, tensor, row_begin, row_end, dtype, out);
}

/* Open what the plan needs; the plan is lone->plan. */
static inline pl_status lone_open(lone_rank *lone)
{
    lone->values = (pl_value_source){5, 0.3};
    PL_TRY(pl_group_self_open(&lone->world));
    PL_TRY(pl_backend_cpu_open(&lone->backend, 1));
    PL_TRY(lone->backend->functions->open_device(lone->backend, &lone->device, 0, 0));
    if (!lone->outside.load_batch) lone->outside.load_batch = lone_load;
    if (!lone->outside.initial_values) lone->outside.initial_values = lone_values;
    lone->outside.context = lone;
    pl_executor_options options = {.plan = &lone->plan,
                                   .world = lone->world,
                                   .device = lone->wrap ? lone->wrap(lone->device) : lone->device,
                                   .outside = lone->outside};
    return pl_executor_open(&lone->executor, &options);
}

static inline void lone_close(lone_rank *lone)
{
    pl_executor_close(lone->executor);
    if (lone->device) lone->device->functions->close(lone->device);
    if (lone->backend) lone->backend->functions->close(lone->backend);
    pl_process_group_close(lone->world);
    pl_plan_free(&lone->plan);
}

static inline pl_program_input lone_input(void)
{
    return (pl_program_input){.learning_rate = 1e-2,
                              .weight_decay = 0.1,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .epsilon = 1e-8,
                              .update = 1};
}

static inline pl_status lone_run(lone_rank *lone, pl_program program, pl_program_result *result)
{
    pl_program_input input = lone_input();
    return pl_executor_run(lone->executor, program, &input, result);
}

/* The plan of PROGRAMS for model NAME of plan_cases.h, fp32, in LAYOUT. */
static inline pl_status lone_plan(pl_plan *out, const char *name, const char *layout,
                                  uint32_t programs, pl_policy policy, pl_shape shape)
{
    pl_model model;
    plan_case c = {.name = name,
                   .model = name,
                   .layout = layout,
                   .policy = policy,
                   .balance = PL_BALANCE_MICRO_STEP};
    pl_plan_request request;
    PL_TRY(plan_case_model(&model, name));
    pl_status status = plan_case_request(&request, &c, &model);
    request.programs = programs;
    request.settings.shape = shape;
    if (status == PL_OK) status = pl_plan_build(out, &request);
    pl_model_free(&model);
    return status;
}

#endif
