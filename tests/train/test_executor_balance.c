/* The load-balance loss: its gradient is that of the number reported, in every form. */
#include <math.h>
#include <stdlib.h>

#include "common/initial_values.h"
#include "tests/train/small_trials.h"

typedef struct slope {
    const pl_model *model;
    const float *direction; /* of the router of layer 1; NULL: none */
    double length;
} slope;

static void slope_sample(const void *context, int64_t step, int64_t number, int64_t sequence,
                         int32_t *tokens, int32_t *labels)
{
    const slope *s = context;
    small_sample(s->model, step, number, sequence, tokens, labels);
}

static pl_status slope_values(const void *context, const pl_tensor *tensor, int64_t row_begin,
                              int64_t row_end, float *out)
{
    const slope *s = context;
    PL_TRY(pl_initial_values(out, 4, tensor, 0.4, row_begin, row_end));
    if (!s->direction || tensor->role != PL_TENSOR_ROUTER || tensor->layer != 1) return PL_OK;
    for (int64_t i = 0; i < (row_end - row_begin) * tensor->cols; ++i)
        out[i] += (float)(s->length * (double)s->direction[row_begin * tensor->cols + i]);
    return PL_OK;
}

static trial_result run_slope(const slope *s, pl_balance form, double coefficient)
{
    trial t = small_trial(s->model, "single:world=1");
    t.settings.shape = (pl_shape){6, 2, 2, 2};
    t.settings.balance = form;
    t.settings.balance_coefficient = coefficient;
    t.sample = slope_sample;
    t.values = slope_values;
    t.context = s;
    t.steps = 1;
    return small_run(&t);
}

static void the_balance_gradient_is_the_slope_of_the_balance_loss(void **state)
{
    (void)state;
    static const pl_balance forms[] = {PL_BALANCE_MICRO_STEP, PL_BALANCE_SEQUENCE,
                                       PL_BALANCE_GLOBAL_BATCH};
    const double coefficient = 8, length = 1e-3;
    double losses[3];
    pl_model model;
    assert_ok(plan_case_model(&model, "moe"));
    for (int f = 0; f < 3; ++f) {
        slope s = {.model = &model};
        trial_result with = run_slope(&s, forms[f], coefficient);
        trial_result without = run_slope(&s, forms[f], 1e-30);
        int64_t router = 0, count = 0;
        while (model.tensors[router].role != PL_TENSOR_ROUTER || model.tensors[router].layer != 1)
            ++router;
        count = pl_tensor_elements(&model.tensors[router]);
        float *direction = malloc((size_t)count * sizeof *direction);
        double size = 0;
        for (int64_t i = 0; i < count; ++i) {
            direction[i] =
                (with.gradient[router][i] - without.gradient[router][i]) / (float)coefficient;
            size += (double)direction[i] * (double)direction[i];
        }
        for (int64_t i = 0; i < count; ++i)
            direction[i] = (float)((double)direction[i] / sqrt(size));
        s.direction = direction;
        s.length = length;
        trial_result up = run_slope(&s, forms[f], coefficient);
        s.length = -length;
        trial_result down = run_slope(&s, forms[f], coefficient);
        double rise = (up.steps[0].balance_loss - down.steps[0].balance_loss) / (2 * length);
        assert_true(size > 0);
        if (!(fabs(rise - sqrt(size)) < 1e-2 * sqrt(size)))
            fail_msg("form %d: slope %g, gradient %g", f, rise, sqrt(size));
        losses[f] = with.steps[0].balance_loss;
        trial_free(&with);
        trial_free(&without);
        trial_free(&up);
        trial_free(&down);
        free(direction);
    }
    assert_true(losses[0] != losses[1] && losses[0] != losses[2]);
    pl_model_free(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_balance_gradient_is_the_slope_of_the_balance_loss),
    };
    return cmocka_run_group_tests_name("train/executor_balance", tests, NULL, NULL);
}
