/* Modules of dense tensors but attention: embedding, dense MLP, final norm.
 *
 * save_mlp: gate, up [tokens, width] in the compute type, then the reciprocal norm [tokens] fp32.
 */
#include "train/entries.h"

static bool is_backward(const pl_work *work)
{
    pl_pass pass = (pl_pass)work->entry->name.pass;
    return pass != PL_PASS_FORWARD && pass != PL_PASS_RECOMPUTE;
}

static int64_t activation_bytes(const pl_sizes *s) { return s->tokens * s->hidden * s->element; }

/* --- embedding --- */

static const char table_name[] = "model.embed_tokens.weight";

static pl_status embed_forward(pl_work *work, int32_t part)
{
    const pl_sizes *s = work->sizes;
    const void *table = NULL, *tokens = NULL;
    void *x = NULL;
    PL_TRY(pl_work_weight(work, part, table_name, &table));
    PL_TRY(pl_work_read(work, PL_BUF_TOKENS, 4 * s->tokens, &tokens));
    PL_TRY(pl_work_write(work, PL_BUF_INPUT, activation_bytes(s), &x));
    return PL_DO(work, embed, .table = table, .tokens = tokens, .x = x, .dtype = s->dtype,
                 .count = s->tokens, .vocabulary = s->vocabulary, .cols = s->hidden);
}

static pl_status embed_backward(pl_work *work, int32_t part)
{
    const pl_sizes *s = work->sizes;
    const void *tokens = NULL, *dx = NULL;
    pl_gradient table;
    PL_TRY(pl_work_read(work, PL_BUF_TOKENS, 4 * s->tokens, &tokens));
    PL_TRY(pl_work_read(work, PL_BUF_D_INPUT, activation_bytes(s), &dx));
    PL_TRY(pl_work_gradient(work, part, table_name, &table));
    if (!table.data) return PL_OK;
    return PL_DO(work, embed_backward, .dx = dx, .tokens = tokens, .dtable = table.data,
                 .add = table.add, .dtype = s->dtype, .count = s->tokens,
                 .vocabulary = s->vocabulary, .cols = s->hidden);
}

pl_status pl_do_embed(pl_work *work)
{
    int32_t part = -1;
    PL_TRY(pl_work_part(work, &part));
    return is_backward(work) ? embed_backward(work, part) : embed_forward(work, part);
}

/* --- dense MLP --- */

typedef struct mlp {
    int32_t part;
    pl_linear in, out; /* of gate and up; of down */
    const void *norm, *gate_weight, *up_weight, *down_weight;
    void *gate, *up; /* [tokens, width] */
    float *rstd;     /* [tokens] */
} mlp;

static int64_t wide_bytes(const pl_sizes *s) { return s->tokens * s->width * s->element; }

static pl_status find_mlp(pl_work *work, mlp *m)
{
    const pl_sizes *s = work->sizes;
    PL_TRY(pl_work_part(work, &m->part));
    m->in = (pl_linear){s->tokens, s->hidden, s->width};
    m->out = (pl_linear){s->tokens, s->width, s->hidden};
    PL_TRY(pl_work_weight(work, m->part, "post_attention_layernorm.weight", &m->norm));
    PL_TRY(pl_work_weight(work, m->part, "mlp.gate_proj.weight", &m->gate_weight));
    PL_TRY(pl_work_weight(work, m->part, "mlp.up_proj.weight", &m->up_weight));
    return pl_work_weight(work, m->part, "mlp.down_proj.weight", &m->down_weight);
}

static void lay_out(const pl_sizes *s, mlp *m, char *saved)
{
    m->gate = saved;
    m->up = saved + wide_bytes(s);
    m->rstd = (float *)(void *)(saved + 2 * wide_bytes(s));
}

static pl_status place_saved(pl_work *work, mlp *m)
{
    const pl_sizes *s = work->sizes;
    int64_t bytes = 2 * wide_bytes(s) + 4 * s->tokens;
    void *saved = NULL;
    if (pl_work_find(work, PL_BUF_SAVE_MLP, PL_USE_WRITE, PL_ANY_PART))
        PL_TRY(pl_work_write(work, PL_BUF_SAVE_MLP, bytes, &saved));
    else
        PL_TRY(pl_work_space(work, bytes, &saved));
    lay_out(s, m, saved);
    return PL_OK;
}

