#include "kernels/cpu/isa/operations.h"

static const pl_operations operations = {
#define PL_OPERATION(name, arguments) .name = PL_ISA(pl_cpu_##name),
    PL_DEVICE_OPERATIONS(PL_OPERATION)
#undef PL_OPERATION
};

const pl_operations *PL_ISA(pl_cpu_operations)(void) { return &operations; }
