/* Parity with Hugging Face's Qwen3-MoE: the float64 truths of testdata/hf, whose README gives the
 * limits (about four times what PyTorch's own float32 run is off by).
 */
#include "tests/test.h"
#include "tests/train/golden.h"
#include "tests/train/trial.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cpu/cpu.h"

enum { SEQUENCES = 4, LENGTH = 32, TOKENS = SEQUENCES * LENGTH };

static const char *const folders[] = {"testdata/hf/qwen3-moe-tiny",
                                      "testdata/hf/qwen3-moe-dense-first",
                                      "testdata/hf/qwen3-moe-tied"};
enum { FOLDERS = 3 };

typedef struct batch {
    golden g;
    int32_t *tokens; /* [4, 33] */
    int32_t *labels; /* [4, 32] masked ones; NULL: the tokens that follow */
    int only;        /* >= 0: this one label is valid */
} batch;

static void sample(const void *context, int64_t step, int64_t number, int64_t sequence,
                   int32_t *tokens, int32_t *labels)
{
    const batch *b = context;
    int64_t row = number % SEQUENCES;
    (void)step;
    for (int64_t t = 0; t < sequence; ++t) {
        tokens[t] = b->tokens[row * (LENGTH + 1) + t];
        labels[t] = b->labels ? b->labels[row * LENGTH + t] : b->tokens[row * (LENGTH + 1) + t + 1];
        if (b->only >= 0 && row * LENGTH + t != b->only) labels[t] = -1;
    }
}

static pl_status values(const void *context, const pl_tensor *tensor, int64_t row_begin,
                        int64_t row_end, float *out)
{
    const batch *b = context;
    return golden_values(&b->g, tensor, row_begin, row_end, out);
}

static void batch_open(batch *b, const char *folder)
{
    int64_t count = 0;
    golden_open(&b->g, folder);
    b->tokens = golden_array(&b->g.io, "tokens", &count);
    assert_int_equal(count, SEQUENCES * (LENGTH + 1));
    b->labels = NULL;
    b->only = -1;
}

static void batch_close(batch *b)
{
    free(b->tokens);
    free(b->labels);
    golden_close(&b->g);
}

static trial make_trial(const batch *b, const char *layout, int64_t micro, int64_t rounds)
{
    trial t = {.model = &b->g.model, .layout = layout, .sample = sample, .values = values};
    t.settings = trial_settings(LENGTH, micro, 1, rounds);
    t.context = b;
    t.steps = 1;
    t.input =
        (pl_program_input){.learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8};
    t.workers = 2;
    return t;
}

/* ||a - b|| / ||b|| and max|a - b| / max|b| against fp32 golden values. */
static double over_largest(const float *a, const float *b, int64_t count)
{
    double difference = 0, largest = 0;
    for (int64_t i = 0; i < count; ++i) {
        difference = fmax(difference, fabs((double)a[i] - (double)b[i]));
        largest = fmax(largest, fabs((double)b[i]));
    }
    return difference / largest;
}

static double number_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("no number '%s'", key);
    return json_number_value(value);
}

static json_t *open_json(const char *folder, const char *name)
{
    char path[256];
    json_error_t error;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    json_t *json = json_load_file(path, 0, &error);
    if (!json) fail_msg("%s: %s", path, error.text);
    return json;
}

/* --- the forward pass, looked at between entries --- */

typedef struct forward {
    const batch *b;
    float *hidden[8];  /* after each layer */
    float *norm;       /* after the final norm */
    int32_t *route[8]; /* choices, weights, slots of MoE layers */
    float *scores[8];
} forward;

static pl_status keep(pl_executor *executor, const pl_section *section, pl_buffer_kind kind,
                      int32_t layer, void **out)
{
    for (uint32_t i = 0; i < section->buffer_count; ++i) {
        const pl_buffer *buffer = &section->buffers[i];
        if (buffer->kind != kind || (layer >= 0 && buffer->layer != layer)) continue;
        int64_t bytes = pl_executor_buffer_bytes(executor, section, i);
        if (bytes < 0) return PL_FAIL(PL_INTERNAL, "the buffer does not live");
        free(*out);
        *out = malloc((size_t)bytes);
        return pl_executor_read(executor, section, i, *out, bytes);
    }
    return PL_FAIL(PL_INTERNAL, "no such buffer");
}

