/* RMSNorm over rows and over heads with rotary embedding, and their backward passes. */
#include <math.h>

#include "common/memory.h"
#include "tests/kernels/kernel_test.h"

enum { FLOAT = sizeof(float) };

static const double epsilon = 1e-5;

static double mean_square(const double *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += x[i] * x[i];
    return sum / (double)count;
}

/* In doubles: a copy of floats. */
static double *widened(const float *values, int64_t count)
{
    double *wide = kernel_doubles(count);
    for (int64_t i = 0; i < count; ++i) wide[i] = values[i];
    return wide;
}

/* The derivative of VALUE with respect to *X, by central differences in double. */
typedef double (*scalar_function)(const void *context);

static double derivative(scalar_function value, const void *context, double *x)
{
    const double step = 1e-5, kept = *x;
    *x = kept + step;
    double above = value(context);
    *x = kept - step;
    double below = value(context);
    *x = kept;
    return (above - below) / (2 * step);
}

/* --- rows --- */

typedef struct norm_case {
    int64_t rows, cols;
} norm_case;

static const norm_case norm_cases[] = {{1, 1},   {3, 15},  {2, 16},   {5, 17}, {7, 33},
                                       {2, 100}, {1, 257}, {700, 48}, {0, 16}, {3, 40000}};

static void plain_norm(const double *x, const double *weight, double *y, int64_t cols)
{
    double rstd = 1 / sqrt(mean_square(x, cols) + epsilon);
    for (int64_t i = 0; i < cols; ++i) y[i] = x[i] * rstd * weight[i];
}

static void norm_forward(kernel_test *t, const norm_case *s)
{
    int64_t count = s->rows * s->cols;
    const float *x = kernel_floats(t, count), *weight = kernel_floats(t, s->cols);
    float *y = kernel_room(t, count), *rstd = kernel_room(t, s->rows),
          *other = kernel_room(t, count);
    pl_rms_norm_arguments a = {.x = x,
                               .weight = weight,
                               .y = y,
                               .rstd = rstd,
                               .dtype = PL_FP32,
                               .rows = s->rows,
                               .cols = s->cols,
                               .epsilon = epsilon};
    double *wide = widened(x, count), *wide_weight = widened(weight, s->cols);
    double *expected = kernel_doubles(count), *expected_rstd = kernel_doubles(s->rows);
    for (int64_t row = 0; row < s->rows; ++row) {
        plain_norm(wide + row * s->cols, wide_weight, expected + row * s->cols, s->cols);
        expected_rstd[row] = 1 / sqrt(mean_square(wide + row * s->cols, s->cols) + epsilon);
    }
    assert_ok(t->operations->rms_norm(t->device, PL_STREAM_COMPUTE, &a));
    kernel_recorded(t, "rms_norm", 0, s->rows ? 4 : 1);
    if (count) {
        kernel_touched(t, x, count * FLOAT, "r");
        kernel_touched(t, weight, s->cols * FLOAT, "r");
        kernel_touched(t, y, count * FLOAT, "w");
        kernel_touched(t, rstd, s->rows * FLOAT, "w");
    }
    kernel_near(y, expected, count, 1e-6, "y");
    kernel_near(rstd, expected_rstd, s->rows, 1e-6, "rstd");
    a.y = other;
    a.rstd = NULL;
    assert_ok(t->operations->rms_norm(t->device, PL_STREAM_COMPUTE, &a));
    kernel_same(y, other, (size_t)count * FLOAT, "y without rstd kept");
    kernel_result(t, y, (size_t)count * FLOAT);
    pl_free(wide);
    pl_free(wide_weight);
    pl_free(expected);
    pl_free(expected_rstd);
}

static void norm_forward_cases(kernel_test *t, const void *context)
{
    (void)context;
    for (size_t i = 0; i < sizeof norm_cases / sizeof *norm_cases; ++i)
        norm_forward(t, &norm_cases[i]);
}

static void rows_are_normed(void **state)
{
    (void)state;
    kernel_everywhere(norm_forward_cases, NULL);
}

/* Sum over all of dy * norm(x). */
typedef struct norm_objective {
    int64_t rows, cols;
    double *x, *weight, *dy, *y;
} norm_objective;

static double norm_value(const void *context)
{
    const norm_objective *o = context;
    double sum = 0;
    for (int64_t row = 0; row < o->rows; ++row) {
        plain_norm(o->x + row * o->cols, o->weight, o->y, o->cols);
        for (int64_t i = 0; i < o->cols; ++i) sum += o->dy[row * o->cols + i] * o->y[i];
    }
    return sum;
}

