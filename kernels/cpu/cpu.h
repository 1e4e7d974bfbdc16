/* The CPU backend: device memory is host memory, every call is done when it returns, products are
 * single-threaded BLAS calls on tiles, and everything is split over the workers of one pool.
 */
#ifndef PL_KERNELS_CPU_CPU_H
#define PL_KERNELS_CPU_CPU_H

#include "kernels/cpu/pool.h"
#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Open the backend with WORKERS workers (0: one for each processor the process may use). A small
 * product is compared with plain loops first. Errors: PL_BAD_INPUT for a wrong number of workers or
 * PLEAT_CPU_ISA; PL_UNSUPPORTED for an instruction set that is not there, and, naming the library
 * and both values, when the BLAS library computes wrongly here; PL_NO_MEMORY; PL_IO_FAILED when
 * threads cannot be made. The caller closes it. */
pl_status pl_backend_cpu_open(pl_backend **out, int workers);

/* Instruction sets that the operations are built for, and whether this processor has them. The
 * backend takes the best; the environment variable PLEAT_CPU_ISA names another one (for tests):
 * "baseline", "avx2", "avx512". */
typedef enum pl_cpu_isa {
    PL_CPU_BASELINE,
    PL_CPU_AVX2,
    PL_CPU_AVX512,
    PL_CPU_ISA_COUNT
} pl_cpu_isa;

const char *pl_cpu_isa_name(pl_cpu_isa isa); /* as in PLEAT_CPU_ISA */
bool pl_cpu_isa_usable(pl_cpu_isa isa);

/* --- for the files of this folder --- */

typedef struct pl_cpu_backend {
    pl_backend head;
    pl_pool *pool;
    char description[160];
} pl_cpu_backend;

typedef struct pl_cpu_device {
    pl_device head;
    pl_pool *pool;
    struct pl_cpu_memory *memory; /* kernels/cpu/memory.h */
    void *workspace;              /* pl_cpu_workspace */
    size_t workspace_bytes;
} pl_cpu_device;

static inline pl_pool *pl_cpu_pool(const pl_device *device)
{
    return ((const pl_cpu_device *)device)->pool;
}

/* Record a failure of operation WHAT with the entry it was called for, and return CODE. */
pl_status pl_cpu_refuse(const pl_device *device, pl_status code, const char *what,
                        const char *format, ...) __attribute__((format(printf, 4, 5)));

/* PL_UNSUPPORTED for all types but fp32, naming operation and entry. */
pl_status pl_cpu_require_fp32(const pl_device *device, const char *what, pl_dtype dtype);

/* PL_INTERNAL unless HOLDS: operation WHAT was given arguments that contradict its description.
 * RULE says what should be true: "rows and cols are at least 0". */
pl_status pl_cpu_require(const pl_device *device, const char *what, bool holds, const char *rule);

/* *ELEMENTS = A * B * C, each at least 0, in a size that leaves room for eight bytes an element.
 * PL_INTERNAL otherwise. */
pl_status pl_cpu_elements(const pl_device *device, const char *what, int64_t *elements, int64_t a,
                          int64_t b, int64_t c);

/* Memory of at least BYTES for what the tasks of one operation leave for the operation's next
 * tasks (their own scratch is not shared): the device's own, 64-byte aligned, contents undefined,
 * good until the next call of this function with this device. Errors: PL_NO_MEMORY. */
pl_status pl_cpu_workspace(pl_device *device, int64_t bytes, void **out);

/* A factor of a product in the calling thread: STRIDE is that of the array as it is stored. */
typedef struct pl_cpu_factor {
    const float *values;
    int64_t stride;
    bool transpose;
} pl_cpu_factor;

/* c[m, n] = op(a) op(b) (+ c when `add`), fp32, by one single-threaded BLAS call, in the calling
 * thread. For tasks that have their own tile. Sizes and strides fit 31 bits, strides are at least
 * 1. k = 0 gives zeroes (or c). */
void pl_cpu_multiply(int64_t m, int64_t n, int64_t k, pl_cpu_factor a, pl_cpu_factor b, bool add,
                     float *c, int64_t c_stride);

static inline pl_cpu_factor pl_cpu_factor_of(const float *values, int64_t stride, bool transpose)
{
    pl_cpu_factor factor = {values, stride, transpose};
    return factor;
}

#ifdef __cplusplus
}
#endif
#endif
