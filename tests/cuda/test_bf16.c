/* bf16 of the stand-in is that of common/, and of NVIDIA's own header where there is one. */
#include <stdbool.h>

#include "common/dtype_convert.h"
#include "tests/cuda/bf16.h"
#include "tests/test.h"

typedef uint16_t (*narrow_function)(float value);
typedef float (*widen_function)(uint16_t bits);

static void all_halves_agree(widen_function widen)
{
    for (uint32_t half = 0; half <= 0xffff; ++half) {
        float value = widen((uint16_t)half);
        assert_int_equal(pl_float_to_bits(value), half << 16);
    }
}

static bool is_nan(uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }

/* The payload of a NaN is nobody's promise. */
static void agrees(narrow_function narrow, uint32_t bits)
{
    float value = pl_float_from_bits(bits);
    uint16_t given = narrow(value), right = pl_float_to_bf16(value);
    if (is_nan(bits))
        assert_true(is_nan((uint32_t)given << 16));
    else if (given != right)
        fail_msg("%08x becomes %04x, should be %04x", bits, given, right);
}

static void floats_agree(narrow_function narrow)
{
    uint32_t bits = 1;
    for (uint32_t half = 0; half <= 0xffff; ++half) { /* each, its ties and their neighbours */
        static const uint32_t below[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
        for (size_t i = 0; i < sizeof below / sizeof *below; ++i)
            agrees(narrow, half << 16 | below[i]);
    }
    for (int i = 0; i < 1000000; ++i) agrees(narrow, bits = bits * 1664525u + 1013904223u);
}

static void the_stand_in_rounds_as_common_does(void **state)
{
    (void)state;
    all_halves_agree(stand_in_from_bf16);
    floats_agree(stand_in_to_bf16);
}

#ifdef WITH_NVIDIA
static void nvidia_rounds_as_common_does(void **state)
{
    (void)state;
    all_halves_agree(nvidia_from_bf16);
    floats_agree(nvidia_to_bf16);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_stand_in_rounds_as_common_does),
#ifdef WITH_NVIDIA
        cmocka_unit_test(nvidia_rounds_as_common_does),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
