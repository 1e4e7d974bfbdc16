/* The executor on small models: what is held when, bits that depend on nothing but the layout, the
 * programs besides the step.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/memory.h"
#include "tests/common/plan_cases.h"
#include "tests/test.h"
#include "tests/train/lone_rank.h"
#include "tests/train/trial.h"
#include "train/executor_state.h"

static void sample(const void *context, int64_t step, int64_t number, int64_t sequence,
                   int32_t *tokens, int32_t *labels)
{
    const pl_model *model = context;
    uint32_t draw = (uint32_t)(number * 7919 + step * 104729 + 17);
    for (int64_t t = 0; t < sequence; ++t) {
        draw = draw * 1664525U + 1013904223U;
        tokens[t] = (int32_t)((draw >> 8) % (uint32_t)model->vocab_size);
        labels[t] = (draw >> 5) % 8 < (uint32_t)number % 8
                        ? -1
                        : (tokens[t] * 5 + 1) % (int32_t)model->vocab_size;
    }
}

static trial make_trial(const pl_model *model, const char *layout)
{
    trial t = {.model = model, .layout = layout, .sample = sample, .context = model};
    t.settings = trial_settings(9, 1, 2, 2);
    t.settings.balance = PL_BALANCE_MICRO_STEP;
    t.settings.balance_coefficient = 0.1;
    t.steps = 2;
    t.seed = 4;
    t.workers = 2;
    t.timeout = 30;
    t.input = lone_input();
    return t;
}

static trial_result run(const trial *t)
{
    trial_result result = trial_run(t);
    if (result.status != PL_OK) fail_msg("%s: %s", t->layout, result.words);
    assert_int_equal(result.disagreements, 0);
    assert_int_equal(result.unseen, 0);
    return result;
}

/* --- memory --- */

enum { RANKS = 8 };

typedef struct watched {
    int64_t compared[RANKS], wrong[RANKS];
    char words[256]; /* of the first that was wrong */
} watched;

/* What lives before entry INDEX, by the section's own words. */
static void sum_of_live(pl_executor *executor, const pl_section *section, int64_t index,
                        int64_t *sum)
{
    bool *alive = calloc(section->buffer_count, sizeof *alive);
    for (size_t i = 0; i < section->buffer_count; ++i) alive[i] = section->buffers[i].resident;
    for (int64_t e = 0; e < index; ++e) {
        const pl_entry *entry = &section->entries[e];
        const pl_use *uses = section->uses + entry->use_first;
        for (uint32_t i = 0; i < entry->use_count; ++i) {
            if (uses[i].flags & PL_USE_BEGIN) alive[uses[i].buffer] = true;
            if (uses[i].flags & PL_USE_END) alive[uses[i].buffer] = false;
        }
    }
    for (size_t i = 0; i < section->buffer_count; ++i) {
        const pl_buffer *buffer = &section->buffers[i];
        int64_t bytes = buffer->bytes;
        if (!alive[i]) continue;
        /* Sizes that routing decided are the executor's to know; whole rows they must be. */
        if (buffer->per_row) {
            bytes = pl_executor_buffer_bytes(executor, section, (uint32_t)i);
            if (bytes < 0 || bytes % buffer->bytes != 0) bytes = -1000000;
        }
        sum[buffer->class_] += bytes;
    }
    free(alive);
}

static pl_status watch_memory(void *context, int64_t rank, int64_t step, pl_executor *executor,
                              const pl_section *section, int64_t index)
{
    watched *w = context;
    int64_t sum[PL_BUFFER_CLASS_COUNT] = {0};
    (void)step;
    /* What collectives under way end is let go when they are done. */
    PL_TRY(pl_order_complete_all(executor));
    pl_memory_use use = pl_executor_memory(executor);
    sum_of_live(executor, section, index, sum);
    for (int i = 0; i < PL_BUFFER_CLASS_COUNT; ++i) {
        ++w->compared[rank];
        if (use.now[i] == sum[i]) continue;
        if (w->wrong[rank]++ == 0 && rank == 0)
            snprintf(w->words, sizeof w->words, "entry %d, class %s: %lld bytes, not %lld",
                     (int)index, pl_buffer_class_name((pl_buffer_class)i), (long long)use.now[i],
                     (long long)sum[i]);
    }
    return PL_OK;
}

/* Padded fp32 rows of every tensor, with two moments. */
static int64_t resident_bytes(const pl_model *model, const char *notation)
{
    pl_layout layout;
    int64_t bytes = 0;
    assert_ok(pl_layout_parse(&layout, notation));
    for (int64_t i = 0; i < model->tensor_count; ++i)
        bytes +=
            pl_placement_padded_rows(&layout, &model->tensors[i]) * model->tensors[i].cols * 12;
    return bytes;
}

