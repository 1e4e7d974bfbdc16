/* Conversions and reductions of elements, against arithmetic on doubles. */
#include "tests/test.h"

#include <inttypes.h>

#include "common/dtype_convert.h"
#include "common/reduce.h"
#include "tests/groups/exchange.h"
#include "tests/groups/small_floats.h"

/* Every bit pattern up and down again. */
static void test_all_patterns(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; ++bits) {
        uint16_t half = (uint16_t)bits;
        float from_bf16 = pl_bf16_to_float(half), from_fp16 = pl_fp16_to_float(half);
        double bf16 = decode_small_float(half, BF16_FRACTION, BF16_EXPONENT);
        double fp16 = decode_small_float(half, FP16_FRACTION, FP16_EXPONENT);
        if (isnan(bf16)) {
            assert_true(isnan(from_bf16));
            assert_int_equal(pl_float_to_bf16(from_bf16), half | 0x40);
        } else {
            assert_true((double)from_bf16 == bf16 && !signbit(from_bf16) == !signbit(bf16));
            assert_int_equal(pl_float_to_bf16(from_bf16), half);
        }
        if (isnan(fp16)) {
            assert_true(isnan(from_fp16));
            assert_int_equal(pl_float_to_fp16(from_fp16), half | 0x200);
        } else {
            assert_true((double)from_fp16 == fp16 && !signbit(from_fp16) == !signbit(fp16));
            assert_int_equal(pl_float_to_fp16(from_fp16), half);
        }
    }
}

static void compare_rounding(float value)
{
    assert_int_equal(pl_float_to_bf16(value),
                     encode_small_float((double)value, BF16_FRACTION, BF16_EXPONENT));
    assert_int_equal(pl_float_to_fp16(value),
                     encode_small_float((double)value, FP16_FRACTION, FP16_EXPONENT));
}

/* Every neighbourhood of a tie in both formats, and many values of all sizes. Truncation, the
 * fault to find, differs from nearest-even in about half of them. */
static void test_rounding(void **state)
{
    (void)state;
    int truncated = 0;
    for (uint32_t top = 0; top < 65536; ++top) {
        static const uint32_t low[] = {0,      1,      0x7fff, 0x8000, 0x8001, 0xffff,
                                       0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001};
        for (size_t i = 0; i < sizeof low / sizeof *low; ++i) {
            float value = pl_float_from_bits(top << 16 | low[i]);
            if (!isnan(value)) compare_rounding(value);
        }
    }
    for (uint64_t i = 0; i < 300000; ++i) {
        float value = pl_float_from_bits((uint32_t)scramble(1, i, 0));
        if (isnan(value)) continue;
        compare_rounding(value);
        truncated += pl_float_to_bf16(value) != (uint16_t)(pl_float_to_bits(value) >> 16);
    }
    assert_in_range(truncated, 100000, 200000);
    assert_int_equal(pl_float_to_fp16(65519.996f), 0x7bff);
    assert_int_equal(pl_float_to_fp16(65520.0f), 0x7c00);
    assert_int_equal(pl_float_to_fp16(-1e30f), 0xfc00);
    assert_int_equal(pl_float_to_fp16(0x1p-25f), 0);
    assert_int_equal(pl_float_to_fp16(0x1.000002p-25f), 1);
    assert_int_equal(pl_float_to_bf16(3.4e38f), 0x7f80);
    assert_int_equal(pl_float_to_bf16(pl_float_from_bits(0x7f800001)), 0x7fc0); /* NaN stays one */
}

static void reduce(pl_dtype dtype, pl_reduction reduction, const void *const *inputs, int members,
                   int count, void *result)
{
    pl_posted_call posted[4];
    pl_entry_name name = pl_entry_name_make(PL_OP_REDUCE, PL_SUBJECT_HEAD);
    /* In the second segment: the first one, of another type, must not be looked at. */
    pl_segment segments[4][2] = {{{0}}};
    for (int i = 0; i < members; ++i) {
        segments[i][0].dtype = dtype == PL_U8 ? PL_FP64 : PL_U8;
        segments[i][1] = (pl_segment){.send = inputs[i], .count = count, .dtype = dtype};
        pl_call call = {.collective = PL_ALL_REDUCE,
                        .reduction = reduction,
                        .name = &name,
                        .segments = segments[i],
                        .segment_count = 2};
        pl_call_put(&posted[i], &call);
    }
    pl_reduce_elements(result, posted, members, 1, 0, count);
}

