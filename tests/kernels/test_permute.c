/* Rows into the order of their destinations and back, against plain loops in double. */
#include <math.h>

#include "common/memory.h"
#include "tests/kernels/kernel_test.h"

enum { FLOAT = sizeof(float) };

typedef struct permute_case {
    int64_t tokens, chosen, cols;
} permute_case;

static const permute_case cases[] = {
    {1, 1, 1},  {5, 2, 15},  {64, 2, 16}, {65, 3, 17}, {130, 1, 33},
    {7, 8, 48}, {3, 6, 257}, {0, 2, 16},  {4, 2, 0},   {200, 4, 31},
};

/* A random order of all rows. */
static int32_t *make_slots(kernel_test *t, const permute_case *c)
{
    int64_t rows = c->tokens * c->chosen;
    int32_t *slots = kernel_bytes(t, rows * 4);
    for (int64_t i = 0; i < rows; ++i) {
        int64_t other = kernel_random_below(t, i + 1);
        slots[i] = slots[other];
        slots[other] = (int32_t)i;
    }
    return slots;
}

/* --- permute --- */

static pl_permute_arguments permute_arguments(const permute_case *c, const float *from,
                                              const int32_t *slots, float *to)
{
    return (pl_permute_arguments){.from = from,
                                  .slots = slots,
                                  .to = to,
                                  .dtype = PL_FP32,
                                  .tokens = c->tokens,
                                  .chosen = c->chosen,
                                  .cols = c->cols};
}

static void permute_one(kernel_test *t, const permute_case *c)
{
    int64_t rows = c->tokens * c->chosen, count = rows * c->cols;
    const float *y = kernel_floats(t, c->tokens * c->cols);
    float *send = kernel_room(t, count);
    const int32_t *slots = make_slots(t, c);
    pl_permute_arguments a = permute_arguments(c, y, slots, send);
    assert_ok(t->operations->permute(t->device, PL_STREAM_COMPUTE, &a));
    kernel_recorded(t, "permute", 0, count ? 3 : rows ? 1 : 0);
    if (count) {
        kernel_touched(t, y, c->tokens * c->cols * FLOAT, "r");
        kernel_touched(t, slots, rows * 4, "r");
        kernel_touched(t, send, count * FLOAT, "w");
    }
    for (int64_t i = 0; i < rows; ++i)
        kernel_same(send + slots[i] * c->cols, y + i / c->chosen * c->cols, (size_t)c->cols * FLOAT,
                    "a row sent");
}

static void permute_backward_one(kernel_test *t, const permute_case *c)
{
    int64_t rows = c->tokens * c->chosen, tokens = c->tokens * c->cols;
    const float *dsend = kernel_floats(t, rows * c->cols);
    float *dy = kernel_room(t, tokens);
    const int32_t *slots = make_slots(t, c);
    pl_permute_arguments a = permute_arguments(c, dsend, slots, dy);
    assert_ok(t->operations->permute_backward(t->device, PL_STREAM_COMPUTE, &a));
    kernel_recorded(t, "permute_backward", 0, tokens ? 3 : rows ? 1 : 0);
    if (tokens) {
        kernel_touched(t, dsend, rows * c->cols * FLOAT, "r");
        kernel_touched(t, dy, tokens * FLOAT, "w");
    }
    double *expected = kernel_doubles(tokens);
    for (int64_t i = 0; i < rows * c->cols; ++i)
        expected[i / c->cols / c->chosen * c->cols + i % c->cols] +=
            (double)dsend[slots[i / c->cols] * c->cols + i % c->cols];
    kernel_near(dy, expected, tokens, 1e-6, "dy");
    kernel_result(t, dy, (size_t)tokens * FLOAT);
    pl_free(expected);
}

static void permute_cases(kernel_test *t, const void *context)
{
    (void)context;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        permute_one(t, &cases[i]);
        permute_backward_one(t, &cases[i]);
    }
}

