/* Calls that cannot be right, whatever the other members do. */
#ifndef PL_COMMON_CALL_CHECK_H
#define PL_COMMON_CALL_CHECK_H

#include "common/process_group.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Check all of CALL that can be checked without the others: kinds, counts, missing buffers, buffers
 * that overlap. Errors: PL_INTERNAL, with rank, call and group, and the segment where it has
 * several. */
pl_status pl_call_check(const pl_process_group *group, const pl_call *call);

#ifdef __cplusplus
}
#endif
#endif
