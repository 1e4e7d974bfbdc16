/* Every turn that plans take, carried out: cases that force each turn of the emitters, and random
 * ones, against the plainest plan of the same model and samples in a world of one rank.
 *
 * Samples of a micro-step are the same: D data ranks of one sequence here, D sequences of one rank
 * there. So sums of gradients, norms and losses agree to fp32 rounding.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/initial_values.h"
#include "tests/common/plan_cases.h"
#include "tests/test.h"
#include "tests/train/trial.h"

enum { RANDOM_CASES = 40 };

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

/* Twenty times the usual spread: choices of experts are far from ties. */
static pl_status values(const void *context, const pl_tensor *tensor, int64_t row_begin,
                        int64_t row_end, float *out)
{
    const pl_model *model = context;
    return pl_initial_values(out, 9, tensor, 20 * model->initializer_range, row_begin, row_end);
}

static trial make_trial(const plan_case *c, const pl_model *model)
{
    trial t = {.model = model, .layout = c->layout, .sample = sample, .values = values};
    t.settings = plan_case_settings(c);
    t.settings.precision = (pl_precision){PL_FP32, PL_FP32, PL_FP32, PL_FP32};
    t.settings.balance_coefficient = c->balance == PL_BALANCE_NONE ? 0 : 0.3;
    t.frozen = c->frozen;
    t.frozen_count = plan_case_count(c->frozen);
    t.keep_fp32 = c->keep_fp32;
    t.keep_fp32_count = plan_case_count(c->keep_fp32);
    t.context = model;
    t.steps = 1;
    t.workers = 2;
    t.timeout = 60;
    t.input =
        (pl_program_input){.learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8};
    return t;
}

static trial make_plain(const trial *t)
{
    pl_layout layout;
    trial plain = *t;
    assert_ok(pl_layout_parse(&layout, t->layout));
    plain.layout = "single:world=1";
    plain.settings.policy = (pl_policy){.routing = t->settings.policy.routing};
    plain.settings.shape.micro_batch = layout.data_ranks;
    return plain;
}

static bool near(double a, double b, double most) { return fabs(a - b) <= most * fabs(b); }

static void assert_same_step(const char *words, const pl_model *model, const trial_result *r,
                             const trial_result *plain)
{
    const pl_program_result *a = &r->steps[0], *b = &plain->steps[0];
    if (r->disagreements || r->unseen) fail_msg("%s: ranks disagree", words);
    if (!near(a->loss_sum, b->loss_sum, 1e-6)) fail_msg("%s: loss", words);
    if (!near(a->balance_loss, b->balance_loss, 1e-6)) fail_msg("%s: balance loss", words);
    if (!near(a->norm, b->norm, 1e-5)) fail_msg("%s: norm %g, not %g", words, a->norm, b->norm);
    if (a->tokens != b->tokens) fail_msg("%s: tokens", words);
    for (int64_t i = 0; i < model->tensor_count; ++i) {
        int64_t count = pl_tensor_elements(&model->tensors[i]);
        /* Frozen tensors have none on either side: NaN stands for what nobody put. */
        if (isnan(plain->gradient[i][0]) && isnan(r->gradient[i][0])) continue;
        double distance = trial_distance(r->gradient[i], plain->gradient[i], count);
        if (!(distance <= 1e-5))
            fail_msg("%s: gradient of %s off by %g", words, model->tensors[i].suffix, distance);
    }
}

static void compare(const plan_case *c)
{
    char words[512];
    pl_model model;
    snprintf(words, sizeof words,
             "%s: %s, %s, %s %s, reshard %d, prefetch %d, recompute %d, "
             "accumulate %d, dispatch %d, routing %d, balance %d, M %d, A %d",
             c->name, c->model, c->layout, c->frozen[0] ? c->frozen[0] : "-",
             c->keep_fp32[0] ? c->keep_fp32[0] : "-", (int)c->policy.reshard,
             (int)c->policy.prefetch, (int)c->policy.recompute, (int)c->policy.accumulate,
             (int)c->policy.dispatch, (int)c->policy.routing, (int)c->balance,
             (int)c->micro_batches, (int)c->rounds);
    assert_ok(plan_case_model(&model, c->model));
    trial t = make_trial(c, &model);
    trial plain_trial = make_plain(&t);
    trial_result r = trial_run(&t), plain = trial_run(&plain_trial);
    if (r.status != PL_OK) fail_msg("%s: %s", words, r.words);
    if (plain.status != PL_OK) fail_msg("%s: plain: %s", words, plain.words);
    assert_same_step(words, &model, &r, &plain);
    trial_free(&r);
    trial_free(&plain);
    pl_model_free(&model);
}

static void forced_cases_compute_what_the_plain_plan_computes(void **state)
{
    (void)state;
    for (int i = 0; i < PLAN_FORCED_CASES; ++i) compare(&plan_forced_cases()[i]);
}

static void random_cases_compute_what_the_plain_plan_computes(void **state)
{
    (void)state;
    uint64_t random = 2026;
    for (int i = 0; i < RANDOM_CASES; ++i) {
        char notation[PL_LAYOUT_TEXT];
        plan_case c = plan_case_random(&random, notation);
        compare(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forced_cases_compute_what_the_plain_plan_computes),
        cmocka_unit_test(random_cases_compute_what_the_plain_plan_computes),
    };
    return cmocka_run_group_tests_name("train/executor_cases", tests, NULL, NULL);
}
