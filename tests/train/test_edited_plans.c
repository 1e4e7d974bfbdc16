/* Damage: a plan is edited, the simulator's proof says what is wrong with it, and the trainer, run
 * with the same text, shows just that. The unedited text of the same run passes both.
 */
#include "tests/test.h"
#include "tests/train/edits.h"
#include "tests/train/trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "sim/proof.h"

enum { SEQUENCE = 12 };

static void sample(const void *context, int64_t step, int64_t number, int64_t sequence,
                   int32_t *tokens, int32_t *labels)
{
    const pl_model *model = context;
    uint32_t draw = (uint32_t)(number * 7919 + step * 104729 + 17);
    for (int64_t t = 0; t < sequence; ++t) {
        draw = draw * 1664525U + 1013904223U;
        tokens[t] = (int32_t)((draw >> 8) % (uint32_t)model->vocab_size);
        labels[t] = (draw >> 5) % 8 < (uint32_t)number % 8 ? -1 : (tokens[t] * 5 + 1) % 100;
    }
}

typedef struct edited {
    pl_model model;
    trial t;
    trial_result right; /* of the plan as it is */
} edited;

static void edited_open(edited *e, const char *layout)
{
    assert_ok(pl_model_open(&e->model, "testdata/hf/qwen3-moe-dense-first"));
    e->t = (trial){.model = &e->model, .layout = layout, .sample = sample};
    e->t.settings = trial_settings(SEQUENCE, 1, 1, 1);
    e->t.settings.balance = PL_BALANCE_MICRO_STEP;
    e->t.settings.balance_coefficient = 0.1;
    e->t.context = &e->model;
    e->t.seed = 4;
    e->t.steps = 1;
    e->t.input =
        (pl_program_input){.learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8};
    e->t.workers = 2;
    e->t.timeout = 20;
    e->right = trial_run(&e->t);
    if (e->right.status != PL_OK) fail_msg("%s: %s", layout, e->right.words);
    assert_int_equal(e->right.disagreements, 0);
}

static void edited_close(edited *e)
{
    trial_free(&e->right);
    pl_model_free(&e->model);
}

/* The verdict of PROOF about the plan edited by EDIT (NULL: as it is) contains WORD. */
static void assert_proof(const edited *e, const char *(*edit)(const char *), pl_proof_id proof,
                         const char *word)
{
    pl_plan plan, changed;
    pl_check check;
    pl_text text = {0};
    pl_plan_request request = {.model = &e->model, .settings = e->t.settings};
    assert_ok(pl_layout_parse(&request.layout, e->t.layout));
    assert_ok(pl_plan_build(&plan, &request));
    pl_plan_write(&text, &plan, -1);
    char *damaged = edit ? (char *)(uintptr_t)edit(pl_text_string(&text)) : NULL;
    if (edit) assert_true(strcmp(damaged, pl_text_string(&text)) != 0);
    assert_ok(pl_plan_read(&changed, edit ? damaged : pl_text_string(&text), "edited"));
    assert_ok(pl_check_plan(&check, &changed));
    if (!edit) {
        assert_true(pl_check_proved(&check));
    } else {
        assert_int_equal(check.verdict[proof].outcome, PL_FAILED);
        if (!strstr(pl_text_string(&check.verdict[proof].words), word))
            fail_msg("no '%s' in: %s", word, pl_text_string(&check.verdict[proof].words));
    }
    pl_check_free(&check);
    pl_plan_free(&changed);
    pl_plan_free(&plan);
    pl_text_free(&text);
    free(damaged);
}

static trial_result run_edited(const edited *e, const char *(*edit)(const char *))
{
    trial t = e->t;
    t.edit = edit;
    return trial_run(&t);
}

/* The largest distance from FACTOR times the right gradients over tensors that are (not) experts.
 */
