#include "train/ranks.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#ifdef PLEAT_MPI
#include "common/groups_mpi.h"
#endif

/* Waits of a rank that was asked to stop go on for so long, in seconds. */
static const double grace = 30;

/* --- processes --- */

#ifdef PLEAT_MPI

static bool is_launched(void) { return pl_group_mpi_is_launched(); }

static int64_t count_neighbours(void) { return pl_group_mpi_local_count(); }

static pl_status open_job(pl_process_group **out, double timeout)
{
    return pl_group_mpi_open(out, timeout);
}

static void limit_job(pl_process_group *job, double timeout)
{
    pl_group_mpi_set_timeout(job, timeout);
}

static pl_status finish_job(pl_process_group *job) { return pl_group_mpi_finish(job); }

static void end_job(pl_process_group *job, int code)
{
    pl_process_group_close(job);
    pl_group_mpi_abort(code);
}

#else

/* Names by which launchers of Open MPI, MPICH and PMIx tell a process that it is one of several. */
static bool is_launched(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        const char *value = getenv(names[i]);
        if (value && strcmp(value, "1") != 0) return true;
    }
    return false;
}

static int64_t count_neighbours(void) { return 1; }

static pl_status open_job(pl_process_group **out, double timeout)
{
    (void)timeout;
    *out = NULL;
    return PL_FAIL(PL_UNSUPPORTED,
                   "this process was started as one of several, but this build has no MPI: without "
                   "mpirun ranks are threads of one process; for MPI install libopenmpi-dev and "
                   "build again");
}

static void limit_job(pl_process_group *job, double timeout)
{
    (void)job;
    (void)timeout;
}

static pl_status finish_job(pl_process_group *job)
{
    pl_process_group_close(job);
    return PL_OK;
}

static void end_job(pl_process_group *job, int code)
{
    (void)code;
    pl_process_group_close(job);
}

#endif

pl_status pl_ranks_open(pl_ranks *out, double timeout)
{
    pl_ranks ranks = {.neighbours = 1};
    if (is_launched()) {
        PL_TRY(open_job(&ranks.job, timeout));
        ranks.process = ranks.job->rank;
        ranks.neighbours = count_neighbours();
    }
    *out = ranks;
    return PL_OK;
}

/* The largest of COUNT numbers over all processes. */
static pl_status largest(const pl_ranks *ranks, const int64_t *numbers, void *out, int64_t count)
{
    pl_entry_name name = pl_entry_name_make(PL_OP_CONTROL, PL_SUBJECT_FLAGS);
    const pl_call call = {.collective = PL_ALL_REDUCE,
                          .dtype = PL_I64,
                          .reduction = PL_REDUCTION_MAX,
                          .stream = PL_STREAM_HOST,
                          .name = &name,
                          .send = numbers,
                          .recv = out,
                          .count = count};
    return pl_process_group_do(ranks->job, &call);
}

pl_status pl_ranks_agree(pl_ranks *ranks, pl_status status)
{
    if (!ranks->job) return status;
    enum { CODES = 16 };
    int64_t failed = 0, first = 0, behind = ranks->job->size - ranks->process;
    char words[4096];
    if (status != PL_OK) failed = behind * CODES + pl_status_exit_code(status);
    snprintf(words, sizeof words, "%s", pl_error_text());
    PL_TRY(largest(ranks, &failed, &first, 1));
    if (first == 0) return PL_OK;
    bool mine = first / CODES == behind;
    pl_error_set(mine ? words : "");
    return mine ? status : first % CODES == 2 ? PL_BAD_INPUT : PL_IO_FAILED;
}

pl_status pl_ranks_compare(pl_ranks *ranks, uint64_t number, const char *words)
{
    if (!ranks->job) return PL_OK;
    int64_t bits = 0, ends[2], found[2];
    memcpy(&bits, &number, sizeof bits);
    ends[0] = bits;
    ends[1] = ~bits; /* the largest complement is that of the smallest number */
    PL_TRY(largest(ranks, ends, found, 2));
    return found[0] == ~found[1] ? PL_OK : PL_FAIL(PL_BAD_INPUT, "%s", words);
}

/* --- the world --- */

static pl_status make_groups(pl_ranks *ranks, int64_t world, double timeout)
{
    PL_TRY(pl_allocate(&ranks->groups, (size_t)world, sizeof(pl_process_group *),
                       "the ranks' groups"));
    if (world == 1) return pl_group_self_open(&ranks->groups[0]);
    return pl_group_threads_open(ranks->groups, world, timeout);
}

