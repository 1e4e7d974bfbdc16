/* The router: softmax, choice, slots, counts, against plain loops in double. */
#include "common/memory.h"
#include "tests/kernels/router.h"

static const route_case cases[] = {
    {1, 1, 1, 1, true, false},     {5, 8, 2, 1, true, false},    {130, 8, 2, 2, false, false},
    {64, 16, 16, 1, true, false},  {200, 17, 3, 4, true, false}, {33, 128, 8, 3, false, false},
    {70, 1024, 5, 1, true, false}, {192, 6, 4, 3, true, false},  {0, 8, 2, 1, true, false},
    {65, 40, 40, 5, false, false}, {131, 9, 1, 1, true, false},  {130, 12, 3, 1, true, true},
    {70, 7, 3, 7, false, true},    {3, 4, 4, 1, true, true},
};
enum { CASES = sizeof cases / sizeof *cases };

/* --- against plain loops --- */

/* Whether expert A comes before B: the higher score first, the lower number among equals. */
static bool comes_before(const float *scores, int64_t a, int64_t b)
{
    return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
}

/* Choices follow the scores as they are; weights, slots and counts follow the choices. */
static void check_routes(const router *r, const route_case *c)
{
    const pl_routes *to = &r->routes;
    for (int64_t t = 0; t < c->tokens; ++t) {
        const float *scores = r->scores + t * c->experts;
        const int32_t *choices = to->choices + t * c->chosen;
        double sum = 0;
        for (int64_t j = 0; j < c->chosen; ++j) {
            int64_t before = 0, expert = choices[j];
            assert_in_range(expert, 0, c->experts - 1);
            for (int64_t e = 0; e < c->experts; ++e) before += comes_before(scores, e, expert);
            if (c->balanced)
                assert_int_equal(expert, (t + j * (c->experts / c->chosen)) % c->experts);
            else
                assert_int_equal(before, j);
            sum += (double)scores[expert];
        }
        for (int64_t j = 0; j < c->chosen; ++j) {
            double weight = (double)scores[choices[j]] / (c->normalise ? sum : 1);
            assert_true(fabs((double)to->weights[t * c->chosen + j] - weight) <= 1e-6 * weight);
        }
    }
}

static void check_slots(const router *r, const route_case *c)
{
    int64_t next = 0, choices = c->tokens * c->chosen;
    for (int64_t e = 0; e < c->experts; ++e) {
        int64_t first = next;
        for (int64_t i = 0; i < choices; ++i)
            if (r->routes.choices[i] == e) assert_int_equal(r->routes.slots[i], next++);
        assert_int_equal(r->counts[e], next - first);
    }
    assert_int_equal(next, choices);
}

/* TIMES: how often the same routing has been added. */
static void check_balance(const router *r, const route_case *c, int times)
{
    int64_t set_tokens = c->tokens / c->sets;
    double *sums = kernel_doubles(c->sets * c->experts);
    for (int64_t i = 0; i < c->tokens * c->experts; ++i)
        sums[i / c->experts / (set_tokens ? set_tokens : 1) * c->experts + i % c->experts] +=
            times * (double)r->scores[i];
    for (int64_t i = 0; i < c->sets * c->experts; ++i) {
        int64_t set = i / c->experts, count = 0;
        for (int64_t j = set * set_tokens * c->chosen; j < (set + 1) * set_tokens * c->chosen; ++j)
            count += r->routes.choices[j] == i % c->experts;
        assert_int_equal(r->balance_counts[i], times * count);
    }
    kernel_near(r->balance_scores, sums, c->sets * c->experts, 1e-6, "sums of scores");
    pl_free(sums);
}

static void check_record(kernel_test *t, const router *r, const route_case *c, const char *balance)
{
    int64_t scores = c->tokens * c->experts * FLOAT, chosen = c->tokens * c->chosen * 4;
    kernel_recorded(t, "route", 0, c->tokens ? 8 : 3);
    kernel_touched(t, r->counts, c->experts * 8, "w");
    kernel_touched(t, r->balance_counts, c->sets * c->experts * 8, balance);
    kernel_touched(t, r->balance_scores, c->sets * c->experts * 4, balance);
    if (c->tokens == 0) return;
    kernel_touched(t, r->logits, scores, "r");
    kernel_touched(t, r->scores, scores, "w");
    kernel_touched(t, r->routes.choices, chosen, "w");
    kernel_touched(t, r->routes.weights, chosen, "w");
    kernel_touched(t, r->routes.slots, chosen, "w");
}

