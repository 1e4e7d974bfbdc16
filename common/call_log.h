/* What backends and process groups were asked to do, written by themselves from their own
 * arguments: a test compares it with the plan, entry for entry.
 *
 * A process group makes one record of each call that it started, with these bytes, summed over the
 * segments of a call that has several (n members, an element type of b bytes, counts as said at
 * pl_collective):
 *
 *     all-gather                  n * count * b: all that the member receives
 *     reduce-scatter, all-to-all  n * count * b: all that it contributes
 *     all-reduce, broadcast       count * b
 *     all-to-all-uneven           sum of send_counts * b: what it sends, itself included
 *     send-receive                sum of the counts it sends * b
 *     barrier                     0
 *
 * They are the `bytes` of the call's entry (common/plan.h); where those are a row of an exchange
 * (`*C`), they are rows sent times that. Touches are the buffers as they lie in memory, ranges that
 * continue one another joined: send is read, recv is written; an all-reduce in place reads and
 * writes; a broadcast reads recv on the root and writes it elsewhere.
 */
#ifndef PL_COMMON_CALL_LOG_H
#define PL_COMMON_CALL_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/entry.h"
#include "common/rank_set.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PL_CALL_TOUCHES = 24 };

/* A range of memory that a call reads or writes (what it updates counts as written and read). */
typedef struct pl_touch {
    const void *start;
    int64_t bytes;
    bool read, written;
} pl_touch;

/* One call of a device operation, or of a process group. */
typedef struct pl_call_record {
    const char *what;    /* name of the operation or collective; static */
    pl_entry_name entry; /* the entry it was made for */
    pl_stream stream;
    int64_t flops;   /* of products: two a multiply-add; attention scores uncut by the mask */
    bool collective; /* the fields below are set */
    uint8_t reduction, dtype;   /* pl_reduction, pl_dtype: of the call or its first segment */
    bool one_dtype;             /* every segment has that type */
    const pl_rank_set *members; /* borrowed during the call */
    int64_t bytes;              /* as said above; at most INT64_MAX */
    int touch_count;            /* may exceed PL_CALL_TOUCHES: the rest was not kept */
    pl_touch touch[PL_CALL_TOUCHES];
} pl_call_record;

/* Where records go: called by the rank's own thread, in the order of the calls. */
typedef struct pl_call_log {
    void (*record)(void *context, const pl_call_record *record);
    void *context;
} pl_call_log;

#ifdef __cplusplus
}
#endif
#endif
