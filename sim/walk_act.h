/* An entry at work in a walk, for the files that say what entries do to values. Private to
 * sim/walk_values.c and sim/walk_calls.c.
 */
#ifndef PL_SIM_WALK_ACT_H
#define PL_SIM_WALK_ACT_H

#include "sim/walk.h"

/* An entry at work on a rank. */
typedef struct act {
    pl_walk *walk;
    pl_walk_rank *r;
    int64_t rank;
    const pl_entry *entry;
    const pl_use *uses;
} act;

static inline act begin(pl_walk *walk, int64_t rank, const pl_entry *entry)
{
    pl_walk_rank *r = &walk->ranks[rank];
    act a = {walk, r, rank, entry, r->section->uses + entry->use_first};
    return a;
}

static inline const pl_buffer *buffer_of(const act *a, uint32_t use)
{
    return &a->r->section->buffers[a->uses[use].buffer];
}

static inline pl_value *value_of(const act *a, uint32_t use)
{
    return &a->r->value[a->uses[use].buffer];
}

static inline bool is_backward(const act *a)
{
    return a->entry->name.pass >= PL_PASS_BACKWARD_INPUTS;
}

static inline pl_value own_factor(const act *a)
{
    const pl_expected_place *place = &a->walk->world->groups.place[PL_GROUP_EXPERT_OWNER][a->rank];
    return pl_value_random(PL_RANDOM_OWNER, place->index, 0, 0);
}

/* An entry's exact factor, TOTAL standing for T. */
static inline pl_value factor_of(const pl_entry *entry, pl_value total)
{
    pl_value factor = pl_value_multiply((pl_value)entry->scale.numerator,
                                        pl_value_inverse((pl_value)entry->scale.denominator));
    if (entry->scale.tokens > 0) factor = pl_value_multiply(factor, total);
    if (entry->scale.tokens < 0) factor = pl_value_multiply(factor, pl_value_inverse(total));
    return factor;
}

/* A reduction is where a sum first covers the wrong ranks, and control is where the host learns it:
 * what must hold once the results of a collective are there (walk_values.c). */
void pl_walk_check_sums(pl_walk *walk, int64_t rank, const pl_entry *entry);

#endif
