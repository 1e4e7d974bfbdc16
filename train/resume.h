/* Going on from a checkpoint: which one, and whether this run can.
 */
#ifndef PL_TRAIN_RESUME_H
#define PL_TRAIN_RESUME_H

#include "ckpt/store_reader.h"
#include "common/run_file.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Replace PATH by the newest checkpoint of the run in FOLDER; "" when it has none, or there is no
 * such run. Errors: PL_IO_FAILED, PL_NO_MEMORY. */
pl_status pl_resume_newest(pl_text *path, const char *folder);

/* Whether a run of RUN with MODEL and SETTINGS can go on from the checkpoint, whatever the layouts
 * of both: same model, optimizer, seed and sequence length, and the types of all values. What else
 * differs among the settings is added to NOTES, a line. Errors: PL_BAD_INPUT naming both sides;
 * PL_NO_MEMORY. */
pl_status pl_resume_check(pl_text *notes, const pl_store_reader *checkpoint, const pl_run *run,
                          const pl_model *model, const pl_settings *settings);

/* Whether weights for MODEL can be taken from the checkpoint: it is of the same model. Errors:
 * PL_BAD_INPUT; PL_NO_MEMORY. */
pl_status pl_resume_check_model(const pl_store_reader *checkpoint, const pl_model *model);

/* Rows of tensor number TENSOR as DTYPE: masters where the checkpoint has them, else parameters,
 * rounded to nearest even where types differ. Errors: those of pl_store_read. */
pl_status pl_resume_weights(pl_store_reader *checkpoint, int64_t tensor, int64_t row_begin,
                            int64_t row_end, pl_dtype dtype, void *out);

#ifdef __cplusplus
}
#endif
#endif
