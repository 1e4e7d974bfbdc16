/* Backend mpi of common/process_group.h: ranks are processes, started by mpirun or Slurm.
 *
 * The thread that opens the world makes all calls of its groups, and with them all MPI calls: they
 * never block. Data moves while some call of this file or of a group runs, nowhere else: a rank
 * that computes sends and receives nothing meanwhile. A wait polls, sleeping longer and longer up
 * to a millisecond while nothing happens.
 *
 * Results have the same bits as those of backend threads. Words of failures are the same too, with
 * two more of them: data of a member that has started the call does not come, and the process of
 * a member is gone. The latter is seen within half a second for processes of this machine.
 *
 * After a failure the only thing left to do is to print its words, close the handles and call
 * pl_group_mpi_abort: other ranks may be gone, and to end MPI cleanly would be to wait for them.
 * When mpirun sees a rank die it sends SIGTERM to the others, and SIGKILL a second later. A program
 * should handle SIGTERM and give the flag to pl_process_group_set_interrupt; while it waits for a
 * member of which it cannot know whether it lives (on another machine) the grace is at most
 * PL_GROUP_MPI_GRACE_SECONDS, whatever was given there, so that words come before SIGKILL.
 */
#ifndef PL_COMMON_GROUPS_MPI_H
#define PL_COMMON_GROUPS_MPI_H

#include "common/process_group.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PL_GROUP_MPI_GRACE_SECONDS 0.5

/* Whether this process was started as a rank of an MPI job: by mpirun, or by Slurm for MPI. Looks
 * at the environment only. */
bool pl_group_mpi_is_launched(void);

/* How many processes of the job are on this machine, as its launcher says in the environment; 1
 * where it does not. */
int64_t pl_group_mpi_local_count(void);

/* The world's group of all processes of the job: start MPI unless it has been started, and store
 * this rank's handle in OUT. TIMEOUT_SECONDS bounds every wait: the time in which nothing of what
 * is waited for arrives. Collective. Errors: PL_BAD_INPUT for a time limit that is none;
 * PL_TIMED_OUT when ranks do not come here, PL_UNSUPPORTED when they run other programs;
 * PL_NO_MEMORY; PL_PEER_FAILED for what MPI refuses. */
pl_status pl_group_mpi_open(pl_process_group **out, double timeout_seconds);

/* Bound the waits that this rank begins from now on, of all its groups, by another time limit
 * (above 0, at most 1e9 s): for what a run file says, which is read after the ranks have met. */
void pl_group_mpi_set_timeout(pl_process_group *world, double timeout_seconds);

/* End well: wait, within the time limit, until all ranks have come here, close WORLD (all other
 * handles are closed), and end MPI if pl_group_mpi_open started it. Collective; not for after a
 * failure. Errors: as for a barrier of WORLD; WORLD is closed then too, MPI is not ended. */
pl_status pl_group_mpi_finish(pl_process_group *world);

/* End all ranks of the job with EXIT_CODE. Gives the others a moment to find out by themselves and
 * print their words; output is flushed. Returns only where MPI is not running. */
void pl_group_mpi_abort(int exit_code);

/* Tests: move data in messages of at most LARGEST bytes (at least 64), and together with the call
 * up to WITH_CALL bytes. The same on all ranks, before the first call. */
void pl_group_mpi_set_message_bytes(pl_process_group *world, int64_t largest, int64_t with_call);

#ifdef __cplusplus
}
#endif
#endif
