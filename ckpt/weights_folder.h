/* The weights of a model as a Hugging Face folder: config.json and safetensors, experts by their
 * own names ("model.layers.3.mlp.experts.17.gate_proj.weight").
 *
 * Reading: any rank reads the rows it holds, whoever made the folder. Writing: all ranks of a run
 * write their own rows into one file; nobody needs to hold a whole tensor.
 */
#ifndef PL_CKPT_WEIGHTS_FOLDER_H
#define PL_CKPT_WEIGHTS_FOLDER_H

#include <stdint.h>

#include "common/dtype.h"
#include "common/model.h"
#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_weights pl_weights;

/* Open the weights at PATH (as pl_safetensors_set_open) for MODEL, and check that they are its:
 * every tensor is there with its shape and type F32, BF16 or F16, and no other is. The head of a
 * tied model may be absent, or equal to the embedding bit for bit. Rotary frequencies
 * ("...rotary_emb.inv_freq"), which old files hold though they are no parameters, are skipped and
 * noted. A config.json beside them that says otherwise than MODEL (rope_theta, ...) is noted. MODEL
 * is not kept. The caller closes with pl_weights_close. Not collective. Errors: PL_BAD_INPUT
 * with all that is missing, unexpected or of the wrong shape or type at once; those of
 * pl_safetensors_set_open; those of pl_model_read for the config.json. */
pl_status pl_weights_open(pl_weights **out, const char *path, const pl_model *model);
void pl_weights_close(pl_weights *weights); /* NULL is allowed */

/* Read rows [ROW_BEGIN, ROW_END) of the whole (stacked) TENSOR, a tensor of the model or of a copy
 * of it, as DTYPE: fp32, bf16 or fp16. OUT gets (ROW_END - ROW_BEGIN) * cols values, row-major.
 * Equal types keep every bit; otherwise values round to the nearest, ties to even. Any number of
 * threads may read from one. Errors: PL_INTERNAL for rows or types that are none; PL_IO_FAILED,
 * PL_NO_MEMORY. */
pl_status pl_weights_read(const pl_weights *weights, const pl_tensor *tensor, int64_t row_begin,
                          int64_t row_end, pl_dtype dtype, void *out);

/* The same of COUNT values from number FIRST of the whole (stacked) TENSOR, rows one after another.
 */
pl_status pl_weights_read_values(const pl_weights *weights, const pl_tensor *tensor, int64_t first,
                                 int64_t count, pl_dtype dtype, void *out);

/* The type that TENSOR has in the files. Errors: PL_UNSUPPORTED naming both types where experts of
 * a stacked tensor have several; PL_INTERNAL for another model's tensor; PL_NO_MEMORY. */
pl_status pl_weights_stored_dtype(pl_dtype *out, const pl_weights *weights,
                                  const pl_tensor *tensor);

/* What was odd about the files and let pass, a line each; "" when nothing was. Borrowed. */
const char *pl_weights_notes(const pl_weights *weights);

/* Writing. Every rank begins, writes its rows and syncs; when all have done so, one rank finishes.
 *
 * Rows go to "model.safetensors.tmp" in the folder, which has its place for every row from the
 * beginning, so that ranks need not wait for each other and what a killed run left there is written
 * over. Finishing writes its header and config.json and renames both: until then nothing that was
 * in the folder has changed. Rows that no rank wrote keep what was there: that the ranks' boxes
 * cover every tensor is the plan's to see to. */
typedef struct pl_weights_writer pl_weights_writer;

/* Make FOLDER where it is missing (its parent is not) and open the file for writing tensors of type
 * DTYPE: fp32, bf16 or fp16. MODEL is not kept. The caller closes. Errors: PL_BAD_INPUT when FOLDER
 * is no folder or holds a sharded set, whose index would contradict the new file; PL_IO_FAILED,
 * PL_NO_MEMORY. */
pl_status pl_weights_begin(pl_weights_writer **out, const char *folder, const pl_model *model,
                           pl_dtype dtype);

/* Write rows [ROW_BEGIN, ROW_END) of the whole (stacked) TENSOR from VALUES of type DTYPE (fp32,
 * bf16 or fp16), rounding where the file's type is another. Any number of threads may write with
 * one writer; rows of replicas may be written by each of them. Errors: PL_INTERNAL for rows or
 * types that are none; PL_IO_FAILED with file, bytes and the system's words; PL_NO_MEMORY. */
pl_status pl_weights_write(const pl_weights_writer *writer, const pl_tensor *tensor,
                           int64_t row_begin, int64_t row_end, pl_dtype dtype, const void *values);

/* Wait until what was written is on the disk: every process, after its last write. Errors:
 * PL_IO_FAILED. */
pl_status pl_weights_sync(const pl_weights_writer *writer);

/* Put the files in place, on one rank after all others have synced. Errors: PL_IO_FAILED, and the
 * former files are still there; PL_NO_MEMORY. */
pl_status pl_weights_finish(const pl_weights_writer *writer);

/* In place of a finish, on ranks that have failed: remove the temporary file, and FOLDER if nothing
 * is left in it. */
void pl_weights_discard(const pl_weights_writer *writer);

/* Without a finish or discard the temporary file stays, to be written over. NULL is allowed. */
void pl_weights_writer_close(pl_weights_writer *writer);

#ifdef __cplusplus
}
#endif
#endif
