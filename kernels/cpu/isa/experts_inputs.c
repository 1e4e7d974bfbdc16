/* The experts, backward: gradients of activations and of what was put in. A task takes a tile of
 * rows of one expert through down, SwiGLU, gate and up, a block of the width at a time.
 */
#include "kernels/cpu/isa/expert_panels.h"
#include "kernels/cpu/isa/expert_swiglu.h"
#include "kernels/cpu/isa/operations.h"

typedef struct backward {
    const pl_experts_inputs_arguments *a;
    pl_expert_positions p;
    int64_t block; /* numbers of the width at most */
} backward;

/* A task's tile and its scratch; panels are of the tile's rows, but for `inward`. */
typedef struct work {
    const backward *b;
    pl_expert_tile tile;
    int64_t rows, panels;
    float *dout;     /* [hidden, rows] */
    float *dpair;    /* gradients of the block's gates, then of its ups: [2 block, rows] */
    float *weights;  /* CHOSEN: [rows] */
    float *products; /* CHOSEN: [rows] gradients of the weights */
    float *inward;   /* the block's rows of gate, then of up, in panels: [2 block, hidden] */
    float *down;     /* the block's columns of down: for each step [hidden, PL_STEP_ROWS] */
    float *some;     /* rows that do not stand together: [panel, hidden], or [rows, hidden] */
    float *din;      /* [rows, hidden]; NULL: not wanted */
} work;

/* A block of the width. */
typedef struct span {
    int64_t begin, count;
} span;

static bool scatters(const backward *b) { return b->a->din && b->p.row && !b->p.results; }

static int64_t some_rows(const backward *b)
{
    int64_t panel = (int64_t)PL_TILE_VECTORS * PL_LANES;
    if (!b->p.row) return 0;
    return scatters(b) && b->p.tile_rows > panel ? b->p.tile_rows : panel;
}

static size_t scratch_bytes(const backward *b)
{
    int64_t rows = pl_pad_lanes(b->p.tile_rows), hidden = b->a->hidden;
    int64_t numbers = rows * (hidden + 2 * b->block + 2) + some_rows(b) * hidden +
                      b->block * (2 * pl_pad_lanes(hidden) + hidden);
    return (size_t)numbers * sizeof(float);
}

static work start(const backward *b, int64_t index, float *scratch)
{
    work w = {.b = b, .tile = b->p.tile[index]};
    int64_t rows = pl_pad_lanes(b->p.tile_rows), hidden = b->a->hidden;
    w.dout = scratch;
    w.rows = w.tile.end - w.tile.begin;
    w.panels = pl_panel_count(w.rows);
    w.dpair = w.dout + rows * hidden;
    w.weights = w.dpair + rows * 2 * b->block;
    w.products = w.weights + rows;
    w.inward = w.products + rows;
    w.down = w.inward + 2 * b->block * pl_pad_lanes(hidden);
    w.some = w.down + b->block * hidden;
    if (scatters(b))
        w.din = w.some;
    else if (b->a->din)
        w.din = (b->p.results ? b->p.results : (float *)b->a->din) + w.tile.begin * hidden;
    for (int64_t i = 0; b->p.choice && i < w.rows; ++i) {
        w.weights[i] = b->p.given->weights[b->p.choice[w.tile.begin + i]];
        w.products[i] = 0;
    }
    return w;
}

/* --- the weights of a block --- */

static const float *matrix(const work *w, const void *matrices)
{
    return (const float *)matrices + w->tile.expert * w->b->a->hidden * w->b->a->width;
}

static void pack_down(const work *w, span s)
{
    int64_t hidden = w->b->a->hidden, width = w->b->a->width;
    const float *from = matrix(w, w->b->a->down) + s.begin;
    for (int64_t h = 0; h < hidden; ++h, from += width) {
        float *to = w->down + h * PL_STEP_ROWS;
        int64_t i = 0;
        for (; i + PL_STEP_ROWS <= s.count; i += PL_STEP_ROWS, to += hidden * PL_STEP_ROWS)
            memcpy(to, from + i, PL_STEP_ROWS * sizeof *to);
        for (int64_t j = i; j < s.count; ++j) to[j - i] = from[j];
    }
}