static void route_one(kernel_test *t, const route_case *c)
{
    int64_t count = c->tokens * c->experts, chosen = c->tokens * c->chosen;
    router r = make_router(t, c);
    pl_route_arguments a = arguments_of(&r, c);
    assert_ok(run_route(t, &a));
    check_record(t, &r, c, "w");
    double *logits = kernel_doubles(count), *scores = kernel_doubles(count);
    for (int64_t i = 0; i < count; ++i) logits[i] = (double)r.logits[i];
    for (int64_t i = 0; i < count; i += c->experts)
        plain_softmax(logits + i, scores + i, c->experts);
    kernel_near(r.scores, scores, count, 1e-6, "scores");
    check_routes(&r, c);
    check_slots(&r, c);
    check_balance(&r, c, 1);
    a.balance_begins = false;
    assert_ok(run_route(t, &a));
    check_record(t, &r, c, "rw");
    check_balance(&r, c, 2);
    kernel_result(t, r.scores, (size_t)count * FLOAT);
    kernel_result(t, r.routes.choices, (size_t)chosen * 4);
    kernel_result(t, r.routes.weights, (size_t)chosen * 4);
    kernel_result(t, r.routes.slots, (size_t)chosen * 4);
    kernel_result(t, r.balance_scores, (size_t)(c->sets * c->experts) * 4);
    pl_free(logits);
    pl_free(scores);
}

static void route_cases(kernel_test *t, const void *context)
{
    (void)context;
    for (int i = 0; i < CASES; ++i) route_one(t, &cases[i]);
}

static void tokens_are_routed(void **state)
{
    (void)state;
    kernel_everywhere(route_cases, NULL);
}

static void route_in_place(kernel_test *t, const void *context)
{
    (void)context;
    const route_case c = {130, 37, 3, 1, true, false};
    router r = make_router(t, &c);
    int64_t scores = c.tokens * c.experts, chosen = c.tokens * c.chosen;
    pl_route_arguments a = arguments_of(&r, &c);
    assert_ok(run_route(t, &a));
    int32_t *slots = kernel_bytes(t, chosen * 4);
    memcpy(slots, r.routes.slots, (size_t)chosen * 4);
    a.scores = r.logits; /* and nothing of what need not be */
    a.counts = a.balance_counts = NULL;
    a.balance_scores = NULL;
    a.sets = 7; /* without meaning then */
    assert_ok(run_route(t, &a));
    kernel_recorded(t, "route", 0, 5);
    kernel_same(r.logits, r.scores, (size_t)scores * FLOAT, "scores in place");
    kernel_same(r.routes.slots, slots, (size_t)chosen * 4, "slots");
}

static void scores_may_take_the_place_of_logits(void **state)
{
    (void)state;
    kernel_everywhere(route_in_place, NULL);
}

/* Scores that are equal lie in one vector, in several and in the part of one at the end. */
static void route_ties(kernel_test *t, const void *context)
{
    static const int32_t high[] = {0, 5, 15, 16, 21, 32, 37, 38};
    enum { EXPERTS = 39, HIGH = sizeof high / sizeof *high };
    const route_case c = {2, EXPERTS, 11, 1, true, false};
    router r = make_router(t, &c);
    (void)context;
    for (int i = 0; i < 2 * EXPERTS; ++i) r.logits[i] = 0.25f;
    for (int i = 0; i < HIGH; ++i) r.logits[high[i]] = 1.5f;
    pl_route_arguments a = arguments_of(&r, &c);
    assert_ok(run_route(t, &a));
    for (int i = 0; i < HIGH; ++i) assert_int_equal(r.routes.choices[i], high[i]);
    for (int i = HIGH; i < 11; ++i) assert_int_equal(r.routes.choices[i], i - HIGH + 1);
    for (int i = 0; i < 11; ++i) assert_int_equal(r.routes.choices[11 + i], i);
    check_slots(&r, &c);
}

static void the_lower_number_comes_first_among_equals(void **state)
{
    (void)state;
    kernel_everywhere(route_ties, NULL);
}

