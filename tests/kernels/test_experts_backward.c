/* The experts, backward: gradients of activations, of routing weights and of the matrices, in all
 * orders of rows, against plain loops in double, which are themselves held against differences.
 */
#include "tests/kernels/experts.h"

static const experts_case cases[] = {
    {PL_EXPERTS_SORTED, 1, 1, 0, 1, 1, 0, 0, 1, 1, SPREAD_ANY},
    {PL_EXPERTS_SORTED, 4, 4, 0, 9, 2, 0, 0, 15, 17, SPREAD_ANY},
    {PL_EXPERTS_SORTED, 5, 5, 0, 12, 5, 0, 0, 16, 33, SPREAD_ANY},
    {PL_EXPERTS_SORTED, 3, 3, 0, 801, 1, 0, 0, 17, 20, SPREAD_ONE},
    {PL_EXPERTS_SORTED, 9, 9, 0, 20, 2, 0, 0, 5, 1030, SPREAD_GAPS},
    {PL_EXPERTS_SORTED, 2, 2, 0, 0, 2, 0, 0, 16, 16, SPREAD_ANY},
    {PL_EXPERTS_COUNTED, 3, 3, 0, 0, 0, 4, 9, 17, 15, SPREAD_ANY},
    {PL_EXPERTS_COUNTED, 4, 4, 0, 0, 0, 1, 30, 20, 31, SPREAD_ANY},
    {PL_EXPERTS_COUNTED, 1, 1, 0, 0, 0, 5, 150, 12, 300, SPREAD_ANY},
    {PL_EXPERTS_COUNTED, 2, 2, 0, 0, 0, 3, 600, 9, 16, SPREAD_ANY},
    {PL_EXPERTS_COUNTED, 5, 5, 0, 0, 0, 2, 500, 8, 10, SPREAD_ONE},
    {PL_EXPERTS_COUNTED, 7, 7, 0, 0, 0, 3, 0, 16, 8, SPREAD_ANY},
    {PL_EXPERTS_CHOSEN, 4, 4, 0, 11, 2, 0, 0, 15, 18, SPREAD_ANY},
    {PL_EXPERTS_CHOSEN, 3, 12, 6, 50, 4, 0, 0, 33, 16, SPREAD_ANY},
    {PL_EXPERTS_CHOSEN, 2, 8, 6, 130, 8, 0, 0, 10, 21, SPREAD_ANY},
    {PL_EXPERTS_CHOSEN, 2, 4, 1, 800, 1, 0, 0, 6, 30, SPREAD_ONE},
    {PL_EXPERTS_CHOSEN, 1, 6, 0, 20, 2, 0, 0, 16, 16, SPREAD_GAPS},
    {PL_EXPERTS_CHOSEN, 3, 3, 0, 0, 2, 0, 0, 16, 16, SPREAD_ANY},
};
enum { CASES = sizeof cases / sizeof *cases };

/* --- calls --- */

static pl_experts_inputs_arguments inputs_arguments(const trial *x, const float *saved)
{
    return (pl_experts_inputs_arguments){.rows = x->rows,
                                         .dout = x->dout,
                                         .gate = x->gate,
                                         .up = x->up,
                                         .down = x->down,
                                         .saved = saved,
                                         .dtype = PL_FP32,
                                         .hidden = x->c->hidden,
                                         .width = x->c->width};
}

static pl_status run_inputs(kernel_test *t, const pl_experts_inputs_arguments *a)
{
    return t->operations->experts_inputs(t->device, PL_STREAM_COMPUTE, a);
}

static pl_experts_weights_arguments weights_arguments(const trial *x, const float *saved,
                                                      const float *dact)
{
    return (pl_experts_weights_arguments){.rows = x->rows,
                                          .in = x->in,
                                          .dout = x->dout,
                                          .saved = saved,
                                          .dact = dact,
                                          .dtype = PL_FP32,
                                          .hidden = x->c->hidden,
                                          .width = x->c->width};
}

static pl_status run_weights(kernel_test *t, const pl_experts_weights_arguments *a)
{
    return t->operations->experts_weights(t->device, PL_STREAM_COMPUTE, a);
}

static float *run_forward(kernel_test *t, const trial *x)
{
    float *saved = make_pairs(t, x);
    pl_experts_arguments a = forward_arguments(x, saved, NULL);
    assert_ok(run_experts(t, &a));
    return saved;
}

/* --- gradients of activations --- */

