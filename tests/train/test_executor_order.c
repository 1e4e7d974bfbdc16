/* Bits that depend on nothing but the layout: not on the order that streams and waits leave open,
 * not on workers, not on the run.
 */
#include <stdlib.h>

#include "tests/train/small_trials.h"

static int64_t different_weights(const pl_model *model, const trial_result *a,
                                 const trial_result *b)
{
    int64_t count = 0;
    for (int64_t i = 0; i < model->tensor_count; ++i)
        count += memcmp(a->weight[i], b->weight[i],
                        (size_t)pl_tensor_elements(&model->tensors[i]) * sizeof(float)) != 0;
    return count;
}

static void random_orders_leave_every_bit(void **state)
{
    (void)state;
    static const struct {
        const char *layout;
        pl_policy policy;
    } cases[] = {
        {"legacy:world=8,ep=4", {.prefetch = PL_PREFETCH_NEXT_UNIT}},
        {"decoupled:world=8,ep=2,replicas=2", {.recompute = PL_RECOMPUTE_FULL}},
        {"folded:world=4,ep=4",
         {.dispatch = PL_DISPATCH_ALL_GATHER, .reshard = PL_RESHARD_PER_CALL}},
        {"single:world=1", {.accumulate = PL_ACCUMULATE_UNSHARDED}},
    };
    int seeds = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        pl_model model;
        assert_ok(plan_case_model(&model, "mixed"));
        trial t = small_trial(&model, cases[i].layout);
        t.settings.policy = cases[i].policy;
        trial_result in_order = small_run(&t);
        t.order = PL_ORDER_RANDOM;
        for (int s = 0; s < 6; ++s, ++seeds) {
            t.order_seed = (uint64_t)(1000 * s + 77);
            trial_result r = small_run(&t);
            assert_int_equal(different_weights(&model, &in_order, &r), 0);
            for (int step = 0; step < 2; ++step) {
                assert_true(r.steps[step].loss_sum == in_order.steps[step].loss_sum);
                assert_true(r.steps[step].balance_loss == in_order.steps[step].balance_loss);
                assert_true(r.steps[step].norm == in_order.steps[step].norm);
            }
            trial_free(&r);
        }
        trial_free(&in_order);
        pl_model_free(&model);
    }
    assert_true(seeds >= 20);
}

static void workers_and_repetition_leave_every_bit(void **state)
{
    (void)state;
    pl_model model;
    assert_ok(plan_case_model(&model, "moe-tied"));
    trial t = small_trial(&model, "legacy:world=8,ep=4");
    trial_result two = small_run(&t), again = small_run(&t);
    t.workers = 1;
    trial_result one = small_run(&t);
    assert_int_equal(different_weights(&model, &two, &again), 0);
    assert_int_equal(different_weights(&model, &two, &one), 0);
    t.seed = 5; /* ... and the comparison sees other weights */
    trial_result other = small_run(&t);
    assert_true(different_weights(&model, &two, &other) > 0);
    trial_free(&two);
    trial_free(&again);
    trial_free(&one);
    trial_free(&other);
    pl_model_free(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_orders_leave_every_bit),
        cmocka_unit_test(workers_and_repetition_leave_every_bit),
    };
    return cmocka_run_group_tests_name("train/executor_order", tests, NULL, NULL);
}
