/* Files and folders that a person names: which files they stand for, and in which order. */
#include "common/memory.h"
#include "tests/scratch.h"
#include "train/folder_walk.h"

static pl_status walk(pl_walk *out, const char *path) { return pl_walk_paths(out, &path, 1); }

/* The files of WALK, without the folder in front, separated by blanks. */
static void expect_files(const scratch *s, const pl_walk *found, const char *expected)
{
    pl_text names = {0};
    for (size_t i = 0; i < found->count; ++i) {
        size_t skip = strlen(s->folder) + 1;
        assert_memory_equal(found->files[i].path, s->folder, skip - 1);
        pl_text_add(&names, "%s%s", i > 0 ? " " : "", found->files[i].path + skip);
    }
    assert_string_equal(pl_text_string(&names), expected);
    pl_text_free(&names);
}

static void folders_are_walked_in_the_order_of_names(void **state)
{
    (void)state;
    pl_walk found;
    scratch s = make_scratch();
    make_folder(&s, "data");
    make_folder(&s, "data/B");
    make_folder(&s, "data/a");
    make_folder(&s, "data/nothing in it");
    write_words(&s, "data/a/2", "22");
    write_words(&s, "data/a/10", "x");
    write_words(&s, "data/b.txt", "x");
    write_words(&s, "data/B/with blanks in it", "x");
    write_words(&s, "data/\xc3\xa4", "x");
    write_words(&s, "data/.hidden", "x");
    assert_ok(walk(&found, in_scratch(&s, "data")));
    expect_files(&s, &found,
                 "data/B/with blanks in it data/a/10 data/a/2 data/b.txt data/\xc3\xa4");
    assert_int_equal(found.files[2].bytes, 2);
    assert_false(found.files[2].named);
    assert_string_equal(pl_text_string(&found.notes), "");
    pl_walk_free(&found);
    assert_ok(walk(&found, in_scratch(&s, "data/a/"))); /* a slash more changes nothing */
    expect_files(&s, &found, "data/a/10 data/a/2");
    pl_walk_free(&found);
    remove_scratch(&s);
}

static void paths_keep_the_order_in_which_they_are_named(void **state)
{
    (void)state;
    pl_walk found;
    scratch s = make_scratch();
    make_folder(&s, "folder");
    write_words(&s, "folder/x", "x");
    write_words(&s, "b", "x");
    write_words(&s, ".a", "x");
    const char *paths[] = {in_scratch(&s, "folder"), in_scratch(&s, "b"), in_scratch(&s, ".a"),
                           in_scratch(&s, "b")};
    assert_ok(pl_walk_paths(&found, paths, 4));
    expect_files(&s, &found, "folder/x b .a b");
    assert_true(!found.files[0].named && found.files[1].named);
    pl_walk_free(&found);
    assert_ok(pl_walk_paths(&found, paths, 0));
    assert_int_equal(found.count, 0);
    remove_scratch(&s);
}

static void links_are_followed(void **state)
{
    (void)state;
    pl_walk found;
    scratch s = make_scratch();
    make_folder(&s, "data");
    make_folder(&s, "elsewhere");
    write_words(&s, "elsewhere/file", "x");
    make_link(&s, "data/to a file", "../elsewhere/file");
    make_link(&s, "data/to a folder", "../elsewhere");
    make_link(&s, "data/to a folder too", "../elsewhere");
    assert_ok(walk(&found, in_scratch(&s, "data")));
    expect_files(&s, &found, "data/to a file data/to a folder/file data/to a folder too/file");
    pl_walk_free(&found);
    remove_scratch(&s);
}

static void what_cannot_be_read_is_left_out_of_folders_in_words(void **state)
{
    (void)state;
    pl_walk found;
    scratch s = make_scratch();
    make_folder(&s, "data");
    write_words(&s, "data/a", "");
    assert_int_equal(mkfifo(in_scratch(&s, "data/b"), 0600), 0);
    make_link(&s, "data/c", "/dev/null");
    write_words(&s, "data/d", "");
    write_words(&s, "data/e", "x");
    assert_ok(walk(&found, in_scratch(&s, "data")));
    expect_files(&s, &found, "data/e");
    const char *notes = pl_text_string(&found.notes);
    assert_non_null(strstr(notes, "data/a: left out: the file is empty\n"));
    assert_non_null(strstr(notes, "data/b: left out: not a regular file\n"));
    assert_non_null(strstr(notes, "data/c: left out: not a regular file\n"));
    assert_non_null(strstr(notes, "and 1 more left out\n"));
    pl_walk_free(&found);
    remove_scratch(&s);
}

