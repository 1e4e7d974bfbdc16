/* Bytes at places of files: all of them, or words. */
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>

#include "common/file_bytes.h"
#include "tests/scratch.h"

static void what_is_written_is_read(void **state)
{
    (void)state;
    char out[4] = {0};
    int64_t bytes = 0;
    int descriptor = -1;
    scratch s = make_scratch();
    write_words(&s, "a", "0123456789");
    int writer = open(in_scratch(&s, "a"), O_WRONLY);
    assert_true(writer >= 0);
    assert_ok(pl_file_write(writer, "a", 8, 4, "WXYZ"));
    assert_ok(pl_file_write(writer, "a", 0, 0, NULL));
    close(writer);
    assert_ok(pl_file_open(&descriptor, &bytes, in_scratch(&s, "a")));
    assert_int_equal(bytes, 12);
    assert_ok(pl_file_read(descriptor, "a", 6, 4, out));
    assert_memory_equal(out, "67WX", 4);
    assert_ok(pl_file_read(descriptor, "a", 12, 0, NULL));
    assert_fails(PL_IO_FAILED, pl_file_read(descriptor, "a", 9, 4, out), "a: it ends at byte 12",
                 "4 bytes at 9", "cut short");
    close(descriptor);
    assert_fails(PL_IO_FAILED, pl_file_read(descriptor, "a", 0, 4, out), "a: reading 4 bytes at 0");
    remove_scratch(&s);
}

static void only_regular_files_are_opened(void **state)
{
    (void)state;
    int64_t bytes = 17;
    int descriptor = 17;
    scratch s = make_scratch();
    assert_int_equal(mkfifo(in_scratch(&s, "pipe"), 0600), 0);
    make_link(&s, "loop", "loop");
    assert_fails(PL_BAD_INPUT, pl_file_open(&descriptor, &bytes, in_scratch(&s, "gone")),
                 "gone: ", "No such file");
    assert_fails(PL_BAD_INPUT, pl_file_open(&descriptor, &bytes, in_scratch(&s, "loop")),
                 "loop: ", "symbolic links");
    assert_fails(PL_BAD_INPUT, pl_file_open(&descriptor, &bytes, s.folder), s.folder,
                 "not a regular file");
    /* and does not wait for somebody to write into it */
    assert_fails(PL_BAD_INPUT, pl_file_open(&descriptor, &bytes, in_scratch(&s, "pipe")),
                 "not a regular file");
    assert_true(bytes == 17 && descriptor == 17);
    remove_scratch(&s);
}

static void a_full_disk_has_words(void **state)
{
    (void)state;
    int full = open("/dev/full", O_WRONLY);
    assert_true(full >= 0);
    assert_fails(PL_IO_FAILED, pl_file_write(full, "weights", 4096, 5, "12345"),
                 "weights: 0 of 5 bytes written at 4096", "No space left on device");
    close(full);
}

static void a_write_that_stops_halfway_has_words(void **state)
{
    (void)state;
    struct rlimit before, small;
    char bytes[100] = {0};
    scratch s = make_scratch();
    write_words(&s, "a", "");
    int writer = open(in_scratch(&s, "a"), O_WRONLY);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 60;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    pl_status status = pl_file_write(writer, "a", 20, 100, bytes);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(status, PL_IO_FAILED);
    assert_non_null(strstr(pl_error_text(), "a: 40 of 100 bytes written at 20: "));
    close(writer);
    remove_scratch(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(only_regular_files_are_opened),
        cmocka_unit_test(a_full_disk_has_words),
        cmocka_unit_test(a_write_that_stops_halfway_has_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
