/* Attention: norm, projections, norms of heads, rotary embedding, attention, residual.
 *
 * save_attention: q, k, v as projected, and the output of attention, in the compute type; then
 * fp32: log-sum-exp [tokens, heads], the reciprocal norm of the input [tokens], and where the
 * model norms heads, those of q [tokens, heads] and k [tokens, kv_heads]. The normalised input and
 * the turned q and k are made again in backward.
 */
#include <math.h>

#include "train/entries.h"

/* What both directions look up. */
typedef struct attention {
    int32_t part;
    pl_linear q_shape, kv_shape, out_shape;
    const void *norm, *q_weight, *k_weight, *v_weight, *out_weight;
    const void *q_norm, *k_norm; /* NULL: none */
    /* saved */
    char *q, *k, *v, *out;
    float *lse, *rstd, *q_rstd, *k_rstd;
} attention;

static int64_t activation_bytes(const pl_sizes *s) { return s->tokens * s->hidden * s->element; }
static int64_t query_bytes(const pl_sizes *s) { return s->tokens * s->query * s->element; }
static int64_t key_bytes(const pl_sizes *s) { return s->tokens * s->key_value * s->element; }

static pl_status find_attention(pl_work *work, attention *a)
{
    const pl_sizes *s = work->sizes;
    PL_TRY(pl_work_part(work, &a->part));
    a->q_shape = (pl_linear){s->tokens, s->hidden, s->query};
    a->kv_shape = (pl_linear){s->tokens, s->hidden, s->key_value};
    a->out_shape = (pl_linear){s->tokens, s->query, s->hidden};
    PL_TRY(pl_work_weight(work, a->part, "input_layernorm.weight", &a->norm));
    PL_TRY(pl_work_weight(work, a->part, "self_attn.q_proj.weight", &a->q_weight));
    PL_TRY(pl_work_weight(work, a->part, "self_attn.k_proj.weight", &a->k_weight));
    PL_TRY(pl_work_weight(work, a->part, "self_attn.v_proj.weight", &a->v_weight));
    PL_TRY(pl_work_weight(work, a->part, "self_attn.o_proj.weight", &a->out_weight));
    PL_TRY(pl_work_weight_if(work, a->part, "self_attn.q_norm.weight", &a->q_norm));
    return pl_work_weight_if(work, a->part, "self_attn.k_norm.weight", &a->k_norm);
}

static int64_t saved_bytes(const pl_sizes *s, const attention *a)
{
    int64_t numbers = s->heads + 1 + (a->q_norm ? s->heads : 0) + (a->k_norm ? s->kv_heads : 0);
    return 2 * query_bytes(s) + 2 * key_bytes(s) + 4 * s->tokens * numbers;
}

static void lay_out(const pl_sizes *s, attention *a, char *saved)
{
    a->q = saved;
    a->k = a->q + query_bytes(s);
    a->v = a->k + key_bytes(s);
    a->out = a->v + key_bytes(s);
    a->lse = (float *)(void *)(a->out + query_bytes(s));
    a->rstd = a->lse + s->tokens * s->heads;
    a->q_rstd = a->k_rstd = NULL;
    if (a->q_norm) a->q_rstd = a->rstd + s->tokens;
    if (a->k_norm) a->k_rstd = a->rstd + s->tokens + (a->q_norm ? s->tokens * s->heads : 0);
}

static double epsilon_of(const pl_work *work) { return work->executor->plan->model.rms_norm_eps; }

static double score_scale(const pl_sizes *s) { return 1 / sqrt((double)s->head_dim); }

static pl_status normalise(pl_work *work, const attention *a, const void *x, void *y, float *rstd)
{
    const pl_sizes *s = work->sizes;
    return PL_DO(work, rms_norm, .x = x, .weight = a->norm, .y = y, .rstd = rstd, .dtype = s->dtype,
                 .rows = s->tokens, .cols = s->hidden, .epsilon = epsilon_of(work));
}

/* Turned q and k in work space; reciprocal norms are kept in forward only. */
static pl_status turn(pl_work *work, const attention *a, bool keep, void **q_out, void **k_out)
{
    const pl_sizes *s = work->sizes;
    PL_TRY(pl_work_space(work, query_bytes(s), q_out));
    PL_TRY(pl_work_space(work, key_bytes(s), k_out));
    PL_TRY(PL_DO(work, head_rotate, .x = a->q, .weight = a->q_norm, .y = *q_out,
                 .rstd = keep ? a->q_rstd : NULL, .rotary = work->executor->rotary,
                 .dtype = s->dtype, .rows = s->tokens, .heads = s->heads, .head_dim = s->head_dim,
                 .sequence = s->sequence, .epsilon = epsilon_of(work)));
    return PL_DO(work, head_rotate, .x = a->k, .weight = a->k_norm, .y = *k_out,
                 .rstd = keep ? a->k_rstd : NULL, .rotary = work->executor->rotary,
                 .dtype = s->dtype, .rows = s->tokens, .heads = s->kv_heads,
                 .head_dim = s->head_dim, .sequence = s->sequence, .epsilon = epsilon_of(work));
}

/* --- forward --- */

