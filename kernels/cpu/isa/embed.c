#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/operations.h"
#include "kernels/cpu/isa/split.h"
#include "kernels/cpu/vector.h"

enum { FLOAT = sizeof(float) };

/* Tokens come from files: one outside would be a read or write anywhere in memory. */
static pl_status check_tokens(const pl_device *device, const char *what, const int32_t *tokens,
                              int64_t count, int64_t vocabulary)
{
    for (int64_t i = 0; i < count; ++i)
        if (tokens[i] < 0 || tokens[i] >= vocabulary)
            return pl_cpu_refuse(device, PL_INTERNAL, what,
                                 "token %d at place %lld is outside the vocabulary of %lld",
                                 tokens[i], (long long)i, (long long)vocabulary);
    return PL_OK;
}

static void embed_rows(void *context, int64_t index, void *scratch)
{
    (void)scratch;
    const pl_embed_arguments *a = context;
    int64_t block = pl_row_block(a->cols), begin = index * block;
    int64_t end = begin + pl_block_length(index, block, a->count);
    for (int64_t i = begin; i < end; ++i)
        memcpy((float *)a->x + i * a->cols, (const float *)a->table + a->tokens[i] * a->cols,
               (size_t)a->cols * FLOAT);
}

pl_status PL_ISA(pl_cpu_embed)(pl_device *device, pl_stream stream, const pl_embed_arguments *a)
{
    int64_t values = 0, rows = 0;
    PL_TRY(pl_cpu_require_fp32(device, "embed", a->dtype));
    PL_TRY(pl_cpu_elements(device, "embed", &rows, a->count, a->cols, 1));
    PL_TRY(pl_cpu_elements(device, "embed", &values, a->vocabulary, a->cols, 1));
    PL_TRY(pl_cpu_require(device, "embed", rows == 0 || (a->table && a->tokens && a->x),
                          "table, tokens and x are given"));
    pl_touch touches[] = {pl_touch_read(a->table, values * FLOAT),
                          pl_touch_read(a->tokens, a->count * (int64_t)sizeof *a->tokens),
                          pl_touch_write(a->x, rows * FLOAT)};
    pl_device_note(device, stream, "embed", 0, touches, 3);
    if (rows == 0) return PL_OK;
    PL_TRY(check_tokens(device, "embed", a->tokens, a->count, a->vocabulary));
    pl_embed_arguments arguments = *a;
    return pl_pool_run(pl_cpu_pool(device), pl_divide_up(a->count, pl_row_block(a->cols)), 0,
                       embed_rows, &arguments);
}

/* Columns are split, not the vocabulary: tokens are spread unevenly over it. */
static void embed_columns(void *context, int64_t index, void *scratch)
{
    (void)scratch;
    const pl_embed_backward_arguments *a = context;
    int64_t begin = index * PL_COLUMN_BLOCK;
    int64_t count = pl_block_length(index, PL_COLUMN_BLOCK, a->cols);
    float *to = a->dtable + begin;
    const float *dx = (const float *)a->dx + begin;
    for (int64_t v = 0; v < a->vocabulary && !a->add; ++v)
        memset(to + v * a->cols, 0, (size_t)count * FLOAT);
    for (int64_t t = 0; t < a->count; ++t) {
        float *sum = to + a->tokens[t] * a->cols;
        const float *row = dx + t * a->cols;
        int64_t i = 0;
        for (; i + PL_LANES <= count; i += PL_LANES)
            pl_store(sum + i, pl_load(sum + i) + pl_load(row + i));
        for (; i < count; ++i) sum[i] = sum[i] + row[i];
    }
}

pl_status PL_ISA(pl_cpu_embed_backward)(pl_device *device, pl_stream stream,
                                        const pl_embed_backward_arguments *a)
{
    int64_t values = 0, rows = 0;
    PL_TRY(pl_cpu_require_fp32(device, "embed_backward", a->dtype));
    PL_TRY(pl_cpu_elements(device, "embed_backward", &rows, a->count, a->cols, 1));
    PL_TRY(pl_cpu_elements(device, "embed_backward", &values, a->vocabulary, a->cols, 1));
    PL_TRY(pl_cpu_require(device, "embed_backward",
                          (rows == 0 || (a->dx && a->tokens)) && (values == 0 || a->dtable),
                          "dx, tokens and dtable are given"));
    int64_t bytes = values * FLOAT;
    pl_touch touches[] = {pl_touch_read(a->dx, rows * FLOAT),
                          pl_touch_read(a->tokens, a->count * (int64_t)sizeof *a->tokens),
                          a->add ? pl_touch_update(a->dtable, bytes)
                                 : pl_touch_write(a->dtable, bytes)};
    pl_device_note(device, stream, "embed_backward", 0, touches, 3);
    if (a->cols > 0)
        PL_TRY(check_tokens(device, "embed_backward", a->tokens, a->count, a->vocabulary));
    pl_embed_backward_arguments arguments = *a;
    return pl_pool_run(pl_cpu_pool(device), pl_divide_up(a->cols, PL_COLUMN_BLOCK), 0,
                       embed_columns, &arguments);
}
