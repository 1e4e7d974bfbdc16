/* Norm over heads and rotary embedding, and their backward passes. */
#include <math.h>

#include "common/memory.h"
#include "tests/kernels/kernel_test.h"

enum { FLOAT = sizeof(float) };

static const double epsilon = 1e-6;

typedef struct head_case {
    int64_t rows, heads, head_dim, sequence;
    bool weight;
} head_case;

static const head_case cases[] = {
    {9, 2, 2, 3, true},     {6, 2, 32, 3, true},    {6, 3, 32, 6, false}, {5, 2, 30, 5, true},
    {4, 1, 34, 2, false},   {3, 2, 66, 3, true},    {3, 1, 128, 3, true}, {0, 2, 16, 4, true},
    {900, 3, 16, 45, true}, {400, 2, 64, 400, true}};

/* Cosines, then sines, of position / 10000^(2i / head_dim). */
static float *make_rotary(kernel_test *t, const head_case *s)
{
    float *rotary = kernel_room(t, s->sequence * s->head_dim);
    int64_t half = s->head_dim / 2;
    for (int64_t position = 0; position < s->sequence; ++position) {
        for (int64_t i = 0; i < half; ++i) {
            double angle = (double)position / pow(1e4, 2.0 * (double)i / (double)s->head_dim) + 0.3;
            rotary[position * s->head_dim + i] = (float)cos(angle);
            rotary[position * s->head_dim + half + i] = (float)sin(angle);
        }
    }
    return rotary;
}

/* One head by the definition, in double. weight NULL: no norm. */
static void plain_head(const double *x, const double *weight, const float *turns, double *y,
                       int64_t head_dim)
{
    int64_t half = head_dim / 2;
    double sum = 0;
    for (int64_t i = 0; i < head_dim; ++i) sum += x[i] * x[i];
    double rstd = weight ? 1 / sqrt(sum / (double)head_dim + epsilon) : 1;
    for (int64_t i = 0; i < half; ++i) {
        double low = x[i] * rstd * (weight ? weight[i] : 1);
        double high = x[i + half] * rstd * (weight ? weight[i + half] : 1);
        y[i] = low * (double)turns[i] - high * (double)turns[half + i];
        y[i + half] = high * (double)turns[i] + low * (double)turns[half + i];
    }
}

/* All that a case needs, in doubles. */
typedef struct plain {
    const head_case *s;
    int64_t count;
    double *x, *weight, *y, *dy, *dx, *dweight;
    const float *rotary;
} plain;

static plain make_plain(const head_case *s, const float *x, const float *weight, const float *dy,
                        const float *rotary)
{
    int64_t count = s->rows * s->heads * s->head_dim;
    plain p = {s,
               count,
               kernel_doubles(count),
               kernel_doubles(s->head_dim),
               kernel_doubles(count),
               kernel_doubles(count),
               kernel_doubles(count),
               kernel_doubles(s->head_dim),
               rotary};
    for (int64_t i = 0; i < count; ++i) p.x[i] = x[i];
    for (int64_t i = 0; i < count && dy; ++i) p.dy[i] = dy[i];
    for (int64_t i = 0; i < s->head_dim && weight; ++i) p.weight[i] = weight[i];
    return p;
}

static void free_plain(plain *p)
{
    pl_free(p->x);
    pl_free(p->weight);
    pl_free(p->y);
    pl_free(p->dy);
    pl_free(p->dx);
    pl_free(p->dweight);
}

static const float *turns_of(const plain *p, int64_t head)
{
    return p->rotary + head / p->s->heads % p->s->sequence * p->s->head_dim;
}

static void plain_forward(plain *p)
{
    for (int64_t head = 0; head < p->s->rows * p->s->heads; ++head) {
        int64_t place = head * p->s->head_dim;
        plain_head(p->x + place, p->s->weight ? p->weight : NULL, turns_of(p, head), p->y + place,
                   p->s->head_dim);
    }
}

