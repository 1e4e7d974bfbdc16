/* Checkpoints of a run: one of these for each rank.
 *
 * A save runs the plan's program `save`, whose values come here (pl_checkpointing_take). With
 * checkpoint.write=wait they go to the disk at once; with `behind` they stay where they are (the
 * executor keeps_saved), and a thread of the rank writes them beside the next steps. When all ranks
 * have written, which a control entry tells, rank 0 commits; with `behind` a thread does so. The
 * threads never communicate.
 *
 * Rank 0 holds the lock on the folder from open to close.
 */
#ifndef PL_TRAIN_CHECKPOINTING_H
#define PL_TRAIN_CHECKPOINTING_H

#include "ckpt/manifest.h"
#include "train/run_log.h"
#include "train/setup.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_checkpointing pl_checkpointing;

/* All borrowed. */
typedef struct pl_checkpointing_request {
    const pl_setup *setup;
    const pl_run_facts *facts; /* what the manifest says of the run; read on rank 0 */
    int64_t rank;
} pl_checkpointing_request;

/* Whether values are written beside the steps, so that they have to stay after `save`. */
bool pl_checkpointing_is_behind(const pl_run *run);

/* On rank 0: lock the folder, which is made where it is missing, and remove what killed runs left
 * in it. The caller closes. Errors: those of pl_checkpoint_lock and pl_checkpoint_clean;
 * PL_NO_MEMORY. */
pl_status pl_checkpointing_open(pl_checkpointing **out, const pl_checkpointing_request *request);

/* Waits for the writing thread; a save that is not committed is lost, and on rank 0 removed. NULL
 * is allowed. */
void pl_checkpointing_close(pl_checkpointing *c);

/* The number that names temporary folders: rank 0's, to be handed to the others; 0 elsewhere. */
int64_t pl_checkpointing_nonce(const pl_checkpointing *c);

/* Begin a save of PROGRESS in the temporary folder of NONCE, the same on all ranks; then comes the
 * program `save`. Waits until this rank has written the one before. Errors: PL_IO_FAILED, those of
 * the one before among them; PL_BAD_INPUT when the step is there; PL_NO_MEMORY. */
pl_status pl_checkpointing_begin(pl_checkpointing *c, const pl_manifest_progress *progress,
                                 int64_t nonce);

/* For pl_executor_outside.save_values. TENSOR is one of the plan's model. With `behind` VALUES must
 * stay until this rank has written them: until the next pl_checkpointing_begin or
 * pl_checkpointing_wait returns, or pl_checkpointing_close. */
pl_status pl_checkpointing_take(pl_checkpointing *c, pl_value_kind kind, const pl_tensor *tensor,
                                int64_t row_begin, int64_t row_end, pl_dtype dtype,
                                const void *values);

/* Before the control entry of `save`: what was taken is on the disk, or a thread is writing it. */
pl_status pl_checkpointing_taken(pl_checkpointing *c);

/* After the program `save`: rank 0 commits what all have written. Errors: also those of the commit
 * before, where a thread did it. */
pl_status pl_checkpointing_saved(pl_checkpointing *c);

/* Wait until this rank has written what was taken; its commit is still to come. Errors: those of
 * the writing thread. */
pl_status pl_checkpointing_wait(pl_checkpointing *c);

/* Whether this rank's thread is still writing: for the control entries of steps. */
bool pl_checkpointing_is_writing(const pl_checkpointing *c);

/* After a step in which no rank was writing: rank 0 commits, where something is to be committed.
 * Errors: also those of the writing thread. */
pl_status pl_checkpointing_settle(pl_checkpointing *c);

/* After a program that came behind pl_checkpointing_wait on all ranks: what was saved is committed
 * when this returns on rank 0. Errors: also those of threads. */
pl_status pl_checkpointing_end(pl_checkpointing *c);

#ifdef __cplusplus
}
#endif
#endif
