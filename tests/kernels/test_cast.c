/* Changes of element type, against the conversions of common/dtype_convert.h one by one. */
#include <math.h>

#include "common/dtype_convert.h"
#include "tests/kernels/kernel_test.h"

static const int64_t counts[] = {0, 1, 15, 17, 511, 513, 32768, 70001};
enum { COUNTS = sizeof counts / sizeof *counts };

static double read_value(const void *from, pl_dtype dtype, int64_t i)
{
    switch (dtype) {
    case PL_BF16: return (double)pl_bf16_to_float(((const uint16_t *)from)[i]);
    case PL_FP16: return (double)pl_fp16_to_float(((const uint16_t *)from)[i]);
    case PL_FP32: return (double)((const float *)from)[i];
    default: return ((const double *)from)[i];
    }
}

static void write_value(void *to, pl_dtype dtype, int64_t i, double value)
{
    switch (dtype) {
    case PL_BF16: ((uint16_t *)to)[i] = pl_float_to_bf16((float)value); break;
    case PL_FP16: ((uint16_t *)to)[i] = pl_float_to_fp16((float)value); break;
    case PL_FP32: ((float *)to)[i] = (float)value; break;
    default: ((double *)to)[i] = value; break;
    }
}

/* Ties, the largest and smallest values, infinities, NaN and ordinary numbers. */
static void *make_values(kernel_test *t, pl_dtype dtype, int64_t count)
{
    static const double special[] = {0,     -0.0,  1,        1.00390625, 1.01171875,
                                     65504, 65520, 3.39e38,  1e-7,       1e-40,
                                     6e-8,  -2.5,  INFINITY, -INFINITY,  NAN};
    void *values = kernel_bytes(t, count * pl_dtype_bytes(dtype));
    for (int64_t i = 0; i < count; ++i)
        write_value(values, dtype, i, i % 3 == 1 ? special[i / 3 % 15] : 100 * kernel_random(t));
    return values;
}

/* What an element becomes: arithmetic in fp64 where one side is, else in fp32; rounded once. */
static double expected_value(const pl_cast_arguments *a, const void *before, int64_t i)
{
    double from = read_value(a->from, a->from_dtype, i);
    if (!a->add) return from;
    double old = read_value(before, a->to_dtype, i);
    if (a->from_dtype == PL_FP64 || a->to_dtype == PL_FP64) return old + from;
    return (double)((float)old + (float)from);
}

static void try_cast(kernel_test *t, pl_dtype from, pl_dtype to, bool add)
{
    for (int c = 0; c < COUNTS; ++c) {
        int64_t count = counts[c], bytes = count * pl_dtype_bytes(to);
        void *target = make_values(t, to, count), *before = kernel_bytes(t, bytes);
        if (bytes) memcpy(before, target, (size_t)bytes);
        pl_cast_arguments a = {make_values(t, from, count), target, from, to, count, add};
        void *expected = kernel_bytes(t, bytes);
        for (int64_t i = 0; i < count; ++i)
            write_value(expected, to, i, expected_value(&a, before, i));
        assert_ok(t->operations->cast(t->device, PL_STREAM_COMPUTE, &a));
        kernel_recorded(t, "cast", 0, count ? 2 : 0);
        if (count) kernel_touched(t, a.from, count * pl_dtype_bytes(from), "r");
        if (count) kernel_touched(t, target, bytes, add ? "rw" : "w");
        for (int64_t i = 0; i < count; ++i) {
            double is = read_value(target, to, i), right = read_value(expected, to, i);
            if (!(is == right && signbit(is) == signbit(right)) && !(isnan(is) && isnan(right)))
                fail_msg("%s to %s%s: %.17g becomes %.17g, should be %.17g", pl_dtype_name(from),
                         pl_dtype_name(to), add ? ", added" : "", read_value(a.from, from, i), is,
                         right);
        }
        kernel_result(t, target, (size_t)bytes);
    }
}

static void pairs(kernel_test *t, const void *context)
{
    static const pl_dtype all[] = {PL_BF16, PL_FP16, PL_FP32, PL_FP64};
    (void)context;
    for (int from = 0; from < 4; ++from)
        for (int to = 0; to < 4; ++to)
            for (int add = 0; add < 2; ++add)
                if (all[from] != PL_FP64 || to >= 2) try_cast(t, all[from], all[to], add);
}

static void every_pair_of_types_rounds_once(void **state)
{
    (void)state;
    kernel_everywhere(pairs, NULL);
}

static void in_place(kernel_test *t, const void *context)
{
    (void)context;
    float *x = kernel_floats(t, 1000), *kept = kernel_copy(t, x, 1000);
    pl_cast_arguments a = {x, x, PL_FP32, PL_FP32, 1000, false};
    assert_ok(t->operations->cast(t->device, PL_STREAM_COMPUTE, &a));
    kernel_same(x, kept, 4000, "a copy onto itself");
    a.add = true;
    assert_ok(t->operations->cast(t->device, PL_STREAM_COMPUTE, &a));
    for (int i = 0; i < 1000; ++i) assert_true(x[i] == 2 * kept[i]);
    int64_t *whole = kernel_bytes(t, 80), *copy = kernel_bytes(t, 80); /* any type is copied */
    for (int i = 0; i < 10; ++i) whole[i] = INT64_MAX - i;
    a = (pl_cast_arguments){whole, copy, PL_I64, PL_I64, 10, false};
    assert_ok(t->operations->cast(t->device, PL_STREAM_COMPUTE, &a));
    kernel_same(whole, copy, 80, "a copy of whole numbers");
}

static void equal_types_are_copied_and_may_be_one_place(void **state)
{
    (void)state;
    kernel_everywhere(in_place, NULL);
}

static void refusals(kernel_test *t, const void *context)
{
    (void)context;
    void *x = kernel_bytes(t, 64), *y = kernel_bytes(t, 64);
    pl_cast_arguments a = {x, y, PL_I32, PL_FP32, 4, false};
    assert_fails(PL_UNSUPPORTED, t->operations->cast(t->device, PL_STREAM_COMPUTE, &a), "cast",
                 "loss head", "i32 to fp32");
    a = (pl_cast_arguments){x, y, PL_FP64, PL_BF16, 4, true};
    assert_fails(PL_UNSUPPORTED, t->operations->cast(t->device, PL_STREAM_COMPUTE, &a),
                 "fp64 to bf16, adding");
    a = (pl_cast_arguments){x, y, PL_I64, PL_I64, 4, true};
    assert_fails(PL_UNSUPPORTED, t->operations->cast(t->device, PL_STREAM_COMPUTE, &a), "i64");
    a = (pl_cast_arguments){x, x, PL_FP32, PL_BF16, 4, false};
    assert_fails(PL_INTERNAL, t->operations->cast(t->device, PL_STREAM_COMPUTE, &a), "in place");
    a = (pl_cast_arguments){x, NULL, PL_FP32, PL_BF16, 4, false};
    assert_fails(PL_INTERNAL, t->operations->cast(t->device, PL_STREAM_COMPUTE, &a), "both ends");
    a = (pl_cast_arguments){x, y, PL_FP32, PL_BF16, -4, false};
    assert_fails(PL_INTERNAL, t->operations->cast(t->device, PL_STREAM_COMPUTE, &a), "at least 0");
    assert_int_equal(t->records, 0);
}

static void other_casts_are_refused(void **state)
{
    (void)state;
    kernel_once(refusals, NULL, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_of_types_rounds_once),
        cmocka_unit_test(equal_types_are_copied_and_may_be_one_place),
        cmocka_unit_test(other_casts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
