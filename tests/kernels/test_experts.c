/* The experts, forward, in all orders of rows, against plain loops in double. */
#include "tests/kernels/experts.h"

static const experts_case cases[] = {
    {PL_EXPERTS_SORTED, 1, 1, 0, 1, 1, 0, 0, 1, 1, SPREAD_ANY},
    {PL_EXPERTS_SORTED, 4, 4, 0, 9, 2, 0, 0, 15, 17, SPREAD_ANY},
    {PL_EXPERTS_SORTED, 5, 5, 0, 12, 5, 0, 0, 16, 33, SPREAD_ANY},
    {PL_EXPERTS_SORTED, 3, 3, 0, 801, 1, 0, 0, 33, 20, SPREAD_ONE},
    {PL_EXPERTS_SORTED, 9, 9, 0, 40, 2, 0, 0, 7, 1030, SPREAD_GAPS},
    {PL_EXPERTS_SORTED, 2, 2, 0, 0, 2, 0, 0, 16, 16, SPREAD_ANY},
    {PL_EXPERTS_COUNTED, 3, 3, 0, 0, 0, 4, 9, 17, 15, SPREAD_ANY},
    {PL_EXPERTS_COUNTED, 4, 4, 0, 0, 0, 1, 30, 20, 31, SPREAD_ANY},
    {PL_EXPERTS_COUNTED, 1, 1, 0, 0, 0, 5, 200, 12, 300, SPREAD_ANY},
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

/* PRODUCTS of the three, with or without what is kept. */
static void check_record(const kernel_test *t, const trial *x, const pl_experts_arguments *a)
{
    const experts_case *c = x->c;
    int64_t matrices = c->experts * matrix_of(x) * FLOAT, rows = x->rows.rows * c->hidden * FLOAT;
    int64_t pairs = x->count * 2 * c->width * FLOAT, choices = choices_of(c) * 4;
    int touches = 2 + (a->out != NULL) + (rows > 0) + (a->saved && pairs > 0) +
                  (a->out && rows > 0) + (choices > 0) + (c->order == PL_EXPERTS_COUNTED);
    if (c->order == PL_EXPERTS_CHOSEN && choices > 0 && a->out) ++touches;
    kernel_recorded(t, "experts", 2 * (a->out ? 3 : 2) * x->count * matrix_of(x), touches);
    kernel_touched(t, x->gate, matrices, "r");
    kernel_touched(t, x->up, matrices, "r");
    if (a->out) kernel_touched(t, x->down, matrices, "r");
    if (rows > 0) kernel_touched(t, x->in, rows, "r");
    if (rows > 0 && a->out) kernel_touched(t, a->out, rows, "w");
    if (a->saved && pairs > 0) kernel_touched(t, a->saved, pairs, "w");
    if (choices > 0) kernel_touched(t, x->rows.choices, choices, "r");
    if (c->order == PL_EXPERTS_COUNTED)
        kernel_touched(t, x->rows.counts, c->sources * c->experts * 8, "r");
}

static void forward_one(kernel_test *t, const experts_case *c)
{
    trial x = make_trial(t, c);
    int64_t rows = x.rows.rows * c->hidden;
    float *saved = make_pairs(t, &x), *again = make_pairs(t, &x);
    float *out = kernel_room(t, rows), *other = kernel_room(t, rows);
    pl_experts_arguments a = forward_arguments(&x, saved, out);
    assert_ok(run_experts(t, &a));
    check_record(t, &x, &a);
    kernel_near(out, x.out, rows, 3e-6, "out");
    kernel_result(t, out, (size_t)rows * FLOAT);
    kernel_result(t, saved, (size_t)(x.count * 2 * c->width) * FLOAT);
    a = forward_arguments(&x, NULL, other);
    assert_ok(run_experts(t, &a));
    check_record(t, &x, &a);
    kernel_same(out, other, (size_t)rows * FLOAT, "out without what is kept");
    a = forward_arguments(&x, again, NULL);
    assert_ok(run_experts(t, &a));
    check_record(t, &x, &a);
    kernel_same(saved, again, (size_t)(x.rows.room * 2 * c->width) * FLOAT, "kept without out");
    free_trial(&x);
}

static void forward_cases(kernel_test *t, const void *context)
{
    (void)context;
    for (int i = 0; i < CASES; ++i) forward_one(t, &cases[i]);
}

static void every_row_gets_its_experts_result(void **state)
{
    (void)state;
    kernel_everywhere(forward_cases, NULL);
}

/* Rows of one source are in the order of slots: the same rows, told in two ways. */
static void two_orders(kernel_test *t, const void *context)
{
    const experts_case c = {PL_EXPERTS_SORTED, 4, 4, 0, 70, 2, 0, 0, 24, 40, SPREAD_ANY};
    (void)context;
    trial x = make_trial(t, &c);
    int64_t rows = x.rows.rows * c.hidden;
    float *sorted = kernel_room(t, rows), *counted = kernel_room(t, rows);
    pl_experts_arguments a = forward_arguments(&x, NULL, sorted);
    assert_ok(run_experts(t, &a));
    int64_t *counts = kernel_bytes(t, 4 * 8);
    memset(counts, 0, 4 * 8);
    for (int64_t i = 0; i < x.count; ++i) ++counts[x.pairs[i].expert];
    a.out = counted;
    a.rows.order = PL_EXPERTS_COUNTED;
    a.rows.choices = NULL;
    a.rows.sources = 1;
    a.rows.counts = counts;
    assert_ok(run_experts(t, &a));
    kernel_same(sorted, counted, (size_t)rows * FLOAT, "rows in two orders");
    free_trial(&x);
}

static void one_source_is_sorted(void **state)
{
    (void)state;
    kernel_everywhere(two_orders, NULL);
}

/* --- what is refused, and what fails --- */

static void refuse_counts(kernel_test *t, const void *context)
{
    const experts_case c = {PL_EXPERTS_COUNTED, 3, 3, 0, 0, 0, 2, 9, 4, 5, SPREAD_ANY};
    (void)context;
    trial x = make_trial(t, &c);
    float *out = kernel_room(t, x.rows.rows * 4);
    const pl_experts_arguments good = forward_arguments(&x, NULL, out);
    int64_t counts[6];
    memcpy(counts, x.rows.counts, sizeof counts);
    pl_experts_arguments a = good;
    a.rows.counts = counts;
    ++counts[4];
    assert_fails(PL_INTERNAL, run_experts(t, &a), "experts in entry", "all of the rows");
    counts[4] -= 2;
    assert_fails(PL_INTERNAL, run_experts(t, &a), "all of the rows");
    counts[4] = -counts[4] - 1;
    assert_fails(PL_INTERNAL, run_experts(t, &a), "all of the rows");
    a = good;
    --a.rows.room;
    assert_fails(PL_INTERNAL, run_experts(t, &a), "room for all rows");
    a = good;
    a.dtype = PL_BF16;
    assert_fails(PL_UNSUPPORTED, run_experts(t, &a), "experts in entry", "bf16");
    a = good;
    a.hidden = 0;
    assert_fails(PL_INTERNAL, run_experts(t, &a), "hidden and width");
    a.hidden = INT64_C(1) << 31;
    assert_fails(PL_INTERNAL, run_experts(t, &a), "hidden and width");
    a = good;
    a.rows.experts = -1;
    assert_fails(PL_INTERNAL, run_experts(t, &a), "at least 0");
    assert_int_equal(t->records, 0);
    assert_ok(run_experts(t, &good));
    free_trial(&x);
}

static void refuse_choices(kernel_test *t, const void *context)
{
    const experts_case sorted = {PL_EXPERTS_SORTED, 3, 3, 0, 6, 2, 0, 0, 4, 5, SPREAD_ANY};
    const experts_case chosen = {PL_EXPERTS_CHOSEN, 3, 6, 2, 6, 2, 0, 0, 4, 5, SPREAD_ANY};
    (void)context;
    trial x = make_trial(t, &sorted), y = make_trial(t, &chosen);
    pl_experts_arguments a = forward_arguments(&x, NULL, kernel_room(t, 12 * 4));
    int32_t choices[12];
    memcpy(choices, x.rows.choices, sizeof choices);
    a.rows.choices = choices;
    choices[3] = 3;
    assert_fails(PL_INTERNAL, run_experts(t, &a), "all of the rows");
    choices[3] = -1;
    assert_fails(PL_INTERNAL, run_experts(t, &a), "all of the rows");
    a = forward_arguments(&y, NULL, kernel_room(t, 6 * 4));
    ++a.rows.rows;
    assert_fails(PL_INTERNAL, run_experts(t, &a), "each token is a row");
    a = forward_arguments(&y, NULL, kernel_room(t, 6 * 4));
    a.rows.room = y.count - 1;
    assert_fails(PL_INTERNAL, run_experts(t, &a), "room for all rows");
    free_trial(&x);
    free_trial(&y);
}

static void rows_that_contradict_are_refused(void **state)
{
    (void)state;
    kernel_once(refuse_counts, NULL, 1);
    kernel_once(refuse_choices, NULL, 1);
}

static pl_status fail_forward(kernel_test *t, const void *context, int64_t after)
{
    trial x = make_trial(t, context);
    pl_experts_arguments a = forward_arguments(&x, NULL, kernel_room(t, x.rows.rows * x.c->hidden));
    pl_allocation_fail_after(after);
    pl_status status = run_experts(t, &a);
    free_trial(&x);
    return status;
}

static void failing_allocations_are_reported(void **state)
{
    (void)state;
    kernel_allocation_failures(fail_forward, &cases[1], 1);
    kernel_allocation_failures(fail_forward, &cases[6], 1);
    kernel_allocation_failures(fail_forward, &cases[13], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_gets_its_experts_result),
        cmocka_unit_test(one_source_is_sorted),
        cmocka_unit_test(rows_that_contradict_are_refused),
        cmocka_unit_test(failing_allocations_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
