/* Routed experts, in the three orders of rows that dispatch makes (kernels/device.h):
 *
 *   several owners, all-to-all   counted: rows as received, source by source
 *   one owner, all-to-all        sorted: rows in the order of slots
 *   all-gather                   chosen: rows are tokens, of this rank or of all owners' ranks
 */
#include "train/entries_moe.h"

typedef struct experts {
    int32_t part;
    pl_expert_rows rows;
    bool chosen;                       /* the third order */
    int64_t rows_bytes, saved_bytes;   /* of `in`; of saved and dact */
    pl_buffer_kind in, out, din, dout; /* kinds of buffers in this order */
    pl_buffer_kind dweights;           /* chosen: of the gradient of the weights */
    int64_t routes;                    /* chosen: choices of all rows */
} experts;

static pl_status find_counted(const pl_work *work, experts *e)
{
    const pl_sizes *s = work->sizes;
    const pl_binding *binding = NULL;
    const void *counts = NULL;
    PL_TRY(pl_moe_binding(work, &binding));
    PL_TRY(pl_work_read(work, PL_BUF_ROWS, 8 * s->experts, &counts));
    e->rows.order = PL_EXPERTS_COUNTED;
    e->rows.rows = e->rows.room = binding->rows;
    e->rows.sources = s->owners;
    e->rows.counts = counts;
    e->in = PL_BUF_RECEIVED;
    e->out = PL_BUF_EXPERT_OUT;
    e->din = PL_BUF_D_RECEIVED;
    e->dout = PL_BUF_D_EXPERT_OUT;
    return PL_OK;
}

static pl_status find_sorted(const pl_work *work, experts *e)
{
    const pl_sizes *s = work->sizes;
    const void *route = NULL;
    PL_TRY(pl_work_read(work, PL_BUF_ROUTE, pl_moe_route_bytes(s), &route));
    e->rows.order = PL_EXPERTS_SORTED;
    e->rows.rows = e->rows.room = s->tokens * s->chosen;
    e->rows.choices = pl_moe_routes(work, route).choices;
    e->rows.sources = 1;
    e->rows.tokens = s->tokens;
    e->rows.chosen = s->chosen;
    e->in = PL_BUF_SEND;
    e->out = PL_BUF_RETURNED;
    e->din = PL_BUF_D_SEND;
    e->dout = PL_BUF_D_RETURNED;
    return PL_OK;
}

static pl_status find_chosen(const pl_work *work, experts *e)
{
    const pl_sizes *s = work->sizes;
    bool alone = s->owners == 1;
    int64_t tokens = s->owners * s->tokens, most = s->chosen < s->own ? s->chosen : s->own;
    const void *route = NULL;
    e->chosen = true;
    e->rows.order = PL_EXPERTS_CHOSEN;
    e->rows.rows = e->rows.tokens = tokens;
    e->rows.sources = 1;
    e->rows.chosen = s->chosen;
    e->rows.room = tokens * most;
    e->routes = tokens * s->chosen;
    if (alone) {
        PL_TRY(pl_work_read(work, PL_BUF_ROUTE, pl_moe_route_bytes(s), &route));
    } else {
        PL_TRY(pl_work_read(work, PL_BUF_ROUTES_IN, 8 * e->routes, &route));
    }
    e->rows.choices = route;
    e->rows.weights = (const float *)route + e->routes;
    e->in = alone ? PL_BUF_NORMED : PL_BUF_RECEIVED;
    e->out = alone ? PL_BUF_RETURNED : PL_BUF_EXPERT_OUT;
    e->din = alone ? PL_BUF_D_NORMED : PL_BUF_D_RECEIVED;
    e->dout = alone ? PL_BUF_D_RETURNED : PL_BUF_D_EXPERT_OUT;
    e->dweights = alone ? PL_BUF_D_ROUTE : PL_BUF_D_ROUTES_IN;
    return PL_OK;
}

static pl_status find_experts(pl_work *work, experts *e)
{
    const pl_sizes *s = work->sizes;
    PL_TRY(pl_moe_check(work));
    PL_TRY(pl_work_part(work, &e->part));
    if (!pl_moe_all_to_all(work))
        PL_TRY(find_chosen(work, e));
    else
        PL_TRY(s->owners > 1 ? find_counted(work, e) : find_sorted(work, e));
    e->rows.experts = s->own;
    e->rows.first = s->owner * s->own;
    e->rows_bytes = e->rows.rows * s->hidden * s->element;
    e->saved_bytes = e->rows.room * 2 * s->expert_width * s->element;
    return PL_OK;
}

static const char gate_name[] = "mlp.experts.gate_proj.weight";
static const char up_name[] = "mlp.experts.up_proj.weight";
static const char down_name[] = "mlp.experts.down_proj.weight";

