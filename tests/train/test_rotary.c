/* The rotary table, against complex multiplication and against numbers worked out by hand. */
#include <math.h>
#include <stdlib.h>

#include "tests/test.h"
#include "train/rotary.h"

static pl_model make_model(double theta, int64_t head_dim)
{
    return (pl_model){.rope_theta = theta, .head_dim = head_dim};
}

static void positions_turn_every_pair_by_its_frequency(void **state)
{
    (void)state;
    enum { SEQUENCE = 33, HEAD = 12 };
    pl_model model = make_model(10000, HEAD);
    float table[SEQUENCE * HEAD];
    pl_rotary_table(table, &model, SEQUENCE);
    for (int i = 0; i < HEAD / 2; ++i) {
        /* One step is a fixed turn: (c + s i)^p by repeated multiplication. */
        double f = pow(10000, -2.0 * i / HEAD), c = 1, s = 0;
        for (int p = 0; p < SEQUENCE; ++p) {
            assert_true(fabs((double)table[p * HEAD + i] - c) < 1e-6);
            assert_true(fabs((double)table[p * HEAD + HEAD / 2 + i] - s) < 1e-6);
            double next = c * cos(f) - s * sin(f);
            s = c * sin(f) + s * cos(f);
            c = next;
        }
    }
    assert_true(table[HEAD] != table[HEAD + 1]); /* pairs differ */
}

/* Llama 3.1 8B: theta 500000, head_dim 128, factor 8, low 1, high 4, original 8192. Wavelengths
 * below 2048 are kept, beyond 8192 stretched by 8, mixed between. */
static void llama3_scaling_stretches_long_wavelengths_alone(void **state)
{
    (void)state;
    pl_model plain = make_model(500000, 128), scaled = plain;
    scaled.rope_scaling = (pl_rope_scaling){.llama3 = true,
                                            .factor = 8,
                                            .low_freq_factor = 1,
                                            .high_freq_factor = 4,
                                            .original_max_position_embeddings = 8192};
    int kept = 0, stretched = 0, mixed = 0;
    for (int i = 0; i < 64; ++i) {
        double f = pl_rotary_frequency(&plain, i), g = pl_rotary_frequency(&scaled, i);
        double wavelength = 6.283185307179586 / f;
        if (wavelength < 2048) {
            assert_true(g == f);
            ++kept;
        } else if (wavelength > 8192) {
            assert_true(fabs(g * 8 / f - 1) < 1e-15);
            ++stretched;
        } else {
            double smooth = (8192 / wavelength - 1) / 3;
            assert_true(fabs(g - ((1 - smooth) * f / 8 + smooth * f)) < 1e-15 * f);
            ++mixed;
        }
    }
    assert_true(kept > 0 && stretched > 0 && mixed > 0);
    assert_int_equal(kept + stretched + mixed, 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(positions_turn_every_pair_by_its_frequency),
        cmocka_unit_test(llama3_scaling_stretches_long_wavelengths_alone),
    };
    return cmocka_run_group_tests_name("train/rotary", tests, NULL, NULL);
}
