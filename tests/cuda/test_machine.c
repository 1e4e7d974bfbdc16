/* The CUDA backend on machines that lack something, and when calls of the runtime fail: what only
 * the stand-in can do. */
#include "common/memory.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/stand_in/control.h"

pl_status pl_plugin_open_backend(pl_backend **out, int32_t interface);

enum { MEMORY_ALLOCATION = 2, INVALID_VALUE = 1, COUNT = 100 };

static int fresh(void **state)
{
    (void)state;
    return cuda_on_cpu_reset() ? 0 : 1;
}

/* --- machines --- */

static pl_status open_on(int devices, int major, int driver)
{
    pl_backend *backend = NULL;
    cuda_on_cpu_machine machine = {devices, major, driver, 1 << 20};
    cuda_on_cpu_set_machine(&machine);
    pl_status status = cuda_test_backend(&backend);
    if (status == PL_OK)
        backend->functions->close(backend);
    else
        assert_null(backend);
    return status;
}

static void machines_without_a_usable_device_are_refused(void **state)
{
    (void)state;
    assert_ok(open_on(1, 8, 13000));
    assert_ok(open_on(1, 12, 15010));
    assert_ok(open_on(200, 9, 13000));
    assert_fails(PL_UNSUPPORTED, open_on(1, 9, 0), "no CUDA driver");
    assert_fails(PL_UNSUPPORTED, open_on(1, 9, 12080), "serves CUDA 12.8", "built with CUDA 13.0",
                 "for CUDA 13.0 or later");
    assert_fails(PL_UNSUPPORTED, open_on(0, 9, 13000), "no CUDA device", "CUDA_VISIBLE_DEVICES");
    assert_fails(PL_UNSUPPORTED, open_on(1, 7, 13000), "device 0", "compute capability 7.0",
                 "at least 8.0");
}

static void another_interface_is_refused(void **state)
{
    (void)state;
    pl_backend *backend = NULL;
    assert_fails(PL_UNSUPPORTED, pl_plugin_open_backend(&backend, PL_DEVICE_INTERFACE + 1),
                 "interface 1", "interface 2", "same sources");
    assert_null(backend);
}

static void ranks_get_devices_by_their_number(void **state)
{
    (void)state;
    pl_backend *backend = NULL;
    assert_ok(cuda_test_backend(&backend));
    for (int i = 0; i < 3; ++i) {
        pl_device *device = NULL;
        void *memory = NULL;
        assert_ok(backend->functions->open_device(backend, &device, i, i));
        assert_ok(device->functions->allocate(device, &memory, 10, "a block"));
        assert_int_equal(cuda_on_cpu_device_of(memory), i % 2);
        device->functions->release(device, memory);
        device->functions->close(device);
    }
    backend->functions->close(backend);
    assert_int_equal(cuda_on_cpu_live(), 0);
}

/* --- order --- */

/* A result copied to the host on another stream; WAITS as it should, or too little. */
static void copy_result(cuda_test *t, bool waits, float *host)
{
    enum { BYTES = COUNT * (int)sizeof(float) };
    const pl_device_functions *f = t->functions;
    cuda_array *x = cuda_random(t, PL_FP32, COUNT), *act = cuda_room(t, PL_FP32, COUNT);
    pl_swiglu_arguments a = {x->device, x->device, act->device, PL_FP32, COUNT};
    assert_ok(f->synchronize(t->device, PL_STREAM_COMPUTE));
    assert_ok(t->operations->swiglu(t->device, PL_STREAM_COMPUTE, &a));
    assert_ok(f->record(t->device, PL_STREAM_COMPUTE, 3));
    if (waits) assert_ok(f->wait(t->device, PL_STREAM_COPY, 3));
    assert_ok(f->copy(t->device, PL_STREAM_COPY, host, act->device, BYTES, PL_COPY_TO_HOST));
    assert_ok(f->synchronize(t->device, PL_STREAM_COPY));
}

