/* Ranks that run one body each and record what their call returned.
 *
 * The time limit is LONG_LIMIT where a failure is to be told at once: a rank that waited for the
 * limit instead would return PL_TIMED_OUT with other words, late enough to notice. Where the limit
 * is to pass it is SHORT_LIMIT: long enough for ranks to be that much behind one another.
 */
#ifndef PL_TESTS_GROUPS_RANK_RUNS_H
#define PL_TESTS_GROUPS_RANK_RUNS_H

#include "tests/test.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>

#include "common/process_group.h"

enum { LONG_LIMIT = 100 };
#define SHORT_LIMIT 0.5
#define WAITED      "waited 0.5 s for "

enum { MOST = 4, ELEMENTS = 64 };

typedef struct rank_run {
    pl_process_group *world;
    int64_t rank, ranks;
    void (*body)(struct rank_run *);
    pl_status status;
    char words[4096];
    atomic_int *ended; /* ranks whose call has returned */
    int variant;
    pl_entry_name name;
    int32_t send[ELEMENTS], recv[ELEMENTS];
} rank_run;

static inline void record(rank_run *run, pl_status status)
{
    run->status = status;
    snprintf(run->words, sizeof run->words, "%s", status == PL_OK ? "" : pl_error_text());
    atomic_fetch_add(run->ended, 1);
}

static inline void sleep_seconds(double seconds)
{
    struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&pause, &pause) != 0) continue;
}

/* Until COUNT ranks have got their words: keeps a handle open that a late rank would still hold. */
static inline void sleep_until_ended(const rank_run *run, int count)
{
    while (atomic_load(run->ended) < count) sleep_seconds(0.002);
}

/* Run BODY on each of RANKS ranks of a new world, close it, and store what they recorded in
 * RUNS[RANKS]. rank_runs_threads.c has threads do it, mpi_ranks.c processes: there every process
 * gets the records of all, so that their asserts agree. */
void run_ranks(rank_run *runs, int64_t ranks, double limit, void (*body)(rank_run *), int variant);

/* Whether a failure has one first cause for all: not where each rank looks at its own clock. */
extern const bool ranks_share_clock;

/* What a driver does before the body, and after the world is open. */
static inline void prepare_run(rank_run *run)
{
    run->name = pl_entry_name_make(PL_OP_GATHER, PL_SUBJECT_LAYER);
    run->name.layer = 3;
}

static inline void assert_words(const rank_run *run, pl_status status, const char *const *words)
{
    if (run->status != status)
        fail_msg("rank %" PRId64 ": %s, expected %s: %s", run->rank, pl_status_name(run->status),
                 pl_status_name(status), run->words);
    for (; *words; ++words)
        if (!strstr(run->words, *words))
            fail_msg("rank %" PRId64 ": no '%s' in: %s", run->rank, *words, run->words);
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Eight integers summed over the run's own buffers. */
static inline pl_call reduce_call(rank_run *run)
{
    return (pl_call){.collective = PL_ALL_REDUCE,
                     .dtype = PL_I32,
                     .reduction = PL_REDUCTION_SUM,
                     .name = &run->name,
                     .send = run->send,
                     .recv = run->recv,
                     .count = 8};
}

#endif
