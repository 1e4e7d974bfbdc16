/* SwiGLU: act = silu(gate) up, silu(g) = g s(g) with s(g) = 1 / (1 + exp(-g)). */
#include "common/memory.h"
#include "kernels/cuda/cuda.cuh"

enum { THREADS = 256 };

static __device__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }

template <class T>
static __global__ void swiglu_kernel(const T *gate, const T *up, T *act, int64_t count)
{
    int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; i < count; i += step) {
        float g = pl_load(gate + i);
        pl_store(act + i, g * sigmoid(g) * pl_load(up + i));
    }
}

template <class T>
static pl_status run_swiglu(pl_device *device, pl_stream stream, const pl_swiglu_arguments *a)
{
    return pl_cuda_launch(device, "swiglu", stream, pl_cuda_blocks(pl_divide_up(a->count, THREADS)),
                          THREADS, swiglu_kernel<T>, static_cast<const T *>(a->gate),
                          static_cast<const T *>(a->up), static_cast<T *>(a->act), a->count);
}

pl_status pl_cuda_swiglu(pl_device *device, pl_stream stream, const pl_swiglu_arguments *a)
{
    int64_t count = 0;
    PL_TRY(pl_cuda_require_type(device, "swiglu", a->dtype));
    PL_TRY(pl_device_elements(device, "swiglu", &count, a->count, 1, 1));
    PL_TRY(pl_device_require(device, "swiglu", count == 0 || (a->gate && a->up && a->act),
                             "gate, up and act are given"));
    int64_t bytes = count * pl_dtype_bytes(a->dtype);
    pl_touch touches[] = {pl_touch_read(a->gate, bytes), pl_touch_read(a->up, bytes),
                          pl_touch_write(a->act, bytes)};
    pl_device_note(device, stream, "swiglu", 0, touches, 3);
    if (count == 0) return PL_OK;
    PL_TRY(pl_cuda_enter(device, "swiglu"));
    return a->dtype == PL_BF16 ? run_swiglu<__nv_bfloat16>(device, stream, a)
                               : run_swiglu<float>(device, stream, a);
}

/* --- backward --- */

/* The derivative of silu is s (1 + g (1 - s)). Results may stand where arguments do. */
template <class T>
static __global__ void swiglu_backward_kernel(const T *gate, const T *up, const T *dact, T *dgate,
                                              T *dup, int64_t count)
{
    int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; i < count; i += step) {
        float g = pl_load(gate + i), u = pl_load(up + i), d = pl_load(dact + i), s = sigmoid(g);
        pl_store(dgate + i, d * u * s * (1 + g * (1 - s)));
        pl_store(dup + i, d * g * s);
    }
}

template <class T>
static pl_status run_backward(pl_device *device, pl_stream stream,
                              const pl_swiglu_backward_arguments *a)
{
    return pl_cuda_launch(device, "swiglu_backward", stream,
                          pl_cuda_blocks(pl_divide_up(a->count, THREADS)), THREADS,
                          swiglu_backward_kernel<T>, static_cast<const T *>(a->gate),
                          static_cast<const T *>(a->up), static_cast<const T *>(a->dact),
                          static_cast<T *>(a->dgate), static_cast<T *>(a->dup), a->count);
}

pl_status pl_cuda_swiglu_backward(pl_device *device, pl_stream stream,
                                  const pl_swiglu_backward_arguments *a)
{
    int64_t count = 0;
    PL_TRY(pl_cuda_require_type(device, "swiglu_backward", a->dtype));
    PL_TRY(pl_device_elements(device, "swiglu_backward", &count, a->count, 1, 1));
    PL_TRY(pl_device_require(device, "swiglu_backward",
                             count == 0 || (a->gate && a->up && a->dact && a->dgate && a->dup),
                             "gate, up, dact, dgate and dup are given"));
    int64_t bytes = count * pl_dtype_bytes(a->dtype);
    pl_touch touches[] = {pl_touch_read(a->gate, bytes), pl_touch_read(a->up, bytes),
                          pl_touch_read(a->dact, bytes), pl_touch_write(a->dgate, bytes),
                          pl_touch_write(a->dup, bytes)};
    pl_device_note(device, stream, "swiglu_backward", 0, touches, 5);
    if (count == 0) return PL_OK;
    PL_TRY(pl_cuda_enter(device, "swiglu_backward"));
    return a->dtype == PL_BF16 ? run_backward<__nv_bfloat16>(device, stream, a)
                               : run_backward<float>(device, stream, a);
}
