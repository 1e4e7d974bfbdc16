/* The CUDA backend: devices of the CUDA runtime behind kernels/device.h. For the files of this
 * folder, which nvcc compiles, and a C++ compiler against the stand-in of the tests
 * (tests/cuda/stand_in), so nothing here asks which of the two it is.
 *
 * A failed call of the runtime is worded with its name, the device and the plan entry. Kernels are
 * started by cudaLaunchKernelEx; their sums run in an order that depends on the arguments alone.
 */
#ifndef PL_KERNELS_CUDA_CUDA_CUH
#define PL_KERNELS_CUDA_CUDA_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/checks.h"
#include "kernels/device.h"

/* Device memory for what one operation leaves for its own next kernel. */
struct pl_cuda_workspace {
    void *memory;
    int64_t bytes;
};

struct pl_cuda_device {
    pl_device head; /* first: the address of one is that of the other */
    int ordinal;    /* the runtime's number of the device */
    cudaStream_t streams[PL_STREAM_COUNT];
    pl_cuda_workspace workspaces[PL_STREAM_COUNT];
    cudaEvent_t events[PL_DEVICE_EVENTS]; /* NULL: never recorded */
};

static inline pl_cuda_device *pl_cuda_of(pl_device *device)
{
    return reinterpret_cast<pl_cuda_device *>(device);
}

/* Open DEVICE number ORDINAL of the runtime. The arguments are known to be right. Errors:
 * PL_NO_MEMORY; PL_INTERNAL with the words of the runtime. */
pl_status pl_cuda_device_open(pl_backend *backend, pl_device **out, int64_t rank, int ordinal);

/* PL_OK, or a failure that says that FUNCTION of the runtime failed with ERROR for operation WHAT:
 * PL_NO_MEMORY for want of memory, else PL_INTERNAL. */
pl_status pl_cuda_check(const pl_device *device, const char *what, const char *function,
                        cudaError_t error);

#define PL_CUDA_TRY(device, what, function, ...)                                                   \
    PL_TRY(pl_cuda_check(device, what, #function, function(__VA_ARGS__)))

/* Make the device the calling thread's: before every call of the runtime that is about it. */
pl_status pl_cuda_enter(pl_device *device, const char *what);

/* At least BYTES of device memory for operation WHAT on STREAM, 256-byte aligned, contents
 * undefined, good until the next call of this function for the stream. Errors: PL_NO_MEMORY. */
pl_status pl_cuda_workspace_of(pl_device *device, const char *what, pl_stream stream, int64_t bytes,
                               void **out);

/* PL_UNSUPPORTED for element types that the backend does not compute with. */
pl_status pl_cuda_require_type(const pl_device *device, const char *what, pl_dtype dtype);

/* Operations. */
pl_status pl_cuda_rms_norm(pl_device *device, pl_stream stream, const pl_rms_norm_arguments *a);
pl_status pl_cuda_rms_norm_backward(pl_device *device, pl_stream stream,
                                    const pl_rms_norm_backward_arguments *a);
pl_status pl_cuda_swiglu(pl_device *device, pl_stream stream, const pl_swiglu_arguments *a);
pl_status pl_cuda_swiglu_backward(pl_device *device, pl_stream stream,
                                  const pl_swiglu_backward_arguments *a);

/* --- kernels --- */

/* Elements as they lie in memory, arithmetic in fp32; bf16 is rounded to nearest even. */
static __device__ inline float pl_load(const float *from) { return *from; }
static __device__ inline float pl_load(const __nv_bfloat16 *from)
{
    return __bfloat162float(*from);
}
static __device__ inline void pl_store(float *to, float value) { *to = value; }
static __device__ inline void pl_store(__nv_bfloat16 *to, float value)
{
    *to = __float2bfloat16_rn(value);
}

/* Blocks of a kernel whose threads go on to the next block's share when theirs is done: more would
 * only queue, whatever the device. */
static constexpr int64_t PL_CUDA_MOST_BLOCKS = 2048;

static inline unsigned pl_cuda_blocks(int64_t wanted)
{
    return static_cast<unsigned>(wanted < PL_CUDA_MOST_BLOCKS ? wanted : PL_CUDA_MOST_BLOCKS);
}

/* Queue KERNEL on STREAM for operation WHAT. The grid is not empty. */
template <class... Parameters, class... Arguments>
pl_status pl_cuda_launch(pl_device *device, const char *what, pl_stream stream, dim3 grid,
                         unsigned threads, void (*kernel)(Parameters...), Arguments... arguments)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.stream = pl_cuda_of(device)->streams[stream];
    return pl_cuda_check(device, what, "cudaLaunchKernelEx",
                         cudaLaunchKernelEx(&config, kernel, arguments...));
}

#endif
