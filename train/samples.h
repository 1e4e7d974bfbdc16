/* Samples: windows of the token stream, and which of them a rank reads in a step.
 *
 * pl_samples_describe says which, in words and formulas. So all layouts read the same samples in a
 * step, and in the same micro-step where D*B is equal. The permutation is data_permutation.h's.
 */
#ifndef PL_TRAIN_SAMPLES_H
#define PL_TRAIN_SAMPLES_H

#include <stddef.h>
#include <stdint.h>

#include "common/settings.h"
#include "common/status.h"
#include "train/tokens.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_samples pl_samples;

/* Add the formulas, lines of plain text. */
void pl_samples_describe(pl_text *text);

/* Open the files and folders PATHS as samples of SEQUENCE tokens. The caller closes. Not
 * collective. Errors: those of pl_tokens_open; PL_BAD_INPUT for fewer than SEQUENCE + 1 tokens. */
pl_status pl_samples_open(pl_samples **out, const char *const *paths, size_t count,
                          int64_t vocabulary, int64_t sequence, uint64_t seed);
void pl_samples_close(pl_samples *samples); /* NULL is allowed */

int64_t pl_samples_count(const pl_samples *samples); /* at least 1 */
const pl_tokens *pl_samples_tokens(const pl_samples *samples);

/* Fill BATCH, [rounds][micro-batches][2][micro_batch * sequence] tokens and then labels, for the
 * data rank DATA_INDEX of DATA_RANKS in STEP. shape->sequence is the samples' own. Any number of
 * threads may load from one. Errors: those of pl_tokens_read; PL_BAD_INPUT when numbers do not fit
 * 63 bits; PL_INTERNAL for another sequence or a rank that is none; PL_NO_MEMORY. */
pl_status pl_samples_load(const pl_samples *samples, int64_t step, const pl_shape *shape,
                          int64_t data_index, int64_t data_ranks, int32_t *batch);

/* The same from sample number FIRST of the run on, in place of those before STEP. */
pl_status pl_samples_load_from(const pl_samples *samples, int64_t first, const pl_shape *shape,
                               int64_t data_index, int64_t data_ranks, int32_t *batch);

/* The same for held-out data: sample number FIRST + ... in the order of the stream, FIRST in place
 * of step * A*M*D*B. From number MOST on, and where the samples are at an end, tokens are 0 and
 * labels -1: not valid. */
pl_status pl_samples_load_in_order(const pl_samples *samples, int64_t first, int64_t most,
                                   const pl_shape *shape, int64_t data_index, int64_t data_ranks,
                                   int32_t *batch);

/* The entropy in nats (pl_tokens_entropy) of the labels of the first MOST samples of the stream,
 * or of all where there are fewer: what a model learns if it learns no more than how frequent
 * tokens are. Errors: those of pl_tokens_entropy; PL_INTERNAL for MOST < 1. */
pl_status pl_samples_entropy(const pl_samples *samples, int64_t most, double *nats_out);

#ifdef __cplusplus
}
#endif
#endif