static pl_status normalise(pl_work *work, const mlp *m, const void *h, void *y, float *rstd)
{
    const pl_sizes *s = work->sizes;
    return PL_DO(work, rms_norm, .x = h, .weight = m->norm, .y = y, .rstd = rstd, .dtype = s->dtype,
                 .rows = s->tokens, .cols = s->hidden,
                 .epsilon = work->executor->plan->model.rms_norm_eps);
}

/* down(silu(gate) up) + h; recompute stops at what backward needs. */
static pl_status mlp_forward(pl_work *work)
{
    const pl_sizes *s = work->sizes;
    const void *h = NULL, *gate_bias = NULL, *up_bias = NULL, *down_bias = NULL;
    void *y = NULL, *act = NULL, *x = NULL;
    mlp m;
    PL_TRY(find_mlp(work, &m));
    PL_TRY(pl_work_weight_if(work, m.part, "mlp.gate_proj.bias", &gate_bias));
    PL_TRY(pl_work_weight_if(work, m.part, "mlp.up_proj.bias", &up_bias));
    PL_TRY(pl_work_weight_if(work, m.part, "mlp.down_proj.bias", &down_bias));
    PL_TRY(pl_work_read(work, PL_BUF_ATTENDED, activation_bytes(s), &h));
    PL_TRY(place_saved(work, &m));
    PL_TRY(pl_work_space(work, activation_bytes(s), &y));
    PL_TRY(normalise(work, &m, h, y, m.rstd));
    PL_TRY(pl_work_linear(work, m.in, y, m.gate_weight, gate_bias, NULL, m.gate));
    PL_TRY(pl_work_linear(work, m.in, y, m.up_weight, up_bias, NULL, m.up));
    if (!pl_work_find(work, PL_BUF_INPUT, PL_USE_WRITE, PL_ANY_PART)) return PL_OK;
    PL_TRY(pl_work_write(work, PL_BUF_INPUT, activation_bytes(s), &x));
    PL_TRY(pl_work_space(work, wide_bytes(s), &act));
    PL_TRY(PL_DO(work, swiglu, .gate = m.gate, .up = m.up, .act = act, .dtype = s->dtype,
                 .count = s->tokens * s->width));
    return pl_work_linear(work, m.out, act, m.down_weight, down_bias, h, x);
}

/* Gradients of gate and up go to GATE and UP, in work space. */
static pl_status mlp_backward_wide(pl_work *work, const mlp *m, const void *dx, void *gate,
                                   void *up)
{
    const pl_sizes *s = work->sizes;
    pl_gradient weight, bias;
    void *act = NULL;
    PL_TRY(pl_work_space(work, wide_bytes(s), &act));
    PL_TRY(PL_DO(work, swiglu, .gate = m->gate, .up = m->up, .act = act, .dtype = s->dtype,
                 .count = s->tokens * s->width));
    PL_TRY(pl_work_gradient(work, m->part, "mlp.down_proj.weight", &weight));
    PL_TRY(pl_work_gradient(work, m->part, "mlp.down_proj.bias", &bias));
    PL_TRY(pl_work_linear_weights(work, m->out, dx, act, weight, bias));
    PL_TRY(pl_work_linear_inputs(work, m->out, dx, m->down_weight, NULL, act));
    return PL_DO(work, swiglu_backward, .gate = m->gate, .up = m->up, .dact = act, .dgate = gate,
                 .dup = up, .dtype = s->dtype, .count = s->tokens * s->width);
}

static pl_status mlp_backward_in(pl_work *work, const mlp *m, const void *h, const void *dgate,
                                 const void *dup)
{
    const pl_sizes *s = work->sizes;
    pl_gradient weight, bias;
    void *y = NULL;
    PL_TRY(pl_work_space(work, activation_bytes(s), &y));
    PL_TRY(normalise(work, m, h, y, NULL));
    PL_TRY(pl_work_gradient(work, m->part, "mlp.gate_proj.weight", &weight));
    PL_TRY(pl_work_gradient(work, m->part, "mlp.gate_proj.bias", &bias));
    PL_TRY(pl_work_linear_weights(work, m->in, dgate, y, weight, bias));
    PL_TRY(pl_work_gradient(work, m->part, "mlp.up_proj.weight", &weight));
    PL_TRY(pl_work_gradient(work, m->part, "mlp.up_proj.bias", &bias));
    return pl_work_linear_weights(work, m->in, dup, y, weight, bias);
}

