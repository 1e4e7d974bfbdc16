/* JSON: positions of faults, keys in messages, types and ranges, unknown keys. */
#include <float.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/json.h"
#include "common/memory.h"
#include "tests/test.h"

static struct json_t *parse(const char *text)
{
    struct json_t *value = NULL;
    assert_ok(pl_json_parse(&value, text, strlen(text), "x.json"));
    return value;
}

static pl_status parse_status(const char *text, size_t length)
{
    struct json_t *value = NULL;
    pl_status status = pl_json_parse(&value, text, length, "x.json");
    pl_json_free(value);
    return status;
}

static void faults_have_line_and_column(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } faults[] = {
        {"", "x.json:1:0: not JSON"},
        {"{\"a\": 1,\n \"b\": }", "x.json:2:7: not JSON"},
        {"{\"a\": 1,\n\n  \"a\": 2}", "duplicate object key"},
        {"{\"a\": 1} x", "x.json:1:10: not JSON"},
        {"[1, 2", "x.json:1:5: not JSON"},
        {"[99999999999999999999]", "too big integer"},
        {"[1e999]", "real number overflow"},
        {"[\"\\u0000\"]", "\\u0000"},
        {"[\"\xff\"]", "unable to decode byte"},
        {"{'a': 1}", "x.json:1:"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i)
        assert_fails(PL_BAD_INPUT, parse_status(faults[i].text, strlen(faults[i].text)),
                     "x.json:", faults[i].words);
    assert_fails(PL_BAD_INPUT, parse_status("[1]\0[2]", 7), "x.json:1:");
    assert_ok(parse_status("[1]", 3));
}

static void deep_nesting_is_refused(void **state)
{
    (void)state;
    enum { DEPTH = 100000 };
    char *text = malloc(DEPTH);
    assert_non_null(text);
    memset(text, '[', DEPTH);
    assert_fails(PL_BAD_INPUT, parse_status(text, DEPTH), "maximum parsing depth");
    free(text);
}

static void values_come_back(void **state)
{
    (void)state;
    struct json_t *tree = parse("{\"i\": -3, \"w\": 4, \"r\": 2.5, \"t\": true, \"s\": \"two\","
                                " \"n\": null, \"o\": {\"list\": [7, 8]}}");
    pl_json_node top, object, list;
    int64_t integer = 0;
    double number = 0;
    bool boolean = false;
    const char *string = NULL;
    assert_ok(pl_json_top_object(&top, tree, "x.json"));
    assert_ok(pl_json_integer(&integer, &top, "i", -3, 0));
    assert_int_equal(integer, -3);
    assert_ok(pl_json_number(&number, &top, "w", 0, 4));
    assert_true(number == 4.0);
    assert_ok(pl_json_number(&number, &top, "r", 0, DBL_MAX));
    assert_true(number == 2.5);
    assert_ok(pl_json_boolean(&boolean, &top, "t"));
    assert_true(boolean);
    assert_ok(pl_json_string(&string, &top, "s"));
    assert_string_equal(string, "two");
    assert_true(pl_json_has(&top, "i"));
    assert_false(pl_json_has(&top, "n"));
    assert_false(pl_json_has(&top, "absent"));
    assert_ok(pl_json_object(&object, &top, "o"));
    assert_ok(pl_json_array(&list, &object, "list"));
    assert_int_equal(pl_json_length(&list), 2);
    pl_json_node element = pl_json_element(&list, 1);
    assert_ok(pl_json_as_integer(&integer, &element, 0, 8));
    assert_int_equal(integer, 8);
    assert_fails(PL_BAD_INPUT, pl_json_as_integer(&integer, &element, 0, 7),
                 "x.json: key 'o.list[1]': given 8", "an integer from 0 to 7");
    pl_json_free(tree);
}

static void wrong_values_are_named(void **state)
{
    (void)state;
    struct json_t *tree = parse("{\"i\": 3, \"r\": 2.0, \"s\": \"two\", \"n\": null, \"a\": []}");
    pl_json_node top, node;
    int64_t integer = 17;
    double number = 17;
    bool boolean = true;
    const char *string = "kept";
    assert_ok(pl_json_top_object(&top, tree, "x.json"));
    assert_fails(PL_BAD_INPUT, pl_json_integer(&integer, &top, "gone", 1, 9),
                 "x.json: key 'gone' is missing", "an integer from 1 to 9");
    assert_fails(PL_BAD_INPUT, pl_json_integer(&integer, &top, "i", 4, INT64_MAX),
                 "key 'i': given 3", "an integer of at least 4");
    assert_fails(PL_BAD_INPUT, pl_json_integer(&integer, &top, "i", 0, 2), "from 0 to 2");
    assert_fails(PL_BAD_INPUT, pl_json_integer(&integer, &top, "r", 0, 9), "given 2.0");
    assert_fails(PL_BAD_INPUT, pl_json_integer(&integer, &top, "n", 0, 9), "given null");
    assert_fails(PL_BAD_INPUT, pl_json_number(&number, &top, "s", 0, 1), "given \"two\"",
                 "a number from 0 to 1");
    assert_fails(PL_BAD_INPUT, pl_json_number(&number, &top, "r", 3, DBL_MAX),
                 "a number of at least 3");
    assert_fails(PL_BAD_INPUT, pl_json_boolean(&boolean, &top, "i"), "true or false");
    assert_fails(PL_BAD_INPUT, pl_json_string(&string, &top, "a"), "given []", "a string");
    assert_fails(PL_BAD_INPUT, pl_json_object(&node, &top, "a"), "an object");
    assert_fails(PL_BAD_INPUT, pl_json_array(&node, &top, "i"), "an array");
    assert_fails(PL_BAD_INPUT, pl_json_array(&node, &top, "gone"), "is missing");
    assert_true(integer == 17 && number == 17 && boolean && strcmp(string, "kept") == 0);
    pl_json_free(tree);
    tree = parse("[1, 2]");
    assert_fails(PL_BAD_INPUT, pl_json_top_object(&top, tree, "x.json"), "x.json: the whole text",
                 "given [1,2]", "an object");
    pl_json_free(tree);
}

