/* The map of a checkpoint: which rank's file has which rows of what.
 *
 * Every reader goes by it: it says where rows lie, and that the pieces of each kind of each tensor
 * cover it exactly once.
 */
#ifndef PL_CKPT_MANIFEST_MAP_H
#define PL_CKPT_MANIFEST_MAP_H

#include "ckpt/manifest_rank.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows [row_begin, row_end) of one kind of one tensor. */
typedef struct pl_checkpoint_piece {
    int64_t row_begin, row_end;
    int64_t offset;    /* in the file of the rank */
    int64_t first_sum; /* number of its first block's sum in the rank's sums */
    int32_t source;    /* place of the rank in the manifest's list */
    int32_t tensor;
    uint8_t kind;
} pl_checkpoint_piece;

/* What is known of each rank's file. */
typedef struct pl_checkpoint_source {
    int64_t rank;
    int64_t bytes, sums; /* of the HDF5 file; how many sums */
    uint64_t outside_hash, sums_hash;
} pl_checkpoint_source;

/* Owned by the caller, freed with pl_checkpoint_map_free. Sorted by kind, tensor and rows. */
typedef struct pl_checkpoint_map {
    pl_checkpoint_piece *piece;
    size_t count, capacity;
    size_t *first; /* [kinds * tensors + 1]: where those of kind * tensors + tensor begin */
    pl_checkpoint_source *source; /* [ranks of the manifest] */
} pl_checkpoint_map;

/* Make the map from the lists of all ranks, one after another: of each rank only its pieces stay in
 * memory. With COMPLETE, every tensor must be covered. Errors: those of pl_rank_boxes_read;
 * PL_BAD_INPUT naming the tensor, its rows and the ranks where rows are there twice or not at all.
 */
pl_status pl_checkpoint_map_read(pl_checkpoint_map *out, const pl_manifest *manifest,
                                 const char *folder);

/* The steps of that, for who goes on where a list is damaged: a map of RANKS files without pieces;
 * the pieces of the rank at place SOURCE; and, after all of them, their order, without which
 * pl_checkpoint_map_pieces cannot be asked. The caller frees after a failure too. Errors:
 * PL_NO_MEMORY. */
pl_status pl_checkpoint_map_begin(pl_checkpoint_map *map, int64_t ranks);
pl_status pl_checkpoint_map_add(pl_checkpoint_map *map, const pl_rank_boxes *rank, int64_t source);
pl_status pl_checkpoint_map_sort(pl_checkpoint_map *map, const pl_model *model);

/* Rows that are in no rank's file, or in those of two ranks. */
typedef struct pl_cover_fault {
    int64_t row_begin, row_end;
    int64_t first, second; /* the two ranks; -1: in none */
    int32_t tensor;
    uint8_t kind;
} pl_cover_fault;

typedef pl_status (*pl_cover_visit)(void *context, const pl_cover_fault *fault);

/* Call VISIT with each fault of a sorted map. Errors: those of VISIT. */
pl_status pl_checkpoint_map_check(const pl_checkpoint_map *map, const pl_model *model,
                                  const pl_kept_values *kept, pl_cover_visit visit, void *context);

/* Add "are in no rank's file" or "are twice there: rank 1 and rank 3". */
void pl_cover_fault_print(pl_text *text, const pl_cover_fault *fault);

/* The same of the boxes that the ranks of LAYOUT would write, without any file: offsets are 0. */
pl_status pl_checkpoint_map_plan(pl_checkpoint_map *out, const pl_model *model,
                                 const pl_kept_values *kept, const pl_layout *layout);

void pl_checkpoint_map_free(pl_checkpoint_map *map);

/* The pieces of KIND and TENSOR, *COUNT of them, by rows. TENSORS: how many the model has. */
const pl_checkpoint_piece *pl_checkpoint_map_pieces(const pl_checkpoint_map *map, int64_t tensors,
                                                    pl_value_kind kind, int64_t tensor,
                                                    size_t *count);

/* The number, in those COUNT pieces, of the first that ends behind ROW. */
size_t pl_checkpoint_piece_at(const pl_checkpoint_piece *pieces, size_t count, int64_t row);

/* Add "rows 0-99 of model.norm.weight (adam_m)". */
void pl_checkpoint_rows_print(pl_text *text, const pl_tensor *tensor, pl_value_kind kind,
                              int64_t row_begin, int64_t row_end);

#ifdef __cplusplus
}
#endif
#endif
