/* The world of an MPI job: opening it, ending well and ending badly. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/groups/mpi_domain.h"
#include "common/groups_mpi.h"
#include "common/memory.h"
#include "common/text.h"

/* The largest message of data: a wait that sees many arrive does not fall asleep between two. And
 * how much travels with a call: little enough for Open MPI to send it off at once. */
enum { LARGEST_MESSAGE = 256 << 10, DATA_WITH_CALL = 2048 };

/* How long others have to find out that this rank ends the job. */
enum { LAST_WORDS_MILLISECONDS = 300 };

bool pl_group_mpi_is_launched(void)
{
    static const char *const variables[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK",
                                            "PMI_SIZE"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; ++i)
        if (getenv(variables[i])) return true;
    return false;
}

int64_t pl_group_mpi_local_count(void)
{
    static const char *const variables[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; ++i) {
        const char *value = getenv(variables[i]);
        int64_t count = 0;
        if (value && pl_parse_integer(&count, value) && count > 0) return count;
    }
    return 1;
}

static pl_mpi_domain *domain_of(pl_process_group *world)
{
    return (pl_mpi_domain *)((pl_group_handle *)world)->shared->domain;
}

void pl_group_mpi_set_timeout(pl_process_group *world, double timeout_seconds)
{
    domain_of(world)->timeout_seconds = timeout_seconds;
}

void pl_group_mpi_set_message_bytes(pl_process_group *world, int64_t largest, int64_t with_call)
{
    pl_mpi_domain *domain = domain_of(world);
    domain->largest = largest;
    domain->with_call = with_call;
}

/* Wait for what all ranks do together at the start. */
static pl_status wait_for_all(const pl_mpi_domain *domain, MPI_Request *request, const char *what)
{
    int done = 0, rests = 0;
    const double end = pl_mpi_now() + domain->timeout_seconds;
    for (;;) {
        PL_TRY(pl_mpi_check(MPI_Test(request, &done, MPI_STATUS_IGNORE), what));
        if (done) return PL_OK;
        if (pl_mpi_now() >= end)
            return PL_FAIL(PL_TIMED_OUT,
                           "rank %d of %d waited %.1f s for all ranks to open the world's group; "
                           "some did not come",
                           domain->rank, domain->ranks, domain->timeout_seconds);
        pl_mpi_rest(&rests);
    }
}

/* A communicator of the domain's own, and where its processes run. */
static pl_status meet(pl_mpi_domain *domain, MPI_Comm communicator)
{
    const int bytes = (int)sizeof(pl_mpi_process);
    const pl_mpi_process own = pl_mpi_process_own();
    const void *highest = NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    int found = 0;
    PL_TRY(pl_mpi_check(MPI_Comm_idup(communicator, &domain->communicator, &request),
                        "MPI_Comm_idup"));
    PL_TRY(wait_for_all(domain, &request, "MPI_Comm_idup"));
    PL_TRY(pl_mpi_check(MPI_Comm_set_errhandler(domain->communicator, MPI_ERRORS_RETURN),
                        "MPI_Comm_set_errhandler"));
    PL_TRY(pl_mpi_check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, (void *)&highest, &found),
                        "MPI_Comm_get_attr"));
    domain->last_tag = found ? *(const int *)highest : 32767;
    domain->tag = 1;
    PL_TRY(pl_mpi_check(MPI_Iallgather(&own, bytes, MPI_BYTE, domain->processes, bytes, MPI_BYTE,
                                       domain->communicator, &request),
                        "MPI_Iallgather"));
    PL_TRY(wait_for_all(domain, &request, "MPI_Iallgather"));
    return pl_mpi_process_match(domain);
}

static pl_status allocate_domain(pl_mpi_domain *domain)
{
    const size_t ranks = (size_t)domain->ranks;
    const char *what = "process groups of processes";
    PL_TRY(pl_allocate(&domain->world, ranks, sizeof(pl_process_group *), what));
    PL_TRY(pl_allocate(&domain->blocked, ranks, sizeof *domain->blocked, what));
    PL_TRY(pl_allocate(&domain->processes, ranks, sizeof *domain->processes, what));
    return pl_mpi_prepare_failure(domain);
}

static pl_status open_domain(pl_mpi_domain *domain)
{
    PL_TRY(allocate_domain(domain));
    PL_TRY(pl_group_domain_open(&domain->base, &pl_mpi_backend, &pl_mpi_hooks, domain->ranks,
                                domain->world));
    domain->opened = true;
    domain->base.local = (pl_group_handle *)domain->world[domain->rank];
    pl_mpi_group *world = (pl_mpi_group *)domain->base.world;
    for (int i = 0; i < domain->ranks; ++i)
        if (i != domain->rank) world->mirror[i] = domain->world[i];
    domain->local_handles = 1;
    return PL_OK;
}

