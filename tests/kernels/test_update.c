/* Scale, sums of squares, clip, and the updates of AdamW and SGD. */
#include <math.h>

#include "common/memory.h"
#include "tests/kernels/kernel_test.h"

enum { FLOAT = sizeof(float) };

static const int64_t counts[] = {0, 1, 15, 16, 17, 33, 1000, 32769, 100003};
enum { COUNTS = sizeof counts / sizeof *counts };

static int64_t *make_tokens(kernel_test *t, int64_t tokens)
{
    int64_t *place = kernel_bytes(t, (int64_t)sizeof *place);
    *place = tokens;
    return place;
}

/* --- scale --- */

typedef struct scale_case {
    int32_t numerator, denominator, tokens;
    double factor; /* with T = 7 */
} scale_case;

static void try_scale(kernel_test *t, const scale_case *s, int64_t count)
{
    int64_t *tokens = make_tokens(t, 7);
    float *x = kernel_floats(t, count), *before = kernel_copy(t, x, count);
    pl_scale_arguments a = {
        x, count, s->numerator, s->denominator, s->tokens, s->tokens ? tokens : NULL};
    double *expected = kernel_doubles(count);
    for (int64_t j = 0; j < count; ++j) expected[j] = (double)before[j] * s->factor;
    assert_ok(t->operations->scale(t->device, PL_STREAM_COMPUTE, &a));
    kernel_recorded(t, "scale", 0, (count > 0) + (s->tokens != 0));
    if (count) kernel_touched(t, x, count * FLOAT, "rw");
    if (s->tokens) kernel_touched(t, tokens, 8, "r");
    kernel_near(x, expected, count, 2e-7, "x");
    kernel_result(t, x, (size_t)count * FLOAT);
    pl_free(expected);
}

static void scales(kernel_test *t, const void *context)
{
    (void)context;
    static const scale_case cases[] = {{1, 1, -1, 1.0 / 7},
                                       {1, 8, 1, 7.0 / 8},
                                       {3, 2, 0, 1.5},
                                       {1, 1, 0, 1},
                                       {-2, 3, 2, -2.0 / 3 * 49}};
    for (int c = 0; c < COUNTS; ++c)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
            try_scale(t, &cases[i], counts[c]);
    float *x = kernel_floats(t, 100), *kept = kernel_copy(t, x, 100);
    pl_scale_arguments a = {x, 100, 1, 1, -1, make_tokens(t, 0)}; /* T is 0: nothing happens */
    assert_ok(t->operations->scale(t->device, PL_STREAM_COMPUTE, &a));
    kernel_same(x, kept, 100 * sizeof *x, "x with T = 0");
}

static void gradients_are_scaled_by_powers_of_the_token_count(void **state)
{
    (void)state;
    kernel_everywhere(scales, NULL);
}

/* --- sums of squares --- */

static void squares(kernel_test *t, const void *context)
{
    (void)context;
    double *to = kernel_bytes(t, 8);
    for (int c = 0; c < COUNTS; ++c) {
        const float *x = kernel_floats(t, counts[c]);
        double expected = 0;
        for (int64_t i = 0; i < counts[c]; ++i) expected += (double)x[i] * (double)x[i];
        pl_squares_arguments a = {x, counts[c], to, false};
        assert_ok(t->operations->squares(t->device, PL_STREAM_COMPUTE, &a));
        kernel_recorded(t, "squares", 0, 1 + (counts[c] > 0));
        if (counts[c]) kernel_touched(t, x, counts[c] * FLOAT, "r");
        kernel_touched(t, to, 8, "w");
        assert_true(fabs(*to - expected) <= 1e-12 * expected);
        kernel_result(t, to, 8);
        *to = 1000;
        a.add = true;
        assert_ok(t->operations->squares(t->device, PL_STREAM_COMPUTE, &a));
        kernel_touched(t, to, 8, "rw");
        assert_true(fabs(*to - 1000 - expected) <= 1e-11 * (1000 + expected));
    }
    /* In fp64: fp32 would lose the small ones and overflow on the large ones. */
    float wide[40] = {3e30f};
    for (int i = 1; i < 40; ++i) wide[i] = 1e-3f;
    pl_squares_arguments a = {kernel_copy(t, wide, 40), 40, to, false};
    assert_ok(t->operations->squares(t->device, PL_STREAM_COMPUTE, &a));
    assert_true(fabs(*to / ((double)wide[0] * (double)wide[0]) - 1) < 1e-15);
    a.x = kernel_copy(t, wide + 1, 39);
    a.count = 39;
    assert_ok(t->operations->squares(t->device, PL_STREAM_COMPUTE, &a));
    assert_true(fabs(*to / (39 * (double)wide[1] * (double)wide[1]) - 1) < 1e-14);
}

