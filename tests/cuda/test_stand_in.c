/* The stand-in for the CUDA runtime reports what is planted, and lets pass what is right. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cuda/planted.h"
#include "tests/cuda/stand_in/control.h"
#include "tests/test.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define WITH_TSAN 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define WITH_ASAN 1
#endif
#ifdef __SANITIZE_THREAD__
#define WITH_TSAN 1
#endif

enum { ILLEGAL_ADDRESS = 700, LAUNCH_FAILURE = 719 };

static int fresh(void **state)
{
    (void)state;
    (void)cuda_on_cpu_reset();
    return 0;
}

/* Run BODY in a process of its own, since sanitizers end the one in which they find something.
 * Returns its standard error, with the stand-in's report, and whether it failed: an error of CUDA
 * is a failure. */
static bool fails_alone(int (*body)(void), char *words, size_t bytes)
{
    int ends[2], status = 0;
    size_t length = 0;
    assert_int_equal(pipe(ends), 0);
    (void)fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)dup2(ends[1], STDERR_FILENO);
        (void)close(ends[0]);
        int error = body();
        (void)fprintf(stderr, "CUDA error %d: %s\n", error, cuda_on_cpu_report());
        exit(error ? 3 : 0);
    }
    (void)close(ends[1]);
    for (ssize_t got = 1; got > 0;) {
        char rest[256];
        bool room = length + 1 < bytes;
        got = read(ends[0], room ? words + length : rest, room ? bytes - 1 - length : sizeof rest);
        if (got > 0 && room) length += (size_t)got;
    }
    words[length] = '\0';
    (void)close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void expect(int (*body)(void), const char *plain, const char *asan)
{
    char words[4096];
    bool failed = fails_alone(body, words, sizeof words);
#ifdef WITH_ASAN
    const char *expected = asan;
    (void)plain;
#else
    const char *expected = plain;
    (void)asan;
#endif
    if (!expected) return; /* this build cannot see it */
    if (!failed || !strstr(words, expected)) fail_msg("no '%s' in: %s", expected, words);
}

static const uint64_t seeds[] = {0, 1, 2, 3, 4};

enum { SEEDS = sizeof seeds / sizeof *seeds };

static void a_missing_barrier_gives_wrong_results_under_each_schedule(void **state)
{
    (void)state;
#ifdef WITH_TSAN
    char words[4096];
    assert_true(fails_alone(planted_missing_barrier, words, sizeof words));
    assert_non_null(strstr(words, "ThreadSanitizer: data race"));
    assert_non_null(strstr(words, "turn_round"));
#else
    for (int i = 0; i < SEEDS; ++i) {
        cuda_on_cpu_schedule(seeds[i]);
        assert_true(planted_missing_barrier() > 0);
    }
#endif
}

static void barriers_order_shared_memory_under_each_schedule(void **state)
{
    (void)state;
    for (int i = 0; i < SEEDS; ++i) {
        cuda_on_cpu_schedule(seeds[i]);
        assert_int_equal(planted_with_barrier(), 0);
        assert_int_equal(planted_ended_threads(), 0);
    }
    assert_string_equal(cuda_on_cpu_report(), "");
    assert_int_equal(cuda_on_cpu_live(), 0);
}

static void shared_memory_begins_as_nan(void **state)
{
    (void)state;
#ifndef WITH_TSAN /* filling it would be an access of its own */
    (void)planted_with_barrier();
    assert_int_equal(planted_unwritten_shared(), 64);
#endif
}

static void barriers_that_not_all_threads_reach_are_reported(void **state)
{
    (void)state;
    assert_int_equal(planted_divergent_barrier(), LAUNCH_FAILURE);
    assert_non_null(strstr(cuda_on_cpu_report(), "block (0, 0, 0) is stuck"));
    assert_non_null(strstr(cuda_on_cpu_report(), "(4, 0, 0) in __syncthreads"));
    assert_non_null(strstr(cuda_on_cpu_report(), "(5, 0, 0) in __shfl_xor_sync mask ffffffff"));
    (void)cuda_on_cpu_reset();
    assert_int_equal(planted_with_barrier(), 0); /* the stacks left behind do no harm */
}

static void masks_that_do_not_agree_are_reported(void **state)
{
    (void)state;
    assert_int_equal(planted_divergent_mask(), LAUNCH_FAILURE);
    assert_non_null(strstr(cuda_on_cpu_report(), "mask 0000ffff"));
    (void)cuda_on_cpu_reset();
    assert_int_equal(planted_foreign_mask(), LAUNCH_FAILURE);
    assert_non_null(strstr(cuda_on_cpu_report(), "lane 16 is not in its own mask"));
}

static void accesses_outside_memory_are_reported(void **state)
{
    (void)state;
    expect(planted_write_behind, "CUDA error 700: memory was written behind a block of 256 bytes",
           "AddressSanitizer: use-after-poison");
    expect(planted_write_before, "CUDA error 700: memory was written before a block of 256 bytes",
           "AddressSanitizer: use-after-poison");
    expect(planted_write_freed, "CUDA error 700: memory was written after it was freed",
           "AddressSanitizer: use-after-poison");
    expect(planted_read_behind, NULL, "AddressSanitizer: use-after-poison");
    expect(planted_host_read, NULL, "AddressSanitizer: use-after-poison");
}

static void wrong_calls_get_the_errors_of_the_runtime(void **state)
{
    (void)state;
    int number = 0, given = 0, right = 0;
    for (; planted_call(number, &given, &right); ++number)
        if (given != right) fail_msg("call %d: error %d, should be %d", number, given, right);
    assert_true(number > 20);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fresh, fresh)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_missing_barrier_gives_wrong_results_under_each_schedule),
        TEST(barriers_order_shared_memory_under_each_schedule),
        TEST(shared_memory_begins_as_nan),
        TEST(barriers_that_not_all_threads_reach_are_reported),
        TEST(masks_that_do_not_agree_are_reported),
        TEST(accesses_outside_memory_are_reported),
        TEST(wrong_calls_get_the_errors_of_the_runtime),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
