/* Moving values by several threads: work that is cut into tasks, which any thread may take.
 *
 * Memory is bounded by what each thread has in its room; the first failure ends the work.
 */
#ifndef PL_CKPT_STORE_TASKS_H
#define PL_CKPT_STORE_TASKS_H

#include <stdint.h>

#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PL_STORE_THREADS_MOST = 1024 };

/* How far the work is, called on the thread that waits for it, a few times a second. */
typedef void (*pl_store_progress)(void *context, int64_t done, int64_t bytes);

/* Do task NUMBER with ROOM, which nobody else uses meanwhile, and add to *MOVED the bytes that it
 * moved. */
typedef pl_status (*pl_store_task)(void *context, int64_t number, char *room, int64_t *moved);

typedef struct pl_store_tasks {
    int64_t count;
    pl_store_task run;
    void *context;
    int64_t room;               /* bytes that each thread needs */
    int threads;                /* at most PL_STORE_THREADS_MOST; as many as can be started work */
    pl_store_progress progress; /* NULL: none */
    void *progress_context;
    int64_t done, bytes; /* moved before this work, and in all: for progress */
} pl_store_tasks;

/* Do all tasks. Errors: those of the task that failed first, with its words; PL_IO_FAILED when no
 * thread can be started; PL_NO_MEMORY. */
pl_status pl_store_do_tasks(const pl_store_tasks *tasks);

/* Threads to work with where nobody said how many: as many as processors, 8 at most, which is more
 * than a disk keeps busy. */
int pl_store_threads(void);

#ifdef __cplusplus
}
#endif
#endif
