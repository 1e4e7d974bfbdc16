/* pleat-sim check --checkpoint.
 */
#ifndef PL_SIM_CHECK_CHECKPOINT_H
#define PL_SIM_CHECK_CHECKPOINT_H

#include "sim/options.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Prove the checkpoint of OPTIONS, and that their layouts (none: its own) can load it, and print
 * what was found. Errors: PL_CHECK_FAILED when a proof fails; PL_BAD_INPUT for a checkpoint or a
 * layout that cannot be looked at, or options that do not go with it; PL_UNSUPPORTED; PL_IO_FAILED;
 * PL_NO_MEMORY. */
pl_status pl_check_checkpoint(pl_output *output, const pl_options *options, const pl_usage *usage);

#ifdef __cplusplus
}
#endif
#endif