static void check_inputs_record(const kernel_test *t, const trial *x,
                                const pl_experts_inputs_arguments *a)
{
    const experts_case *c = x->c;
    bool chosen = c->order == PL_EXPERTS_CHOSEN, counted = c->order == PL_EXPERTS_COUNTED;
    int64_t matrices = c->experts * matrix_of(x) * FLOAT, rows = x->rows.rows * c->hidden * FLOAT;
    int64_t pairs = x->count * 2 * c->width * FLOAT, choices = choices_of(c) * 4;
    int touches = 1 + (a->din ? 2 : 0) + (rows > 0) + (pairs > 0) + (a->dact && pairs > 0) +
                  (a->din && rows > 0) + (a->dweights && choices > 0) + counted + (choices > 0) +
                  (chosen && choices > 0);
    kernel_recorded(t, "experts_inputs", 2 * (a->din ? 3 : 1) * x->count * matrix_of(x), touches);
    kernel_touched(t, x->down, matrices, "r");
    if (a->din) kernel_touched(t, x->gate, matrices, "r");
    if (a->din) kernel_touched(t, x->up, matrices, "r");
    if (rows > 0) kernel_touched(t, x->dout, rows, "r");
    if (rows > 0 && a->din) kernel_touched(t, a->din, rows, "w");
    if (pairs > 0) kernel_touched(t, a->saved, pairs, "r");
    if (pairs > 0 && a->dact) kernel_touched(t, a->dact, pairs, "w");
    if (choices > 0 && a->dweights) kernel_touched(t, a->dweights, choices, "w");
    if (choices > 0 && chosen) kernel_touched(t, x->rows.weights, choices, "r");
}

static void inputs_one(kernel_test *t, const experts_case *c)
{
    trial x = make_trial(t, c);
    int64_t rows = x.rows.rows * c->hidden, pairs = x.count * 2 * c->width;
    bool chosen = c->order == PL_EXPERTS_CHOSEN;
    const float *saved = run_forward(t, &x);
    float *dact = make_pairs(t, &x), *dact_alone = make_pairs(t, &x);
    float *din = kernel_room(t, rows), *din_alone = kernel_room(t, rows);
    float *dweights = kernel_room(t, choices_of(c));
    pl_experts_inputs_arguments a = inputs_arguments(&x, saved);
    a.dact = dact;
    a.din = din;
    if (chosen) a.dweights = dweights;
    assert_ok(run_inputs(t, &a));
    check_inputs_record(t, &x, &a);
    kernel_near(din, x.din, rows, 3e-6, "din");
    if (chosen) kernel_near(dweights, x.dweights, choices_of(c), 3e-6, "dweights");
    kernel_result(t, din, (size_t)rows * FLOAT);
    kernel_result(t, dact, (size_t)pairs * FLOAT);
    kernel_result(t, dweights, (size_t)choices_of(c) * FLOAT);
    a.dact = NULL;
    a.din = din_alone;
    a.dweights = NULL;
    assert_ok(run_inputs(t, &a));
    check_inputs_record(t, &x, &a);
    kernel_same(din, din_alone, (size_t)rows * FLOAT, "din alone");
    a.dact = dact_alone;
    a.din = NULL;
    assert_ok(run_inputs(t, &a));
    check_inputs_record(t, &x, &a);
    kernel_same(dact, dact_alone, (size_t)(x.rows.room * 2 * c->width) * FLOAT, "dact alone");
    free_trial(&x);
}

static void inputs_cases(kernel_test *t, const void *context)
{
    (void)context;
    for (int i = 0; i < CASES; ++i) inputs_one(t, &cases[i]);
}

static void activations_get_their_gradients(void **state)
{
    (void)state;
    kernel_everywhere(inputs_cases, NULL);
}

/* --- gradients of weights --- */

static void check_weights_record(const kernel_test *t, const trial *x,
                                 const pl_experts_weights_arguments *a)
{
    const experts_case *c = x->c;
    bool counted = c->order == PL_EXPERTS_COUNTED, wide = a->dgate || a->dup;
    int64_t matrices = c->experts * matrix_of(x) * FLOAT, rows = x->rows.rows * c->hidden * FLOAT;
    int64_t pairs = x->count * 2 * c->width * FLOAT, choices = choices_of(c) * 4;
    int products = (a->dgate != NULL) + (a->dup != NULL) + (a->ddown != NULL);
    int touches = products + counted + (choices > 0) + (wide && rows > 0) + (wide && pairs > 0) +
                  (a->ddown && rows > 0) + (a->ddown && pairs > 0) +
                  (c->order == PL_EXPERTS_CHOSEN && choices > 0 && a->ddown);
    kernel_recorded(t, "experts_weights", 2 * products * x->count * matrix_of(x), touches);
    if (a->dgate) kernel_touched(t, a->dgate, matrices, a->add_gate ? "rw" : "w");
    if (a->dup) kernel_touched(t, a->dup, matrices, a->add_up ? "rw" : "w");
    if (a->ddown) kernel_touched(t, a->ddown, matrices, a->add_down ? "rw" : "w");
    if (wide && rows > 0) kernel_touched(t, x->in, rows, "r");
    if (wide && pairs > 0) kernel_touched(t, a->dact, pairs, "r");
    if (a->ddown && rows > 0) kernel_touched(t, x->dout, rows, "r");
    if (a->ddown && pairs > 0) kernel_touched(t, a->saved, pairs, "r");
}

