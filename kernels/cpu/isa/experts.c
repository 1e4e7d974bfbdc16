/* The experts, forward: a task takes a tile of rows of one expert through all three matrices, so
 * that what lies between them stays in its cache.
 */
#include "kernels/cpu/isa/expert_rows.h"
#include "kernels/cpu/isa/expert_swiglu.h"
#include "kernels/cpu/isa/operations.h"

typedef struct forward {
    const pl_experts_arguments *a;
    pl_expert_positions p;
} forward;

/* Pieces of a task's scratch, in numbers, and where results go when not to their place. */
typedef struct layout {
    int64_t in, pair, act, result, total;
} layout;

static layout lay_out(const forward *f)
{
    const pl_experts_arguments *a = f->a;
    int64_t rows = f->p.tile_rows, wide = pl_round_numbers(rows * a->width);
    int64_t row_numbers = pl_round_numbers(rows * a->hidden);
    layout l = {0};
    l.pair = f->p.row ? row_numbers : 0;
    l.act = l.pair + (a->saved ? 0 : 2 * wide);
    l.result = l.act + wide;
    l.total = l.result + (f->p.row && !f->p.results ? row_numbers : 0);
    return l;
}

static void forward_tile(void *context, int64_t index, void *scratch)
{
    const forward *f = context;
    const pl_experts_arguments *a = f->a;
    const pl_expert_positions *p = &f->p;
    const layout l = lay_out(f);
    pl_expert_tile tile = p->tile[index];
    int64_t rows = tile.end - tile.begin, hidden = a->hidden, width = a->width;
    int64_t matrix = tile.expert * hidden * width;
    float *base = scratch, *gate = base + l.pair, *up = gate + (l.act - l.pair) / 2;
    const float *in = pl_gather_positions(p, a->in, hidden, tile.begin, tile.end, base + l.in);
    if (a->saved) {
        gate = (float *)a->saved + pl_gate_offset(p, tile.expert, tile.begin, width);
        up = gate + pl_gate_to_up(p, tile.expert, width);
    }
    pl_cpu_product(false, true, rows, width, hidden, in, hidden, (const float *)a->gate + matrix,
                   hidden, false, gate, width);
    pl_cpu_product(false, true, rows, width, hidden, in, hidden, (const float *)a->up + matrix,
                   hidden, false, up, width);
    if (!a->out) return;
    float *act = base + l.act, *out = a->out, *to = out + tile.begin * hidden;
    if (p->results)
        to = p->results + tile.begin * hidden;
    else if (p->row)
        to = base + l.result;
    pl_activate(gate, up, 1, act, rows * width);
    pl_cpu_product(false, true, rows, hidden, width, act, width, (const float *)a->down + matrix,
                   width, false, to, hidden);
    if (p->row && !p->results) pl_scatter_positions(p, tile, to, out, hidden);
}

static void note(pl_device *device, pl_stream stream, const pl_experts_arguments *a, int64_t rows)
{
    int64_t matrices = a->rows.experts * a->hidden * a->width * 4;
    int64_t activations = a->rows.rows * a->hidden * 4;
    int64_t products = a->out ? 3 : 2;
    pl_touch touches[PL_EXPERT_TOUCHES + 6] = {
        {a->in, activations, true, false},
        {a->gate, matrices, true, false},
        {a->up, matrices, true, false},
        {a->out ? a->down : NULL, matrices, true, false},
        {a->saved, rows * 2 * a->width * 4, false, true},
        {a->out, activations, false, true},
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
    size_t scratch = (size_t)lay_out(&f).total * sizeof(float);
    PL_TRY(pl_pool_run(pl_cpu_pool(device), f.p.tile_count, scratch, forward_tile, &f));
    if (!f.p.results || !a->out) return PL_OK;
    return PL_ISA(pl_cpu_combine_results)(device, &f.p, true, a->out, a->hidden);
}
