/* Records of what a process group was asked to do, for its log (common/call_log.h). */
#ifndef PL_COMMON_CALL_NOTE_H
#define PL_COMMON_CALL_NOTE_H

#include "common/process_group.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Write a record of CALL, checked by pl_call_check, to the log of GROUP, if it has one. For
 * backends, once for each call that they started. */
void pl_call_note(const pl_process_group *group, const pl_call *call);

#ifdef __cplusplus
}
#endif
#endif