static void rows_go_to_their_slots_and_gradients_come_back(void **state)
{
    (void)state;
    kernel_everywhere(permute_cases, NULL);
}

/* --- merge --- */

static void merge_one(kernel_test *t, const permute_case *c)
{
    int64_t rows = c->tokens * c->chosen, tokens = c->tokens * c->cols;
    float *x = kernel_room(t, tokens);
    pl_merge_arguments a = {.h = kernel_floats(t, tokens),
                            .back = kernel_floats(t, rows * c->cols),
                            .weights = kernel_floats(t, rows),
                            .slots = make_slots(t, c),
                            .x = x,
                            .dtype = PL_FP32,
                            .tokens = c->tokens,
                            .chosen = c->chosen,
                            .cols = c->cols};
    const float *h = a.h, *back = a.back;
    assert_ok(t->operations->merge(t->device, PL_STREAM_COMPUTE, &a));
    kernel_recorded(t, "merge", 0, tokens ? 5 : rows ? 2 : 0);
    if (tokens) {
        kernel_touched(t, h, tokens * FLOAT, "r");
        kernel_touched(t, back, rows * c->cols * FLOAT, "r");
        kernel_touched(t, a.weights, rows * FLOAT, "r");
        kernel_touched(t, a.slots, rows * 4, "r");
        kernel_touched(t, x, tokens * FLOAT, "w");
    }
    double *expected = kernel_doubles(tokens);
    for (int64_t i = 0; i < tokens; ++i) expected[i] = (double)h[i];
    for (int64_t i = 0; i < rows * c->cols; ++i) {
        int64_t row = i / c->cols, col = i % c->cols;
        expected[row / c->chosen * c->cols + col] +=
            (double)a.weights[row] * (double)back[a.slots[row] * c->cols + col];
    }
    kernel_near(x, expected, tokens, 1e-6, "x");
    kernel_result(t, x, (size_t)tokens * FLOAT);
    pl_free(expected);
}

/* The gradients of sum(dx * merge), which is linear in back and in weights. */
static void check_merge_backward(const pl_merge_backward_arguments *a)
{
    const float *dx = a->dx, *back = a->back, *dback = a->dback;
    for (int64_t i = 0; i < a->tokens * a->chosen; ++i) {
        const float *dtoken = dx + i / a->chosen * a->cols;
        double product = 0, size = 1e-30;
        for (int64_t k = 0; k < a->cols; ++k) {
            int64_t at = a->slots[i] * a->cols + k;
            assert_true(dback[at] == a->weights[i] * dtoken[k]);
            if (!a->dweights) continue;
            product += (double)dtoken[k] * (double)back[at];
            size += fabs((double)dtoken[k] * (double)back[at]);
        }
        if (a->dweights) assert_true(fabs((double)a->dweights[i] - product) <= 1e-6 * size);
    }
}

static void merge_backward_one(kernel_test *t, const permute_case *c)
{
    int64_t rows = c->tokens * c->chosen, tokens = c->tokens * c->cols;
    float *dback = kernel_room(t, rows * c->cols), *dweights = kernel_room(t, rows);
    pl_merge_backward_arguments a = {.dx = kernel_floats(t, tokens),
                                     .back = kernel_floats(t, rows * c->cols),
                                     .weights = kernel_floats(t, rows),
                                     .slots = make_slots(t, c),
                                     .dback = dback,
                                     .dweights = dweights,
                                     .dtype = PL_FP32,
                                     .tokens = c->tokens,
                                     .chosen = c->chosen,
                                     .cols = c->cols};
    assert_ok(t->operations->merge_backward(t->device, PL_STREAM_COMPUTE, &a));
    kernel_recorded(t, "merge_backward", 0, tokens ? 6 : rows ? 3 : 0);
    if (tokens) {
        kernel_touched(t, a.dx, tokens * FLOAT, "r");
        kernel_touched(t, a.back, rows * c->cols * FLOAT, "r");
        kernel_touched(t, dback, rows * c->cols * FLOAT, "w");
        kernel_touched(t, dweights, rows * FLOAT, "w");
    }
    check_merge_backward(&a);
    kernel_result(t, dback, (size_t)(rows * c->cols) * FLOAT);
    kernel_result(t, dweights, (size_t)rows * FLOAT);
    a.back = NULL;
    a.dweights = NULL;
    a.dback = kernel_room(t, rows * c->cols);
    assert_ok(t->operations->merge_backward(t->device, PL_STREAM_COMPUTE, &a));
    kernel_recorded(t, "merge_backward", 0, tokens ? 4 : rows ? 2 : 0);
    kernel_same(a.dback, dback, (size_t)(rows * c->cols) * FLOAT, "dback alone");
}

