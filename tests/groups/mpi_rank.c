/* A rank of an MPI job for groups/mpi_job: mpi_rank MODE. It prints the words of its failure, as a
 * program should, and ends with what a program should end with. */
#include <inttypes.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/groups/mpi_domain.h"
#include "common/groups_mpi.h"

enum { SOME = 8, MANY = 1 << 20 };

static volatile sig_atomic_t asked_to_stop;

static void handle(int signal) { asked_to_stop = signal; }

/* Longer than the job lasts. */
static void sleep_on(void)
{
    for (;;) nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
}

static pl_status sum(pl_process_group *world, int64_t count)
{
    static int32_t sent[MANY], received[MANY];
    pl_entry_name name = pl_entry_name_make(PL_OP_ALL_REDUCE, PL_SUBJECT_GRADIENTS);
    const pl_call call = {.collective = PL_ALL_REDUCE,
                          .reduction = PL_REDUCTION_SUM,
                          .dtype = PL_I32,
                          .name = &name,
                          .send = sent,
                          .recv = received,
                          .count = count};
    for (int64_t i = 0; i < count; ++i) sent[i] = (int32_t)(world->rank + i);
    PL_TRY(pl_process_group_do(world, &call));
    const int64_t ranks = world->size, expected = ranks * (ranks - 1) / 2;
    for (int64_t i = 0; i < count; ++i)
        if (received[i] != expected + ranks * i)
            return PL_FAIL(PL_INTERNAL, "element %" PRId64 " of a sum is wrong", i);
    return PL_OK;
}

/* Start a large call, which only the others wait for. */
static void die_in_transfer(pl_process_group *world)
{
    static int32_t sent[MANY], received[MANY];
    pl_request request = 0;
    pl_entry_name name = pl_entry_name_make(PL_OP_ALL_REDUCE, PL_SUBJECT_GRADIENTS);
    const pl_call call = {.collective = PL_ALL_REDUCE,
                          .reduction = PL_REDUCTION_SUM,
                          .dtype = PL_I32,
                          .name = &name,
                          .send = sent,
                          .recv = received,
                          .count = MANY};
    if (pl_process_group_start(world, &call, &request) == PL_OK) raise(SIGKILL);
}

/* Rank 1 reports a failure while much is on its way; all free their buffers at once. */
static pl_status fail_in_transfer(pl_process_group *world)
{
    enum { CALLS = 4 };
    int32_t *buffers[CALLS] = {NULL};
    pl_request requests[CALLS];
    int started = 0;
    pl_status status = PL_OK;
    pl_entry_name name = pl_entry_name_make(PL_OP_GATHER, PL_SUBJECT_HEAD);
    while (started < CALLS && status == PL_OK) {
        buffers[started] = calloc((size_t)(world->size + 1) * MANY, sizeof **buffers);
        if (!buffers[started]) return PL_FAIL(PL_NO_MEMORY, "no memory for the test");
        const pl_call call = {.collective = PL_ALL_GATHER,
                              .dtype = PL_I32,
                              .name = &name,
                              .send = buffers[started] + world->size * MANY,
                              .recv = buffers[started],
                              .count = MANY};
        status = pl_process_group_start(world, &call, &requests[started]);
        if (status == PL_OK)
            ++started;
        else
            free(buffers[started]); /* the failure came before this call */
    }
    if (world->rank == 1 && status == PL_OK) {
        status = pl_process_group_wait(world, requests[0]);
        free(buffers[0]);
        buffers[0] = NULL;
        pl_process_group_fail(world, PL_IO_FAILED, "planted");
    }
    for (int i = 0; i < started; ++i) {
        if (status == PL_OK && buffers[i])
            status = pl_process_group_wait(world, requests[i]);
        else if (buffers[i] && pl_process_group_wait(world, requests[i]) == PL_OK)
            fprintf(stderr, "a call after a failed one is done\n");
        free(buffers[i]);
    }
    return status;
}

static pl_status run(pl_process_group *world, const char *mode)
{
    const bool odd_one = world->rank == 1;
    PL_TRY(sum(world, SOME));
    if (strcmp(mode, "absent") == 0 && odd_one) sleep_on();
    if (strcmp(mode, "killed") == 0 && odd_one) raise(SIGKILL);
    if (strcmp(mode, "killed-in-transfer") == 0 && odd_one) die_in_transfer(world);
    if (strcmp(mode, "killed-elsewhere") == 0) {
        /* As if it were a process of another machine, of which nothing is known. */
        pl_mpi_domain *domain = (pl_mpi_domain *)((pl_group_handle *)world)->shared->domain;
        domain->processes[1].place = 0;
        if (odd_one) raise(SIGKILL);
    }
    if (strcmp(mode, "fails") == 0 && odd_one)
        return PL_FAIL(PL_IO_FAILED, "no space left for step-5");
    if (strcmp(mode, "fails-in-transfer") == 0) return fail_in_transfer(world);
    if (strcmp(mode, "finish-absent") == 0 && odd_one) sleep_on();
    return strcmp(mode, "finish-absent") == 0 ? PL_OK : sum(world, MANY);
}

static int end(pl_status status)
{
    fprintf(stderr, "%s: %s\n", pl_status_name(status), pl_error_text());
    pl_group_mpi_abort(pl_status_exit_code(status));
    return pl_status_exit_code(status);
}

int main(int count, char **words)
{
    const char *mode = count > 1 ? words[1] : "well";
    const double limit = strstr(mode, "absent") ? 2.0 : 100.0;
    pl_process_group *world = NULL;
    signal(SIGTERM, handle);
    if (strcmp(mode, "open-absent") == 0) {
        int rank = 0;
        MPI_Init(NULL, NULL);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        if (rank == 1) sleep_on();
    }
    pl_status status = pl_group_mpi_open(&world, limit);
    if (status != PL_OK) return end(status);
    const int64_t rank = world->rank, ranks = world->size;
    pl_process_group_set_interrupt(world, &asked_to_stop, 50.0);
    status = run(world, mode);
    if (status != PL_OK) {
        pl_process_group_fail(world, status, pl_error_text());
        pl_process_group_close(world);
        return end(status);
    }
    status = pl_group_mpi_finish(world);
    if (status != PL_OK) return end(status);
    printf("rank %" PRId64 " of %" PRId64 " ended well%s\n", rank, ranks,
           pl_group_mpi_is_launched() ? "" : ", alone");
    return 0;
}
