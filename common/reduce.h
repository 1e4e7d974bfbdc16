/* Sums, averages and maxima over the members of a group, in member order. */
#ifndef PL_COMMON_REDUCE_H
#define PL_COMMON_REDUCE_H

#include "common/call_match.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Most elements that one call of a pl_reducer is asked for. */
enum { PL_REDUCE_BLOCK = 512 };

/* RESULT[0..count) = the reduction over POSTED[size] of send[offset..offset + count) of segment
 * SEGMENT, with its element type and the reduction of the calls; every input is read before RESULT
 * is written. */
typedef void (*pl_reducer)(void *result, const pl_posted_call *posted, int64_t size, int segment,
                           int64_t offset, int count);

/* The reducer of process_group.h: ((s0 + s1) + s2) + ..., in fp32 for bf16 and fp16 with one
 * rounding at the end, in the element type otherwise. Integer sums wrap. An average is the sum
 * divided by the size, before that rounding. A maximum with a NaN is a NaN. One member: a copy. */
void pl_reduce_elements(void *result, const pl_posted_call *posted, int64_t size, int segment,
                        int64_t offset, int count);

#ifdef __cplusplus
}
#endif
#endif