static pl_status watch_forward(void *context, int64_t rank, int64_t step, pl_executor *executor,
                               const pl_section *section, int64_t index)
{
    forward *f = context;
    const pl_entry_name *name = &section->entries[index].name;
    int32_t layers = (int32_t)f->b->g.model.num_hidden_layers;
    (void)rank;
    (void)step;
    if (name->pass != PL_PASS_FORWARD) return PL_OK;
    if (name->operation == PL_OP_ATTENTION && name->layer > 0)
        return keep(executor, section, PL_BUF_INPUT, name->layer,
                    (void **)&f->hidden[name->layer - 1]);
    if (name->operation == PL_OP_MERGE) {
        PL_TRY(keep(executor, section, PL_BUF_SAVE_ROUTE, name->layer,
                    (void **)&f->scores[name->layer]));
        return keep(executor, section, PL_BUF_ROUTE, name->layer, (void **)&f->route[name->layer]);
    }
    if (name->operation == PL_OP_FINAL_NORM)
        return keep(executor, section, PL_BUF_INPUT, layers, (void **)&f->hidden[layers - 1]);
    if (name->operation == PL_OP_LOSS)
        return keep(executor, section, PL_BUF_FINAL, -1, (void **)&f->norm);
    return PL_OK;
}

static void forward_free(forward *f)
{
    for (int i = 0; i < 8; ++i) {
        free(f->hidden[i]);
        free(f->route[i]);
        free(f->scores[i]);
    }
    free(f->norm);
}

static void assert_close_to(const batch *b, const char *name, const float *values_, double limit)
{
    int64_t count = 0;
    float *truth = golden_array(&b->g.io, name, &count);
    double distance = over_largest(values_, truth, count);
    if (!(distance <= limit)) fail_msg("%s %s: %g", b->g.folder, name, distance);
    free(truth);
}

/* Choices sorted by expert, with their weights, against router.L.index and .weight. */
static void check_routes(const batch *b, const forward *f, int layer)
{
    char name[64];
    int64_t k = b->g.model.num_experts_per_tok, count = 0;
    snprintf(name, sizeof name, "router.%d.index", layer);
    int32_t *index = golden_array(&b->g.io, name, &count);
    assert_int_equal(count, TOKENS * k);
    snprintf(name, sizeof name, "router.%d.weight", layer);
    float *weight = golden_array(&b->g.io, name, &count);
    const int32_t *choices = f->route[layer];
    const float *weights = (const float *)(const void *)(choices + TOKENS * k);
    for (int64_t t = 0; t < TOKENS; ++t) {
        for (int64_t j = 0; j < k; ++j) {
            int64_t found = -1;
            for (int64_t i = 0; i < k; ++i)
                if (choices[t * k + i] == index[t * k + j]) found = i;
            if (found < 0) fail_msg("%s layer %d token %lld", b->g.folder, layer, (long long)t);
            double off = (double)weights[t * k + found] - (double)weight[t * k + j];
            if (!(fabs(off) <= 5e-6)) fail_msg("%s: weight off by %g", b->g.folder, off);
        }
    }
    free(index);
    free(weight);
}

/* The softmax of router.L.logits, in double, against the scores kept. */
static void check_scores(const batch *b, const forward *f, int layer)
{
    char name[64];
    int64_t experts = b->g.model.num_experts, count = 0;
    snprintf(name, sizeof name, "router.%d.logits", layer);
    float *logits = golden_array(&b->g.io, name, &count);
    for (int64_t t = 0; t < TOKENS; ++t) {
        double sum = 0;
        for (int64_t e = 0; e < experts; ++e) sum += exp((double)logits[t * experts + e]);
        for (int64_t e = 0; e < experts; ++e) {
            double off = (double)f->scores[layer][t * experts + e] -
                         exp((double)logits[t * experts + e]) / sum;
            if (!(fabs(off) <= 5e-6)) fail_msg("%s: score off by %g", b->g.folder, off);
        }
    }
    free(logits);
}

