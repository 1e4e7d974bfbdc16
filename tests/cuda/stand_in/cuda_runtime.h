/* The part of the CUDA runtime that pleat uses, on the CPU, for tests: what <cuda_runtime.h> is for
 * nvcc this is for a C++ compiler. The .cu files do not know the difference.
 *
 * Kernels. One OS thread runs a grid, block after block; the CUDA threads of a block are fibers,
 * which change over inside barriers and warp exchanges alone. A run is a function of its inputs and
 * of the schedule that the test chose (control.h). Reported: barriers and masks on which the
 * threads do not agree, writes outside device memory (with the address sanitizer reads too, at
 * once), shared memory that is read before it is written (it holds NaN at first), and, in a build
 * with the thread sanitizer, accesses that no barrier orders (blocks of at most 128 threads: it
 * misses some in larger ones).
 *
 * Streams. Work is queued and done when something waits for it, no earlier and no more of it,
 * unless the test chose otherwise: what nobody waits for has not happened. Arguments are checked as
 * the runtime does. Device memory may be followed by kernels alone: with the address sanitizer the
 * host is stopped.
 *
 * Not covered: speed, races between blocks, the order in which real warps run, instructions beyond
 * those here, contraction of products and sums.
 */
#ifndef PL_TESTS_CUDA_STAND_IN_CUDA_RUNTIME_H
#define PL_TESTS_CUDA_STAND_IN_CUDA_RUNTIME_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>

/* --- qualifiers --- */

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __forceinline__ inline
/* All fibers of a block are in one OS thread, and blocks run one after another. The section lets
 * the stand-in fill it with NaN for each block; so shared arrays stand in functions that are
 * neither templates nor inline, since GCC lets no others choose a section. */
#define __shared__ static __attribute__((section("cuda_on_cpu_shared")))

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

/* --- host side: names, numbers and meaning are those of the CUDA runtime --- */

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchFailure = 719
};

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice
};

enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };

typedef struct cuda_on_cpu_stream *cudaStream_t;
typedef struct cuda_on_cpu_event *cudaEvent_t;

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem;
    int major, minor, multiProcessorCount;
};

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    void *attrs;
    unsigned numAttrs;
};

const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaMemGetInfo(size_t *left, size_t *total);
cudaError_t cudaMalloc(void **memory, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaMallocHost(void **memory, size_t bytes);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);

namespace cuda_on_cpu
{
/* Queue a kernel whose thread BODY is. */
cudaError_t launch(const cudaLaunchConfig_t &config, std::function<void()> body);
} // namespace cuda_on_cpu

/* Arguments are converted to the types of the parameters and copied now. */
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(Parameters...),
                               Arguments &&...arguments)
{
    std::tuple<Parameters...> copies(static_cast<Parameters>(arguments)...);
    return cuda_on_cpu::launch(*config, [kernel, copies] { std::apply(kernel, copies); });
}

/* --- device side --- */

namespace cuda_on_cpu
{
enum { LANES = 32 };

/* Of the thread that runs, within its warp. */
unsigned lane();

/* Wait for all threads of the block that have not ended. */
void block_barrier(const char *what);

/* Wait for the lanes of MASK that have not ended; the values that they gave, good until the next
 * call. A lane that gave none has a value that nobody gives by intent. Orders no memory. */
const uint64_t *exchange(unsigned mask, uint64_t value, const char *what);

template <class T> uint64_t to_bits(T value)
{
    static_assert(sizeof(T) <= sizeof(uint64_t), "exchanges move up to eight bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}

template <class T> T from_bits(uint64_t bits)
{
    T value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
} // namespace cuda_on_cpu

/* Those of the thread that runs: set whenever another one goes on. */
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

inline void __syncthreads() { cuda_on_cpu::block_barrier("__syncthreads"); }

template <class T> T __shfl_xor_sync(unsigned mask, T value, int other)
{
    unsigned lane = cuda_on_cpu::lane() ^ static_cast<unsigned>(other);
    const uint64_t *all =
        cuda_on_cpu::exchange(mask, cuda_on_cpu::to_bits(value), "__shfl_xor_sync");
    return lane < cuda_on_cpu::LANES ? cuda_on_cpu::from_bits<T>(all[lane]) : value;
}

#endif
