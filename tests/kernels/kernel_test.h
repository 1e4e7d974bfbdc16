/* What suites of CPU operations share: a device of a chosen instruction set and number of workers,
 * its memory, comparison with plain loops in double precision, and the records of the log.
 *
 *     static void body(kernel_test *t, const void *context)
 *     {
 *         float *x = kernel_floats(t, 100), *y = kernel_room(t, 100);
 *         assert_ok(t->operations->...(t->device, PL_STREAM_COMPUTE, &arguments));
 *         kernel_near(y, expected, 100, 1e-6, "y");
 *         kernel_result(t, y, 100 * sizeof *y);
 *     }
 *     ...
 *     kernel_everywhere(body, &shape);
 *
 * runs the body with each instruction set that this processor has and with 1, 2 and 3 workers, and
 * demands that the results are equal bit by bit whatever the number of workers.
 */
#ifndef PL_TESTS_KERNELS_KERNEL_TEST_H
#define PL_TESTS_KERNELS_KERNEL_TEST_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/cpu.h"
#include "tests/test.h"

enum { KERNEL_BLOCKS = 1024, KERNEL_GUARD = 64 };

typedef struct kernel_test {
    pl_backend *backend;
    pl_device *device;
    const pl_operations *operations;
    pl_cpu_isa isa;
    int workers;
    uint64_t random;             /* state of the generator: the same in every run of a body */
    void *blocks[KERNEL_BLOCKS]; /* device memory, released at close */
    int64_t block_bytes[KERNEL_BLOCKS]; /* a guard of KERNEL_GUARD bytes follows, checked then */
    int block_count;
    pl_call_log log;
    pl_call_record record; /* the latest */
    int records;
    char *results; /* what kernel_result was given */
    size_t results_bytes, results_capacity;
} kernel_test;

/* A test device. isa must be usable. Asserts on failure. */
void kernel_test_open(kernel_test *t, pl_cpu_isa isa, int workers);
void kernel_test_close(kernel_test *t);

/* Run BODY with every usable instruction set and 1, 2, 3 workers: see above. */
typedef void (*kernel_body)(kernel_test *t, const void *context);
void kernel_everywhere(kernel_body body, const void *context);

/* Run BODY once, with the best instruction set and WORKERS. */
void kernel_once(kernel_body body, const void *context, int workers);

/* Note BYTES of a result for the comparison between numbers of workers. */
void kernel_result(kernel_test *t, const void *result, size_t bytes);

/* Device memory of COUNT floats: NaN, random within (-1, 1), or a copy of VALUES; BYTES of device
 * memory filled with ones. Never NULL for 0. */
float *kernel_room(kernel_test *t, int64_t count);
float *kernel_floats(kernel_test *t, int64_t count);
float *kernel_copy(kernel_test *t, const float *values, int64_t count);
void *kernel_bytes(kernel_test *t, int64_t bytes);

/* Random numbers within (-1, 1), and whole ones in [0, below). */
double kernel_random(kernel_test *t);
int64_t kernel_random_below(kernel_test *t, int64_t below);

/* COUNT doubles of zero; the caller frees with pl_free. */
double *kernel_doubles(int64_t count);

/* Every ACTUAL is within TOLERANCE, times the largest EXPECTED (at least FLOOR 1e-30), of
 * EXPECTED. WHAT names the array in messages. */
void kernel_near(const float *actual, const double *expected, int64_t count, double tolerance,
                 const char *what);

/* The bits are equal. */
void kernel_same(const void *a, const void *b, size_t bytes, const char *what);

/* The latest record is of WHAT with FLOPS and has COUNT touches. */
void kernel_recorded(const kernel_test *t, const char *what, int64_t flops, int count);

/* ... and one of its touches is exactly this range: MODE "r", "w" or "rw". */
void kernel_touched(const kernel_test *t, const void *start, int64_t bytes, const char *mode);

/* CALL succeeds once no allocation of this thread fails, and answers PL_NO_MEMORY before: each of
 * its allocations is made to fail in turn, of which there are AT_LEAST so many. CALL makes its
 * arguments, then calls pl_allocation_fail_after(AFTER), then the operation; always on a fresh
 * device. */
typedef pl_status (*kernel_call)(kernel_test *t, const void *context, int64_t after);
void kernel_allocation_failures(kernel_call call, const void *context, int at_least);

#endif