/* Logits, and the losses of single tokens, from the normalised hidden states. */
static void check_logits(const batch *b, const float *norm)
{
    pl_backend *backend = NULL;
    pl_device *device = NULL;
    const pl_model *model = &b->g.model;
    const pl_tensor *head =
        &model->tensors[model->tie_word_embeddings ? 0 : model->tensor_count - 1];
    int64_t vocabulary = model->vocab_size, hidden = model->hidden_size, count = 0;
    float *weight = malloc((size_t)(vocabulary * hidden) * sizeof *weight);
    float *logits = malloc((size_t)(TOKENS * vocabulary) * sizeof *logits);
    float losses[TOKENS];
    double sums[2];
    int32_t labels[TOKENS];
    for (int64_t s = 0; s < SEQUENCES; ++s) {
        int32_t tokens[LENGTH];
        sample(b, 0, s, LENGTH, tokens, labels + s * LENGTH);
    }
    assert_ok(golden_rows(&b->g.weights, "", head, 0, vocabulary, weight));
    assert_ok(pl_backend_cpu_open(&backend, 1));
    assert_ok(backend->functions->open_device(backend, &device, 0, 0));
    pl_product_arguments product = {.a = norm,
                                    .b = weight,
                                    .c = logits,
                                    .dtype = PL_FP32,
                                    .c_dtype = PL_FP32,
                                    .m = TOKENS,
                                    .n = vocabulary,
                                    .k = hidden,
                                    .transpose_b = true};
    assert_ok(device->operations->product(device, PL_STREAM_COMPUTE, &product));
    assert_close_to(b, "logits", logits, 4e-6);
    pl_loss_arguments loss = {.z = norm,
                              .weight = weight,
                              .labels = labels,
                              .loss_sums = sums,
                              .loss_begins = true,
                              .row_losses = losses,
                              .dtype = PL_FP32,
                              .rows = TOKENS,
                              .hidden = hidden,
                              .vocabulary = vocabulary};
    assert_ok(device->operations->loss(device, PL_STREAM_COMPUTE, &loss));
    double *truth = golden_array(&b->g.io, "token_loss", &count);
    for (int i = 0; i < TOKENS; ++i)
        if (!(fabs((double)losses[i] - truth[i]) <= 2e-5))
            fail_msg("token %d: %g, not %g", i, losses[i], truth[i]);
    free(truth);
    device->functions->close(device);
    backend->functions->close(backend);
    free(weight);
    free(logits);
}

static void hidden_states_routes_logits_and_token_losses(void **state)
{
    (void)state;
    for (int i = 0; i < FOLDERS; ++i) {
        batch b;
        forward f = {.b = &b};
        batch_open(&b, folders[i]);
        trial t = make_trial(&b, "single:world=1", SEQUENCES, 1);
        t.watch = watch_forward;
        t.watch_context = &f;
        trial_result r = trial_run(&t);
        if (r.status != PL_OK) fail_msg("%s", r.words);
        for (int layer = 0; layer < b.g.model.num_hidden_layers; ++layer) {
            char name[64];
            snprintf(name, sizeof name, "hidden.%d", layer);
            assert_close_to(&b, name, f.hidden[layer], 4e-6);
            if (!b.g.model.layer_is_moe[layer]) continue;
            check_routes(&b, &f, layer);
            check_scores(&b, &f, layer);
        }
        assert_close_to(&b, "hidden.norm", f.norm, 4e-6);
        check_logits(&b, f.norm);
        trial_free(&r);
        forward_free(&f);
        batch_close(&b);
    }
}

/* --- gradients --- */

static float *golden_gradient(const batch *b, const char *prefix, const pl_tensor *tensor)
{
    float *truth = malloc((size_t)pl_tensor_elements(tensor) * sizeof *truth);
    assert_ok(golden_rows(&b->g.io, prefix, tensor, 0, pl_tensor_total_rows(tensor), truth));
    return truth;
}