/* dy . y of one head, whose derivatives the backward pass makes. */
static double head_value(const plain *p, int64_t head)
{
    int64_t dim = p->s->head_dim, place = head * dim;
    double sum = 0;
    plain_head(p->x + place, p->s->weight ? p->weight : NULL, turns_of(p, head), p->y + place, dim);
    for (int64_t i = 0; i < dim; ++i) sum += p->dy[place + i] * p->y[place + i];
    return sum;
}

static double difference(const plain *p, int64_t head, double *value)
{
    const double step = 1e-5, kept = *value;
    *value = kept + step;
    double above = head_value(p, head);
    *value = kept - step;
    double below = head_value(p, head);
    *value = kept;
    return (above - below) / (2 * step);
}

static void plain_backward(plain *p)
{
    int64_t dim = p->s->head_dim;
    for (int64_t head = 0; head < p->s->rows * p->s->heads; ++head)
        for (int64_t i = 0; i < dim; ++i) {
            p->dx[head * dim + i] = difference(p, head, &p->x[head * dim + i]);
            if (p->s->weight) p->dweight[i] += difference(p, head, &p->weight[i]);
        }
}

/* --- forward --- */

static void check_forward_log(const kernel_test *t, const pl_head_rotate_arguments *a)
{
    int64_t count = a->rows * a->heads * a->head_dim;
    bool in_place = a->x == a->y;
    kernel_recorded(t, "head_rotate", 0,
                    (a->weight != NULL) + 1 + (count > 0) * (2 - in_place + (a->rstd != NULL)));
    kernel_touched(t, a->rotary, a->sequence * a->head_dim * FLOAT, "r");
    if (count == 0) return;
    kernel_touched(t, a->y, count * FLOAT, in_place ? "rw" : "w");
    if (!in_place) kernel_touched(t, a->x, count * FLOAT, "r");
    if (a->rstd) kernel_touched(t, a->rstd, a->rows * a->heads * FLOAT, "w");
}

static void forward(kernel_test *t, const head_case *s)
{
    int64_t count = s->rows * s->heads * s->head_dim;
    float *x = kernel_floats(t, count), *weight = s->weight ? kernel_floats(t, s->head_dim) : NULL;
    float *y = kernel_room(t, count);
    float *rstd = s->weight ? kernel_room(t, s->rows * s->heads) : NULL;
    pl_head_rotate_arguments a = {x,       weight,  y,        rstd,        make_rotary(t, s),
                                  PL_FP32, s->rows, s->heads, s->head_dim, s->sequence,
                                  epsilon};
    plain p = make_plain(s, x, weight, NULL, a.rotary);
    plain_forward(&p);
    assert_ok(t->operations->head_rotate(t->device, PL_STREAM_COMPUTE, &a));
    check_forward_log(t, &a);
    kernel_near(y, p.y, count, 1e-6, "y");
    kernel_result(t, y, (size_t)count * FLOAT);
    for (int64_t head = 0; head < s->rows * s->heads && rstd; ++head) {
        double sum = 0;
        for (int64_t i = 0; i < s->head_dim; ++i)
            sum += p.x[head * s->head_dim + i] * p.x[head * s->head_dim + i];
        double expected = 1 / sqrt(sum / (double)s->head_dim + epsilon);
        kernel_near(&rstd[head], &expected, 1, 1e-6, "rstd");
    }
    a.y = x;
    a.rstd = NULL;
    assert_ok(t->operations->head_rotate(t->device, PL_STREAM_COMPUTE, &a));
    check_forward_log(t, &a);
    kernel_same(x, y, (size_t)count * FLOAT, "y in place of x");
    free_plain(&p);
}

static void forward_cases(kernel_test *t, const void *context)
{
    (void)context;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) forward(t, &cases[i]);
}

static void heads_are_normed_and_rotated(void **state)
{
    (void)state;
    kernel_everywhere(forward_cases, NULL);
}

/* --- backward --- */

