#include <math.h>

#include "tests/kernels/attention_reference.h"
#include "tests/kernels/kernel_test.h"

enum { FLOAT = sizeof(float) };

/* --- the operations, run with random inputs --- */

typedef struct trial {
    const attention_shape *s;
    float *q, *k, *v, *out, *lse, *dout, *dq, *dk, *dv;
    reference r;
} trial;

static float *inputs(kernel_test *t, int64_t count, double magnitude, double *copy)
{
    float *x = kernel_floats(t, count);
    for (int64_t i = 0; i < count; ++i) {
        if (magnitude > 0) x[i] *= (float)magnitude;
        copy[i] = (double)x[i];
    }
    return x;
}

static trial make_trial(kernel_test *t, const attention_shape *s)
{
    trial made = {.s = s, .r = make_reference(s)};
    made.q = inputs(t, query_count(s), s->magnitude, made.r.q);
    made.k = inputs(t, key_count(s), s->magnitude, made.r.k);
    made.v = inputs(t, key_count(s), 0, made.r.v);
    made.dout = inputs(t, query_count(s), 0, made.r.dout);
    made.out = kernel_room(t, query_count(s));
    made.lse = kernel_room(t, lse_count(s));
    made.dq = kernel_room(t, query_count(s));
    made.dk = kernel_room(t, key_count(s));
    made.dv = kernel_room(t, key_count(s));
    return made;
}

static pl_attention_arguments forward_of(const trial *r)
{
    return (pl_attention_arguments){.q = r->q,
                                    .k = r->k,
                                    .v = r->v,
                                    .out = r->out,
                                    .lse = r->lse,
                                    .dtype = PL_FP32,
                                    .sequences = r->s->sequences,
                                    .sequence = r->s->sequence,
                                    .heads = r->s->heads,
                                    .kv_heads = r->s->kv_heads,
                                    .head_dim = r->s->head_dim,
                                    .scale = scale_of(r->s)};
}

static pl_attention_backward_arguments backward_of(const trial *r)
{
    return (pl_attention_backward_arguments){.q = r->q,
                                             .k = r->k,
                                             .v = r->v,
                                             .out = r->out,
                                             .dout = r->dout,
                                             .lse = r->lse,
                                             .dq = r->dq,
                                             .dk = r->dk,
                                             .dv = r->dv,
                                             .dtype = PL_FP32,
                                             .sequences = r->s->sequences,
                                             .sequence = r->s->sequence,
                                             .heads = r->s->heads,
                                             .kv_heads = r->s->kv_heads,
                                             .head_dim = r->s->head_dim,
                                             .scale = scale_of(r->s)};
}

static void run_forward(kernel_test *t, const trial *r)
{
    pl_attention_arguments a = forward_of(r);
    assert_ok(t->operations->attention(t->device, PL_STREAM_COMPUTE, &a));
}

static void run_backward(kernel_test *t, const trial *r)
{
    pl_attention_backward_arguments a = backward_of(r);
    assert_ok(t->operations->attention_backward(t->device, PL_STREAM_COMPUTE, &a));
}

/* --- tests --- */

static void check_forward_log(const kernel_test *t, const trial *r)
{
    const attention_shape *s = r->s;
    int64_t queries = query_count(s), keys = key_count(s);
    kernel_recorded(t, "attention", 4 * queries * s->sequence, queries > 0 ? 5 : 0);
    if (queries == 0) return;
    kernel_touched(t, r->q, queries * FLOAT, "r");
    kernel_touched(t, r->k, keys * FLOAT, "r");
    kernel_touched(t, r->v, keys * FLOAT, "r");
    kernel_touched(t, r->out, queries * FLOAT, "w");
    kernel_touched(t, r->lse, lse_count(s) * FLOAT, "w");
}

