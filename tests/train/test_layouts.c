/* The same training in every layout: 1 rank against 8.
 *
 * The model has a dense layer among MoE layers, rows that no shard group divides evenly, and (by
 * its initial values) one expert in its first MoE layer that no token chooses. Valid labels differ
 * by sample; the samples of data rank 3 have none at all.
 */
#include "tests/test.h"
#include "tests/train/edits.h"
#include "tests/train/trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/initial_values.h"
#include "common/placement.h"

enum { SEQUENCE = 20, ROUNDS = 2, IDLE_LAYER = 1, IDLE_EXPERT = 5 };

static const char *const layouts[] = {
    "legacy:world=8",
    "legacy:world=8,ep=2",
    "legacy:world=8,ep=4",
    "legacy:world=8,ep=8",
    "legacy:world=8,replicas=2",
    "decoupled:world=8,ep=4",
    "decoupled:world=8,ep=4,replicas=2",
    "decoupled:world=8,ep=8",
    "folded:world=8,ep=4",
    "folded:world=8,ep=8",
    "single:world=8,ep=4",
    "decoupled:world=8,ep=2,grain=expert",
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352dU;
    x ^= x >> 15;
    x *= 0x846ca68bU;
    return x ^ (x >> 16);
}

/* Tokens with some structure to learn; labels valid more or less often by sample. */
static void sample(const void *context, int64_t step, int64_t number, int64_t sequence,
                   int32_t *tokens, int32_t *labels)
{
    const pl_model *model = context;
    uint32_t key = (uint32_t)(step * 977 + number * 31 + 7);
    int32_t vocabulary = (int32_t)model->vocab_size;
    int32_t token = (int32_t)(mix(key) % (uint32_t)vocabulary);
    for (int64_t t = 0; t < sequence; ++t) {
        uint32_t draw = mix(key + (uint32_t)(t + 1) * 2654435761U);
        int32_t next = draw % 4 == 0 ? (int32_t)((draw >> 8) % (uint32_t)vocabulary)
                                     : (token * 3 + 1) % vocabulary;
        bool valid = number % 8 != 3 && (draw >> 20) % 8 >= (uint32_t)(number % 8);
        tokens[t] = token;
        labels[t] = valid ? next : -1;
        token = next;
    }
}

/* Five times the usual spread, and a constant first column of the embedding that the router of the
 * first MoE layer answers with a strong no for one expert. */
static pl_status values(const void *context, const pl_tensor *tensor, int64_t row_begin,
                        int64_t row_end, float *out)
{
    const pl_model *model = context;
    PL_TRY(pl_initial_values(out, 3, tensor, 5 * model->initializer_range, row_begin, row_end));
    for (int64_t row = row_begin; row < row_end; ++row) {
        float *first = &out[(row - row_begin) * tensor->cols];
        if (tensor->role == PL_TENSOR_EMBEDDING) *first = 1.5F;
        if (tensor->role == PL_TENSOR_ROUTER && tensor->layer == IDLE_LAYER)
            *first = row == IDLE_EXPERT ? -4.0F : 0.5F;
    }
    return PL_OK;
}

static trial make_trial(const pl_model *model, const char *layout)
{
    bool alone = strcmp(layout, "single:world=1") == 0;
    trial t = {.model = model, .layout = layout, .sample = sample, .values = values};
    t.settings = trial_settings(SEQUENCE, alone ? 8 : 1, 1, ROUNDS);
    t.settings.balance = PL_BALANCE_MICRO_STEP;
    t.settings.balance_coefficient = 0.05;
    t.settings.clip = 1.0;
    t.context = model;
    t.steps = 1;
    t.input = (pl_program_input){
        .learning_rate = 2e-3, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8};
    t.workers = 2;
    return t;
}

typedef struct fixture {
    pl_model model;
    trial_result alone; /* 40 steps */
} fixture;

enum { STEPS = 40 };

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *state = f;
    assert_ok(pl_model_open(&f->model, "testdata/hf/qwen3-moe-dense-first"));
    trial t = make_trial(&f->model, "single:world=1");
    t.steps = STEPS;
    f->alone = trial_run(&t);
    if (f->alone.status != PL_OK) fail_msg("%s", f->alone.words);
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    trial_free(&f->alone);
    pl_model_free(&f->model);
    free(f);
    return 0;
}