static double distance_of(const edited *e, float *const *gradient, double factor, bool experts)
{
    double most = 0;
    for (int64_t i = 0; i < e->model.tensor_count; ++i) {
        const pl_tensor *tensor = &e->model.tensors[i];
        int64_t count = pl_tensor_elements(tensor);
        if ((tensor->role == PL_TENSOR_ROUTED) != experts) continue;
        float *scaled = malloc((size_t)count * sizeof *scaled);
        for (int64_t j = 0; j < count; ++j)
            scaled[j] = (float)(factor * (double)e->right.gradient[i][j]);
        double distance = trial_distance(gradient[i], scaled, count);
        if (!(distance <= most)) most = distance;
        free(scaled);
    }
    return most;
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-6 * fabs(b); }

/* --- an extra factor --- */

static const char *twice(const char *text)
{
    return edit_replace(text, " scale gradients ", "scale=1/T", "scale=2*1/T");
}

static const char *twice_in_words(const char *text)
{
    return edit_replace(text, " scale gradients ", "scale=1/T", "scale=2/T");
}

static void an_extra_factor_doubles_every_gradient(void **state)
{
    (void)state;
    edited e;
    edited_open(&e, "legacy:world=8,ep=4");
    assert_proof(&e, NULL, PL_PROOF_GRADIENTS, "");
    const char *(*edit)(const char *) = twice_in_words;
    pl_scale scale;
    if (!pl_scale_parse(&scale, "2/T")) edit = twice;
    assert_proof(&e, edit, PL_PROOF_GRADIENTS, "2");
    trial_result r = run_edited(&e, edit);
    if (r.status != PL_OK) fail_msg("%s", r.words);
    assert_true(distance_of(&e, r.gradient, 2, false) <= 1e-6);
    assert_true(distance_of(&e, r.gradient, 2, true) <= 1e-6);
    assert_true(near(r.steps[0].norm, 2 * e.right.steps[0].norm));
    trial_free(&r);
    edited_close(&e);
}

/* --- a reduction that is missing --- */

static const char *drop_dense(const char *text)
{
    return edit_drop(text, " all-reduce dense-gradients ");
}

static void without_the_dense_reduction_dense_gradients_alone_are_wrong(void **state)
{
    (void)state;
    edited e;
    edited_open(&e, "legacy:world=8,ep=4");
    assert_proof(&e, drop_dense, PL_PROOF_GRADIENTS, "");
    trial_result r = run_edited(&e, drop_dense);
    if (r.status != PL_OK) fail_msg("%s", r.words);
    assert_true(r.disagreements > 0);
    assert_true(distance_of(&e, r.gradient, 1, false) > 0.1);
    assert_true(distance_of(&e, r.gradient, 1, true) <= 1e-6);
    trial_free(&r);
    edited_close(&e);
}

static const char *drop_reduce(const char *text) { return edit_drop(text, " reduce layer.1 "); }

static void a_missing_reduce_leaves_a_gradient_that_does_not_live(void **state)
{
    (void)state;
    edited e;
    edited_open(&e, "folded:world=4,ep=2");
    assert_proof(&e, drop_reduce, PL_PROOF_LIFETIMES, "grad");
    trial_result r = run_edited(&e, drop_reduce);
    assert_int_equal(r.status, PL_BAD_INPUT);
    assert_non_null(strstr(r.words, "grad.layer.1"));
    assert_non_null(strstr(r.words, "scale gradients"));
    trial_free(&r);
    edited_close(&e);
}

/* --- a wrong group --- */

static const char *squares_over_replicas(const char *text)
{
    char *once =
        edit_replace(text, " all-reduce dense-squares ", "group=dense-shard", "group=stage");
    char *both =
        edit_replace(once, " all-reduce expert-squares ", "group=expert-block", "group=stage");
    free(once);
    return both;
}

static void a_norm_over_replicas_counts_every_element_twice(void **state)
{
    (void)state;
    edited e;
    edited_open(&e, "decoupled:world=8,ep=2,replicas=2");
    assert_proof(&e, NULL, PL_PROOF_NORM, "");
    assert_proof(&e, squares_over_replicas, PL_PROOF_NORM, "");
    trial_result r = run_edited(&e, squares_over_replicas);
    if (r.status != PL_OK) fail_msg("%s", r.words);
    assert_true(distance_of(&e, r.gradient, 1, false) <= 1e-6);
    assert_true(near(r.steps[0].norm, sqrt(2) * e.right.steps[0].norm));
    trial_free(&r);
    edited_close(&e);
}