pl_status pl_ranks_make_world(pl_ranks *ranks, int64_t world, double timeout,
                              const volatile sig_atomic_t *interrupted)
{
    bool alone = !ranks->job || ranks->job->size == 1;
    if (!alone && ranks->job->size != world)
        return PL_FAIL(PL_BAD_INPUT,
                       "the layout has world=%" PRId64 " ranks, but %" PRId64
                       " processes were started; start %" PRId64 " of them (mpirun -np %" PRId64
                       "), or one by itself, whose threads are the ranks",
                       world, ranks->job->size, world, world);
    if (alone && world > PL_RANKS_MOST_THREADS)
        return PL_FAIL(PL_BAD_INPUT,
                       "the layout has world=%" PRId64 " ranks; one process has at most %d, as "
                       "threads: start a process each (mpirun -np %" PRId64 ")",
                       world, (int)PL_RANKS_MOST_THREADS, world);
    if (alone) {
        pl_status status = make_groups(ranks, world, timeout);
        if (status != PL_OK) {
            pl_free(ranks->groups);
            ranks->groups = NULL;
            return status;
        }
    } else {
        PL_TRY(pl_allocate(&ranks->groups, 1, sizeof(pl_process_group *), "the rank's group"));
        ranks->groups[0] = ranks->job;
        limit_job(ranks->job, timeout);
    }
    ranks->world = world;
    ranks->count = alone ? world : 1;
    for (int64_t i = 0; i < ranks->count; ++i)
        pl_process_group_set_interrupt(ranks->groups[i], interrupted, grace);
    return PL_OK;
}

/* --- running --- */

typedef struct member {
    const pl_ranks *ranks;
    pl_rank_body body;
    void *context;
    int64_t local;
    pthread_t thread;
    bool started;
    pl_status status;
    char words[4096];
} member;

static void run_member(member *m)
{
    pl_process_group *group = m->ranks->groups[m->local];
    m->status = m->body(m->context, group->rank, m->local, group);
    if (m->status == PL_OK) return;
    snprintf(m->words, sizeof m->words, "%s", pl_error_text());
    pl_process_group_fail(group, m->status, m->words);
}

static void *member_thread(void *argument)
{
    run_member(argument);
    return NULL;
}

/* Threads for all members; a world of one rank needs none. */
static pl_status run_threads(member *members, int64_t count)
{
    pl_status status = PL_OK;
    for (int64_t i = 0; i < count; ++i) {
        int error = pthread_create(&members[i].thread, NULL, member_thread, &members[i]);
        members[i].started = error == 0;
        if (error == 0) continue;
        status = PL_FAIL(PL_IO_FAILED, "no thread for rank %" PRId64 ": %s", i, strerror(error));
        pl_process_group_fail(members[i].ranks->groups[i], status, pl_error_text());
        break;
    }
    for (int64_t i = 0; i < count; ++i)
        if (members[i].started) pthread_join(members[i].thread, NULL);
    return status;
}

static pl_status first_cause(const member *members, int64_t count, int64_t world)
{
    const member *found = NULL;
    for (int64_t i = 0; i < count; ++i) {
        const member *m = &members[i];
        if (m->status == PL_OK) continue;
        bool heard = found && found->status == PL_PEER_FAILED && m->status != PL_PEER_FAILED;
        if (!found || heard) found = m;
    }
    if (!found) return PL_OK;
    if (world == 1) return PL_FAIL(found->status, "%s", found->words);
    int64_t rank = found->ranks->groups[found->local]->rank;
    return PL_FAIL(found->status, "rank %" PRId64 ": %s", rank, found->words);
}

pl_status pl_ranks_run(pl_ranks *ranks, pl_rank_body body, void *context)
{
    member *members = NULL;
    pl_status status = PL_OK;
    PL_TRY(pl_allocate(&members, (size_t)ranks->count, sizeof *members, "the ranks"));
    for (int64_t i = 0; i < ranks->count; ++i)
        members[i] = (member){.ranks = ranks, .body = body, .context = context, .local = i};
    if (ranks->count == 1)
        run_member(&members[0]);
    else
        status = run_threads(members, ranks->count);
    if (status == PL_OK) status = first_cause(members, ranks->count, ranks->world);
    pl_free(members);
    return status;
}

/* --- the end --- */

static void close_groups(pl_ranks *ranks)
{
    for (int64_t i = 0; ranks->groups && i < ranks->count; ++i)
        if (ranks->groups[i] != ranks->job) pl_process_group_close(ranks->groups[i]);
    pl_free(ranks->groups);
}

pl_status pl_ranks_close(pl_ranks *ranks, pl_status status, bool agreed)
{
    pl_process_group *job = ranks->job;
    close_groups(ranks);
    *ranks = (pl_ranks){0};
    if (!job) return status;
    if (status != PL_OK && !agreed) {
        end_job(job, pl_status_exit_code(status));
        return status;
    }
    char words[4096];
    snprintf(words, sizeof words, "%s", pl_error_text());
    pl_status finished = finish_job(job);
    if (status == PL_OK) return finished;
    pl_error_set(words);
    return status;
}