static void pack_inward(const work *w, span s)
{
    int64_t hidden = w->b->a->hidden;
    const float *gate = matrix(w, w->b->a->gate) + s.begin * hidden;
    const float *up = matrix(w, w->b->a->up) + s.begin * hidden;
    for (int64_t i = 0; i < s.count; ++i) {
        pl_pack_row(gate + i * hidden, hidden, i, 2 * s.count, w->inward);
        pl_pack_row(up + i * hidden, hidden, s.count + i, 2 * s.count, w->inward);
    }
}

/* Part PART of PARTS of what pack_inward is to read, and of what pack_down is. */
static void fetch_inward(const work *w, span s, int64_t part, int64_t parts)
{
    int64_t hidden = w->b->a->hidden, first = s.count * part / parts;
    int64_t rows = s.count * (part + 1) / parts - first;
    int64_t place = (s.begin + first) * hidden;
    pl_fetch_rows(matrix(w, w->b->a->gate) + place, rows, hidden, hidden);
    pl_fetch_rows(matrix(w, w->b->a->up) + place, rows, hidden, hidden);
}

static void fetch_down(const work *w, span s, int64_t part, int64_t parts)
{
    int64_t hidden = w->b->a->hidden, width = w->b->a->width, first = hidden * part / parts;
    int64_t rows = hidden * (part + 1) / parts - first;
    pl_fetch_rows(matrix(w, w->b->a->down) + first * width + s.begin, rows, width, s.count);
}

/* --- gradients --- */

/* Of gates and ups AT .. AT + COUNT of block S, of one panel. */
static void step_pairs(const work *w, pl_panel panel, span s, int64_t at, int64_t count)
{
    const pl_experts_inputs_arguments *a = w->b->a;
    const pl_expert_positions *p = &w->b->p;
    int64_t hidden = a->hidden, row = pl_rows_of(p, w->tile.expert), behind = row * a->width;
    int64_t place =
        pl_gate_offset(p, w->tile.expert, w->tile.begin + panel.begin, s.begin + at, a->width);
    const float *gate = (const float *)a->saved + place;
    float *kept = a->dact ? (float *)a->dact + place : NULL;
    float *dgate = w->dpair + pl_panel_offset(panel, 2 * s.count) + at * panel.stride;
    pl_fetch_rows(gate, count, row, panel.count);
    pl_fetch_rows(gate + behind, count, row, panel.count);
    if (kept) pl_fetch_rows(kept, count, row, panel.count);
    if (kept) pl_fetch_rows(kept + behind, count, row, panel.count);
    pl_small_product product = {.a = w->down + at * hidden,
                                .b = w->dout + pl_panel_offset(panel, hidden),
                                .c = dgate,
                                .a_row = 1,
                                .a_step = PL_STEP_ROWS,
                                .b_row = panel.stride,
                                .c_row = panel.stride,
                                .m = count,
                                .n = panel.count,
                                .k = hidden};
    pl_product_small(&product);
    for (int64_t i = 0; i < count; ++i) {
        pl_swiglu_row r = {.gate = gate + i * row, .up = gate + behind + i * row};
        r.dgate = dgate + i * panel.stride;
        r.dup = r.dgate + s.count * panel.stride;
        r.dgate_copy = kept ? kept + i * row : NULL;
        r.dup_copy = kept ? kept + behind + i * row : NULL;
        r.factors = p->choice ? w->weights + panel.begin : NULL;
        r.products = p->choice ? w->products + panel.begin : NULL;
        pl_differentiate(&r, panel.count);
    }
}

static void block_pairs(const work *w, span s)
{
    int64_t steps = pl_divide_up(s.count, PL_STEP_ROWS);
    pack_down(w, s);
    for (int64_t i = 0; i < w->panels; ++i) {
        pl_panel panel = pl_panel_at(w->rows, i);
        for (int64_t j = 0; j < steps; ++j) {
            int64_t at = j * PL_STEP_ROWS, left = s.count - at;
            if (w->din) fetch_inward(w, s, i * steps + j, w->panels * steps);
            step_pairs(w, panel, s, at, left < PL_STEP_ROWS ? left : PL_STEP_ROWS);
        }
    }
}

