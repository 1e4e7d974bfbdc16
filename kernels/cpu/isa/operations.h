/* The operations of the CPU backend as one instruction set has them: every function is named
 * PL_ISA(pl_cpu_NAME), its arguments and meaning are those of kernels/device.h. All check what
 * they are given, note themselves in the device's log, and are done when they return.
 */
#ifndef PL_KERNELS_CPU_ISA_OPERATIONS_H
#define PL_KERNELS_CPU_ISA_OPERATIONS_H

#include "kernels/cpu/isa.h"
#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PL_OPERATION(name, arguments)                                                              \
    pl_status PL_ISA(pl_cpu_##name)(pl_device * device, pl_stream stream, const arguments *a);
PL_DEVICE_OPERATIONS(PL_OPERATION)
#undef PL_OPERATION

/* The table of all of them. Static storage. */
const pl_operations *PL_ISA(pl_cpu_operations)(void);

#ifdef __cplusplus
}
#endif
#endif
