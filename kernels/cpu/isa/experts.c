/* The experts, forward: a task takes a tile of rows of one expert through all three matrices, so
 * that what lies between them stays in its cache.
 */
#include "kernels/cpu/isa/expert_panels.h"
#include "kernels/cpu/isa/expert_swiglu.h"
#include "kernels/cpu/isa/operations.h"

typedef struct forward {
    const pl_experts_arguments *a;
    pl_expert_positions p;
} forward;

/* A task's tile and its scratch: panels of columns, which are the tile's rows. */
typedef struct work {
    const forward *f;
    pl_expert_tile tile;
    int64_t rows, panels;
    float *in;   /* [hidden, rows]; later the results */
    float *act;  /* [width, rows] */
    float *pair; /* gates and ups of one step and panel, when they are not kept */
    float *some; /* [panel, hidden]: rows that do not stand together */
} work;

static int64_t pair_numbers(void) { return (int64_t)PL_STEP_ROWS * PL_TILE_VECTORS * PL_LANES; }

static int64_t some_rows(const pl_expert_positions *p)
{
    return p->row ? (int64_t)PL_TILE_VECTORS * PL_LANES : 0;
}

static size_t scratch_bytes(const forward *f)
{
    int64_t rows = pl_pad_lanes(f->p.tile_rows), hidden = f->a->hidden;
    int64_t numbers =
        rows * (hidden + f->a->width) + 2 * pair_numbers() + some_rows(&f->p) * hidden;
    return (size_t)numbers * sizeof(float);
}

static work start(const forward *f, int64_t index, float *scratch)
{
    work w = {.f = f, .tile = f->p.tile[index]};
    int64_t rows = pl_pad_lanes(f->p.tile_rows);
    w.in = scratch;
    w.rows = w.tile.end - w.tile.begin;
    w.panels = pl_panel_count(w.rows);
    w.act = w.in + rows * f->a->hidden;
    w.pair = w.act + rows * f->a->width;
    w.some = w.pair + 2 * pair_numbers();
    return w;
}

/* Gates, ups and activations FIRST .. FIRST + COUNT of the width, of one panel. */
static void gate_and_up(const work *w, pl_panel panel, int64_t first, int64_t count)
{
    const pl_experts_arguments *a = w->f->a;
    const pl_expert_positions *p = &w->f->p;
    int64_t hidden = a->hidden, width = a->width, row = panel.stride;
    int64_t place = (w->tile.expert * width + first) * hidden;
    float *gate = w->pair, *up = gate + pair_numbers();
    if (a->saved) {
        gate = (float *)a->saved +
               pl_gate_offset(p, w->tile.expert, w->tile.begin + panel.begin, first, width);
        row = pl_rows_of(p, w->tile.expert);
        up = gate + row * width;
        pl_fetch_rows(gate, count, row, panel.count);
        pl_fetch_rows(up, count, row, panel.count);
    }
    pl_small_product s = {.a = (const float *)a->gate + place,
                          .b = w->in + pl_panel_offset(panel, hidden),
                          .c = gate,
                          .a_row = hidden,
                          .a_step = 1,
                          .b_row = panel.stride,
                          .c_row = row,
                          .m = count,
                          .n = panel.count,
                          .k = hidden};
    pl_product_small(&s);
    s.a = (const float *)a->up + place;
    s.c = up;
    pl_product_small(&s);
    if (!a->out) return;
    float *act = w->act + pl_panel_offset(panel, width) + first * panel.stride;
    for (int64_t i = 0; i < count; ++i)
        pl_activate(gate + i * row, up + i * row, NULL, act + i * panel.stride, panel.count);
}

static void all_gates_and_ups(const work *w)
{
    int64_t width = w->f->a->width, block = pl_block_rows(w->f->a->hidden);
    for (int64_t begin = 0; begin < width; begin += block) {
        int64_t end = width - begin < block ? width : begin + block;
        for (int64_t i = 0; i < w->panels; ++i) {
            pl_panel panel = pl_panel_at(w->rows, i);
            for (int64_t at = begin; at < end; at += PL_STEP_ROWS)
                gate_and_up(w, panel, at, end - at < PL_STEP_ROWS ? end - at : PL_STEP_ROWS);
        }
    }
}

