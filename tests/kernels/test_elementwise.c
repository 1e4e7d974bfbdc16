/* Sums, biases, SwiGLU and the token embedding. */
#include <math.h>

#include "common/memory.h"
#include "tests/kernels/kernel_test.h"

enum { FLOAT = sizeof(float) };

/* The last ones are more than a block. */
static const int64_t counts[] = {0, 1, 7, 15, 16, 17, 33, 100, 32768, 32769, 100001};
enum { COUNTS = sizeof counts / sizeof *counts };

/* --- sum --- */

static void sums(kernel_test *t, const void *context)
{
    (void)context;
    for (int c = 0; c < COUNTS; ++c) {
        int64_t count = counts[c];
        float *a = kernel_floats(t, count), *b = kernel_floats(t, count);
        float *to = kernel_room(t, count), *kept = kernel_copy(t, a, count);
        pl_sum_arguments s = {a, b, to, PL_FP32, count};
        assert_ok(t->operations->sum(t->device, PL_STREAM_COMPUTE, &s));
        kernel_recorded(t, "sum", 0, count ? 3 : 0);
        if (count) kernel_touched(t, a, count * FLOAT, "r");
        if (count) kernel_touched(t, b, count * FLOAT, "r");
        if (count) kernel_touched(t, to, count * FLOAT, "w");
        for (int64_t i = 0; i < count; ++i) assert_true(to[i] == a[i] + b[i]);
        kernel_result(t, to, (size_t)count * FLOAT);
        s.to = a;
        assert_ok(t->operations->sum(t->device, PL_STREAM_COMPUTE, &s));
        kernel_same(a, to, (size_t)count * FLOAT, "the sum in place of a");
        s.a = kept;
        s.to = b;
        assert_ok(t->operations->sum(t->device, PL_STREAM_COMPUTE, &s));
        kernel_same(b, to, (size_t)count * FLOAT, "the sum in place of b");
    }
}

static void sums_are_exact(void **state)
{
    (void)state;
    kernel_everywhere(sums, NULL);
}

/* --- biases --- */

typedef struct matrix {
    int64_t rows, cols;
} matrix;

static const matrix matrices[] = {{0, 5},  {3, 0},   {1, 1},     {5, 15},     {4, 16},
                                  {7, 17}, {63, 33}, {130, 200}, {1000, 130}, {2, 40000}};
enum { MATRICES = sizeof matrices / sizeof *matrices };

static void biases(kernel_test *t, const void *context)
{
    (void)context;
    for (int c = 0; c < MATRICES; ++c) {
        int64_t rows = matrices[c].rows, cols = matrices[c].cols, count = rows * cols;
        float *x = kernel_floats(t, count), *bias = kernel_floats(t, cols);
        const float *before = kernel_copy(t, x, count);
        pl_bias_arguments a = {x, bias, PL_FP32, rows, cols};
        assert_ok(t->operations->bias(t->device, PL_STREAM_COMPUTE, &a));
        kernel_recorded(t, "bias", 0, (count > 0) + (cols > 0));
        if (count) kernel_touched(t, x, count * FLOAT, "rw");
        if (cols) kernel_touched(t, bias, cols * FLOAT, "r");
        for (int64_t i = 0; i < count; ++i) assert_true(x[i] == before[i] + bias[i % cols]);
        kernel_result(t, x, (size_t)count * FLOAT);
    }
}

static void a_bias_is_added_to_each_row(void **state)
{
    (void)state;
    kernel_everywhere(biases, NULL);
}

static void bias_gradients(kernel_test *t, const void *context)
{
    (void)context;
    for (int c = 0; c < MATRICES; ++c) {
        int64_t rows = matrices[c].rows, cols = matrices[c].cols, count = rows * cols;
        const float *x = kernel_floats(t, count);
        float *to = kernel_room(t, cols), *added = kernel_floats(t, cols);
        double *expected = kernel_doubles(cols), *more = kernel_doubles(cols);
        for (int64_t i = 0; i < count; ++i) expected[i % cols] += (double)x[i];
        for (int64_t i = 0; i < cols; ++i) more[i] = expected[i] + (double)added[i];
        pl_bias_backward_arguments a = {x, to, PL_FP32, rows, cols, false};
        assert_ok(t->operations->bias_backward(t->device, PL_STREAM_COMPUTE, &a));
        kernel_recorded(t, "bias_backward", 0, (count > 0) + (cols > 0));
        if (count) kernel_touched(t, x, count * FLOAT, "r");
        if (cols) kernel_touched(t, to, cols * FLOAT, "w");
        kernel_near(to, expected, cols, 2e-6, "the gradient of a bias");
        a.to = added;
        a.add = true;
        assert_ok(t->operations->bias_backward(t->device, PL_STREAM_COMPUTE, &a));
        if (cols) kernel_touched(t, added, cols * FLOAT, "rw");
        kernel_near(added, more, cols, 2e-6, "the gradient of a bias, added");
        kernel_result(t, to, (size_t)cols * FLOAT);
        kernel_result(t, added, (size_t)cols * FLOAT);
        pl_free(expected);
        pl_free(more);
    }
}

