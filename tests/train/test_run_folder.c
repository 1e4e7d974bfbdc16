/* Output folders: their names, when they can take a run, what is put into them. */
#include "common/memory.h"
#include "tests/scratch.h"
#include "train/run_folder.h"

static void assert_name(const char *source, const char *given, const char *wanted)
{
    pl_run run;
    pl_text name = {0};
    assert_ok(pl_run_parse(&run, "steps: 1\n", source));
    assert_ok(pl_run_folder_name(&name, &run, given));
    assert_string_equal(pl_text_string(&name), wanted);
    pl_text_free(&name);
    pl_run_free(&run);
}

static void the_name_is_given_or_that_of_the_run_file(void **state)
{
    (void)state;
    pl_run run;
    pl_text name = {0};
    assert_name("quick.yaml", NULL, "runs/quick");
    assert_name("/some/where/a.b.yaml", NULL, "runs/a.b");
    assert_name(".yaml", NULL, "runs/.yaml");
    assert_name("plain", NULL, "runs/plain");
    assert_name("odd/", NULL, "runs/run");
    assert_name("quick.yaml", "some/where", "some/where");
    assert_ok(pl_run_parse(&run, "output: there\n", "quick.yaml"));
    assert_ok(pl_run_folder_name(&name, &run, NULL));
    assert_string_equal(pl_text_string(&name), "there");
    pl_text_clear(&name);
    assert_fails(PL_BAD_INPUT, pl_run_folder_name(&name, &run, ""), "--output", "empty");
    char *lengthy = calloc(5000, 1);
    memset(lengthy, 'x', 4999);
    assert_fails(PL_BAD_INPUT, pl_run_folder_name(&name, &run, lengthy), "4999 bytes; at most");
    free(lengthy);
    pl_text_free(&name);
    pl_run_free(&run);
}

static void empty_and_missing_folders_can_take_a_run(void **state)
{
    (void)state;
    scratch s = make_scratch();
    make_folder(&s, "empty");
    assert_ok(pl_run_folder_check(in_scratch(&s, "empty"), PL_RUN_FOLDER_NEW));
    assert_ok(pl_run_folder_check(in_scratch(&s, "empty/deeper/still"), PL_RUN_FOLDER_NEW));
    assert_ok(pl_run_folder_check(in_scratch(&s, "missing/at/all/"), PL_RUN_FOLDER_NEW));
    assert_ok(pl_run_folder_check("relative-and-missing", PL_RUN_FOLDER_NEW));
    make_link(&s, "link", "empty");
    assert_ok(pl_run_folder_check(in_scratch(&s, "link"), PL_RUN_FOLDER_NEW));
    remove_scratch(&s);
}

static void what_is_in_the_way_is_named(void **state)
{
    (void)state;
    scratch s = make_scratch();
    make_folder(&s, "full");
    write_words(&s, "full/thing", "x");
    write_words(&s, "file", "x");
    make_link(&s, "nowhere", "missing");
    assert_fails(PL_BAD_INPUT, pl_run_folder_check(in_scratch(&s, "full"), PL_RUN_FOLDER_NEW),
                 "full: it is not empty", "'thing'", "--overwrite", "--output");
    assert_ok(pl_run_folder_check(in_scratch(&s, "full"), PL_RUN_FOLDER_REPLACE));
    assert_fails(PL_BAD_INPUT, pl_run_folder_check(in_scratch(&s, "file"), PL_RUN_FOLDER_REPLACE),
                 "file: it is", "no folder");
    assert_fails(PL_BAD_INPUT, pl_run_folder_check(in_scratch(&s, "file/below"), PL_RUN_FOLDER_NEW),
                 "file is no folder");
    assert_fails(PL_BAD_INPUT,
                 pl_run_folder_check(in_scratch(&s, "file/below/that"), PL_RUN_FOLDER_NEW),
                 "file is no folder");
    assert_fails(PL_BAD_INPUT, pl_run_folder_check(in_scratch(&s, "nowhere"), PL_RUN_FOLDER_NEW),
                 "nowhere", "No such file");
    remove_scratch(&s);
}

static void preparing_writes_the_run_and_leaves_what_is_not_of_a_run(void **state)
{
    (void)state;
    scratch s = make_scratch();
    pl_run run, again;
    size_t length = 0;
    make_folder(&s, "out");
    write_words(&s, "out/run.yaml", "old");
    write_words(&s, "out/mine.txt", "mine");
    write_words(&s, "out/events.out.tfevents.1.pleat", "old");
    write_words(&s, "out/events.out.tfevents.1.other", "other");
    assert_ok(pl_run_parse(&run, "model: tiny-moe\nsteps: 12\n", "x.yaml"));
    assert_ok(pl_run_folder_make(in_scratch(&s, "out")));
    assert_ok(pl_run_folder_prepare(in_scratch(&s, "out"), &run, PL_RUN_FOLDER_REPLACE));
    assert_int_equal(access(in_scratch(&s, "out/events.out.tfevents.1.pleat"), F_OK), -1);
    assert_int_equal(access(in_scratch(&s, "out/events.out.tfevents.1.other"), F_OK), 0);
    assert_int_equal(access(in_scratch(&s, "out/run.yaml.tmp"), F_OK), -1);
    char *bytes = read_bytes(in_scratch(&s, "out/mine.txt"), &length);
    assert_string_equal(bytes, "mine");
    free(bytes);
    assert_ok(pl_run_read(&again, in_scratch(&s, "out/run.yaml")));
    assert_true(pl_run_equal(&run, &again));
    pl_run_free(&again);
    assert_ok(pl_run_folder_make(in_scratch(&s, "new/and/deep")));
    assert_ok(pl_run_folder_prepare(in_scratch(&s, "new/and/deep"), &run, PL_RUN_FOLDER_REPLACE));
    assert_int_equal(access(in_scratch(&s, "new/and/deep/run.yaml"), F_OK), 0);
    write_words(&s, "file", "x");
    assert_fails(PL_IO_FAILED, pl_run_folder_make(in_scratch(&s, "file/x")), "file/x",
                 "Not a directory");
    pl_run_free(&run);
    remove_scratch(&s);
}

static void failing_allocations_are_told(void **state)
{
    (void)state;
    scratch s = make_scratch();
    pl_run run;
    assert_ok(pl_run_parse(&run, "model: tiny-moe\nsteps: 12\n", "x.yaml"));
    for (int64_t n = 0;; ++n) {
        pl_text name = {0};
        pl_allocation_fail_after(n);
        pl_status status = pl_run_folder_name(&name, &run, NULL);
        if (status == PL_OK) status = pl_run_folder_check(in_scratch(&s, "a/b"), PL_RUN_FOLDER_NEW);
        if (status == PL_OK) status = pl_run_folder_make(in_scratch(&s, "a/b"));
        if (status == PL_OK)
            status = pl_run_folder_prepare(in_scratch(&s, "a/b"), &run, PL_RUN_FOLDER_REPLACE);
        bool failed = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        pl_text_free(&name);
        assert_int_equal(status, failed ? PL_NO_MEMORY : PL_OK);
        if (!failed) break;
    }
    pl_run_free(&run);
    remove_scratch(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_name_is_given_or_that_of_the_run_file),
        cmocka_unit_test(empty_and_missing_folders_can_take_a_run),
        cmocka_unit_test(what_is_in_the_way_is_named),
        cmocka_unit_test(preparing_writes_the_run_and_leaves_what_is_not_of_a_run),
        cmocka_unit_test(failing_allocations_are_told),
    };
    return cmocka_run_group_tests_name("run_folder", tests, NULL, NULL);
}
