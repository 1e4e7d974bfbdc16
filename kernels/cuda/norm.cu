/* RMSNorm by rows: a block of threads for each row, whole warps, fp32 sums in a fixed order. */
#include "common/memory.h"
#include "kernels/cuda/cuda.cuh"

static constexpr int WARP = 32, COLUMN_THREADS = 128;
static constexpr int64_t ROW_THREADS_MOST = 256;
/* dweight: rows that one thread adds up, until there are SUMS_MOST such sums. */
static constexpr int64_t ROWS_OF_A_SUM = 32, SUMS_MOST = 256;

static constexpr unsigned ALL_LANES = 0xffffffffu;

/* Threads for a row: depends on its length alone, since the order of sums does. */
static unsigned row_threads(int64_t cols)
{
    int64_t threads = pl_divide_up(cols, WARP) * WARP;
    return static_cast<unsigned>(threads < ROW_THREADS_MOST ? threads : ROW_THREADS_MOST);
}

/* The sum of VALUE over the threads of the block, the same for each of them. */
static __device__ float block_sum(float value)
{
    __shared__ float sums[ROW_THREADS_MOST / WARP];
    for (int step = WARP / 2; step > 0; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = value;
    __syncthreads();
    float total = 0;
    for (unsigned i = 0; i < blockDim.x / WARP; ++i) total += sums[i];
    __syncthreads(); /* before the next sum is written there */
    return total;
}

template <class T> static __device__ float reciprocal_root(const T *x, int64_t cols, float epsilon)
{
    float squares = 0;
    for (int64_t i = threadIdx.x; i < cols; i += blockDim.x) {
        float value = pl_load(x + i);
        squares += value * value;
    }
    return 1 / sqrtf(block_sum(squares) / static_cast<float>(cols) + epsilon);
}

/* --- forward --- */

/* y NULL: only rstd is wanted. */
template <class T>
static __global__ void norm_kernel(const T *x, const T *weight, T *y, float *rstd, int64_t rows,
                                   int64_t cols, float epsilon)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T *from = x + row * cols;
        float factor = reciprocal_root(from, cols, epsilon);
        if (rstd && threadIdx.x == 0) rstd[row] = factor;
        if (!y) continue;
        for (int64_t i = threadIdx.x; i < cols; i += blockDim.x)
            pl_store(y + row * cols + i, pl_load(from + i) * factor * pl_load(weight + i));
    }
}

template <class T>
static pl_status run_norm(pl_device *device, pl_stream stream, const pl_rms_norm_arguments *a)
{
    return pl_cuda_launch(device, "rms_norm", stream, pl_cuda_blocks(a->rows), row_threads(a->cols),
                          norm_kernel<T>, static_cast<const T *>(a->x),
                          static_cast<const T *>(a->weight), static_cast<T *>(a->y), a->rstd,
                          a->rows, a->cols, static_cast<float>(a->epsilon));
}

pl_status pl_cuda_rms_norm(pl_device *device, pl_stream stream, const pl_rms_norm_arguments *a)
{
    int64_t count = 0;
    PL_TRY(pl_cuda_require_type(device, "rms_norm", a->dtype));
    PL_TRY(pl_device_elements(device, "rms_norm", &count, a->rows, a->cols, 1));
    PL_TRY(pl_device_require(device, "rms_norm", a->rows == 0 || a->cols > 0, "a row has columns"));
    PL_TRY(pl_device_require(device, "rms_norm", count == 0 || (a->x && a->weight && a->y),
                             "x, weight and y are given"));
    int64_t element = pl_dtype_bytes(a->dtype);
    pl_touch touches[] = {pl_touch_read(a->x, count * element),
                          pl_touch_read(a->weight, a->cols * element),
                          pl_touch_write(a->y, count * element),
                          pl_touch_write(a->rstd, a->rows * static_cast<int64_t>(sizeof *a->rstd))};
    pl_device_note(device, stream, "rms_norm", 0, touches, 4);
    if (count == 0) return PL_OK;
    PL_TRY(pl_cuda_enter(device, "rms_norm"));
    return a->dtype == PL_BF16 ? run_norm<__nv_bfloat16>(device, stream, a)
                               : run_norm<float>(device, stream, a);
}

/* --- backward --- */

/* dx = rstd (weight dy - x rstd^2 mean(weight dy x)) (+ residual). A row is summed up before any of
 * it is written, so that dx may stand where x, dy or the residual does. */
template <class T>
static __global__ void norm_dx_kernel(const T *x, const T *weight, const T *dy, const float *rstd,
                                      const T *residual, T *dx, int64_t rows, int64_t cols)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        int64_t begin = row * cols;
        float dot = 0, factor = rstd[row];
        for (int64_t i = threadIdx.x; i < cols; i += blockDim.x)
            dot += pl_load(weight + i) * pl_load(dy + begin + i) * pl_load(x + begin + i);
        float share = factor * factor * factor * (block_sum(dot) / static_cast<float>(cols));
        for (int64_t i = threadIdx.x; i < cols; i += blockDim.x) {
            float d = pl_load(weight + i) * pl_load(dy + begin + i) * factor -
                      pl_load(x + begin + i) * share;
            pl_store(dx + begin + i, residual ? pl_load(residual + begin + i) + d : d);
        }
    }
}

/* Sums of dy x rstd: sums[blockIdx.y][col] over `length` rows from blockIdx.y * length. */
template <class T>
static __global__ void norm_dweight_kernel(const T *x, const T *dy, const float *rstd, float *sums,
                                           int64_t length, int64_t rows, int64_t cols)
{
    int64_t col = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    int64_t row = blockIdx.y * length, end = row + length < rows ? row + length : rows;
    if (col >= cols) return;
    float sum = 0;
    for (; row < end; ++row)
        sum += pl_load(dy + row * cols + col) * pl_load(x + row * cols + col) * rstd[row];
    sums[blockIdx.y * cols + col] = sum;
}