static void missing_waits_show(cuda_test *t, const void *context)
{
    (void)context;
    static float waited[COUNT], not_waited[COUNT], at_once[COUNT];
    t->random = 5;
    copy_result(t, true, waited);
    t->random = 5;
    copy_result(t, false, not_waited);
    cuda_on_cpu_at_once(true);
    t->random = 5;
    copy_result(t, false, at_once);
    assert_memory_equal(waited, at_once, sizeof waited);
    assert_true(not_waited[0] != not_waited[0]); /* NaN: the kernel had not run */
}

static void a_missing_wait_gives_other_results(void **state)
{
    (void)state;
    cuda_once(missing_waits_show, NULL);
}

static void calls_queue(cuda_test *t, const void *context)
{
    (void)context;
    cuda_array *x = cuda_random(t, PL_FP32, COUNT);
    pl_swiglu_arguments a = {x->device, x->device, x->device, PL_FP32, COUNT};
    assert_ok(t->functions->synchronize(t->device, PL_STREAM_COMPUTE));
    assert_int_equal(cuda_on_cpu_queued(), 0);
    assert_ok(t->operations->swiglu(t->device, PL_STREAM_COMPUTE, &a));
    assert_ok(t->functions->fill(t->device, PL_STREAM_COPY, x->device, 0, 4));
    assert_int_equal(cuda_on_cpu_queued(), 2);
    assert_ok(t->functions->synchronize(t->device, PL_STREAM_COPY));
    assert_int_equal(cuda_on_cpu_queued(), 1); /* what nobody waits for is left */
    assert_ok(t->functions->record(t->device, PL_STREAM_COMPUTE, 1));
    assert_ok(t->functions->wait(t->device, PL_STREAM_HOST, 1));
    assert_ok(t->operations->swiglu(t->device, PL_STREAM_COMPUTE, &a));
    assert_ok(t->functions->record(t->device, PL_STREAM_COMPUTE, 1)); /* moved: not waited for */
    assert_ok(t->functions->synchronize(t->device, PL_STREAM_HOST));
    assert_int_equal(cuda_on_cpu_queued(), 1);
}

static void calls_return_before_the_work_is_done(void **state)
{
    (void)state;
    cuda_once(calls_queue, NULL);
}

/* --- failures --- */

/* Everything that a rank does: OUT counts what it left open when it fails. */
static pl_status use_device(pl_device *device)
{
    enum { ROWS = 40, COLS = 3, BYTES = ROWS * COLS * (int)sizeof(float) };
    const pl_device_functions *f = device->functions;
    static float host[ROWS * COLS];
    void *memory = NULL, *pinned = NULL;
    pl_status status = f->allocate(device, &memory, BYTES, "rows");
    if (status != PL_OK) return status;
    PL_TRY_TO(status, out, f->allocate_host(device, &pinned, 8, "flags"));
    PL_TRY_TO(status, out, f->copy(device, PL_STREAM_COPY, memory, host, BYTES, PL_COPY_TO_DEVICE));
    PL_TRY_TO(status, out, f->record(device, PL_STREAM_COPY, 0));
    PL_TRY_TO(status, out, f->wait(device, PL_STREAM_COMPUTE, 0));
    pl_rms_norm_arguments a = {memory, memory, memory, NULL, PL_FP32, ROWS, COLS, 1e-6};
    PL_TRY_TO(status, out, device->operations->rms_norm(device, PL_STREAM_COMPUTE, &a));
    pl_rms_norm_backward_arguments b = {.x = memory,
                                        .weight = memory,
                                        .dy = memory,
                                        .dx = memory,
                                        .dweight = memory,
                                        .dtype = PL_FP32,
                                        .rows = ROWS,
                                        .cols = COLS,
                                        .epsilon = 1e-6};
    PL_TRY_TO(status, out, device->operations->rms_norm_backward(device, PL_STREAM_COMPUTE, &b));
    pl_swiglu_arguments c = {memory, memory, memory, PL_FP32, ROWS};
    PL_TRY_TO(status, out, device->operations->swiglu(device, PL_STREAM_COMPUTE, &c));
    pl_swiglu_backward_arguments d = {memory, memory, memory, memory, memory, PL_FP32, ROWS};
    PL_TRY_TO(status, out, device->operations->swiglu_backward(device, PL_STREAM_COMPUTE, &d));
    PL_TRY_TO(status, out, f->fill(device, PL_STREAM_COMPUTE, memory, 0, BYTES));
    PL_TRY_TO(status, out, f->synchronize(device, PL_STREAM_COMPUTE));
out:
    cuda_on_cpu_fail_after(-1, 0); /* closing is another test */
    f->release_host(device, pinned);
    f->release(device, memory);
    return status;
}

