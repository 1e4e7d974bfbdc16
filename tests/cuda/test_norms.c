/* RMSNorm by rows and its backward pass, against plain loops in double and the CPU backend. */
#include <math.h>

#include "common/memory.h"
#include "kernels/cpu/cpu.h"
#include "tests/cuda/cuda_test.h"

static const double epsilon = 1e-5;

typedef struct norm_case {
    int64_t rows, cols;
} norm_case;

/* The thread sanitizer sees all races in blocks of up to 128 threads, and is slow in others. */
static const norm_case cases[] = {{1, 1},   {3, 15},  {2, 31},  {5, 32},  {2, 33},
                                  {4, 100}, {3, 128},
#ifndef __SANITIZE_THREAD__
                                  {2, 129}, {3, 255}, {2, 256}, {3, 257}, {2, 1000},
#endif
                                  {67, 40}, {0, 16}};

enum { CASES = sizeof cases / sizeof *cases };

/* --- plain loops --- */

static double plain_rstd(const double *x, int64_t cols)
{
    double sum = 0;
    for (int64_t i = 0; i < cols; ++i) sum += x[i] * x[i];
    return 1 / sqrt(sum / (double)cols + epsilon);
}

static void plain_norm(const norm_case *s, const double *x, const double *weight, double *y,
                       double *rstd)
{
    for (int64_t row = 0; row < s->rows; ++row, x += s->cols, y += s->cols) {
        rstd[row] = plain_rstd(x, s->cols);
        for (int64_t i = 0; i < s->cols; ++i) y[i] = x[i] * rstd[row] * weight[i];
    }
}

/* dweight is added to. */
static void plain_backward(const norm_case *s, const double *x, const double *weight,
                           const double *dy, double *dx, double *dweight)
{
    for (int64_t row = 0; row < s->rows; ++row, x += s->cols, dy += s->cols, dx += s->cols) {
        double rstd = plain_rstd(x, s->cols), dot = 0;
        for (int64_t i = 0; i < s->cols; ++i) dot += weight[i] * dy[i] * x[i];
        for (int64_t i = 0; i < s->cols; ++i) {
            dx[i] = rstd * (weight[i] * dy[i] - x[i] * rstd * rstd * dot / (double)s->cols);
            dweight[i] += dy[i] * x[i] * rstd;
        }
    }
}

/* --- forward --- */

static void forward(cuda_test *t, const norm_case *s, pl_dtype dtype)
{
    int64_t count = s->rows * s->cols;
    cuda_array *x = cuda_random(t, dtype, count), *weight = cuda_random(t, dtype, s->cols);
    cuda_array *y = cuda_room(t, dtype, count), *rstd = cuda_room(t, PL_FP32, s->rows);
    cuda_array *other = cuda_room(t, dtype, count);
    double *expected = cuda_doubles(count), *expected_rstd = cuda_doubles(s->rows);
    plain_norm(s, x->values, weight->values, expected, expected_rstd);
    pl_rms_norm_arguments a = {x->device, weight->device, y->device, rstd->device,
                               dtype,     s->rows,        s->cols,   epsilon};
    assert_ok(t->operations->rms_norm(t->device, PL_STREAM_COMPUTE, &a));
    cuda_near(t, y, expected, 1e-6, "y");
    cuda_near(t, rstd, expected_rstd, 1e-6, "rstd");
    cuda_result(t, y);
    cuda_result(t, rstd);
    a.y = other->device;
    a.rstd = NULL;
    assert_ok(t->operations->rms_norm(t->device, PL_STREAM_COMPUTE, &a));
    cuda_same(t, other, y, "y without rstd kept");
    pl_free(expected);
    pl_free(expected_rstd);
}

static void forward_case(cuda_test *t, const void *context)
{
    forward(t, context, PL_FP32);
    forward(t, context, PL_BF16);
}

static void rows_are_normed(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; ++i) cuda_everywhere(forward_case, &cases[i]);
}

/* More rows than a grid has blocks, of one and of two warps: a block uses its shared sums again. */
static void many_rows(cuda_test *t, const void *context)
{
    (void)context;
    static const norm_case narrow = {2048 + 77, 3}, wide = {2048 + 77, 40};
    forward(t, &narrow, PL_FP32);
    forward(t, &wide, PL_FP32);
}