/* The farthest tensor of all that PREFIX has in the golden file. */
static double farthest(const batch *b, const char *prefix, float *const *gradient, int *compared)
{
    double most = 0;
    *compared = 0;
    for (int64_t i = 0; i < b->g.model.tensor_count; ++i) {
        const pl_tensor *tensor = &b->g.model.tensors[i];
        pl_text name = {0};
        pl_text_add_string(&name, prefix);
        if (tensor->experts > 0)
            pl_tensor_expert_name(&name, tensor, tensor->experts - 1);
        else
            pl_tensor_name(&name, tensor);
        bool there = pl_safetensors_find(&b->g.io, pl_text_string(&name)) != NULL;
        pl_text_free(&name);
        if (!there) continue;
        float *truth = golden_gradient(b, prefix, tensor);
        double distance = trial_distance(gradient[i], truth, pl_tensor_elements(tensor));
        if (!(distance <= most)) most = distance;
        free(truth);
        ++*compared;
    }
    return most;
}

static const char *const worlds[] = {"single:world=1", "legacy:world=2,ep=2", "folded:world=4,ep=2",
                                     "decoupled:world=2,ep=1"};

static void loss_gradients_and_norm(void **state)
{
    (void)state;
    for (int i = 0; i < FOLDERS; ++i) {
        batch b;
        batch_open(&b, folders[i]);
        json_t *json = open_json(folders[i], "io.json");
        double sum = number_of(json_object_get(json, "loss"), "sum64");
        double norm = number_of(json_object_get(json, "grad"), "norm64");
        for (int w = 0; w < 4; ++w) {
            int world = worlds[w][strcspn(worlds[w], "=") + 1] - '0', compared = 0;
            trial t = make_trial(&b, worlds[w], SEQUENCES / world, 1);
            trial_result r = trial_run(&t);
            if (r.status != PL_OK) fail_msg("%s %s: %s", folders[i], worlds[w], r.words);
            assert_int_equal(r.steps[0].tokens, TOKENS);
            assert_true(fabs(r.steps[0].loss_sum - sum) <= 3e-8 * sum * 4);
            assert_true(fabs(r.steps[0].norm * TOKENS - norm) <= 5e-7 * norm);
            double distance = farthest(&b, "grad.", r.sum_gradient, &compared);
            assert_int_equal(compared, b.g.model.tensor_count);
            if (!(distance <= 1e-5)) fail_msg("%s %s: %g", folders[i], worlds[w], distance);
            trial_free(&r);
        }
        json_decref(json);
        batch_close(&b);
    }
}

static void masked_labels(void **state)
{
    (void)state;
    for (int i = 0; i < FOLDERS; ++i) {
        batch b;
        int64_t count = 0;
        batch_open(&b, folders[i]);
        b.labels = golden_array(&b.g.io, "labels_masked", &count);
        int32_t *valid = golden_array(&b.g.io, "masked.count", &count);
        double *sum = golden_array(&b.g.io, "masked.loss_sum", &count);
        json_t *json = open_json(folders[i], "io.json");
        double norm = number_of(json_object_get(json, "masked_mean_grad"), "norm64");
        for (int w = 0; w < 4; ++w) {
            int world = worlds[w][strcspn(worlds[w], "=") + 1] - '0', compared = 0;
            trial t = make_trial(&b, worlds[w], SEQUENCES / world, 1);
            trial_result r = trial_run(&t);
            if (r.status != PL_OK) fail_msg("%s", r.words);
            assert_int_equal(r.steps[0].tokens, *valid);
            assert_true(fabs(r.steps[0].loss_sum - *sum) <= 3e-8 * *sum * 4);
            assert_true(fabs(r.steps[0].norm - norm) <= 5e-7 * norm);
            double distance = farthest(&b, "masked.grad.", r.gradient, &compared);
            assert_true(compared >= 4);
            if (!(distance <= 1e-5)) fail_msg("%s %s: %g", folders[i], worlds[w], distance);
            trial_free(&r);
        }
        json_decref(json);
        free(valid);
        free(sum);
        batch_close(&b);
    }
}

/* --- load balance --- */

static double sum_of(const json_t *array)
{
    double sum = 0;
    size_t i = 0;
    const json_t *value = NULL;
    json_array_foreach(array, i, value) sum +=
        json_is_array(value) ? sum_of(value) : json_number_value(value);
    return sum;
}

/* One valid label and a large coefficient, so that what the loss itself adds is small; and that is
 * subtracted. */
