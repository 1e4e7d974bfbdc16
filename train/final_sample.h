/* What a run shows at its end of what it learned. */
#ifndef PL_TRAIN_FINAL_SAMPLE_H
#define PL_TRAIN_FINAL_SAMPLE_H

#include "kernels/device.h"
#include "train/recorder.h"
#include "train/setup.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Read the weights that the run has just written, draw some text with them, and show and record
 * it. Nothing is done for data that are not text; where it cannot be drawn (memory), only the
 * reason is shown, the run being over. Errors: PL_IO_FAILED, PL_NO_MEMORY when it cannot be
 * recorded. */
pl_status pl_final_sample(const pl_setup *setup, pl_backend *backend, pl_recorder *recorder,
                          pl_console *console);

#ifdef __cplusplus
}
#endif
#endif