static void check_weights(const trial *x, const float *const actual[3], double times)
{
    static const char *const names[3] = {"dgate", "dup", "ddown"};
    const double *plain[3] = {x->dgate, x->dup, x->ddown};
    int64_t count = x->c->experts * matrix_of(x);
    double *expected = kernel_doubles(count);
    for (int k = 0; k < 3; ++k) {
        for (int64_t i = 0; i < count; ++i) expected[i] = times * plain[k][i];
        kernel_near(actual[k], expected, count, 5e-6, names[k]);
    }
    pl_free(expected);
}

/* Each wanted alone gives the bits that it has among the others. */
static void check_alone(kernel_test *t, const trial *x, pl_experts_weights_arguments a,
                        const float *const all[3])
{
    int64_t count = x->c->experts * matrix_of(x);
    for (int k = 0; k < 3; ++k) {
        float *alone = kernel_room(t, count);
        a.dgate = k == 0 ? alone : NULL;
        a.dup = k == 1 ? alone : NULL;
        a.ddown = k == 2 ? alone : NULL;
        assert_ok(run_weights(t, &a));
        check_weights_record(t, x, &a);
        kernel_same(alone, all[k], (size_t)count * FLOAT, "one alone");
    }
}

static void weights_one(kernel_test *t, const experts_case *c)
{
    trial x = make_trial(t, c);
    int64_t count = c->experts * matrix_of(&x);
    const float *saved = run_forward(t, &x);
    float *dact = make_pairs(t, &x);
    pl_experts_inputs_arguments b = inputs_arguments(&x, saved);
    b.dact = dact;
    assert_ok(run_inputs(t, &b));
    pl_experts_weights_arguments a = weights_arguments(&x, saved, dact);
    float *all[3];
    for (int k = 0; k < 3; ++k) all[k] = kernel_room(t, count);
    const float *const actual[3] = {all[0], all[1], all[2]};
    a.dgate = all[0];
    a.dup = all[1];
    a.ddown = all[2];
    assert_ok(run_weights(t, &a));
    check_weights_record(t, &x, &a);
    check_weights(&x, actual, 1);
    for (int k = 0; k < 3; ++k) kernel_result(t, all[k], (size_t)count * FLOAT);
    check_alone(t, &x, a, actual);
    a.add_gate = a.add_up = a.add_down = true;
    assert_ok(run_weights(t, &a));
    check_weights_record(t, &x, &a);
    check_weights(&x, actual, 2);
    a.add_gate = a.add_down = false; /* each by itself */
    assert_ok(run_weights(t, &a));
    for (int64_t i = 0; i < count; ++i) x.dup[i] *= 3;
    check_weights(&x, actual, 1);
    free_trial(&x);
}

static void weights_cases(kernel_test *t, const void *context)
{
    (void)context;
    for (int i = 0; i < CASES; ++i) weights_one(t, &cases[i]);
}

static void matrices_get_their_gradients(void **state)
{
    (void)state;
    kernel_everywhere(weights_cases, NULL);
}

/* --- the plain loops against differences --- */

/* sum(dout * out), from floats as they are now. */
static double value(trial *x)
{
    int64_t rows = x->rows.rows * x->c->hidden;
    double sum = 0;
    memset(x->out, 0, (size_t)rows * sizeof *x->out);
    plain_experts(x);
    for (int64_t i = 0; i < rows; ++i) sum += (double)x->dout[i] * x->out[i];
    return sum;
}

/* Differences over steps that floats have exactly. */
static void check_differences(trial *x, float *at, const double *gradient, int64_t count,
                              const char *what)
{
    const float step = 0x1p-8f;
    double largest = 1e-30;
    for (int64_t i = 0; i < count; ++i) largest = fmax(largest, fabs(gradient[i]));
    for (int64_t i = 0; i < count; ++i) {
        float before = at[i];
        at[i] = before + step;
        double above = value(x), wide = (double)at[i];
        at[i] = before - step;
        double slope = (above - value(x)) / (wide - (double)at[i]);
        at[i] = before;
        if (fabs(slope - gradient[i]) > 2e-4 * largest)
            fail_msg("%s[%d]: gradient %.6g, difference %.6g", what, (int)i, gradient[i], slope);
    }
}