/* The largest relative distance over all trained tensors, which NAME receives. */
static double farthest(const pl_model *model, float *const *a, float *const *b, pl_text *name)
{
    double most = 0;
    for (int64_t i = 0; i < model->tensor_count; ++i) {
        const pl_tensor *tensor = &model->tensors[i];
        double distance = trial_distance(a[i], b[i], pl_tensor_elements(tensor));
        if (!(distance <= most)) {
            most = distance;
            pl_text_clear(name);
            pl_tensor_name(name, tensor);
            if (isnan(distance)) break;
        }
    }
    return most;
}

static void assert_near(const pl_model *model, float *const *a, float *const *b, double limit,
                        const char *layout)
{
    pl_text name = {0};
    double distance = farthest(model, a, b, &name);
    if (!(distance <= limit))
        fail_msg("%s: %s is %g away, allowed %g", layout, pl_text_string(&name), distance, limit);
    pl_text_free(&name);
}

static bool near(double a, double b, double limit) { return fabs(a - b) <= limit * fabs(b); }

static void one_expert_of_the_first_moe_layer_is_idle(void **state)
{
    const fixture *f = *state;
    int found = 0;
    for (int64_t i = 0; i < f->model.tensor_count; ++i) {
        const pl_tensor *tensor = &f->model.tensors[i];
        if (tensor->role != PL_TENSOR_ROUTED || tensor->layer != IDLE_LAYER) continue;
        int64_t expert = tensor->rows * tensor->cols;
        const float *gradient = f->alone.gradient[i];
        double other = 0;
        for (int64_t j = 0; j < expert; ++j) assert_true(gradient[IDLE_EXPERT * expert + j] == 0);
        for (int64_t j = 0; j < pl_tensor_elements(tensor); ++j) other += fabs((double)gradient[j]);
        assert_true(other > 0);
        ++found;
    }
    assert_int_equal(found, 3);
    assert_int_equal(f->alone.unseen, 0);
}

static void first_step_gradients_norm_and_forty_losses_agree(void **state)
{
    const fixture *f = *state;
    for (int i = 0; i < LAYOUTS; ++i) {
        trial t = make_trial(&f->model, layouts[i]);
        t.steps = STEPS;
        trial_result r = trial_run(&t);
        if (r.status != PL_OK) fail_msg("%s: %s", layouts[i], r.words);
        if (r.disagreements || r.unseen)
            fail_msg("%s: %lld disagreements, %lld unseen", layouts[i], (long long)r.disagreements,
                     (long long)r.unseen);
        assert_near(&f->model, r.sum_gradient, f->alone.sum_gradient, 1e-5, layouts[i]);
        assert_near(&f->model, r.gradient, f->alone.gradient, 1e-5, layouts[i]);
        if (!near(r.steps[0].norm, f->alone.steps[0].norm, 1e-6))
            fail_msg("%s: norm %.9g, not %.9g", layouts[i], r.steps[0].norm,
                     f->alone.steps[0].norm);
        for (int s = 0; s < STEPS; ++s) {
            const pl_program_result *a = &r.steps[s], *b = &f->alone.steps[s];
            assert_int_equal(a->tokens, b->tokens);
            if (!near(a->loss_sum, b->loss_sum, 1e-4) ||
                !near(a->balance_loss, b->balance_loss, s == 0 ? 1e-5 : 1e-3))
                fail_msg("%s: step %d: loss %.9g, balance %.9g; alone %.9g, %.9g", layouts[i], s,
                         a->loss_sum, a->balance_loss, b->loss_sum, b->balance_loss);
        }
        trial_free(&r);
    }
    double first = f->alone.steps[0].loss_sum / (double)f->alone.steps[0].tokens;
    double last = f->alone.steps[STEPS - 1].loss_sum / (double)f->alone.steps[STEPS - 1].tokens;
    if (!(last < 0.95 * first)) fail_msg("the loss went from %g to %g", first, last);
}

static void every_form_of_the_balance_loss_agrees(void **state)
{
    const fixture *f = *state;
    static const pl_balance forms[] = {PL_BALANCE_MICRO_STEP, PL_BALANCE_SEQUENCE,
                                       PL_BALANCE_GLOBAL_BATCH};
    for (int form = 0; form < 3; ++form) {
        trial alone = make_trial(&f->model, "single:world=1");
        alone.settings.balance = forms[form];
        alone.settings.balance_coefficient = 10; /* so that it rules the gradients */
        trial_result expected = trial_run(&alone);
        if (expected.status != PL_OK) fail_msg("%s", expected.words);
        for (int i = 2; i < LAYOUTS; i += 3) {
            trial t = make_trial(&f->model, layouts[i]);
            t.settings.balance = forms[form];
            t.settings.balance_coefficient = 10;
            trial_result r = trial_run(&t);
            if (r.status != PL_OK) fail_msg("%s: %s", layouts[i], r.words);
            assert_near(&f->model, r.gradient, expected.gradient, 1e-5, layouts[i]);
            if (!near(r.steps[0].balance_loss, expected.steps[0].balance_loss, 1e-6))
                fail_msg("%s: balance loss %.9g, not %.9g", layouts[i], r.steps[0].balance_loss,
                         expected.steps[0].balance_loss);
            trial_free(&r);
        }
        trial_free(&expected);
    }
}

