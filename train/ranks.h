/* The ranks of a run: threads of this process, or one a process when MPI started several.
 *
 * Use: open; agree, once everything has been looked at; make the world; run; close. In a job of
 * several processes all of this is collective, and the thread that opens does the rest, too.
 */
#ifndef PL_TRAIN_RANKS_H
#define PL_TRAIN_RANKS_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/process_group.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_ranks {
    pl_process_group *job;     /* owned: the processes of an MPI job; NULL: this one alone */
    int64_t process;           /* number of this process in the job, from 0 */
    int64_t neighbours;        /* processes of the job on this machine, this one included */
    int64_t world;             /* 0 until it is made */
    int64_t count;             /* ranks of this process: process .. process + count - 1 */
    pl_process_group **groups; /* [count], owned (not the job's): the world's group of each */
} pl_ranks;

/* What a rank does. LOCAL counts the ranks of this process from 0. */
typedef pl_status (*pl_rank_body)(void *context, int64_t rank, int64_t local,
                                  pl_process_group *world);

/* Find out whether this process is one of several, and meet the others. TIMEOUT bounds each wait
 * in seconds. The caller closes. Errors: PL_UNSUPPORTED when several processes were started and
 * this build has no MPI; those of pl_group_mpi_open. */
pl_status pl_ranks_open(pl_ranks *out, double timeout);

/* Whether all processes are at STATUS PL_OK. When some are not, the first of them keeps its words,
 * the others have none (pl_error_text is "") and all return statuses of the same exit code.
 * Errors: those of an all-reduce. */
pl_status pl_ranks_agree(pl_ranks *ranks, pl_status status);

/* Whether NUMBER is the same on all processes; else PL_BAD_INPUT with WORDS, on all of them. */
pl_status pl_ranks_compare(pl_ranks *ranks, uint64_t number, const char *words);

/* Make WORLD ranks, whose waits end after TIMEOUT seconds, and let them look at INTERRUPTED (NULL:
 * they do not). Errors: PL_BAD_INPUT when several processes were started and WORLD is another
 * number, naming both, or when they would be more than PL_RANKS_MOST_THREADS threads, each of which
 * keeps something of every other; PL_NO_MEMORY. */
enum { PL_RANKS_MOST_THREADS = 1024 };
pl_status pl_ranks_make_world(pl_ranks *ranks, int64_t world, double timeout,
                              const volatile sig_atomic_t *interrupted);

/* Run BODY for each rank of this process and wait for all of them: threads have one for each rank.
 * A body that fails is told to all ranks. Returns the first cause: the words of a rank that failed
 * by itself before those of one that only heard of it, "rank 3: " in front in worlds of several
 * ranks. Errors: those of BODY; PL_IO_FAILED when a thread cannot be made. */
pl_status pl_ranks_run(pl_ranks *ranks, pl_rank_body body, void *context);

/* End what was opened, after STATUS. In a job of several processes: when that is PL_OK or all have
 * agreed on it, meet the others for the last time; otherwise, after the words have been printed,
 * end the whole job with the exit code of STATUS. All zeroes are allowed. Returns STATUS, or what
 * went wrong in the end. */
pl_status pl_ranks_close(pl_ranks *ranks, pl_status status, bool agreed);

#ifdef __cplusplus
}
#endif
#endif
