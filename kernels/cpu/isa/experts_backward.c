/* The experts, backward: gradients of activations by tiles of rows, as in forward; gradients of
 * weights by tiles of the matrices, each the sum over all rows of its expert.
 */
#include "common/memory.h"
#include "kernels/cpu/isa/expert_rows.h"
#include "kernels/cpu/isa/expert_swiglu.h"
#include "kernels/cpu/isa/operations.h"

/* --- of activations --- */

typedef struct inputs {
    const pl_experts_inputs_arguments *a;
    pl_expert_positions p;
} inputs;

/* Pieces of a task's scratch, in numbers. */
typedef struct inputs_layout {
    int64_t dout, pair, din, total;
} inputs_layout;

static inputs_layout lay_out_inputs(const inputs *f)
{
    const pl_experts_inputs_arguments *a = f->a;
    int64_t wide = pl_round_numbers(f->p.tile_rows * a->width);
    int64_t row_numbers = f->p.row ? pl_round_numbers(f->p.tile_rows * a->hidden) : 0;
    inputs_layout l = {0};
    l.pair = row_numbers;
    l.din = l.pair + (a->dact ? 0 : 2 * wide);
    l.total = l.din + row_numbers;
    return l;
}

/* DGATE holds the gradient of the tile's activations, without the tokens' weights. */
static void differentiate_tile(const inputs *f, pl_expert_tile tile, float *dgate, float *dup)
{
    const pl_experts_inputs_arguments *a = f->a;
    const pl_expert_positions *p = &f->p;
    const float *gate = a->saved;
    gate += pl_gate_offset(p, tile.expert, tile.begin, a->width);
    const float *up = gate + pl_gate_to_up(p, tile.expert, a->width);
    if (!p->choice) {
        pl_differentiate(gate, up, 1, dgate, dup, (tile.end - tile.begin) * a->width);
        return;
    }
    for (int64_t i = tile.begin; i < tile.end; ++i) {
        int64_t at = (i - tile.begin) * a->width;
        float product = pl_differentiate(gate + at, up + at, p->given->weights[p->choice[i]],
                                         dgate + at, dup + at, a->width);
        if (a->dweights) a->dweights[p->choice[i]] = product;
    }
}

static void inputs_tile(void *context, int64_t index, void *scratch)
{
    const inputs *f = context;
    const pl_experts_inputs_arguments *a = f->a;
    const pl_expert_positions *p = &f->p;
    const inputs_layout l = lay_out_inputs(f);
    pl_expert_tile tile = p->tile[index];
    int64_t rows = tile.end - tile.begin, hidden = a->hidden, width = a->width;
    int64_t matrix = tile.expert * hidden * width;
    float *base = scratch, *dgate = base + l.pair, *dup = dgate + (l.din - l.pair) / 2;
    if (a->dact) {
        dgate = (float *)a->dact + pl_gate_offset(p, tile.expert, tile.begin, width);
        dup = dgate + pl_gate_to_up(p, tile.expert, width);
    }
    const float *dout =
        pl_gather_positions(p, a->dout, hidden, tile.begin, tile.end, base + l.dout);
    pl_cpu_product(false, false, rows, width, hidden, dout, hidden, (const float *)a->down + matrix,
                   width, false, dgate, width);
    differentiate_tile(f, tile, dgate, dup);
    if (!a->din) return;
    float *din = a->din, *to = din + tile.begin * hidden;
    if (p->results)
        to = p->results + tile.begin * hidden;
    else if (p->row)
        to = base + l.din;
    pl_cpu_product(false, false, rows, hidden, width, dgate, width, (const float *)a->gate + matrix,
                   hidden, false, to, hidden);
    pl_cpu_product(false, false, rows, hidden, width, dup, width, (const float *)a->up + matrix,
                   hidden, true, to, hidden);
    if (p->row && !p->results) pl_scatter_positions(p, tile, to, din, hidden);
}

