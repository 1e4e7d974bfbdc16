/* SIGINT and SIGTERM ask a run to stop after the step; a second one ends the process at once.
 *
 * A thread of its own waits for them, so that no handler runs and nothing is global: open this
 * before any other thread is made, since those take over which signals are blocked.
 */
#ifndef PL_TRAIN_SIGNALS_H
#define PL_TRAIN_SIGNALS_H

#include <signal.h>

#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_signals pl_signals;

/* Begin to wait. The caller closes. Errors: PL_NO_MEMORY; PL_IO_FAILED when no thread can be made.
 */
pl_status pl_signals_open(pl_signals **out);

/* The name of the first signal so far, "SIGTERM"; NULL: none. Any thread may ask. */
const char *pl_signals_received(const pl_signals *signals);

/* Not 0 once a signal came: for those who wait (pl_process_group_set_interrupt). */
const volatile sig_atomic_t *pl_signals_flag(const pl_signals *signals);

/* Let signals do again what they did. NULL is allowed. */
void pl_signals_close(pl_signals *signals);

#ifdef __cplusplus
}
#endif
#endif
