/* A set of ranks in closed form: nested strides, never a list.
 *
 * Members are base + i0*stride0 + i1*stride1 + ... with 0 <= i_a < count_a, axis 0 slowest. A
 * member's index is its place in that order. Everything here is O(number of axes), whatever the
 * size of the world.
 */
#ifndef PL_COMMON_RANK_SET_H
#define PL_COMMON_RANK_SET_H

#include <stdbool.h>
#include <stdint.h>

#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PL_RANK_SET_AXES = 4 };

typedef struct pl_rank_set {
    int64_t base;
    int axes; /* used entries below; axes of count 1 are left out, so equal sets compare equal */
    struct {
        int64_t count, stride;
    } axis[PL_RANK_SET_AXES];
} pl_rank_set;

/* The set of one rank. */
pl_rank_set pl_rank_set_single(int64_t rank);

/* Put one more axis inside the others (it becomes the fastest). COUNT 1 changes nothing; an axis
 * that continues the one before it (stride_outer = count*stride) is merged with it. */
void pl_rank_set_nest(pl_rank_set *set, int64_t count, int64_t stride);

int64_t pl_rank_set_size(const pl_rank_set *set);

/* Member number INDEX, 0 <= INDEX < size. */
int64_t pl_rank_set_member(const pl_rank_set *set, int64_t index);

/* Place of RANK in the set, or -1 when it is not a member. Requires strides that nest, i.e. each
 * axis spans less than the stride of the axis outside it, as all groups of meshes do. */
int64_t pl_rank_set_index(const pl_rank_set *set, int64_t rank);

bool pl_rank_set_equal(const pl_rank_set *a, const pl_rank_set *b);

/* Add the members to TEXT: "{0..7}" for a run, "{1,5}" for few, "{1,5,9..61 step 4}" style
 * "{1..61:4}" for a stride; nested sets show at most the first eight members and the size. */
void pl_rank_set_print(pl_text *text, const pl_rank_set *set);

#ifdef __cplusplus
}
#endif
#endif
