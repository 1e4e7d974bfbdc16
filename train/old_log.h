/* The log of a run that goes on: what of it stays.
 *
 * Steps behind the checkpoint are done again, so their lines go, as do those of an end that was
 * none; each step then stands in the log once, behind the line of the run that did it.
 */
#ifndef PL_TRAIN_OLD_LOG_H
#define PL_TRAIN_OLD_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A loss that stays: of a step, or of an evaluation. */
typedef struct pl_old_loss {
    int64_t step;
    double loss;
    bool held_out;
} pl_old_loss;

typedef struct pl_old_log {
    pl_text kept; /* whole lines */
    pl_old_loss *losses;
    size_t count, capacity;
} pl_old_log;

/* Take from FILE the lines of steps up to STEP. A file that is not there is empty; a last line
 * without an end, which a killed process leaves, is dropped. The caller frees with pl_old_log_free.
 * Errors: PL_BAD_INPUT with file and line for what is no line of a log; PL_IO_FAILED, PL_NO_MEMORY.
 */
pl_status pl_old_log_read(pl_old_log *out, const char *file, int64_t step);
void pl_old_log_free(pl_old_log *log);

#ifdef __cplusplus
}
#endif
#endif