static void route_nonsense(kernel_test *t, const void *context)
{
    const route_case c = {6, 21, 4, 1, true, false};
    router r = make_router(t, &c);
    (void)context;
    r.logits[1 * 21 + 3] = NAN;
    r.logits[2 * 21 + 20] = INFINITY;
    for (int i = 0; i < 21; ++i) r.logits[3 * 21 + i] = -INFINITY;
    r.logits[4 * 21 + 7] = -INFINITY;
    pl_route_arguments a = arguments_of(&r, &c);
    assert_ok(run_route(t, &a));
    for (int token = 0; token < 6; ++token) {
        const float *weights = r.routes.weights + token * 4L;
        bool lost = token >= 1 && token <= 3;
        for (int j = 0; j < 4; ++j) {
            if (lost) assert_int_equal(r.routes.choices[token * 4 + j], j);
            assert_int_equal(isnan(weights[j]) != 0, lost);
        }
    }
    assert_true(r.scores[4 * 21 + 7] == 0);
    check_slots(&r, &c);
}

static void what_is_not_a_number_comes_last_and_stays_in_its_row(void **state)
{
    (void)state;
    kernel_everywhere(route_nonsense, NULL);
}

/* The router balances nothing where the policy does not ask for it: the same logits, both ways. */
static void route_forced(kernel_test *t, const void *context)
{
    route_case c = {96, 8, 2, 1, true, true};
    router r = make_router(t, &c);
    (void)context;
    for (int i = 0; i < 96 * 8; ++i) r.logits[i] = i % 8 == 3 ? 200.0f : 0.0f;
    pl_route_arguments a = arguments_of(&r, &c);
    assert_ok(run_route(t, &a));
    for (int e = 0; e < 8; ++e) assert_int_equal(r.counts[e], 96 * 2 / 8);
    for (int i = 0; i < 96; ++i) {
        float sum = r.routes.weights[2L * i] + r.routes.weights[2L * i + 1];
        bool has_score = i % 8 == 3 || (i + 4) % 8 == 3; /* else both scores are 0 */
        assert_true(sum == (has_score ? 1.0f : 0.0f));
    }
    a.balanced = false;
    assert_ok(run_route(t, &a));
    assert_int_equal(r.counts[3], 96);
    assert_int_equal(r.counts[0], 96);
}

static void forced_routing_is_even(void **state)
{
    (void)state;
    kernel_everywhere(route_forced, NULL);
}

/* --- what is refused, and what fails --- */

static void refuse_routes(kernel_test *t, const void *context)
{
    (void)context;
    const route_case c = {6, 8, 2, 1, true, false};
    router r = make_router(t, &c);
    const pl_route_arguments good = arguments_of(&r, &c);
    pl_route_arguments a = good;
    a.routes.chosen = 9;
    assert_fails(PL_INTERNAL, run_route(t, &a), "route", "loss", "at most all experts");
    a.routes.chosen = 0;
    assert_fails(PL_INTERNAL, run_route(t, &a), "at least one");
    a = good;
    a.sets = 4;
    assert_fails(PL_INTERNAL, run_route(t, &a), "evenly into sets");
    a.sets = 0;
    assert_fails(PL_INTERNAL, run_route(t, &a), "evenly into sets");
    a = good;
    a.routes.tokens = -1;
    assert_fails(PL_INTERNAL, run_route(t, &a), "tokens");
    a.routes.tokens = INT64_C(1) << 31;
    assert_fails(PL_INTERNAL, run_route(t, &a), "31 bits");
    assert_int_equal(t->records, 0);
    assert_ok(run_route(t, &good));
}

static void contradictions_are_refused(void **state)
{
    (void)state;
    kernel_once(refuse_routes, NULL, 1);
}

static pl_status fail_route(kernel_test *t, const void *context, int64_t after)
{
    (void)context;
    const route_case c = {130, 37, 3, 1, true, false};
    router r = make_router(t, &c);
    pl_route_arguments a = arguments_of(&r, &c);
    pl_allocation_fail_after(after);
    return run_route(t, &a);
}

static void failing_allocations_are_reported(void **state)
{
    (void)state;
    kernel_allocation_failures(fail_route, NULL, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_routed),
        cmocka_unit_test(scores_may_take_the_place_of_logits),
        cmocka_unit_test(the_lower_number_comes_first_among_equals),
        cmocka_unit_test(what_is_not_a_number_comes_last_and_stays_in_its_row),
        cmocka_unit_test(forced_routing_is_even),
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(failing_allocations_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
