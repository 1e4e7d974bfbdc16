/* Jobs of backend mpi as mpirun sees them: how they end, and what each rank says before. */
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

enum { OUTPUT = 65536, COMMAND = 4096 };

/* Jobs start together, since most of what they do is to wait; tests look at them one by one. */
typedef enum job_name {
    WELL,
    ALONE,
    BARE,
    FAILS,
    FAILS_IN_TRANSFER,
    ABSENT,
    OPEN_ABSENT,
    FINISH_ABSENT,
    KILLED,
    KILLED_ELSEWHERE,
    KILLED_IN_TRANSFER,
    JOBS
} job_name;

typedef struct job {
    FILE *pipe;
    int status; /* of exiting; -1: by a signal */
    char output[OUTPUT];
} job;

static job jobs[JOBS];

/* All that a job needs of the environment. */
#define BARE_ENVIRONMENT                                                                           \
    "env -i PATH=\"$PATH\" HOME=\"$HOME\" OMPI_ALLOW_RUN_AS_ROOT=1 "                               \
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "                        \
    "LSAN_OPTIONS=\"$LSAN_OPTIONS\" "

static int start_jobs(void **state)
{
    (void)state;
    static const struct {
        const char *before;
        int processes; /* 0: not launched */
        const char *mode;
    } all[JOBS] = {[WELL] = {"", 4, "well"},
                   [ALONE] = {"", 0, "well"},
                   [BARE] = {BARE_ENVIRONMENT, 8, "well"},
                   [FAILS] = {"", 3, "fails"},
                   [FAILS_IN_TRANSFER] = {"", 3, "fails-in-transfer"},
                   [ABSENT] = {"", 3, "absent"},
                   [OPEN_ABSENT] = {"", 3, "open-absent"},
                   [FINISH_ABSENT] = {"", 3, "finish-absent"},
                   [KILLED] = {"", 4, "killed"},
                   [KILLED_ELSEWHERE] = {"", 3, "killed-elsewhere"},
                   [KILLED_IN_TRANSFER] = {"", 3, "killed-in-transfer"}};
    for (int i = 0; i < JOBS; ++i) {
        char command[COMMAND], launcher[COMMAND / 2] = "";
        if (all[i].processes > 0)
            snprintf(launcher, sizeof launcher, "'" MPI_LAUNCHER "' -n %d", all[i].processes);
        snprintf(command, sizeof command, "exec %s %s '" MPI_RANK "' %s 2>&1 </dev/null",
                 all[i].before, launcher, all[i].mode);
        jobs[i].pipe = popen(command, "r");
        if (!jobs[i].pipe) return 1;
    }
    return 0;
}

/* What job NAME said, after its end. */
static const job *end_of(job_name name)
{
    job *of = &jobs[name];
    size_t used = fread(of->output, 1, OUTPUT - 1, of->pipe);
    of->output[used] = '\0';
    const int status = pclose(of->pipe);
    of->status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return of;
}

/* How often PART is in the output. */
static int count_of(const job *of, const char *part)
{
    int count = 0;
    for (const char *at = strstr(of->output, part); at; at = strstr(at + 1, part)) ++count;
    return count;
}

static void assert_says(const job *of, int times, const char *words)
{
    if (count_of(of, words) != times)
        fail_msg("'%s' %d times, expected %d:\n%s", words, count_of(of, words), times, of->output);
}

static void assert_status(const job *of, int status)
{
    if (of->status != status)
        fail_msg("exit status %d, expected %d:\n%s", of->status, status, of->output);
}

#define MANY_SUM "all-reduce sum (all-reduce gradients, 1048576 x i32) in world "

static void test_ends_well(void **state)
{
    (void)state;
    const job *own = end_of(WELL);
    assert_status(own, 0);
    assert_says(own, 4, "of 4 ended well\n");
}

/* A process that nobody launched is a world of its own. */
static void test_without_a_launcher(void **state)
{
    (void)state;
    const job *own = end_of(ALONE);
    assert_status(own, 0);
    assert_says(own, 1, "rank 0 of 1 ended well, alone\n");
}