static const char *replicas_over_shards(const char *text)
{
    return edit_replace(text, " all-reduce expert-gradients ", "group=expert-replica",
                        "group=expert-shard");
}

static void the_wrong_group_of_a_reduction_spoils_experts_alone(void **state)
{
    (void)state;
    edited e;
    edited_open(&e, "decoupled:world=8,ep=2,replicas=2");
    assert_proof(&e, replicas_over_shards, PL_PROOF_GRADIENTS, "expert");
    trial_result r = run_edited(&e, replicas_over_shards);
    if (r.status != PL_OK) fail_msg("%s", r.words);
    assert_true(distance_of(&e, r.gradient, 1, false) <= 1e-6);
    assert_true(distance_of(&e, r.gradient, 1, true) > 0.1);
    trial_free(&r);
    edited_close(&e);
}

static const char *local_tokens(const char *text) { return edit_drop(text, " all-reduce tokens "); }

static void local_token_counts_scale_ranks_differently(void **state)
{
    (void)state;
    edited e;
    edited_open(&e, "single:world=4,ep=2");
    assert_proof(&e, local_tokens, PL_PROOF_COUNTS, "");
    trial_result r = run_edited(&e, local_tokens);
    if (r.status != PL_OK) fail_msg("%s", r.words);
    assert_true(r.steps[0].tokens < e.right.steps[0].tokens);
    assert_true(r.disagreements > 0);
    assert_true(distance_of(&e, r.gradient, 1, false) > 0.1);
    trial_free(&r);
    edited_close(&e);
}

/* --- waits --- */

static const char *without_wait_for_gather(const char *text)
{
    /* The attention of layer 1 does not wait for its parameters. */
    const char *line = strstr(text, " attention layer.1 round=0 mb=0 pass=f ");
    char waits[64] = {0};
    if (!line || !strstr(line, "waits=")) return edit_drop(text, "attention layer.1");
    const char *at = strstr(line, " waits=");
    size_t length = 1 + strcspn(at + 1, " ");
    memcpy(waits, at, length < sizeof waits ? length : 0);
    return edit_replace(text, " attention layer.1 round=0 mb=0 pass=f ", waits, "");
}

static void a_missing_wait_is_proved_wrong_and_random_orders_show_it(void **state)
{
    (void)state;
    edited e;
    int shown = 0;
    edited_open(&e, "folded:world=2,ep=1");
    assert_proof(&e, without_wait_for_gather, PL_PROOF_ORDERING, "layer.1");
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        trial t = e.t;
        t.order = PL_ORDER_RANDOM;
        t.order_seed = seed * 1000;
        trial_result right = trial_run(&t);
        if (right.status != PL_OK) fail_msg("%s", right.words);
        assert_true(distance_of(&e, right.gradient, 1, false) == 0);
        assert_true(distance_of(&e, right.gradient, 1, true) == 0);
        t.edit = without_wait_for_gather;
        trial_result r = trial_run(&t);
        shown += r.status != PL_OK || distance_of(&e, r.gradient, 1, false) != 0;
        trial_free(&right);
        trial_free(&r);
    }
    assert_true(shown > 0);
    edited_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_extra_factor_doubles_every_gradient),
        cmocka_unit_test(without_the_dense_reduction_dense_gradients_alone_are_wrong),
        cmocka_unit_test(a_missing_reduce_leaves_a_gradient_that_does_not_live),
        cmocka_unit_test(a_norm_over_replicas_counts_every_element_twice),
        cmocka_unit_test(the_wrong_group_of_a_reduction_spoils_experts_alone),
        cmocka_unit_test(local_token_counts_scale_ranks_differently),
        cmocka_unit_test(a_missing_wait_is_proved_wrong_and_random_orders_show_it),
    };
    return cmocka_run_group_tests_name("train/edited_plans", tests, NULL, NULL);
}
