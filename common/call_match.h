/* Calls as the members of a group posted them: whether they fit together, and words about them.
 * For the backends of common/process_group.h; nothing here blocks, locks or moves data.
 */
#ifndef PL_COMMON_CALL_MATCH_H
#define PL_COMMON_CALL_MATCH_H

#include "common/process_group.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PL_CALL_ABSENT, PL_CALL_POSTED, PL_CALL_WAITED }; /* pl_posted_call.state */

/* One member's part of a call. What call.name points to is copied, so that words can be made
 * whenever they are needed. Stays where it was made: it points into itself. */
typedef struct pl_posted_call {
    pl_call call; /* call.name = &name */
    pl_entry_name name;
    pl_segment plain;           /* the plain form as one segment */
    const pl_segment *segments; /* &plain or call.segments; alive until the member's wait returns */
    int segment_count;          /* at least 1 */
    int state;
} pl_posted_call;

/* Whether calls of COLLECTIVE may be made of segments. */
static inline bool pl_collective_has_segments(pl_collective collective)
{
    return collective == PL_ALL_GATHER || collective == PL_REDUCE_SCATTER ||
           collective == PL_ALL_REDUCE || collective == PL_ALL_TO_ALL || collective == PL_BROADCAST;
}

/* The segments of CALL in *SEGMENTS_OUT: its own, or in the plain form one made of its send, recv,
 * count and dtype in *PLAIN. Returns their number, at least 1. */
static inline int pl_call_segments(const pl_call *call, pl_segment *plain,
                                   const pl_segment **segments_out)
{
    if (call->segment_count > 0) {
        *segments_out = call->segments;
        return call->segment_count;
    }
    plain->send = call->send;
    plain->recv = call->recv;
    plain->count = call->count;
    plain->dtype = call->dtype;
    *segments_out = plain;
    return 1;
}

/* Make CALL, checked by pl_call_check, what POSTED holds. */
static inline void pl_call_put(pl_posted_call *posted, const pl_call *call)
{
    posted->call = *call;
    posted->name = *call->name;
    posted->call.name = &posted->name;
    posted->segment_count = pl_call_segments(call, &posted->plain, &posted->segments);
    posted->state = PL_CALL_POSTED;
}

/* Add "all-reduce sum (reduce layer.3 round 0, 128 x fp32)", or "..., 3 segments)". Does not look
 * at segments, which may be gone by then. */
void pl_call_print(pl_text *text, const pl_call *call);

/* Add "dense-shard {1,5}". */
void pl_group_print(pl_text *text, pl_group_role role, const pl_rank_set *members);

/* Add "; not arrived: 5, 7" for the members of POSTED[size] that are absent, nothing when all
 * have come. */
void pl_call_print_absent(pl_text *text, const pl_process_group *group,
                          const pl_posted_call *posted);

/* Record TEXT as the words of a failure, free it, and return CODE. */
pl_status pl_fail_with_text(pl_status code, pl_text *text);

/* Whether members FIRST and SECOND of GROUP posted the same call, segment for segment. Errors:
 * PL_INTERNAL, with both. */
pl_status pl_call_match(const pl_process_group *group, const pl_posted_call *posted, int64_t first,
                        int64_t second);

/* Whether what members send each other is what they expect: counts of an uneven all-to-all,
 * partners and counts of transfers. POSTED[size] is complete and matched pairwise. O(size^2).
 * Errors: PL_INTERNAL, naming both members and their calls. */
pl_status pl_call_match_counts(const pl_process_group *group, const pl_posted_call *posted);

/* The other end of transfer INDEX of MEMBER: with k transfers of the same direction and peer
 * before it, the peer's transfer number k of the opposite direction with this member. NULL when
 * there is none. */
const pl_transfer *pl_transfer_partner(const pl_posted_call *posted, int64_t member, int index);

#ifdef __cplusplus
}
#endif
#endif