static void check_balance_gradient(const batch *b, pl_balance form, const char *prefix)
{
    int compared = 0;
    trial t = make_trial(b, "single:world=1", SEQUENCES, 1);
    trial_result plain = trial_run(&t);
    t.settings.balance = form;
    t.settings.balance_coefficient = 1000;
    trial_result both = trial_run(&t);
    if (plain.status != PL_OK) fail_msg("%s", plain.words);
    if (both.status != PL_OK) fail_msg("%s", both.words);
    for (int64_t i = 0; i < both.tensors; ++i)
        for (int64_t j = 0; j < pl_tensor_elements(&b->g.model.tensors[i]); ++j)
            both.sum_gradient[i][j] = (both.sum_gradient[i][j] - plain.sum_gradient[i][j]) / 1000;
    double distance = farthest(b, prefix, both.sum_gradient, &compared);
    assert_true(compared >= 2);
    if (!(distance <= 1e-5)) fail_msg("%s %s: %g", b->g.folder, prefix, distance);
    trial_free(&plain);
    trial_free(&both);
}

static void load_balance_losses(void **state)
{
    static const struct {
        pl_balance form;
        const char *key, *prefix;
        int64_t rounds;
    } forms[] = {{PL_BALANCE_MICRO_STEP, "micro_batch", "aux_micro.grad.", 1},
                 {PL_BALANCE_SEQUENCE, "sequence", "aux_seq.grad.", 1},
                 {PL_BALANCE_GLOBAL_BATCH, "global_batch", NULL, 2}};
    (void)state;
    for (int i = 0; i < FOLDERS; ++i) {
        batch b;
        batch_open(&b, folders[i]);
        b.only = 17;
        json_t *json = open_json(folders[i], "io.json");
        for (int form = 0; form < 3; ++form) {
            const json_t *array = json_object_get(json_object_get(json, "aux"), forms[form].key);
            double truth = sum_of(array) / (double)forms[form].rounds;
            trial t = make_trial(&b, "single:world=1", SEQUENCES / forms[form].rounds,
                                 forms[form].rounds);
            t.settings.balance = forms[form].form;
            t.settings.balance_coefficient = 1;
            trial_result r = trial_run(&t);
            if (r.status != PL_OK) fail_msg("%s", r.words);
            double value = r.steps[0].balance_loss;
            if (!(fabs(value - truth) <= 1e-6 * truth))
                fail_msg("%s %s: %.9g, not %.9g", folders[i], forms[form].key, value, truth);
            trial_free(&r);
            if (forms[form].prefix)
                check_balance_gradient(&b, forms[form].form, forms[form].prefix);
        }
        json_decref(json);
        batch_close(&b);
    }
}

/* --- trajectories --- */

typedef struct trajectory {
    const char *name; /* "sgd" */
    pl_optimizer kind;
    double lr, decay, clip;
    double weight_limit; /* largest absolute difference */
    double moved_limit;  /* relative L2 of the change */
} trajectory;

/* The arrays PREFIX + name, sampled every eleven elements where they have two dimensions; NULL:
 * none. With INITIAL, distances are of what moved. */
static void compare_sampled(const batch *b, const pl_safetensors *file, const char *prefix,
                            const pl_tensor *tensor, const float *values_, const trajectory *limits,
                            int *compared)
{
    int64_t experts = tensor->experts > 0 ? tensor->experts : 1;
    int64_t elements = tensor->rows * tensor->cols;
    float *initial = malloc((size_t)pl_tensor_elements(tensor) * sizeof *initial);
    assert_ok(golden_values(&b->g, tensor, 0, pl_tensor_total_rows(tensor), initial));
    for (int64_t e = 0; e < experts; ++e) {
        pl_text name = {0};
        int64_t count = 0, stride = tensor->dimensions == 1 ? 1 : 11;
        double largest = 0, off = 0, moved = 0;
        pl_text_add_string(&name, prefix);
        if (tensor->experts > 0)
            pl_tensor_expert_name(&name, tensor, e);
        else
            pl_tensor_name(&name, tensor);
        float *truth = golden_array(file, pl_text_string(&name), &count);
        assert_int_equal(count, (elements + stride - 1) / stride);
        for (int64_t i = 0; i < count; ++i) {
            int64_t at = e * elements + i * stride;
            double difference = (double)values_[at] - (double)truth[i];
            double change = (double)truth[i] - (double)initial[at];
            largest = fmax(largest, fabs(difference));
            off += difference * difference;
            moved += change * change;
        }
        if (!(largest <= limits->weight_limit) ||
            !(sqrt(off) <= limits->moved_limit * sqrt(moved) + 1e-7))
            fail_msg("%s: off by %g, %g of what it moved", pl_text_string(&name), largest,
                     sqrt(off / moved));
        free(truth);
        pl_text_free(&name);
        ++*compared;
    }
    free(initial);
}