static void note_inputs(pl_device *device, pl_stream stream, const pl_experts_inputs_arguments *a,
                        int64_t rows)
{
    int64_t matrices = a->rows.experts * a->hidden * a->width * 4;
    int64_t activations = a->rows.rows * a->hidden * 4, pairs = rows * 2 * a->width * 4;
    bool chosen = a->rows.order == PL_EXPERTS_CHOSEN;
    pl_touch touches[PL_EXPERT_TOUCHES + 8] = {
        {a->dout, activations, true, false},
        {a->down, matrices, true, false},
        {a->din ? a->gate : NULL, matrices, true, false},
        {a->din ? a->up : NULL, matrices, true, false},
        {a->saved, pairs, true, false},
        {a->dact, pairs, false, true},
        {a->din, activations, false, true},
        {chosen ? a->dweights : NULL, a->rows.tokens * a->rows.chosen * 4, false, true},
    };
    PL_ISA(pl_cpu_touch_expert_rows)(&a->rows, true, touches + 8);
    pl_device_note(device, stream, "experts_inputs",
                   2 * (a->din ? 3 : 1) * rows * a->hidden * a->width, touches,
                   PL_EXPERT_TOUCHES + 8);
}

pl_status PL_ISA(pl_cpu_experts_inputs)(pl_device *device, pl_stream stream,
                                        const pl_experts_inputs_arguments *a)
{
    const char *what = "experts_inputs";
    pl_expert_shape shape = {&a->rows, a->dtype, a->hidden, a->width};
    PL_TRY(PL_ISA(pl_cpu_check_experts)(device, what, &shape));
    inputs f = {.a = a};
    PL_TRY(PL_ISA(pl_cpu_expert_positions)(device, what, &a->rows, a->din ? a->hidden : 0, &f.p));
    note_inputs(device, stream, a, f.p.count);
    if (a->dweights && f.p.choice)
        memset(a->dweights, 0, (size_t)(a->rows.tokens * a->rows.chosen) * sizeof *a->dweights);
    size_t scratch = (size_t)lay_out_inputs(&f).total * sizeof(float);
    PL_TRY(pl_pool_run(pl_cpu_pool(device), f.p.tile_count, scratch, inputs_tile, &f));
    if (!f.p.results) return PL_OK;
    return PL_ISA(pl_cpu_combine_results)(device, &f.p, false, a->din, a->hidden);
}

/* --- of weights --- */

/* Numbers of width that a task does: long rows are read faster, but a single expert should make
 * more than two tasks. Rows that are copied together at a time, and rows of one product where they
 * stand together. */
enum { LONG_TILE = 1024, SHORT_TILE = 256, COPIED_ROWS = 512, WHOLE_ROWS = 65536 };

typedef struct weights {
    const pl_experts_weights_arguments *a;
    pl_expert_positions p;
    int64_t tile, tiles; /* width of one, and how many */
    int64_t chunk;       /* rows of one product */
} weights;

/* What a task is about: columns [begin, end) of the width of EXPERT. */
typedef struct weights_task {
    int64_t expert, begin, end;
} weights_task;

/* Gradients of gate and up: rows of the matrices, [width, hidden]. */
static void gate_and_up(const weights *f, weights_task task, float *scratch)
{
    const pl_experts_weights_arguments *a = f->a;
    const pl_expert_positions *p = &f->p;
    int64_t hidden = a->hidden, width = a->width, wide = task.end - task.begin;
    int64_t begin = p->begin[task.expert], end = p->begin[task.expert + 1];
    int64_t place = (task.expert * width + task.begin) * hidden;
    for (int64_t at = begin; at < end; at += f->chunk) {
        int64_t rows = end - at < f->chunk ? end - at : f->chunk;
        const float *in = pl_gather_positions(p, a->in, hidden, at, at + rows, scratch);
        const float *dgate = a->dact;
        dgate += pl_gate_offset(p, task.expert, at, width) + task.begin;
        const float *dup = dgate + pl_gate_to_up(p, task.expert, width);
        if (a->dgate)
            pl_cpu_product(true, false, wide, hidden, rows, dgate, width, in, hidden,
                           a->add_gate || at > begin, a->dgate + place, hidden);
        if (a->dup)
            pl_cpu_product(true, false, wide, hidden, rows, dup, width, in, hidden,
                           a->add_up || at > begin, a->dup + place, hidden);
    }
    if (begin < end) return;
    size_t bytes = (size_t)(wide * hidden) * sizeof *a->dgate;
    if (a->dgate && !a->add_gate) memset(a->dgate + place, 0, bytes);
    if (a->dup && !a->add_up) memset(a->dup + place, 0, bytes);
}

