/* Rows of tokens into the order in which they are sent, and back: permute, merge and their
 * gradients. A task does a block of tokens; each row of the other side belongs to one token.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/operations.h"
#include "kernels/cpu/isa/sum_rows.h"
#include "kernels/cpu/isa/token_blocks.h"
#include "kernels/cpu/vector.h"

/* What is checked and noted for all four. */
typedef struct shape {
    int64_t row_bytes, token_bytes, choice_bytes; /* [tokens * chosen, cols], [tokens, cols],
                                                     [tokens, chosen], four bytes each */
} shape;

static pl_status check(const pl_device *device, const char *what, const pl_permute_arguments *a,
                       shape *out)
{
    int64_t rows = 0, numbers = 0;
    PL_TRY(pl_cpu_require_fp32(device, what, a->dtype));
    PL_TRY(pl_cpu_require(device, what, a->chosen >= 1, "each token chooses an expert"));
    PL_TRY(pl_cpu_elements(device, what, &numbers, a->tokens, a->chosen, a->cols));
    PL_TRY(pl_cpu_elements(device, what, &rows, a->tokens, a->chosen, 1));
    PL_TRY(pl_cpu_require(device, what, pl_all_below(a->slots, rows, rows),
                          "slots are numbers of rows"));
    *out = (shape){numbers * 4, a->tokens * a->cols * 4, rows * 4};
    return PL_OK;
}

static void permute_block(void *context, int64_t index, void *scratch)
{
    const pl_permute_arguments *a = context;
    pl_token_blocks blocks = pl_token_blocks_make(a->tokens, 1);
    pl_token_range range = pl_token_block(&blocks, index);
    const float *from = a->from;
    float *to = a->to;
    (void)scratch;
    for (int64_t t = range.begin; t < range.end; ++t)
        for (int64_t i = t * a->chosen; i < (t + 1) * a->chosen; ++i)
            memcpy(to + a->slots[i] * a->cols, from + t * a->cols, (size_t)a->cols * sizeof *to);
}

pl_status PL_ISA(pl_cpu_permute)(pl_device *device, pl_stream stream, const pl_permute_arguments *a)
{
    shape s;
    PL_TRY(check(device, "permute", a, &s));
    pl_device_note(device, stream, "permute", 0,
                   (pl_touch[]){{a->from, s.token_bytes, true, false},
                                {a->slots, s.choice_bytes, true, false},
                                {a->to, s.row_bytes, false, true}},
                   3);
    pl_permute_arguments copy = *a;
    pl_token_blocks blocks = pl_token_blocks_make(a->tokens, 1);
    return pl_pool_run(pl_cpu_pool(device), blocks.count, 0, permute_block, &copy);
}

/* to[t] = addend[t] + sum over j of weights[t, j] * from[slots[t, j]]: merge, and without addend
 * and weights the backward pass of permute. */
typedef struct gather {
    pl_row_sum first; /* of token 0; the others follow */
    float *to;
    pl_token_blocks blocks;
} gather;

static void gather_block(void *context, int64_t index, void *scratch)
{
    const gather *g = context;
    pl_token_range range = pl_token_block(&g->blocks, index);
    (void)scratch;
    for (int64_t t = range.begin; t < range.end; ++t) {
        pl_row_sum sum = g->first;
        sum.rows += t * sum.count;
        if (sum.weights) sum.weights += t * sum.count;
        if (sum.addend) sum.addend += t * sum.cols;
        pl_sum_rows(&sum, g->to + t * sum.cols);
    }
}

static pl_status run_gather(pl_device *device, const pl_row_sum *first, float *to, int64_t tokens)
{
    gather g = {.first = *first, .blocks = pl_token_blocks_make(tokens, 1)};
    g.to = to;
    return pl_pool_run(pl_cpu_pool(device), g.blocks.count, 0, gather_block, &g);
}