static void check_steps(const json_t *steps, const trial_result *r)
{
    for (size_t s = 0; s < json_array_size(steps); ++s) {
        const json_t *step = json_array_get(steps, s);
        double loss = number_of(step, "loss_sum"), norm = number_of(step, "grad_norm");
        double clip = number_of(step, "clip_coef");
        const pl_program_result *own = &r->steps[s];
        if (!(fabs(own->loss_sum - loss) <= 6e-7 * loss) ||
            !(fabs(own->norm - norm) <= 2e-6 * norm) || !(fabs(own->clip - clip) <= 2e-6 * clip))
            fail_msg("step %zu: loss %.9g norm %.9g clip %.9g, not %.9g %.9g %.9g", s,
                     own->loss_sum, own->norm, own->clip, loss, norm, clip);
    }
}

static void check_moments(const batch *b, const pl_safetensors *file, const trial_result *r)
{
    static const char *const prefixes[2] = {"exp_avg.", "exp_avg_sq."};
    int compared = 0;
    for (int64_t i = 0; i < b->g.model.tensor_count; ++i) {
        const pl_tensor *tensor = &b->g.model.tensors[i];
        int64_t experts = tensor->experts > 0 ? tensor->experts : 1;
        int64_t elements = tensor->rows * tensor->cols;
        for (int64_t e = 0; e < experts * 2; ++e) {
            pl_text name = {0};
            pl_text_add_string(&name, prefixes[e % 2]);
            if (tensor->experts > 0)
                pl_tensor_expert_name(&name, tensor, e / 2);
            else
                pl_tensor_name(&name, tensor);
            if (pl_safetensors_find(file, pl_text_string(&name))) {
                int64_t count = 0;
                float *truth = golden_array(file, pl_text_string(&name), &count);
                assert_int_equal(count, elements);
                double distance =
                    trial_distance(r->moment[e % 2][i] + e / 2 * elements, truth, elements);
                if (!(distance <= 3e-5)) fail_msg("%s: %g", pl_text_string(&name), distance);
                free(truth);
                ++compared;
            }
            pl_text_free(&name);
        }
    }
    assert_int_equal(compared, 10);
}

/* Two micro-batches as rounds, and as micro-batches carried together on two ranks. */
static void run_trajectory(const trajectory *limits)
{
    static const struct {
        const char *layout;
        int64_t micro, intra_layer, rounds;
    } ways[] = {{"single:world=1", 2, 1, 2}, {"legacy:world=2,ep=2", 1, 2, 1}};
    batch b;
    char file[64];
    pl_safetensors arrays;
    batch_open(&b, folders[0]);
    snprintf(file, sizeof file, "%s/%s.safetensors", folders[0], limits->name);
    assert_ok(pl_safetensors_open(&arrays, file));
    snprintf(file, sizeof file, "%s.json", limits->name);
    json_t *json = open_json(folders[0], file);
    for (int way = 0; way < 2; ++way) {
        int compared = 0;
        trial t = make_trial(&b, ways[way].layout, ways[way].micro, ways[way].rounds);
        t.settings.shape.intra_layer = ways[way].intra_layer;
        t.settings.optimizer = limits->kind;
        t.settings.clip = limits->clip;
        t.input.learning_rate = limits->lr;
        t.input.weight_decay = limits->decay;
        t.steps = 5;
        trial_result r = trial_run(&t);
        if (r.status != PL_OK) fail_msg("%s", r.words);
        check_steps(json_object_get(json, "float64"), &r);
        for (int64_t i = 0; i < b.g.model.tensor_count; ++i)
            compare_sampled(&b, &arrays, "final.", &b.g.model.tensors[i], r.weight[i], limits,
                            &compared);
        assert_true(compared > 70);
        if (limits->kind == PL_OPTIMIZER_ADAMW) check_moments(&b, &arrays, &r);
        trial_free(&r);
    }
    json_decref(json);
    pl_safetensors_close(&arrays);
    batch_close(&b);
}

