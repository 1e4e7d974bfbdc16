/* Devices: memory, copies, streams and events. */
#include "common/memory.h"
#include "kernels/cuda/cuda.cuh"

pl_status pl_cuda_check(const pl_device *device, const char *what, const char *function,
                        cudaError_t error)
{
    if (error == cudaSuccess) return PL_OK;
    (void)cudaGetLastError(); /* what the device survived is not to be reported again */
    pl_status code = error == cudaErrorMemoryAllocation ? PL_NO_MEMORY : PL_INTERNAL;
    const pl_cuda_device *owner = reinterpret_cast<const pl_cuda_device *>(device);
    return pl_device_refuse(device, code, what,
                            "%s on CUDA device %d, or work queued before: %s (%s)", function,
                            owner->ordinal, cudaGetErrorString(error), cudaGetErrorName(error));
}

pl_status pl_cuda_enter(pl_device *device, const char *what)
{
    PL_CUDA_TRY(device, what, cudaSetDevice, pl_cuda_of(device)->ordinal);
    return PL_OK;
}

pl_status pl_cuda_require_type(const pl_device *device, const char *what, pl_dtype dtype)
{
    if (dtype == PL_FP32 || dtype == PL_BF16) return PL_OK;
    return pl_device_refuse(device, PL_UNSUPPORTED, what,
                            "the CUDA backend computes with fp32 and bf16, not with %s",
                            pl_dtype_name(dtype));
}

/* --- memory --- */

static pl_status check_size(int64_t bytes, const char *what)
{
    if (bytes >= 0) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT, "%s: a negative number of bytes", what);
}

static pl_status out_of_memory(pl_device *device, int64_t bytes, const char *what)
{
    size_t left = 0, total = 0;
    (void)cudaGetLastError();
    (void)cudaMemGetInfo(&left, &total);
    return PL_FAIL(PL_NO_MEMORY,
                   "out of memory on CUDA device %d: %lld bytes for %s; %zu of %zu bytes are free",
                   pl_cuda_of(device)->ordinal, static_cast<long long>(bytes), what, left, total);
}

static pl_status allocate(pl_device *device, void **out, int64_t bytes, const char *what)
{
    void *memory = NULL;
    PL_TRY(check_size(bytes, what));
    if (bytes > 0) {
        PL_TRY(pl_cuda_enter(device, what));
        cudaError_t error = cudaMalloc(&memory, static_cast<size_t>(bytes));
        if (error == cudaErrorMemoryAllocation) return out_of_memory(device, bytes, what);
        PL_TRY(pl_cuda_check(device, what, "cudaMalloc", error));
    }
    *out = memory;
    return PL_OK;
}

/* Failures have nobody to go to: what is wrong with the device comes up in the next call. */
static void release(pl_device *device, void *memory)
{
    if (!memory) return;
    (void)cudaSetDevice(pl_cuda_of(device)->ordinal);
    (void)cudaFree(memory);
}

static pl_status allocate_host(pl_device *device, void **out, int64_t bytes, const char *what)
{
    void *memory = NULL;
    PL_TRY(check_size(bytes, what));
    if (bytes > 0) {
        PL_TRY(pl_cuda_enter(device, what));
        PL_CUDA_TRY(device, what, cudaMallocHost, &memory, static_cast<size_t>(bytes));
    }
    *out = memory;
    return PL_OK;
}

static void release_host(pl_device *device, void *memory)
{
    if (!memory) return;
    (void)cudaSetDevice(pl_cuda_of(device)->ordinal);
    (void)cudaFreeHost(memory);
}

pl_status pl_cuda_workspace_of(pl_device *device, const char *what, pl_stream stream, int64_t bytes,
                               void **out)
{
    pl_cuda_workspace *workspace = &pl_cuda_of(device)->workspaces[stream];
    if (workspace->bytes < bytes) {
        void *grown = NULL;
        PL_TRY(allocate(device, &grown, bytes, what));
        release(device, workspace->memory); /* waits for the work that uses it */
        workspace->memory = grown;
        workspace->bytes = bytes;
    }
    *out = workspace->memory;
    return PL_OK;
}

/* --- copies --- */

static pl_status copy(pl_device *device, pl_stream stream, void *to, const void *from,
                      int64_t bytes, pl_copy_kind kind)
{
    static const cudaMemcpyKind kinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                           cudaMemcpyDeviceToDevice};
    PL_TRY(pl_device_require(device, "copy", bytes >= 0 && (bytes == 0 || (to && from)),
                             "the size is at least 0 and both ends are given"));
    pl_touch touches[] = {pl_touch_read(from, bytes), pl_touch_write(to, bytes)};
    pl_device_note(device, stream, "copy", 0, touches, 2);
    if (bytes == 0 || to == from) return PL_OK;
    PL_TRY(pl_cuda_enter(device, "copy"));
    PL_CUDA_TRY(device, "copy", cudaMemcpyAsync, to, from, static_cast<size_t>(bytes), kinds[kind],
                pl_cuda_of(device)->streams[stream]);
    return PL_OK;
}