static void check_backward_log(const kernel_test *t, const pl_head_rotate_backward_arguments *a)
{
    int64_t count = a->rows * a->heads * a->head_dim;
    bool in_place = a->dy == a->dx;
    int touches = 1 + (a->weight != NULL) + (a->dweight != NULL);
    if (count > 0) touches += 2 - in_place + 2 * (a->weight != NULL);
    kernel_recorded(t, "head_rotate_backward", 0, touches);
    if (a->dweight) kernel_touched(t, a->dweight, a->head_dim * FLOAT, a->add ? "rw" : "w");
    if (count == 0) return;
    kernel_touched(t, a->dx, count * FLOAT, in_place ? "rw" : "w");
    if (a->weight) kernel_touched(t, a->x, count * FLOAT, "r");
    if (a->weight) kernel_touched(t, a->rstd, a->rows * a->heads * FLOAT, "r");
}

static void backward(kernel_test *t, const head_case *s)
{
    int64_t count = s->rows * s->heads * s->head_dim;
    float *x = kernel_floats(t, count), *dy = kernel_floats(t, count), *y = kernel_room(t, count);
    float *dx = kernel_room(t, count), *weight = NULL, *rstd = NULL, *dweight = NULL;
    if (s->weight) {
        weight = kernel_floats(t, s->head_dim);
        rstd = kernel_room(t, s->rows * s->heads);
        dweight = kernel_room(t, s->head_dim);
    }
    const float *rotary = make_rotary(t, s);
    pl_head_rotate_arguments f = {x,       weight,   y,           rstd,        rotary, PL_FP32,
                                  s->rows, s->heads, s->head_dim, s->sequence, epsilon};
    assert_ok(t->operations->head_rotate(t->device, PL_STREAM_COMPUTE, &f));
    pl_head_rotate_backward_arguments a = {x,        weight,      rstd,       rotary,  dy,
                                           dx,       dweight,     false,      PL_FP32, s->rows,
                                           s->heads, s->head_dim, s->sequence};
    assert_ok(t->operations->head_rotate_backward(t->device, PL_STREAM_COMPUTE, &a));
    check_backward_log(t, &a);
    kernel_result(t, dx, (size_t)count * FLOAT);
    if (dweight) kernel_result(t, dweight, (size_t)s->head_dim * FLOAT);
    plain p = make_plain(s, x, weight, dy, rotary);
    plain_backward(&p);
    kernel_near(dx, p.dx, count, 3e-6, "dx");
    if (dweight) kernel_near(dweight, p.dweight, s->head_dim, 3e-6, "dweight");
    a.dx = dy; /* in place, added */
    a.add = true;
    assert_ok(t->operations->head_rotate_backward(t->device, PL_STREAM_COMPUTE, &a));
    check_backward_log(t, &a);
    kernel_same(dy, dx, (size_t)count * FLOAT, "dx in place of dy");
    for (int64_t i = 0; i < s->head_dim; ++i) p.dweight[i] *= 2;
    if (dweight) kernel_near(dweight, p.dweight, s->head_dim, 3e-6, "dweight, added");
    free_plain(&p);
}

static void backward_cases(kernel_test *t, const void *context)
{
    (void)context;
    for (size_t i = 0; i + 2 < sizeof cases / sizeof *cases; ++i) backward(t, &cases[i]);
}

static void gradients_of_heads_are_differences(void **state)
{
    (void)state;
    kernel_everywhere(backward_cases, NULL);
}