static void sgd_trajectory(void **state)
{
    (void)state;
    run_trajectory(&(trajectory){"sgd", PL_OPTIMIZER_SGD, 0.01, 0, 1.0, 1e-6, 1e-3});
}

static void adamw_trajectory(void **state)
{
    (void)state;
    run_trajectory(&(trajectory){"adamw", PL_OPTIMIZER_ADAMW, 1e-3, 0.1, 1.0, 2.5e-4, 1e-3});
}

static void a_limit_that_cuts_only_the_first_step(void **state)
{
    batch b;
    (void)state;
    batch_open(&b, folders[0]);
    json_t *json = open_json(folders[0], "sgd.json");
    const json_t *sometimes = json_object_get(json, "clipped_only_sometimes");
    trial t = make_trial(&b, "single:world=1", 2, 2);
    t.settings.optimizer = PL_OPTIMIZER_SGD;
    t.settings.clip = number_of(sometimes, "clip_max_norm");
    t.input.learning_rate = 0.01;
    t.steps = 5;
    trial_result r = trial_run(&t);
    if (r.status != PL_OK) fail_msg("%s", r.words);
    check_steps(json_object_get(sometimes, "float64"), &r);
    assert_true(r.steps[0].clip < 1);
    assert_true(r.steps[1].clip == 1);
    trial_free(&r);
    json_decref(json);
    batch_close(&b);
}

/* --- what makes these tests fail --- */

static pl_status wrong_norm_mode(const char *folder, double *distance)
{
    batch b;
    int compared = 0;
    batch_open(&b, folder);
    pl_model wrong = b.g.model;
    wrong.norm_topk_prob = !wrong.norm_topk_prob;
    trial t = make_trial(&b, "single:world=1", SEQUENCES, 1);
    t.model = &wrong;
    trial_result r = trial_run(&t);
    pl_status status = r.status;
    *distance = farthest(&b, "grad.", r.sum_gradient, &compared);
    trial_free(&r);
    batch_close(&b);
    return status;
}

static void the_other_way_of_weighting_experts_is_caught(void **state)
{
    (void)state;
    for (int i = 0; i < 2; ++i) {
        double distance = 0;
        assert_ok(wrong_norm_mode(folders[i], &distance));
        assert_true(distance > 1e-2);
    }
}

static void another_epsilon_or_theta_is_caught(void **state)
{
    (void)state;
    for (int i = 0; i < 2; ++i) {
        batch b;
        int compared = 0;
        batch_open(&b, folders[0]);
        pl_model wrong = b.g.model;
        if (i == 0) wrong.rms_norm_eps = 1e-5;
        if (i == 1) wrong.rope_theta *= 1.01;
        trial t = make_trial(&b, "single:world=1", SEQUENCES, 1);
        t.model = &wrong;
        trial_result r = trial_run(&t);
        if (r.status != PL_OK) fail_msg("%s", r.words);
        assert_true(farthest(&b, "grad.", r.sum_gradient, &compared) > 2e-5);
        trial_free(&r);
        batch_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hidden_states_routes_logits_and_token_losses),
        cmocka_unit_test(loss_gradients_and_norm),
        cmocka_unit_test(masked_labels),
        cmocka_unit_test(load_balance_losses),
        cmocka_unit_test(sgd_trajectory),
        cmocka_unit_test(adamw_trajectory),
        cmocka_unit_test(a_limit_that_cuts_only_the_first_step),
        cmocka_unit_test(the_other_way_of_weighting_experts_is_caught),
        cmocka_unit_test(another_epsilon_or_theta_is_caught),
    };
    return cmocka_run_group_tests_name("train/huggingface", tests, NULL, NULL);
}