static void merge_cases(kernel_test *t, const void *context)
{
    (void)context;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        merge_one(t, &cases[i]);
        merge_backward_one(t, &cases[i]);
    }
}

static void tokens_get_weighted_sums_and_pass_gradients_on(void **state)
{
    (void)state;
    kernel_everywhere(merge_cases, NULL);
}

/* --- what is refused --- */

static void refuse(kernel_test *t, const void *context)
{
    const permute_case c = {5, 2, 16};
    int32_t *slots = make_slots(t, &c);
    float *tokens = kernel_room(t, 80), *rows = kernel_room(t, 160);
    pl_permute_arguments a = permute_arguments(&c, tokens, slots, rows);
    pl_merge_arguments m = {.h = tokens, .back = rows, .weights = rows, .x = tokens};
    pl_merge_backward_arguments b = {.dx = tokens, .back = rows, .weights = rows, .dback = rows};
    (void)context;
    m.slots = b.slots = slots;
    m.dtype = b.dtype = PL_FP32;
    m.tokens = b.tokens = 5;
    m.chosen = b.chosen = 2;
    m.cols = b.cols = 16;
    for (int i = 0; i < 2; ++i) {
        slots[7] = i == 0 ? 10 : -1;
        assert_fails(PL_INTERNAL, t->operations->permute(t->device, PL_STREAM_COMPUTE, &a),
                     "permute in entry", "slots are numbers of rows");
        assert_fails(PL_INTERNAL, t->operations->permute_backward(t->device, PL_STREAM_COMPUTE, &a),
                     "permute_backward", "slots are numbers of rows");
        assert_fails(PL_INTERNAL, t->operations->merge(t->device, PL_STREAM_COMPUTE, &m),
                     "merge in entry", "slots are numbers of rows");
        assert_fails(PL_INTERNAL, t->operations->merge_backward(t->device, PL_STREAM_COMPUTE, &b),
                     "merge_backward", "slots are numbers of rows");
    }
    a.dtype = m.dtype = b.dtype = PL_BF16;
    assert_fails(PL_UNSUPPORTED, t->operations->permute(t->device, PL_STREAM_COMPUTE, &a),
                 "permute", "bf16");
    assert_fails(PL_UNSUPPORTED, t->operations->merge(t->device, PL_STREAM_COMPUTE, &m), "bf16");
    assert_fails(PL_UNSUPPORTED, t->operations->merge_backward(t->device, PL_STREAM_COMPUTE, &b),
                 "bf16");
    a.dtype = PL_FP32;
    a.chosen = 0;
    assert_fails(PL_INTERNAL, t->operations->permute(t->device, PL_STREAM_COMPUTE, &a),
                 "chooses an expert");
    a.chosen = 2;
    a.tokens = -1;
    assert_fails(PL_INTERNAL, t->operations->permute(t->device, PL_STREAM_COMPUTE, &a),
                 "at least 0");
    assert_int_equal(t->records, 0);
}

static void wrong_slots_and_types_are_refused(void **state)
{
    (void)state;
    kernel_once(refuse, NULL, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_go_to_their_slots_and_gradients_come_back),
        cmocka_unit_test(tokens_get_weighted_sums_and_pass_gradients_on),
        cmocka_unit_test(wrong_slots_and_types_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