static void unknown_keys_are_answered(void **state)
{
    (void)state;
    static const char *const known[] = {"hidden_size", "vocab_size"};
    struct json_t *tree = parse("{\"hidden_size\": 1, \"vocab_sise\": 2}");
    pl_json_node top;
    assert_ok(pl_json_top_object(&top, tree, "x.json"));
    assert_fails(PL_BAD_INPUT, pl_json_check_keys(&top, known, 2), "key 'vocab_sise' is unknown",
                 "did you mean 'vocab_size'?");
    assert_fails(PL_BAD_INPUT, pl_json_check_keys(&top, known, 1), "allowed: hidden_size");
    assert_ok(json_object_del(tree, "vocab_sise") == 0 ? PL_OK : PL_INTERNAL);
    assert_ok(pl_json_check_keys(&top, known, 2));
    pl_json_free(tree);
}

/* Nothing that a file holds or is called makes a message overrun its buffer. */
static void messages_stay_short(void **state)
{
    (void)state;
    enum { LONG = 5000 };
    char *name = malloc(LONG + 1), *text = malloc(2 * LONG + 100);
    pl_json_node nodes[40], top;
    int64_t integer = 0;
    assert_true(name && text);
    memset(name, 'n', LONG);
    name[LONG] = '\0';
    snprintf(text, 2 * LONG + 100, "{\"%s\": \"%s\"}", name, name);
    struct json_t *tree = parse(text);
    assert_ok(pl_json_top_object(&top, tree, name));
    assert_fails(PL_BAD_INPUT, pl_json_integer(&integer, &top, name, 0, 1), "...nnn", "given \"nnn",
                 "allowed: an integer");
    assert_true(strlen(pl_error_text()) < 600);
    nodes[0] = top;
    for (int i = 1; i < 40; ++i) {
        nodes[i] = top;
        nodes[i].parent = &nodes[i - 1];
        nodes[i].key = name;
    }
    assert_fails(PL_BAD_INPUT, pl_json_refuse(&nodes[39], "nothing"), "allowed: nothing");
    assert_true(strlen(pl_error_text()) < 600);
    pl_json_free(tree);
    free(name);
    free(text);
}

static pl_status read_status(const char *file, size_t max_bytes)
{
    struct json_t *tree = NULL;
    pl_status status = pl_json_read(&tree, file, max_bytes);
    pl_json_free(tree);
    return status;
}

static void files_are_read(void **state)
{
    (void)state;
    assert_ok(read_status("testdata/models/tiny-moe.json", 100000));
    assert_fails(PL_BAD_INPUT, read_status("testdata/models/tiny-moe.json", 10), "tiny-moe.json",
                 "10");
    assert_fails(PL_BAD_INPUT, read_status("testdata/models/none.json", 10), "none.json");
    assert_fails(PL_BAD_INPUT, read_status("testdata/models/README.md", 100000),
                 "testdata/models/README.md:1:");
}

static pl_status read_and_check(void)
{
    static const char *const known[] = {"some"};
    struct json_t *tree = NULL;
    pl_json_node top;
    PL_TRY(pl_json_read(&tree, "testdata/models/tiny-moe.json", 100000));
    pl_status status = pl_json_top_object(&top, tree, "x.json");
    if (status == PL_OK) status = pl_json_check_keys(&top, known, 1);
    pl_json_free(tree);
    return status;
}

static void allocation_failures_are_reported(void **state)
{
    (void)state;
    int64_t after = 0;
    for (;; ++after) {
        pl_allocation_fail_after(after);
        pl_status status = read_and_check();
        bool failed = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        assert_int_equal(status, failed ? PL_NO_MEMORY : PL_BAD_INPUT);
        if (!failed) break;
    }
    assert_true(after >= 2); /* the file's text and the message */
}

/* jansson forgets the byte for which its buffer could not grow; when it is the last quote of a
 * string, it reads on behind the buffer. Strings of all lengths around the sizes of the buffer. */
static void strings_bear_allocation_failures(void **state)
{
    (void)state;
    pl_json_check_memory();
    for (int bytes = 1; bytes < 140; ++bytes) {
        char text[160];
        int length = snprintf(text, sizeof text, "[\"%0*d\"]", bytes, 0);
        bool failed = true;
        for (int64_t after = 0; failed; ++after) {
            pl_allocation_fail_after(after);
            pl_status status = parse_status(text, (size_t)length);
            failed = pl_allocation_failed();
            pl_allocation_fail_after(-1);
            assert_int_equal(status, failed ? PL_NO_MEMORY : PL_OK);
        }
    }
    json_set_alloc_funcs(malloc, free);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_have_line_and_column),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(values_come_back),
        cmocka_unit_test(wrong_values_are_named),
        cmocka_unit_test(unknown_keys_are_answered),
        cmocka_unit_test(messages_stay_short),
        cmocka_unit_test(files_are_read),
        cmocka_unit_test(allocation_failures_are_reported),
        cmocka_unit_test(strings_bear_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
