/* What suites of the CUDA operations share. The same suites run against the stand-in for the CUDA
 * runtime (open_stand_in.c), in every build, and against the plugin on a machine with a GPU
 * (open_plugin.c, tests/gpu/run): so device memory is reached by copies alone.
 */
#ifndef PL_TESTS_CUDA_CUDA_TEST_H
#define PL_TESTS_CUDA_CUDA_TEST_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/device.h"
#include "tests/test.h"

enum { CUDA_TEST_ARRAYS = 64 };

/* An array on the device, and its values on the host as its type holds them. */
typedef struct cuda_array {
    void *device;
    double *values;
    int64_t count;
    pl_dtype dtype;
} cuda_array;

typedef struct cuda_test {
    pl_backend *backend;
    pl_device *device;
    const pl_operations *operations;
    const pl_device_functions *functions;
    uint64_t random;
    cuda_array *arrays[CUDA_TEST_ARRAYS];
    int array_count;
    pl_call_log log;
    pl_call_record record; /* the latest */
    int records;
    char *results; /* what cuda_result was given */
    size_t results_bytes, results_capacity;
} cuda_test;

/* --- one of open_stand_in.c and open_plugin.c --- */

/* The backend under test. */
pl_status cuda_test_backend(pl_backend **out);

/* Ways to run kernels that are to give the same bits: SCHEDULE of them, from 0. */
int cuda_test_schedules(void);
void cuda_test_schedule(int schedule);

/* Nothing was found wrong and, when CLOSED, nothing is left open. Asserts. */
void cuda_test_sound(bool closed);

/* --- cuda_test.c --- */

void cuda_test_open(cuda_test *t);
void cuda_test_close(cuda_test *t);

/* Run BODY under every schedule; the bits it gives to cuda_result must be the same. */
typedef void (*cuda_body)(cuda_test *t, const void *context);
void cuda_everywhere(cuda_body body, const void *context);
void cuda_once(cuda_body body, const void *context);

/* Arrays of COUNT elements on the device, let go on close: NaN; random within (-1, 1); copies of
 * another one. */
cuda_array *cuda_room(cuda_test *t, pl_dtype dtype, int64_t count);
cuda_array *cuda_random(cuda_test *t, pl_dtype dtype, int64_t count);
cuda_array *cuda_copy(cuda_test *t, const cuda_array *from);

/* Bring the values of A to the host, in order behind the work of stream compute. */
void cuda_fetch(cuda_test *t, cuda_array *a);

/* Write the values of A to the device. */
void cuda_put(cuda_test *t, cuda_array *a);

/* Fetch A, and note its bits for the comparison between schedules. */
void cuda_result(cuda_test *t, cuda_array *a);

/* Fetch A: every value is within ERROR of EXPECTED, and within half a unit in the last place more
 * where the type rounds. */
void cuda_within(cuda_test *t, cuda_array *a, const double *expected, double error,
                 const char *what);

/* The same with TOLERANCE times the largest EXPECTED as the error. */
void cuda_near(cuda_test *t, cuda_array *a, const double *expected, double tolerance,
               const char *what);

/* Fetch both: the values are the same. */
void cuda_same(cuda_test *t, cuda_array *a, cuda_array *b, const char *what);

/* COUNT doubles of zero; the caller frees with pl_free. */
double *cuda_doubles(int64_t count);

/* The latest record of the device is that of OTHER but for where memory is: same operation, flops,
 * ranges. */
void cuda_same_record(const cuda_test *t, const pl_call_record *other);

#endif
