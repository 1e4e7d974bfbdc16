/* Where checkpoints are: the folders "step-N" in that of a run.
 */
#ifndef PL_CKPT_MANIFEST_FIND_H
#define PL_CKPT_MANIFEST_FIND_H

#include <stdbool.h>
#include <stdint.h>

#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Replace PATH by ROOT/step-STEP. Errors: PL_NO_MEMORY. */
pl_status pl_checkpoint_path(pl_text *path, const char *root, int64_t step);

/* The step of "step-20"; *REST is what follows the number. False for other names. */
bool pl_checkpoint_read_name(int64_t *step, const char **rest, const char *name);

typedef pl_status (*pl_name_visit)(void *context, const char *folder, const char *name);

/* Call VISIT with each name in FOLDER but . and .., in no order. Errors: PL_IO_FAILED; those of
 * VISIT, which ends it. */
pl_status pl_checkpoint_each_name(const char *folder, pl_name_visit visit, void *context);

/* The steps of the checkpoints in ROOT, ascending, *COUNT_OUT of them; the caller frees *STEPS_OUT
 * with pl_free. A folder without a manifest is none. No ROOT: no steps. Errors: PL_IO_FAILED,
 * PL_NO_MEMORY. */
pl_status pl_checkpoint_steps(int64_t **steps_out, int64_t *count_out, const char *root);

/* Replace PATH by the checkpoint that GIVEN means: itself; or the newest one in it, or in
 * "checkpoints" in it, as in the folder of a run. Errors: PL_BAD_INPUT when there is none;
 * PL_IO_FAILED, PL_NO_MEMORY. */
pl_status pl_checkpoint_find(pl_text *path, const char *given);

/* Replace PATH by the folder with checkpoints in it that GIVEN means: itself, or "checkpoints" in
 * it where it has none. Errors as above; PL_BAD_INPUT for a checkpoint itself too. */
pl_status pl_checkpoint_find_root(pl_text *path, const char *given);

#ifdef __cplusplus
}
#endif
#endif
