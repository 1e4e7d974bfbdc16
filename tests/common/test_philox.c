/* Philox against its published vectors; initial weights against bits made elsewhere
 * (testdata/gen/initial_values.py). */
#include <stdio.h>
#include <stdlib.h>

#include "common/initial_values.h"
#include "common/memory.h"
#include "common/philox.h"
#include "tests/test.h"

/* Known answers of the Random123 distribution, philox4x32 with 10 rounds. */
static const struct {
    uint32_t counter[4], key[2], block[4];
} vectors[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

static void philox_gives_the_published_blocks(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; ++i) {
        pl_philox_block block = pl_philox(vectors[i].counter, vectors[i].key);
        assert_memory_equal(block.word, vectors[i].block, sizeof block.word);
    }
}

static void every_word_of_counter_and_key_matters(void **state)
{
    (void)state;
    for (int i = 0; i < 6; ++i) {
        uint32_t counter[4], key[2];
        memcpy(counter, vectors[2].counter, sizeof counter);
        memcpy(key, vectors[2].key, sizeof key);
        if (i < 4)
            counter[i] ^= 1;
        else
            key[i - 4] ^= 0x80000000;
        pl_philox_block block = pl_philox(counter, key);
        assert_memory_not_equal(block.word, vectors[2].block, sizeof block.word);
    }
}

static const pl_tensor embedding = {.role = PL_TENSOR_EMBEDDING,
                                    .layer = -1,
                                    .suffix = "model.embed_tokens.weight",
                                    .rows = 64,
                                    .cols = 64,
                                    .dimensions = 2};
static const pl_tensor attention = {.role = PL_TENSOR_ATTENTION,
                                    .layer = 3,
                                    .suffix = "self_attn.q_proj.weight",
                                    .rows = 64,
                                    .cols = 48,
                                    .dimensions = 2};
static const pl_tensor routed = {.role = PL_TENSOR_ROUTED,
                                 .layer = 0,
                                 .suffix = "mlp.experts.gate_proj.weight",
                                 .experts = 8,
                                 .rows = 16,
                                 .cols = 64,
                                 .dimensions = 2};
/* Its last row lies beyond element 2^32. */
static const pl_tensor wide = {.role = PL_TENSOR_HEAD,
                               .layer = -1,
                               .suffix = "lm_head.weight",
                               .rows = 1 << 20,
                               .cols = 1 << 13,
                               .dimensions = 2};

static const struct {
    const pl_tensor *tensor;
    int64_t seed;
    double range;
    int64_t index;
    uint32_t bits;
} golden[] = {
    {&embedding, 0, 0.02, 0, 0xBC195FF3},
    {&embedding, 0, 0.02, 1, 0xBB6B1A1E},
    {&embedding, 0, 0.02, 63, 0xBB456140},
    {&embedding, 0, 0.02, 64, 0x3BB1A635},
    {&embedding, 0, 0.02, 4095, 0x3D3B27A1},
    {&attention, 1, 0.02, 0, 0x3C1D36E1},
    {&attention, 1, 0.02, 1, 0xBC28D4C2},
    {&attention, 1, 0.02, 47, 0xBB00F734},
    {&attention, 1, 0.02, 48, 0x3D2A8638},
    {&attention, 1, 0.02, 3071, 0x3CE6C112},
    {&routed, 1, 0.01, 0, 0x3A68FED7},
    {&routed, 1, 0.01, 5120, 0xBBF3DA53},
    {&routed, 1, 0.01, 8191, 0xBBBE1F8F},
    {&routed, 4611686018427387904, 0.01, 0, 0x3BE3B781},
    {&routed, 4611686018427387904, 0.01, 5120, 0xBA0F004F},
    {&routed, 4611686018427387904, 0.01, 8191, 0xBB946BB3},
    {&wide, 1, 0.02, 8589926400, 0x3BA8B567},
    {&wide, 1, 0.02, 8589934591, 0x3CE0C705},
};

static uint32_t bits_of(float value)
{
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static uint32_t bits_at(const pl_tensor *tensor, int64_t seed, double range, int64_t index)
{
    int64_t row = index / tensor->cols;
    float *values = malloc((size_t)tensor->cols * sizeof *values);
    assert_non_null(values);
    assert_ok(pl_initial_values(values, seed, tensor, range, row, row + 1));
    uint32_t bits = bits_of(values[index % tensor->cols]);
    free(values);
    return bits;
}

static void initial_values_have_the_golden_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof golden / sizeof *golden; ++i) {
        uint32_t bits = bits_at(golden[i].tensor, golden[i].seed, golden[i].range, golden[i].index);
        if (bits != golden[i].bits)
            fail_msg("golden row %zu: %08X, expected %08X", i, bits, golden[i].bits);
    }
}

/* What the golden bits would not forgive: another seed, another layer, another index. */
static void golden_bits_notice_planted_faults(void **state)
{
    (void)state;
    pl_tensor other_layer = attention;
    other_layer.layer = 4;
    for (size_t i = 0; i < sizeof golden / sizeof *golden; ++i) {
        assert_int_not_equal(
            bits_at(golden[i].tensor, golden[i].seed + 1, golden[i].range, golden[i].index),
            golden[i].bits);
        assert_int_not_equal(
            bits_at(golden[i].tensor, golden[i].seed, golden[i].range, golden[i].index ^ 2),
            golden[i].bits);
        if (golden[i].tensor != &attention) continue;
        assert_int_not_equal(
            bits_at(&other_layer, golden[i].seed, golden[i].range, golden[i].index),
            golden[i].bits);
    }
}

enum { BOX_ROWS = 8 * 16, BOX_COLS = 64 };