static void the_gradient_of_a_bias_is_the_sum_of_the_rows(void **state)
{
    (void)state;
    kernel_everywhere(bias_gradients, NULL);
}

/* --- SwiGLU --- */

static double plain_swiglu(double gate, double up) { return gate / (1 + exp(-gate)) * up; }

/* Values far out, where exp overflows or nothing is left, among ordinary ones. */
static float *make_gates(kernel_test *t, int64_t count)
{
    static const float special[] = {0, -0.0f, 1e-20f, 20, -20, 88, -88, 100, -100, 1e4f, -1e4f};
    float *gate = kernel_floats(t, count);
    for (int64_t i = 0; i < count; ++i) {
        gate[i] *= 8;
        if (i % 5 == 3) gate[i] = special[i / 5 % 11];
    }
    return gate;
}

static void swiglu(kernel_test *t, const void *context)
{
    (void)context;
    for (int c = 0; c < COUNTS; ++c) {
        int64_t count = counts[c];
        const float *gate = make_gates(t, count), *up = kernel_floats(t, count);
        float *act = kernel_room(t, count);
        pl_swiglu_arguments a = {gate, up, act, PL_FP32, count};
        assert_ok(t->operations->swiglu(t->device, PL_STREAM_COMPUTE, &a));
        kernel_recorded(t, "swiglu", 0, count ? 3 : 0);
        if (count) kernel_touched(t, gate, count * FLOAT, "r");
        if (count) kernel_touched(t, up, count * FLOAT, "r");
        if (count) kernel_touched(t, act, count * FLOAT, "w");
        for (int64_t i = 0; i < count; ++i) { /* each by itself: they differ in size */
            double expected = plain_swiglu((double)gate[i], (double)up[i]);
            double bound = 1e-6 * fabs(expected) + 1e-37;
            if (!(fabs((double)act[i] - expected) <= bound))
                fail_msg("act of %g, %g is %g, should be %g", (double)gate[i], (double)up[i],
                         (double)act[i], expected);
        }
        kernel_result(t, act, (size_t)count * FLOAT);
    }
}

static void swiglu_equals_plain_arithmetic(void **state)
{
    (void)state;
    kernel_everywhere(swiglu, NULL);
}

static double silu_slope(double gate)
{
    double s = 1 / (1 + exp(-gate));
    return s * (1 + gate * (1 - s));
}

static void swiglu_gradients(kernel_test *t, const void *context)
{
    (void)context;
    for (int c = 0; c < COUNTS; ++c) {
        int64_t count = counts[c];
        float *gate = make_gates(t, count), *up = kernel_floats(t, count);
        float *dact = kernel_floats(t, count);
        float *dgate = kernel_room(t, count), *dup = kernel_room(t, count);
        pl_swiglu_backward_arguments a = {gate, up, dact, dgate, dup, PL_FP32, count};
        assert_ok(t->operations->swiglu_backward(t->device, PL_STREAM_COMPUTE, &a));
        kernel_recorded(t, "swiglu_backward", 0, count ? 5 : 0);
        if (count) kernel_touched(t, dact, count * FLOAT, "r");
        if (count) kernel_touched(t, dgate, count * FLOAT, "w");
        if (count) kernel_touched(t, dup, count * FLOAT, "w");
        for (int64_t i = 0; i < count; ++i) {
            double g = gate[i], u = up[i], d = dact[i];
            double right_gate = d * u * silu_slope(g), right_up = d * plain_swiglu(g, 1);
            /* 1 + g (1 - s) cancels where the slope is small */
            double bound = 2e-6 * (fabs(d * u) / (1 + exp(-g)) * (1 + fabs(g))) + 1e-37;
            assert_true(fabs((double)dgate[i] - right_gate) <= bound);
            assert_true(fabs((double)dup[i] - right_up) <= 1e-6 * fabs(right_up) + 1e-37);
        }
        kernel_result(t, dgate, (size_t)count * FLOAT);
        kernel_result(t, dup, (size_t)count * FLOAT);
        a.dgate = dact; /* each may stand where an operand was */
        a.dup = gate;
        assert_ok(t->operations->swiglu_backward(t->device, PL_STREAM_COMPUTE, &a));
        kernel_same(dact, dgate, (size_t)count * FLOAT, "dgate in place of dact");
        kernel_same(gate, dup, (size_t)count * FLOAT, "dup in place of gate");
    }
}

