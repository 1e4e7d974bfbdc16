#include "train/value_source.h"

#include "common/dtype_convert.h"
#include "common/initial_values.h"
#include "common/memory.h"

/* Rows are made this many elements at a time, or one by one where a row has more. */
enum { PIECE = 1 << 16 };

static void convert(uint16_t *to, const float *from, int64_t count, pl_dtype dtype)
{
    for (int64_t i = 0; i < count; ++i)
        to[i] = dtype == PL_BF16 ? pl_float_to_bf16(from[i]) : pl_float_to_fp16(from[i]);
}

pl_status pl_value_source_initial(void *context, const pl_tensor *tensor, int64_t row_begin,
                                  int64_t row_end, pl_dtype dtype, void *out)
{
    const pl_value_source *source = context;
    if (dtype == PL_FP32)
        return pl_initial_values(out, source->seed, tensor, source->initializer_range, row_begin,
                                 row_end);
    if (dtype != PL_BF16 && dtype != PL_FP16)
        return PL_FAIL(PL_UNSUPPORTED, "initial values of type %s; allowed: fp32, bf16, fp16",
                       pl_dtype_name(dtype));
    int64_t rows = tensor->cols < PIECE ? PIECE / tensor->cols : 1;
    float *piece = NULL;
    uint16_t *to = out;
    PL_TRY(pl_allocate(&piece, (size_t)(rows * tensor->cols), sizeof *piece, "initial values"));
    pl_status status = PL_OK;
    for (int64_t row = row_begin; row < row_end && status == PL_OK; row += rows) {
        int64_t end = row_end - row < rows ? row_end : row + rows;
        status =
            pl_initial_values(piece, source->seed, tensor, source->initializer_range, row, end);
        if (status != PL_OK) break;
        convert(to, piece, (end - row) * tensor->cols, dtype);
        to += (end - row) * tensor->cols;
    }
    pl_free(piece);
    return status;
}