/* The buffer of KIND that the entry writes, NULL when it writes none. */
static pl_status write_if(const pl_work *work, pl_buffer_kind kind, int64_t bytes, void **out)
{
    *out = NULL;
    if (!pl_work_find(work, kind, PL_USE_WRITE, PL_ANY_PART)) return PL_OK;
    return pl_work_write(work, kind, bytes, out);
}

static pl_status forward(pl_work *work, const experts *e)
{
    const pl_sizes *s = work->sizes;
    const void *in = NULL, *gate = NULL, *up = NULL, *down = NULL;
    void *saved = NULL, *out = NULL;
    PL_TRY(pl_work_weight(work, e->part, gate_name, &gate));
    PL_TRY(pl_work_weight(work, e->part, up_name, &up));
    PL_TRY(pl_work_weight(work, e->part, down_name, &down));
    PL_TRY(pl_work_read(work, e->in, e->rows_bytes, &in));
    PL_TRY(write_if(work, PL_BUF_SAVE_EXPERTS, e->saved_bytes, &saved));
    PL_TRY(write_if(work, e->out, e->rows_bytes, &out));
    return PL_DO(work, experts, .rows = e->rows, .in = in, .gate = gate, .up = up, .down = down,
                 .saved = saved, .out = out, .dtype = s->dtype, .hidden = s->hidden,
                 .width = s->expert_width);
}

static pl_status backward_inputs(pl_work *work, const experts *e)
{
    const pl_sizes *s = work->sizes;
    const void *dout = NULL, *saved = NULL, *gate = NULL, *up = NULL, *down = NULL;
    void *dact = NULL, *din = NULL, *dweights = NULL;
    PL_TRY(pl_work_weight(work, e->part, gate_name, &gate));
    PL_TRY(pl_work_weight(work, e->part, up_name, &up));
    PL_TRY(pl_work_weight(work, e->part, down_name, &down));
    PL_TRY(pl_work_read(work, e->dout, e->rows_bytes, &dout));
    PL_TRY(pl_work_read(work, PL_BUF_SAVE_EXPERTS, e->saved_bytes, &saved));
    PL_TRY(write_if(work, PL_BUF_D_ACTIVATION, e->saved_bytes, &dact));
    PL_TRY(write_if(work, e->din, e->rows_bytes, &din));
    if (e->chosen) PL_TRY(write_if(work, e->dweights, 4 * e->routes, &dweights));
    return PL_DO(work, experts_inputs, .rows = e->rows, .dout = dout, .gate = gate, .up = up,
                 .down = down, .saved = saved, .dact = dact, .din = din, .dweights = dweights,
                 .dtype = s->dtype, .hidden = s->hidden, .width = s->expert_width);
}

static pl_status backward_weights(pl_work *work, const experts *e)
{
    const pl_sizes *s = work->sizes;
    const void *in = NULL, *dout = NULL, *saved = NULL, *dact = NULL;
    pl_gradient gate, up, down;
    PL_TRY(pl_work_read(work, e->in, e->rows_bytes, &in));
    PL_TRY(pl_work_read(work, e->dout, e->rows_bytes, &dout));
    PL_TRY(pl_work_read(work, PL_BUF_SAVE_EXPERTS, e->saved_bytes, &saved));
    PL_TRY(pl_work_read(work, PL_BUF_D_ACTIVATION, e->saved_bytes, &dact));
    PL_TRY(pl_work_gradient(work, e->part, gate_name, &gate));
    PL_TRY(pl_work_gradient(work, e->part, up_name, &up));
    PL_TRY(pl_work_gradient(work, e->part, down_name, &down));
    return PL_DO(work, experts_weights, .rows = e->rows, .in = in, .dout = dout, .saved = saved,
                 .dact = dact, .dgate = gate.data, .dup = up.data, .ddown = down.data,
                 .add_gate = gate.add, .add_up = up.add, .add_down = down.add, .dtype = s->dtype,
                 .hidden = s->hidden, .width = s->expert_width);
}

pl_status pl_do_experts(pl_work *work)
{
    experts e = {.part = -1};
    PL_TRY(find_experts(work, &e));
    switch ((pl_pass)work->entry->name.pass) {
    case PL_PASS_FORWARD:
    case PL_PASS_RECOMPUTE: return forward(work, &e);
    case PL_PASS_BACKWARD_INPUTS: return backward_inputs(work, &e);
    case PL_PASS_BACKWARD_WEIGHTS: return backward_weights(work, &e);
    default: break;
    }
    return PL_FAIL(PL_BAD_INPUT, "experts have the passes f, r, bi and bw");
}
