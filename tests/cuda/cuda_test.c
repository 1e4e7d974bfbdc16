#include "tests/cuda/cuda_test.h"

#include <inttypes.h>
#include <math.h>

#include "common/dtype_convert.h"
#include "common/memory.h"

/* --- devices --- */

static void keep_record(void *context, const pl_call_record *record)
{
    cuda_test *t = context;
    t->record = *record;
    ++t->records;
}

void cuda_test_open(cuda_test *t)
{
    *t = (cuda_test){.random = 88172645463325252u};
    assert_ok(cuda_test_backend(&t->backend));
    assert_ok(t->backend->functions->open_device(t->backend, &t->device, 5, 0));
    t->operations = t->device->operations;
    t->functions = t->device->functions;
    t->device->entry = pl_entry_name_make(PL_OP_LOSS, PL_SUBJECT_HEAD);
    t->log = (pl_call_log){keep_record, t};
    t->device->log = &t->log;
}

void cuda_test_close(cuda_test *t)
{
    for (int i = 0; i < t->array_count; ++i) {
        t->functions->release(t->device, t->arrays[i]->device);
        pl_free(t->arrays[i]->values);
        pl_free(t->arrays[i]);
    }
    t->functions->close(t->device);
    t->backend->functions->close(t->backend);
    pl_free(t->results);
    cuda_test_sound(true);
}

void cuda_once(cuda_body body, const void *context)
{
    cuda_test t;
    cuda_test_open(&t);
    body(&t, context);
    cuda_test_close(&t);
}

void cuda_everywhere(cuda_body body, const void *context)
{
    cuda_test first, other;
    cuda_test_schedule(0);
    cuda_test_open(&first);
    body(&first, context);
    char *results = first.results;
    size_t bytes = first.results_bytes;
    first.results = NULL;
    cuda_test_close(&first);
    for (int i = 1; i < cuda_test_schedules(); ++i) {
        cuda_test_schedule(i);
        cuda_test_open(&other);
        body(&other, context);
        assert_int_equal(other.results_bytes, bytes);
        if (bytes > 0 && memcmp(results, other.results, bytes) != 0)
            fail_msg("results differ under schedule %d", i);
        cuda_test_close(&other);
    }
    cuda_test_schedule(0);
    pl_free(results);
}

/* --- arrays --- */

double *cuda_doubles(int64_t count)
{
    double *values = NULL;
    assert_ok(pl_allocate(&values, (size_t)count, sizeof *values, "values"));
    return values;
}

static int64_t bytes_of(const cuda_array *a) { return a->count * pl_dtype_bytes(a->dtype); }

cuda_array *cuda_room(cuda_test *t, pl_dtype dtype, int64_t count)
{
    cuda_array *a = NULL;
    assert_true(t->array_count < CUDA_TEST_ARRAYS);
    assert_ok(pl_allocate(&a, 1, sizeof *a, "an array"));
    *a = (cuda_array){.values = cuda_doubles(count), .count = count, .dtype = dtype};
    assert_ok(t->functions->allocate(t->device, &a->device, bytes_of(a), "an array"));
    assert_ok(t->functions->fill(t->device, PL_STREAM_COMPUTE, a->device, 0xff, bytes_of(a)));
    t->arrays[t->array_count++] = a;
    return a;
}

/* Element I of HOST, and the other way round. */
static double read_value(const void *host, pl_dtype dtype, int64_t i)
{
    if (dtype == PL_FP32) return (double)((const float *)host)[i];
    return (double)pl_bf16_to_float(((const uint16_t *)host)[i]);
}

static double write_value(void *host, pl_dtype dtype, int64_t i, double value)
{
    if (dtype == PL_FP32)
        ((float *)host)[i] = (float)value;
    else
        ((uint16_t *)host)[i] = pl_float_to_bf16((float)value);
    return read_value(host, dtype, i);
}

void cuda_put(cuda_test *t, cuda_array *a)
{
    void *host = NULL;
    int64_t bytes = bytes_of(a);
    assert_ok(t->functions->allocate_host(t->device, &host, bytes, "host memory"));
    for (int64_t i = 0; i < a->count; ++i)
        a->values[i] = write_value(host, a->dtype, i, a->values[i]);
    assert_ok(t->functions->copy(t->device, PL_STREAM_COMPUTE, a->device, host, bytes,
                                 PL_COPY_TO_DEVICE));
    assert_ok(t->functions->synchronize(t->device, PL_STREAM_COMPUTE));
    t->functions->release_host(t->device, host);
}