/* Rows [AT, AT + ROWS) of the activations' columns of TASK, with the tokens' weights. */
static void activate_again(const weights *f, weights_task task, int64_t at, int64_t rows,
                           float *act)
{
    const pl_experts_weights_arguments *a = f->a;
    const pl_expert_positions *p = &f->p;
    int64_t wide = task.end - task.begin;
    const float *gate = a->saved;
    gate += pl_gate_offset(p, task.expert, at, a->width) + task.begin;
    const float *up = gate + pl_gate_to_up(p, task.expert, a->width);
    for (int64_t i = 0; i < rows; ++i) {
        float factor = p->choice ? p->given->weights[p->choice[at + i]] : 1;
        pl_activate(gate + i * a->width, up + i * a->width, factor, act + i * wide, wide);
    }
}

/* Gradient of down: columns of the matrix, [hidden, width]. */
static void down(const weights *f, weights_task task, float *scratch)
{
    const pl_experts_weights_arguments *a = f->a;
    const pl_expert_positions *p = &f->p;
    int64_t hidden = a->hidden, width = a->width, wide = task.end - task.begin;
    int64_t begin = p->begin[task.expert], end = p->begin[task.expert + 1];
    float *act = scratch, *copied = scratch + pl_round_numbers(COPIED_ROWS * wide);
    float *to = a->ddown + task.expert * hidden * width + task.begin;
    for (int64_t at = begin; at < end; at += COPIED_ROWS) {
        int64_t rows = end - at < COPIED_ROWS ? end - at : COPIED_ROWS;
        const float *dout = pl_gather_positions(p, a->dout, hidden, at, at + rows, copied);
        activate_again(f, task, at, rows, act);
        pl_cpu_product(true, false, hidden, wide, rows, dout, hidden, act, wide,
                       a->add_down || at > begin, to, width);
    }
    if (begin < end || a->add_down) return;
    for (int64_t i = 0; i < hidden; ++i) memset(to + i * width, 0, (size_t)wide * sizeof *to);
}

static void weights_block(void *context, int64_t index, void *scratch)
{
    const weights *f = context;
    const pl_experts_weights_arguments *a = f->a;
    int64_t tile = index / 2 % f->tiles;
    weights_task task = {index / 2 / f->tiles, tile * f->tile, (tile + 1) * f->tile};
    if (task.end > a->width) task.end = a->width;
    if (index % 2 == 0 && (a->dgate || a->dup)) gate_and_up(f, task, scratch);
    if (index % 2 == 1 && a->ddown) down(f, task, scratch);
}

static void note_weights(pl_device *device, pl_stream stream, const pl_experts_weights_arguments *a,
                         int64_t rows)
{
    int64_t matrices = a->rows.experts * a->hidden * a->width * 4;
    int64_t activations = a->rows.rows * a->hidden * 4, pairs = rows * 2 * a->width * 4;
    int64_t products = (a->dgate != NULL) + (a->dup != NULL) + (a->ddown != NULL);
    bool wide = a->dgate || a->dup;
    pl_touch touches[PL_EXPERT_TOUCHES + 7] = {
        {wide ? a->in : NULL, activations, true, false},
        {wide ? a->dact : NULL, pairs, true, false},
        {a->ddown ? a->dout : NULL, activations, true, false},
        {a->ddown ? a->saved : NULL, pairs, true, false},
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
    weights f = {.a = a};
    PL_TRY(PL_ISA(pl_cpu_expert_positions)(device, what, &a->rows, 0, &f.p));
    note_weights(device, stream, a, f.p.count);
    f.tile = a->rows.experts > 1 ? LONG_TILE : SHORT_TILE;
    f.tiles = pl_divide_up(a->width, f.tile);
    f.chunk = f.p.row ? COPIED_ROWS : WHOLE_ROWS;
    int64_t wide = a->width < f.tile ? a->width : f.tile;
    int64_t scratch =
        pl_round_numbers(COPIED_ROWS * wide) + (f.p.row ? COPIED_ROWS * a->hidden : 0);
    return pl_pool_run(pl_cpu_pool(device), a->rows.experts * f.tiles * 2,
                       (size_t)scratch * sizeof(float), weights_block, &f);
}
