/* A plan from a file, run instead of the one that would be made: an edited one does its damage.
 */
#ifndef PL_TRAIN_GIVEN_PLAN_H
#define PL_TRAIN_GIVEN_PLAN_H

#include "common/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Put the plan in FILE in the place of PLAN, which was made for the run; programs that FILE lacks
 * stay as made. Errors: PL_BAD_INPUT when the file is none, or is for another model, layout, shape,
 * precision or optimizer, naming both, or has no step; PL_IO_FAILED, PL_NO_MEMORY. PLAN is
 * unchanged then. */
pl_status pl_given_plan_take(pl_plan *plan, const char *file);

#ifdef __cplusplus
}
#endif
#endif