static void check_backward_log(const kernel_test *t, const trial *r)
{
    const attention_shape *s = r->s;
    int64_t queries = query_count(s), keys = key_count(s);
    kernel_recorded(t, "attention_backward", 8 * queries * s->sequence, queries > 0 ? 9 : 0);
    if (queries == 0) return;
    kernel_touched(t, r->q, queries * FLOAT, "r");
    kernel_touched(t, r->k, keys * FLOAT, "r");
    kernel_touched(t, r->v, keys * FLOAT, "r");
    kernel_touched(t, r->out, queries * FLOAT, "r");
    kernel_touched(t, r->dout, queries * FLOAT, "r");
    kernel_touched(t, r->lse, lse_count(s) * FLOAT, "r");
    kernel_touched(t, r->dq, queries * FLOAT, "w");
    kernel_touched(t, r->dk, keys * FLOAT, "w");
    kernel_touched(t, r->dv, keys * FLOAT, "w");
}

/* As kernel_near, but nothing is asked for beyond what inputs of size 1 allow: the gradient of the
 * scores of a single key is rounding alone, and an absolute error of lse is a relative one of
 * weights. */
static void near(const float *actual, const double *expected, int64_t count, double tolerance,
                 const char *what)
{
    double largest = 0.1;
    for (int64_t i = 0; i < count; ++i) largest = fmax(largest, fabs(expected[i]));
    for (int64_t i = 0; i < count; ++i)
        if (!(fabs((double)actual[i] - expected[i]) <= tolerance * largest))
            fail_msg("%s[%lld] is %.9g, should be %.9g", what, (long long)i, (double)actual[i],
                     expected[i]);
}

static void try_shape(kernel_test *t, const void *context)
{
    const attention_shape *s = context;
    trial r = make_trial(t, s);
    int64_t queries = query_count(s), keys = key_count(s);
    /* Rounding of a score enters every weight as a factor. */
    double loose = s->magnitude > 1 ? s->magnitude * s->magnitude : 1;
    run_forward(t, &r);
    check_forward_log(t, &r);
    refer_forward(&r.r);
    near(r.out, r.r.out, queries, 2e-6 * loose, "out");
    near(r.lse, r.r.lse, lse_count(s), 1e-6 * loose, "lse");
    run_backward(t, &r);
    check_backward_log(t, &r);
    refer_backward(&r.r);
    near(r.dv, r.r.dv, keys, 2e-6 * loose, "dv");
    near(r.dk, r.r.dk, keys, 4e-6 * loose, "dk");
    near(r.dq, r.r.dq, queries, 4e-6 * loose, "dq");
    kernel_result(t, r.out, (size_t)queries * FLOAT);
    kernel_result(t, r.lse, (size_t)lse_count(s) * FLOAT);
    kernel_result(t, r.dq, (size_t)queries * FLOAT);
    kernel_result(t, r.dk, (size_t)keys * FLOAT);
    kernel_result(t, r.dv, (size_t)keys * FLOAT);
    free_reference(&r.r);
}

/* Lengths around vectors, blocks of queries (48) and of keys (64); head sizes around vectors. With
 * few key-value heads and 2 or 3 workers, backward goes by blocks; with 1 by heads: equal bits. */