static pl_status use_backend(void)
{
    pl_backend *backend = NULL;
    pl_device *device = NULL;
    PL_TRY(cuda_test_backend(&backend));
    pl_status status = backend->functions->open_device(backend, &device, 4, 0);
    if (status == PL_OK) {
        status = use_device(device);
        device->functions->close(device);
    }
    backend->functions->close(backend);
    return status;
}

static void every_failed_call_is_worded_and_nothing_stays_open(void **state)
{
    (void)state;
    int failures = 0;
    for (bool failed = true; failed; ++failures) {
        assert_true(cuda_on_cpu_reset());
        cuda_on_cpu_fail_after(failures, failures % 2 ? INVALID_VALUE : MEMORY_ALLOCATION);
        pl_error_clear();
        pl_status status = use_backend();
        failed = status != PL_OK;
        if (!failed) break;
        const char *words = pl_error_text();
        assert_non_null(strstr(words, failures % 2 ? "invalid argument" : "out of memory"));
        if (status == PL_UNSUPPORTED) continue; /* while the backend is opened */
        assert_int_equal(status, failures % 2 ? PL_INTERNAL : PL_NO_MEMORY);
        assert_non_null(strstr(words, "CUDA device 0"));
        if (!strstr(words, "bytes are free")) assert_non_null(strstr(words, "in entry control"));
        assert_non_null(strstr(words, strstr(words, "bytes are free") ? "rows" : "cuda"));
    }
    assert_true(failures >= 30);
}

static void failing_allocations_are_worded_and_nothing_stays_open(void **state)
{
    (void)state;
    for (int64_t after = 0;; ++after) {
        assert_true(cuda_on_cpu_reset());
        pl_allocation_fail_after(after);
        pl_status status = use_backend();
        bool failed = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        assert_int_equal(status, failed ? PL_NO_MEMORY : PL_OK);
        if (failed) continue;
        assert_true(after >= 3);
        break;
    }
}

/* A write outside memory ends the device: whatever is called next says so. */
static void closing_waits(cuda_test *t, const void *context)
{
    (void)context;
    static float host[COUNT];
    cuda_array *x = cuda_random(t, PL_FP32, COUNT);
    pl_swiglu_arguments a = {x->device, x->device, x->device, PL_FP32, COUNT};
    assert_ok(t->operations->swiglu(t->device, PL_STREAM_COMPUTE, &a));
    assert_ok(t->functions->copy(t->device, PL_STREAM_COPY, host, x->device, sizeof host,
                                 PL_COPY_TO_HOST));
    assert_true(cuda_on_cpu_queued() > 0);
}

static void closing_waits_for_work(void **state)
{
    (void)state;
    cuda_once(closing_waits, NULL);
    assert_int_equal(cuda_on_cpu_queued(), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fresh, fresh)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(machines_without_a_usable_device_are_refused),
        TEST(another_interface_is_refused),
        TEST(ranks_get_devices_by_their_number),
        TEST(a_missing_wait_gives_other_results),
        TEST(calls_return_before_the_work_is_done),
        TEST(every_failed_call_is_worded_and_nothing_stays_open),
        TEST(failing_allocations_are_worded_and_nothing_stays_open),
        TEST(closing_waits_for_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
