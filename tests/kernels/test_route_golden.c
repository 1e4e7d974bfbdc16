/* Routing and load-balance losses of Hugging Face models (testdata/hf/README.md): from their
 * router logits, the same experts, weights and losses.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "common/memory.h"
#include "tests/kernels/router.h"

enum { TOKENS = 128, SEQUENCES = 4 };

typedef struct golden {
    const char *folder;
    int layers, dense; /* in all, and dense ones at the bottom */
    int64_t experts, chosen;
    bool normalise;
} golden;

static const golden models[] = {
    {"testdata/hf/qwen3-moe-tiny", 3, 0, 8, 2, true},
    {"testdata/hf/qwen3-moe-dense-first", 3, 1, 16, 4, false},
};

/* A whole safetensors file: eight bytes of length, a JSON header, data. */
typedef struct arrays {
    char *bytes;
    json_t *header;
    int64_t data;
} arrays;

static arrays read_arrays(const char *folder)
{
    char path[128];
    arrays a = {0};
    (void)snprintf(path, sizeof path, "%s/io.safetensors", folder);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    assert_true(size > 8);
    assert_int_equal(fseek(file, 0, SEEK_SET), 0);
    assert_ok(pl_allocate(&a.bytes, (size_t)size, 1, "golden arrays"));
    assert_int_equal(fread(a.bytes, 1, (size_t)size, file), size);
    assert_int_equal(fclose(file), 0);
    uint64_t length = 0;
    memcpy(&length, a.bytes, sizeof length);
    assert_true(length < (uint64_t)size - 8);
    a.header = json_loadb(a.bytes + 8, length, 0, NULL);
    assert_non_null(a.header);
    a.data = 8 + (int64_t)length;
    return a;
}

static void free_arrays(arrays *a)
{
    json_decref(a->header);
    pl_free(a->bytes);
}

/* "router.LAYER.NAME", BYTES long; aligned as floats need it. */
static const void *find_array(const arrays *a, int layer, const char *name, int64_t bytes)
{
    char key[64];
    (void)snprintf(key, sizeof key, "router.%d.%s", layer, name);
    const json_t *offsets = json_object_get(json_object_get(a->header, key), "data_offsets");
    int64_t begin = json_integer_value(json_array_get(offsets, 0));
    int64_t end = json_integer_value(json_array_get(offsets, 1));
    assert_int_equal(end - begin, bytes);
    return a->bytes + a->data + begin;
}

static double find_loss(const json_t *aux, const char *form, int sparse, int micro_batch)
{
    const json_t *value = json_array_get(json_object_get(aux, form), (size_t)sparse);
    if (json_is_array(value)) value = json_array_get(value, (size_t)micro_batch);
    assert_true(json_is_real(value));
    return json_real_value(value);
}

/* --- choices and weights --- */

static int ascending(const int32_t *choices, int64_t chosen, int64_t place)
{
    int smaller = 0;
    for (int64_t j = 0; j < chosen; ++j) smaller += choices[j] < choices[place];
    return smaller;
}

/* The golden choices are sorted by expert. */
static void check_choices(const golden *g, const arrays *a, int layer, const pl_routes *routes)
{
    int64_t bytes = TOKENS * g->chosen * 4;
    const char *index = find_array(a, layer, "index", bytes);
    const char *weight = find_array(a, layer, "weight", bytes);
    for (int64_t i = 0; i < TOKENS * g->chosen; ++i) {
        int64_t first = i / g->chosen * g->chosen;
        int64_t place = first + ascending(routes->choices + first, g->chosen, i - first);
        int32_t expert = 0;
        float expected = 0;
        memcpy(&expert, index + place * 4, sizeof expert);
        memcpy(&expected, weight + place * 4, sizeof expected);
        assert_int_equal(routes->choices[i], expert);
        assert_true(fabsf(routes->weights[i] - expected) <= 5e-6f);
    }
}

/* --- losses --- */

/* Tokens [FIRST, FIRST + TOKENS of C) through router and loss; running counts where given. */
static double loss_of(kernel_test *t, const router *r, const route_case *c, int64_t first,
                      int64_t *running, double running_tokens)
{
    pl_route_arguments a = arguments_of(r, c);
    a.logits += first * c->experts;
    assert_ok(run_route(t, &a));
    double loss_sums[2] = {0, 0};
    pl_balance_arguments b = {.counts = r->balance_counts,
                              .scores = r->balance_scores,
                              .running = running,
                              .running_begins = running_tokens == 0,
                              .loss_sums = loss_sums,
                              .layers = 1,
                              .micro_batches = 1,
                              .sets = c->sets,
                              .experts = c->experts,
                              .chosen = c->chosen,
                              .tokens = (double)(c->tokens / c->sets),
                              .running_tokens = running_tokens,
                              .factor = 1.0 / (double)c->sets};
    assert_ok(t->operations->balance(t->device, PL_STREAM_COMPUTE, &b));
    return loss_sums[1];
}

static void near(double actual, double expected)
{
    if (!(fabs(actual - expected) <= 1e-6 * expected))
        fail_msg("the loss is %.9g, should be %.9g", actual, expected);
}

static void check_losses(kernel_test *t, const golden *g, const router *r, const json_t *aux,
                         int sparse)
{
    route_case c = {TOKENS, g->experts, g->chosen, 1, g->normalise, false};
    near(loss_of(t, r, &c, 0, NULL, 0), find_loss(aux, "micro_batch", sparse, 0));
    c.sets = SEQUENCES;
    near(loss_of(t, r, &c, 0, NULL, 0), find_loss(aux, "sequence", sparse, 0));
    c.sets = 1;
    c.tokens = TOKENS / 2;
    router half = *r;
    half.routes.tokens = c.tokens;
    int64_t *running = kernel_bytes(t, g->experts * 8);
    near(loss_of(t, &half, &c, 0, running, 0), find_loss(aux, "global_batch", sparse, 0));
    near(loss_of(t, &half, &c, TOKENS / 2, running, TOKENS / 2),
         find_loss(aux, "global_batch", sparse, 1));
}

static void golden_model(kernel_test *t, const void *context)
{
    const golden *g = context;
    char path[128];
    arrays a = read_arrays(g->folder);
    (void)snprintf(path, sizeof path, "%s/io.json", g->folder);
    json_t *facts = json_load_file(path, 0, NULL);
    assert_non_null(facts);
    for (int layer = g->dense; layer < g->layers; ++layer) {
        route_case c = {TOKENS, g->experts, g->chosen, SEQUENCES, g->normalise, false};
        router r = make_router(t, &c);
        int64_t bytes = TOKENS * g->experts * 4;
        memcpy(r.logits, find_array(&a, layer, "logits", bytes), (size_t)bytes);
        pl_route_arguments arguments = arguments_of(&r, &c);
        assert_ok(run_route(t, &arguments));
        check_choices(g, &a, layer, &r.routes);
        check_losses(t, g, &r, json_object_get(facts, "aux"), layer - g->dense);
    }
    json_decref(facts);
    free_arrays(&a);
}

static void normalised_routes_are_those_of_hugging_face(void **state)
{
    (void)state;
    kernel_everywhere(golden_model, &models[0]);
}

static void plain_routes_are_those_of_hugging_face(void **state)
{
    (void)state;
    kernel_everywhere(golden_model, &models[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normalised_routes_are_those_of_hugging_face),
        cmocka_unit_test(plain_routes_are_those_of_hugging_face),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
