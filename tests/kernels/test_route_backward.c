/* The router's gradient, against differences of plain loops in double. */
#include "common/memory.h"
#include "tests/kernels/router.h"

typedef struct backward_case {
    route_case route;
    bool balance, counted_tokens;
} backward_case;

static const backward_case backward_cases[] = {
    {{3, 8, 2, 1, true, false}, false, false}, {{3, 8, 2, 1, false, false}, false, false},
    {{4, 17, 3, 2, true, false}, true, true},  {{4, 33, 5, 4, false, false}, true, false},
    {{2, 5, 5, 1, true, false}, true, true},   {{6, 3, 1, 3, true, false}, true, true},
    {{4, 6, 3, 1, true, true}, true, false},
};
enum { BACKWARD_CASES = sizeof backward_cases / sizeof *backward_cases };

enum { TOKEN_COUNT = 37 };
static const double factor = 0.3, count_tokens = 11, score_tokens = 13;

/* What the gradient is of: in doubles, choices and counts fixed. */
typedef struct objective {
    const backward_case *c;
    const int32_t *choices;
    const float *dweights;
    const int64_t *counts;
    double *logits, *scores;
} objective;

static double token_value(const objective *o, int64_t t)
{
    const route_case *c = &o->c->route;
    const double *scores = o->scores + t * c->experts;
    const int32_t *choices = o->choices + t * c->chosen;
    double sum = 0, value = 0;
    for (int64_t j = 0; j < c->chosen; ++j) sum += scores[choices[j]];
    for (int64_t j = 0; j < c->chosen; ++j)
        value +=
            (double)o->dweights[t * c->chosen + j] * scores[choices[j]] / (c->normalise ? sum : 1);
    if (!o->c->balance) return value;
    const int64_t *counts = o->counts + t / (c->tokens / c->sets) * c->experts;
    double loss = 0;
    for (int64_t e = 0; e < c->experts; ++e)
        loss += (double)counts[e] / count_tokens * scores[e] / score_tokens;
    return value + factor * (o->c->counted_tokens ? TOKEN_COUNT : 1) * (double)c->experts /
                       (double)c->chosen * loss;
}

static double value(const objective *o)
{
    const route_case *c = &o->c->route;
    double sum = 0;
    for (int64_t t = 0; t < c->tokens; ++t) {
        plain_softmax(o->logits + t * c->experts, o->scores + t * c->experts, c->experts);
        sum += token_value(o, t);
    }
    return sum;
}

/* Central differences of value. */
static void differentiate(const objective *o, double *gradient)
{
    const double step = 1e-5;
    for (int64_t i = 0; i < o->c->route.tokens * o->c->route.experts; ++i) {
        double kept = o->logits[i];
        o->logits[i] = kept + step;
        double above = value(o);
        o->logits[i] = kept - step;
        gradient[i] = (above - value(o)) / (2 * step);
        o->logits[i] = kept;
    }
}

static double largest_difference(const float *a, const double *b, int64_t count)
{
    double largest = 0;
    for (int64_t i = 0; i < count; ++i) largest = fmax(largest, fabs((double)a[i] - b[i]));
    return largest;
}

/* Counts that are not those of this rank: what the reduction over all ranks gives. */
static int64_t *other_counts(kernel_test *t, const route_case *c)
{
    int64_t *counts = kernel_bytes(t, c->sets * c->experts * 8);
    for (int64_t i = 0; i < c->sets * c->experts; ++i) counts[i] = kernel_random_below(t, 9);
    return counts;
}

static void record_of_backward(kernel_test *t, const pl_route_backward_arguments *a)
{
    const pl_routes *from = &a->routes;
    int64_t scores = from->tokens * from->experts * 4, chosen = from->tokens * from->chosen * 4;
    int touches = 4 + from->normalise + (a->balance_counts != NULL) + (a->token_count != NULL);
    kernel_recorded(t, "route_backward", 0, touches);
    kernel_touched(t, a->scores, scores, "r");
    kernel_touched(t, from->choices, chosen, "r");
    kernel_touched(t, a->dweights, chosen, "r");
    kernel_touched(t, a->dlogits, scores, "w");
    if (from->normalise) kernel_touched(t, from->weights, chosen, "r");
    if (a->balance_counts) kernel_touched(t, a->balance_counts, a->sets * from->experts * 8, "r");
    if (a->token_count) kernel_touched(t, a->token_count, 8, "r");
}

