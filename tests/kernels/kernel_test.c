#include "tests/kernels/kernel_test.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "common/memory.h"

/* --- devices --- */

static void keep_record(void *context, const pl_call_record *record)
{
    kernel_test *t = context;
    t->record = *record;
    ++t->records;
}

void kernel_test_open(kernel_test *t, pl_cpu_isa isa, int workers)
{
    *t = (kernel_test){.isa = isa, .workers = workers, .random = 88172645463325252u};
    assert_true(pl_cpu_isa_usable(isa));
    assert_int_equal(setenv("PLEAT_CPU_ISA", pl_cpu_isa_name(isa), 1), 0);
    assert_ok(pl_backend_cpu_open(&t->backend, workers));
    assert_int_equal(unsetenv("PLEAT_CPU_ISA"), 0);
    assert_ok(t->backend->functions->open_device(t->backend, &t->device, 5, 0));
    t->operations = t->device->operations;
    t->device->entry = pl_entry_name_make(PL_OP_LOSS, PL_SUBJECT_HEAD);
    t->log = (pl_call_log){keep_record, t};
    t->device->log = &t->log;
}

void kernel_test_close(kernel_test *t)
{
    for (int i = 0; i < t->block_count; ++i) {
        const unsigned char *behind = (unsigned char *)t->blocks[i] + t->block_bytes[i];
        for (int j = 0; j < KERNEL_GUARD; ++j) assert_int_equal(behind[j], 0xa5);
        t->device->functions->release(t->device, t->blocks[i]);
    }
    t->device->functions->close(t->device);
    t->backend->functions->close(t->backend);
    pl_free(t->results);
}

static pl_cpu_isa best_isa(void)
{
    int isa = PL_CPU_ISA_COUNT - 1;
    while (!pl_cpu_isa_usable((pl_cpu_isa)isa)) --isa;
    return (pl_cpu_isa)isa;
}

void kernel_once(kernel_body body, const void *context, int workers)
{
    kernel_test t;
    kernel_test_open(&t, best_isa(), workers);
    body(&t, context);
    kernel_test_close(&t);
}

void kernel_everywhere(kernel_body body, const void *context)
{
    for (int isa = 0; isa < PL_CPU_ISA_COUNT; ++isa) {
        if (!pl_cpu_isa_usable((pl_cpu_isa)isa)) continue;
        kernel_test one, more;
        kernel_test_open(&one, (pl_cpu_isa)isa, 1);
        body(&one, context);
        for (int workers = 2; workers <= 3; ++workers) {
            kernel_test_open(&more, (pl_cpu_isa)isa, workers);
            body(&more, context);
            assert_int_equal(more.results_bytes, one.results_bytes);
            if (one.results_bytes > 0 && memcmp(one.results, more.results, one.results_bytes) != 0)
                fail_msg("%s: results differ between 1 and %d workers",
                         pl_cpu_isa_name((pl_cpu_isa)isa), workers);
            kernel_test_close(&more);
        }
        kernel_test_close(&one);
    }
}

void kernel_result(kernel_test *t, const void *result, size_t bytes)
{
    assert_ok(pl_grow(&t->results, &t->results_capacity, t->results_bytes + bytes, 1, "results"));
    if (bytes > 0) memcpy(t->results + t->results_bytes, result, bytes);
    t->results_bytes += bytes;
}

/* --- memory --- */

void *kernel_bytes(kernel_test *t, int64_t bytes)
{
    void *block = NULL;
    assert_true(t->block_count < KERNEL_BLOCKS);
    assert_ok(t->device->functions->allocate(t->device, &block, bytes + KERNEL_GUARD, "values"));
    t->block_bytes[t->block_count] = bytes;
    t->blocks[t->block_count++] = block;
    memset(block, 0xff, (size_t)bytes); /* NaN as floats */
    memset((char *)block + bytes, 0xa5, KERNEL_GUARD);
    return block;
}

float *kernel_room(kernel_test *t, int64_t count)
{
    return kernel_bytes(t, count * (int64_t)sizeof(float));
}

float *kernel_floats(kernel_test *t, int64_t count)
{
    float *values = kernel_room(t, count);
    for (int64_t i = 0; i < count; ++i) values[i] = (float)kernel_random(t);
    return values;
}

float *kernel_copy(kernel_test *t, const float *values, int64_t count)
{
    float *copy = kernel_room(t, count);
    if (count > 0) memcpy(copy, values, (size_t)count * sizeof *copy);
    return copy;
}

double *kernel_doubles(int64_t count)
{
    double *values = NULL;
    assert_ok(pl_allocate(&values, (size_t)count, sizeof *values, "expected values"));
    return values;
}

/* Xorshift, of Marsaglia 2003: the upper bits are good enough for test values. */
static uint64_t next_random(kernel_test *t)
{
    t->random ^= t->random << 13;
    t->random ^= t->random >> 7;
    t->random ^= t->random << 17;
    return t->random;
}

double kernel_random(kernel_test *t)
{
    return ((double)(next_random(t) >> 12) + 0.5) * 0x1p-51 - 1;
}

int64_t kernel_random_below(kernel_test *t, int64_t below)
{
    return (int64_t)((next_random(t) >> 16) % (uint64_t)below);
}

/* --- comparison --- */

void kernel_near(const float *actual, const double *expected, int64_t count, double tolerance,
                 const char *what)
{
    double largest = 1e-30;
    for (int64_t i = 0; i < count; ++i)
        if (fabs(expected[i]) > largest) largest = fabs(expected[i]);
    for (int64_t i = 0; i < count; ++i)
        if (!(fabs((double)actual[i] - expected[i]) <= tolerance * largest))
            fail_msg("%s[%" PRId64 "] of %" PRId64 " is %.9g, should be %.9g (within %.3g)", what,
                     i, count, (double)actual[i], expected[i], tolerance * largest);
}

void kernel_same(const void *a, const void *b, size_t bytes, const char *what)
{
    if (bytes > 0 && memcmp(a, b, bytes) != 0) fail_msg("%s: the bits differ", what);
}

void kernel_recorded(const kernel_test *t, const char *what, int64_t flops, int count)
{
    assert_true(t->records > 0);
    assert_string_equal(t->record.what, what);
    assert_int_equal(t->record.flops, flops);
    assert_int_equal(t->record.touch_count, count);
    assert_int_equal(t->record.entry.operation, t->device->entry.operation);
    assert_false(t->record.collective);
}

void kernel_touched(const kernel_test *t, const void *start, int64_t bytes, const char *mode)
{
    bool read = strchr(mode, 'r') != NULL, written = strchr(mode, 'w') != NULL;
    for (int i = 0; i < t->record.touch_count; ++i) {
        const pl_touch *touch = &t->record.touch[i];
        if (touch->start != start) continue;
        if (touch->bytes != bytes || touch->read != read || touch->written != written)
            fail_msg("%s touched %" PRId64 " bytes there (read %d, written %d), not %" PRId64
                     " as '%s'",
                     t->record.what, touch->bytes, touch->read, touch->written, bytes, mode);
        return;
    }
    fail_msg("%s did not note a range of %" PRId64 " bytes as '%s'", t->record.what, bytes, mode);
}

void kernel_allocation_failures(kernel_call call, const void *context, int at_least)
{
    int after = 0;
    for (bool more = true; more; ++after) {
        kernel_test t;
        kernel_test_open(&t, best_isa(), 2);
        pl_status status = call(&t, context, after);
        more = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        assert_int_equal(status, more ? PL_NO_MEMORY : PL_OK);
        kernel_test_close(&t);
    }
    assert_true(after > at_least);
}