static void attention_of_odd_shapes_equals_plain_loops(void **state)
{
    (void)state;
    static const attention_shape shapes[] = {
        {1, 1, 1, 1, 1, 0},    {2, 1, 2, 1, 12, 0},   {1, 17, 3, 3, 12, 0},  {2, 33, 4, 2, 16, 0},
        {1, 49, 6, 2, 20, 0},  {3, 64, 4, 4, 32, 0},  {1, 65, 2, 1, 33, 0},  {1, 130, 8, 4, 32, 0},
        {2, 100, 5, 1, 7, 0},  {1, 150, 2, 2, 64, 0}, {1, 70, 2, 1, 128, 0}, {1, 50, 1, 1, 256, 0},
        {1, 210, 4, 1, 48, 0}, {0, 5, 2, 1, 8, 0},    {2, 0, 2, 1, 8, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i)
        kernel_everywhere(try_shape, &shapes[i]);
}

/* Scores of hundreds: without their largest taken out, exponentials would be infinite or all 0. */
static void large_scores_stay_finite(void **state)
{
    (void)state;
    static const attention_shape shapes[] = {{1, 150, 2, 1, 16, 12}, {1, 90, 2, 2, 64, 8}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i)
        kernel_everywhere(try_shape, &shapes[i]);
}

/* Largest difference from EXPECTED, relative to the largest of EXPECTED. */
static double distance(const float *actual, const double *expected, int64_t count)
{
    double most = 0, largest = 1e-30;
    for (int64_t i = 0; i < count; ++i) {
        most = fmax(most, fabs((double)actual[i] - expected[i]));
        largest = fmax(largest, fabs(expected[i]));
    }
    return most / largest;
}

static void try_faults(kernel_test *t, const void *context)
{
    const attention_shape *s = context;
    trial r = make_trial(t, s);
    run_forward(t, &r);
    run_backward(t, &r);
    int64_t queries = query_count(s), keys = key_count(s);
    for (int planted = NO_FAULT; planted <= NO_DELTA; ++planted) {
        r.r.fault = (attention_fault)planted;
        memset(r.r.dq, 0, (size_t)queries * sizeof *r.r.dq);
        memset(r.r.dk, 0, (size_t)keys * sizeof *r.r.dk);
        memset(r.r.dv, 0, (size_t)keys * sizeof *r.r.dv);
        refer_forward(&r.r);
        refer_backward(&r.r);
        double out = distance(r.out, r.r.out, queries), dq = distance(r.dq, r.r.dq, queries);
        double dk = distance(r.dk, r.r.dk, keys), dv = distance(r.dv, r.r.dv, keys);
        bool forward = planted != NO_FAULT && planted < LAST_OF_GROUP;
        bool to_keys = planted == LAST_OF_GROUP || planted == NO_DELTA;
        assert_int_equal(out > 0.01, forward);
        assert_int_equal(dq > 0.01, forward || planted == NO_DELTA);
        assert_int_equal(dk > 0.01, forward || to_keys);
        assert_int_equal(dv > 0.01, forward || planted == LAST_OF_GROUP);
    }
    free_reference(&r.r);
}

static void wrong_heads_masks_and_sums_would_be_seen(void **state)
{
    (void)state;
    kernel_once(try_faults, &(attention_shape){2, 70, 6, 2, 24, 0}, 2);
}

/* What later tokens say changes no bit of earlier results. */
static void try_future(kernel_test *t, const void *context)
{
    const attention_shape *s = context;
    trial r = make_trial(t, s);
    int64_t row = s->kv_heads * s->head_dim;
    run_forward(t, &r);
    float *before = kernel_copy(t, r.out, query_count(s));
    for (int64_t token = 1; token < s->sequence; token += 13) {
        for (int64_t i = token * row; i < key_count(s); ++i) {
            r.k[i] = -r.k[i];
            r.v[i] += 1;
        }
        run_forward(t, &r);
        kernel_same(r.out, before, (size_t)(token * s->heads * s->head_dim * FLOAT), "the past");
        int64_t same = token * s->heads * s->head_dim;
        assert_true(r.out[same] != before[same]);
        memcpy(before, r.out, (size_t)(query_count(s) * FLOAT));
    }
    free_reference(&r.r);
}

static void the_future_is_not_seen(void **state)
{
    (void)state;
    kernel_once(try_future, &(attention_shape){1, 131, 2, 1, 8, 0}, 1);
}

static double objective(const reference *r, const attention_shape *s)
{
    refer_forward(r);
    return dot(r->out, r->dout, query_count(s));
}

/* The gradient of out . dout by central differences, for every third input. */
static void compare_differences(const reference *r, double *input, const double *gradient,
                                int64_t count)
{
    const double step = 1e-5;
    for (int64_t i = 0; i < count; i += 3) {
        double kept = input[i];
        input[i] = kept + step;
        double above = objective(r, r->s);
        input[i] = kept - step;
        double below = objective(r, r->s);
        input[i] = kept;
        if (fabs((above - below) / (2 * step) - gradient[i]) > 1e-8)
            fail_msg("the reference's gradient %lld is %g, by differences %g", (long long)i,
                     gradient[i], (above - below) / (2 * step));
    }
}

static void the_reference_s_gradients_are_those_of_differences(void **state)
{
    (void)state;
    const attention_shape s = {2, 7, 4, 2, 3, 0};
    reference r = make_reference(&s);
    for (int64_t i = 0; i < query_count(&s); ++i) {
        r.q[i] = sin(1.3 * (double)i);
        r.dout[i] = cos(2.1 * (double)i);
    }
    for (int64_t i = 0; i < key_count(&s); ++i) {
        r.k[i] = sin(0.7 * (double)i + 1);
        r.v[i] = cos(1.9 * (double)i + 2);
    }
    refer_forward(&r);
    refer_backward(&r);
    compare_differences(&r, r.q, r.dq, query_count(&s));
    compare_differences(&r, r.k, r.dk, key_count(&s));
    compare_differences(&r, r.v, r.dv, key_count(&s));
    free_reference(&r);
}

static void refusals(kernel_test *t, const void *context)
{
    (void)context;
    const attention_shape s = {1, 4, 2, 1, 4, 0};
    trial r = make_trial(t, &s);
    const pl_attention_arguments right = forward_of(&r);
    pl_status (*run)(pl_device *, pl_stream, const pl_attention_arguments *) =
        t->operations->attention;
    pl_attention_arguments a = right;
    a.dtype = PL_BF16;
    assert_fails(PL_UNSUPPORTED, run(t->device, PL_STREAM_COMPUTE, &a), "attention", "bf16");
    a = right;
    a.kv_heads = 3;
    assert_fails(PL_INTERNAL, run(t->device, PL_STREAM_COMPUTE, &a), "multiple of key-value heads");
    a = right;
    a.head_dim = 257;
    assert_fails(PL_UNSUPPORTED, run(t->device, PL_STREAM_COMPUTE, &a), "257", "1 to 256");
    a = right;
    a.head_dim = 0;
    assert_fails(PL_INTERNAL, run(t->device, PL_STREAM_COMPUTE, &a), "none is empty");
    a = right;
    a.sequences = -1;
    assert_fails(PL_INTERNAL, run(t->device, PL_STREAM_COMPUTE, &a), "at least 0");
    a = right;
    a.sequence = INT64_C(1) << 31; /* counts fit, their squares do not */
    assert_fails(PL_INTERNAL, run(t->device, PL_STREAM_COMPUTE, &a), "63 bits");
    a = right;
    a.lse = NULL;
    assert_fails(PL_INTERNAL, run(t->device, PL_STREAM_COMPUTE, &a), "all arrays are given");
    pl_attention_backward_arguments b = backward_of(&r);
    b.dk = NULL;
    assert_fails(PL_INTERNAL, t->operations->attention_backward(t->device, PL_STREAM_COMPUTE, &b),
                 "attention_backward", "all arrays are given");
    b = backward_of(&r);
    b.dtype = PL_BF16;
    assert_fails(PL_UNSUPPORTED,
                 t->operations->attention_backward(t->device, PL_STREAM_COMPUTE, &b),
                 "attention_backward", "bf16");
    assert_int_equal(t->records, 0);
    free_reference(&r.r);
}

static void what_cannot_be_attended_is_refused(void **state)
{
    (void)state;
    kernel_once(refusals, NULL, 1);
}

static pl_status run_without_memory(kernel_test *t, const void *context, int64_t after)
{
    const bool *backward = context;
    const attention_shape s = {1, 70, 2, 1, 8, 0};
    trial r = make_trial(t, &s);
    free_reference(&r.r);
    memset(r.out, 0, (size_t)query_count(&s) * FLOAT);
    memset(r.lse, 0, (size_t)lse_count(&s) * FLOAT);
    pl_attention_arguments a = forward_of(&r);
    pl_attention_backward_arguments b = backward_of(&r);
    pl_allocation_fail_after(after);
    return *backward ? t->operations->attention_backward(t->device, PL_STREAM_COMPUTE, &b)
                     : t->operations->attention(t->device, PL_STREAM_COMPUTE, &a);
}

static void attention_without_memory_says_so(void **state)
{
    (void)state;
    kernel_allocation_failures(run_without_memory, &(bool){false}, 1);
    kernel_allocation_failures(run_without_memory, &(bool){true}, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_of_odd_shapes_equals_plain_loops),
        cmocka_unit_test(large_scores_stay_finite),
        cmocka_unit_test(wrong_heads_masks_and_sums_would_be_seen),
        cmocka_unit_test(the_future_is_not_seen),
        cmocka_unit_test(the_reference_s_gradients_are_those_of_differences),
        cmocka_unit_test(what_cannot_be_attended_is_refused),
        cmocka_unit_test(attention_without_memory_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
