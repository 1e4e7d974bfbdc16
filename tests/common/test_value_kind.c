/* Names of the kinds of value: files on disk carry them, so they stand here once more. */
#include "common/value_kind.h"
#include "tests/test.h"

static const struct {
    pl_value_kind kind;
    const char *name;
} kinds[] = {{PL_VALUE_PARAMETER, "param"},
             {PL_VALUE_MASTER, "master"},
             {PL_VALUE_ADAM_M, "adam_m"},
             {PL_VALUE_ADAM_V, "adam_v"}};

static void every_kind_has_its_name(void **state)
{
    (void)state;
    assert_int_equal(sizeof kinds / sizeof *kinds, PL_VALUE_KIND_COUNT);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i)
        assert_string_equal(pl_value_kind_name(kinds[i].kind), kinds[i].name);
}

static void names_are_read_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
        pl_value_kind kind = PL_VALUE_KIND_COUNT;
        assert_true(pl_value_kind_parse(&kind, kinds[i].name));
        assert_int_equal(kind, kinds[i].kind);
    }
}

static void other_words_are_none(void **state)
{
    static const char *const words[] = {"", "Param", "params", "para", "adam", "adam-m", "adam_m "};
    (void)state;
    for (size_t i = 0; i < sizeof words / sizeof *words; ++i) {
        pl_value_kind kind = PL_VALUE_KIND_COUNT;
        if (pl_value_kind_parse(&kind, words[i])) fail_msg("'%s' was read as a kind", words[i]);
        assert_int_equal(kind, PL_VALUE_KIND_COUNT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_has_its_name),
        cmocka_unit_test(names_are_read_back),
        cmocka_unit_test(other_words_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