/* --- every policy --- */

static void assert_same_as_alone(const fixture *f, const trial *t, const char *what)
{
    trial_result r = trial_run(t);
    if (r.status != PL_OK) fail_msg("%s: %s", what, r.words);
    if (r.disagreements || r.unseen) fail_msg("%s: ranks disagree", what);
    assert_near(&f->model, r.gradient, f->alone.gradient, 1e-5, what);
    assert_true(near(r.steps[0].norm, f->alone.steps[0].norm, 1e-6));
    trial_free(&r);
}

static void every_policy_gives_the_same_gradients(void **state)
{
    const fixture *f = *state;
    for (int i = 2; i < LAYOUTS; i += 2) {
        for (int choice = 0; choice < 8; ++choice) {
            trial t = make_trial(&f->model, layouts[i]);
            pl_policy *policy = &t.settings.policy;
            if (choice == 0) policy->reshard = PL_RESHARD_NEVER;
            if (choice == 1) policy->reshard = PL_RESHARD_PER_CALL;
            if (choice == 2) policy->prefetch = PL_PREFETCH_NEXT_UNIT;
            if (choice == 3) policy->recompute = PL_RECOMPUTE_FULL;
            if (choice == 4) policy->accumulate = PL_ACCUMULATE_UNSHARDED;
            if (choice == 5) policy->dispatch = PL_DISPATCH_ALL_GATHER;
            if (choice == 6) t.order = PL_ORDER_RANDOM;
            if (choice == 7) {
                policy->dispatch = PL_DISPATCH_ALL_GATHER;
                policy->recompute = PL_RECOMPUTE_FULL;
                policy->reshard = PL_RESHARD_PER_CALL;
                policy->prefetch = PL_PREFETCH_NEXT_UNIT;
            }
            char what[128];
            snprintf(what, sizeof what, "%s, policy %d", layouts[i], choice);
            assert_same_as_alone(f, &t, what);
        }
    }
}

static void several_micro_batches_carried_together_give_the_same(void **state)
{
    const fixture *f = *state;
    /* Two micro-steps of one round instead of two rounds: the same samples in each. */
    for (int i = 2; i < LAYOUTS; i += 2) {
        trial t = make_trial(&f->model, layouts[i]);
        t.settings.shape.intra_layer = 2;
        t.settings.shape.rounds = 1;
        assert_same_as_alone(f, &t, layouts[i]);
        t.settings.policy.reshard = PL_RESHARD_PER_CALL;
        t.settings.policy.recompute = PL_RECOMPUTE_FULL;
        assert_same_as_alone(f, &t, layouts[i]);
    }
}

static void ignored_and_frozen_parameters_give_the_same(void **state)
{
    const fixture *f = *state;
    static const char *const whole[] = {"norm", "q_norm", "lm_head"};
    static const char *const frozen[] = {"model.embed_tokens.weight",
                                         "model.layers.2.mlp.experts.*"};
    for (int i = 1; i < LAYOUTS; i += 3) {
        trial t = make_trial(&f->model, layouts[i]);
        t.keep_fp32 = whole;
        t.keep_fp32_count = 3;
        assert_same_as_alone(f, &t, layouts[i]);
        t.frozen = frozen;
        t.frozen_count = 2;
        trial alone = make_trial(&f->model, "single:world=1");
        alone.frozen = frozen;
        alone.frozen_count = 2;
        trial_result a = trial_run(&t), b = trial_run(&alone);
        if (a.status != PL_OK) fail_msg("%s: %s", layouts[i], a.words);
        if (b.status != PL_OK) fail_msg("%s", b.words);
        for (int64_t j = 0; j < f->model.tensor_count; ++j) {
            const pl_tensor *tensor = &f->model.tensors[j];
            bool is_frozen = tensor->role == PL_TENSOR_EMBEDDING ||
                             (tensor->role == PL_TENSOR_ROUTED && tensor->layer == 2);
            int64_t count = pl_tensor_elements(tensor);
            if (is_frozen) continue;
            assert_true(trial_distance(a.gradient[j], b.gradient[j], count) <= 1e-5);
            assert_true(trial_distance(a.gradient[j], f->alone.gradient[j], count) <= 1e-5);
        }
        assert_true(near(a.steps[0].norm, b.steps[0].norm, 1e-6));
        assert_true(a.steps[0].norm < f->alone.steps[0].norm);
        trial_free(&a);
        trial_free(&b);
    }
}