static void fetch(cuda_test *t, cuda_array *a, bool keep)
{
    void *host = NULL;
    int64_t bytes = bytes_of(a);
    pl_call_record record = t->record;
    assert_ok(t->functions->allocate_host(t->device, &host, bytes, "host memory"));
    assert_ok(
        t->functions->copy(t->device, PL_STREAM_COMPUTE, host, a->device, bytes, PL_COPY_TO_HOST));
    assert_ok(t->functions->synchronize(t->device, PL_STREAM_COMPUTE));
    for (int64_t i = 0; i < a->count; ++i) a->values[i] = read_value(host, a->dtype, i);
    if (keep && bytes > 0) {
        assert_ok(pl_grow(&t->results, &t->results_capacity, t->results_bytes + (size_t)bytes, 1,
                          "results"));
        memcpy(t->results + t->results_bytes, host, (size_t)bytes);
        t->results_bytes += (size_t)bytes;
    }
    t->functions->release_host(t->device, host);
    t->record = record; /* that of the operation under test stays */
}

void cuda_fetch(cuda_test *t, cuda_array *a) { fetch(t, a, false); }
void cuda_result(cuda_test *t, cuda_array *a) { fetch(t, a, true); }

/* Xorshift, of Marsaglia 2003: the upper bits are good enough for test values. */
static double next_random(cuda_test *t)
{
    t->random ^= t->random << 13;
    t->random ^= t->random >> 7;
    t->random ^= t->random << 17;
    return ((double)(t->random >> 12) + 0.5) * 0x1p-51 - 1;
}

cuda_array *cuda_random(cuda_test *t, pl_dtype dtype, int64_t count)
{
    cuda_array *a = cuda_room(t, dtype, count);
    for (int64_t i = 0; i < count; ++i) a->values[i] = next_random(t);
    cuda_put(t, a);
    return a;
}

cuda_array *cuda_copy(cuda_test *t, const cuda_array *from)
{
    cuda_array *a = cuda_room(t, from->dtype, from->count);
    if (from->count > 0) memcpy(a->values, from->values, (size_t)from->count * sizeof *a->values);
    cuda_put(t, a);
    return a;
}

/* --- comparison --- */

void cuda_within(cuda_test *t, cuda_array *a, const double *expected, double error,
                 const char *what)
{
    double rounding = a->dtype == PL_BF16 ? 0x1p-8 : 0;
    cuda_fetch(t, a);
    for (int64_t i = 0; i < a->count; ++i) {
        double bound = error + rounding * fabs(expected[i]);
        if (!(fabs(a->values[i] - expected[i]) <= bound))
            fail_msg("%s[%" PRId64 "] of %" PRId64 " %s is %.9g, should be %.9g (within %.3g)",
                     what, i, a->count, pl_dtype_name(a->dtype), a->values[i], expected[i], bound);
    }
}

void cuda_near(cuda_test *t, cuda_array *a, const double *expected, double tolerance,
               const char *what)
{
    double largest = 1e-30;
    for (int64_t i = 0; i < a->count; ++i)
        if (fabs(expected[i]) > largest) largest = fabs(expected[i]);
    cuda_within(t, a, expected, tolerance * largest, what);
}

void cuda_same(cuda_test *t, cuda_array *a, cuda_array *b, const char *what)
{
    cuda_fetch(t, a);
    cuda_fetch(t, b);
    assert_int_equal(a->count, b->count);
    for (int64_t i = 0; i < a->count; ++i)
        if (!(a->values[i] == b->values[i]))
            fail_msg("%s: element %" PRId64 " is %.9g and %.9g", what, i, a->values[i],
                     b->values[i]);
}

void cuda_same_record(const cuda_test *t, const pl_call_record *other)
{
    assert_string_equal(t->record.what, other->what);
    assert_true(t->record.flops == other->flops);
    assert_int_equal(t->record.stream, other->stream);
    assert_int_equal(t->record.touch_count, other->touch_count);
    for (int i = 0; i < other->touch_count; ++i) {
        assert_true(t->record.touch[i].bytes == other->touch[i].bytes);
        assert_int_equal(t->record.touch[i].read, other->touch[i].read);
        assert_int_equal(t->record.touch[i].written, other->touch[i].written);
    }
}