static pl_status fill(pl_device *device, pl_stream stream, void *to, int byte, int64_t bytes)
{
    PL_TRY(pl_device_require(device, "fill", bytes >= 0 && (bytes == 0 || to),
                             "the size is at least 0 and the memory is given"));
    pl_touch touch = pl_touch_write(to, bytes);
    pl_device_note(device, stream, "fill", 0, &touch, 1);
    if (bytes == 0) return PL_OK;
    PL_TRY(pl_cuda_enter(device, "fill"));
    PL_CUDA_TRY(device, "fill", cudaMemsetAsync, to, byte, static_cast<size_t>(bytes),
                pl_cuda_of(device)->streams[stream]);
    return PL_OK;
}

/* --- streams and events --- */

static pl_status check_event(const pl_device *device, int32_t event)
{
    return pl_device_require(device, "event", event >= 0 && event < PL_DEVICE_EVENTS,
                             "events are numbered below PL_DEVICE_EVENTS");
}

static pl_status record(pl_device *device, pl_stream stream, int32_t event)
{
    pl_cuda_device *owner = pl_cuda_of(device);
    PL_TRY(check_event(device, event));
    PL_TRY(pl_cuda_enter(device, "record"));
    if (!owner->events[event])
        PL_CUDA_TRY(device, "record", cudaEventCreateWithFlags, &owner->events[event],
                    cudaEventDisableTiming);
    PL_CUDA_TRY(device, "record", cudaEventRecord, owner->events[event], owner->streams[stream]);
    return PL_OK;
}

static pl_status wait(pl_device *device, pl_stream stream, int32_t event)
{
    pl_cuda_device *owner = pl_cuda_of(device);
    PL_TRY(check_event(device, event));
    if (!owner->events[event]) return PL_OK; /* never recorded: nothing to wait for */
    PL_TRY(pl_cuda_enter(device, "wait"));
    PL_CUDA_TRY(device, "wait", cudaStreamWaitEvent, owner->streams[stream], owner->events[event],
                0u);
    return PL_OK;
}

static pl_status synchronize(pl_device *device, pl_stream stream)
{
    PL_TRY(pl_cuda_enter(device, "synchronize"));
    PL_CUDA_TRY(device, "synchronize", cudaStreamSynchronize, pl_cuda_of(device)->streams[stream]);
    return PL_OK;
}

static void close_device(pl_device *device)
{
    pl_cuda_device *closed = pl_cuda_of(device);
    (void)cudaSetDevice(closed->ordinal);
    for (int i = 0; i < PL_STREAM_COUNT; ++i)
        if (closed->streams[i]) (void)cudaStreamSynchronize(closed->streams[i]);
    for (int i = 0; i < PL_DEVICE_EVENTS; ++i)
        if (closed->events[i]) (void)cudaEventDestroy(closed->events[i]);
    for (int i = 0; i < PL_STREAM_COUNT; ++i) {
        release(device, closed->workspaces[i].memory);
        if (closed->streams[i]) (void)cudaStreamDestroy(closed->streams[i]);
    }
    pl_free(closed);
}

static constexpr pl_device_functions make_functions()
{
    pl_device_functions f = {};
    f.allocate = allocate;
    f.release = release;
    f.allocate_host = allocate_host;
    f.release_host = release_host;
    f.copy = copy;
    f.fill = fill;
    f.record = record;
    f.wait = wait;
    f.synchronize = synchronize;
    f.close = close_device;
    return f;
}

static constexpr pl_device_functions functions = make_functions();

static pl_status make_streams(pl_device *device)
{
    PL_TRY(pl_cuda_enter(device, "open"));
    for (int i = 0; i < PL_STREAM_COUNT; ++i)
        PL_CUDA_TRY(device, "open", cudaStreamCreateWithFlags, &pl_cuda_of(device)->streams[i],
                    cudaStreamNonBlocking);
    return PL_OK;
}

pl_status pl_cuda_device_open(pl_backend *backend, pl_device **out, int64_t rank, int ordinal)
{
    pl_cuda_device *device = NULL;
    PL_TRY(pl_allocate(&device, 1, sizeof *device, "a CUDA device"));
    device->head.functions = &functions;
    device->head.operations = backend->operations;
    device->head.backend = backend;
    device->head.rank = rank;
    device->head.entry = pl_entry_name_make(PL_OP_CONTROL, PL_SUBJECT_FLAGS);
    device->ordinal = ordinal;
    pl_status status = make_streams(&device->head);
    if (status != PL_OK) {
        close_device(&device->head);
        return status;
    }
    *out = &device->head;
    return PL_OK;
}
