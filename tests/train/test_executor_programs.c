/* The programs besides the step, and steps of which little is wanted. */
#include <math.h>
#include <stdlib.h>

#include "tests/test.h"
#include "tests/train/lone_rank.h"

static const pl_shape small_shape = {8, 2, 1, 1};

static pl_status keep_logits(void *context, const float *logits, int64_t vocabulary)
{
    lone_rank *lone = context;
    memcpy(lone->context, logits, (size_t)vocabulary * sizeof *logits);
    return PL_OK;
}

static void evaluation_sees_the_loss_of_the_step(void **state)
{
    (void)state;
    lone_rank lone = {.context = NULL};
    pl_program_result evaluated, again, step, after;
    assert_ok(lone_plan(&lone.plan, "mixed", "single:world=1",
                        PL_PROGRAMS_START | PL_PROGRAMS_STEP | PL_PROGRAMS_EVALUATE, (pl_policy){0},
                        small_shape));
    assert_ok(lone_open(&lone));
    assert_ok(lone_run(&lone, PL_PROGRAM_START, &after));
    assert_ok(lone_run(&lone, PL_PROGRAM_EVALUATE, &evaluated));
    assert_ok(lone_run(&lone, PL_PROGRAM_EVALUATE, &again));
    assert_ok(lone_run(&lone, PL_PROGRAM_STEP, &step));
    assert_ok(lone_run(&lone, PL_PROGRAM_EVALUATE, &after));
    assert_true(evaluated.loss_sum > 0);
    assert_true(evaluated.loss_sum == again.loss_sum);
    assert_true(evaluated.loss_sum == step.loss_sum);
    assert_int_equal(evaluated.tokens, step.tokens);
    assert_true(step.tokens > 0 && step.tokens < 16);
    assert_true(step.balance_loss > 0 && evaluated.balance_loss == 0);
    assert_true(step.updated && !evaluated.updated);
    assert_true(after.loss_sum < evaluated.loss_sum);
    lone_close(&lone);
}

static void generation_hands_out_logits_of_the_position_asked_for(void **state)
{
    (void)state;
    float logits[2][11];
    lone_rank lone = {.outside = {.sample = keep_logits}};
    pl_program_result result;
    pl_program_input input = lone_input();
    assert_ok(lone_plan(&lone.plan, "moe-tied", "single:world=1",
                        PL_PROGRAMS_START | PL_PROGRAMS_GENERATE, (pl_policy){0},
                        (pl_shape){8, 1, 1, 1}));
    assert_ok(lone_open(&lone));
    assert_ok(lone_run(&lone, PL_PROGRAM_START, &result));
    for (int i = 0; i < 2; ++i) {
        lone.context = logits[i];
        input.position = i == 0 ? 2 : 7;
        assert_ok(pl_executor_run(lone.executor, PL_PROGRAM_GENERATE, &input, &result));
        for (int v = 0; v < 11; ++v) assert_true(isfinite(logits[i][v]));
    }
    assert_true(memcmp(logits[0], logits[1], sizeof logits[0]) != 0);
    input.position = 8;
    assert_fails(PL_BAD_INPUT, pl_executor_run(lone.executor, PL_PROGRAM_GENERATE, &input, &result),
                 "position 8", "0 to 7", "logits head");
    assert_fails(PL_INTERNAL, lone_run(&lone, PL_PROGRAM_START, &result), "failed before");
    lone_close(&lone);
}

typedef struct written {
    float *values[64];
    int64_t rows[64], tensors;
} written;

static pl_status keep_values(void *context, const pl_tensor *tensor, int64_t row_begin,
                             int64_t row_end, pl_dtype dtype, const void *values)
{
    lone_rank *lone = context;
    written *w = lone->context;
    int64_t number = tensor - lone->plan.model.tensors;
    if (dtype != PL_FP32) return PL_FAIL(PL_INTERNAL, "trained tensors are handed out in fp32");
    memcpy(w->values[number] + row_begin * tensor->cols, values,
           (size_t)((row_end - row_begin) * tensor->cols) * sizeof(float));
    w->rows[number] += row_end - row_begin;
    return PL_OK;
}

