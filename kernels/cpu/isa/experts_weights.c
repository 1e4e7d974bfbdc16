/* The experts, backward: gradients of the weights. A task does a range of the width of one expert
 * in all three matrices, each element a sum over the expert's rows in their order.
 */
#include "kernels/cpu/isa/expert_panels.h"
#include "kernels/cpu/isa/expert_swiglu.h"
#include "kernels/cpu/isa/operations.h"

/* Numbers of the width that a task does at least: each task packs all rows anew, but there should
 * be TASKS of them even of few experts. Rows that are summed over in one product. */
enum { TASK_WIDTH = 256, TASKS = 8, SUM_ROWS = 512 };

typedef struct backward {
    const pl_experts_weights_arguments *a;
    pl_expert_positions p;
    int64_t tasks; /* of one expert */
    int64_t range; /* numbers of the width that each of them does, but for the last */
    int64_t block; /* numbers of the width that are taken through everything together */
} backward;

/* A task: numbers [first, end) of the width, and its scratch. */
typedef struct work {
    const backward *b;
    int64_t expert, first, end;
    int64_t at, rows; /* positions [at, at + rows) are summed over now */
    float *in, *dout; /* in panels: [rows, hidden] */
    float *act;       /* [block, rows] */
    float *weights;   /* CHOSEN: [rows] */
    float *product;   /* one panel of the gradient of down, by columns: [block, panel] */
    float *turned;    /* ... and by rows */
} work;

static int64_t panel_numbers(const backward *b) { return b->block * PL_TILE_VECTORS * PL_LANES; }

static int64_t sum_rows(const backward *b)
{
    int64_t most = 0;
    for (int64_t e = 0; e < b->a->rows.experts; ++e)
        if (pl_rows_of(&b->p, e) > most) most = pl_rows_of(&b->p, e);
    return pl_pad_lanes(most < SUM_ROWS ? most : SUM_ROWS);
}

static size_t scratch_bytes(const backward *b)
{
    int64_t numbers =
        sum_rows(b) * (2 * pl_pad_lanes(b->a->hidden) + b->block + 1) + 2 * panel_numbers(b);
    return (size_t)numbers * sizeof(float);
}

static work start(const backward *b, int64_t index, float *scratch)
{
    work w = {.b = b, .expert = index / b->tasks};
    int64_t rows = sum_rows(b), wide = rows * pl_pad_lanes(b->a->hidden);
    w.in = scratch;
    w.first = index % b->tasks * b->range;
    w.end = b->a->width - w.first < b->range ? b->a->width : w.first + b->range;
    w.dout = w.in + wide;
    w.act = w.dout + wide;
    w.weights = w.act + rows * b->block;
    w.product = w.weights + rows;
    w.turned = w.product + panel_numbers(b);
    return w;
}

/* Rows of FROM [rows, hidden] that are summed over now, into panels. */
static void pack_rows(const work *w, const void *from, float *to)
{
    const pl_expert_positions *p = &w->b->p;
    int64_t hidden = w->b->a->hidden;
    for (int64_t i = 0; i < w->rows; ++i) {
        int64_t row = p->row ? p->row[w->at + i] : w->at + i;
        pl_pack_row((const float *)from + row * hidden, hidden, i, w->rows, to);
    }
}

/* Gradients of one matrix, gate or up, in rows [BEGIN, BEGIN + COUNT) and one panel of columns. */
static void outward(const work *w, const float *dact, float *to, bool add, int64_t count,
                    pl_panel column)
{
    int64_t hidden = w->b->a->hidden;
    pl_small_product product = {.a = dact,
                                .b = w->in + pl_panel_offset(column, w->rows),
                                .a_row = pl_rows_of(&w->b->p, w->expert),
                                .a_step = 1,
                                .b_row = column.stride,
                                .c_row = hidden,
                                .m = count,
                                .n = column.count,
                                .k = w->rows,
                                .add = add || w->at > w->b->p.begin[w->expert]};
    product.c = to + column.begin;
    pl_fetch_rows(product.c, count, hidden, column.count);
    pl_product_small(&product);
}

