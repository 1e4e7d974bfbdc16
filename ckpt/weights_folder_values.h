/* What the files weights_folder*.c share; for nobody else. */
#ifndef PL_CKPT_WEIGHTS_FOLDER_VALUES_H
#define PL_CKPT_WEIGHTS_FOLDER_VALUES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/dtype.h"
#include "common/model.h"
#include "common/status.h"
#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether weights may have that type: fp32, bf16, fp16. */
bool pl_weights_dtype_fits(pl_dtype dtype);

/* TO[0..count) = FROM[0..count). Types as above; no alignment is asked of either. */
void pl_weights_convert(void *to, pl_dtype to_dtype, const void *from, pl_dtype from_dtype,
                        int64_t count);

/* Rows of TENSOR that lie in one tensor of the file: those of one expert, or all of them. */
typedef struct pl_weights_span {
    int64_t expert;             /* 0 for tensors that are no stack */
    int64_t row_begin, row_end; /* within the file's tensor */
} pl_weights_span;

/* The span at the beginning of rows [ROW_BEGIN, ROW_END) of the stacked TENSOR; not empty. */
pl_weights_span pl_weights_first_span(const pl_tensor *tensor, int64_t row_begin, int64_t row_end);

/* Replace TEXT by the name that expert EXPERT of TENSOR has in files. Errors: PL_NO_MEMORY. */
pl_status pl_weights_name(pl_text *text, const pl_tensor *tensor, int64_t expert);

/* PL_INTERNAL unless [ROW_BEGIN, ROW_END) are rows of TENSOR and DTYPE fits. */
pl_status pl_weights_check_rows(const pl_tensor *tensor, int64_t row_begin, int64_t row_end,
                                pl_dtype dtype);

/* Where PATH is a folder with a config.json, add a line to NOTES for each of its facts that MODEL
 * has otherwise and that weights alone do not show (rope_theta, num_experts_per_tok, ...). Errors:
 * those of pl_model_read. */
pl_status pl_weights_note_config(pl_text *notes, const char *path, const pl_model *model);

/* How many tensors of the file TENSOR is: its experts, or 1. */
static inline int64_t pl_weights_count(const pl_tensor *tensor)
{
    return tensor->experts > 0 ? tensor->experts : 1;
}

#ifdef __cplusplus
}
#endif
#endif
