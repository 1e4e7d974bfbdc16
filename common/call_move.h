/* Moving the data of a complete, matched call between the buffers of its members. */
#ifndef PL_COMMON_CALL_MOVE_H
#define PL_COMMON_CALL_MOVE_H

#include "common/call_match.h"
#include "common/reduce.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Part PART of PARTS of a call's work. PARTS is 1 or the size of the group. Parts write disjoint
 * memory, read nothing that another one writes, and may be done by anybody in any order, at once:
 * part p fills the buffers of member p, or for an all-reduce share p of everyone's. */
typedef struct pl_call_part {
    const pl_posted_call *posted; /* [size] */
    int64_t size, part, parts;
    int64_t *offsets; /* [size], scratch; used when PARTS is 1 */
} pl_call_part;

/* Do the part. Cannot fail. */
void pl_call_move(const pl_call_part *part, pl_reducer reduce);

#ifdef __cplusplus
}
#endif
#endif