static void backward_one(kernel_test *t, const backward_case *b)
{
    const route_case *c = &b->route;
    int64_t count = c->tokens * c->experts;
    router r = make_router(t, c);
    for (int64_t i = 0; i < count; ++i) r.logits[i] /= 3;
    pl_route_arguments forward = arguments_of(&r, c);
    assert_ok(run_route(t, &forward));
    const int64_t *counts = other_counts(t, c);
    int64_t *token_count = kernel_bytes(t, 8);
    *token_count = TOKEN_COUNT;
    pl_route_backward_arguments a = {.scores = r.scores,
                                     .routes = r.routes,
                                     .dweights = kernel_floats(t, c->tokens * c->chosen),
                                     .dlogits = kernel_room(t, count),
                                     .balance_counts = b->balance ? counts : NULL,
                                     .token_count = b->counted_tokens ? token_count : NULL,
                                     .balance_factor = factor,
                                     .balance_count_tokens = count_tokens,
                                     .balance_score_tokens = score_tokens,
                                     .sets = c->sets};
    a.routes.slots = NULL;
    assert_ok(t->operations->route_backward(t->device, PL_STREAM_COMPUTE, &a));
    record_of_backward(t, &a);
    objective o = {b,      r.routes.choices,      a.dweights,
                   counts, kernel_doubles(count), kernel_doubles(count)};
    for (int64_t i = 0; i < count; ++i) o.logits[i] = (double)r.logits[i];
    double *gradient = kernel_doubles(count);
    differentiate(&o, gradient);
    kernel_near(a.dlogits, gradient, count, 2e-6, "dlogits");
    kernel_result(t, a.dlogits, (size_t)count * FLOAT);
    if (b->balance && c->experts > c->chosen) {
        a.balance_counts = r.balance_counts; /* this rank's own counts instead of all ranks' */
        assert_ok(t->operations->route_backward(t->device, PL_STREAM_COMPUTE, &a));
        assert_true(largest_difference(a.dlogits, gradient, count) > 1e-3);
    }
    pl_free(o.logits);
    pl_free(o.scores);
    pl_free(gradient);
}

static void backward_bodies(kernel_test *t, const void *context)
{
    (void)context;
    for (int i = 0; i < BACKWARD_CASES; ++i) backward_one(t, &backward_cases[i]);
}

static void gradients_agree_with_differences(void **state)
{
    (void)state;
    kernel_everywhere(backward_bodies, NULL);
}

/* Many tokens, so that there are many tasks: a token's gradient is what it is alone. */
static void backward_alone(kernel_test *t, const void *context)
{
    (void)context;
    const route_case c = {3 * 70, 20, 3, 3, true, false};
    router r = make_router(t, &c);
    pl_route_arguments forward = arguments_of(&r, &c);
    assert_ok(run_route(t, &forward));
    pl_route_backward_arguments a = {.scores = r.scores,
                                     .routes = r.routes,
                                     .dweights = kernel_floats(t, c.tokens * c.chosen),
                                     .dlogits = kernel_room(t, c.tokens * c.experts),
                                     .balance_counts = r.balance_counts,
                                     .balance_factor = 1,
                                     .balance_count_tokens = 70,
                                     .balance_score_tokens = 210,
                                     .sets = 3};
    assert_ok(t->operations->route_backward(t->device, PL_STREAM_COMPUTE, &a));
    float *alone = kernel_room(t, c.experts);
    pl_route_backward_arguments one = a;
    one.routes.tokens = one.sets = 1;
    one.dlogits = alone;
    for (int64_t i = 0; i < c.tokens; ++i) {
        one.scores = a.scores + i * c.experts;
        one.routes.choices = a.routes.choices + i * c.chosen;
        one.routes.weights = a.routes.weights + i * c.chosen;
        one.dweights = a.dweights + i * c.chosen;
        one.balance_counts = a.balance_counts + i / 70 * c.experts;
        assert_ok(t->operations->route_backward(t->device, PL_STREAM_COMPUTE, &one));
        kernel_same(alone, a.dlogits + i * c.experts, (size_t)c.experts * FLOAT, "one token");
    }
    kernel_result(t, a.dlogits, (size_t)(c.tokens * c.experts) * FLOAT);
}