static void blocks_go_on_where_there_are_more_rows(void **state)
{
    (void)state;
    cuda_once(many_rows, NULL);
}

/* --- backward --- */

typedef struct norm_arrays {
    cuda_array *x, *weight, *dy, *residual, *rstd, *dx, *dweight;
    double *expected_dx, *expected_dweight; /* without the residual */
    double terms; /* dx is a difference of terms up to that: in one column, of nearly equal ones */
} norm_arrays;

static norm_arrays make_arrays(cuda_test *t, const norm_case *s, pl_dtype dtype)
{
    int64_t count = s->rows * s->cols;
    norm_arrays n = {.x = cuda_random(t, dtype, count),
                     .weight = cuda_random(t, dtype, s->cols),
                     .dy = cuda_random(t, dtype, count),
                     .residual = cuda_random(t, dtype, count),
                     .rstd = cuda_room(t, PL_FP32, s->rows),
                     .dx = cuda_room(t, dtype, count),
                     .dweight = cuda_room(t, PL_FP32, s->cols),
                     .expected_dx = cuda_doubles(count),
                     .expected_dweight = cuda_doubles(s->cols)};
    plain_backward(s, n.x->values, n.weight->values, n.dy->values, n.expected_dx,
                   n.expected_dweight);
    for (int64_t row = 0; row < s->rows; ++row)
        n.rstd->values[row] = plain_rstd(n.x->values + row * s->cols, s->cols);
    cuda_put(t, n.rstd);
    for (int64_t i = 0; i < count; ++i) {
        double term = n.dy->values[i] * n.weight->values[i % s->cols] * n.rstd->values[i / s->cols];
        if (fabs(term) > n.terms) n.terms = fabs(term);
    }
    return n;
}

static void free_arrays(norm_arrays *n)
{
    pl_free(n->expected_dx);
    pl_free(n->expected_dweight);
}

static pl_rms_norm_backward_arguments arguments_of(const norm_case *s, const norm_arrays *n)
{
    return (pl_rms_norm_backward_arguments){.x = n->x->device,
                                            .weight = n->weight->device,
                                            .dy = n->dy->device,
                                            .rstd = n->rstd->device,
                                            .dx = n->dx->device,
                                            .dweight = n->dweight->device,
                                            .dtype = n->x->dtype,
                                            .rows = s->rows,
                                            .cols = s->cols,
                                            .epsilon = epsilon};
}

static pl_status run(cuda_test *t, const pl_rms_norm_backward_arguments *a)
{
    return t->operations->rms_norm_backward(t->device, PL_STREAM_COMPUTE, a);
}

static void backward(cuda_test *t, const norm_case *s, pl_dtype dtype)
{
    int64_t count = s->rows * s->cols;
    norm_arrays n = make_arrays(t, s, dtype);
    pl_rms_norm_backward_arguments a = arguments_of(s, &n);
    assert_ok(run(t, &a));
    cuda_within(t, n.dx, n.expected_dx, 1e-6 * n.terms, "dx");
    cuda_near(t, n.dweight, n.expected_dweight, 3e-6, "dweight");
    cuda_result(t, n.dx);
    cuda_result(t, n.dweight);
    /* With a residual, adding to dweight, rstd worked out again. */
    a.residual = n.residual->device;
    a.rstd = NULL;
    a.add = true;
    assert_ok(run(t, &a));
    for (int64_t i = 0; i < count; ++i) n.expected_dx[i] += n.residual->values[i];
    for (int64_t i = 0; i < s->cols; ++i) n.expected_dweight[i] *= 2;
    cuda_within(t, n.dx, n.expected_dx, 1e-6 * (n.terms + 1), "dx and residual");
    cuda_near(t, n.dweight, n.expected_dweight, 3e-6, "dweight, added");
    /* One of the two alone. */
    cuda_array *alone = cuda_room(t, dtype, count);
    a.dx = alone->device;
    a.dweight = NULL;
    assert_ok(run(t, &a));
    cuda_same(t, alone, n.dx, "dx alone");
    cuda_array *sums = cuda_room(t, PL_FP32, s->cols);
    a.dx = NULL;
    a.weight = NULL; /* only dx needs it */
    a.dweight = sums->device;
    a.rstd = n.rstd->device;
    a.add = false;
    assert_ok(run(t, &a));
    for (int64_t i = 0; i < s->cols; ++i) n.expected_dweight[i] /= 2;
    cuda_near(t, sums, n.expected_dweight, 3e-6, "dweight alone");
    free_arrays(&n);
}