/* What the suites set for Open MPI is all that it needs of the environment. */
static void test_in_a_bare_environment(void **state)
{
    (void)state;
    const job *own = end_of(BARE);
    assert_status(own, 0);
    assert_says(own, 8, "of 8 ended well\n");
}

static void test_a_rank_fails(void **state)
{
    (void)state;
    const job *own = end_of(FAILS);
    assert_status(own, 3);
    assert_says(own, 1, "IO_FAILED: no space left for step-5");
    assert_says(own, 2, "PEER_FAILED: rank 1 failed (IO_FAILED): no space left for step-5");
    assert_says(own, 2, MANY_SUM "{0,1,2}");
}

/* Buffers are free when waits have failed: nothing is received into them any more. */
static void test_a_rank_fails_in_a_transfer(void **state)
{
    (void)state;
    const job *own = end_of(FAILS_IN_TRANSFER);
    assert_status(own, 3);
    assert_says(own, 3, "PEER_FAILED: rank 1 failed (IO_FAILED): planted");
}

static void test_a_rank_never_comes(void **state)
{
    (void)state;
    const job *own = end_of(ABSENT);
    assert_status(own, 3);
    assert_says(own, 2, "TIMED_OUT: rank ");
    assert_says(own, 2, " waited 2.0 s for " MANY_SUM "{0,1,2}; not arrived: 1");
}

static void test_a_rank_never_opens(void **state)
{
    (void)state;
    const job *own = end_of(OPEN_ABSENT);
    assert_status(own, 3);
    assert_says(own, 2, " of 3 waited 2.0 s for all ranks to open the world's group");
}

static void test_a_rank_never_finishes(void **state)
{
    (void)state;
    const job *own = end_of(FINISH_ABSENT);
    assert_status(own, 3);
    assert_says(own, 2,
                " waited 2.0 s for barrier (control flags) in world {0,1,2}; not arrived: 1");
}

/* mpirun ends with 128 + SIGKILL whatever the others do. */
static void test_a_rank_is_killed(void **state)
{
    (void)state;
    const job *own = end_of(KILLED);
    assert_status(own, 137);
    assert_says(own, 3, "PEER_FAILED: rank ");
    assert_says(own, 3,
                " waited for " MANY_SUM "{0..3}; not arrived: 1; the process of rank 1 is gone");
}

/* Where nobody can see that a process is gone, the SIGTERM of mpirun says so. */
static void test_a_rank_is_killed_elsewhere(void **state)
{
    (void)state;
    const job *own = end_of(KILLED_ELSEWHERE);
    assert_status(own, 137);
    assert_says(own, 2, "TIMED_OUT: rank ");
    assert_says(own, 2, " was interrupted while waiting for " MANY_SUM "{0,1,2}; not arrived: 1");
}

static void test_a_rank_is_killed_in_a_transfer(void **state)
{
    (void)state;
    const job *own = end_of(KILLED_IN_TRANSFER);
    assert_status(own, 137);
    assert_says(own, 2, "PEER_FAILED: rank ");
    assert_says(own, 2, MANY_SUM "{0,1,2}; all have started it, but the data of ");
    assert_says(own, 2, " is still on its way; the process of rank 1 is gone");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ends_well),
                                       cmocka_unit_test(test_without_a_launcher),
                                       cmocka_unit_test(test_in_a_bare_environment),
                                       cmocka_unit_test(test_a_rank_fails),
                                       cmocka_unit_test(test_a_rank_fails_in_a_transfer),
                                       cmocka_unit_test(test_a_rank_never_comes),
                                       cmocka_unit_test(test_a_rank_never_opens),
                                       cmocka_unit_test(test_a_rank_never_finishes),
                                       cmocka_unit_test(test_a_rank_is_killed),
                                       cmocka_unit_test(test_a_rank_is_killed_elsewhere),
                                       cmocka_unit_test(test_a_rank_is_killed_in_a_transfer)};
    return cmocka_run_group_tests(tests, start_jobs, NULL);
}
