/* Lines of run.jsonl: each one JSON object with the fields that train/run_log.h lists. */
#include <math.h>

#include <jansson.h>

#include "common/json.h"
#include "common/memory.h"
#include "tests/test.h"
#include "train/run_log.h"

/* The fields of OBJECT are those that pl_run_log_fields has for KIND, in that order. */
static void has_listed_fields(json_t *object, const char *kind)
{
    int count = 0, at = 0;
    const pl_log_field *fields = pl_run_log_fields(&count);
    while (at < count && strcmp(fields[at].kind, kind) != 0) ++at;
    for (void *i = json_object_iter(object); i; i = json_object_iter_next(object, i)) {
        if (strcmp(json_object_iter_key(i), "kind") == 0) continue;
        assert_true(at < count);
        assert_string_equal(fields[at].kind, kind);
        assert_string_equal(json_object_iter_key(i), fields[at++].name);
    }
    assert_true(at == count || strcmp(fields[at].kind, kind) != 0);
}

/* The one line of TEXT as an object of KIND with FIELDS fields; the caller frees. */
static json_t *read_line(const pl_text *text, const char *kind, size_t fields)
{
    json_t *object = NULL;
    assert_true(text->length > 1);
    assert_ptr_equal(strchr(text->bytes, '\n'), text->bytes + text->length - 1);
    assert_ok(pl_json_parse(&object, text->bytes, text->length, "the line"));
    assert_string_equal(json_string_value(json_object_get(object, "kind")), kind);
    assert_int_equal(json_object_size(object), fields);
    has_listed_fields(object, kind);
    return object;
}

static double number(const json_t *object, const char *key)
{
    assert_true(json_is_number(json_object_get(object, key)));
    return json_number_value(json_object_get(object, key));
}

static const pl_step_record step = {.step = 7,
                                    .tokens = 8192,
                                    .loss = 3.25,
                                    .balance_loss = 1.5,
                                    .norm = 0.1,
                                    .clip = 1,
                                    .lr = 3e-4,
                                    .seconds = 0.5,
                                    .tokens_per_second = 16384,
                                    .updated = true};

static void a_step_has_its_numbers(void **state)
{
    (void)state;
    pl_text text = {0};
    assert_ok(pl_run_log_step(&text, &step));
    json_t *object = read_line(&text, "step", 11);
    assert_int_equal(number(object, "step"), 7);
    assert_int_equal(number(object, "tokens"), 8192);
    assert_true(number(object, "loss") == 3.25);
    assert_true(number(object, "balance_loss") == 1.5);
    assert_true(number(object, "norm") == 0.1);
    assert_true(number(object, "clip") == 1);
    assert_true(number(object, "lr") == 3e-4);
    assert_true(number(object, "seconds") == 0.5);
    assert_true(number(object, "tokens_per_second") == 16384);
    assert_true(json_is_true(json_object_get(object, "updated")));
    pl_json_free(object);
    pl_text_free(&text);
}

static void what_is_not_finite_is_null(void **state)
{
    (void)state;
    pl_text text = {0};
    pl_step_record bad = step;
    bad.loss = NAN;
    bad.norm = INFINITY;
    bad.updated = false;
    assert_ok(pl_run_log_step(&text, &bad));
    json_t *object = read_line(&text, "step", 11);
    assert_true(json_is_null(json_object_get(object, "loss")));
    assert_true(json_is_null(json_object_get(object, "norm")));
    assert_true(json_is_false(json_object_get(object, "updated")));
    pl_json_free(object);
    pl_text_free(&text);
}

static void the_other_kinds_have_theirs(void **state)
{
    (void)state;
    const pl_evaluation_record evaluation = {
        .step = 3, .tokens = 100, .windows = 4, .loss = 2.5, .seconds = 0.25};
    const pl_end_record end = {.reason = "complete",
                               .step = 9,
                               .updates = 8,
                               .loss = 2,
                               .validation_loss = NAN,
                               .seconds = 1,
                               .tokens_per_second = 5,
                               .weights = "a/weights"};
    pl_text text = {0};
    assert_ok(pl_run_log_evaluation(&text, &evaluation));
    json_t *object = read_line(&text, "evaluation", 6);
    assert_true(number(object, "loss") == 2.5);
    assert_int_equal(number(object, "windows"), 4);
    pl_json_free(object);
    pl_text_clear(&text);
    assert_ok(pl_run_log_end(&text, &end));
    object = read_line(&text, "end", 9);
    assert_int_equal(number(object, "updates"), 8);
    assert_true(json_is_null(json_object_get(object, "validation_loss")));
    assert_string_equal(json_string_value(json_object_get(object, "weights")), "a/weights");
    pl_json_free(object);
    pl_text_clear(&text);
    assert_ok(pl_run_log_note(&text, 4, "a \"remark\"\nof two lines \xff"));
    object = read_line(&text, "note", 3);
    assert_string_equal(json_string_value(json_object_get(object, "words")),
                        "a \"remark\"\nof two lines \\xff");
    pl_json_free(object);
    pl_text_clear(&text);
    assert_ok(pl_run_log_sample(&text, "to be"));
    object = read_line(&text, "sample", 2);
    assert_string_equal(json_string_value(json_object_get(object, "text")), "to be");
    pl_json_free(object);
    pl_text_free(&text);
}