static void backward_case(cuda_test *t, const void *context)
{
    backward(t, context, PL_FP32);
    backward(t, context, PL_BF16);
}

static void gradients_are_those_of_plain_loops(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; ++i) cuda_everywhere(backward_case, &cases[i]);
}

/* More rows than sums of 32 rows are kept: sums get longer. */
static void long_sums(cuda_test *t, const void *context)
{
    (void)context;
    static const norm_case s = {32 * 256 + 5, 2};
    norm_arrays n = make_arrays(t, &s, PL_FP32);
    pl_rms_norm_backward_arguments a = arguments_of(&s, &n);
    a.dx = NULL;
    assert_ok(run(t, &a));
    cuda_near(t, n.dweight, n.expected_dweight, 1e-5, "dweight of many rows");
    free_arrays(&n);
}

static void sums_get_longer_where_there_are_more_rows(void **state)
{
    (void)state;
    cuda_once(long_sums, NULL);
}

static void in_place(cuda_test *t, const void *context)
{
    const norm_case *s = context;
    norm_arrays n = make_arrays(t, s, PL_BF16);
    pl_rms_norm_backward_arguments a = arguments_of(s, &n);
    a.residual = n.residual->device;
    assert_ok(run(t, &a));
    cuda_array *places[] = {cuda_copy(t, n.residual), cuda_copy(t, n.dy), cuda_copy(t, n.x)};
    a.residual = a.dx = places[0]->device;
    assert_ok(run(t, &a));
    cuda_same(t, places[0], n.dx, "dx in place of the residual");
    a.residual = n.residual->device;
    a.dy = a.dx = places[1]->device;
    assert_ok(run(t, &a));
    cuda_same(t, places[1], n.dx, "dx in place of dy");
    a.dy = n.dy->device;
    a.x = a.dx = places[2]->device;
    assert_ok(run(t, &a));
    cuda_same(t, places[2], n.dx, "dx in place of x");
    cuda_near(t, n.dweight, n.expected_dweight, 3e-6, "dweight");
    cuda_result(t, n.dx);
    free_arrays(&n);
}

static void results_may_stand_where_arguments_do(void **state)
{
    (void)state;
    static const norm_case s = {37, 70};
    cuda_everywhere(in_place, &s);
}

/* --- the CPU backend --- */

static void keep_record(void *context, const pl_call_record *record)
{
    *(pl_call_record *)context = *record;
}

static float *floats_of(const cuda_array *a)
{
    float *floats = NULL;
    assert_ok(pl_allocate(&floats, (size_t)a->count, sizeof *floats, "floats"));
    for (int64_t i = 0; i < a->count; ++i) floats[i] = (float)a->values[i];
    return floats;
}

static void near_floats(cuda_test *t, cuda_array *a, const float *floats, const char *what)
{
    double *expected = cuda_doubles(a->count);
    for (int64_t i = 0; i < a->count; ++i) expected[i] = (double)floats[i];
    cuda_near(t, a, expected, 2e-6, what);
    pl_free(expected);
}

