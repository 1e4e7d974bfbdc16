/* What a checkpoint keeps of each tensor, and which rank writes which rows of it.
 *
 * A rank writes a box that only it holds; of replicas, one writes. Replica writers are chosen box
 * by box, in the order of the model's tensors: the one of the replica group that has the fewest
 * bytes of that class of tensors so far, the lowest on ties. So every rank finds out by itself what
 * it has to write, and any program what any layout writes.
 */
#ifndef PL_CKPT_MANIFEST_BOXES_H
#define PL_CKPT_MANIFEST_BOXES_H

#include "common/layout.h"
#include "common/model.h"
#include "common/settings.h"
#include "common/value_kind.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The kinds of value that are kept of a tensor, each with its element type; PL_DTYPE_COUNT: none
 * of that kind. */
typedef struct pl_kept_values {
    pl_dtype dtype[PL_VALUE_KIND_COUNT];
} pl_kept_values;

static inline bool pl_keeps(const pl_kept_values *kept, pl_value_kind kind)
{
    return kept->dtype[kind] != PL_DTYPE_COUNT;
}

/* What training under PRECISION and OPTIMIZER keeps: parameters in the type they are gathered in
 * (ignored ones fp32, frozen ones as stored), masters where that type is not fp32, moments of
 * AdamW. KEPT has room for the tensors of MODEL. */
void pl_kept_values_of_training(pl_kept_values *kept, const pl_model *model,
                                const pl_precision *precision, pl_optimizer optimizer);

/* Bytes of one row of TENSOR, over all kinds kept, and of one kind (0: not kept). */
int64_t pl_kept_row_bytes(const pl_tensor *tensor, const pl_kept_values *kept);
int64_t pl_kept_kind_row_bytes(const pl_tensor *tensor, const pl_kept_values *kept,
                               pl_value_kind kind);

/* One piece of a checkpoint: rows of one kind of one tensor in one rank's file. */
typedef struct pl_checkpoint_box {
    int32_t tensor; /* number in the model's list */
    uint8_t kind;   /* pl_value_kind */
    uint8_t dtype;  /* pl_dtype */
    int64_t row_begin, row_end;
    int64_t bytes;
    int64_t offset;    /* of its first byte in the rank's file */
    int64_t first_sum; /* number of its first block's sum in the rank's sums */
} pl_checkpoint_box;

/* In the order in which they stand in the rank's file: by kind, then by tensor. Owned by the
 * caller, freed with pl_checkpoint_boxes_free. All zeroes is the empty list. */
typedef struct pl_checkpoint_boxes {
    pl_checkpoint_box *box;
    size_t count, capacity;
    int64_t bytes; /* of all */
    int64_t sums;  /* how many */
} pl_checkpoint_boxes;

/* The boxes that RANK writes under LAYOUT; offsets are left 0. KEPT has an element for each tensor
 * of MODEL. Errors: PL_NO_MEMORY; PL_BAD_INPUT when bytes do not fit 63 bits. */
pl_status pl_checkpoint_boxes_of_rank(pl_checkpoint_boxes *out, const pl_model *model,
                                      const pl_kept_values *kept, const pl_layout *layout,
                                      int64_t rank);
void pl_checkpoint_boxes_free(pl_checkpoint_boxes *boxes);

/* The box of KIND and TENSOR, or NULL. */
const pl_checkpoint_box *pl_checkpoint_boxes_find(const pl_checkpoint_boxes *boxes,
                                                  pl_value_kind kind, int64_t tensor);

/* A sum for each block of so many bytes of a box; the last block of a box may be shorter. */
enum { PL_CHECKPOINT_BLOCK = 1 << 20 };

static inline int64_t pl_checkpoint_blocks(int64_t bytes)
{
    return bytes / PL_CHECKPOINT_BLOCK + (bytes % PL_CHECKPOINT_BLOCK != 0);
}

/* Add a box behind the others and set its first_sum. Errors as above. */
pl_status pl_checkpoint_boxes_add(pl_checkpoint_boxes *boxes, const pl_checkpoint_box *box);

#ifdef __cplusplus
}
#endif
#endif
