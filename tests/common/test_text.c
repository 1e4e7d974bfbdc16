/* Texts, numbers, nearest words, files; and the log, which is text for people. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"
#include "common/memory.h"
#include "common/text.h"
#include "tests/test.h"

static void texts_grow(void **state)
{
    (void)state;
    pl_text text = {0};
    assert_string_equal(pl_text_string(&text), "");
    pl_text_add(&text, "%s-%d", "a", 7);
    pl_text_add_bytes(&text, "xyz", 2);
    pl_text_add_string(&text, "");
    pl_text_add_string(&text, "!");
    assert_string_equal(pl_text_string(&text), "a-7xy!");
    assert_int_equal(text.length, 6);
    pl_text_clear(&text);
    assert_string_equal(pl_text_string(&text), "");
    for (int i = 0; i < 10000; ++i) pl_text_add_number(&text, i % 10);
    assert_int_equal(text.length, 10000);
    assert_int_equal(strlen(pl_text_string(&text)), 10000);
    assert_ok(pl_text_status(&text));
    pl_text_free(&text);
    assert_string_equal(pl_text_string(&text), "");
    pl_text_clear(&text);
}

static void numbers_print_exactly(void **state)
{
    (void)state;
    static const int64_t numbers[] = {0, 1, -1, 10, -987654321, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) {
        char expected[32], grouped[32], plain[32], *to = plain;
        pl_text text = {0};
        snprintf(expected, sizeof expected, "%lld", (long long)numbers[i]);
        pl_text_add_number(&text, numbers[i]);
        assert_string_equal(pl_text_string(&text), expected);
        pl_text_free(&text);
        pl_format_thousands(grouped, numbers[i]);
        for (const char *from = grouped; *from; ++from)
            if (*from != ',') *to++ = *from;
        *to = '\0';
        assert_string_equal(plain, expected);
    }
    char buffer[32];
    assert_string_equal(pl_format_thousands(buffer, 999), "999");
    assert_string_equal(pl_format_thousands(buffer, 1000), "1,000");
    assert_string_equal(pl_format_thousands(buffer, -1234567), "-1,234,567");
    assert_string_equal(pl_format_thousands(buffer, INT64_MIN), "-9,223,372,036,854,775,808");
    assert_string_equal(pl_format_bytes(buffer, 0), "0 B");
    assert_string_equal(pl_format_bytes(buffer, 1023), "1023 B");
    assert_string_equal(pl_format_bytes(buffer, 1536), "1.50 KiB");
    assert_string_equal(pl_format_bytes(buffer, -((int64_t)3 << 30)), "-3.00 GiB");
    assert_string_equal(pl_format_bytes(buffer, INT64_MAX), "8192.00 PiB");
}

static void a_failed_addition_is_remembered(void **state)
{
    (void)state;
    pl_text text = {0};
    pl_text_add_string(&text, "kept");
    pl_allocation_fail_after(0);
    pl_text_add(&text, "%100d", 1);
    pl_allocation_fail_after(-1);
    pl_text_add_string(&text, "dropped");
    assert_string_equal(pl_text_string(&text), "kept");
    assert_fails(PL_NO_MEMORY, pl_text_status(&text), "out of memory");
    pl_text_free(&text);
    pl_text_add_string(&text, "again");
    assert_ok(pl_text_status(&text));
    pl_text_free(&text);
}

static void quoted_words_are_cut_between_characters(void **state)
{
    (void)state;
    pl_text text = {0};
    pl_text_add_quoted(&text, "short");
    assert_string_equal(pl_text_string(&text), "'short'");
    char word[200];
    memset(word, 'a', sizeof word);
    word[60] = '\0';
    pl_text_clear(&text);
    pl_text_add_quoted(&text, word);
    assert_int_equal(text.length, 62);
    word[59] = '\xC3'; /* a two-byte character across the cut */
    word[60] = '\xA9';
    word[61] = '\0';
    pl_text_clear(&text);
    pl_text_add_quoted(&text, word);
    assert_int_equal(text.length, 1 + 59 + 4);
    assert_string_equal(pl_text_string(&text) + 55, "aaaaa...'");
    pl_text_free(&text);
}

static const char *const choices[] = {"after-forward", "never", "per-call", "ep", "dp_shard"};
enum { CHOICES = sizeof choices / sizeof *choices };