/* What block S adds to din. NEXT: the block after it. */
static void block_inputs(const work *w, span s, span next)
{
    int64_t hidden = w->b->a->hidden, columns = pl_panel_count(hidden), k = 2 * s.count;
    pack_inward(w, s);
    for (int64_t j = 0; j < columns; ++j) {
        pl_panel column = pl_panel_at(hidden, j);
        for (int64_t i = 0; i < w->panels; ++i) {
            pl_panel panel = pl_panel_at(w->rows, i);
            pl_small_product product = {.a = w->dpair + pl_panel_offset(panel, k),
                                        .b = w->inward + pl_panel_offset(column, k),
                                        .c = w->din + panel.begin * hidden + column.begin,
                                        .a_row = 1,
                                        .a_step = panel.stride,
                                        .b_row = column.stride,
                                        .c_row = hidden,
                                        .m = panel.count,
                                        .n = column.count,
                                        .k = k,
                                        .add = s.begin > 0};
            fetch_down(w, next, j * w->panels + i, columns * w->panels);
            pl_product_small(&product);
        }
    }
}

static void backward_tile(void *context, int64_t index, void *scratch)
{
    const backward *b = context;
    const pl_experts_inputs_arguments *a = b->a;
    work w = start(b, index, scratch);
    for (int64_t i = 0; i < w.panels; ++i) {
        pl_panel panel = pl_panel_at(w.rows, i);
        pl_pack_columns(&b->p, w.tile, panel, a->dout, a->hidden, w.some,
                        w.dout + pl_panel_offset(panel, a->hidden));
    }
    for (span s = {0, 0}, next; s.begin < a->width; s = next) {
        s.count = a->width - s.begin < b->block ? a->width - s.begin : b->block;
        next = (span){s.begin + s.count, 0};
        next.count = a->width - next.begin < b->block ? a->width - next.begin : b->block;
        block_pairs(&w, s);
        if (w.din) block_inputs(&w, s, next);
    }
    if (scatters(b))
        pl_scatter_positions(&b->p, w.tile.begin, w.tile.end, w.din, a->din, a->hidden);
    for (int64_t i = 0; b->p.choice && a->dweights && i < w.rows; ++i)
        a->dweights[b->p.choice[w.tile.begin + i]] = w.products[i];
}

/* --- the operation --- */

static void note(pl_device *device, pl_stream stream, const pl_experts_inputs_arguments *a,
                 int64_t rows)
{
    int64_t matrices = a->rows.experts * a->hidden * a->width * 4;
    int64_t activations = a->rows.rows * a->hidden * 4, pairs = rows * 2 * a->width * 4;
    bool chosen = a->rows.order == PL_EXPERTS_CHOSEN;
    pl_touch touches[PL_EXPERT_TOUCHES + 8] = {
        pl_touch_read(a->dout, activations),
        pl_touch_read(a->down, matrices),
        pl_touch_read(a->din ? a->gate : NULL, matrices),
        pl_touch_read(a->din ? a->up : NULL, matrices),
        pl_touch_read(a->saved, pairs),
        pl_touch_write(a->dact, pairs),
        pl_touch_write(a->din, activations),
        pl_touch_write(chosen ? a->dweights : NULL, a->rows.tokens * a->rows.chosen * 4),
    };
    PL_ISA(pl_cpu_touch_expert_rows)(&a->rows, true, touches + 8);
    pl_device_note(device, stream, "experts_inputs",
                   INT64_C(2) * (a->din ? 3 : 1) * rows * a->hidden * a->width, touches,
                   PL_EXPERT_TOUCHES + 8);
}

pl_status PL_ISA(pl_cpu_experts_inputs)(pl_device *device, pl_stream stream,
                                        const pl_experts_inputs_arguments *a)
{
    const char *what = "experts_inputs";
    pl_expert_shape shape = {&a->rows, a->dtype, a->hidden, a->width};
    PL_TRY(PL_ISA(pl_cpu_check_experts)(device, what, &shape));
    backward b = {.a = a, .block = pl_block_rows(a->hidden)};
    int64_t most = pl_divide_up(a->width, PL_STEP_ROWS) * PL_STEP_ROWS;
    if (b.block > most) b.block = most;
    PL_TRY(PL_ISA(pl_cpu_expert_positions)(device, what, &a->rows, a->din ? a->hidden : 0, &b.p));
    note(device, stream, a, b.p.count);
    if (a->dweights && b.p.choice)
        memset(a->dweights, 0, (size_t)(a->rows.tokens * a->rows.chosen) * sizeof *a->dweights);
    PL_TRY(pl_pool_run(pl_cpu_pool(device), b.p.tile_count, scratch_bytes(&b), backward_tile, &b));
    if (!b.p.results) return PL_OK;
    return PL_ISA(pl_cpu_combine_results)(device, &b.p, false, a->din, a->hidden);
}
