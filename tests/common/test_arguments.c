/* Arguments of commands: what is taken, what is refused and with what words. */
#include <stdio.h>

#include "common/arguments.h"
#include "common/memory.h"
#include "tests/test.h"

enum { NAME, COUNT, QUIET, OPTIONS };

static const pl_option options[OPTIONS] = {
    [NAME] = {"--name", "WORD", "a name", false},
    [COUNT] = {"--count", "NUMBER", "numbers", true},
    [QUIET] = {"--quiet", NULL, "say nothing", false},
};

static const pl_command_usage usage = {.program = "prog",
                                       .command = "work",
                                       .forms = "FILE [OPTION...]\n--quiet",
                                       .about = "Works.",
                                       .examples = "prog work file --name x\nprog work --quiet",
                                       .options = options,
                                       .option_count = OPTIONS};

static pl_status take(void *context, int option, const char *value)
{
    pl_text *seen = context;
    if (value && strcmp(value, "bad") == 0) return PL_FAIL(PL_UNSUPPORTED, "bad is not done");
    pl_text_add(seen, "%d=%s;", option, value ? value : "-");
    return pl_text_status(seen);
}

static pl_status parse(pl_text *seen, bool *help, const char *const *words)
{
    char copies[8][32], *arguments[10] = {copies[7]};
    int count = 1;
    snprintf(copies[7], sizeof copies[7], "work");
    for (; words[count - 1]; ++count) {
        snprintf(copies[count - 1], sizeof copies[0], "%s", words[count - 1]);
        arguments[count] = copies[count - 1];
    }
    pl_text_clear(seen);
    *help = false;
    return pl_arguments_parse(help, &usage, count, arguments, take, seen);
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void arguments_are_taken_in_order(void **state)
{
    (void)state;
    pl_text seen = {0};
    bool help = true;
    assert_ok(parse(&seen, &help, WORDS("--count=1", "a file", "--quiet", "--count", "2", "-")));
    assert_string_equal(pl_text_string(&seen), "1=1;-1=a file;2=-;1=2;-1=-;");
    assert_false(help);
    assert_ok(parse(&seen, &help, WORDS("--co=3", "--", "--quiet")));
    assert_string_equal(pl_text_string(&seen), "1=3;-1=--quiet;");
    assert_ok(parse(&seen, &help, WORDS("--help")));
    assert_true(help);
    assert_ok(parse(&seen, &help, WORDS("x", "-h")));
    assert_true(help);
    pl_text_free(&seen);
}

static void wrong_arguments_are_refused_in_words(void **state)
{
    (void)state;
    pl_text seen = {0};
    bool help = false;
    assert_fails(PL_BAD_INPUT, parse(&seen, &help, WORDS("--nam3=x")), "unknown option '--nam3'",
                 "--name", "see 'prog work --help'");
    assert_fails(PL_BAD_INPUT, parse(&seen, &help, WORDS("--count")),
                 "--count needs a value: --count=NUMBER");
    assert_fails(PL_BAD_INPUT, parse(&seen, &help, WORDS("--quiet=yes")), "--quiet takes no value");
    assert_fails(PL_BAD_INPUT, parse(&seen, &help, WORDS("--name=a", "--name", "b")),
                 "--name is given twice");
    assert_fails(PL_BAD_INPUT, parse(&seen, &help, WORDS("-x")), "unknown option '-x'");
    assert_fails(PL_BAD_INPUT, parse(&seen, &help, WORDS("--zzz")),
                 "allowed: --name, --count, --quiet, --help");
    assert_fails(PL_UNSUPPORTED, parse(&seen, &help, WORDS("x", "bad", "y")), "bad is not done");
    assert_string_equal(pl_text_string(&seen), "-1=x;"); /* nothing behind it is taken */
    pl_text_free(&seen);
}

static void help_shows_forms_options_and_examples(void **state)
{
    (void)state;
    pl_text text = {0};
    pl_arguments_help(&text, &usage);
    assert_ok(pl_text_status(&text));
    assert_string_equal(pl_text_string(&text), "Usage: prog work FILE [OPTION...]\n"
                                               "       prog work --quiet\n"
                                               "\n"
                                               "Works.\n"
                                               "\n"
                                               "  --name=WORD           a name\n"
                                               "  --count=NUMBER        numbers\n"
                                               "  --quiet               say nothing\n"
                                               "  -h, --help            this text\n"
                                               "\n"
                                               "Examples:\n"
                                               "  prog work file --name x\n"
                                               "  prog work --quiet\n");
    pl_text_clear(&text);
    pl_command_usage longer = usage;
    longer.run_file_keys = true;
    pl_arguments_help(&text, &longer);
    assert_non_null(strstr(pl_text_string(&text), "policy.reshard"));
    pl_text_free(&text);
}

static void failing_allocations_are_told(void **state)
{
    (void)state;
    for (int64_t n = 0;; ++n) {
        pl_text text = {0};
        pl_allocation_fail_after(n);
        pl_text_add_string(&text, "words");
        pl_status status = pl_arguments_refuse(&usage, &text);
        bool failed = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        assert_int_equal(status, failed ? PL_NO_MEMORY : PL_BAD_INPUT);
        if (!failed) return;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments_are_taken_in_order),
        cmocka_unit_test(wrong_arguments_are_refused_in_words),
        cmocka_unit_test(help_shows_forms_options_and_examples),
        cmocka_unit_test(failing_allocations_are_told),
    };
    return cmocka_run_group_tests_name("arguments", tests, NULL, NULL);
}
