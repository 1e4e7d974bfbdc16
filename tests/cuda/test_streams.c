/* Device memory, copies, streams and events, as any backend of CUDA must do them. */
#include "common/memory.h"
#include "tests/cuda/cuda_test.h"

static unsigned char *host_bytes(cuda_test *t, int64_t bytes)
{
    void *host = NULL;
    assert_ok(t->functions->allocate_host(t->device, &host, bytes, "host memory"));
    return host;
}

static void copies(cuda_test *t, const void *context)
{
    (void)context;
    static const int64_t sizes[] = {0, 1, 4095, 70001};
    const pl_device_functions *f = t->functions;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        int64_t bytes = sizes[i];
        void *first = NULL, *second = NULL;
        unsigned char *from = host_bytes(t, bytes), *to = host_bytes(t, bytes);
        assert_ok(f->allocate(t->device, &first, bytes, "a block"));
        assert_ok(f->allocate(t->device, &second, bytes, "a block"));
        assert_true((uintptr_t)first % 256 == 0);
        assert_int_equal(first == NULL, bytes == 0);
        for (int64_t j = 0; j < bytes; ++j) from[j] = (unsigned char)(j * 7 + 3);
        assert_ok(f->copy(t->device, PL_STREAM_COPY, first, from, bytes, PL_COPY_TO_DEVICE));
        assert_int_equal(t->record.touch_count, bytes ? 2 : 0);
        assert_int_equal(t->record.stream, PL_STREAM_COPY);
        assert_string_equal(t->record.what, "copy");
        assert_ok(f->copy(t->device, PL_STREAM_COPY, second, first, bytes, PL_COPY_WITHIN_DEVICE));
        assert_ok(f->copy(t->device, PL_STREAM_COPY, to, second, bytes, PL_COPY_TO_HOST));
        assert_ok(f->fill(t->device, PL_STREAM_COPY, second, 0x3c, bytes));
        assert_int_equal(t->record.touch_count, bytes ? 1 : 0);
        assert_string_equal(t->record.what, "fill");
        assert_ok(f->synchronize(t->device, PL_STREAM_COPY));
        assert_int_equal(bytes ? memcmp(from, to, (size_t)bytes) : 0, 0);
        assert_ok(f->copy(t->device, PL_STREAM_COPY, to, second, bytes, PL_COPY_TO_HOST));
        assert_ok(f->synchronize(t->device, PL_STREAM_COPY));
        for (int64_t j = 0; j < bytes; ++j) assert_int_equal(to[j], 0x3c);
        f->release(t->device, first);
        f->release(t->device, second);
        f->release_host(t->device, from);
        f->release_host(t->device, to);
    }
}

static void copies_and_fills_move_bytes_and_are_logged(void **state)
{
    (void)state;
    cuda_once(copies, NULL);
}

/* A value goes host -> device on stream copy, is computed with on stream compute, and goes back on
 * stream communication, by two events. */
static void chain(cuda_test *t, const void *context)
{
    (void)context;
    enum { COUNT = 1000, ROUNDS = 3, BYTES = COUNT * (int)sizeof(float) };
    const pl_device_functions *f = t->functions;
    cuda_array *gate = cuda_room(t, PL_FP32, COUNT), *up = cuda_random(t, PL_FP32, COUNT);
    cuda_array *act = cuda_room(t, PL_FP32, COUNT);
    float *from = (float *)(void *)host_bytes(t, BYTES),
          *to = (float *)(void *)host_bytes(t, BYTES);
    pl_swiglu_arguments a = {gate->device, up->device, act->device, PL_FP32, COUNT};
    for (int round = 0; round < ROUNDS; ++round) { /* events are used again */
        for (int i = 0; i < COUNT; ++i) from[i] = round < 2 ? 40.0f + (float)round : 0;
        assert_ok(f->copy(t->device, PL_STREAM_COPY, gate->device, from, BYTES, PL_COPY_TO_DEVICE));
        assert_ok(f->record(t->device, PL_STREAM_COPY, 0));
        assert_ok(f->wait(t->device, PL_STREAM_COMPUTE, 0));
        assert_ok(t->operations->swiglu(t->device, PL_STREAM_COMPUTE, &a));
        assert_ok(f->record(t->device, PL_STREAM_COMPUTE, PL_DEVICE_EVENTS - 1));
        assert_ok(f->wait(t->device, PL_STREAM_COMMUNICATION, PL_DEVICE_EVENTS - 1));
        assert_ok(
            f->copy(t->device, PL_STREAM_COMMUNICATION, to, act->device, BYTES, PL_COPY_TO_HOST));
        assert_ok(f->synchronize(t->device, PL_STREAM_COMMUNICATION));
        for (int i = 0; i < COUNT; ++i) { /* silu(40) is 40 in fp32 */
            double expected = (double)from[i] * up->values[i];
            assert_true((double)to[i] <= expected + 1e-4 && (double)to[i] >= expected - 1e-4);
        }
    }
    f->release_host(t->device, from);
    f->release_host(t->device, to);
}