static void like_the_cpu(cuda_test *t, const void *context)
{
    static const norm_case s = {75, 90};
    pl_device *cpu = ((pl_device *const *)context)[0];
    pl_call_record record;
    pl_call_log log = {keep_record, &record};
    cpu->log = &log;
    norm_arrays n = make_arrays(t, &s, PL_FP32);
    cuda_array *y = cuda_room(t, PL_FP32, s.rows * s.cols);
    float *x = floats_of(n.x), *weight = floats_of(n.weight), *dy = floats_of(n.dy);
    float *cpu_y = floats_of(n.x), *dweight = floats_of(n.weight), *rstd = floats_of(n.rstd);
    pl_rms_norm_arguments a = {n.x->device, n.weight->device, y->device, n.rstd->device,
                               PL_FP32,     s.rows,           s.cols,    epsilon};
    pl_rms_norm_arguments b = {x, weight, cpu_y, rstd, PL_FP32, s.rows, s.cols, epsilon};
    assert_ok(t->operations->rms_norm(t->device, PL_STREAM_COMPUTE, &a));
    assert_ok(cpu->operations->rms_norm(cpu, PL_STREAM_COMPUTE, &b));
    cuda_same_record(t, &record);
    near_floats(t, y, cpu_y, "y of the CPU");
    near_floats(t, n.rstd, rstd, "rstd of the CPU");
    pl_rms_norm_backward_arguments c = arguments_of(&s, &n);
    for (int add = 0; add < 2; ++add) { /* the second time with a residual in place */
        c.add = add;
        if (add) c.residual = c.dx;
        pl_rms_norm_backward_arguments d = c;
        d.x = x;
        d.weight = weight;
        d.dy = dy;
        d.rstd = rstd;
        d.dx = cpu_y;
        d.dweight = dweight;
        d.residual = add ? cpu_y : NULL;
        assert_ok(run(t, &c));
        assert_ok(cpu->operations->rms_norm_backward(cpu, PL_STREAM_COMPUTE, &d));
        cuda_same_record(t, &record);
        near_floats(t, n.dx, cpu_y, "dx of the CPU");
        near_floats(t, n.dweight, dweight, "dweight of the CPU");
    }
    float *made[] = {x, weight, dy, cpu_y, dweight, rstd};
    for (size_t i = 0; i < sizeof made / sizeof *made; ++i) pl_free(made[i]);
    cpu->log = NULL;
    free_arrays(&n);
}

static void the_cpu_backend_computes_and_notes_the_same(void **state)
{
    (void)state;
    pl_backend *backend = NULL;
    pl_device *cpu = NULL;
    assert_ok(pl_backend_cpu_open(&backend, 1));
    assert_ok(backend->functions->open_device(backend, &cpu, 0, 0));
    cuda_once(like_the_cpu, &cpu);
    cpu->functions->close(cpu);
    backend->functions->close(backend);
}

/* --- refusals --- */

static void wrong_arguments(cuda_test *t, const void *context)
{
    (void)context;
    static const norm_case s = {2, 3};
    norm_arrays n = make_arrays(t, &s, PL_FP32);
    pl_rms_norm_arguments a = {n.x->device, n.weight->device, n.dx->device, NULL,
                               PL_FP16,     s.rows,           s.cols,       epsilon};
    pl_rms_norm_backward_arguments b = arguments_of(&s, &n);
    assert_fails(PL_UNSUPPORTED, t->operations->rms_norm(t->device, PL_STREAM_COMPUTE, &a),
                 "rms_norm", "loss head", "fp16");
    a.dtype = PL_FP32;
    a.cols = 0;
    assert_fails(PL_INTERNAL, t->operations->rms_norm(t->device, PL_STREAM_COMPUTE, &a),
                 "a row has columns");
    a.cols = -1;
    assert_fails(PL_INTERNAL, t->operations->rms_norm(t->device, PL_STREAM_COMPUTE, &a),
                 "at least 0");
    a.cols = INT64_MAX / 2;
    assert_fails(PL_INTERNAL, t->operations->rms_norm(t->device, PL_STREAM_COMPUTE, &a), "63 bits");
    a.cols = 3;
    a.weight = NULL;
    assert_fails(PL_INTERNAL, t->operations->rms_norm(t->device, PL_STREAM_COMPUTE, &a),
                 "weight and y");
    b.dtype = PL_FP64;
    assert_fails(PL_UNSUPPORTED, run(t, &b), "rms_norm_backward", "loss head", "fp64");
    b.dtype = PL_FP32;
    b.weight = NULL;
    assert_fails(PL_INTERNAL, run(t, &b), "weight and dy");
    b.cols = 0;
    assert_fails(PL_INTERNAL, run(t, &b), "a row has columns");
    b.rows = 0;
    b.cols = INT64_MAX / 8; /* sums of columns would not fit */
    assert_fails(PL_INTERNAL, run(t, &b), "63 bits");
    free_arrays(&n);
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    cuda_once(wrong_arguments, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_normed),
        cmocka_unit_test(blocks_go_on_where_there_are_more_rows),
        cmocka_unit_test(gradients_are_those_of_plain_loops),
        cmocka_unit_test(sums_get_longer_where_there_are_more_rows),
        cmocka_unit_test(results_may_stand_where_arguments_do),
        cmocka_unit_test(the_cpu_backend_computes_and_notes_the_same),
        cmocka_unit_test(wrong_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