/* Results, by columns, in the place of the input. */
static void all_results(const work *w)
{
    const pl_experts_arguments *a = w->f->a;
    int64_t hidden = a->hidden, width = a->width, block = pl_block_rows(width);
    const float *down = (const float *)a->down + w->tile.expert * hidden * width;
    for (int64_t begin = 0; begin < hidden; begin += block) {
        for (int64_t i = 0; i < w->panels; ++i) {
            pl_panel panel = pl_panel_at(w->rows, i);
            pl_small_product s = {.a = down + begin * width,
                                  .b = w->act + pl_panel_offset(panel, width),
                                  .c =
                                      w->in + pl_panel_offset(panel, hidden) + begin * panel.stride,
                                  .a_row = width,
                                  .a_step = 1,
                                  .b_row = panel.stride,
                                  .c_row = panel.stride,
                                  .m = hidden - begin < block ? hidden - begin : block,
                                  .n = panel.count,
                                  .k = width};
            pl_product_small(&s);
        }
    }
}

/* From columns to the rows of `out`, or by position where the results of a row are combined. */
static void put_results(const work *w)
{
    const pl_expert_positions *p = &w->f->p;
    int64_t hidden = w->f->a->hidden;
    float *out = w->f->a->out, *by_position = p->results ? p->results : out;
    bool scatters = p->row && !p->results;
    for (int64_t i = 0; i < w->panels; ++i) {
        pl_panel panel = pl_panel_at(w->rows, i);
        int64_t begin = w->tile.begin + panel.begin;
        float *to = scatters ? w->some : by_position + begin * hidden;
        pl_transpose(w->in + pl_panel_offset(panel, hidden), panel.stride, hidden, panel.count, 1,
                     to, hidden);
        if (scatters) pl_scatter_positions(p, begin, begin + panel.count, to, out, hidden);
    }
}

static void forward_tile(void *context, int64_t index, void *scratch)
{
    const forward *f = context;
    work w = start(f, index, scratch);
    for (int64_t i = 0; i < w.panels; ++i) {
        pl_panel panel = pl_panel_at(w.rows, i);
        pl_pack_columns(&f->p, w.tile, panel, f->a->in, f->a->hidden, w.some,
                        w.in + pl_panel_offset(panel, f->a->hidden));
    }
    all_gates_and_ups(&w);
    if (!f->a->out) return;
    all_results(&w);
    put_results(&w);
}

static void note(pl_device *device, pl_stream stream, const pl_experts_arguments *a, int64_t rows)
{
    int64_t matrices = a->rows.experts * a->hidden * a->width * 4;
    int64_t activations = a->rows.rows * a->hidden * 4;
    int64_t products = a->out ? 3 : 2;
    pl_touch touches[PL_EXPERT_TOUCHES + 6] = {
        pl_touch_read(a->in, activations),
        pl_touch_read(a->gate, matrices),
        pl_touch_read(a->up, matrices),
        pl_touch_read(a->out ? a->down : NULL, matrices),
        pl_touch_write(a->saved, rows * 2 * a->width * 4),
        pl_touch_write(a->out, activations),
    };
    PL_ISA(pl_cpu_touch_expert_rows)(&a->rows, a->out, touches + 6);
    pl_device_note(device, stream, "experts", 2 * products * rows * a->hidden * a->width, touches,
                   PL_EXPERT_TOUCHES + 6);
}

pl_status PL_ISA(pl_cpu_experts)(pl_device *device, pl_stream stream, const pl_experts_arguments *a)
{
    pl_expert_shape shape = {&a->rows, a->dtype, a->hidden, a->width};
    PL_TRY(PL_ISA(pl_cpu_check_experts)(device, "experts", &shape));
    forward f = {.a = a};
    PL_TRY(
        PL_ISA(pl_cpu_expert_positions)(device, "experts", &a->rows, a->out ? a->hidden : 0, &f.p));
    note(device, stream, a, f.p.count);
    PL_TRY(pl_pool_run(pl_cpu_pool(device), f.p.tile_count, scratch_bytes(&f), forward_tile, &f));
    if (!f.p.results || !a->out) return PL_OK;
    return PL_ISA(pl_cpu_combine_results)(device, &f.p, true, a->out, a->hidden);
}