/* --- the first line --- */

typedef struct facts {
    pl_run run;
    pl_model model;
    pl_layout layout;
    pl_shape shape;
    pl_program_facts program;
    pl_run_facts all;
} facts;

static void open_facts(facts *f)
{
    static char words[][16] = {"pleat-train", "run", "odd\xff.yaml"};
    static char *arguments[] = {words[0], words[1], words[2], NULL};
    memset(f, 0, sizeof *f);
    assert_ok(pl_run_parse(&f->run,
                           "model: tiny-moe\nlayout: legacy:world=8,ep=4\n"
                           "data: {train: [a, 'b c']}\nbatch: {global: 64}\nsteps: 5\n"
                           "optimizer: {lr: 1e-3}\n",
                           "x.yaml"));
    assert_ok(pl_run_open(&f->run, &f->model, &f->layout));
    f->shape = (pl_shape){128, 1, 2, 4};
    f->program = (pl_program_facts){.name = "pleat-train",
                                    .version = "1.2.3",
                                    .commit = "abc",
                                    .argument_count = 3,
                                    .arguments = arguments};
    f->all = (pl_run_facts){.program = &f->program,
                            .run = &f->run,
                            .model = &f->model,
                            .layout = &f->layout,
                            .shape = &f->shape,
                            .backend = "a processor",
                            .ranks = "threads",
                            .order = "plan",
                            .entropy = 3.5,
                            .started = 1700000000};
}

static void close_facts(facts *f)
{
    pl_model_free(&f->model);
    pl_run_free(&f->run);
}

static void the_first_line_says_where_a_run_comes_from(void **state)
{
    (void)state;
    facts f;
    pl_text text = {0};
    open_facts(&f);
    assert_ok(pl_run_log_begin(&text, &f.all));
    json_t *object = read_line(&text, "run", 18);
    assert_string_equal(json_string_value(json_object_get(object, "started")),
                        "2023-11-14T22:13:20Z");
    assert_string_equal(json_string_value(json_object_get(object, "layout")),
                        "legacy:world=8,ep=4");
    assert_string_equal(json_string_value(json_object_get(object, "commit")), "abc");
    assert_true(number(object, "entropy") == 3.5);
    const json_t *command = json_object_get(object, "command");
    assert_int_equal(json_array_size(command), 3);
    assert_string_equal(json_string_value(json_array_get(command, 2)), "odd\\xff.yaml");
    const json_t *settings = json_object_get(object, "settings");
    assert_true(number(settings, "optimizer.lr") == 1e-3);
    assert_int_equal(number(settings, "batch.global"), 64);
    assert_string_equal(json_string_value(json_object_get(settings, "policy.reshard")),
                        "after-forward"); /* a default */
    const json_t *train = json_object_get(settings, "data.train");
    assert_string_equal(json_string_value(json_array_get(train, 1)), "b c");
    assert_int_equal(number(json_object_get(object, "model"), "vocab_size"), 260);
    assert_int_equal(number(json_object_get(object, "shape"), "rounds"), 4);
    pl_json_free(object);
    pl_text_free(&text);
    close_facts(&f);
}

static void failing_allocations_are_told(void **state)
{
    (void)state;
    facts f;
    pl_json_check_memory();
    open_facts(&f);
    for (int64_t n = 0;; ++n) {
        pl_text text = {0};
        pl_allocation_fail_after(n);
        pl_status status = pl_run_log_begin(&text, &f.all);
        if (status == PL_OK) status = pl_run_log_step(&text, &step);
        bool failed = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        pl_text_free(&text);
        assert_int_equal(status, failed ? PL_NO_MEMORY : PL_OK);
        if (failed) continue;
        assert_true(n > 100);
        break;
    }
    close_facts(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_has_its_numbers),
        cmocka_unit_test(what_is_not_finite_is_null),
        cmocka_unit_test(the_other_kinds_have_theirs),
        cmocka_unit_test(the_first_line_says_where_a_run_comes_from),
        cmocka_unit_test(failing_allocations_are_told),
    };
    return cmocka_run_group_tests_name("run_log", tests, NULL, NULL);
}