/* VALUES as they are now; the caller frees them. value() adds to those of the trial. */
static double *kept(const double *values, int64_t count)
{
    double *copy = kernel_doubles(count);
    for (int64_t i = 0; i < count; ++i) copy[i] = values[i];
    return copy;
}

static void differences(kernel_test *t, const void *context)
{
    trial x = make_trial(t, context);
    int64_t matrices = x.c->experts * matrix_of(&x), rows = x.rows.rows * x.c->hidden;
    int64_t choices = choices_of(x.c);
    float *weights = kernel_copy(t, x.rows.weights, x.rows.weights ? choices : 0);
    if (x.rows.weights) x.rows.weights = weights;
    const struct {
        float *at;
        double *gradient;
        int64_t count;
        const char *what;
    } checks[] = {
        {x.gate, kept(x.dgate, matrices), matrices, "dgate"},
        {x.up, kept(x.dup, matrices), matrices, "dup"},
        {x.down, kept(x.ddown, matrices), matrices, "ddown"},
        {x.in, kept(x.din, rows), rows, "din"},
        {weights, kept(x.dweights, choices), x.rows.weights ? choices : 0, "dweights"},
    };
    for (size_t i = 0; i < sizeof checks / sizeof *checks; ++i) {
        check_differences(&x, checks[i].at, checks[i].gradient, checks[i].count, checks[i].what);
        pl_free(checks[i].gradient);
    }
    free_trial(&x);
}

static void plain_gradients_agree_with_differences(void **state)
{
    static const experts_case counted = {PL_EXPERTS_COUNTED, 3, 3, 0, 0, 0, 2, 3, 4, 5, SPREAD_ANY};
    static const experts_case chosen = {PL_EXPERTS_CHOSEN, 2, 4, 1, 6, 2, 0, 0, 4, 5, SPREAD_ANY};
    (void)state;
    kernel_once(differences, &counted, 1);
    kernel_once(differences, &chosen, 1);
}

/* --- what is refused, and what fails --- */

static void refuse(kernel_test *t, const void *context)
{
    const experts_case c = {PL_EXPERTS_SORTED, 3, 3, 0, 6, 2, 0, 0, 4, 5, SPREAD_ANY};
    (void)context;
    trial x = make_trial(t, &c);
    float *pairs = make_pairs(t, &x);
    pl_experts_inputs_arguments a = inputs_arguments(&x, pairs);
    pl_experts_weights_arguments b = weights_arguments(&x, pairs, pairs);
    a.dtype = b.dtype = PL_FP16;
    assert_fails(PL_UNSUPPORTED, run_inputs(t, &a), "experts_inputs", "fp16");
    assert_fails(PL_UNSUPPORTED, run_weights(t, &b), "experts_weights", "fp16");
    a.dtype = b.dtype = PL_FP32;
    --a.rows.rows;
    --b.rows.rows;
    assert_fails(PL_INTERNAL, run_inputs(t, &a), "experts_inputs", "all of the rows");
    assert_fails(PL_INTERNAL, run_weights(t, &b), "experts_weights", "all of the rows");
    assert_int_equal(t->records, 0);
    free_trial(&x);
}

static void rows_that_contradict_are_refused(void **state)
{
    (void)state;
    kernel_once(refuse, NULL, 1);
}

static pl_status fail_inputs(kernel_test *t, const void *context, int64_t after)
{
    trial x = make_trial(t, context);
    float *saved = kernel_floats(t, x.rows.room * 2 * x.c->width);
    pl_experts_inputs_arguments a = inputs_arguments(&x, saved);
    a.din = kernel_room(t, x.rows.rows * x.c->hidden);
    pl_allocation_fail_after(after);
    pl_status status = run_inputs(t, &a);
    free_trial(&x);
    return status;
}

static pl_status fail_weights(kernel_test *t, const void *context, int64_t after)
{
    trial x = make_trial(t, context);
    float *saved = kernel_floats(t, x.rows.room * 2 * x.c->width);
    pl_experts_weights_arguments a = weights_arguments(&x, saved, saved);
    a.dgate = a.dup = a.ddown = kernel_room(t, x.c->experts * matrix_of(&x));
    a.dup = NULL;
    a.ddown = NULL;
    pl_allocation_fail_after(after);
    pl_status status = run_weights(t, &a);
    free_trial(&x);
    return status;
}

static void failing_allocations_are_reported(void **state)
{
    (void)state;
    for (int i = 1; i < CASES; i += 6) {
        kernel_allocation_failures(fail_inputs, &cases[i], 1);
        kernel_allocation_failures(fail_weights, &cases[i], 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_get_their_gradients),
        cmocka_unit_test(matrices_get_their_gradients),
        cmocka_unit_test(plain_gradients_agree_with_differences),
        cmocka_unit_test(rows_that_contradict_are_refused),
        cmocka_unit_test(failing_allocations_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
