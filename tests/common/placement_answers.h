/* What suites of placements check, and faulty variants of it, with which they show that their
 * checks can fail.
 */
#ifndef PL_TESTS_COMMON_PLACEMENT_ANSWERS_H
#define PL_TESTS_COMMON_PLACEMENT_ANSWERS_H

#include <stdint.h>

#include "common/layout.h"
#include "common/placement.h"

typedef struct answers {
    pl_rank_set (*group)(const pl_layout *layout, pl_group_role role, int64_t rank);
    pl_box (*dense)(const pl_layout *layout, int64_t rows, int64_t rank);
    pl_box (*expert)(const pl_layout *layout, int64_t experts, int64_t rows, int64_t rank);
} answers;

static const answers own_answers = {pl_layout_group, pl_placement_dense_box,
                                    pl_placement_expert_box};

/* MPI's way of cutting: the first rows%S members hold one more. */
static inline pl_box balanced_box(const pl_layout *layout, int64_t rows, int64_t rank)
{
    int64_t i = pl_layout_group_index(layout, PL_GROUP_DENSE_SHARD, rank);
    int64_t each = rows / layout->dense_shards, more = rows % layout->dense_shards;
    int64_t begin = i * each + (i < more ? i : more);
    pl_box box = {begin, begin + each + (i < more)};
    return box;
}

/* Every owner holds the experts of the next one. */
static inline pl_box next_owner_box(const pl_layout *layout, int64_t experts, int64_t rows,
                                    int64_t rank)
{
    pl_box box = pl_placement_expert_box(layout, experts, rows, rank);
    int64_t by = experts / layout->ep * rows;
    if (box.end + by > experts * rows) by -= experts * rows;
    box.begin += by;
    box.end += by;
    return box;
}

/* The ep axis outside the shard axis instead of inside. */
static inline pl_rank_set outer_ep_group(const pl_layout *layout, pl_group_role role, int64_t rank)
{
    if (role != PL_GROUP_EXPERT_OWNER) return pl_layout_group(layout, role, rank);
    int64_t stride = layout->expert_shards;
    pl_rank_set set = pl_rank_set_single(rank - rank / stride % layout->ep * stride);
    pl_rank_set_nest(&set, layout->ep, stride);
    return set;
}

/* Cut through experts although the grain says whole ones. */
static inline pl_box row_grain_box(const pl_layout *layout, int64_t experts, int64_t rows,
                                   int64_t rank)
{
    pl_layout other = *layout;
    other.grain = PL_GRAIN_ROW;
    return pl_placement_expert_box(&other, experts, rows, rank);
}

/* One row too many, held by the next member too. */
static inline pl_box shifted_box(const pl_layout *layout, int64_t rows, int64_t rank)
{
    pl_box box = pl_placement_dense_box(layout, rows, rank);
    if (box.end < rows && box.end > box.begin) ++box.end;
    return box;
}

#endif
