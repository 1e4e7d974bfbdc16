/* The BLAS library behind pl_cpu_multiply: made single-threaded, and compared with plain loops. */
#ifndef PL_KERNELS_CPU_BLAS_H
#define PL_KERNELS_CPU_BLAS_H

#include "kernels/cpu/cpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The form of pl_cpu_multiply. */
typedef void (*pl_cpu_product_function)(int64_t m, int64_t n, int64_t k, pl_cpu_factor a,
                                        pl_cpu_factor b, bool add, float *c, int64_t c_stride);

/* Make the library's calls run in the calling thread. Before any product. */
void pl_cpu_blas_open(void);

/* Compare PRODUCT with plain loops on a few shapes, odd ones and both transposes among them.
 * Errors: PL_UNSUPPORTED naming library, shape, place and both values; PL_NO_MEMORY. */
pl_status pl_cpu_blas_check(pl_cpu_product_function product);

/* "OpenBLAS 0.3.21 (SkylakeX)": the library and the kernels that it chose for this processor, in
 * BUFFER of SIZE bytes. Returns BUFFER. */
const char *pl_cpu_blas_describe(char *buffer, int size);

/* The name that OPENBLAS_CORETYPE should have when the program starts, because the library does
 * not know this processor and chose kernels far below what it can do; NULL when there is nothing
 * to be had, or somebody has set the variable. OpenBLAS reads it once, when it is loaded. */
const char *pl_cpu_blas_better_core(void);

#ifdef __cplusplus
}
#endif
#endif