static void export_hands_out_every_row_as_it_is_held(void **state)
{
    (void)state;
    written w = {.tensors = 0};
    lone_rank lone = {.outside = {.write_values = keep_values}, .context = &w};
    pl_program_result result;
    assert_ok(lone_plan(&lone.plan, "mixed", "single:world=1",
                        PL_PROGRAMS_START | PL_PROGRAMS_EXPORT, (pl_policy){0}, small_shape));
    const pl_model *model = &lone.plan.model;
    for (int64_t i = 0; i < model->tensor_count; ++i)
        w.values[i] = calloc((size_t)pl_tensor_elements(&model->tensors[i]), sizeof(float));
    assert_ok(lone_open(&lone));
    assert_ok(lone_run(&lone, PL_PROGRAM_START, &result));
    assert_ok(lone_run(&lone, PL_PROGRAM_EXPORT, &result));
    for (int64_t i = 0; i < model->tensor_count; ++i) {
        const pl_tensor *tensor = &model->tensors[i];
        size_t count = (size_t)pl_tensor_elements(tensor);
        float *expected = malloc(count * sizeof *expected);
        assert_ok(pl_value_source_initial(&lone.values, tensor, 0, pl_tensor_total_rows(tensor),
                                          PL_FP32, expected));
        assert_int_equal(w.rows[i], pl_tensor_total_rows(tensor));
        assert_memory_equal(w.values[i], expected, count * sizeof *expected);
        free(expected);
    }
    for (int64_t i = 0; i < model->tensor_count; ++i) free(w.values[i]);
    lone_close(&lone);
}

static pl_status keep_losses(void *context, int64_t round, int64_t micro_batch, const float *losses,
                             int64_t count)
{
    lone_rank *lone = context;
    double *sum = lone->context;
    if (round != 0 || micro_batch != 0)
        return PL_FAIL(PL_INTERNAL, "one micro-batch was asked for");
    for (int64_t i = 0; i < count; ++i) *sum += (double)losses[i];
    return PL_OK;
}

static void losses_of_tokens_come_to_the_loss(void **state)
{
    (void)state;
    double sum = 0;
    lone_rank lone = {.outside = {.row_losses = keep_losses}, .context = &sum};
    pl_program_result result;
    assert_ok(lone_plan(&lone.plan, "dense", "single:world=1", 0, (pl_policy){0}, small_shape));
    assert_ok(lone_open(&lone));
    assert_ok(lone_run(&lone, PL_PROGRAM_START, &result));
    assert_ok(lone_run(&lone, PL_PROGRAM_STEP, &result));
    assert_true(result.loss_sum > 0);
    assert_true(fabs(sum - result.loss_sum) < 1e-5 * result.loss_sum);
    lone_close(&lone);
}

static pl_status no_labels(void *context, const pl_shape *shape, int64_t data_index,
                           int64_t data_ranks, int32_t *batch)
{
    int64_t count = shape->micro_batch * shape->sequence;
    PL_TRY(lone_load(context, shape, data_index, data_ranks, batch));
    for (int64_t i = 0; i < count; ++i) batch[count + i] = -1;
    return PL_OK;
}

static void without_valid_labels_nothing_is_updated(void **state)
{
    (void)state;
    lone_rank lone = {.outside = {.load_batch = no_labels}};
    pl_program_result first, second;
    assert_ok(lone_plan(&lone.plan, "moe", "single:world=1", 0, (pl_policy){0}, small_shape));
    assert_ok(lone_open(&lone));
    assert_ok(lone_run(&lone, PL_PROGRAM_START, &first));
    assert_ok(lone_run(&lone, PL_PROGRAM_STEP, &first));
    assert_ok(lone_run(&lone, PL_PROGRAM_STEP, &second));
    assert_int_equal(first.tokens, 0);
    assert_false(first.updated);
    assert_true(first.loss_sum == 0);
    assert_true(first.balance_loss == second.balance_loss);
    lone_close(&lone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluation_sees_the_loss_of_the_step),
        cmocka_unit_test(generation_hands_out_logits_of_the_position_asked_for),
        cmocka_unit_test(export_hands_out_every_row_as_it_is_held),
        cmocka_unit_test(losses_of_tokens_come_to_the_loss),
        cmocka_unit_test(without_valid_labels_nothing_is_updated),
    };
    return cmocka_run_group_tests_name("train/executor_programs", tests, NULL, NULL);
}