static void squares_are_summed_in_double(void **state)
{
    (void)state;
    kernel_everywhere(squares, NULL);
}

/* --- clip --- */

static void clips(kernel_test *t, const void *context)
{
    (void)context;
    const double with_nan = NAN, infinite = INFINITY;
    double *sums = kernel_bytes(t, 24), *clip = kernel_bytes(t, 24);
    sums[0] = 9;
    sums[1] = 16;
    sums[2] = 0;
    pl_clip_arguments a = {{&sums[0], &sums[1], &sums[2]}, 2, clip};
    assert_ok(t->operations->clip(t->device, PL_STREAM_COMPUTE, &a));
    kernel_recorded(t, "clip", 0, 4);
    kernel_touched(t, &sums[1], 8, "r");
    kernel_touched(t, clip, 24, "w");
    assert_true(clip[0] == 5 && clip[1] == 2 / (5 + 1e-6) && clip[2] == 1);
    a.limit = 6; /* no need to */
    assert_ok(t->operations->clip(t->device, PL_STREAM_COMPUTE, &a));
    assert_true(clip[0] == 5 && clip[1] == 1 && clip[2] == 1);
    a.limit = 0; /* switched off */
    a.squares[0] = a.squares[2] = NULL;
    assert_ok(t->operations->clip(t->device, PL_STREAM_COMPUTE, &a));
    kernel_recorded(t, "clip", 0, 2);
    assert_true(clip[0] == 4 && clip[1] == 1 && clip[2] == 1);
    a.squares[0] = &infinite;
    assert_ok(t->operations->clip(t->device, PL_STREAM_COMPUTE, &a));
    assert_true(clip[2] == 0);
    a.squares[0] = &with_nan;
    a.limit = 1;
    assert_ok(t->operations->clip(t->device, PL_STREAM_COMPUTE, &a));
    assert_true(clip[2] == 0);
}

static void the_clip_coefficient_follows_the_norm(void **state)
{
    (void)state;
    kernel_everywhere(clips, NULL);
}

/* --- update --- */

typedef struct moments {
    double *p, *m, *v;
} moments;

/* The rule as kernels/device.h has it, in double. */
static void plain_update(const pl_update_arguments *a, const float *g, moments *x)
{
    double b1 = 1 - pow(a->beta1, (double)a->t), b2 = 1 - pow(a->beta2, (double)a->t);
    for (int64_t i = 0; i < a->count; ++i) {
        double gradient = (double)g[i] * a->clip[1];
        x->p[i] *= 1 - a->lr * a->decay;
        if (!a->m) {
            x->p[i] -= a->lr * gradient;
            continue;
        }
        x->m[i] = a->beta1 * x->m[i] + (1 - a->beta1) * gradient;
        x->v[i] = a->beta2 * x->v[i] + (1 - a->beta2) * gradient * gradient;
        x->p[i] -= a->lr / b1 * x->m[i] / (sqrt(x->v[i]) / sqrt(b2) + a->epsilon);
    }
}

static pl_update_arguments make_update(kernel_test *t, int64_t count, bool adamw)
{
    double *clip = kernel_bytes(t, 24);
    clip[0] = 3;
    clip[1] = 0.3;
    clip[2] = 1;
    pl_update_arguments a = {.p = kernel_floats(t, count),
                             .count = count,
                             .lr = 0.01,
                             .decay = 0.1,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .epsilon = 1e-8,
                             .t = 1,
                             .clip = clip,
                             .token_count = make_tokens(t, 64)};
    if (!adamw) return a;
    a.m = kernel_room(t, count);
    a.v = kernel_room(t, count);
    for (int64_t i = 0; i < count; ++i) a.m[i] = a.v[i] = 0;
    return a;
}

static void check_update_log(const kernel_test *t, const pl_update_arguments *a)
{
    int64_t bytes = a->count * FLOAT;
    kernel_recorded(t, "update", 0, 2 + (bytes > 0) * (a->m ? 4 : 2));
    kernel_touched(t, a->clip, 24, "r");
    kernel_touched(t, a->token_count, 8, "r");
    if (bytes == 0) return;
    kernel_touched(t, a->p, bytes, "rw");
    kernel_touched(t, a->g, bytes, "r");
    if (a->m) kernel_touched(t, a->m, bytes, "rw");
    if (a->m) kernel_touched(t, a->v, bytes, "rw");
}

