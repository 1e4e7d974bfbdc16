#include <string.h>

#include "common/dtype_convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/operations.h"
#include "kernels/cpu/isa/split.h"
#include "kernels/cpu/vector.h"

enum { PIECE = 512 };

/* fp32 and the types that are widened to it. */
static bool is_float(pl_dtype dtype)
{
    return dtype == PL_FP32 || dtype == PL_BF16 || dtype == PL_FP16;
}

/* COUNT <= PIECE elements of type DTYPE as fp32. */
static void widen(float *to, const void *from, pl_dtype dtype, int64_t count)
{
    const uint16_t *half = from;
    if (dtype == PL_FP32)
        memcpy(to, from, (size_t)count * sizeof *to);
    else if (dtype == PL_BF16)
        for (int64_t i = 0; i < count; ++i) to[i] = pl_bf16_to_float(half[i]);
    else
        for (int64_t i = 0; i < count; ++i) to[i] = pl_fp16_to_float(half[i]);
}

static void narrow(void *to, const float *from, pl_dtype dtype, int64_t count)
{
    uint16_t *half = to;
    if (dtype == PL_FP32)
        memcpy(to, from, (size_t)count * sizeof *from);
    else if (dtype == PL_BF16)
        for (int64_t i = 0; i < count; ++i) half[i] = pl_float_to_bf16(from[i]);
    else
        for (int64_t i = 0; i < count; ++i) half[i] = pl_float_to_fp16(from[i]);
}

static void cast_floats(const pl_cast_arguments *a, void *to, const void *from, int64_t count)
{
    float values[PIECE], sums[PIECE];
    widen(values, from, a->from_dtype, count);
    if (a->add) {
        widen(sums, to, a->to_dtype, count);
        for (int64_t i = 0; i < count; ++i) values[i] = sums[i] + values[i];
    }
    narrow(to, values, a->to_dtype, count);
}

/* One side is fp64: the arithmetic is too, and what is fp32 is rounded once. */
static void cast_doubles(const pl_cast_arguments *a, void *to, const void *from, int64_t count)
{
    float values[PIECE];
    double *wide = to;
    const double *wide_from = from;
    if (a->to_dtype == PL_FP64) {
        if (a->from_dtype != PL_FP64) widen(values, from, a->from_dtype, count);
        for (int64_t i = 0; i < count; ++i) {
            double value = a->from_dtype == PL_FP64 ? wide_from[i] : (double)values[i];
            wide[i] = a->add ? wide[i] + value : value;
        }
        return;
    }
    float *narrow_to = to;
    for (int64_t i = 0; i < count; ++i)
        narrow_to[i] = (float)(a->add ? (double)narrow_to[i] + wide_from[i] : wide_from[i]);
}

static void add_floats(float *to, const float *from, int64_t count)
{
    int64_t i = 0;
    for (; i + PL_LANES <= count; i += PL_LANES)
        pl_store(to + i, pl_load(to + i) + pl_load(from + i));
    for (; i < count; ++i) to[i] = to[i] + from[i];
}

static void cast_block(void *context, int64_t index, void *scratch)
{
    (void)scratch;
    const pl_cast_arguments *a = context;
    int64_t count = pl_block_length(index, PL_BLOCK, a->count);
    int64_t from_bytes = pl_dtype_bytes(a->from_dtype), to_bytes = pl_dtype_bytes(a->to_dtype);
    const char *from = (const char *)a->from + index * PL_BLOCK * from_bytes;
    char *to = (char *)a->to + index * PL_BLOCK * to_bytes;
    if (a->from_dtype == a->to_dtype && !a->add) {
        if (from != to) memcpy(to, from, (size_t)(count * to_bytes));
        return;
    }
    if (a->from_dtype == PL_FP32 && a->to_dtype == PL_FP32) {
        add_floats((float *)(void *)to, (const float *)(const void *)from, count);
        return;
    }
    bool doubles = a->from_dtype == PL_FP64 || a->to_dtype == PL_FP64;
    for (int64_t i = 0; i < count; i += PIECE) {
        int64_t piece = count - i < PIECE ? count - i : PIECE;
        (doubles ? cast_doubles : cast_floats)(a, to + i * to_bytes, from + i * from_bytes, piece);
    }
}

static pl_status check_types(const pl_device *device, const pl_cast_arguments *a)
{
    bool from = is_float(a->from_dtype), to = is_float(a->to_dtype);
    bool from_wide = a->from_dtype == PL_FP64, to_wide = a->to_dtype == PL_FP64;
    bool same = a->from_dtype == a->to_dtype && !a->add;
    if (same || (from && (to || to_wide)) || (from_wide && (to_wide || a->to_dtype == PL_FP32)))
        return PL_OK;
    return pl_cpu_refuse(device, PL_UNSUPPORTED, "cast", "from %s to %s%s",
                         pl_dtype_name(a->from_dtype), pl_dtype_name(a->to_dtype),
                         a->add ? ", adding" : "");
}

pl_status PL_ISA(pl_cpu_cast)(pl_device *device, pl_stream stream, const pl_cast_arguments *a)
{
    int64_t count = 0;
    PL_TRY(check_types(device, a));
    PL_TRY(pl_cpu_elements(device, "cast", &count, a->count, 1, 1));
    PL_TRY(pl_cpu_require(device, "cast", count == 0 || (a->from && a->to), "both ends are given"));
    PL_TRY(pl_cpu_require(device, "cast", a->from != a->to || a->from_dtype == a->to_dtype,
                          "an element type is not changed in place"));
    int64_t to_bytes = count * pl_dtype_bytes(a->to_dtype);
    pl_touch touches[] = {pl_touch_read(a->from, count * pl_dtype_bytes(a->from_dtype)),
                          a->add ? pl_touch_update(a->to, to_bytes)
                                 : pl_touch_write(a->to, to_bytes)};
    pl_device_note(device, stream, "cast", 0, touches, 2);
    pl_cast_arguments arguments = *a;
    return pl_pool_run(pl_cpu_pool(device), pl_divide_up(count, PL_BLOCK), 0, cast_block,
                       &arguments);
}