/* More rows than one block: the sum over blocks must be one of all rows, whatever the workers. */
static void many_rows(kernel_test *t, const void *context)
{
    (void)context;
    const head_case s = {3000, 2, 16, 100, true};
    int64_t count = s.rows * s.heads * s.head_dim;
    float *x = kernel_floats(t, count), *dy = kernel_floats(t, count), *y = kernel_room(t, count);
    float *weight = kernel_floats(t, s.head_dim), *rstd = kernel_room(t, s.rows * s.heads);
    float *dweight = kernel_room(t, s.head_dim);
    const float *rotary = make_rotary(t, &s);
    pl_head_rotate_arguments f = {x,      weight,  y,          rstd,       rotary, PL_FP32,
                                  s.rows, s.heads, s.head_dim, s.sequence, epsilon};
    assert_ok(t->operations->head_rotate(t->device, PL_STREAM_COMPUTE, &f));
    pl_head_rotate_backward_arguments a = {x,       weight,     rstd,      rotary,  dy,
                                           y,       dweight,    false,     PL_FP32, s.rows,
                                           s.heads, s.head_dim, s.sequence};
    assert_ok(t->operations->head_rotate_backward(t->device, PL_STREAM_COMPUTE, &a));
    kernel_result(t, dweight, (size_t)s.head_dim * FLOAT);
    plain p = make_plain(&s, x, weight, dy, rotary);
    for (int64_t head = 0; head < s.rows * s.heads; ++head)
        for (int64_t i = 0; i < s.head_dim; ++i) p.dweight[i] += difference(&p, head, &p.weight[i]);
    kernel_near(dweight, p.dweight, s.head_dim, 3e-6, "dweight");
    free_plain(&p);
}

static void gradients_of_weights_are_sums_of_all_rows(void **state)
{
    (void)state;
    kernel_everywhere(many_rows, NULL);
}

/* --- refusals --- */

static void refusals(kernel_test *t, const void *context)
{
    (void)context;
    const pl_operations *o = t->operations;
    float *x = kernel_floats(t, 64);
    pl_head_rotate_arguments f = {x, NULL, x, NULL, x, PL_BF16, 2, 1, 4, 2, epsilon};
    assert_fails(PL_UNSUPPORTED, o->head_rotate(t->device, PL_STREAM_COMPUTE, &f), "head_rotate",
                 "loss head", "bf16");
    f.dtype = PL_FP32;
    f.head_dim = 5;
    assert_fails(PL_INTERNAL, o->head_rotate(t->device, PL_STREAM_COMPUTE, &f), "even");
    f.head_dim = 4;
    f.sequence = 0;
    assert_fails(PL_INTERNAL, o->head_rotate(t->device, PL_STREAM_COMPUTE, &f), "sequence");
    f.sequence = 2;
    f.rstd = x;
    assert_fails(PL_INTERNAL, o->head_rotate(t->device, PL_STREAM_COMPUTE, &f), "rstd");
    pl_head_rotate_backward_arguments b = {x,     NULL,    NULL, x, x, x, NULL,
                                           false, PL_BF16, 2,    1, 4, 2};
    assert_fails(PL_UNSUPPORTED, o->head_rotate_backward(t->device, PL_STREAM_COMPUTE, &b),
                 "head_rotate_backward", "bf16");
    b.dtype = PL_FP32;
    b.dweight = x;
    assert_fails(PL_INTERNAL, o->head_rotate_backward(t->device, PL_STREAM_COMPUTE, &b), "dweight");
    b.weight = x;
    assert_fails(PL_INTERNAL, o->head_rotate_backward(t->device, PL_STREAM_COMPUTE, &b), "rstd");
    assert_int_equal(t->records, 0);
}

static void wrong_heads_are_refused(void **state)
{
    (void)state;
    kernel_once(refusals, NULL, 1);
}

static pl_status backward_without_memory(kernel_test *t, const void *context, int64_t after)
{
    (void)context;
    float *x = kernel_floats(t, 64), *to = kernel_room(t, 64);
    pl_head_rotate_backward_arguments a = {x, x, x, x, x, to, to, false, PL_FP32, 2, 2, 4, 2};
    pl_allocation_fail_after(after);
    return t->operations->head_rotate_backward(t->device, PL_STREAM_COMPUTE, &a);
}

static void heads_without_memory_say_so(void **state)
{
    (void)state;
    kernel_allocation_failures(backward_without_memory, NULL, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_are_normed_and_rotated),
        cmocka_unit_test(gradients_of_heads_are_differences),
        cmocka_unit_test(gradients_of_weights_are_sums_of_all_rows),
        cmocka_unit_test(wrong_heads_are_refused),
        cmocka_unit_test(heads_without_memory_say_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
