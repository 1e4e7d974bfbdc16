/* A bar on standard error for what takes long: drawn on a terminal only, and not before two seconds
 * have passed. */
#ifndef PL_CKPT_PROGRESS_H
#define PL_CKPT_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_progress {
    bool terminal, drawn;
    int width; /* columns of the terminal; 0: not known */
    double began;
} pl_progress;

/* It begins now. */
pl_progress pl_progress_begin(void);

/* DONE of BYTES bytes are read: the bar, the rate and the time that is left. */
void pl_progress_show(pl_progress *progress, int64_t done, int64_t bytes);

/* Wipe it away. */
void pl_progress_end(pl_progress *progress);

/* Seconds since it began. */
double pl_progress_seconds(const pl_progress *progress);

#ifdef __cplusplus
}
#endif
#endif