static void test_integers_wrap(void **state)
{
    (void)state;
    const int64_t a64[2] = {INT64_MAX, INT64_MIN}, b64[2] = {1, -1};
    const int32_t a32[2] = {INT32_MAX, -5}, b32[2] = {2, 3};
    const uint8_t a8[2] = {250, 7}, b8[2] = {10, 249};
    int64_t r64[2];
    int32_t r32[2];
    uint8_t r8[2];
    const void *i64[2] = {a64, b64}, *i32[2] = {a32, b32}, *u8[2] = {a8, b8};
    reduce(PL_I64, PL_REDUCTION_SUM, i64, 2, 2, r64);
    assert_true(r64[0] == INT64_MIN && r64[1] == INT64_MAX);
    reduce(PL_I64, PL_REDUCTION_MAX, i64, 2, 2, r64);
    assert_true(r64[0] == INT64_MAX && r64[1] == -1);
    reduce(PL_I32, PL_REDUCTION_SUM, i32, 2, 2, r32);
    assert_true(r32[0] == INT32_MIN + 1 && r32[1] == -2);
    reduce(PL_I32, PL_REDUCTION_MAX, i32, 2, 2, r32);
    assert_true(r32[0] == INT32_MAX && r32[1] == 3);
    reduce(PL_U8, PL_REDUCTION_SUM, u8, 2, 2, r8);
    assert_true(r8[0] == 4 && r8[1] == 0);
    reduce(PL_U8, PL_REDUCTION_MAX, u8, 2, 2, r8);
    assert_true(r8[0] == 250 && r8[1] == 249);
}

/* A NaN anywhere makes the maximum a NaN, whichever member has it. */
static void test_maximum_of_nan(void **state)
{
    (void)state;
    const float a[3] = {NAN, 1, -INFINITY}, b[3] = {2, NAN, -1};
    const double a64[3] = {NAN, 1, -INFINITY}, b64[3] = {2, NAN, -1};
    const void *inputs[2] = {a, b}, *inputs64[2] = {a64, b64};
    float result[3];
    double result64[3];
    reduce(PL_FP32, PL_REDUCTION_MAX, inputs, 2, 3, result);
    assert_true(isnan(result[0]) && isnan(result[1]) && result[2] == -1.0f);
    reduce(PL_FP64, PL_REDUCTION_MAX, inputs64, 2, 3, result64);
    assert_true(isnan(result64[0]) && isnan(result64[1]) && result64[2] == -1.0);
}

/* 256 and three times 1 are 259 in fp32, rounded once to 260; rounded after each addition, bf16
 * stays at 256. */
static void test_bf16_in_fp32(void **state)
{
    (void)state;
    const uint16_t big = pl_float_to_bf16(256), one = pl_float_to_bf16(1);
    const void *inputs[4] = {&big, &one, &one, &one};
    uint16_t result = 0, wrong = big;
    for (int i = 1; i < 4; ++i)
        wrong = pl_float_to_bf16(pl_bf16_to_float(wrong) + pl_bf16_to_float(one));
    reduce(PL_BF16, PL_REDUCTION_SUM, inputs, 4, 1, &result);
    assert_int_equal(result, pl_float_to_bf16(260));
    assert_int_not_equal(result, wrong);
    /* (256 + 4 + 1) / 3 = 87; rounded to 260 before the division it would be 86.5. */
    const uint16_t four = pl_float_to_bf16(4);
    const void *three[3] = {&big, &four, &one};
    reduce(PL_BF16, PL_REDUCTION_AVERAGE, three, 3, 1, &result);
    assert_int_equal(result, pl_float_to_bf16(87));
    assert_int_not_equal(result, pl_float_to_bf16(pl_bf16_to_float(pl_float_to_bf16(261)) / 3));
}

/* Sums of fp16 go beyond its range in between, not only at the end. */
static void test_fp16_in_fp32(void **state)
{
    (void)state;
    const uint16_t big = pl_float_to_fp16(60000), minus = pl_float_to_fp16(-60000);
    const void *inputs[3] = {&big, &big, &minus}, *beyond[2] = {&big, &big};
    uint16_t result = 0;
    reduce(PL_FP16, PL_REDUCTION_SUM, inputs, 3, 1, &result);
    assert_int_equal(result, big);
    reduce(PL_FP16, PL_REDUCTION_SUM, beyond, 2, 1, &result);
    assert_int_equal(result, 0x7c00);
    reduce(PL_FP16, PL_REDUCTION_AVERAGE, beyond, 2, 1, &result);
    assert_int_equal(result, big);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_patterns),  cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_integers_wrap), cmocka_unit_test(test_maximum_of_nan),
        cmocka_unit_test(test_bf16_in_fp32),  cmocka_unit_test(test_fp16_in_fp32)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
