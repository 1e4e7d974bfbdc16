/* The folder in which a run keeps its checkpoints: "step-20", "step-40", ...
 *
 * A checkpoint comes to be in "step-N.tmp-NONCE" and gets its name when everything of it is on the
 * disk; it goes by getting the name "step-N.old-NONCE" first. So a folder "step-N" is always a
 * whole checkpoint, and what a killed process left behind is known by its name.
 */
#ifndef PL_CKPT_STORE_FOLDER_H
#define PL_CKPT_STORE_FOLDER_H

#include "ckpt/manifest.h"
#include "ckpt/manifest_find.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- names --- */

/* Replace PATH by ROOT/step-STEP.tmp-NONCE, NONCE as 16 hexadecimal digits. */
pl_status pl_checkpoint_temporary_path(pl_text *path, const char *root, int64_t step,
                                       uint64_t nonce);

/* --- one writer --- */

/* Hold ROOT, which is made where it is missing, for writing: until *LOCK_OUT is closed, or the
 * process ends, no other may. Errors: PL_BAD_INPUT when another process holds it; PL_IO_FAILED. */
pl_status pl_checkpoint_lock(int *lock_out, const char *root);
void pl_checkpoint_unlock(int lock); /* -1 is allowed */

/* Remove from ROOT, which is held, what killed processes left there, but for the temporary folder
 * of BUT (0: none is spared), which its maker goes on with. *REMOVED_OUT, when not NULL,
 * is how many folders it was. Errors: PL_IO_FAILED. */
pl_status pl_checkpoint_clean(const char *root, uint64_t but, int64_t *removed_out);

/* --- a checkpoint comes --- */

/* A number that nobody else draws. Errors: PL_IO_FAILED when the system gives none. */
pl_status pl_checkpoint_draw_nonce(uint64_t *out);

/* On one rank, before any writes: whether there is no checkpoint of STEP yet, and BYTES bytes find
 * room on the disk. Errors: PL_IO_FAILED with what is free and what is needed; PL_BAD_INPUT for a
 * step that is there. */
pl_status pl_checkpoint_check(const char *root, int64_t step, int64_t bytes);

/* On every rank: replace FOLDER by the path of the temporary folder, and make it unless another
 * rank has. Errors: PL_IO_FAILED, PL_NO_MEMORY. */
pl_status pl_checkpoint_begin(pl_text *folder, const char *root, int64_t step, uint64_t nonce);

/* Bytes of the files in the temporary folder of STEP and NONCE; 0 when there is none. */
int64_t pl_checkpoint_found(const char *root, int64_t step, uint64_t nonce);

/* Remove from a temporary FOLDER what a commit that was killed has left there. Errors:
 * PL_IO_FAILED, PL_NO_MEMORY. */
pl_status pl_checkpoint_uncommit(const char *folder);

/* On one rank, when the files of all ranks are on the disk: fill the ranks of MANIFEST from their
 * lists in the temporary folder; those that should be there by the layout are told by what commit
 * then finds missing. Errors: PL_IO_FAILED, PL_BAD_INPUT for a list that is wrong, PL_NO_MEMORY. */
pl_status pl_checkpoint_collect(const char *root, uint64_t nonce, pl_manifest *manifest);

/* On one rank, when the files of all ranks are on the disk and MANIFEST has the ranks that wrote:
 * write index and manifest, wait until they are on the disk, and give the folder its name. The
 * manifest's index is set here. What the ranks' lists say is checked: that the pieces cover every
 * tensor once; a list that is missing means ranks that do not share a disk. Errors: PL_IO_FAILED,
 * PL_BAD_INPUT; the temporary folder stays. */
pl_status pl_checkpoint_commit(const char *root, uint64_t nonce, pl_manifest *manifest);

/* Remove the temporary folder of a save that failed, if it is there. */
void pl_checkpoint_discard(const char *root, int64_t step, uint64_t nonce);

/* --- and goes --- */

/* Remove the checkpoint of STEP. Errors: PL_IO_FAILED; the rest of it is then among what
 * pl_checkpoint_clean removes. */
pl_status pl_checkpoint_remove(const char *root, int64_t step);

/* A checkpoint with a file "pinned" in its folder is not pruned. */
#define PL_CHECKPOINT_PIN "pinned"

/* Put that file into the FOLDER of a checkpoint, or take it away; it may be so already. Errors:
 * PL_IO_FAILED, PL_NO_MEMORY. */
pl_status pl_checkpoint_pin(const char *folder, bool pinned);

typedef enum pl_prune_verdict {
    PL_PRUNE_REMOVE,
    PL_PRUNE_KEEP_NEWEST,   /* one of the KEEP latest */
    PL_PRUNE_KEEP_PINNED,   /* or nobody can tell whether it is */
    PL_PRUNE_KEEP_MULTIPLE, /* its step is a multiple of KEEP_EVERY */
} pl_prune_verdict;

typedef struct pl_prune_step {
    int64_t step;
    pl_prune_verdict verdict;
} pl_prune_step;

/* What pl_checkpoint_prune would do: *COUNT_OUT checkpoints by their steps, for the caller to free
 * with pl_free. Errors: PL_IO_FAILED, PL_NO_MEMORY. */
pl_status pl_checkpoint_prune_plan(pl_prune_step **steps_out, int64_t *count_out, const char *root,
                                   int64_t keep, int64_t keep_every);

/* Add the names of what pl_checkpoint_clean would remove from ROOT, each with a line feed. Errors:
 * PL_IO_FAILED, PL_NO_MEMORY. */
pl_status pl_checkpoint_left_overs(pl_text *names, const char *root);

/* Remove checkpoints but for the KEEP latest and those that are pinned or whose step is a multiple
 * of KEEP_EVERY (0: of none). Errors as above. */
pl_status pl_checkpoint_prune(const char *root, int64_t keep, int64_t keep_every,
                              int64_t *removed_out);

/* Wait until FOLDER itself, its list of names, is on the disk. Errors: PL_IO_FAILED. */
pl_status pl_store_sync_folder(const char *folder);

#ifdef __cplusplus
}
#endif
#endif
