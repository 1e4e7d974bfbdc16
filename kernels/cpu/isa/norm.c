#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/norm.h"
#include "kernels/cpu/isa/operations.h"
#include "kernels/cpu/isa/split.h"
#include "kernels/cpu/vector.h"

enum { FLOAT = sizeof(float) };

/* --- forward --- */

static float sum_of_squares(const float *x, int64_t count)
{
    enum { SUMS = 4, STEP = SUMS * PL_LANES };
    pl_floats sum[SUMS] = {pl_splat(0), pl_splat(0), pl_splat(0), pl_splat(0)};
    int64_t i = 0;
    for (; i + STEP <= count; i += STEP) {
        for (int64_t j = 0; j < SUMS; ++j) {
            pl_floats v = pl_load(x + i + j * PL_LANES);
            sum[j] += v * v;
        }
    }
    for (; i + PL_LANES <= count; i += PL_LANES) {
        pl_floats v = pl_load(x + i);
        sum[0] += v * v;
    }
    if (i < count) {
        pl_floats v = pl_load_part(x + i, count - i);
        sum[1] += v * v;
    }
    return pl_lane_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

static float reciprocal_root(const float *x, int64_t cols, double epsilon)
{
    return (float)(1 / sqrt((double)sum_of_squares(x, cols) / (double)cols + epsilon));
}

static void norm_row(const pl_rms_norm_arguments *a, int64_t row)
{
    const float *x = (const float *)a->x + row * a->cols, *weight = a->weight;
    float *y = (float *)a->y + row * a->cols;
    float rstd = reciprocal_root(x, a->cols, a->epsilon);
    if (a->rstd) a->rstd[row] = rstd;
    pl_floats factor = pl_splat(rstd);
    int64_t i = 0, left = 0;
    for (; i + PL_LANES <= a->cols; i += PL_LANES)
        pl_store(y + i, pl_load(x + i) * factor * pl_load(weight + i));
    if ((left = a->cols - i) > 0)
        pl_store_part(y + i, pl_load_part(x + i, left) * factor * pl_load_part(weight + i, left),
                      left);
}

static void norm_rows(void *context, int64_t index, void *scratch)
{
    (void)scratch;
    const pl_rms_norm_arguments *a = context;
    int64_t block = pl_row_block(a->cols), row = index * block;
    int64_t end = row + pl_block_length(index, block, a->rows);
    for (; row < end; ++row) norm_row(a, row);
}

pl_status PL_ISA(pl_cpu_rms_norm)(pl_device *device, pl_stream stream,
                                  const pl_rms_norm_arguments *a)
{
    int64_t count = 0;
    PL_TRY(pl_cpu_require_fp32(device, "rms_norm", a->dtype));
    PL_TRY(pl_cpu_elements(device, "rms_norm", &count, a->rows, a->cols, 1));
    PL_TRY(pl_cpu_require(device, "rms_norm", a->rows == 0 || a->cols > 0, "a row has columns"));
    PL_TRY(pl_cpu_require(device, "rms_norm", count == 0 || (a->x && a->weight && a->y),
                          "x, weight and y are given"));
    pl_touch touches[] = {
        pl_touch_read(a->x, count * FLOAT), pl_touch_read(a->weight, a->cols * FLOAT),
        pl_touch_write(a->y, count * FLOAT), pl_touch_write(a->rstd, a->rows * FLOAT)};
    pl_device_note(device, stream, "rms_norm", 0, touches, 4);
    pl_rms_norm_arguments arguments = *a;
    return pl_pool_run(pl_cpu_pool(device), pl_divide_up(a->rows, pl_row_block(a->cols)), 0,
                       norm_rows, &arguments);
}

/* --- backward --- */

typedef struct norm_backward {
    const pl_rms_norm_backward_arguments *a;
    int64_t block;  /* rows */
    float *partial; /* [blocks, cols]: dweight of each block of rows; NULL: not wanted */
} norm_backward;

/* Sum of weight * dy * x over a row. */
static float weighted_dot(const float *weight, const float *dy, const float *x, int64_t count)
{
    enum { SUMS = 2, STEP = SUMS * PL_LANES };
    pl_floats sum[SUMS] = {pl_splat(0), pl_splat(0)};
    int64_t i = 0, left = 0;
    for (; i + STEP <= count; i += STEP)
        for (int64_t j = 0; j < SUMS; ++j) {
            int64_t at = i + j * PL_LANES;
            sum[j] += pl_load(weight + at) * pl_load(dy + at) * pl_load(x + at);
        }
    for (; i + PL_LANES <= count; i += PL_LANES)
        sum[0] += pl_load(weight + i) * pl_load(dy + i) * pl_load(x + i);
    if ((left = count - i) > 0)
        sum[1] +=
            pl_load_part(weight + i, left) * pl_load_part(dy + i, left) * pl_load_part(x + i, left);
    return pl_lane_sum(sum[0] + sum[1]);
}

/* dx = rstd (weight dy - x rstd^2 mean(weight dy x)) (+ residual). */
static void row_dx(const pl_rms_norm_backward_arguments *a, int64_t row, float rstd)
{
    const float *x = (const float *)a->x + row * a->cols, *weight = a->weight;
    const float *dy = (const float *)a->dy + row * a->cols;
    const float *residual = a->residual ? (const float *)a->residual + row * a->cols : NULL;
    float *dx = (float *)a->dx + row * a->cols;
    float mean = weighted_dot(weight, dy, x, a->cols) / (float)a->cols;
    pl_floats factor = pl_splat(rstd), share = pl_splat(rstd * rstd * rstd * mean);
    int64_t i = 0, left = 0;
    for (; i + PL_LANES <= a->cols; i += PL_LANES) {
        pl_floats d = pl_load(weight + i) * pl_load(dy + i) * factor - pl_load(x + i) * share;
        pl_store(dx + i, residual ? pl_load(residual + i) + d : d);
    }
    if ((left = a->cols - i) > 0) {
        pl_floats d = pl_load_part(weight + i, left) * pl_load_part(dy + i, left) * factor -
                      pl_load_part(x + i, left) * share;
        pl_store_part(dx + i, residual ? pl_load_part(residual + i, left) + d : d, left);
    }
}

static void add_dweight(const pl_rms_norm_backward_arguments *a, int64_t row, float rstd,
                        float *sum)
{
    const float *x = (const float *)a->x + row * a->cols;
    const float *dy = (const float *)a->dy + row * a->cols;
    pl_floats factor = pl_splat(rstd);
    int64_t i = 0;
    for (; i + PL_LANES <= a->cols; i += PL_LANES)
        pl_store(sum + i, pl_load(sum + i) + pl_load(dy + i) * pl_load(x + i) * factor);
    for (; i < a->cols; ++i) sum[i] += dy[i] * x[i] * rstd;
}

static void norm_backward_rows(void *context, int64_t index, void *scratch)
{
    (void)scratch;
    const norm_backward *n = context;
    const pl_rms_norm_backward_arguments *a = n->a;
    int64_t row = index * n->block, end = row + pl_block_length(index, n->block, a->rows);
    float *sum = n->partial ? n->partial + index * a->cols : NULL;
    for (int64_t i = 0; sum && i < a->cols; ++i) sum[i] = 0;
    for (; row < end; ++row) {
        const float *x = (const float *)a->x + row * a->cols;
        float rstd = a->rstd ? a->rstd[row] : reciprocal_root(x, a->cols, a->epsilon);
        if (sum) add_dweight(a, row, rstd, sum); /* first: dx may stand where dy or x does */
        if (a->dx) row_dx(a, row, rstd);
    }
}

static pl_status check_backward(const pl_device *device, const pl_rms_norm_backward_arguments *a)
{
    int64_t count = 0;
    PL_TRY(pl_cpu_require_fp32(device, "rms_norm_backward", a->dtype));
    PL_TRY(pl_cpu_elements(device, "rms_norm_backward", &count, a->rows, a->cols, 1));
    PL_TRY(pl_cpu_require(device, "rms_norm_backward", a->rows == 0 || a->cols > 0,
                          "a row has columns"));
    return pl_cpu_require(device, "rms_norm_backward",
                          count == 0 || (a->x && a->dy && (a->weight || !a->dx)),
                          "x, weight and dy are given");
}

pl_status PL_ISA(pl_cpu_rms_norm_backward)(pl_device *device, pl_stream stream,
                                           const pl_rms_norm_backward_arguments *a)
{
    PL_TRY(check_backward(device, a));
    int64_t bytes = a->rows * a->cols * FLOAT, weights = a->cols * FLOAT;
    pl_touch touches[] = {
        pl_touch_read(a->x, bytes),
        pl_touch_read(a->dx ? a->weight : NULL, weights),
        pl_touch_read(a->dy, bytes),
        pl_touch_read(a->rstd, a->rows * FLOAT),
        pl_touch_read(a->dx && a->residual != a->dx ? a->residual : NULL, bytes),
        a->residual == a->dx ? pl_touch_update(a->dx, bytes) : pl_touch_write(a->dx, bytes),
        a->add ? pl_touch_update(a->dweight, weights) : pl_touch_write(a->dweight, weights)};
    pl_device_note(device, stream, "rms_norm_backward", 0, touches, 7);
    norm_backward n = {.a = a, .block = pl_sum_block(a->rows, a->cols)};
    int64_t blocks = pl_divide_up(a->rows, n.block);
    if (a->dweight) {
        void *partial = NULL;
        PL_TRY(pl_cpu_workspace(device, blocks * weights, &partial));
        n.partial = partial;
    }
    PL_TRY(pl_pool_run(pl_cpu_pool(device), blocks, 0, norm_backward_rows, &n));
    if (!a->dweight) return PL_OK;
    return PL_ISA(pl_cpu_add_partials)(device, n.partial, blocks, a->cols, a->add, a->dweight);
}

/* --- sums over blocks of rows --- */

typedef struct partials {
    const float *partial; /* [blocks, cols] */
    int64_t blocks, cols;
    bool add;
    float *to;
} partials;

enum { PARTIAL_COLUMNS = 2048 };

static void add_partial_columns(void *context, int64_t index, void *scratch)
{
    (void)scratch;
    const partials *p = context;
    int64_t begin = index * PARTIAL_COLUMNS;
    int64_t count = pl_block_length(index, PARTIAL_COLUMNS, p->cols);
    float *to = p->to + begin;
    for (int64_t i = 0; i < count && !p->add; ++i) to[i] = 0;
    for (int64_t b = 0; b < p->blocks; ++b) {
        const float *from = p->partial + b * p->cols + begin;
        int64_t i = 0;
        for (; i + PL_LANES <= count; i += PL_LANES)
            pl_store(to + i, pl_load(to + i) + pl_load(from + i));
        for (; i < count; ++i) to[i] = to[i] + from[i];
    }
}

pl_status PL_ISA(pl_cpu_add_partials)(pl_device *device, const float *partial, int64_t blocks,
                                      int64_t cols, bool add, float *to)
{
    partials p = {.partial = partial, .blocks = blocks, .cols = cols, .add = add};
    p.to = to;
    return pl_pool_run(pl_cpu_pool(device), pl_divide_up(cols, PARTIAL_COLUMNS), 0,
                       add_partial_columns, &p);
}