static pl_status mlp_backward(pl_work *work)
{
    const pl_sizes *s = work->sizes;
    const void *h = NULL, *dx = NULL, *saved = NULL;
    void *gate = NULL, *up = NULL, *dy = NULL, *dh = NULL;
    pl_gradient norm;
    mlp m;
    PL_TRY(find_mlp(work, &m));
    PL_TRY(pl_work_read(work, PL_BUF_ATTENDED, activation_bytes(s), &h));
    PL_TRY(pl_work_read(work, PL_BUF_SAVE_MLP, 2 * wide_bytes(s) + 4 * s->tokens, &saved));
    PL_TRY(pl_work_read(work, PL_BUF_D_INPUT, activation_bytes(s), &dx));
    if (pl_work_find(work, PL_BUF_D_ATTENDED, PL_USE_WRITE, PL_ANY_PART))
        PL_TRY(pl_work_write(work, PL_BUF_D_ATTENDED, activation_bytes(s), &dh));
    /* What is saved is only read here; the device's arguments say so where it matters. */
    m.gate = (char *)(uintptr_t)saved;
    lay_out(s, &m, m.gate);
    PL_TRY(pl_work_space(work, wide_bytes(s), &gate));
    PL_TRY(pl_work_space(work, wide_bytes(s), &up));
    PL_TRY(mlp_backward_wide(work, &m, dx, gate, up));
    PL_TRY(mlp_backward_in(work, &m, h, gate, up));
    PL_TRY(pl_work_gradient(work, m.part, "post_attention_layernorm.weight", &norm));
    if (!dh && !norm.data) return PL_OK;
    PL_TRY(pl_work_space(work, activation_bytes(s), &dy));
    PL_TRY(pl_work_linear_inputs(work, m.in, gate, m.gate_weight, NULL, dy));
    PL_TRY(pl_work_linear_inputs(work, m.in, up, m.up_weight, dy, dy));
    return PL_DO(work, rms_norm_backward, .x = h, .weight = m.norm, .dy = dy, .rstd = m.rstd,
                 .residual = dx, .dx = dh, .dweight = norm.data, .add = norm.add, .dtype = s->dtype,
                 .rows = s->tokens, .cols = s->hidden,
                 .epsilon = work->executor->plan->model.rms_norm_eps);
}

pl_status pl_do_mlp(pl_work *work)
{
    return is_backward(work) ? mlp_backward(work) : mlp_forward(work);
}

/* --- final norm --- */

static pl_status final_norm_backward(pl_work *work, int32_t part, const void *x, const void *norm)
{
    const pl_sizes *s = work->sizes;
    const void *dz = NULL;
    void *dx = NULL;
    pl_gradient gradient;
    PL_TRY(pl_work_read(work, PL_BUF_D_FINAL, activation_bytes(s), &dz));
    if (pl_work_find(work, PL_BUF_D_INPUT, PL_USE_WRITE, PL_ANY_PART))
        PL_TRY(pl_work_write(work, PL_BUF_D_INPUT, activation_bytes(s), &dx));
    PL_TRY(pl_work_gradient(work, part, "model.norm.weight", &gradient));
    if (!dx && !gradient.data) return PL_OK;
    return PL_DO(work, rms_norm_backward, .x = x, .weight = norm, .dy = dz, .dx = dx,
                 .dweight = gradient.data, .add = gradient.add, .dtype = s->dtype,
                 .rows = s->tokens, .cols = s->hidden,
                 .epsilon = work->executor->plan->model.rms_norm_eps);
}

pl_status pl_do_final_norm(pl_work *work)
{
    const pl_sizes *s = work->sizes;
    const void *x = NULL, *norm = NULL;
    void *z = NULL;
    int32_t part = -1;
    PL_TRY(pl_work_part(work, &part));
    PL_TRY(pl_work_weight(work, part, "model.norm.weight", &norm));
    PL_TRY(pl_work_read(work, PL_BUF_INPUT, activation_bytes(s), &x));
    if (is_backward(work)) return final_norm_backward(work, part, x, norm);
    PL_TRY(pl_work_write(work, PL_BUF_FINAL, activation_bytes(s), &z));
    return PL_DO(work, rms_norm, .x = x, .weight = norm, .y = z, .dtype = s->dtype,
                 .rows = s->tokens, .cols = s->hidden,
                 .epsilon = work->executor->plan->model.rms_norm_eps);
}
