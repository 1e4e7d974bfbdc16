#include "tests/groups/mpi_ranks.h"

#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/groups/mpi_domain.h"
#include "tests/groups/rank_runs.h"

static struct {
    int rank, ranks;
    mpi_counters *counters;
} job;

const bool ranks_share_clock = false;

int mpi_rank(void) { return job.rank; }

mpi_counters *mpi_shared(void) { return job.counters; }

/* No process takes the processor from those that still run. */
static void finish_request(MPI_Request *request)
{
    int done = 0;
    while (MPI_Test(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
        sleep_seconds(0.001);
}

void mpi_meet(void)
{
    MPI_Request request;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    finish_request(&request);
}

void mpi_share(const void *own, void *all, size_t bytes)
{
    MPI_Request request;
    MPI_Iallgather(own, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD, &request);
    finish_request(&request);
}

/* Memory that all processes see: a file without a name. */
static bool share_memory(void)
{
    char name[64] = "/tmp/pleat-mpi-XXXXXX";
    int file = -1;
    if (job.rank == 0) {
        file = mkstemp(name);
        if (file >= 0 && ftruncate(file, sizeof(mpi_counters)) != 0) name[0] = '\0';
    }
    MPI_Bcast(name, sizeof name, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (job.rank != 0) file = open(name, O_RDWR);
    void *memory =
        file < 0 ? MAP_FAILED
                 : mmap(NULL, sizeof(mpi_counters), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    mpi_meet();
    if (job.rank == 0) unlink(name);
    job.counters = memory == MAP_FAILED ? NULL : memory;
    return job.counters != NULL;
}

int mpi_run_suite(const char *name, const struct CMUnitTest *tests, size_t count)
{
    int provided = 0;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &job.ranks);
    if (!share_memory()) {
        fprintf(stderr, "rank %d: no shared memory for the test\n", job.rank);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    FILE *quiet = job.rank == 0 ? NULL : fopen("/dev/null", "w");
    FILE *output = stdout, *errors = stderr;
    if (quiet) stdout = stderr = quiet; /* CMocka's; not those of sanitizers and of MPI */
    const int failed = _cmocka_run_group_tests(name, tests, count, NULL, NULL);
    stdout = output;
    stderr = errors;
    if (quiet) fclose(quiet);
    munmap(job.counters, sizeof *job.counters);
    mpi_meet();
    MPI_Finalize();
    return failed;
}

bool mpi_open(pl_process_group **out, int64_t ranks, double limit)
{
    MPI_Comm part = MPI_COMM_NULL;
    *out = NULL;
    if (job.rank == 0) {
        atomic_store(&job.counters->ended, 0);
        atomic_store(&job.counters->at_barrier, 0);
    }
    mpi_meet();
    MPI_Comm_split(MPI_COMM_WORLD, job.rank < ranks ? 0 : MPI_UNDEFINED, job.rank, &part);
    if (part == MPI_COMM_NULL) return false;
    pl_status status = pl_mpi_open_on(out, part, limit);
    MPI_Comm_free(&part);
    if (status == PL_OK) return true;
    fprintf(stderr, "rank %d: %s\n", job.rank, pl_error_text());
    MPI_Abort(MPI_COMM_WORLD, 2);
    return false;
}

/* What a process tells of its run. */
typedef struct told {
    pl_status status;
    char words[sizeof((rank_run *)0)->words];
} told;

void run_ranks(rank_run *runs, int64_t ranks, double limit, void (*body)(rank_run *), int variant)
{
    static rank_run own;
    static told tell, all[64];
    pl_process_group *world = NULL;
    memset(&own, 0, sizeof own);
    assert_true(job.ranks <= 64 && ranks <= job.ranks);
    if (mpi_open(&world, ranks, limit)) {
        own.world = world;
        own.rank = job.rank;
        own.ranks = ranks;
        own.ended = &job.counters->ended;
        own.variant = variant;
        prepare_run(&own);
        body(&own);
        pl_process_group_close(world);
    }
    tell.status = own.status;
    memcpy(tell.words, own.words, sizeof tell.words);
    mpi_share(&tell, all, sizeof tell);
    memset(runs, 0, (size_t)ranks * sizeof *runs);
    for (int64_t i = 0; i < ranks; ++i) {
        runs[i].rank = i;
        runs[i].ranks = ranks;
        runs[i].status = all[i].status;
        memcpy(runs[i].words, all[i].words, sizeof all[i].words);
    }
}