static void norm_differences(kernel_test *t, const void *context)
{
    (void)context;
    enum { ROWS = 3, COLS = 17, COUNT = ROWS * COLS };
    const float *x = kernel_floats(t, COUNT), *weight = kernel_floats(t, COLS);
    const float *dy = kernel_floats(t, COUNT);
    float *dx = kernel_room(t, COUNT), *dweight = kernel_room(t, COLS);
    pl_rms_norm_backward_arguments a = {.x = x,
                                        .weight = weight,
                                        .dy = dy,
                                        .dx = dx,
                                        .dweight = dweight,
                                        .dtype = PL_FP32,
                                        .rows = ROWS,
                                        .cols = COLS,
                                        .epsilon = epsilon};
    assert_ok(t->operations->rms_norm_backward(t->device, PL_STREAM_COMPUTE, &a));
    norm_objective o = {ROWS,
                        COLS,
                        widened(x, COUNT),
                        widened(weight, COLS),
                        widened(dy, COUNT),
                        kernel_doubles(COLS)};
    double expected[COUNT], expected_weight[COLS];
    for (int i = 0; i < COUNT; ++i) expected[i] = derivative(norm_value, &o, &o.x[i]);
    for (int i = 0; i < COLS; ++i) expected_weight[i] = derivative(norm_value, &o, &o.weight[i]);
    kernel_near(dx, expected, COUNT, 1e-6, "dx");
    kernel_near(dweight, expected_weight, COLS, 1e-6, "dweight");
    pl_free(o.x);
    pl_free(o.weight);
    pl_free(o.dy);
    pl_free(o.y);
}

static void gradients_of_rows_are_differences(void **state)
{
    (void)state;
    kernel_everywhere(norm_differences, NULL);
}

/* Closed forms in double, shown right by the differences above. */
static void plain_norm_backward(const double *x, const double *weight, const double *dy, double *dx,
                                double *dweight, int64_t cols)
{
    double rstd = 1 / sqrt(mean_square(x, cols) + epsilon), dot = 0;
    for (int64_t i = 0; i < cols; ++i) dot += weight[i] * dy[i] * x[i];
    for (int64_t i = 0; i < cols; ++i) {
        dx[i] = rstd * (weight[i] * dy[i] - x[i] * rstd * rstd * dot / (double)cols);
        dweight[i] += dy[i] * x[i] * rstd;
    }
}

typedef struct norm_arrays {
    double *x, *weight, *dy, *dx, *dweight;
} norm_arrays;

static norm_arrays expected_gradients(const norm_case *s, const float *x, const float *weight,
                                      const float *dy)
{
    int64_t count = s->rows * s->cols;
    norm_arrays e = {widened(x, count), widened(weight, s->cols), widened(dy, count),
                     kernel_doubles(count), kernel_doubles(s->cols)};
    for (int64_t row = 0; row < s->rows; ++row)
        plain_norm_backward(e.x + row * s->cols, e.weight, e.dy + row * s->cols,
                            e.dx + row * s->cols, e.dweight, s->cols);
    return e;
}

static void free_gradients(norm_arrays *e)
{
    pl_free(e->x);
    pl_free(e->weight);
    pl_free(e->dy);
    pl_free(e->dx);
    pl_free(e->dweight);
}

static void norm_backward(kernel_test *t, const norm_case *s)
{
    int64_t count = s->rows * s->cols;
    const float *x = kernel_floats(t, count), *weight = kernel_floats(t, s->cols);
    const float *dy = kernel_floats(t, count), *residual = kernel_floats(t, count);
    float *dx = kernel_room(t, count), *dweight = kernel_floats(t, s->cols);
    float *rstd = kernel_room(t, s->rows), *y = kernel_room(t, count);
    pl_rms_norm_arguments forward = {x, weight, y, rstd, PL_FP32, s->rows, s->cols, epsilon};
    assert_ok(t->operations->rms_norm(t->device, PL_STREAM_COMPUTE, &forward));
    norm_arrays e = expected_gradients(s, x, weight, dy);
    pl_rms_norm_backward_arguments a = {.x = x,
                                        .weight = weight,
                                        .dy = dy,
                                        .rstd = rstd,
                                        .residual = residual,
                                        .dx = dx,
                                        .dweight = dweight,
                                        .add = false,
                                        .dtype = PL_FP32,
                                        .rows = s->rows,
                                        .cols = s->cols,
                                        .epsilon = epsilon};
    assert_ok(t->operations->rms_norm_backward(t->device, PL_STREAM_COMPUTE, &a));
    kernel_recorded(t, "rms_norm_backward", 0, s->rows ? 7 : 2);
    kernel_touched(t, dweight, s->cols * FLOAT, "w");
    if (count) {
        kernel_touched(t, rstd, s->rows * FLOAT, "r");
        kernel_touched(t, residual, count * FLOAT, "r");
        kernel_touched(t, dx, count * FLOAT, "w");
    }
    kernel_near(dweight, e.dweight, s->cols, 3e-6, "dweight");
    for (int64_t i = 0; i < count; ++i) e.dx[i] += (double)residual[i];
    kernel_near(dx, e.dx, count, 2e-6, "dx");
    kernel_result(t, dx, (size_t)count * FLOAT);
    kernel_result(t, dweight, (size_t)s->cols * FLOAT);
    /* In place of the residual, adding to dweight, without rstd. */
    float *both = kernel_copy(t, residual, count);
    a.residual = a.dx = both;
    a.rstd = NULL;
    a.add = true;
    assert_ok(t->operations->rms_norm_backward(t->device, PL_STREAM_COMPUTE, &a));
    if (count) kernel_touched(t, both, count * FLOAT, "rw");
    kernel_touched(t, dweight, s->cols * FLOAT, "rw");
    kernel_same(both, dx, (size_t)count * FLOAT, "dx in place of the residual");
    for (int64_t i = 0; i < s->cols; ++i) e.dweight[i] *= 2;
    kernel_near(dweight, e.dweight, s->cols, 3e-6, "dweight, added");
    /* Only one of the two. */
    float *alone = kernel_room(t, s->cols);
    a = (pl_rms_norm_backward_arguments){.x = x,
                                         .dy = dy,
                                         .rstd = rstd,
                                         .dweight = alone,
                                         .dtype = PL_FP32,
                                         .rows = s->rows,
                                         .cols = s->cols};
    assert_ok(t->operations->rms_norm_backward(t->device, PL_STREAM_COMPUTE, &a));
    for (int64_t i = 0; i < s->cols; ++i) e.dweight[i] /= 2;
    kernel_near(alone, e.dweight, s->cols, 3e-6, "dweight alone");
    a.dweight = NULL;
    a.weight = weight;
    a.dx = y;
    assert_ok(t->operations->rms_norm_backward(t->device, PL_STREAM_COMPUTE, &a));
    for (int64_t i = 0; i < count; ++i) e.dx[i] -= (double)residual[i];
    /* Of a row of one element almost nothing is left, by cancellation. */
    kernel_near(y, e.dx, count, s->cols == 1 ? 1e-5 : 2e-6, "dx alone, no residual");
    free_gradients(&e);
}