/* One update of the state as it stands, rounded. */
static void try_update(kernel_test *t, pl_update_arguments *a)
{
    int64_t count = a->count;
    moments x = {kernel_doubles(count), kernel_doubles(count), kernel_doubles(count)};
    float *g = kernel_floats(t, count);
    for (int64_t i = 0; i < count; ++i) {
        if (i % 7 == 2) g[i] *= 1e-9f; /* epsilon counts */
        if (i % 7 == 3) g[i] = 0;
        x.p[i] = a->p[i];
        x.m[i] = a->m ? (double)a->m[i] : 0;
        x.v[i] = a->m ? (double)a->v[i] : 0;
    }
    a->g = g;
    plain_update(a, g, &x);
    assert_ok(t->operations->update(t->device, PL_STREAM_COMPUTE, a));
    check_update_log(t, a);
    kernel_near(a->p, x.p, count, 2e-7, "p");
    if (a->m) kernel_near(a->m, x.m, count, 3e-7, "m");
    if (a->m) kernel_near(a->v, x.v, count, 3e-7, "v");
    kernel_result(t, a->p, (size_t)count * FLOAT);
    pl_free(x.p);
    pl_free(x.m);
    pl_free(x.v);
}

static void updates(kernel_test *t, const void *context)
{
    const bool *adamw = context;
    for (int c = 0; c < COUNTS; ++c) {
        pl_update_arguments a = make_update(t, counts[c], *adamw);
        for (a.t = 1; a.t <= 3; ++a.t) try_update(t, &a);
    }
}

static void adamw_follows_its_rule(void **state)
{
    (void)state;
    const bool adamw = true;
    kernel_everywhere(updates, &adamw);
}

static void sgd_follows_its_rule(void **state)
{
    (void)state;
    const bool adamw = false;
    kernel_everywhere(updates, &adamw);
}

/* p is large beside its step, so that only the step itself shows an error of the rule: p starts
 * at 0, and what is there afterwards is the step. */
static void steps(kernel_test *t, const void *context)
{
    (void)context;
    pl_update_arguments a = make_update(t, 101, true);
    float *g = kernel_floats(t, 101);
    moments x = {kernel_doubles(101), kernel_doubles(101), kernel_doubles(101)};
    for (int i = 0; i < 101; ++i) {
        int tens = i / 10;
        a.p[i] = 0;
        g[i] *= (float)pow(10, -tens);
    }
    a.g = g;
    a.t = 1000;
    plain_update(&a, g, &x);
    assert_ok(t->operations->update(t->device, PL_STREAM_COMPUTE, &a));
    for (int i = 0; i < 101; ++i) {
        double bound = 1e-6 * fabs(x.p[i]) + 1e-37;
        if (!(fabs((double)a.p[i] - x.p[i]) <= bound))
            fail_msg("the step of gradient %g is %.9g, should be %.9g", (double)g[i],
                     (double)a.p[i], x.p[i]);
    }
    pl_free(x.p);
    pl_free(x.m);
    pl_free(x.v);
}

static void each_step_is_exact_to_a_millionth(void **state)
{
    (void)state;
    kernel_everywhere(steps, NULL);
}

/* Decay is lr * decay of p: a factor 1 - 1e-7, rounded to fp32 beforehand, would take a fifth too
 * much of every parameter. Rounding of each result evens out over many. */
static void decays(kernel_test *t, const void *context)
{
    (void)context;
    enum { COUNT = 5000 };
    pl_update_arguments a = make_update(t, COUNT, false);
    float *g = kernel_room(t, COUNT);
    double before = 0, after = 0;
    for (int i = 0; i < COUNT; ++i) {
        g[i] = 0;
        a.p[i] = (float)(1.5 + 0.5 * kernel_random(t));
        before += (double)a.p[i];
    }
    a.g = g;
    a.lr = 1e-6;
    a.decay = 0.1;
    assert_ok(t->operations->update(t->device, PL_STREAM_COMPUTE, &a));
    for (int i = 0; i < COUNT; ++i) after += (double)a.p[i];
    assert_true(fabs((before - after) / (before * a.lr * a.decay) - 1) < 0.04);
}

static void decay_is_not_rounded_away(void **state)
{
    (void)state;
    kernel_everywhere(decays, NULL);
}

