/* The worker pool: one a process, for all its ranks.
 *
 * WORKERS tasks at most run at once in the whole process. A rank's thread that brings a job takes
 * part in it, once it has one of the WORKERS places; idle workers join jobs that have tasks left.
 * Whoever must wait blocks; nobody spins. Which worker does which task is not said, so tasks write
 * to places of their own and results do not depend on it. A task brings no job of its own.
 */
#ifndef PL_KERNELS_CPU_POOL_H
#define PL_KERNELS_CPU_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_pool pl_pool;

/* Do task number INDEX. SCRATCH: the bytes asked for, 64-byte aligned, contents undefined. */
typedef void (*pl_task)(void *context, int64_t index, void *scratch);

/* A pool of WORKERS >= 1. Errors: PL_NO_MEMORY; PL_IO_FAILED when threads cannot be made. */
pl_status pl_pool_open(pl_pool **out, int workers);
void pl_pool_close(pl_pool *pool); /* when no job runs; NULL is allowed */
int pl_pool_workers(const pl_pool *pool);

/* Do tasks 0 .. TASKS-1 and return when all are done. Errors: PL_NO_MEMORY for the scratch, before
 * any task has run. */
pl_status pl_pool_run(pl_pool *pool, int64_t tasks, size_t scratch_bytes, pl_task task,
                      void *context);

#ifdef __cplusplus
}
#endif
#endif