static void nearest_word_is_found(void **state)
{
    (void)state;
    static const struct {
        const char *given, *nearest;
    } cases[] = {
        {"never", "never"},
        {"nevr", "never"},
        {"enver", "never"},
        {"NEVER", "never"},
        {"after_forward", "after-forward"},
        {"after-fwd", "after-forward"},
        {"per", "per-call"},
        {"dp-shard", "dp_shard"},
        {"pe", "per-call"},
        {"zzzzz", NULL},
        {"sometimes", NULL},
        {"xy", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        const char *near = pl_nearest(cases[i].given, choices, CHOICES);
        if (!near != !cases[i].nearest || (near && strcmp(near, cases[i].nearest) != 0))
            fail_msg("'%s' is nearest to '%s'", cases[i].given, near ? near : "nothing");
    }
    char giant[4000];
    memset(giant, 'n', sizeof giant);
    giant[sizeof giant - 1] = '\0';
    assert_null(pl_nearest(giant, choices, CHOICES));
    assert_null(pl_nearest("never", choices, 0));

    pl_text text = {0};
    pl_text_add_choices(&text, "nevr", choices, 3);
    assert_string_equal(pl_text_string(&text),
                        "; did you mean 'never'? Allowed: after-forward, never, per-call");
    pl_text_clear(&text);
    pl_text_add_choices(&text, "zzzzz", choices, 3);
    assert_string_equal(pl_text_string(&text), "; allowed: after-forward, never, per-call");
    pl_text_free(&text);
}

static void numbers_are_read_strictly(void **state)
{
    (void)state;
    static const char *const not_integers[] = {
        "", "-", "+1", " 1", "1 ", "1.0", "0x1", "1e3", "1_0", "9223372036854775808", "--1", "a"};
    static const char *const not_numbers[] = {
        "",    "-",  ".",   " 1",   "1 ",  "nan",    "-nan", "inf", "-inf",    "1e400",
        "0x1", "1e", "1_0", ".inf", "+-1", "-1e400", "1,5",  "1p3", "infinity"};
    int64_t integer = 5;
    double number = 5;
    for (size_t i = 0; i < sizeof not_integers / sizeof *not_integers; ++i)
        if (pl_parse_integer(&integer, not_integers[i])) fail_msg("integer '%s'", not_integers[i]);
    for (size_t i = 0; i < sizeof not_numbers / sizeof *not_numbers; ++i)
        if (pl_parse_number(&number, not_numbers[i])) fail_msg("number '%s'", not_numbers[i]);
    assert_int_equal(integer, 5);
    assert_true(number == 5);
    assert_true(pl_parse_integer(&integer, "-9223372036854775808") && integer == INT64_MIN);
    assert_true(pl_parse_integer(&integer, "9223372036854775807") && integer == INT64_MAX);
    assert_true(pl_parse_integer(&integer, "-0") && integer == 0);
    assert_true(pl_parse_number(&number, "1e-3") && number == 1e-3);
    assert_true(pl_parse_number(&number, "-.5E+2") && number == -50);
    assert_true(pl_parse_number(&number, "+3") && number == 3);
    assert_true(pl_parse_number(&number, "1.7976931348623157e308") && isfinite(number));
}

static void write_file(const char *name, const char *bytes, size_t length)
{
    FILE *stream = fopen(name, "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(bytes, 1, length, stream), length);
    assert_int_equal(fclose(stream), 0);
}

static void files_are_read_whole_or_refused(void **state)
{
    (void)state;
    char folder[500], file[512], fifo[512], *bytes = NULL;
    size_t length = 0;
    const char *parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/pleat-text-XXXXXX", parent ? parent : ".");
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/file", folder);
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    write_file(file, "a\0b\n", 4);
    assert_ok(pl_read_file(&bytes, &length, file, 4));
    assert_int_equal(length, 4);
    assert_memory_equal(bytes, "a\0b\n", 5);
    pl_free(bytes);
    assert_fails(PL_BAD_INPUT, pl_read_file(&bytes, &length, file, 3), file, "4 bytes",
                 "at most 3");
    write_file(file, "", 0);
    assert_ok(pl_read_file(&bytes, &length, file, 0));
    assert_int_equal(length, 0);
    pl_free(bytes);
    pl_allocation_fail_after(0);
    assert_fails(PL_NO_MEMORY, pl_read_file(&bytes, &length, file, 9), "out of memory", file);
    pl_allocation_fail_after(-1);
    assert_fails(PL_BAD_INPUT, pl_read_file(&bytes, &length, folder, 9), folder, "regular");
    assert_fails(PL_BAD_INPUT, pl_read_file(&bytes, &length, "no/such/file", 9), "No such file");
    assert_fails(PL_BAD_INPUT, pl_read_file(&bytes, &length, "/dev/null", 9), "regular");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_fails(PL_BAD_INPUT, pl_read_file(&bytes, &length, fifo, 9), "regular"); /* at once */
    char long_name[6000];
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    assert_fails(PL_BAD_INPUT, pl_read_file(&bytes, &length, long_name, 9), "xxxx");
    unlink(fifo);
    unlink(file);
    rmdir(folder);
}

/* What a log at LEVEL writes for one message. The caller frees. */
static char *logged(pl_log_level level, int64_t rank, pl_log_level message_level,
                    const char *message)
{
    char *bytes = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&bytes, &length);
    assert_non_null(stream);
    pl_log log = {level, rank, stream};
    errno = 77;
    pl_log_write(&log, message_level, "%s", message);
    assert_int_equal(errno, 77);
    fclose(stream);
    return bytes;
}

static void assert_logged(const char *expected, pl_log_level level, int64_t rank,
                          pl_log_level message_level, const char *message)
{
    char *bytes = logged(level, rank, message_level, message);
    assert_string_equal(bytes, expected);
    free(bytes);
}

static void log_lines_name_level_and_rank(void **state)
{
    (void)state;
    assert_logged("[rank 3] warning: w\n", PL_LOG_INFO, 3, PL_LOG_WARNING, "w");
    assert_logged("info: i\n", PL_LOG_INFO, -1, PL_LOG_INFO, "i");
    assert_logged("", PL_LOG_INFO, -1, PL_LOG_DEBUG, "d");
    assert_logged("", PL_LOG_ERROR, 0, PL_LOG_WARNING, "w");
    assert_logged("error: a\nerror:   b\n", PL_LOG_ERROR, -1, PL_LOG_ERROR, "a\n  b\n");
    assert_logged("error: \n", PL_LOG_ERROR, -1, PL_LOG_ERROR, "");
    pl_log_write(NULL, PL_LOG_ERROR, "nobody %d", 1);
    pl_log silent = {PL_LOG_DEBUG, 0, NULL};
    pl_log_write(&silent, PL_LOG_ERROR, "nobody %d", 1);
}

static void long_log_messages_are_cut(void **state)
{
    (void)state;
    char message[3 * PL_LOG_LINE];
    for (size_t length = PL_LOG_LINE - 20; length < PL_LOG_LINE + 20; ++length) {
        memset(message, 'x', sizeof message);
        message[length] = '\0';
        char *bytes = logged(PL_LOG_DEBUG, -1, PL_LOG_DEBUG, message);
        size_t written = strlen(bytes);
        assert_true(written < PL_LOG_LINE);
        assert_int_equal(bytes[written - 1], '\n');
        bool cut = strcmp(bytes + written - 4, "...\n") == 0;
        assert_true(cut || written == strlen("debug: ") + length + 1);
        free(bytes);
    }
    memset(message, '\n', sizeof message);
    message[sizeof message - 1] = '\0';
    char *bytes = logged(PL_LOG_DEBUG, 5, PL_LOG_DEBUG, message);
    assert_true(strlen(bytes) < PL_LOG_LINE);
    assert_non_null(strstr(bytes, "...\n"));
    free(bytes);
}

static void log_levels_have_names(void **state)
{
    (void)state;
    int count = 0;
    const char *const *names = pl_log_level_names(&count);
    assert_int_equal(count, PL_LOG_LEVEL_COUNT);
    for (int i = 0; i < count; ++i) {
        pl_log_level level = PL_LOG_LEVEL_COUNT;
        assert_true(pl_log_level_parse(&level, names[i]));
        assert_int_equal(level, i);
        assert_string_equal(pl_log_level_name(level), names[i]);
    }
    pl_log_level level = PL_LOG_INFO;
    assert_false(pl_log_level_parse(&level, "loud"));
    assert_int_equal(level, PL_LOG_INFO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_grow),
        cmocka_unit_test(numbers_print_exactly),
        cmocka_unit_test(a_failed_addition_is_remembered),
        cmocka_unit_test(quoted_words_are_cut_between_characters),
        cmocka_unit_test(nearest_word_is_found),
        cmocka_unit_test(numbers_are_read_strictly),
        cmocka_unit_test(files_are_read_whole_or_refused),
        cmocka_unit_test(log_lines_name_level_and_rank),
        cmocka_unit_test(long_log_messages_are_cut),
        cmocka_unit_test(log_levels_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