static void loops_and_dead_links_are_refused(void **state)
{
    (void)state;
    pl_walk found;
    scratch s = make_scratch();
    make_folder(&s, "a");
    make_folder(&s, "a/b");
    make_link(&s, "a/b/c", "..");
    assert_fails(PL_BAD_INPUT, walk(&found, in_scratch(&s, "a")),
                 "a/b/c: a link back to the folder", "a loop without end");
    make_folder(&s, "d");
    make_link(&s, "d/e", "e");
    assert_fails(PL_BAD_INPUT, walk(&found, in_scratch(&s, "d")), "d/e: ", "symbolic links");
    make_folder(&s, "f");
    make_link(&s, "f/g", "nowhere");
    assert_fails(PL_BAD_INPUT, walk(&found, in_scratch(&s, "f")), "f/g: No such file");
    remove_scratch(&s);
}

static void very_deep_folders_are_refused(void **state)
{
    (void)state;
    char path[SCRATCH_PATH] = "a";
    pl_walk found;
    scratch s = make_scratch();
    for (int depth = 1; depth <= PL_WALK_MOST_DEPTH; ++depth) {
        make_folder(&s, path);
        snprintf(path + strlen(path), 3, "/a");
    }
    write_words(&s, path, "x");
    assert_ok(walk(&found, in_scratch(&s, "a")));
    assert_int_equal(found.count, 1);
    pl_walk_free(&found);
    assert_fails(PL_BAD_INPUT, walk(&found, s.folder), "more than 64 folders in each other");
    remove_scratch(&s);
}

static void named_files_must_be_some(void **state)
{
    (void)state;
    pl_walk found;
    scratch s = make_scratch();
    write_words(&s, "empty", "");
    make_folder(&s, "folder");
    write_words(&s, "folder/.hidden", "x");
    assert_int_equal(mkfifo(in_scratch(&s, "pipe"), 0600), 0);
    assert_fails(PL_BAD_INPUT, walk(&found, in_scratch(&s, "empty")), "empty: the file is empty");
    assert_fails(PL_BAD_INPUT, walk(&found, in_scratch(&s, "gone")), "gone: No such file");
    assert_fails(PL_BAD_INPUT, walk(&found, in_scratch(&s, "empty/x")), "empty/x: Not a directory");
    assert_fails(PL_BAD_INPUT, walk(&found, in_scratch(&s, "folder")),
                 "folder: the folder holds no file to read");
    assert_fails(PL_BAD_INPUT, walk(&found, in_scratch(&s, "pipe")),
                 "pipe: neither a regular file nor a folder");
    assert_fails(PL_BAD_INPUT, walk(&found, "/dev/zero"), "/dev/zero: neither a regular file");
    assert_fails(PL_BAD_INPUT, walk(&found, ""), "is empty");
    remove_scratch(&s);
}

static void folders_that_may_not_be_read_are_named(void **state)
{
    (void)state;
    pl_walk found;
    scratch s = make_scratch();
    bool is_root = geteuid() == 0;
    assert_int_equal(chmod(s.folder, 0755), 0);
    make_folder(&s, "closed");
    assert_int_equal(chmod(in_scratch(&s, "closed"), 0), 0);
    if (is_root) assert_int_equal(seteuid(65534), 0); /* whom it is closed to */
    assert_fails(PL_BAD_INPUT, walk(&found, s.folder), "closed: Permission denied");
    if (is_root) assert_int_equal(seteuid(0), 0);
    assert_int_equal(chmod(in_scratch(&s, "closed"), 0755), 0);
    remove_scratch(&s);
}

static void failing_allocations_are_survived(void **state)
{
    (void)state;
    pl_walk found;
    pl_status status = PL_NO_MEMORY;
    scratch s = make_scratch();
    make_folder(&s, "a");
    write_words(&s, "a/empty", "");
    for (char name[] = "a/a"; name[2] <= 'z'; ++name[2]) write_words(&s, name, "x");
    for (int64_t after = 0; status != PL_OK; ++after) {
        pl_allocation_fail_after(after);
        status = walk(&found, s.folder);
        if (status != PL_OK) assert_int_equal(status, PL_NO_MEMORY);
        if (status == PL_OK) assert_false(pl_allocation_failed());
        assert_in_range(after, 0, 1000);
    }
    pl_allocation_fail_after(-1);
    assert_int_equal(found.count, 26);
    pl_walk_free(&found);
    remove_scratch(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_are_walked_in_the_order_of_names),
        cmocka_unit_test(paths_keep_the_order_in_which_they_are_named),
        cmocka_unit_test(links_are_followed),
        cmocka_unit_test(what_cannot_be_read_is_left_out_of_folders_in_words),
        cmocka_unit_test(loops_and_dead_links_are_refused),
        cmocka_unit_test(very_deep_folders_are_refused),
        cmocka_unit_test(named_files_must_be_some),
        cmocka_unit_test(folders_that_may_not_be_read_are_named),
        cmocka_unit_test(failing_allocations_are_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
