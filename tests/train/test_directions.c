/* Gradients against differences of the loss, for families and features that no golden data covers:
 * Llama with biases, scaled rotary embedding and a tied head; dense Qwen3 with biases. (A small
 * step in a MoE model may change a choice, and the loss jumps.)
 *
 * For each tensor, the weights move a little both ways along a mixture of the gradient and a random
 * direction; half the difference of the losses must be what the gradient says.
 */
#include "tests/test.h"
#include "tests/train/trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/initial_values.h"

enum { SEQUENCE = 12, SEQUENCES = 4 };

static const char llama[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 61, \"hidden_size\": 24, \"num_hidden_layers\": "
    "2, "
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 6, "
    "\"intermediate_size\": 40, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5, "
    "\"rope_theta\": 500.0, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 4.0, "
    "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
    "\"original_max_position_embeddings\": 16}, \"initializer_range\": 0.1, "
    "\"tie_word_embeddings\": true, \"attention_bias\": true, \"mlp_bias\": true, "
    "\"hidden_act\": \"silu\", \"torch_dtype\": \"float32\"}";

static const char qwen3[] =
    "{\"model_type\": \"qwen3\", \"vocab_size\": 67, \"hidden_size\": 20, \"num_hidden_layers\": "
    "2, "
    "\"num_attention_heads\": 3, \"num_key_value_heads\": 1, \"head_dim\": 10, "
    "\"intermediate_size\": 36, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-6, "
    "\"rope_theta\": 10000.0, \"initializer_range\": 0.1, \"tie_word_embeddings\": false, "
    "\"attention_bias\": true, \"hidden_act\": \"silu\", \"torch_dtype\": \"float32\"}";

typedef struct nudge {
    const pl_model *model;
    int64_t tensor;         /* that is moved; -1: none */
    const float *direction; /* [elements] of it */
    double length;
} nudge;

static uint32_t mix(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x7feb352dU;
    x = (x ^ (x >> 15)) * 0x846ca68bU;
    return x ^ (x >> 16);
}

static void sample(const void *context, int64_t step, int64_t number, int64_t sequence,
                   int32_t *tokens, int32_t *labels)
{
    const nudge *n = context;
    (void)step;
    for (int64_t t = 0; t < sequence; ++t) {
        uint32_t draw = mix((uint32_t)(number * 1000 + t));
        tokens[t] = (int32_t)(draw % (uint32_t)n->model->vocab_size);
        labels[t] =
            (draw >> 16) % 5 == 0 ? -1 : (int32_t)((draw >> 8) % (uint32_t)n->model->vocab_size);
    }
}

/* Biases would be zero and norms one otherwise. */
static pl_status values(const void *context, const pl_tensor *tensor, int64_t row_begin,
                        int64_t row_end, float *out)
{
    const nudge *n = context;
    int64_t number = tensor - n->model->tensors, cols = tensor->cols;
    PL_TRY(pl_initial_values(out, 11, tensor, n->model->initializer_range, row_begin, row_end));
    for (int64_t i = row_begin * cols; i < row_end * cols; ++i) {
        float *value = &out[i - row_begin * cols];
        float draw = (float)(mix((uint32_t)(number * 100000 + i)) % 2001) / 1000.0F - 1;
        if (tensor->dimensions == 1) *value += 0.2F * draw;
        if (number == n->tensor) *value += (float)(n->length * (double)n->direction[i]);
    }
    return PL_OK;
}

/* The model is copied into the plan: the tensor's number must be found in ours. */
static pl_status values_of_copy(const void *context, const pl_tensor *tensor, int64_t row_begin,
                                int64_t row_end, float *out)
{
    const nudge *n = context;
    for (int64_t i = 0; i < n->model->tensor_count; ++i) {
        const pl_tensor *own = &n->model->tensors[i];
        if (own->layer == tensor->layer && strcmp(own->suffix, tensor->suffix) == 0)
            return values(context, own, row_begin, row_end, out);
    }
    return PL_FAIL(PL_INTERNAL, "no such tensor");
}

static trial_result run(const nudge *n, const char *layout)
{
    bool alone = strcmp(layout, "single:world=1") == 0;
    trial t = {.model = n->model, .layout = layout, .sample = sample, .values = values_of_copy};
    t.settings = trial_settings(SEQUENCE, alone ? SEQUENCES : 1, 1, 1);
    t.context = n;
    t.steps = 1;
    t.workers = 1;
    return trial_run(&t);
}

static double loss_of(const nudge *n)
{
    trial_result r = run(n, "single:world=1");
    double loss = r.steps ? r.steps[0].loss_sum : NAN;
    if (r.status != PL_OK) fail_msg("%s", r.words);
    trial_free(&r);
    return loss;
}

/* A unit vector halfway between the gradient's and a random one. */
static void choose_direction(float *direction, const float *gradient, int64_t count, uint32_t seed)
{
    double size = 0, random_size = 0;
    for (int64_t i = 0; i < count; ++i) {
        direction[i] = (float)(mix(seed + (uint32_t)i) % 2001) / 1000.0F - 1;
        size += (double)gradient[i] * (double)gradient[i];
        random_size += (double)direction[i] * (double)direction[i];
    }
    for (int64_t i = 0; i < count; ++i)
        direction[i] = (float)(((double)gradient[i] / sqrt(size + 1e-30) +
                                (double)direction[i] / sqrt(random_size)) /
                               sqrt(2));
}

/* How far the loss is from what GRADIENT says along a direction of TENSOR, over what it says. */
static double disagreement(const pl_model *model, int64_t tensor, const float *gradient)
{
    int64_t count = pl_tensor_elements(&model->tensors[tensor]);
    float *direction = malloc((size_t)count * sizeof *direction);
    double said = 0;
    choose_direction(direction, gradient, count, (uint32_t)tensor * 7919U);
    for (int64_t i = 0; i < count; ++i) said += (double)gradient[i] * (double)direction[i];
    nudge n = {model, tensor, direction, 0.004};
    double forward = loss_of(&n);
    n.length = -n.length;
    double backward = loss_of(&n);
    free(direction);
    double seen = (forward - backward) / 0.008;
    return fabs(seen - said) / (fabs(said) + 0.05);
}

static void check_model(const pl_model *model, const char *layout)
{
    nudge none = {model, -1, NULL, 0};
    trial_result r = run(&none, "single:world=1");
    if (r.status != PL_OK) fail_msg("%s", r.words);
    trial_result many = run(&none, layout);
    if (many.status != PL_OK) fail_msg("%s: %s", layout, many.words);
    for (int64_t i = 0; i < model->tensor_count; ++i) {
        pl_text name = {0};
        int64_t count = pl_tensor_elements(&model->tensors[i]);
        double off = disagreement(model, i, r.sum_gradient[i]), size = 0;
        for (int64_t j = 0; j < count; ++j)
            size += (double)r.sum_gradient[i][j] * (double)r.sum_gradient[i][j];
        pl_tensor_name(&name, &model->tensors[i]);
        if (!(off <= 0.02)) fail_msg("%s: off by %g", pl_text_string(&name), off);
        /* The bias of keys moves all scores of a query alike: its gradient is rounding alone. */
        if (size > 1e-6 &&
            !(trial_distance(many.sum_gradient[i], r.sum_gradient[i], count) <= 2e-5))
            fail_msg("%s: %s differs from one rank's", layout, pl_text_string(&name));
        pl_text_free(&name);
    }
    trial_free(&many);
    trial_free(&r);
}

static void llama_with_biases_scaled_rotation_and_tied_head(void **state)
{
    (void)state;
    pl_model model;
    assert_ok(pl_model_parse(&model, llama, "llama", "llama"));
    assert_true(model.attention_bias && model.mlp_bias && model.tie_word_embeddings);
    check_model(&model, "legacy:world=4");
    pl_model_free(&model);
}

static void dense_qwen3(void **state)
{
    (void)state;
    pl_model model;
    assert_ok(pl_model_parse(&model, qwen3, "qwen3", "qwen3"));
    check_model(&model, "folded:world=4,replicas=2");
    pl_model_free(&model);
}

/* A gradient with every third element missing does not pass. */
static void a_damaged_gradient_is_seen(void **state)
{
    (void)state;
    pl_model model;
    int seen = 0;
    assert_ok(pl_model_parse(&model, llama, "llama", "llama"));
    nudge none = {&model, -1, NULL, 0};
    trial_result r = run(&none, "single:world=1");
    if (r.status != PL_OK) fail_msg("%s", r.words);
    for (int64_t i = 0; i < model.tensor_count; ++i) {
        for (int64_t j = 0; j < pl_tensor_elements(&model.tensors[i]); j += 3)
            r.sum_gradient[i][j] = 0;
        seen += disagreement(&model, i, r.sum_gradient[i]) > 0.02;
    }
    assert_true(seen > model.tensor_count / 2);
    trial_free(&r);
    pl_model_free(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_with_biases_scaled_rotation_and_tied_head),
        cmocka_unit_test(dense_qwen3),
        cmocka_unit_test(a_damaged_gradient_is_seen),
    };
    return cmocka_run_group_tests_name("train/directions", tests, NULL, NULL);
}
