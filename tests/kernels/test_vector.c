#include "kernels/cpu/vector.h"

#include <float.h>

#include "tests/test.h"

/* Of the baseline's width. The wider ones are tried through the operations: tests/kernels. */

static float lane(pl_floats v, int i)
{
    float lanes[PL_LANES];
    pl_store(lanes, v);
    return lanes[i];
}

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The distance of y from right in units of the last place of right, those of the smallest normal
 * number below it. */
static double units(float y, double right)
{
    double place = ldexp(1, (right < FLT_MIN ? -126 : ilogb(right)) - 23);
    return fabs((double)y - right) / place;
}

/* Both signs, from 0 to where results end: every 1009th float, of all sizes. */
static void exp_is_within_two_units(void **state)
{
    (void)state;
    double worst = 0;
    int64_t tried = 0;
    for (uint32_t bits = 0; from_bits(bits) < 88.37f; bits += 1009) {
        float x = from_bits(bits);
        pl_floats both = pl_splat(x);
        both[1] = -x;
        both = pl_exp(both);
        double up = units(lane(both, 0), exp((double)x));
        double down = x < 87.68f ? units(lane(both, 1), exp(-(double)x)) : 0;
        worst = fmax(worst, fmax(up, down));
        ++tried;
    }
    assert_true(tried > 1000000);
    if (!(worst <= 2)) fail_msg("%g units of the last place", worst);
    assert_true(worst > 0.25); /* so the measure measures */
}

static void exp_ends_as_its_description_says(void **state)
{
    (void)state;
    const float gone[] = {-87.7f, -88, -100, -1e30f, -INFINITY};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; ++i)
        assert_true(lane(pl_exp(pl_splat(gone[i])), 0) == 0);
    const float large[] = {88.4f, 89, 1e30f, INFINITY};
    for (size_t i = 0; i < sizeof large / sizeof *large; ++i)
        assert_true(isinf(lane(pl_exp(pl_splat(large[i])), 0)));
    assert_true(lane(pl_exp(pl_splat(0)), 0) == 1);
    assert_true(lane(pl_exp(pl_splat(-0.0f)), 0) == 1);
    /* Not finite, whatever the bits of the NaN. */
    const uint32_t nans[] = {0x7fc00000, 0xffc00000, 0xffffffff, 0x7f800001, 0x7fffffff};
    for (size_t i = 0; i < sizeof nans / sizeof *nans; ++i)
        assert_true(isnan(lane(pl_exp(pl_splat(from_bits(nans[i]))), 0)));
}

static void exp_grows(void **state)
{
    (void)state;
    float before = 0;
    for (int i = 0; i < 500; ++i) {
        float x = -88 + 0.3525f * (float)i, now = lane(pl_exp(pl_splat(x)), 0);
        assert_true(now > before || (now == 0 && x < -87.6f));
        before = now;
    }
}

static void sigmoid_is_right_from_end_to_end(void **state)
{
    (void)state;
    for (int i = 0; i < 1000; ++i) {
        float x = -87 + 0.174f * (float)i;
        double right = 1 / (1 + exp(-(double)x));
        assert_true(units(lane(pl_sigmoid(pl_splat(x)), 0), right) <= 4);
    }
    assert_true(lane(pl_sigmoid(pl_splat(-200)), 0) == 0);
    assert_true(lane(pl_sigmoid(pl_splat(200)), 0) == 1);
    assert_true(isnan(lane(pl_sigmoid(pl_splat(NAN)), 0)));
}

static void lanes_are_summed_by_halves(void **state)
{
    (void)state;
    /* By halves the large ones meet first and cancel; in the order of the lanes ones are lost. */
    pl_floats v = pl_splat(1);
    v[0] = 1e9f;
    v[PL_LANES / 2] = -1e9f;
    assert_true(pl_lane_sum(v) == PL_LANES - 2);
    for (int i = 0; i < PL_LANES; ++i) {
        v = pl_splat(-7);
        v[i] = -3;
        assert_true(pl_lane_max(v) == -3);
    }
}

static void parts_leave_the_rest_alone(void **state)
{
    (void)state;
    const float from[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    for (int count = 0; count <= PL_LANES; ++count) {
        pl_floats v = pl_load_part(from, count);
        float to[PL_LANES + 1];
        for (int i = 0; i <= PL_LANES; ++i) to[i] = -1;
        for (int i = 0; i < PL_LANES; ++i) assert_true(lane(v, i) == (i < count ? from[i] : 0));
        pl_store_part(to, pl_load(from), count);
        for (int i = 0; i <= PL_LANES; ++i) assert_true(to[i] == (i < count ? from[i] : -1));
    }
}

static void choices_are_made_by_lane(void **state)
{
    (void)state;
    pl_floats a = pl_splat(2), b = pl_splat(3);
    a[0] = 5;
    assert_true(lane(pl_larger(a, b), 0) == 5 && lane(pl_larger(a, b), 1) == 3);
    assert_true(lane(pl_smaller(a, b), 0) == 3 && lane(pl_smaller(a, b), 1) == 2);
    assert_true(lane(pl_choose(a > b, a, b), 0) == 5 && lane(pl_choose(a > b, b, a), 0) == 3);
    /* The second where one is NaN, so that bounds first and the value second keep it. */
    a = pl_splat(NAN);
    assert_true(lane(pl_larger(a, b), 0) == 3 && isnan(lane(pl_larger(b, a), 0)));
    assert_true(lane(pl_smaller(a, b), 0) == 3 && isnan(lane(pl_smaller(b, a), 0)));
    assert_true(signbit(lane(pl_splat(-0.0f), 0)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_two_units),
        cmocka_unit_test(exp_ends_as_its_description_says),
        cmocka_unit_test(exp_grows),
        cmocka_unit_test(sigmoid_is_right_from_end_to_end),
        cmocka_unit_test(lanes_are_summed_by_halves),
        cmocka_unit_test(parts_leave_the_rest_alone),
        cmocka_unit_test(choices_are_made_by_lane),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