static void forced_balanced_routing_agrees(void **state)
{
    const fixture *f = *state;
    trial alone = make_trial(&f->model, "single:world=1");
    alone.settings.policy.routing = PL_ROUTING_BALANCED;
    trial_result expected = trial_run(&alone);
    if (expected.status != PL_OK) fail_msg("%s", expected.words);
    for (int i = 3; i < LAYOUTS; i += 4) {
        trial t = make_trial(&f->model, layouts[i]);
        t.settings.policy.routing = PL_ROUTING_BALANCED;
        trial_result r = trial_run(&t);
        if (r.status != PL_OK) fail_msg("%s: %s", layouts[i], r.words);
        assert_near(&f->model, r.gradient, expected.gradient, 1e-5, layouts[i]);
        trial_free(&r);
    }
    trial_free(&expected);
}

/* --- what makes these tests fail --- */

static const char *drop_token_reduction(const char *text)
{
    return edit_drop(text, " all-reduce tokens ");
}

static const char *drop_balance_reduction(const char *text)
{
    return edit_drop(text, " all-reduce balance ");
}

static void local_token_counts_are_caught(void **state)
{
    const fixture *f = *state;
    trial t = make_trial(&f->model, "legacy:world=8,ep=4");
    pl_text name = {0};
    t.edit = drop_token_reduction;
    trial_result r = trial_run(&t);
    if (r.status != PL_OK) fail_msg("%s", r.words);
    assert_true(farthest(&f->model, r.gradient, f->alone.gradient, &name) > 1e-2);
    assert_false(near(r.steps[0].norm, f->alone.steps[0].norm, 1e-3));
    trial_free(&r);
    pl_text_free(&name);
}

static void local_balance_counts_are_caught(void **state)
{
    const fixture *f = *state;
    pl_text name = {0};
    trial t = make_trial(&f->model, "folded:world=8,ep=4");
    t.edit = drop_balance_reduction;
    trial_result r = trial_run(&t);
    if (r.status != PL_OK) fail_msg("%s", r.words);
    assert_true(farthest(&f->model, r.gradient, f->alone.gradient, &name) > 1e-4);
    assert_false(near(r.steps[0].balance_loss, f->alone.steps[0].balance_loss, 1e-3));
    trial_free(&r);
    pl_text_free(&name);
}

static void workers_and_repetition_leave_every_bit(void **state)
{
    const fixture *f = *state;
    for (int i = 2; i < LAYOUTS; i += 4) {
        trial t = make_trial(&f->model, layouts[i]);
        t.steps = 3;
        trial_result first = trial_run(&t);
        t.workers = 1;
        trial_result second = trial_run(&t);
        t.workers = 3;
        t.order = PL_ORDER_RANDOM;
        trial_result third = trial_run(&t);
        if (first.status != PL_OK) fail_msg("%s", first.words);
        if (second.status != PL_OK) fail_msg("%s", second.words);
        if (third.status != PL_OK) fail_msg("%s", third.words);
        for (int64_t j = 0; j < f->model.tensor_count; ++j) {
            size_t bytes = (size_t)pl_tensor_elements(&f->model.tensors[j]) * sizeof(float);
            assert_memory_equal(first.weight[j], second.weight[j], bytes);
            assert_memory_equal(first.weight[j], third.weight[j], bytes);
        }
        trial_free(&first);
        trial_free(&second);
        trial_free(&third);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_expert_of_the_first_moe_layer_is_idle),
        cmocka_unit_test(first_step_gradients_norm_and_forty_losses_agree),
        cmocka_unit_test(every_form_of_the_balance_loss_agrees),
        cmocka_unit_test(every_policy_gives_the_same_gradients),
        cmocka_unit_test(several_micro_batches_carried_together_give_the_same),
        cmocka_unit_test(ignored_and_frozen_parameters_give_the_same),
        cmocka_unit_test(forced_balanced_routing_agrees),
        cmocka_unit_test(local_token_counts_are_caught),
        cmocka_unit_test(local_balance_counts_are_caught),
        cmocka_unit_test(workers_and_repetition_leave_every_bit),
    };
    return cmocka_run_group_tests_name("train/layouts", tests, set_up, tear_down);
}
