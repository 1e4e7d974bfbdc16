/* Values of checkpoints as numbers: statistics and differences that can be counted by hand. */
#include <math.h>

#include "ckpt/store_values.h"
#include "ckpt/weights_folder_values.h"
#include "tests/ckpt/checkpoint_trial.h"

static const char *const tiny = "testdata/hf/qwen3-moe-tiny/config.json";

/* 1, 2, 3, ... by rows of the whole tensor, in any layout. */
static float number_of(int64_t place) { return (float)(place % 1000 + 1); }

static void write_number(unsigned char *values, const pl_checkpoint_box *box, int64_t i,
                         float value)
{
    pl_weights_convert(values + i * pl_dtype_bytes((pl_dtype)box->dtype), (pl_dtype)box->dtype,
                       &value, PL_FP32, 1);
}

static int64_t first_of(const pl_checkpoint_box *box)
{
    int64_t count = box->bytes / pl_dtype_bytes((pl_dtype)box->dtype);
    return box->row_begin * (count / (box->row_end - box->row_begin));
}

static void fill_numbers(unsigned char *values, const pl_checkpoint_box *box)
{
    int64_t count = box->bytes / pl_dtype_bytes((pl_dtype)box->dtype);
    for (int64_t i = 0; i < count; ++i) write_number(values, box, i, number_of(first_of(box) + i));
}

/* The same, but for a few values of parameters. */
static void fill_others(unsigned char *values, const pl_checkpoint_box *box)
{
    static const struct {
        int64_t place;
        float value;
    } others[] = {{5, 7.0F}, {64 * 3 + 2, 250.0F}, {200, NAN}};
    int64_t count = box->bytes / pl_dtype_bytes((pl_dtype)box->dtype), first = first_of(box);
    fill_numbers(values, box);
    if (box->kind != PL_VALUE_PARAMETER) return;
    for (int i = 0; i < 3; ++i)
        if (others[i].place >= first && others[i].place < first + count)
            write_number(values, box, others[i].place - first, others[i].value);
}

static void fill_wild(unsigned char *values, const pl_checkpoint_box *box)
{
    static const float wild[] = {NAN, INFINITY, -INFINITY, 0.0F, -0.0F, -3.0F, 4.0F, 1.0F};
    int64_t count = box->bytes / pl_dtype_bytes((pl_dtype)box->dtype), first = first_of(box);
    for (int64_t i = 0; i < count; ++i) write_number(values, box, i, wild[(first + i) % 8]);
}

static pl_store_reader *make(const scratch *s, trial_fill fill, pl_dtype dtype, int64_t step,
                             const char *layout)
{
    char name[32];
    checkpoint_trial t;
    pl_store_reader *reader = NULL;
    trial_open(&t, tiny, dtype, PL_OPTIMIZER_SGD, NULL, NULL);
    t.fill = fill;
    assert_ok(trial_write(&t, s->folder, step, layout));
    snprintf(name, sizeof name, "step-%d", (int)step);
    assert_ok(pl_store_reader_open(&reader, in_scratch(s, name)));
    trial_close(&t);
    return reader;
}

static void statistics_count_each_value_once(void **state)
{
    static const char *const layouts[] = {"single:world=1", "legacy:world=4,ep=2",
                                          "decoupled:world=8,ep=4,replicas=2"};
    scratch s = make_scratch();
    (void)state;
    for (int i = 0; i < 3; ++i) {
        pl_store_reader *reader = make(&s, fill_wild, i ? PL_FP32 : PL_BF16, i, layouts[i]);
        pl_value_statistics found;
        assert_ok(pl_store_statistics(&found, reader, PL_VALUE_PARAMETER, 0)); /* 257 x 64 */
        int64_t eighth = 257 * 8;
        assert_int_equal(found.values, 8 * eighth);
        assert_int_equal(found.nans, eighth);
        assert_int_equal(found.infinities, 2 * eighth);
        assert_int_equal(found.zeroes, 2 * eighth);
        assert_true(found.least == -3.0 && found.most == 4.0);
        assert_true(fabs(found.mean - 2.0 / 5) < 1e-12);
        assert_true(fabs(found.rms - sqrt(26.0 / 5)) < 1e-12);
        pl_store_reader_close(reader);
    }
    remove_scratch(&s);
}

static void differences_have_a_place(void **state)
{
    scratch s = make_scratch();
    pl_value_difference found;
    pl_store_reader *a = make(&s, fill_numbers, PL_FP32, 1, "legacy:world=4,ep=2");
    pl_store_reader *b = make(&s, fill_others, PL_FP32, 2, "folded:world=6,ep=2");
    (void)state;
    assert_ok(pl_store_compare(&found, a, b, PL_VALUE_PARAMETER, 0));
    assert_int_equal(found.values, 257 * 64);
    assert_int_equal(found.different, 3);
    assert_int_equal(found.nans, 1);
    assert_true(found.largest == 250.0 - 195.0); /* row 3, column 2 has 3 * 64 + 3 */
    assert_int_equal(found.row, 3);
    assert_int_equal(found.col, 2);
    assert_true(fabs(found.relative - 55.0 / 250.0) < 1e-12);
    double squares = 0;
    for (int64_t i = 0; i < 257 * 64; ++i) squares += (double)number_of(i) * (double)number_of(i);
    assert_true(fabs(found.relative_l2 - sqrt((1 + 55.0 * 55.0) / squares)) < 1e-9);
    assert_ok(pl_store_compare(&found, a, a, PL_VALUE_PARAMETER, 0));
    assert_true(found.different == 0 && found.largest == 0 && found.relative_l2 == 0);
    assert_int_equal(found.row, -1);
    pl_store_reader_close(a);
    pl_store_reader_close(b);
    remove_scratch(&s);
}

static void types_are_compared_as_fp32(void **state)
{
    scratch s = make_scratch();
    pl_value_difference found;
    pl_store_reader *a = make(&s, fill_numbers, PL_FP32, 1, "legacy:world=2");
    pl_store_reader *b = make(&s, fill_numbers, PL_BF16, 2, "single:world=1");
    pl_store_reader *c = make(&s, fill_numbers, PL_FP16, 3, "legacy:world=3");
    (void)state;
    assert_ok(pl_store_compare(&found, a, b, PL_VALUE_PARAMETER, 0));
    assert_true(found.different > 0 && found.largest == 2.0); /* of 1000, bf16 has multiples of 4 */
    assert_ok(pl_store_compare(&found, a, c, PL_VALUE_PARAMETER, 0));
    assert_int_equal(found.different, 0); /* fp16 has all of these numbers */
    assert_ok(pl_store_compare(&found, b, c, PL_VALUE_MASTER, 0));
    assert_int_equal(found.different, 0);
    pl_store_reader_close(a);
    pl_store_reader_close(b);
    pl_store_reader_close(c);
    remove_scratch(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statistics_count_each_value_once),
        cmocka_unit_test(differences_have_a_place),
        cmocka_unit_test(types_are_compared_as_fp32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