static void memory_by_class_is_what_the_plan_says_at_every_entry(void **state)
{
    (void)state;
    static const char *const layouts[] = {"single:world=1", "legacy:world=8,ep=4",
                                          "decoupled:world=8,ep=2,replicas=2"};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; ++i) {
        pl_model model;
        watched w = {.words = ""};
        assert_ok(plan_case_model(&model, "mixed"));
        trial t = make_trial(&model, layouts[i]);
        t.settings.policy.recompute = i == 1 ? PL_RECOMPUTE_FULL : PL_RECOMPUTE_NONE;
        t.settings.policy.prefetch = PL_PREFETCH_NEXT_UNIT;
        t.watch = watch_memory;
        t.watch_context = &w;
        trial_result r = run(&t);
        for (int64_t rank = 0; rank < r.world; ++rank) {
            const pl_memory_use *use = &r.memory[rank];
            if (w.wrong[rank]) fail_msg("%s: %s", layouts[i], w.words);
            assert_true(w.compared[rank] > 1000);
            for (int c = 0; c < PL_BUFFER_CLASS_COUNT; ++c)
                assert_int_equal(use->now[c],
                                 c == PL_BUFFER_SHARD ? resident_bytes(&model, layouts[i]) : 0);
            assert_true(use->peak_total >=
                        use->peak[PL_BUFFER_SHARD] + use->peak[PL_BUFFER_GRADIENT]);
            assert_true(use->peak_workspace > 0);
        }
        trial_free(&r);
        pl_model_free(&model);
    }
}

/* --- bits --- */

static int64_t different_weights(const pl_model *model, const trial_result *a,
                                 const trial_result *b)
{
    int64_t count = 0;
    for (int64_t i = 0; i < model->tensor_count; ++i)
        count += memcmp(a->weight[i], b->weight[i],
                        (size_t)pl_tensor_elements(&model->tensors[i]) * sizeof(float)) != 0;
    return count;
}

static void random_orders_leave_every_bit(void **state)
{
    (void)state;
    static const struct {
        const char *layout;
        pl_policy policy;
    } cases[] = {
        {"legacy:world=8,ep=4", {.prefetch = PL_PREFETCH_NEXT_UNIT}},
        {"decoupled:world=8,ep=2,replicas=2", {.recompute = PL_RECOMPUTE_FULL}},
        {"folded:world=4,ep=4",
         {.dispatch = PL_DISPATCH_ALL_GATHER, .reshard = PL_RESHARD_PER_CALL}},
        {"single:world=1", {.accumulate = PL_ACCUMULATE_UNSHARDED}},
    };
    int seeds = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        pl_model model;
        assert_ok(plan_case_model(&model, "mixed"));
        trial t = make_trial(&model, cases[i].layout);
        t.settings.policy = cases[i].policy;
        trial_result in_order = run(&t);
        t.order = PL_ORDER_RANDOM;
        for (int s = 0; s < 6; ++s, ++seeds) {
            t.order_seed = (uint64_t)(1000 * s + 77);
            trial_result r = run(&t);
            assert_int_equal(different_weights(&model, &in_order, &r), 0);
            for (int step = 0; step < 2; ++step) {
                assert_true(r.steps[step].loss_sum == in_order.steps[step].loss_sum);
                assert_true(r.steps[step].balance_loss == in_order.steps[step].balance_loss);
                assert_true(r.steps[step].norm == in_order.steps[step].norm);
            }
            trial_free(&r);
        }
        trial_free(&in_order);
        pl_model_free(&model);
    }
    assert_true(seeds >= 20);
}

static void workers_and_repetition_leave_every_bit(void **state)
{
    (void)state;
    pl_model model;
    assert_ok(plan_case_model(&model, "moe-tied"));
    trial t = make_trial(&model, "legacy:world=8,ep=4");
    trial_result two = run(&t), again = run(&t);
    t.workers = 1;
    trial_result one = run(&t);
    assert_int_equal(different_weights(&model, &two, &again), 0);
    assert_int_equal(different_weights(&model, &two, &one), 0);
    t.seed = 5; /* ... and the comparison sees other weights */
    trial_result other = run(&t);
    assert_true(different_weights(&model, &two, &other) > 0);
    trial_free(&two);
    trial_free(&again);
    trial_free(&one);
    trial_free(&other);
    pl_model_free(&model);
}

/* --- programs --- */

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
        cmocka_unit_test(memory_by_class_is_what_the_plan_says_at_every_entry),
        cmocka_unit_test(random_orders_leave_every_bit),
        cmocka_unit_test(workers_and_repetition_leave_every_bit),
        cmocka_unit_test(evaluation_sees_the_loss_of_the_step),
        cmocka_unit_test(generation_hands_out_logits_of_the_position_asked_for),
        cmocka_unit_test(export_hands_out_every_row_as_it_is_held),
        cmocka_unit_test(losses_of_tokens_come_to_the_loss),
        cmocka_unit_test(without_valid_labels_nothing_is_updated),
    };
    return cmocka_run_group_tests_name("train/executor", tests, NULL, NULL);
}