static void gradients_of_swiglu_equal_plain_arithmetic(void **state)
{
    (void)state;
    /* The slope that is compared with is right: by differences. */
    for (int i = -20; i <= 20; ++i) {
        double g = 0.41 * i;
        double difference = (plain_swiglu(g + 1e-5, 1) - plain_swiglu(g - 1e-5, 1)) / 2e-5;
        assert_true(fabs(difference - silu_slope(g)) < 1e-8);
    }
    kernel_everywhere(swiglu_gradients, NULL);
}

/* --- embedding --- */

typedef struct table {
    int64_t count, vocabulary, cols;
} table;

static const table tables[] = {{0, 3, 5},    {4, 1, 1},      {7, 5, 15},    {9, 3, 16},
                               {33, 17, 33}, {200, 40, 130}, {5, 9, 40000}, {3, 2, 0}};
enum { TABLES = sizeof tables / sizeof *tables };

/* Few tokens take most of the places, and some none. */
static int32_t *make_tokens(kernel_test *t, const table *s)
{
    int32_t *tokens = kernel_bytes(t, s->count * (int64_t)sizeof *tokens);
    for (int64_t i = 0; i < s->count; ++i) {
        int64_t token = kernel_random_below(t, s->vocabulary);
        tokens[i] = (int32_t)(i % 3 ? token : s->vocabulary - 1);
    }
    return tokens;
}

static void embedding(kernel_test *t, const void *context)
{
    (void)context;
    for (int c = 0; c < TABLES; ++c) {
        const table *s = &tables[c];
        const float *values = kernel_floats(t, s->vocabulary * s->cols);
        const int32_t *tokens = make_tokens(t, s);
        float *x = kernel_room(t, s->count * s->cols);
        pl_embed_arguments a = {values, tokens, x, PL_FP32, s->count, s->vocabulary, s->cols};
        assert_ok(t->operations->embed(t->device, PL_STREAM_COMPUTE, &a));
        kernel_recorded(t, "embed", 0,
                        (s->cols > 0) + (s->count > 0) + (s->count > 0 && s->cols > 0));
        if (s->cols) kernel_touched(t, values, s->vocabulary * s->cols * FLOAT, "r");
        if (s->count) kernel_touched(t, tokens, s->count * 4, "r");
        if (s->count && s->cols) kernel_touched(t, x, s->count * s->cols * FLOAT, "w");
        for (int64_t i = 0; i < s->count; ++i)
            kernel_same(x + i * s->cols, values + tokens[i] * s->cols, (size_t)s->cols * FLOAT,
                        "a row");
        kernel_result(t, x, (size_t)(s->count * s->cols) * FLOAT);
    }
}

static void rows_of_the_table_are_looked_up(void **state)
{
    (void)state;
    kernel_everywhere(embedding, NULL);
}

static void embedding_gradients(kernel_test *t, const void *context)
{
    (void)context;
    for (int c = 0; c < TABLES; ++c) {
        const table *s = &tables[c];
        int64_t size = s->vocabulary * s->cols;
        const float *dx = kernel_floats(t, s->count * s->cols);
        const int32_t *tokens = make_tokens(t, s);
        float *written = kernel_room(t, size), *added = kernel_floats(t, size);
        float *expected = kernel_copy(t, added, size);
        for (int64_t i = 0; i < s->count; ++i) /* in the order of the tokens: the same bits */
            for (int64_t j = 0; j < s->cols; ++j)
                expected[tokens[i] * s->cols + j] += dx[i * s->cols + j];
        pl_embed_backward_arguments a = {dx,      tokens,   added,         true,
                                         PL_FP32, s->count, s->vocabulary, s->cols};
        assert_ok(t->operations->embed_backward(t->device, PL_STREAM_COMPUTE, &a));
        kernel_recorded(t, "embed_backward", 0,
                        (s->cols > 0) + (s->count > 0) + (s->count > 0 && s->cols > 0));
        if (size) kernel_touched(t, added, size * FLOAT, "rw");
        kernel_same(added, expected, (size_t)size * FLOAT, "a table that is added to");
        for (int64_t i = 0; i < size; ++i) expected[i] = 0;
        for (int64_t i = 0; i < s->count; ++i)
            for (int64_t j = 0; j < s->cols; ++j)
                expected[tokens[i] * s->cols + j] += dx[i * s->cols + j];
        a.dtable = written;
        a.add = false;
        assert_ok(t->operations->embed_backward(t->device, PL_STREAM_COMPUTE, &a));
        if (size) kernel_touched(t, written, size * FLOAT, "w");
        if (s->count && s->cols) kernel_touched(t, dx, s->count * s->cols * FLOAT, "r");
        kernel_same(written, expected, (size_t)size * FLOAT, "a table that is written");
    }
}

