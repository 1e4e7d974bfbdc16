/* Event files: the CRC against published vectors, records against TensorBoard's own bytes, and
 * files that stay whole. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/memory.h"
#include "tests/test.h"
#include "train/event_file.h"

/* RFC 3720, appendix B.4, and the check value of catalogues of CRCs. */
static void crc_gives_the_published_values(void **state)
{
    (void)state;
    unsigned char zeroes[32] = {0}, ones[32], rising[32], falling[32];
    for (int i = 0; i < 32; ++i) {
        ones[i] = 0xff;
        rising[i] = (unsigned char)i;
        falling[i] = (unsigned char)(31 - i);
    }
    assert_int_equal(pl_crc32c(zeroes, 32), 0x8a9136aa);
    assert_int_equal(pl_crc32c(ones, 32), 0x62a8ab43);
    assert_int_equal(pl_crc32c(rising, 32), 0x46dd794e);
    assert_int_equal(pl_crc32c(falling, 32), 0x113fdb5c);
    assert_int_equal(pl_crc32c("123456789", 9), 0xe3069283);
    assert_int_equal(pl_crc32c("", 0), 0);
}

static const pl_scalar first[] = {{"loss/train", 5.545177444479562},
                                  {"loss/balance", 0.001},
                                  {"norm", 1.25},
                                  {"lr", 3e-4},
                                  {"tokens_per_second", 123456.75}};
static const pl_scalar second[] = {{"loss/validation", NAN}};
static const pl_scalar third[] = {{"norm", INFINITY}, {"lr", 0}};

static void add_golden(pl_text *text)
{
    pl_event_add_version(text, 1700000000.25);
    pl_event_add_scalars(text, 1700000001.5, 1, first, 5);
    pl_event_add_scalars(text, 1700000002.5, 300, second, 1);
    pl_event_add_scalars(text, 1700000003.5, 5000000000, third, 2);
}

static void records_are_what_tensorboard_writes(void **state)
{
    (void)state;
    char *golden = NULL;
    size_t length = 0;
    pl_text text = {0};
    assert_ok(pl_read_file(&golden, &length, "testdata/tensorboard/golden.tfevents", 1 << 16));
    add_golden(&text);
    assert_ok(pl_text_status(&text));
    assert_int_equal(text.length, length);
    assert_memory_equal(pl_text_string(&text), golden, length);
    pl_text_free(&text);
    pl_free(golden);
}

/* A folder of its own, and a name in it. */
static char folder[] = "/tmp/pleat-events-XXXXXX";
static char name[64];

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(name, sizeof name, "%s/file", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(name);
    return rmdir(folder);
}

static void assert_file(const char *bytes, size_t length)
{
    char *found = NULL;
    size_t found_length = 0;
    assert_ok(pl_read_file(&found, &found_length, name, 1 << 20));
    assert_int_equal(found_length, length);
    assert_memory_equal(found, bytes, length);
    pl_free(found);
}

static void a_file_holds_its_records(void **state)
{
    (void)state;
    pl_event_file file;
    pl_text text = {0};
    add_golden(&text);
    assert_ok(pl_event_file_open(&file, name, 1700000000.25));
    assert_ok(pl_event_file_scalars(&file, 1700000001.5, 1, first, 5));
    assert_ok(pl_event_file_scalars(&file, 1700000002.5, 300, second, 1));
    assert_ok(pl_event_file_scalars(&file, 1700000003.5, 5000000000, third, 2));
    assert_file(pl_text_string(&text), text.length); /* before closing: nothing waits in memory */
    assert_ok(pl_event_file_close(&file));
    assert_file(pl_text_string(&text), text.length);
    pl_text_free(&text);
}

static void a_file_that_cannot_be_made_is_named(void **state)
{
    (void)state;
    pl_event_file file = {0};
    assert_fails(PL_IO_FAILED, pl_event_file_open(&file, "/nowhere/at/all", 0), "/nowhere/at/all",
                 "No such file");
    assert_ok(pl_event_file_close(&file));
}

/* The limit stands for a disk that is full in the middle of a record. */
static void what_the_disk_does_not_take_whole_is_cut_off(void **state)
{
    (void)state;
    pl_append_file file;
    struct rlimit before, small;
    assert_ok(pl_append_file_open(&file, name));
    assert_ok(pl_append_file_add(&file, "first\n", 6));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 8;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    pl_error_clear();
    pl_status status = pl_append_file_add(&file, "second\n", 7);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, PL_IO_FAILED);
    assert_non_null(strstr(pl_error_text(), name));
    assert_non_null(strstr(pl_error_text(), "too large"));
    assert_file("first\n", 6);
    assert_ok(pl_append_file_add(&file, "third\n", 6));
    assert_file("first\nthird\n", 12);
    assert_ok(pl_append_file_close(&file));
    assert_ok(pl_append_file_close(&file));
}

static void a_whole_file_replaces_another_or_leaves_it(void **state)
{
    (void)state;
    struct rlimit before, small;
    char temporary[80];
    struct stat facts;
    snprintf(temporary, sizeof temporary, "%s.tmp", name);
    assert_ok(pl_write_whole_file(name, "old", 3));
    assert_file("old", 3);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 2;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    pl_status status = pl_write_whole_file(name, "newer", 5);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, PL_IO_FAILED);
    assert_file("old", 3);
    assert_int_equal(stat(temporary, &facts), -1);
    assert_ok(pl_write_whole_file(name, "newer", 5));
    assert_file("newer", 5);
    assert_int_equal(stat(temporary, &facts), -1);
    assert_fails(PL_IO_FAILED, pl_write_whole_file("/nowhere/at/all", "", 0), "/nowhere/at/all");
}

static void failing_allocations_are_told(void **state)
{
    (void)state;
    for (int64_t n = 0;; ++n) {
        pl_event_file file = {0};
        pl_allocation_fail_after(n);
        pl_status status = pl_event_file_open(&file, name, 1);
        if (status == PL_OK) status = pl_event_file_scalars(&file, 1, 2, first, 5);
        bool failed = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        assert_int_equal(status, failed ? PL_NO_MEMORY : PL_OK);
        assert_ok(pl_event_file_close(&file));
        if (!failed) {
            assert_true(n > 5);
            return;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc_gives_the_published_values),
        cmocka_unit_test(records_are_what_tensorboard_writes),
        cmocka_unit_test(a_file_holds_its_records),
        cmocka_unit_test(a_file_that_cannot_be_made_is_named),
        cmocka_unit_test(what_the_disk_does_not_take_whole_is_cut_off),
        cmocka_unit_test(a_whole_file_replaces_another_or_leaves_it),
        cmocka_unit_test(failing_allocations_are_told),
    };
    return cmocka_run_group_tests_name("event_file", tests, make_folder, remove_folder);
}
