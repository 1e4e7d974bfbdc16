/* Tokens drawn from logits: greedy, by temperature, among the top k; and bytes shown safely. */
#include <math.h>

#include "common/memory.h"
#include "tests/test.h"
#include "train/sampler.h"

static int64_t choose(pl_sampler *sampler, const float *logits, int64_t count)
{
    int64_t token = -1;
    assert_ok(pl_sampler_choose(sampler, logits, count, &token));
    assert_in_range(token, 0, count - 1);
    return token;
}

static void temperature_zero_takes_the_largest_and_the_first_among_equals(void **state)
{
    (void)state;
    const float logits[] = {-1, 3, NAN, 3, 2}, nothing[] = {NAN, NAN},
                lost[] = {-INFINITY, -INFINITY};
    pl_sampler sampler = {.seed = 7};
    for (int i = 0; i < 5; ++i) assert_int_equal(choose(&sampler, logits, 5), 1);
    assert_int_equal(sampler.drawn, 5);
    sampler.temperature = 1;
    assert_int_equal(choose(&sampler, nothing, 2), 0);
    assert_int_equal(choose(&sampler, lost, 2), 0);
    assert_int_equal(choose(&sampler, logits, 1), 0);
    sampler.top_k = 1;
    for (int i = 0; i < 5; ++i) assert_int_equal(choose(&sampler, logits, 5), 1);
}

enum { DRAWS = 20000 };

static void draw_many(pl_sampler sampler, const float *logits, int64_t count, double *part)
{
    for (int64_t i = 0; i < count; ++i) part[i] = 0;
    for (int i = 0; i < DRAWS; ++i) part[choose(&sampler, logits, count)] += 1.0 / DRAWS;
}

/* Six standard deviations of a part of DRAWS draws are at most 0.021. */
static void draws_follow_the_softmax(void **state)
{
    (void)state;
    const float logits[] = {0, 1, 2, -1};
    const double temperatures[] = {1, 0.5, 3};
    for (int t = 0; t < 3; ++t) {
        double part[4], whole = 0;
        draw_many((pl_sampler){.temperature = temperatures[t], .seed = 11}, logits, 4, part);
        for (int i = 0; i < 4; ++i) whole += exp(logits[i] / temperatures[t]);
        for (int i = 0; i < 4; ++i)
            assert_true(fabs(part[i] - exp(logits[i] / temperatures[t]) / whole) < 0.0213);
    }
}

static void only_the_top_k_are_drawn(void **state)
{
    (void)state;
    const float logits[] = {1, 0, 1, 1, -2, 0.5F};
    double part[6];
    draw_many((pl_sampler){.temperature = 1, .top_k = 2, .seed = 3}, logits, 6, part);
    assert_true(fabs(part[0] - 0.5) < 0.0213); /* 0, 2 and 3 are equal: the first two stay */
    assert_true(fabs(part[2] - 0.5) < 0.0213);
    draw_many((pl_sampler){.temperature = 1, .top_k = 4, .seed = 3}, logits, 6, part);
    assert_true(part[3] > 0.2 && part[5] > 0.1 && part[1] == 0 && part[4] == 0);
    draw_many((pl_sampler){.temperature = 1, .top_k = 100, .seed = 3}, logits, 6, part);
    assert_true(part[4] > 0);
}

static void equal_seeds_draw_equal_tokens(void **state)
{
    (void)state;
    float logits[64];
    int same = 0, golden[8];
    for (int i = 0; i < 64; ++i) logits[i] = (float)(i % 7) * 0.25F;
    pl_sampler a = {.temperature = 1, .seed = 1}, b = a, c = {.temperature = 1, .seed = 2};
    for (int i = 0; i < 200; ++i) {
        int64_t token = choose(&a, logits, 64);
        if (i < 8) golden[i] = (int)token;
        assert_int_equal(token, choose(&b, logits, 64));
        same += token == choose(&c, logits, 64);
    }
    assert_in_range(same, 0, 20);
    pl_sampler late = {.temperature = 1, .seed = 1, .drawn = 5}; /* draws know their number alone */
    for (int i = 5; i < 8; ++i) assert_int_equal(choose(&late, logits, 64), golden[i]);
}

static void a_failing_allocation_is_told(void **state)
{
    (void)state;
    const float logits[] = {0, 1};
    int64_t token = 0;
    pl_sampler sampler = {.temperature = 1};
    pl_allocation_fail_after(0);
    pl_status status = pl_sampler_choose(&sampler, logits, 2, &token);
    pl_allocation_fail_after(-1);
    assert_int_equal(status, PL_NO_MEMORY);
}

static void assert_shown(const char *bytes, size_t length, const char *wanted)
{
    pl_text text = {0};
    pl_text_add_shown(&text, bytes, length);
    assert_string_equal(pl_text_string(&text), wanted);
    pl_text_free(&text);
}

static void printable_text_is_shown_as_it_is(void **state)
{
    (void)state;
    const char text[] = "to be\n\tor \xc3\xa4, \xe2\x82\xac, \xf0\x9f\x98\x80";
    assert_shown(text, strlen(text), text);
    assert_shown("", 0, "");
}

static void everything_else_is_shown_as_numbers(void **state)
{
    (void)state;
    assert_shown("a\0b\x1b[31m\r\x7f", 10, "a\\x00b\\x1b[31m\\x0d\\x7f");
    assert_shown("\xff\xc3", 2, "\\xff\\xc3"); /* no UTF-8; cut off */
    assert_shown("\xc0\xaf", 2, "\\xc0\\xaf"); /* longer than need be */
    assert_shown("\xe0\x80\xaf", 3, "\\xe0\\x80\\xaf");
    assert_shown("\xed\xa0\x80", 3, "\\xed\\xa0\\x80"); /* a surrogate */
    assert_shown("\xc2\x9b", 2, "\\xc2\\x9b");          /* a control of eight bits */
    assert_shown("\xe2\x80\xae", 3, "\\xe2\\x80\\xae"); /* turns the direction of writing */
    assert_shown("\xf4\x90\x80\x80", 4, "\\xf4\\x90\\x80\\x80"); /* beyond the last character */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(temperature_zero_takes_the_largest_and_the_first_among_equals),
        cmocka_unit_test(draws_follow_the_softmax),
        cmocka_unit_test(only_the_top_k_are_drawn),
        cmocka_unit_test(equal_seeds_draw_equal_tokens),
        cmocka_unit_test(a_failing_allocation_is_told),
        cmocka_unit_test(printable_text_is_shown_as_it_is),
        cmocka_unit_test(everything_else_is_shown_as_numbers),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
