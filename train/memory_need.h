/* Whether the memory of this machine is enough for a run, looked at before it begins: a system that
 * promises more than it has ends a process without a word when it runs out.
 */
#ifndef PL_TRAIN_MEMORY_NEED_H
#define PL_TRAIN_MEMORY_NEED_H

#include "common/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes that RANK holds at most, by the plan's begins and ends in plan order, host buffers
 * included; R is tokens x experts per token, its mean over ranks. With KEEPS_SAVED the host buffers
 * of `save` stay beside the next steps. What a backend needs beside the buffers of the plan is not
 * in it. */
int64_t pl_memory_need(const pl_plan *plan, int64_t rank, bool keeps_saved);

/* Bytes that this process can still get: what the system calls available, or the limit of the
 * topmost memory group that the process sees, whichever is less. Negative when the system does not
 * say. */
int64_t pl_memory_available(void);

/* Refuse ranks FIRST to FIRST + COUNT - 1 of PLAN, those of one process of NEIGHBOURS alike on this
 * machine, if AVAILABLE bytes (negative: unknown, nothing is refused) are not enough for them.
 * Errors: PL_BAD_INPUT, naming both numbers and what would make the first smaller. */
pl_status pl_memory_require(const pl_plan *plan, bool keeps_saved, int64_t first, int64_t count,
                            int64_t neighbours, int64_t available);

#ifdef __cplusplus
}
#endif
#endif
