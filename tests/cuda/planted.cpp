#include "tests/cuda/planted.h"

#include <cuda_runtime.h>
#include <vector>

enum { THREADS = 64 };

static constexpr unsigned ALL_LANES = 0xffffffffu;

/* --- kernels --- */

static __global__ void turn_round(int *out, bool barrier)
{
    __shared__ int values[THREADS];
    values[threadIdx.x] = static_cast<int>(threadIdx.x);
    if (barrier) __syncthreads();
    out[threadIdx.x] = values[THREADS - 1 - threadIdx.x];
}

static __global__ void read_shared(float *out)
{
    __shared__ float values[THREADS];
    out[threadIdx.x] = values[threadIdx.x];
}

static __global__ void divergent_barrier(int *out)
{
    if (threadIdx.x < 5)
        __syncthreads();
    else
        out[threadIdx.x] = __shfl_xor_sync(ALL_LANES, 1, 1);
}

static __global__ void divergent_mask(int *out)
{
    unsigned mask = threadIdx.x % 2 ? ALL_LANES : 0x0000ffffu;
    out[threadIdx.x] = threadIdx.x < 16 ? __shfl_xor_sync(mask, 1, 1) : 0;
}

static __global__ void foreign_mask(int *out)
{
    out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1, 1);
}

static __global__ void ended_threads(int *out)
{
    if (threadIdx.x >= 40) return;
    out[threadIdx.x] = __shfl_xor_sync(ALL_LANES, static_cast<int>(threadIdx.x), 1);
    __syncthreads();
}

static __global__ void write_at(int *out, int offset)
{
    out[static_cast<int>(threadIdx.x) + offset] = 1;
}

static __global__ void read_at(const int *in, int *out, int offset)
{
    out[threadIdx.x] = in[static_cast<int>(threadIdx.x) + offset];
}

/* --- running them --- */

namespace
{
/* A stream and 64 ints on the device. */
struct bench {
    cudaStream_t stream = nullptr;
    int *memory = nullptr;
    bench()
    {
        (void)cudaSetDevice(0);
        (void)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        (void)cudaMalloc(reinterpret_cast<void **>(&memory), THREADS * sizeof *memory);
    }
    ~bench()
    {
        (void)cudaFree(memory);
        (void)cudaStreamDestroy(stream);
    }
    bench(const bench &) = delete;
    bench &operator=(const bench &) = delete;

    template <class... Parameters, class... Arguments>
    cudaError_t run(void (*kernel)(Parameters...), Arguments... arguments)
    {
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(1);
        config.blockDim = dim3(THREADS);
        config.stream = stream;
        cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
        return error ? error : cudaStreamSynchronize(stream);
    }

    template <class T> std::vector<T> fetch()
    {
        std::vector<T> host(THREADS);
        (void)cudaMemcpyAsync(host.data(), memory, THREADS * sizeof(T), cudaMemcpyDeviceToHost,
                              stream);
        (void)cudaStreamSynchronize(stream);
        return host;
    }
};

int wrong_after_turning(bool barrier)
{
    bench b;
    int wrong = 0;
    (void)b.run(turn_round, b.memory, barrier);
    std::vector<int> host = b.fetch<int>();
    for (int i = 0; i < THREADS; ++i) wrong += host[static_cast<size_t>(i)] != THREADS - 1 - i;
    return wrong;
}
} // namespace

int planted_with_barrier(void) { return wrong_after_turning(true); }
int planted_missing_barrier(void) { return wrong_after_turning(false); }

int planted_unwritten_shared(void)
{
    bench b;
    int found = 0;
    (void)b.run(read_shared, reinterpret_cast<float *>(b.memory));
    for (float value : b.fetch<float>()) found += std::isnan(value);
    return found;
}

int planted_divergent_barrier(void)
{
    bench b;
    return b.run(divergent_barrier, b.memory);
}

int planted_divergent_mask(void)
{
    bench b;
    return b.run(divergent_mask, b.memory);
}

int planted_foreign_mask(void)
{
    bench b;
    return b.run(foreign_mask, b.memory);
}

int planted_ended_threads(void)
{
    bench b;
    return b.run(ended_threads, b.memory);
}

int planted_write_behind(void)
{
    bench b;
    return b.run(write_at, b.memory, 1);
}