static pl_status place_saved(pl_work *work, attention *a)
{
    int64_t bytes = saved_bytes(work->sizes, a);
    void *saved = NULL;
    if (pl_work_find(work, PL_BUF_SAVE_ATTENTION, PL_USE_WRITE, PL_ANY_PART))
        PL_TRY(pl_work_write(work, PL_BUF_SAVE_ATTENTION, bytes, &saved));
    else
        PL_TRY(pl_work_space(work, bytes, &saved));
    lay_out(work->sizes, a, saved);
    return PL_OK;
}

static pl_status project(pl_work *work, const attention *a, const void *y)
{
    const void *q_bias = NULL, *k_bias = NULL, *v_bias = NULL;
    PL_TRY(pl_work_weight_if(work, a->part, "self_attn.q_proj.bias", &q_bias));
    PL_TRY(pl_work_weight_if(work, a->part, "self_attn.k_proj.bias", &k_bias));
    PL_TRY(pl_work_weight_if(work, a->part, "self_attn.v_proj.bias", &v_bias));
    PL_TRY(pl_work_linear(work, a->q_shape, y, a->q_weight, q_bias, NULL, a->q));
    PL_TRY(pl_work_linear(work, a->kv_shape, y, a->k_weight, k_bias, NULL, a->k));
    return pl_work_linear(work, a->kv_shape, y, a->v_weight, v_bias, NULL, a->v);
}

static pl_status forward(pl_work *work)
{
    const pl_sizes *s = work->sizes;
    const void *x = NULL, *out_bias = NULL;
    void *y = NULL, *h = NULL, *q = NULL, *k = NULL;
    attention a;
    PL_TRY(find_attention(work, &a));
    PL_TRY(pl_work_weight_if(work, a.part, "self_attn.o_proj.bias", &out_bias));
    PL_TRY(pl_work_read(work, PL_BUF_INPUT, activation_bytes(s), &x));
    PL_TRY(pl_work_write(work, PL_BUF_ATTENDED, activation_bytes(s), &h));
    PL_TRY(place_saved(work, &a));
    PL_TRY(pl_work_space(work, activation_bytes(s), &y));
    PL_TRY(normalise(work, &a, x, y, a.rstd));
    PL_TRY(project(work, &a, y));
    PL_TRY(turn(work, &a, true, &q, &k));
    PL_TRY(PL_DO(work, attention, .q = q, .k = k, .v = a.v, .out = a.out, .lse = a.lse,
                 .dtype = s->dtype, .sequences = s->sequences, .sequence = s->sequence,
                 .heads = s->heads, .kv_heads = s->kv_heads, .head_dim = s->head_dim,
                 .scale = score_scale(s)));
    return pl_work_linear(work, a.out_shape, a.out, a.out_weight, out_bias, x, h);
}

/* --- backward --- */

/* Gradients of the tensors before attention; data is NULL where one is not wanted. */
typedef struct gradients {
    pl_gradient norm, q, k, v, q_bias, k_bias, v_bias, q_norm, k_norm;
} gradients;

static pl_status find_gradients(pl_work *work, int32_t part, gradients *g)
{
    PL_TRY(pl_work_gradient(work, part, "input_layernorm.weight", &g->norm));
    PL_TRY(pl_work_gradient(work, part, "self_attn.q_proj.weight", &g->q));
    PL_TRY(pl_work_gradient(work, part, "self_attn.k_proj.weight", &g->k));
    PL_TRY(pl_work_gradient(work, part, "self_attn.v_proj.weight", &g->v));
    PL_TRY(pl_work_gradient(work, part, "self_attn.q_proj.bias", &g->q_bias));
    PL_TRY(pl_work_gradient(work, part, "self_attn.k_proj.bias", &g->k_bias));
    PL_TRY(pl_work_gradient(work, part, "self_attn.v_proj.bias", &g->v_bias));
    PL_TRY(pl_work_gradient(work, part, "self_attn.q_norm.weight", &g->q_norm));
    return pl_work_gradient(work, part, "self_attn.k_norm.weight", &g->k_norm);
}

/* Gradients of q, k and v as projected, in work space. */
typedef struct heads {
    void *q, *k, *v;
} heads;

static pl_status backward_of_output(pl_work *work, const attention *a, const void *dh, void *dout)
{
    pl_gradient weight, bias;
    PL_TRY(pl_work_gradient(work, a->part, "self_attn.o_proj.weight", &weight));
    PL_TRY(pl_work_gradient(work, a->part, "self_attn.o_proj.bias", &bias));
    PL_TRY(pl_work_linear_weights(work, a->out_shape, dh, a->out, weight, bias));
    if (!dout) return PL_OK;
    return pl_work_linear_inputs(work, a->out_shape, dh, a->out_weight, NULL, dout);
}