pl_status pl_mpi_open_on(pl_process_group **out, MPI_Comm communicator, double timeout_seconds)
{
    pl_mpi_domain *domain = NULL;
    if (!(timeout_seconds > 0 && timeout_seconds <= 1e9))
        return PL_FAIL(
            PL_BAD_INPUT,
            "a time limit of %g s for process groups; it must be above 0 and at most 1e9",
            timeout_seconds);
    PL_TRY(pl_allocate(&domain, 1, sizeof *domain, "process groups of processes"));
    domain->timeout_seconds = timeout_seconds;
    domain->largest = LARGEST_MESSAGE;
    domain->with_call = DATA_WITH_CALL;
    domain->communicator = MPI_COMM_NULL;
    pl_status status = pl_mpi_check(MPI_Comm_rank(communicator, &domain->rank), "MPI_Comm_rank");
    if (status == PL_OK)
        status = pl_mpi_check(MPI_Comm_size(communicator, &domain->ranks), "MPI_Comm_size");
    if (status == PL_OK) status = open_domain(domain);
    if (status == PL_OK) status = meet(domain, communicator);
    if (status == PL_OK) {
        *out = domain->world[domain->rank];
        return PL_OK;
    }
    /* After the time limit MPI still looks at the domain. */
    if (status != PL_TIMED_OUT) pl_mpi_free_domain(domain);
    return status;
}

pl_status pl_group_mpi_open(pl_process_group **out, double timeout_seconds)
{
    int started = 0, ended = 0, provided = 0;
    PL_TRY(pl_mpi_check(MPI_Initialized(&started), "MPI_Initialized"));
    PL_TRY(pl_mpi_check(MPI_Finalized(&ended), "MPI_Finalized"));
    if (ended)
        return PL_FAIL(PL_UNSUPPORTED, "MPI has been ended in this process; it starts only once");
    if (!started) {
        PL_TRY(pl_mpi_check(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided),
                            "MPI_Init_thread"));
        if (provided < MPI_THREAD_FUNNELED)
            return PL_FAIL(PL_UNSUPPORTED,
                           "this MPI bears no threads (level %d, MPI_THREAD_FUNNELED is needed)",
                           provided);
        PL_TRY(pl_mpi_check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN),
                            "MPI_Comm_set_errhandler"));
    }
    PL_TRY(pl_mpi_open_on(out, MPI_COMM_WORLD, timeout_seconds));
    ((pl_mpi_domain *)((pl_group_handle *)*out)->shared->domain)->started_mpi = !started;
    return PL_OK;
}

pl_status pl_group_mpi_finish(pl_process_group *world)
{
    pl_mpi_domain *domain = (pl_mpi_domain *)((pl_group_handle *)world)->shared->domain;
    const bool started = domain->started_mpi;
    const pl_entry_name name = pl_entry_name_make(PL_OP_CONTROL, PL_SUBJECT_FLAGS);
    const pl_call barrier = {.collective = PL_BARRIER, .name = &name};
    pl_status status = PL_OK;
    world->log = NULL; /* the barrier is no entry of a plan */
    if (domain->local_handles != 1)
        status = PL_FAIL(PL_INTERNAL,
                         "rank %d ends with %" PRId64 " handles on process groups still open",
                         domain->rank, domain->local_handles - 1);
    if (status == PL_OK) status = pl_process_group_do(world, &barrier);
    domain->finishing = status == PL_OK;
    pl_process_group_close(world);
    if (status != PL_OK) return status;
    status = pl_mpi_check(MPI_Comm_free(&domain->communicator), "MPI_Comm_free");
    pl_mpi_free_domain(domain);
    if (status == PL_OK && started) status = pl_mpi_check(MPI_Finalize(), "MPI_Finalize");
    return status;
}

void pl_group_mpi_abort(int exit_code)
{
    int started = 0, ended = 0;
    struct timespec pause = {.tv_nsec = LAST_WORDS_MILLISECONDS * 1000000L};
    fflush(NULL);
    if (MPI_Initialized(&started) != MPI_SUCCESS || !started) return;
    if (MPI_Finalized(&ended) != MPI_SUCCESS || ended) return;
    while (nanosleep(&pause, &pause) != 0) continue;
    MPI_Abort(MPI_COMM_WORLD, exit_code);
}
