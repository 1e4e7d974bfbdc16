/* Each block is copied into arrays of its element type first: callers' buffers need no alignment
 * and no declared type, and the loops over the block vectorize. */
#include "common/reduce.h"

#include <string.h>

#include "common/dtype_convert.h"

static const char *source(const pl_posted_call *posted, int segment, int64_t offset, size_t bytes)
{
    return (const char *)posted->segments[segment].send + (size_t)offset * bytes;
}

#define AS_IS(x)          (x)
#define ADD(a, b)         ((a) + (b))
#define ADD_U8(a, b)      ((uint8_t)((a) + (b)))
#define MAXIMUM(a, b)     ((b) > (a) ? (b) : (a))
#define MAXIMUM_NAN(a, b) ((b) > (a) || (b) != (b) ? (b) : (a))

/* Define NAME, which reduces elements of type ELEMENT in type TOTAL. */
#define DEFINE_INTEGER(NAME, ELEMENT, COMBINE)                                                     \
    static void NAME(void *result, const pl_posted_call *posted, int64_t size, int segment,        \
                     int64_t offset, int count)                                                    \
    {                                                                                              \
        ELEMENT total[PL_REDUCE_BLOCK], piece[PL_REDUCE_BLOCK];                                    \
        const size_t bytes = (size_t)count * sizeof *piece;                                        \
        memcpy(total, source(posted, segment, offset, sizeof *piece), bytes);                      \
        for (int64_t member = 1; member < size; ++member) {                                        \
            memcpy(piece, source(posted + member, segment, offset, sizeof *piece), bytes);         \
            for (int i = 0; i < count; ++i) total[i] = COMBINE(total[i], piece[i]);                \
        }                                                                                          \
        memcpy(result, total, bytes);                                                              \
    }

#define DEFINE_FLOAT(NAME, ELEMENT, TOTAL, LOAD, COMBINE, STORE)                                   \
    static void NAME(void *result, const pl_posted_call *posted, int64_t size, int segment,        \
                     int64_t offset, int count)                                                    \
    {                                                                                              \
        TOTAL total[PL_REDUCE_BLOCK];                                                              \
        ELEMENT piece[PL_REDUCE_BLOCK];                                                            \
        const size_t bytes = (size_t)count * sizeof *piece;                                        \
        memcpy(piece, source(posted, segment, offset, sizeof *piece), bytes);                      \
        for (int i = 0; i < count; ++i) total[i] = LOAD(piece[i]);                                 \
        for (int64_t member = 1; member < size; ++member) {                                        \
            memcpy(piece, source(posted + member, segment, offset, sizeof *piece), bytes);         \
            for (int i = 0; i < count; ++i) total[i] = COMBINE(total[i], LOAD(piece[i]));          \
        }                                                                                          \
        if (posted->call.reduction == PL_REDUCTION_AVERAGE)                                        \
            for (int i = 0; i < count; ++i) total[i] = total[i] / (TOTAL)size;                     \
        for (int i = 0; i < count; ++i) piece[i] = STORE(total[i]);                                \
        memcpy(result, piece, bytes);                                                              \
    }

/* Unsigned arithmetic wraps; two's complement makes it the signed sum. */
DEFINE_INTEGER(sum_u8, uint8_t, ADD_U8)
DEFINE_INTEGER(sum_i32, uint32_t, ADD)
DEFINE_INTEGER(sum_i64, uint64_t, ADD)
DEFINE_INTEGER(max_u8, uint8_t, MAXIMUM)
DEFINE_INTEGER(max_i32, int32_t, MAXIMUM)
DEFINE_INTEGER(max_i64, int64_t, MAXIMUM)

DEFINE_FLOAT(sum_bf16, uint16_t, float, pl_bf16_to_float, ADD, pl_float_to_bf16)
DEFINE_FLOAT(sum_fp16, uint16_t, float, pl_fp16_to_float, ADD, pl_float_to_fp16)
DEFINE_FLOAT(sum_fp32, float, float, AS_IS, ADD, AS_IS)
DEFINE_FLOAT(sum_fp64, double, double, AS_IS, ADD, AS_IS)
DEFINE_FLOAT(max_bf16, uint16_t, float, pl_bf16_to_float, MAXIMUM_NAN, pl_float_to_bf16)
DEFINE_FLOAT(max_fp16, uint16_t, float, pl_fp16_to_float, MAXIMUM_NAN, pl_float_to_fp16)
DEFINE_FLOAT(max_fp32, float, float, AS_IS, MAXIMUM_NAN, AS_IS)
DEFINE_FLOAT(max_fp64, double, double, AS_IS, MAXIMUM_NAN, AS_IS)

static const pl_reducer sums[PL_DTYPE_COUNT] = {
    [PL_U8] = sum_u8,     [PL_I32] = sum_i32,   [PL_I64] = sum_i64,  [PL_BF16] = sum_bf16,
    [PL_FP16] = sum_fp16, [PL_FP32] = sum_fp32, [PL_FP64] = sum_fp64};

static const pl_reducer maxima[PL_DTYPE_COUNT] = {
    [PL_U8] = max_u8,     [PL_I32] = max_i32,   [PL_I64] = max_i64,  [PL_BF16] = max_bf16,
    [PL_FP16] = max_fp16, [PL_FP32] = max_fp32, [PL_FP64] = max_fp64};

void pl_reduce_elements(void *result, const pl_posted_call *posted, int64_t size, int segment,
                        int64_t offset, int count)
{
    const pl_dtype dtype = posted->segments[segment].dtype;
    size_t bytes = (size_t)pl_dtype_bytes(dtype);
    if (size == 1) {
        memcpy(result, source(posted, segment, offset, bytes), (size_t)count * bytes);
        return;
    }
    const pl_reducer *reducers = posted->call.reduction == PL_REDUCTION_MAX ? maxima : sums;
    reducers[dtype](result, posted, size, segment, offset, count);
}
