/* Placement: which rows of which tensor a rank holds. The one answer to that question.
 *
 * Rows are cut in ceil chunks: c = ceil(rows/S), member i of the shard group owns
 * [min(i c, rows), min((i+1) c, rows)), so trailing members may hold less or nothing. Routed
 * experts are first cut by owner (E/ep whole experts each, exact), then inside the shard group;
 * with grain=expert the inner cut counts whole experts instead of rows. Buffers are padded to c.
 * Source of the rule: FSDP2's dim-0 sharding (reference/layouts-and-fsdp §4.1).
 * Ignored tensors are held whole. All functions are pure and O(1).
 */
#ifndef PL_COMMON_PLACEMENT_H
#define PL_COMMON_PLACEMENT_H

#include <stdint.h>

#include "common/layout.h"
#include "common/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows [begin, end) of the global (stacked) tensor; empty when equal. */
typedef struct pl_box {
    int64_t begin, end;
} pl_box;

/* Whether LAYOUT can hold MODEL: ep divides the number of experts, ep is 1 for a dense model, pp
 * does not exceed the layers. Errors: PL_BAD_INPUT with both numbers and what would fit. */
pl_status pl_placement_check(const pl_layout *layout, const pl_model *model);

/* The box of TENSOR that RANK holds. Replicas hold equal boxes. */
pl_box pl_placement_box(const pl_layout *layout, const pl_tensor *tensor, int64_t rank);

/* Rows that every member's buffer for TENSOR is padded to: the chunk c. */
int64_t pl_placement_padded_rows(const pl_layout *layout, const pl_tensor *tensor);

/* The group over which TENSOR's class is sharded, and the one over which it is replicated.
 * Ignored tensors: PL_GROUP_NONE and PL_GROUP_STAGE. */
pl_group_role pl_placement_shard_role(const pl_tensor *tensor);
pl_group_role pl_placement_replica_role(const pl_tensor *tensor);

/* The same boxes from bare numbers: a dense tensor of ROWS rows; EXPERTS stacked experts of ROWS
 * rows each. For callers without a model (tests, tools). */
pl_box pl_placement_dense_box(const pl_layout *layout, int64_t rows, int64_t rank);
pl_box pl_placement_expert_box(const pl_layout *layout, int64_t experts, int64_t rows,
                               int64_t rank);
int64_t pl_placement_dense_padded(const pl_layout *layout, int64_t rows);
int64_t pl_placement_expert_padded(const pl_layout *layout, int64_t experts, int64_t rows);

#ifdef __cplusplus
}
#endif
#endif
