/* Memory of a CPU device. Blocks that are let go are kept and given out again, since fresh pages
 * cost more than most operations; what is in use and kept together is at most one and a half times
 * what was once in use together, and the oldest go first. Large blocks ask the system for huge
 * pages. Used by one thread at a time.
 */
#ifndef PL_KERNELS_CPU_MEMORY_H
#define PL_KERNELS_CPU_MEMORY_H

#include <stdint.h>

#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_cpu_memory pl_cpu_memory;

pl_status pl_cpu_memory_open(pl_cpu_memory **out);

/* What is kept goes. All blocks have been released. NULL is allowed. */
void pl_cpu_memory_close(pl_cpu_memory *memory);

/* *OUT = BYTES of memory, 256-byte aligned, contents undefined; NULL for 0. WHAT names it in
 * messages. Errors: PL_NO_MEMORY, PL_BAD_INPUT for a negative number. */
pl_status pl_cpu_memory_allocate(pl_cpu_memory *memory, void **out, int64_t bytes,
                                 const char *what);
void pl_cpu_memory_release(pl_cpu_memory *memory, void *released); /* NULL is allowed */

/* Bytes handed out, and bytes kept to be given out again. */
int64_t pl_cpu_memory_used(const pl_cpu_memory *memory);
int64_t pl_cpu_memory_kept(const pl_cpu_memory *memory);

#ifdef __cplusplus
}
#endif
#endif
