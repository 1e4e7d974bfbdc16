/* What the operations with norms share. */
#ifndef PL_KERNELS_CPU_ISA_NORM_H
#define PL_KERNELS_CPU_ISA_NORM_H

#include "kernels/cpu/isa.h"
#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* to[cols] = the sum of the BLOCKS rows of PARTIAL, or to += with ADD: in order. */
pl_status PL_ISA(pl_cpu_add_partials)(pl_device *device, const float *partial, int64_t blocks,
                                      int64_t cols, bool add, float *to);

#ifdef __cplusplus
}
#endif
#endif