static pl_status backward_of_heads(pl_work *work, const attention *a, const void *dout,
                                   const gradients *g, heads *d)
{
    const pl_sizes *s = work->sizes;
    void *q = NULL, *k = NULL;
    PL_TRY(turn(work, a, false, &q, &k));
    PL_TRY(pl_work_space(work, query_bytes(s), &d->q));
    PL_TRY(pl_work_space(work, key_bytes(s), &d->k));
    PL_TRY(pl_work_space(work, key_bytes(s), &d->v));
    PL_TRY(PL_DO(work, attention_backward, .q = q, .k = k, .v = a->v, .out = a->out, .dout = dout,
                 .lse = a->lse, .dq = d->q, .dk = d->k, .dv = d->v, .dtype = s->dtype,
                 .sequences = s->sequences, .sequence = s->sequence, .heads = s->heads,
                 .kv_heads = s->kv_heads, .head_dim = s->head_dim, .scale = score_scale(s)));
    PL_TRY(PL_DO(work, head_rotate_backward, .x = a->q, .weight = a->q_norm, .rstd = a->q_rstd,
                 .rotary = work->executor->rotary, .dy = d->q, .dx = d->q,
                 .dweight = g->q_norm.data, .add = g->q_norm.add, .dtype = s->dtype,
                 .rows = s->tokens, .heads = s->heads, .head_dim = s->head_dim,
                 .sequence = s->sequence));
    return PL_DO(work, head_rotate_backward, .x = a->k, .weight = a->k_norm, .rstd = a->k_rstd,
                 .rotary = work->executor->rotary, .dy = d->k, .dx = d->k,
                 .dweight = g->k_norm.data, .add = g->k_norm.add, .dtype = s->dtype,
                 .rows = s->tokens, .heads = s->kv_heads, .head_dim = s->head_dim,
                 .sequence = s->sequence);
}

static pl_status backward_of_projections(pl_work *work, const attention *a, const void *x,
                                         const gradients *g, const heads *d)
{
    void *y = NULL;
    PL_TRY(pl_work_space(work, activation_bytes(work->sizes), &y));
    PL_TRY(normalise(work, a, x, y, NULL));
    PL_TRY(pl_work_linear_weights(work, a->q_shape, d->q, y, g->q, g->q_bias));
    PL_TRY(pl_work_linear_weights(work, a->kv_shape, d->k, y, g->k, g->k_bias));
    return pl_work_linear_weights(work, a->kv_shape, d->v, y, g->v, g->v_bias);
}

static pl_status backward_of_input(pl_work *work, const attention *a, const void *x, const void *dh,
                                   const heads *d, void *dx, pl_gradient norm)
{
    const pl_sizes *s = work->sizes;
    void *dy = NULL;
    PL_TRY(pl_work_space(work, activation_bytes(s), &dy));
    PL_TRY(pl_work_linear_inputs(work, a->q_shape, d->q, a->q_weight, NULL, dy));
    PL_TRY(pl_work_linear_inputs(work, a->kv_shape, d->k, a->k_weight, dy, dy));
    PL_TRY(pl_work_linear_inputs(work, a->kv_shape, d->v, a->v_weight, dy, dy));
    return PL_DO(work, rms_norm_backward, .x = x, .weight = a->norm, .dy = dy, .rstd = a->rstd,
                 .residual = dh, .dx = dx, .dweight = norm.data, .add = norm.add, .dtype = s->dtype,
                 .rows = s->tokens, .cols = s->hidden, .epsilon = epsilon_of(work));
}

static pl_status backward(pl_work *work)
{
    const pl_sizes *s = work->sizes;
    const void *x = NULL, *dh = NULL, *saved = NULL;
    void *dx = NULL, *dout = NULL;
    attention a;
    gradients g;
    heads d;
    PL_TRY(find_attention(work, &a));
    PL_TRY(find_gradients(work, a.part, &g));
    PL_TRY(pl_work_read(work, PL_BUF_INPUT, activation_bytes(s), &x));
    PL_TRY(pl_work_read(work, PL_BUF_SAVE_ATTENTION, saved_bytes(s, &a), &saved));
    PL_TRY(pl_work_read(work, PL_BUF_D_ATTENDED, activation_bytes(s), &dh));
    if (pl_work_find(work, PL_BUF_D_INPUT, PL_USE_WRITE, PL_ANY_PART))
        PL_TRY(pl_work_write(work, PL_BUF_D_INPUT, activation_bytes(s), &dx));
    lay_out(s, &a, (char *)(uintptr_t)saved); /* only read here */
    bool input = dx || g.norm.data;
    bool projections =
        g.q.data || g.k.data || g.v.data || g.q_bias.data || g.k_bias.data || g.v_bias.data;
    bool inside = input || projections || g.q_norm.data || g.k_norm.data;
    if (inside) PL_TRY(pl_work_space(work, query_bytes(s), &dout));
    PL_TRY(backward_of_output(work, &a, dh, dout));
    if (!inside) return PL_OK;
    PL_TRY(backward_of_heads(work, &a, dout, &g, &d));
    if (projections) PL_TRY(backward_of_projections(work, &a, x, &g, &d));
    return input ? backward_of_input(work, &a, x, dh, &d, dx, g.norm) : PL_OK;
}

pl_status pl_do_attention(pl_work *work)
{
    pl_pass pass = (pl_pass)work->entry->name.pass;
    return pass == PL_PASS_FORWARD || pass == PL_PASS_RECOMPUTE ? forward(work) : backward(work);
}