pl_status PL_ISA(pl_cpu_permute_backward)(pl_device *device, pl_stream stream,
                                          const pl_permute_arguments *a)
{
    shape s;
    PL_TRY(check(device, "permute_backward", a, &s));
    pl_device_note(device, stream, "permute_backward", 0,
                   (pl_touch[]){{a->from, s.row_bytes, true, false},
                                {a->slots, s.choice_bytes, true, false},
                                {a->to, s.token_bytes, false, true}},
                   3);
    pl_row_sum first = {a->from, a->slots, NULL, NULL, a->chosen, a->cols};
    return run_gather(device, &first, a->to, a->tokens);
}

pl_status PL_ISA(pl_cpu_merge)(pl_device *device, pl_stream stream, const pl_merge_arguments *a)
{
    shape s;
    pl_permute_arguments rows = {.slots = a->slots,
                                 .dtype = a->dtype,
                                 .tokens = a->tokens,
                                 .chosen = a->chosen,
                                 .cols = a->cols};
    PL_TRY(check(device, "merge", &rows, &s));
    pl_device_note(device, stream, "merge", 0,
                   (pl_touch[]){{a->h, s.token_bytes, true, false},
                                {a->back, s.row_bytes, true, false},
                                {a->weights, s.choice_bytes, true, false},
                                {a->slots, s.choice_bytes, true, false},
                                {a->x, s.token_bytes, false, true}},
                   5);
    pl_row_sum first = {a->back, a->slots, a->weights, a->h, a->chosen, a->cols};
    return run_gather(device, &first, a->x, a->tokens);
}

/* PART <= PL_LANES columns: to = factor * from; returns from * other, 0 without other. */
static inline pl_floats scale_columns(float *to, const float *from, pl_floats factor,
                                      const float *other, int64_t part)
{
    pl_floats x = pl_load_part(from, part);
    pl_store_part(to, factor * x, part);
    return other ? x * pl_load_part(other, part) : pl_splat(0);
}

/* to = weight * from; returns from . other, 0 without other. */
static float scale_row(float *to, const float *from, float weight, const float *other, int64_t cols)
{
    pl_floats total = pl_splat(0), factor = pl_splat(weight);
    int64_t whole = cols - cols % PL_LANES, i = 0;
    for (; i < whole; i += PL_LANES)
        total += scale_columns(to + i, from + i, factor, other ? other + i : NULL, PL_LANES);
    if (i < cols)
        total += scale_columns(to + i, from + i, factor, other ? other + i : NULL, cols - i);
    return pl_lane_sum(total);
}

static void merge_backward_block(void *context, int64_t index, void *scratch)
{
    const pl_merge_backward_arguments *a = context;
    pl_token_blocks blocks = pl_token_blocks_make(a->tokens, 1);
    pl_token_range range = pl_token_block(&blocks, index);
    const float *dx = a->dx, *back = a->back;
    float *dback = a->dback;
    (void)scratch;
    for (int64_t i = range.begin * a->chosen; i < range.end * a->chosen; ++i) {
        int64_t row = a->slots[i] * a->cols;
        const float *other = a->dweights ? back + row : NULL;
        float product =
            scale_row(dback + row, dx + i / a->chosen * a->cols, a->weights[i], other, a->cols);
        if (a->dweights) a->dweights[i] = product;
    }
}

pl_status PL_ISA(pl_cpu_merge_backward)(pl_device *device, pl_stream stream,
                                        const pl_merge_backward_arguments *a)
{
    shape s;
    pl_permute_arguments rows = {.slots = a->slots,
                                 .dtype = a->dtype,
                                 .tokens = a->tokens,
                                 .chosen = a->chosen,
                                 .cols = a->cols};
    PL_TRY(check(device, "merge_backward", &rows, &s));
    pl_device_note(device, stream, "merge_backward", 0,
                   (pl_touch[]){{a->dx, s.token_bytes, true, false},
                                {a->dweights ? a->back : NULL, s.row_bytes, true, false},
                                {a->weights, s.choice_bytes, true, false},
                                {a->slots, s.choice_bytes, true, false},
                                {a->dback, s.row_bytes, false, true},
                                {a->dweights, s.choice_bytes, false, true}},
                   6);
    pl_merge_backward_arguments copy = *a;
    pl_token_blocks blocks = pl_token_blocks_make(a->tokens, 1);
    return pl_pool_run(pl_cpu_pool(device), blocks.count, 0, merge_backward_block, &copy);
}
