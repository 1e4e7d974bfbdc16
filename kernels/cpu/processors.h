/* How many processors there are for this process. */
#ifndef PL_KERNELS_CPU_PROCESSORS_H
#define PL_KERNELS_CPU_PROCESSORS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Processors that the calling thread may run on (its affinity); all that are online where that
 * cannot be asked. At least 1. */
int pl_cpu_processors(void);

#ifdef __cplusplus
}
#endif
#endif