static void events_order_streams(void **state)
{
    (void)state;
    cuda_once(chain, NULL);
}

static void wrong_calls(cuda_test *t, const void *context)
{
    (void)context;
    const pl_device_functions *f = t->functions;
    void *memory = NULL;
    char byte = 0;
    assert_fails(PL_INTERNAL, f->copy(t->device, PL_STREAM_COPY, NULL, &byte, 1, PL_COPY_TO_DEVICE),
                 "copy", "loss head", "both ends");
    assert_fails(PL_INTERNAL,
                 f->copy(t->device, PL_STREAM_COPY, &byte, &byte, -1, PL_COPY_TO_DEVICE), "copy");
    assert_fails(PL_INTERNAL, f->fill(t->device, PL_STREAM_COPY, NULL, 0, 1), "fill", "loss head");
    assert_fails(PL_INTERNAL, f->fill(t->device, PL_STREAM_COPY, &byte, 0, -1), "fill");
    assert_fails(PL_BAD_INPUT, f->allocate(t->device, &memory, -1, "x of layer 3"), "x of layer 3");
    assert_fails(PL_BAD_INPUT, f->allocate_host(t->device, &memory, -1, "x of layer 3"),
                 "x of layer 3");
    assert_fails(PL_NO_MEMORY, f->allocate(t->device, &memory, INT64_C(1) << 50, "giants"),
                 "giants", "1125899906842624 bytes", "are free");
    assert_fails(PL_INTERNAL, f->record(t->device, PL_STREAM_COMPUTE, -1), "event", "loss head");
    assert_fails(PL_INTERNAL, f->wait(t->device, PL_STREAM_COMPUTE, PL_DEVICE_EVENTS), "event");
    assert_ok(f->wait(t->device, PL_STREAM_COMPUTE, 7)); /* never recorded: nothing to wait for */
    assert_ok(f->synchronize(t->device, PL_STREAM_COMPUTE));
    assert_null(memory);
    f->release(t->device, NULL);
    f->release_host(t->device, NULL);
}

static void wrong_calls_are_refused(void **state)
{
    (void)state;
    cuda_once(wrong_calls, NULL);
}

static void the_backend_describes_itself(void **state)
{
    (void)state;
    pl_backend *backend = NULL;
    pl_text missing = {0};
    assert_ok(cuda_test_backend(&backend));
    assert_string_equal(backend->functions->name, "cuda");
    assert_non_null(strstr(backend->functions->describe(backend), "CUDA 1"));
    int lacks = pl_backend_lacks(backend, &missing);
    const char *names = pl_text_string(&missing);
    assert_true(lacks > 0);
    assert_ptr_equal(strstr(names, "cast, sum, product"), names);
    assert_null(strstr(names, "rms_norm"));
    assert_null(strstr(names, "swiglu"));
    pl_text_free(&missing);
    backend->functions->close(backend);
}

static void devices_are_shared_in_turn(void **state)
{
    (void)state;
    enum { RANKS = 5 };
    pl_backend *backend = NULL;
    pl_device *devices[RANKS];
    assert_ok(cuda_test_backend(&backend));
    for (int i = 0; i < RANKS; ++i) {
        assert_ok(backend->functions->open_device(backend, &devices[i], 10 + i, i));
        assert_int_equal(devices[i]->rank, 10 + i);
        assert_ptr_equal(devices[i]->backend, backend);
    }
    pl_device *none = NULL;
    assert_fails(PL_INTERNAL, backend->functions->open_device(backend, &none, 3, -1), "rank 3");
    for (int i = 0; i < RANKS; ++i) devices[i]->functions->close(devices[i]);
    backend->functions->close(backend);
    cuda_test_sound(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_and_fills_move_bytes_and_are_logged),
        cmocka_unit_test(events_order_streams),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(the_backend_describes_itself),
        cmocka_unit_test(devices_are_shared_in_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