static void a_token_has_the_gradient_of_its_set_and_of_itself(void **state)
{
    (void)state;
    kernel_everywhere(backward_alone, NULL);
}

static void backward_without_scores(kernel_test *t, const void *context)
{
    (void)context;
    const route_case c = {8, 8, 2, 1, true, true};
    router r = make_router(t, &c);
    for (int i = 0; i < 64; ++i) r.logits[i] = i % 8 == 3 ? 200.0f : 0.0f;
    pl_route_arguments forward = arguments_of(&r, &c);
    assert_ok(run_route(t, &forward));
    pl_route_backward_arguments a = {.scores = r.scores, .routes = r.routes, .sets = 1};
    a.dweights = kernel_floats(t, 16);
    a.dlogits = kernel_room(t, 64);
    assert_ok(t->operations->route_backward(t->device, PL_STREAM_COMPUTE, &a));
    for (int i = 0; i < 64; ++i) assert_true(a.dlogits[i] == 0);
}

static void experts_without_scores_leave_gradients_finite(void **state)
{
    (void)state;
    kernel_everywhere(backward_without_scores, NULL);
}

static void refuse_choices(kernel_test *t, const void *context)
{
    (void)context;
    const route_case c = {6, 8, 2, 1, true, false};
    router r = make_router(t, &c);
    pl_route_arguments a = arguments_of(&r, &c);
    assert_ok(run_route(t, &a));
    pl_route_backward_arguments b = {.scores = r.scores, .routes = r.routes, .sets = 1};
    b.dweights = kernel_floats(t, 12);
    b.dlogits = kernel_room(t, 48);
    b.routes.choices[5] = 8;
    assert_fails(PL_INTERNAL, t->operations->route_backward(t->device, PL_STREAM_COMPUTE, &b),
                 "route_backward", "choices are numbers of experts");
    b.routes.choices[5] = -1;
    assert_fails(PL_INTERNAL, t->operations->route_backward(t->device, PL_STREAM_COMPUTE, &b),
                 "choices are numbers of experts");
    b.routes.choices[5] = 0;
    b.balance_counts = r.balance_counts;
    b.sets = 5;
    assert_fails(PL_INTERNAL, t->operations->route_backward(t->device, PL_STREAM_COMPUTE, &b),
                 "evenly into sets");
    b.sets = 1;
    b.routes.chosen = 9;
    assert_fails(PL_INTERNAL, t->operations->route_backward(t->device, PL_STREAM_COMPUTE, &b),
                 "at most all experts");
}

static void contradictions_are_refused(void **state)
{
    (void)state;
    kernel_once(refuse_choices, NULL, 1);
}

static pl_status fail_backward(kernel_test *t, const void *context, int64_t after)
{
    (void)context;
    const route_case c = {130, 37, 3, 1, true, false};
    router r = make_router(t, &c);
    memset(r.routes.choices, 0, (size_t)(c.tokens * c.chosen) * 4);
    memset(r.balance_counts, 0, (size_t)c.experts * 8);
    pl_route_backward_arguments a = {.scores = r.logits, .routes = r.routes, .sets = 1};
    a.dweights = kernel_floats(t, c.tokens * c.chosen);
    a.dlogits = r.scores;
    a.balance_counts = r.balance_counts;
    a.balance_count_tokens = a.balance_score_tokens = 130;
    pl_allocation_fail_after(after);
    return t->operations->route_backward(t->device, PL_STREAM_COMPUTE, &a);
}

static void failing_allocations_are_reported(void **state)
{
    (void)state;
    kernel_allocation_failures(fail_backward, NULL, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_agree_with_differences),
        cmocka_unit_test(a_token_has_the_gradient_of_its_set_and_of_itself),
        cmocka_unit_test(experts_without_scores_leave_gradients_finite),
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(failing_allocations_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