static void nothing(kernel_test *t, const void *context)
{
    (void)context;
    pl_update_arguments a = make_update(t, 40, true);
    float *kept = kernel_copy(t, a.p, 40);
    a.g = kernel_floats(t, 40);
    *(int64_t *)(uintptr_t)a.token_count = 0;
    assert_ok(t->operations->update(t->device, PL_STREAM_COMPUTE, &a));
    kernel_recorded(t, "update", 0, 6);
    *(int64_t *)(uintptr_t)a.token_count = 5;
    ((double *)(uintptr_t)a.clip)[2] = 0;
    assert_ok(t->operations->update(t->device, PL_STREAM_COMPUTE, &a));
    kernel_same(a.p, kept, 40 * sizeof *kept, "p");
    for (int i = 0; i < 40; ++i) assert_true(a.m[i] == 0 && a.v[i] == 0);
    ((double *)(uintptr_t)a.clip)[2] = 1;
    assert_ok(t->operations->update(t->device, PL_STREAM_COMPUTE, &a));
    assert_memory_not_equal(a.p, kept, 40 * sizeof *kept);
}

static void without_tokens_or_a_finite_norm_nothing_is_updated(void **state)
{
    (void)state;
    kernel_everywhere(nothing, NULL);
}

/* --- refusals --- */

static void refusals(kernel_test *t, const void *context)
{
    (void)context;
    const pl_operations *o = t->operations;
    pl_device *device = t->device;
    pl_stream stream = PL_STREAM_COMPUTE;
    float *x = kernel_floats(t, 16);
    int64_t *tokens = make_tokens(t, 3);
    double *sums = kernel_bytes(t, 24);
    pl_scale_arguments scale = {x, 16, 1, 0, 0, NULL};
    assert_fails(PL_INTERNAL, o->scale(device, stream, &scale), "scale", "loss head",
                 "denominator");
    scale = (pl_scale_arguments){x, 16, 1, 1, -1, NULL};
    assert_fails(PL_INTERNAL, o->scale(device, stream, &scale), "count of tokens");
    scale = (pl_scale_arguments){x, 16, 1, 1, 100, tokens};
    assert_fails(PL_INTERNAL, o->scale(device, stream, &scale), "power");
    pl_squares_arguments squared = {x, 16, NULL, false};
    assert_fails(PL_INTERNAL, o->squares(device, stream, &squared), "squares", "to are given");
    squared = (pl_squares_arguments){x, -1, sums, false};
    assert_fails(PL_INTERNAL, o->squares(device, stream, &squared), "at least 0");
    pl_clip_arguments clip = {{sums, NULL, NULL}, -1, sums};
    assert_fails(PL_INTERNAL, o->clip(device, stream, &clip), "clip", "limit");
    pl_update_arguments a = make_update(t, 4, true);
    a.g = x;
    a.t = 0;
    assert_fails(PL_INTERNAL, o->update(device, stream, &a), "update", "from 1");
    a.t = 1;
    a.v = NULL;
    assert_fails(PL_INTERNAL, o->update(device, stream, &a), "m and v");
    a.m = NULL;
    a.clip = NULL;
    assert_fails(PL_INTERNAL, o->update(device, stream, &a), "clip");
    assert_int_equal(t->records, 0);
}

static void wrong_updates_are_refused(void **state)
{
    (void)state;
    kernel_once(refusals, NULL, 1);
}

static pl_status squares_without_memory(kernel_test *t, const void *context, int64_t after)
{
    (void)context;
    pl_squares_arguments a = {kernel_floats(t, 50), 50, kernel_bytes(t, 8), false};
    pl_allocation_fail_after(after);
    return t->operations->squares(t->device, PL_STREAM_COMPUTE, &a);
}

static void squares_without_memory_say_so(void **state)
{
    (void)state;
    kernel_allocation_failures(squares_without_memory, NULL, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_scaled_by_powers_of_the_token_count),
        cmocka_unit_test(squares_are_summed_in_double),
        cmocka_unit_test(the_clip_coefficient_follows_the_norm),
        cmocka_unit_test(adamw_follows_its_rule),
        cmocka_unit_test(sgd_follows_its_rule),
        cmocka_unit_test(each_step_is_exact_to_a_millionth),
        cmocka_unit_test(decay_is_not_rounded_away),
        cmocka_unit_test(without_tokens_or_a_finite_norm_nothing_is_updated),
        cmocka_unit_test(wrong_updates_are_refused),
        cmocka_unit_test(squares_without_memory_say_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