int planted_write_before(void)
{
    bench b;
    return b.run(write_at, b.memory, -1);
}

int planted_write_freed(void)
{
    bench b;
    int *freed = b.memory;
    b.memory = nullptr;
    (void)cudaFree(freed);
    return b.run(write_at, freed, 0);
}

int planted_read_behind(void)
{
    bench b;
    return b.run(read_at, static_cast<const int *>(b.memory), b.memory, 3);
}

int planted_host_read(void)
{
    bench b;
    return *static_cast<volatile int *>(b.memory) == 0;
}

/* --- wrong calls --- */

namespace
{
cudaError_t launch(cudaStream_t stream, dim3 grid, unsigned threads, int *memory)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, write_at, memory, 0);
}

cudaError_t on_other_device(const bench &b)
{
    (void)cudaSetDevice(1);
    cudaError_t error = launch(b.stream, dim3(1), 1, b.memory);
    (void)cudaSetDevice(0);
    return error;
}

cudaError_t record_without_stream()
{
    cudaEvent_t event = nullptr;
    (void)cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaError_t error = cudaEventRecord(event, nullptr);
    (void)cudaEventDestroy(event);
    return error;
}

struct row {
    cudaError_t given, right;
};
} // namespace

int planted_call(int number, int *given, int *right)
{
    bench b;
    int host[2 * THREADS] = {};
    size_t bytes = THREADS * sizeof *host;
    cudaStream_t none = nullptr;
    const row rows[] = {
        {cudaSetDevice(2), cudaErrorInvalidDevice},
        {cudaMemcpyAsync(b.memory, host, bytes + 1, cudaMemcpyHostToDevice, b.stream),
         cudaErrorInvalidValue},
        {cudaMemcpyAsync(host, b.memory + 1, bytes, cudaMemcpyDeviceToHost, b.stream),
         cudaErrorInvalidValue},
        {cudaMemcpyAsync(host, host + THREADS, bytes, cudaMemcpyHostToDevice, b.stream),
         cudaErrorInvalidValue},
        {cudaMemcpyAsync(b.memory, host, bytes, cudaMemcpyDeviceToHost, b.stream),
         cudaErrorInvalidMemcpyDirection},
        {cudaMemcpyAsync(host, b.memory, bytes, cudaMemcpyHostToDevice, b.stream),
         cudaErrorInvalidMemcpyDirection},
        {cudaMemcpyAsync(host, b.memory, bytes, cudaMemcpyDeviceToHost, none),
         cudaErrorInvalidResourceHandle},
        {cudaMemsetAsync(b.memory, 0, bytes + 1, b.stream), cudaErrorInvalidValue},
        {cudaMemsetAsync(host, 0, bytes, b.stream), cudaErrorInvalidValue},
        {cudaFree(host), cudaErrorInvalidValue},
        {cudaFreeHost(b.memory), cudaErrorInvalidValue},
        {cudaStreamSynchronize(none), cudaErrorInvalidResourceHandle},
        {cudaStreamDestroy(none), cudaErrorInvalidResourceHandle},
        {cudaEventDestroy(nullptr), cudaErrorInvalidResourceHandle},
        {cudaStreamWaitEvent(b.stream, nullptr, 0), cudaErrorInvalidResourceHandle},
        {record_without_stream(), cudaErrorInvalidResourceHandle},
        {launch(none, dim3(1), 1, b.memory), cudaErrorInvalidResourceHandle},
        {launch(b.stream, dim3(0), 1, b.memory), cudaErrorInvalidConfiguration},
        {launch(b.stream, dim3(1, 65536), 1, b.memory), cudaErrorInvalidConfiguration},
        {launch(b.stream, dim3(1), 0, b.memory), cudaErrorInvalidConfiguration},
        {launch(b.stream, dim3(1), 1025, b.memory), cudaErrorInvalidConfiguration},
        {on_other_device(b), cudaErrorInvalidResourceHandle},
        {launch(b.stream, dim3(1), THREADS, b.memory), cudaSuccess},
    };
    if (number >= static_cast<int>(sizeof rows / sizeof *rows)) return 0;
    *given = rows[number].given;
    *right = rows[number].right;
    return 1;
}
