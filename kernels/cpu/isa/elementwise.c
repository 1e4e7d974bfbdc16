/* Sums, biases and SwiGLU. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/operations.h"
#include "kernels/cpu/isa/split.h"
#include "kernels/cpu/vector.h"

enum { FLOAT = sizeof(float) };

static pl_status run_blocks(pl_device *device, int64_t count, pl_task task, void *arguments)
{
    return pl_pool_run(pl_cpu_pool(device), pl_divide_up(count, PL_BLOCK), 0, task, arguments);
}

/* --- sum --- */

static void sum_block(void *context, int64_t index, void *scratch)
{
    (void)scratch;
    const pl_sum_arguments *s = context;
    int64_t begin = index * PL_BLOCK, count = pl_block_length(index, PL_BLOCK, s->count), i = 0;
    const float *a = (const float *)s->a + begin, *b = (const float *)s->b + begin;
    float *to = (float *)s->to + begin;
    for (; i + PL_LANES <= count; i += PL_LANES) pl_store(to + i, pl_load(a + i) + pl_load(b + i));
    for (; i < count; ++i) to[i] = a[i] + b[i];
}

pl_status PL_ISA(pl_cpu_sum)(pl_device *device, pl_stream stream, const pl_sum_arguments *a)
{
    int64_t count = 0;
    PL_TRY(pl_cpu_require_fp32(device, "sum", a->dtype));
    PL_TRY(pl_cpu_elements(device, "sum", &count, a->count, 1, 1));
    PL_TRY(pl_cpu_require(device, "sum", count == 0 || (a->a && a->b && a->to),
                          "operands and result are given"));
    pl_touch touches[] = {pl_touch_read(a->a, count * FLOAT), pl_touch_read(a->b, count * FLOAT),
                          pl_touch_write(a->to, count * FLOAT)};
    pl_device_note(device, stream, "sum", 0, touches, 3);
    pl_sum_arguments arguments = *a;
    return run_blocks(device, count, sum_block, &arguments);
}

/* --- biases --- */

static void bias_rows(void *context, int64_t index, void *scratch)
{
    (void)scratch;
    const pl_bias_arguments *a = context;
    int64_t block = pl_row_block(a->cols);
    int64_t rows = pl_block_length(index, block, a->rows);
    float *x = (float *)a->x + index * block * a->cols;
    const float *bias = a->bias;
    for (; rows-- > 0; x += a->cols) {
        int64_t i = 0;
        for (; i + PL_LANES <= a->cols; i += PL_LANES)
            pl_store(x + i, pl_load(x + i) + pl_load(bias + i));
        for (; i < a->cols; ++i) x[i] = x[i] + bias[i];
    }
}

pl_status PL_ISA(pl_cpu_bias)(pl_device *device, pl_stream stream, const pl_bias_arguments *a)
{
    int64_t count = 0;
    PL_TRY(pl_cpu_require_fp32(device, "bias", a->dtype));
    PL_TRY(pl_cpu_elements(device, "bias", &count, a->rows, a->cols, 1));
    PL_TRY(pl_cpu_require(device, "bias", count == 0 || (a->x && a->bias), "x and bias are given"));
    pl_touch touches[] = {pl_touch_update(a->x, count * FLOAT),
                          pl_touch_read(a->bias, a->cols * FLOAT)};
    pl_device_note(device, stream, "bias", 0, touches, 2);
    if (count == 0) return PL_OK;
    pl_bias_arguments arguments = *a;
    return pl_pool_run(pl_cpu_pool(device), pl_divide_up(a->rows, pl_row_block(a->cols)), 0,
                       bias_rows, &arguments);
}

/* Rows are added block by block, so that rounding does not grow with their number. */
enum { ADDED_ROWS = 64 };

static float column_sum(const pl_bias_backward_arguments *a, int64_t col)
{
    const float *x = (const float *)a->x + col;
    float total = 0;
    for (int64_t row = 0; row < a->rows; row += ADDED_ROWS) {
        float sum = 0;
        for (int64_t i = row; i < a->rows && i < row + ADDED_ROWS; ++i) sum += x[i * a->cols];
        total += sum;
    }
    return total;
}

static pl_floats column_sums(const pl_bias_backward_arguments *a, int64_t col)
{
    const float *x = (const float *)a->x + col;
    pl_floats total = pl_splat(0);
    for (int64_t row = 0; row < a->rows; row += ADDED_ROWS) {
        pl_floats sum = pl_splat(0);
        for (int64_t i = row; i < a->rows && i < row + ADDED_ROWS; ++i)
            sum += pl_load(x + i * a->cols);
        total += sum;
    }
    return total;
}

static void bias_columns(void *context, int64_t index, void *scratch)
{
    (void)scratch;
    const pl_bias_backward_arguments *a = context;
    int64_t col = index * PL_COLUMN_BLOCK;
    int64_t end = col + pl_block_length(index, PL_COLUMN_BLOCK, a->cols);
    for (; col + PL_LANES <= end; col += PL_LANES) {
        pl_floats sum = column_sums(a, col);
        pl_store(a->to + col, a->add ? pl_load(a->to + col) + sum : sum);
    }
    for (; col < end; ++col) {
        float sum = column_sum(a, col);
        a->to[col] = a->add ? a->to[col] + sum : sum;
    }
}

