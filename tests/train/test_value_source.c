/* Initial values in the types that tensors are held in. */
#include <stdlib.h>

#include "common/dtype_convert.h"
#include "common/initial_values.h"
#include "common/memory.h"
#include "tests/test.h"
#include "train/value_source.h"

static const pl_tensor wide = {.role = PL_TENSOR_HEAD,
                               .layer = -1,
                               .suffix = "lm_head.weight",
                               .rows = 3,
                               .cols = 70001,
                               .dimensions = 2};
static const pl_tensor narrow = {.role = PL_TENSOR_HEAD,
                                 .layer = -1,
                                 .suffix = "lm_head.weight",
                                 .rows = 70001,
                                 .cols = 3,
                                 .dimensions = 2};
static pl_value_source source = {11, 0.02};

static void assert_narrowed(const pl_tensor *tensor, int64_t begin, int64_t end)
{
    int64_t count = (end - begin) * tensor->cols;
    float *exact = malloc((size_t)count * 4 + 1), *copy = malloc((size_t)count * 4 + 1);
    uint16_t *half = malloc((size_t)count * 2 + 2);
    assert_ok(pl_initial_values(exact, 11, tensor, 0.02, begin, end));
    assert_ok(pl_value_source_initial(&source, tensor, begin, end, PL_FP32, copy));
    assert_memory_equal(exact, copy, (size_t)count * 4);
    assert_ok(pl_value_source_initial(&source, tensor, begin, end, PL_BF16, half));
    for (int64_t i = 0; i < count; ++i)
        if (half[i] != pl_float_to_bf16(exact[i])) fail_msg("bf16 element %d", (int)i);
    assert_ok(pl_value_source_initial(&source, tensor, begin, end, PL_FP16, half));
    for (int64_t i = 0; i < count; ++i)
        if (half[i] != pl_float_to_fp16(exact[i])) fail_msg("fp16 element %d", (int)i);
    free(exact);
    free(copy);
    free(half);
}

static void values_are_those_of_common_rounded_once(void **state)
{
    (void)state;
    assert_narrowed(&wide, 0, 3);
    assert_narrowed(&wide, 1, 2);
    assert_narrowed(&narrow, 5, 70000);
    assert_narrowed(&narrow, 7, 7);
}

static void other_types_are_refused(void **state)
{
    (void)state;
    int32_t out[16];
    assert_fails(PL_UNSUPPORTED, pl_value_source_initial(&source, &narrow, 0, 1, PL_I32, out),
                 "i32", "bf16");
}

static void a_failed_allocation_is_passed_on(void **state)
{
    (void)state;
    uint16_t out[16];
    pl_allocation_fail_after(0);
    pl_status status = pl_value_source_initial(&source, &narrow, 0, 1, PL_BF16, out);
    pl_allocation_fail_after(-1);
    assert_int_equal(status, PL_NO_MEMORY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_common_rounded_once),
        cmocka_unit_test(other_types_are_refused),
        cmocka_unit_test(a_failed_allocation_is_passed_on),
    };
    return cmocka_run_group_tests_name("train/value_source", tests, NULL, NULL);
}