static void gradients_of_tokens_are_added_in_their_order(void **state)
{
    (void)state;
    kernel_everywhere(embedding_gradients, NULL);
}

/* --- refusals --- */

static void refusals(kernel_test *t, const void *context)
{
    (void)context;
    const pl_operations *o = t->operations;
    pl_device *device = t->device;
    pl_stream stream = PL_STREAM_COMPUTE;
    float *x = kernel_floats(t, 64);
    int32_t *tokens = kernel_bytes(t, 8);
    tokens[0] = 1;
    tokens[1] = 3;
    pl_sum_arguments sum = {x, x, x, PL_BF16, 4};
    assert_fails(PL_UNSUPPORTED, o->sum(device, stream, &sum), "sum", "loss head", "bf16");
    sum.dtype = PL_FP32;
    sum.b = NULL;
    assert_fails(PL_INTERNAL, o->sum(device, stream, &sum), "operands");
    sum.count = -3;
    assert_fails(PL_INTERNAL, o->sum(device, stream, &sum), "at least 0");
    pl_bias_arguments bias = {x, x, PL_FP16, 2, 2};
    assert_fails(PL_UNSUPPORTED, o->bias(device, stream, &bias), "bias", "fp16");
    bias = (pl_bias_arguments){x, NULL, PL_FP32, 2, 2};
    assert_fails(PL_INTERNAL, o->bias(device, stream, &bias), "bias");
    pl_bias_backward_arguments back = {x, x, PL_BF16, 2, 2, false};
    assert_fails(PL_UNSUPPORTED, o->bias_backward(device, stream, &back), "bias_backward", "bf16");
    back = (pl_bias_backward_arguments){x, NULL, PL_FP32, 2, 2, false};
    assert_fails(PL_INTERNAL, o->bias_backward(device, stream, &back), "to are given");
    pl_swiglu_arguments swi = {x, x, x, PL_BF16, 4};
    assert_fails(PL_UNSUPPORTED, o->swiglu(device, stream, &swi), "swiglu", "bf16");
    swi = (pl_swiglu_arguments){x, NULL, x, PL_FP32, 4};
    assert_fails(PL_INTERNAL, o->swiglu(device, stream, &swi), "gate, up and act");
    pl_swiglu_backward_arguments swib = {x, x, x, x, x, PL_BF16, 4};
    assert_fails(PL_UNSUPPORTED, o->swiglu_backward(device, stream, &swib), "swiglu_back", "bf16");
    swib = (pl_swiglu_backward_arguments){x, x, x, x, NULL, PL_FP32, 4};
    assert_fails(PL_INTERNAL, o->swiglu_backward(device, stream, &swib), "dup");
    assert_int_equal(t->records, 0);
    pl_embed_arguments embed = {x, tokens, x + 32, PL_BF16, 2, 3, 4};
    assert_fails(PL_UNSUPPORTED, o->embed(device, stream, &embed), "embed", "bf16");
    embed.dtype = PL_FP32;
    assert_fails(PL_INTERNAL, o->embed(device, stream, &embed), "token 3 at place 1",
                 "vocabulary of 3");
    tokens[0] = -1;
    pl_embed_backward_arguments embedb = {x, tokens, x + 32, false, PL_BF16, 2, 3, 4};
    assert_fails(PL_UNSUPPORTED, o->embed_backward(device, stream, &embedb), "bf16");
    embedb.dtype = PL_FP32;
    assert_fails(PL_INTERNAL, o->embed_backward(device, stream, &embedb), "token -1 at place 0");
    embedb.dtable = NULL;
    assert_fails(PL_INTERNAL, o->embed_backward(device, stream, &embedb), "dtable");
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    kernel_once(refusals, NULL, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_exact),
        cmocka_unit_test(a_bias_is_added_to_each_row),
        cmocka_unit_test(the_gradient_of_a_bias_is_the_sum_of_the_rows),
        cmocka_unit_test(swiglu_equals_plain_arithmetic),
        cmocka_unit_test(gradients_of_swiglu_equal_plain_arithmetic),
        cmocka_unit_test(rows_of_the_table_are_looked_up),
        cmocka_unit_test(gradients_of_tokens_are_added_in_their_order),
        cmocka_unit_test(wrong_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