static void norm_backward_cases(kernel_test *t, const void *context)
{
    (void)context;
    for (size_t i = 0; i < sizeof norm_cases / sizeof *norm_cases; ++i)
        norm_backward(t, &norm_cases[i]);
}

static void gradients_of_rows_in_all_forms(void **state)
{
    (void)state;
    kernel_everywhere(norm_backward_cases, NULL);
}

/* --- refusals --- */

static void refusals(kernel_test *t, const void *context)
{
    (void)context;
    const pl_operations *o = t->operations;
    float *x = kernel_floats(t, 64);
    pl_rms_norm_arguments n = {x, x, x, NULL, PL_BF16, 2, 4, epsilon};
    assert_fails(PL_UNSUPPORTED, o->rms_norm(t->device, PL_STREAM_COMPUTE, &n), "rms_norm",
                 "loss head", "not in bf16");
    n.dtype = PL_FP32;
    n.cols = 0;
    assert_fails(PL_INTERNAL, o->rms_norm(t->device, PL_STREAM_COMPUTE, &n), "columns");
    n.cols = 4;
    n.weight = NULL;
    assert_fails(PL_INTERNAL, o->rms_norm(t->device, PL_STREAM_COMPUTE, &n), "weight");
    pl_rms_norm_backward_arguments b = {
        .x = x, .weight = x, .dy = x, .dx = x, .dtype = PL_BF16, .rows = 2, .cols = 4};
    assert_fails(PL_UNSUPPORTED, o->rms_norm_backward(t->device, PL_STREAM_COMPUTE, &b), "bf16",
                 "rms_norm_backward");
    b.dtype = PL_FP32;
    b.rows = -2;
    assert_fails(PL_INTERNAL, o->rms_norm_backward(t->device, PL_STREAM_COMPUTE, &b), "at least 0");
    b.rows = 2;
    b.weight = NULL;
    assert_fails(PL_INTERNAL, o->rms_norm_backward(t->device, PL_STREAM_COMPUTE, &b), "weight");
    assert_int_equal(t->records, 0);
}

static void wrong_norms_are_refused(void **state)
{
    (void)state;
    kernel_once(refusals, NULL, 1);
}

static pl_status backward_without_memory(kernel_test *t, const void *context, int64_t after)
{
    (void)context;
    float *x = kernel_floats(t, 64), *to = kernel_room(t, 8);
    pl_rms_norm_backward_arguments a = {
        .x = x, .dy = x, .dweight = to, .dtype = PL_FP32, .rows = 8, .cols = 8, .epsilon = epsilon};
    pl_allocation_fail_after(after);
    return t->operations->rms_norm_backward(t->device, PL_STREAM_COMPUTE, &a);
}

static void norms_without_memory_say_so(void **state)
{
    (void)state;
    kernel_allocation_failures(backward_without_memory, NULL, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_normed),
        cmocka_unit_test(gradients_of_rows_are_differences),
        cmocka_unit_test(gradients_of_rows_in_all_forms),
        cmocka_unit_test(wrong_norms_are_refused),
        cmocka_unit_test(norms_without_memory_say_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