pl_status PL_ISA(pl_cpu_bias_backward)(pl_device *device, pl_stream stream,
                                       const pl_bias_backward_arguments *a)
{
    int64_t count = 0;
    PL_TRY(pl_cpu_require_fp32(device, "bias_backward", a->dtype));
    PL_TRY(pl_cpu_elements(device, "bias_backward", &count, a->rows, a->cols, 1));
    PL_TRY(pl_cpu_require(device, "bias_backward", (count == 0 || a->x) && (a->cols == 0 || a->to),
                          "x and to are given"));
    int64_t bytes = a->cols * FLOAT;
    pl_touch touches[] = {pl_touch_read(a->x, count * FLOAT),
                          a->add ? pl_touch_update(a->to, bytes) : pl_touch_write(a->to, bytes)};
    pl_device_note(device, stream, "bias_backward", 0, touches, 2);
    pl_bias_backward_arguments arguments = *a;
    return pl_pool_run(pl_cpu_pool(device), pl_divide_up(a->cols, PL_COLUMN_BLOCK), 0, bias_columns,
                       &arguments);
}

/* --- SwiGLU --- */

static pl_floats swiglu(pl_floats gate, pl_floats up) { return gate * pl_sigmoid(gate) * up; }

static void swiglu_block(void *context, int64_t index, void *scratch)
{
    (void)scratch;
    const pl_swiglu_arguments *a = context;
    int64_t begin = index * PL_BLOCK, count = pl_block_length(index, PL_BLOCK, a->count), i = 0;
    const float *gate = (const float *)a->gate + begin, *up = (const float *)a->up + begin;
    float *act = (float *)a->act + begin;
    for (; i + PL_LANES <= count; i += PL_LANES)
        pl_store(act + i, swiglu(pl_load(gate + i), pl_load(up + i)));
    int64_t left = count - i;
    if (left > 0)
        pl_store_part(act + i, swiglu(pl_load_part(gate + i, left), pl_load_part(up + i, left)),
                      left);
}

pl_status PL_ISA(pl_cpu_swiglu)(pl_device *device, pl_stream stream, const pl_swiglu_arguments *a)
{
    int64_t count = 0;
    PL_TRY(pl_cpu_require_fp32(device, "swiglu", a->dtype));
    PL_TRY(pl_cpu_elements(device, "swiglu", &count, a->count, 1, 1));
    PL_TRY(pl_cpu_require(device, "swiglu", count == 0 || (a->gate && a->up && a->act),
                          "gate, up and act are given"));
    pl_touch touches[] = {pl_touch_read(a->gate, count * FLOAT),
                          pl_touch_read(a->up, count * FLOAT),
                          pl_touch_write(a->act, count * FLOAT)};
    pl_device_note(device, stream, "swiglu", 0, touches, 3);
    pl_swiglu_arguments arguments = *a;
    return run_blocks(device, count, swiglu_block, &arguments);
}

typedef struct swiglu_gradients {
    pl_floats gate, up;
} swiglu_gradients;

/* silu(g) = g s with s = sigmoid(g); its derivative is s (1 + g (1 - s)). */
static swiglu_gradients swiglu_backward(pl_floats gate, pl_floats up, pl_floats dact)
{
    pl_floats one = pl_splat(1), s = pl_sigmoid(gate);
    return (swiglu_gradients){dact * up * s * (one + gate * (one - s)), dact * gate * s};
}

static void swiglu_backward_block(void *context, int64_t index, void *scratch)
{
    (void)scratch;
    const pl_swiglu_backward_arguments *a = context;
    int64_t begin = index * PL_BLOCK, count = pl_block_length(index, PL_BLOCK, a->count), i = 0;
    const float *gate = (const float *)a->gate + begin, *up = (const float *)a->up + begin;
    const float *dact = (const float *)a->dact + begin;
    float *dgate = (float *)a->dgate + begin, *dup = (float *)a->dup + begin;
    for (; i + PL_LANES <= count; i += PL_LANES) {
        swiglu_gradients d = swiglu_backward(pl_load(gate + i), pl_load(up + i), pl_load(dact + i));
        pl_store(dgate + i, d.gate);
        pl_store(dup + i, d.up);
    }
    int64_t left = count - i;
    if (left == 0) return;
    swiglu_gradients d = swiglu_backward(pl_load_part(gate + i, left), pl_load_part(up + i, left),
                                         pl_load_part(dact + i, left));
    pl_store_part(dgate + i, d.gate, left);
    pl_store_part(dup + i, d.up, left);
}

pl_status PL_ISA(pl_cpu_swiglu_backward)(pl_device *device, pl_stream stream,
                                         const pl_swiglu_backward_arguments *a)
{
    int64_t count = 0;
    PL_TRY(pl_cpu_require_fp32(device, "swiglu_backward", a->dtype));
    PL_TRY(pl_cpu_elements(device, "swiglu_backward", &count, a->count, 1, 1));
    PL_TRY(pl_cpu_require(device, "swiglu_backward",
                          count == 0 || (a->gate && a->up && a->dact && a->dgate && a->dup),
                          "gate, up, dact, dgate and dup are given"));
    int64_t bytes = count * FLOAT;
    pl_touch touches[] = {pl_touch_read(a->gate, bytes), pl_touch_read(a->up, bytes),
                          pl_touch_read(a->dact, bytes), pl_touch_write(a->dgate, bytes),
                          pl_touch_write(a->dup, bytes)};
    pl_device_note(device, stream, "swiglu_backward", 0, touches, 5);
    pl_swiglu_backward_arguments arguments = *a;
    return run_blocks(device, count, swiglu_backward_block, &arguments);
}