/* Part PART of PARTS of the gates and ups of the block that activations are made of. */
static void fetch_pairs(const work *w, int64_t begin, int64_t count, int64_t part, int64_t parts)
{
    const pl_expert_positions *p = &w->b->p;
    int64_t first = count * part / parts, rows = count * (part + 1) / parts - first;
    int64_t row = pl_rows_of(p, w->expert), width = w->b->a->width;
    const float *gate = w->b->a->saved;
    gate += pl_gate_offset(p, w->expert, w->at, begin + first, width);
    pl_fetch_rows(gate, rows, row, w->rows);
    pl_fetch_rows(gate + row * width, rows, row, w->rows);
}

static void block_of_gate_and_up(const work *w, int64_t begin, int64_t count)
{
    const pl_experts_weights_arguments *a = w->b->a;
    const pl_expert_positions *p = &w->b->p;
    int64_t hidden = a->hidden, columns = pl_panel_count(hidden);
    int64_t steps = pl_divide_up(count, PL_STEP_ROWS);
    for (int64_t i = 0; i < columns; ++i) {
        pl_panel column = pl_panel_at(hidden, i);
        for (int64_t j = 0; j < steps; ++j) {
            int64_t step = j * PL_STEP_ROWS, left = count - step;
            int64_t some = left < PL_STEP_ROWS ? left : PL_STEP_ROWS;
            int64_t to = (w->expert * a->width + begin + step) * hidden;
            const float *dgate = a->dact;
            dgate += pl_gate_offset(p, w->expert, w->at, begin + step, a->width);
            const float *dup = dgate + pl_rows_of(p, w->expert) * a->width;
            if (a->ddown) fetch_pairs(w, begin, count, i * steps + j, columns * steps);
            if (a->dgate) outward(w, dgate, a->dgate + to, a->add_gate, some, column);
            if (a->dup) outward(w, dup, a->dup + to, a->add_up, some, column);
        }
    }
}

/* Activations of the block, with the tokens' weights. */
static void activate_again(const work *w, int64_t begin, int64_t count)
{
    const pl_expert_positions *p = &w->b->p;
    int64_t row = pl_rows_of(p, w->expert), width = w->b->a->width;
    const float *gate = w->b->a->saved;
    gate += pl_gate_offset(p, w->expert, w->at, begin, width);
    for (int64_t i = 0; i < count; ++i)
        pl_activate(gate + i * row, gate + row * width + i * row, p->choice ? w->weights : NULL,
                    w->act + i * w->rows, w->rows);
}

static void put_row(float *to, const float *from, int64_t count, bool add)
{
    for (int64_t i = 0; i < count; ++i) to[i] = add ? to[i] + from[i] : from[i];
}

/* Gradients of down in columns [BEGIN, BEGIN + COUNT): made by columns, written by rows. */
static void block_of_down(const work *w, int64_t begin, int64_t count)
{
    const pl_experts_weights_arguments *a = w->b->a;
    int64_t hidden = a->hidden, width = a->width;
    bool add = a->add_down || w->at > w->b->p.begin[w->expert];
    activate_again(w, begin, count);
    for (int64_t i = 0; i < pl_panel_count(hidden); ++i) {
        pl_panel column = pl_panel_at(hidden, i);
        float *to = a->ddown + (w->expert * hidden + column.begin) * width + begin;
        pl_small_product product = {.a = w->act,
                                    .b = w->dout + pl_panel_offset(column, w->rows),
                                    .c = w->product,
                                    .a_row = w->rows,
                                    .a_step = 1,
                                    .b_row = column.stride,
                                    .c_row = column.stride,
                                    .m = count,
                                    .n = column.count,
                                    .k = w->rows};
        pl_fetch_rows(to, column.count, width, count);
        pl_product_small(&product);
        pl_transpose(w->product, column.stride, count, column.count, 1, w->turned, count);
        for (int64_t h = 0; h < column.count; ++h)
            put_row(to + h * width, w->turned + h * count, count, add);
    }
}

