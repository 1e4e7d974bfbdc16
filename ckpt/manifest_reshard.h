/* Resharding, planned: what has to be read and written to bring a checkpoint into another layout.
 *
 * Each rank of the new layout writes its boxes; what stands in a box is read from the pieces that
 * it overlaps. Nothing here touches values.
 */
#ifndef PL_CKPT_MANIFEST_RESHARD_H
#define PL_CKPT_MANIFEST_RESHARD_H

#include "ckpt/manifest_map.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sums over all ranks of the new layout. */
typedef struct pl_reshard_facts {
    int64_t ranks; /* that write something */
    int64_t boxes; /* written */
    int64_t reads; /* pieces of the old checkpoint, counted once for each box that they are in */
    int64_t bytes; /* of values: written, and needed */
    int64_t bytes_read; /* of the old files: whole blocks, each counted once for each read */
    int64_t most_bytes; /* of one rank's boxes */
    int64_t staying;    /* bytes that the rank of the same number had before */
} pl_reshard_facts;

/* Whether checkpoints of MODEL can be in LAYOUT: pp is 1, and the layout can hold the model.
 * Errors: PL_UNSUPPORTED, PL_BAD_INPUT. */
pl_status pl_reshard_check(const pl_layout *layout, const pl_model *model);

/* Go through the boxes of all ranks of LAYOUT, one rank at a time in memory. Errors: PL_NO_MEMORY,
 * PL_BAD_INPUT. */
pl_status pl_reshard_plan(pl_reshard_facts *out, const pl_manifest *manifest,
                          const pl_checkpoint_map *map, const pl_layout *layout);

/* One line of the plan: bytes of one old rank's file that one new rank's box gets. */
typedef struct pl_reshard_move {
    int64_t from, to; /* ranks */
    const pl_checkpoint_box *box;
    const pl_checkpoint_piece *piece;
    int64_t row_begin, row_end;
} pl_reshard_move;

typedef pl_status (*pl_reshard_visitor)(void *context, const pl_reshard_move *move);

/* Call VISIT with all moves in order: by rank, box, rows. Errors: those of VISIT and as above. */
pl_status pl_reshard_walk(const pl_manifest *manifest, const pl_checkpoint_map *map,
                          const pl_layout *layout, pl_reshard_visitor visit, void *context);

#ifdef __cplusplus
}
#endif
#endif
