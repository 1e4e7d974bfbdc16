/* The learning rate against testdata/hf/schedules, and its ends. */
#include <math.h>
#include <stdio.h>

#include <jansson.h>

#include "common/json.h"
#include "tests/test.h"
#include "train/schedule.h"

static pl_schedule kind_of(const char *name)
{
    int count = 0;
    const char *const *names = pl_schedule_names(&count);
    for (int i = 0; i < count; ++i)
        if (strcmp(names[i], name) == 0) return (pl_schedule)i;
    fail_msg("unknown schedule %s", name);
    return PL_SCHEDULE_WSD;
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key)); /* 0 where it is null */
}

static pl_learning_rate read_case(const json_t *object)
{
    pl_schedule_request request = {
        .kind = kind_of(json_string_value(json_object_get(object, "kind"))),
        .steps = json_integer_value(json_object_get(object, "max_steps")),
        .lr = number(object, "lr"),
        .warmup = number(object, "warmup_ratio"),
        .decay = number(object, "decay_ratio"),
        .start = number(object, "start_lr") / number(object, "lr"),
        .final = number(object, "final_lr") / number(object, "lr")};
    if (strcmp(json_string_value(json_object_get(object, "decay_shape")), "linear") == 0)
        request.shape = PL_DECAY_LINEAR;
    return pl_learning_rate_make(&request);
}

static void rates_are_those_of_the_golden_file(void **state)
{
    (void)state;
    json_t *file = NULL;
    assert_ok(pl_json_read(&file, "testdata/hf/schedules/lr.json", 1 << 20));
    const json_t *cases = json_object_get(file, "cases");
    assert_int_equal(json_array_size(cases), 7);
    for (size_t c = 0; c < json_array_size(cases); ++c) {
        const json_t *object = json_array_get(cases, c),
                     *values = json_object_get(object, "values");
        pl_learning_rate rate = read_case(object);
        assert_int_equal(rate.warmup, json_integer_value(json_object_get(object, "warmup_steps")));
        assert_int_equal(rate.stable, json_integer_value(json_object_get(object, "stable_steps")));
        assert_int_equal(rate.decay, json_integer_value(json_object_get(object, "decay_steps")));
        assert_true(json_array_size(values) > 10);
        for (size_t k = 0; k < json_array_size(values); ++k) {
            double wanted = json_number_value(json_array_get(values, k));
            double found = pl_learning_rate_at(&rate, (int64_t)k);
            if (fabs(found - wanted) > 1e-14 * rate.lr)
                fail_msg("case %zu, step %zu: %.17g, expected %.17g", c, k, found, wanted);
        }
    }
    pl_json_free(file);
}

/* Both parts round up here: three steps would become four. */
static void decay_takes_no_more_than_is_left(void **state)
{
    (void)state;
    pl_schedule_request request = {
        .kind = PL_SCHEDULE_WSD, .steps = 3, .lr = 1, .warmup = 0.5, .decay = 0.5};
    pl_learning_rate rate = pl_learning_rate_make(&request);
    assert_int_equal(rate.warmup, 2);
    assert_int_equal(rate.stable, 0);
    assert_int_equal(rate.decay, 1);
}

static void one_step_without_warmup_runs_at_the_full_rate(void **state)
{
    (void)state;
    for (int kind = 0; kind < PL_SCHEDULE_COUNT; ++kind) {
        pl_schedule_request request = {
            .kind = (pl_schedule)kind, .steps = 1, .lr = 0.25, .decay = 0.1};
        pl_learning_rate rate = pl_learning_rate_make(&request);
        assert_true(pl_learning_rate_at(&rate, 0) == 0.25);
    }
}

static void all_warmup_reaches_the_full_rate_behind_the_last_step(void **state)
{
    (void)state;
    pl_schedule_request request = {
        .kind = PL_SCHEDULE_COSINE, .steps = 4, .lr = 2, .warmup = 1, .start = 0.5};
    pl_learning_rate rate = pl_learning_rate_make(&request);
    assert_true(pl_learning_rate_at(&rate, 0) == 1);
    assert_true(pl_learning_rate_at(&rate, 2) == 1.5);
    assert_true(pl_learning_rate_at(&rate, 4) == 2);
    assert_true(pl_learning_rate_at(&rate, 1000000) == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_those_of_the_golden_file),
        cmocka_unit_test(decay_takes_no_more_than_is_left),
        cmocka_unit_test(one_step_without_warmup_runs_at_the_full_rate),
        cmocka_unit_test(all_warmup_reaches_the_full_rate_behind_the_last_step),
    };
    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}