/* Nothing is summed over: zeroes, where nothing is added to. */
static void no_rows(const work *w)
{
    const pl_experts_weights_arguments *a = w->b->a;
    int64_t hidden = a->hidden, width = a->width, place = (w->expert * width + w->first) * hidden;
    size_t bytes = (size_t)((w->end - w->first) * hidden) * sizeof(float);
    if (a->dgate && !a->add_gate) memset(a->dgate + place, 0, bytes);
    if (a->dup && !a->add_up) memset(a->dup + place, 0, bytes);
    for (int64_t h = 0; a->ddown && !a->add_down && h < hidden; ++h)
        memset(a->ddown + (w->expert * hidden + h) * width + w->first, 0, bytes / (size_t)hidden);
}

static void backward_task(void *context, int64_t index, void *scratch)
{
    const backward *b = context;
    const pl_experts_weights_arguments *a = b->a;
    const pl_expert_positions *p = &b->p;
    work w = start(b, index, scratch);
    int64_t end = p->begin[w.expert + 1];
    if (pl_rows_of(p, w.expert) == 0) no_rows(&w);
    for (w.at = p->begin[w.expert]; w.at < end; w.at += w.rows) {
        w.rows = end - w.at < SUM_ROWS ? end - w.at : SUM_ROWS;
        for (int64_t i = 0; p->choice && i < w.rows; ++i)
            w.weights[i] = p->given->weights[p->choice[w.at + i]];
        if (a->dgate || a->dup) pack_rows(&w, a->in, w.in);
        if (a->ddown) pack_rows(&w, a->dout, w.dout);
        for (int64_t begin = w.first; begin < w.end; begin += b->block) {
            int64_t count = w.end - begin < b->block ? w.end - begin : b->block;
            block_of_gate_and_up(&w, begin, count);
            if (a->ddown) block_of_down(&w, begin, count);
        }
    }
}

/* --- the operation --- */

static void split_width(backward *b)
{
    int64_t most = pl_divide_up(b->a->width, TASK_WIDTH);
    int64_t tasks = b->a->rows.experts > 0 ? pl_divide_up(TASKS, b->a->rows.experts) : 1;
    if (tasks > most) tasks = most;
    b->range = pl_divide_up(pl_divide_up(b->a->width, tasks), PL_STEP_ROWS) * PL_STEP_ROWS;
    b->tasks = pl_divide_up(b->a->width, b->range);
}

static void note(pl_device *device, pl_stream stream, const pl_experts_weights_arguments *a,
                 int64_t rows)
{
    int64_t matrices = a->rows.experts * a->hidden * a->width * 4;
    int64_t activations = a->rows.rows * a->hidden * 4, pairs = rows * 2 * a->width * 4;
    int64_t products = (a->dgate != NULL) + (a->dup != NULL) + (a->ddown != NULL);
    bool wide = a->dgate || a->dup;
    pl_touch touches[PL_EXPERT_TOUCHES + 7] = {
        pl_touch_read(wide ? a->in : NULL, activations),
        pl_touch_read(wide ? a->dact : NULL, pairs),
        pl_touch_read(a->ddown ? a->dout : NULL, activations),
        pl_touch_read(a->ddown ? a->saved : NULL, pairs),
        {a->dgate, matrices, a->add_gate, true},
        {a->dup, matrices, a->add_up, true},
        {a->ddown, matrices, a->add_down, true},
    };
    PL_ISA(pl_cpu_touch_expert_rows)(&a->rows, a->ddown != NULL, touches + 7);
    pl_device_note(device, stream, "experts_weights", 2 * products * rows * a->hidden * a->width,
                   touches, PL_EXPERT_TOUCHES + 7);
}

pl_status PL_ISA(pl_cpu_experts_weights)(pl_device *device, pl_stream stream,
                                         const pl_experts_weights_arguments *a)
{
    const char *what = "experts_weights";
    pl_expert_shape shape = {&a->rows, a->dtype, a->hidden, a->width};
    PL_TRY(PL_ISA(pl_cpu_check_experts)(device, what, &shape));
    backward b = {.a = a};
    split_width(&b);
    PL_TRY(PL_ISA(pl_cpu_expert_positions)(device, what, &a->rows, 0, &b.p));
    note(device, stream, a, b.p.count);
    b.block = pl_block_rows(SUM_ROWS);
    return pl_pool_run(pl_cpu_pool(device), a->rows.experts * b.tasks, scratch_bytes(&b),
                       backward_task, &b);
}
