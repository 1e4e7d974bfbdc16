/* Memory and sizes.
 *
 * Every allocation goes through these functions, so that each multiplication is checked, each
 * failure has words, and a test can make the n-th allocation of its thread fail.
 */
#ifndef PL_COMMON_MEMORY_H
#define PL_COMMON_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Allocate COUNT zeroed elements of SIZE bytes and store the pointer in *(void **)POINTER_OUT.
 * COUNT 0 gives a valid pointer. WHAT names the thing in the message ("plan entries").
 * The caller frees with pl_free. Errors: PL_NO_MEMORY (overflow of the product included). */
pl_status pl_allocate(void *pointer_out, size_t count, size_t size, const char *what);

/* Make room for NEEDED elements of SIZE bytes in the array *(void **)ARRAY of *CAPACITY
 * elements, growing by at least half; contents are kept, new room is not zeroed. On failure the
 * array is unchanged. Errors: PL_NO_MEMORY. */
pl_status pl_grow(void *array, size_t *capacity, size_t needed, size_t size, const char *what);

/* A copy of TEXT; the caller frees it with pl_free. Errors: PL_NO_MEMORY. */
pl_status pl_duplicate(char **out, const char *text, const char *what);

/* Free what the functions above made. NULL is allowed. */
void pl_free(void *pointer);

/* malloc and free for libraries that take functions for it and do not always say when one failed:
 * the calling thread remembers a failure until it forgets it. */
void *pl_library_allocate(size_t bytes);
void pl_library_free(void *pointer);
int pl_library_failed(void);
void pl_library_forget_failure(void);

/* Some libraries must not be refused a buffer that they double while they read: they go on with
 * the old one and read past its end. Between the two calls below the calling thread has BYTES in
 * reserve, out of which pl_library_allocate serves sizes that are powers of two when memory has
 * failed (the failure is remembered all the same). No pointer that it gave may be used after
 * pl_library_drop_reserve. Errors: PL_NO_MEMORY. */
pl_status pl_library_hold_reserve(size_t bytes, const char *what);
void pl_library_drop_reserve(void);

/* Tests only: let the allocation number AFTER (0 is the next one) of the calling thread fail, and
 * all later ones succeed; negative switches injection off. */
void pl_allocation_fail_after(int64_t after);

/* Tests only: whether the injected failure of the calling thread has happened. */
int pl_allocation_failed(void);

/* *OUT = A * B or A + B. Errors: PL_BAD_INPUT with both numbers and WHAT when the result does not
 * fit 63 bits; negative inputs are refused too, since sizes and counts have no sign. */
pl_status pl_multiply(int64_t *out, int64_t a, int64_t b, const char *what);
pl_status pl_add(int64_t *out, int64_t a, int64_t b, const char *what);

/* ceil(A / B) for A >= 0, B > 0. */
static inline int64_t pl_divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

#ifdef __cplusplus
}
#endif
#endif