/* dweight (+)= the sums, in their order. */
static __global__ void fold_kernel(const float *sums, int64_t count, float *dweight, bool add,
                                   int64_t cols)
{
    int64_t col = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    float total = add ? dweight[col] : 0;
    for (int64_t i = 0; i < count; ++i) total += sums[i * cols + col];
    dweight[col] = total;
}

static const char backward[] = "rms_norm_backward";

/* What a backward pass keeps in its workspace, and where. */
struct backward_room {
    int64_t length, count; /* rows of a sum, and sums of each column */
    float *sums;           /* [count, cols] */
    float *rstd;           /* [rows]; not used when it is given */
};

static pl_status make_room(pl_device *device, pl_stream stream,
                           const pl_rms_norm_backward_arguments *a, backward_room *room)
{
    void *memory = NULL;
    int64_t wanted = pl_divide_up(a->rows, ROWS_OF_A_SUM);
    room->length = wanted <= SUMS_MOST ? ROWS_OF_A_SUM : pl_divide_up(a->rows, SUMS_MOST);
    room->count = pl_divide_up(a->rows, room->length);
    int64_t floats = (a->dweight ? room->count * a->cols : 0) + (a->rstd ? 0 : a->rows);
    PL_TRY(pl_cuda_workspace_of(device, backward, stream,
                                floats * static_cast<int64_t>(sizeof(float)), &memory));
    room->sums = static_cast<float *>(memory);
    room->rstd = room->sums + (a->dweight ? room->count * a->cols : 0);
    return PL_OK;
}

/* Column blocks fit the grid: columns of 8 bytes at least fit memory. */
static unsigned column_blocks(int64_t cols)
{
    return static_cast<unsigned>(pl_divide_up(cols, COLUMN_THREADS));
}

template <class T>
static pl_status run_rows(pl_device *device, pl_stream stream,
                          const pl_rms_norm_backward_arguments *a, const backward_room *room)
{
    const T *x = static_cast<const T *>(a->x), *dy = static_cast<const T *>(a->dy);
    const T *weight = static_cast<const T *>(a->weight);
    const float *rstd = a->rstd ? a->rstd : room->rstd;
    unsigned blocks = pl_cuda_blocks(a->rows), threads = row_threads(a->cols);
    if (!a->rstd)
        PL_TRY(pl_cuda_launch(device, backward, stream, blocks, threads, norm_kernel<T>, x, weight,
                              static_cast<T *>(NULL), room->rstd, a->rows, a->cols,
                              static_cast<float>(a->epsilon)));
    if (a->dweight) /* first: dx may stand where x or dy does */
        PL_TRY(pl_cuda_launch(device, backward, stream,
                              dim3(column_blocks(a->cols), static_cast<unsigned>(room->count)),
                              COLUMN_THREADS, norm_dweight_kernel<T>, x, dy, rstd, room->sums,
                              room->length, a->rows, a->cols));
    if (!a->dx) return PL_OK;
    return pl_cuda_launch(device, backward, stream, blocks, threads, norm_dx_kernel<T>, x, weight,
                          dy, rstd, static_cast<const T *>(a->residual), static_cast<T *>(a->dx),
                          a->rows, a->cols);
}

static pl_status run_backward(pl_device *device, pl_stream stream,
                              const pl_rms_norm_backward_arguments *a)
{
    backward_room room = {};
    PL_TRY(pl_cuda_enter(device, backward));
    PL_TRY(make_room(device, stream, a, &room));
    if (a->rows > 0)
        PL_TRY(a->dtype == PL_BF16 ? run_rows<__nv_bfloat16>(device, stream, a, &room)
                                   : run_rows<float>(device, stream, a, &room));
    if (!a->dweight || a->cols == 0) return PL_OK;
    return pl_cuda_launch(device, backward, stream, column_blocks(a->cols), COLUMN_THREADS,
                          fold_kernel, room.sums, room.count, a->dweight, a->add, a->cols);
}

pl_status pl_cuda_rms_norm_backward(pl_device *device, pl_stream stream,
                                    const pl_rms_norm_backward_arguments *a)
{
    int64_t count = 0, room = 0;
    PL_TRY(pl_cuda_require_type(device, backward, a->dtype));
    PL_TRY(pl_device_elements(device, backward, &count, a->rows, a->cols, 1));
    PL_TRY(pl_device_elements(device, backward, &room, SUMS_MOST, a->cols, 1));
    PL_TRY(pl_device_require(device, backward, a->rows == 0 || a->cols > 0, "a row has columns"));
    PL_TRY(pl_device_require(device, backward,
                             count == 0 || (a->x && a->dy && (a->weight || !a->dx)),
                             "x, weight and dy are given"));
    int64_t element = pl_dtype_bytes(a->dtype), bytes = count * element;
    int64_t floats = static_cast<int64_t>(sizeof(float)), sums = a->cols * floats;
    pl_touch touches[] = {
        pl_touch_read(a->x, bytes),
        pl_touch_read(a->dx ? a->weight : NULL, a->cols * element),
        pl_touch_read(a->dy, bytes),
        pl_touch_read(a->rstd, a->rows * floats),
        pl_touch_read(a->dx && a->residual != a->dx ? a->residual : NULL, bytes),
        a->residual == a->dx ? pl_touch_update(a->dx, bytes) : pl_touch_write(a->dx, bytes),
        a->add ? pl_touch_update(a->dweight, sums) : pl_touch_write(a->dweight, sums)};
    pl_device_note(device, stream, backward, 0, touches, 7);
    if (count == 0 && !a->dweight) return PL_OK;
    return run_backward(device, stream, a);
}
