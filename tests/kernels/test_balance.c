/* The load-balance loss from counts and sums of scores, against plain loops in double. */
#include <math.h>

#include "common/memory.h"
#include "tests/kernels/kernel_test.h"

typedef struct balance_case {
    int64_t layers, micro_batches, sets, experts, chosen;
} balance_case;

/* Counts and scores as no router would make them, so that no factor cancels another. */
typedef struct balance {
    int64_t *counts, *running;
    float *scores;
    double *loss_sums;
} balance;

static balance make_balance(kernel_test *t, const balance_case *c)
{
    int64_t numbers = c->layers * c->micro_batches * c->sets * c->experts;
    balance b = {.counts = kernel_bytes(t, numbers * 8), .scores = kernel_floats(t, numbers)};
    for (int64_t i = 0; i < numbers; ++i) b.counts[i] = kernel_random_below(t, 1000);
    b.running = kernel_bytes(t, c->layers * c->experts * 8);
    b.loss_sums = kernel_bytes(t, 16);
    b.loss_sums[0] = 7.25;
    b.loss_sums[1] = 0.5;
    return b;
}

static pl_balance_arguments arguments_of(const balance *b, const balance_case *c)
{
    return (pl_balance_arguments){.counts = b->counts,
                                  .scores = b->scores,
                                  .loss_sums = b->loss_sums,
                                  .layers = c->layers,
                                  .micro_batches = c->micro_batches,
                                  .sets = c->sets,
                                  .experts = c->experts,
                                  .chosen = c->chosen,
                                  .tokens = 48,
                                  .factor = 0.03};
}

static pl_status run_balance(kernel_test *t, const pl_balance_arguments *a)
{
    return t->operations->balance(t->device, PL_STREAM_COMPUTE, a);
}

static void loss_one(kernel_test *t, const balance_case *c)
{
    int64_t numbers = c->layers * c->micro_batches * c->sets * c->experts;
    balance b = make_balance(t, c);
    pl_balance_arguments a = arguments_of(&b, c);
    int64_t *kept = kernel_bytes(t, numbers * 8);
    memcpy(kept, b.counts, (size_t)numbers * 8);
    double sum = 0;
    for (int64_t i = 0; i < numbers; ++i)
        sum += (double)b.counts[i] / 48 * ((double)b.scores[i] / 48);
    double expected = 0.5 + 0.03 * (double)c->experts / (double)c->chosen * sum;
    assert_ok(run_balance(t, &a));
    assert_true(fabs(b.loss_sums[1] - expected) <= 1e-12 * fabs(expected));
    assert_true(b.loss_sums[0] == 7.25);
    kernel_same(b.counts, kept, (size_t)numbers * 8, "counts");
    kernel_recorded(t, "balance", 0, numbers ? 3 : 1);
    kernel_touched(t, b.loss_sums + 1, 8, "rw");
    if (numbers == 0) return;
    kernel_touched(t, b.counts, numbers * 8, "r");
    kernel_touched(t, b.scores, numbers * 4, "r");
}

static void loss_cases(kernel_test *t, const void *context)
{
    static const balance_case cases[] = {
        {1, 1, 1, 1, 1}, {1, 1, 1, 8, 2}, {3, 2, 4, 17, 3}, {5, 1, 7, 6, 6}, {0, 2, 1, 8, 2},
    };
    (void)context;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) loss_one(t, &cases[i]);
}

static void sets_add_their_losses(void **state)
{
    (void)state;
    kernel_everywhere(loss_cases, NULL);
}

/* What running counts and the loss should be after one round. */
static double plain_round(const balance_case *c, const balance *b, int64_t *totals, int64_t *counts,
                          double tokens_before)
{
    double sum = 0;
    for (int64_t layer = 0; layer < c->layers; ++layer)
        for (int64_t m = 0; m < c->micro_batches; ++m)
            for (int64_t e = 0; e < c->experts; ++e) {
                int64_t i = (layer * c->micro_batches + m) * c->experts + e;
                counts[i] = totals[layer * c->experts + e] += b->counts[i];
                sum += (double)counts[i] / (tokens_before + 48.0 * (double)(m + 1)) *
                       ((double)b->scores[i] / 48);
            }
    return 0.03 * (double)c->experts / (double)c->chosen * sum;
}

static void running_rounds(kernel_test *t, const void *context)
{
    enum { LAYERS = 2, MICRO = 3, EXPERTS = 5, NUMBERS = LAYERS * MICRO * EXPERTS };
    const balance_case c = {LAYERS, MICRO, 1, EXPERTS, 2};
    int64_t totals[LAYERS * EXPERTS] = {0}, expected[NUMBERS];
    int64_t *running = NULL;
    (void)context;
    for (int round = 0; round < 3; ++round) {
        balance b = make_balance(t, &c);
        pl_balance_arguments a = arguments_of(&b, &c);
        if (!running) running = b.running;
        a.running = running;
        a.running_begins = round == 0;
        a.running_tokens = 48.0 * MICRO * round;
        double loss = 0.5 + plain_round(&c, &b, totals, expected, a.running_tokens);
        assert_ok(run_balance(t, &a));
        assert_true(fabs(b.loss_sums[1] - loss) <= 1e-12 * fabs(loss));
        kernel_same(b.counts, expected, sizeof expected, "running counts of each micro-batch");
        kernel_same(running, totals, sizeof totals, "totals");
        kernel_recorded(t, "balance", 0, 4);
        kernel_touched(t, running, LAYERS * EXPERTS * 8, round == 0 ? "w" : "rw");
        kernel_touched(t, b.counts, NUMBERS * 8, "rw");
    }
}

static void running_counts_go_on_over_micro_batches_and_rounds(void **state)
{
    (void)state;
    kernel_everywhere(running_rounds, NULL);
}

static void refuse(kernel_test *t, const void *context)
{
    const balance_case c = {1, 2, 2, 4, 2};
    balance b = make_balance(t, &c);
    const pl_balance_arguments good = arguments_of(&b, &c);
    pl_balance_arguments a = good;
    (void)context;
    a.running = b.running;
    assert_fails(PL_INTERNAL, run_balance(t, &a), "balance", "one set a micro-batch");
    a = good;
    a.chosen = 0;
    assert_fails(PL_INTERNAL, run_balance(t, &a), "chooses an expert");
    a = good;
    a.tokens = 0;
    assert_fails(PL_INTERNAL, run_balance(t, &a), "has tokens");
    a = good;
    a.layers = INT64_MAX / 4;
    assert_fails(PL_INTERNAL, run_balance(t, &a), "sizes", "63 bits");
    assert_int_equal(t->records, 0);
    assert_ok(run_balance(t, &good));
}

static void contradictions_are_refused(void **state)
{
    (void)state;
    kernel_once(refuse, NULL, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_add_their_losses),
        cmocka_unit_test(running_counts_go_on_over_micro_batches_and_rounds),
        cmocka_unit_test(contradictions_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