static void check_box(const float *whole, int64_t begin, int64_t end)
{
    static float box[BOX_ROWS * BOX_COLS + 1];
    int64_t count = (end - begin) * BOX_COLS;
    memset(box, 0x55, sizeof box);
    assert_ok(pl_initial_values(box, 7, &routed, 0.02, begin, end));
    assert_memory_equal(box, whole + begin * BOX_COLS, (size_t)count * sizeof *box);
    assert_int_equal(bits_of(box[count]), 0x55555555); /* nothing is written behind it */
}

static void any_box_is_cut_from_the_whole(void **state)
{
    (void)state;
    static float whole[BOX_ROWS * BOX_COLS];
    assert_ok(pl_initial_values(whole, 7, &routed, 0.02, 0, BOX_ROWS));
    for (int64_t begin = 0; begin <= BOX_ROWS; begin += 5)
        for (int64_t end = begin; end <= BOX_ROWS; end += 7) check_box(whole, begin, end);
    /* numbering from the box instead of the tensor would be seen */
    assert_memory_not_equal(whole, whole + BOX_COLS, BOX_COLS * sizeof *whole);
}

static void rows_that_are_none_are_refused(void **state)
{
    (void)state;
    float box[BOX_COLS];
    assert_fails(PL_INTERNAL, pl_initial_values(box, 7, &routed, 0.02, 0, BOX_ROWS + 1), "128");
    assert_fails(PL_INTERNAL, pl_initial_values(box, 7, &routed, 0.02, -1, 1), "-1");
    assert_fails(PL_INTERNAL, pl_initial_values(box, 7, &routed, 0.02, 2, 1), "[2, 1)");
}

static void norms_are_one_and_biases_zero(void **state)
{
    (void)state;
    static const struct {
        pl_tensor tensor;
        float value;
    } cases[] = {
        {{.role = PL_TENSOR_NORM, .layer = -1, .suffix = "model.norm.weight"}, 1},
        {{.role = PL_TENSOR_NORM, .layer = 2, .suffix = "input_layernorm.weight"}, 1},
        {{.role = PL_TENSOR_ATTENTION, .layer = 2, .suffix = "self_attn.q_norm.weight"}, 1},
        {{.role = PL_TENSOR_ATTENTION, .layer = 2, .suffix = "self_attn.k_norm.weight"}, 1},
        {{.role = PL_TENSOR_ATTENTION, .layer = 2, .suffix = "self_attn.q_proj.bias"}, 0},
        {{.role = PL_TENSOR_DENSE_MLP, .layer = 2, .suffix = "mlp.up_proj.bias"}, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        pl_tensor tensor = cases[i].tensor;
        float values[9];
        tensor.rows = 9;
        tensor.cols = tensor.dimensions = 1;
        assert_ok(pl_initial_values(values, 1, &tensor, 0.02, 0, 9));
        for (int j = 0; j < 9; ++j) assert_int_equal(bits_of(values[j]), bits_of(cases[i].value));
    }
}

/* Mean and variance in units of the initializer range, and the largest magnitude. */
static void measure(double *mean, double *variance, double *largest, double range)
{
    enum { ROWS = 1024, COLS = 1024 };
    pl_tensor tensor = embedding;
    tensor.rows = ROWS;
    tensor.cols = COLS;
    float *values = malloc(sizeof(float[ROWS]) * COLS);
    assert_non_null(values);
    assert_ok(pl_initial_values(values, 3, &tensor, range, 0, ROWS));
    double sum = 0, squares = 0;
    *largest = 0;
    for (int i = 0; i < ROWS * COLS; ++i) {
        double value = values[i] / range;
        double magnitude = value < 0 ? -value : value;
        sum += value;
        squares += value * value;
        if (magnitude > *largest) *largest = magnitude;
    }
    free(values);
    *mean = sum / (ROWS * COLS);
    *variance = squares / (ROWS * COLS) - *mean * *mean;
}

/* n = 2^20 samples of variance 1: the mean's deviation is 2^-10, that of the variance about
 * sqrt(2/n) = 0.0014. Five deviations are allowed; without sqrt(1.5) the variance is 2/3. */
static void mean_and_variance_are_those_asked_for(void **state)
{
    (void)state;
    double mean = 0, variance = 0, largest = 0;
    measure(&mean, &variance, &largest, 0.02);
    assert_true(mean > -5.0 / 1024 && mean < 5.0 / 1024);
    assert_true(variance > 1 - 0.007 && variance < 1 + 0.007);
    assert_true(largest > 3.5 && largest < 4.9);
    assert_false(variance / 1.5 > 1 - 0.007);
}

static void allocation_failures_have_words(void **state)
{
    (void)state;
    float values[64];
    for (int64_t n = 0;; ++n) {
        pl_allocation_fail_after(n);
        pl_status status = pl_initial_values(values, 1, &embedding, 0.02, 0, 1);
        int failed = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        if (!failed) {
            assert_int_equal(status, PL_OK);
            assert_true(n > 0);
            return;
        }
        assert_int_equal(status, PL_NO_MEMORY);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_blocks),
        cmocka_unit_test(every_word_of_counter_and_key_matters),
        cmocka_unit_test(initial_values_have_the_golden_bits),
        cmocka_unit_test(golden_bits_notice_planted_faults),
        cmocka_unit_test(any_box_is_cut_from_the_whole),
        cmocka_unit_test(rows_that_are_none_are_refused),
        cmocka_unit_test(norms_are_one_and_biases_zero),
        cmocka_unit_test(mean_and_variance_are_those_asked_for),
        cmocka_unit_test(allocation_failures_have_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
