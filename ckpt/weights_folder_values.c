#include "ckpt/weights_folder_values.h"

#include <inttypes.h>
#include <string.h>

#include "common/dtype_convert.h"

bool pl_weights_dtype_fits(pl_dtype dtype)
{
    return dtype == PL_FP32 || dtype == PL_BF16 || dtype == PL_FP16;
}

static float load(const void *from, pl_dtype dtype, int64_t i)
{
    uint16_t half = 0;
    float value = 0;
    if (dtype == PL_FP32) {
        memcpy(&value, (const char *)from + i * 4, sizeof value);
        return value;
    }
    memcpy(&half, (const char *)from + i * 2, sizeof half);
    return dtype == PL_BF16 ? pl_bf16_to_float(half) : pl_fp16_to_float(half);
}

static void store(void *to, pl_dtype dtype, int64_t i, float value)
{
    if (dtype == PL_FP32) {
        memcpy((char *)to + i * 4, &value, sizeof value);
        return;
    }
    uint16_t half = dtype == PL_BF16 ? pl_float_to_bf16(value) : pl_float_to_fp16(value);
    memcpy((char *)to + i * 2, &half, sizeof half);
}

void pl_weights_convert(void *to, pl_dtype to_dtype, const void *from, pl_dtype from_dtype,
                        int64_t count)
{
    if (to_dtype == from_dtype) {
        memcpy(to, from, (size_t)(count * pl_dtype_bytes(to_dtype)));
        return;
    }
    for (int64_t i = 0; i < count; ++i) store(to, to_dtype, i, load(from, from_dtype, i));
}

pl_weights_span pl_weights_first_span(const pl_tensor *tensor, int64_t row_begin, int64_t row_end)
{
    int64_t expert = tensor->experts > 0 ? row_begin / tensor->rows : 0;
    int64_t first = expert * tensor->rows, last = first + tensor->rows;
    return (pl_weights_span){.expert = expert,
                             .row_begin = row_begin - first,
                             .row_end = (row_end < last ? row_end : last) - first};
}

pl_status pl_weights_name(pl_text *text, const pl_tensor *tensor, int64_t expert)
{
    pl_text_clear(text);
    if (tensor->experts > 0)
        pl_tensor_expert_name(text, tensor, expert);
    else
        pl_tensor_name(text, tensor);
    return pl_text_status(text);
}

pl_status pl_weights_check_rows(const pl_tensor *tensor, int64_t row_begin, int64_t row_end,
                                pl_dtype dtype)
{
    int64_t rows = pl_tensor_total_rows(tensor);
    if (row_begin < 0 || row_end < row_begin || row_end > rows)
        return PL_FAIL(PL_INTERNAL, "rows [%" PRId64 ", %" PRId64 ") of %s, which has %" PRId64,
                       row_begin, row_end, tensor->suffix, rows);
    if (!pl_weights_dtype_fits(dtype))
        return PL_FAIL(PL_INTERNAL, "weights as %s; allowed: fp32, bf16, fp16",
                       pl_dtype_name(dtype));
    return PL_OK;
}
