/* The router and the load-balance loss.
 *
 * save_route: scores [tokens, experts], then the reciprocal norm [tokens]; fp32.
 * route: choices [tokens, chosen], weights (fp32), slots.
 * balance, balance_scores: [MoE layer][micro-batch][set][expert].
 */
#include <inttypes.h>

#include "train/entries_moe.h"

static int64_t activation_bytes(const pl_sizes *s) { return s->tokens * s->hidden * s->element; }

pl_status pl_moe_check(const pl_work *work)
{
    const pl_sizes *s = work->sizes;
    int32_t layer = work->entry->name.layer;
    const pl_parts *parts = &work->executor->map.parts;
    if (s->experts > 0 && layer >= 0 && layer < parts->layer_count && parts->experts[layer] >= 0)
        return PL_OK;
    return PL_FAIL(PL_BAD_INPUT, "the model has no experts in layer %" PRId32, layer);
}

pl_routes pl_moe_routes(const pl_work *work, const void *route)
{
    const pl_sizes *s = work->sizes;
    int64_t count = s->tokens * s->chosen;
    int32_t *numbers = (int32_t *)(uintptr_t)route; /* read only where the entry only reads */
    return (pl_routes){.choices = numbers,
                       .weights = (float *)(void *)(numbers + count),
                       .slots = numbers + 2 * count,
                       .tokens = s->tokens,
                       .experts = s->experts,
                       .chosen = s->chosen,
                       .normalise = work->executor->plan->model.norm_topk_prob};
}

int64_t pl_moe_route_bytes(const pl_sizes *s) { return 12 * s->tokens * s->chosen; }

static int64_t saved_bytes(const pl_sizes *s) { return 4 * s->tokens * (s->experts + 1); }

static double epsilon_of(const pl_work *work) { return work->executor->plan->model.rms_norm_eps; }

/* Elements before this layer and micro-batch in the buffers of the balance loss. */
static pl_status balance_offset(const pl_work *work, int64_t *out)
{
    const pl_sizes *s = work->sizes;
    const pl_entry_name *name = &work->entry->name;
    int64_t layers = 0;
    for (int32_t i = 0; i < name->layer; ++i) layers += work->executor->plan->model.layer_is_moe[i];
    if (name->micro_batch < 0 || name->micro_batch >= s->micro_batches)
        return PL_FAIL(PL_BAD_INPUT, "a round has %" PRId64 " micro-batches", s->micro_batches);
    *out = (layers * s->micro_batches + name->micro_batch) * s->sets * s->experts;
    return PL_OK;
}

static int64_t balance_elements(const pl_sizes *s)
{
    return s->moe_layers * s->micro_batches * s->sets * s->experts;
}

/* --- forward --- */

/* Where this micro-batch counts for the balance loss, if it does. The first to count begins the
 * buffers for all, with zeroes. */
static pl_status find_balance(pl_work *work, pl_route_arguments *a)
{
    static const pl_buffer_kind kinds[2] = {PL_BUF_BALANCE, PL_BUF_BALANCE_SCORES};
    const pl_sizes *s = work->sizes;
    void *memory[2] = {NULL, NULL};
    int64_t offset = 0;
    for (int i = 0; i < 2; ++i) {
        const pl_use *use = pl_work_find(work, kinds[i], PL_USE_WRITE, PL_ANY_PART);
        int64_t bytes = balance_elements(s) * (i == 0 ? 8 : 4);
        if (!use) continue;
        PL_TRY(balance_offset(work, &offset));
        PL_TRY(pl_work_use(work, use, bytes, &memory[i]));
        if (use->flags & PL_USE_BEGIN)
            PL_TRY(work->device->functions->fill(work->device, work->stream, memory[i], 0, bytes));
    }
    if (!memory[0] != !memory[1])
        return PL_FAIL(PL_BAD_INPUT, "'balance' and 'balance_scores' are written together");
    if (!memory[0]) return PL_OK;
    a->balance_counts = (int64_t *)memory[0] + offset;
    a->balance_scores = (float *)memory[1] + offset;
    a->sets = s->sets;
    return PL_OK;
}

/* The router's product in fp32, whatever the compute type: scores are softmax'ed in place. */
static pl_status make_logits(pl_work *work, int32_t part, const void *y, float *logits)
{
    const pl_sizes *s = work->sizes;
    const void *weight = NULL;
    PL_TRY(pl_work_weight(work, part, "mlp.gate.weight", &weight));
    return PL_DO(work, product, .a = y, .b = weight, .c = logits, .dtype = s->dtype,
                 .c_dtype = PL_FP32, .m = s->tokens, .n = s->experts, .k = s->hidden,
                 .transpose_b = true);
}

/* Forward chooses; recompute makes scores again and leaves the choices where they are. */
static pl_status choose(pl_work *work, int32_t part, const void *y, float *scores)
{
    const pl_sizes *s = work->sizes;
    bool forward = work->entry->name.pass == PL_PASS_FORWARD;
    pl_route_arguments a = {.logits = scores, .scores = scores, .sets = 1};
    void *route = NULL, *counts = NULL;
    if (forward)
        PL_TRY(pl_work_write(work, PL_BUF_ROUTE, pl_moe_route_bytes(s), &route));
    else
        PL_TRY(pl_work_space(work, pl_moe_route_bytes(s), &route));
    if (forward && pl_work_find(work, PL_BUF_COUNTS, PL_USE_WRITE, PL_ANY_PART))
        PL_TRY(pl_work_write(work, PL_BUF_COUNTS, 8 * s->experts, &counts));
    a.routes = pl_moe_routes(work, route);
    a.counts = counts;
    a.balanced = work->executor->plan->settings.policy.routing == PL_ROUTING_BALANCED;
    if (forward) PL_TRY(find_balance(work, &a));
    PL_TRY(make_logits(work, part, y, scores));
    if (!work->device->operations->route) return pl_work_lacks("route");
    return work->device->operations->route(work->device, work->stream, &a);
}

static pl_status route_forward(pl_work *work, int32_t part)
{
    const pl_sizes *s = work->sizes;
    const void *h = NULL, *norm = NULL;
    void *y = NULL, *saved = NULL;
    bool forward = work->entry->name.pass == PL_PASS_FORWARD;
    bool saves = pl_work_find(work, PL_BUF_SAVE_ROUTE, PL_USE_WRITE, PL_ANY_PART) != NULL;
    PL_TRY(pl_work_weight(work, part, "post_attention_layernorm.weight", &norm));
    PL_TRY(pl_work_read(work, PL_BUF_ATTENDED, activation_bytes(s), &h));
    PL_TRY(pl_work_write(work, PL_BUF_NORMED, activation_bytes(s), &y));
    if (saves)
        PL_TRY(pl_work_write(work, PL_BUF_SAVE_ROUTE, saved_bytes(s), &saved));
    else
        PL_TRY(pl_work_space(work, saved_bytes(s), &saved));
    float *scores = saved;
    PL_TRY(PL_DO(work, rms_norm, .x = h, .weight = norm, .y = y,
                 .rstd = scores + s->tokens * s->experts, .dtype = s->dtype, .rows = s->tokens,
                 .cols = s->hidden, .epsilon = epsilon_of(work)));
    return forward || saves ? choose(work, part, y, scores) : PL_OK;
}

/* --- backward --- */

/* Tokens of all ranks in one micro-batch: what the mean of the scores is over, in every form; in
 * the sequence form that makes the mean over the sequences of the sequences' means. */
static double step_tokens(const pl_sizes *s) { return (double)s->tokens * (double)s->stage_ranks; }

static pl_status add_balance(const pl_work *work, pl_route_backward_arguments *a)
{
    const pl_sizes *s = work->sizes;
    const pl_settings *settings = &work->executor->plan->settings;
    const pl_entry *entry = work->entry;
    const void *counts = NULL, *token_count = NULL;
    int64_t offset = 0;
    if (!pl_work_find(work, PL_BUF_BALANCE, PL_USE_READ, PL_ANY_PART)) return PL_OK;
    PL_TRY(balance_offset(work, &offset));
    PL_TRY(pl_work_read(work, PL_BUF_BALANCE, 8 * balance_elements(s), &counts));
    if (entry->scale.tokens < 0)
        return PL_FAIL(PL_BAD_INPUT, "the load-balance loss enters times T or a number, not 1/T");
    if (entry->scale.tokens > 0) PL_TRY(pl_work_read(work, PL_BUF_TOKEN_COUNT, 8, &token_count));
    a->balance_counts = (const int64_t *)counts + offset;
    a->token_count = token_count;
    a->balance_factor = settings->balance_coefficient * (double)entry->scale.numerator /
                        (double)entry->scale.denominator;
    a->balance_score_tokens = step_tokens(s);
    a->sets = s->sets;
    a->balance_count_tokens = step_tokens(s);
    if (settings->balance == PL_BALANCE_SEQUENCE) a->balance_count_tokens = (double)s->sequence;
    if (settings->balance == PL_BALANCE_GLOBAL_BATCH)
        a->balance_count_tokens *=
            (double)(entry->name.round * s->micro_batches + entry->name.micro_batch + 1);
    return PL_OK;
}

/* dlogits [tokens, experts] in the compute type. */
static pl_status backward_of_choice(pl_work *work, const float *scores, void **out)
{
    const pl_sizes *s = work->sizes;
    int64_t count = s->tokens * s->experts;
    const void *route = NULL, *dweights = NULL;
    void *dlogits = NULL;
    PL_TRY(pl_work_read(work, PL_BUF_ROUTE, pl_moe_route_bytes(s), &route));
    PL_TRY(pl_work_read(work, PL_BUF_D_ROUTE, 4 * s->tokens * s->chosen, &dweights));
    PL_TRY(pl_work_space(work, 4 * count, &dlogits));
    pl_route_backward_arguments a = {.scores = scores,
                                     .routes = pl_moe_routes(work, route),
                                     .dweights = dweights,
                                     .dlogits = dlogits,
                                     .sets = 1};
    PL_TRY(add_balance(work, &a));
    if (!work->device->operations->route_backward) return pl_work_lacks("route_backward");
    PL_TRY(work->device->operations->route_backward(work->device, work->stream, &a));
    *out = dlogits;
    if (s->dtype == PL_FP32) return PL_OK;
    PL_TRY(pl_work_space(work, count * s->element, out));
    return PL_DO(work, cast, .from = dlogits, .to = *out, .from_dtype = PL_FP32,
                 .to_dtype = s->dtype, .count = count);
}

static pl_status route_backward(pl_work *work, int32_t part)
{
    const pl_sizes *s = work->sizes;
    const pl_linear shape = {s->tokens, s->hidden, s->experts};
    const void *h = NULL, *y = NULL, *dy = NULL, *saved = NULL, *norm = NULL, *weight = NULL;
    void *dlogits = NULL, *dnormed = NULL, *dh = NULL;
    pl_gradient weight_gradient, norm_gradient;
    PL_TRY(pl_work_read(work, PL_BUF_ATTENDED, activation_bytes(s), &h));
    PL_TRY(pl_work_read(work, PL_BUF_NORMED, activation_bytes(s), &y));
    PL_TRY(pl_work_read(work, PL_BUF_D_NORMED, activation_bytes(s), &dy));
    PL_TRY(pl_work_read(work, PL_BUF_SAVE_ROUTE, saved_bytes(s), &saved));
    if (pl_work_find(work, PL_BUF_D_ATTENDED, PL_USE_WRITE, PL_ANY_PART))
        PL_TRY(pl_work_update(work, PL_BUF_D_ATTENDED, activation_bytes(s), &dh));
    PL_TRY(pl_work_weight(work, part, "post_attention_layernorm.weight", &norm));
    PL_TRY(pl_work_weight(work, part, "mlp.gate.weight", &weight));
    PL_TRY(backward_of_choice(work, saved, &dlogits));
    PL_TRY(pl_work_gradient(work, part, "mlp.gate.weight", &weight_gradient));
    PL_TRY(pl_work_linear_weights(work, shape, dlogits, y, weight_gradient, (pl_gradient){0}));
    PL_TRY(pl_work_gradient(work, part, "post_attention_layernorm.weight", &norm_gradient));
    if (!dh && !norm_gradient.data) return PL_OK;
    PL_TRY(pl_work_space(work, activation_bytes(s), &dnormed));
    PL_TRY(pl_work_linear_inputs(work, shape, dlogits, weight, dy, dnormed));
    return PL_DO(work, rms_norm_backward, .x = h, .weight = norm, .dy = dnormed,
                 .rstd = (const float *)saved + s->tokens * s->experts, .residual = dh, .dx = dh,
                 .dweight = norm_gradient.data, .add = norm_gradient.add, .dtype = s->dtype,
                 .rows = s->tokens, .cols = s->hidden, .epsilon = epsilon_of(work));
}

pl_status pl_do_route(pl_work *work)
{
    pl_pass pass = (pl_pass)work->entry->name.pass;
    int32_t part = -1;
    PL_TRY(pl_moe_check(work));
    PL_TRY(pl_work_part(work, &part));
    if (pass == PL_PASS_FORWARD || pass == PL_PASS_RECOMPUTE) return route_forward(work, part);
    return route_backward(work, part);
}

/* --- the loss --- */

/* Each rank adds what its own scores come to; loss_sum is reduced at the end of the step. */
pl_status pl_do_balance(pl_work *work)
{
    const pl_sizes *s = work->sizes;
    const pl_entry *entry = work->entry;
    pl_balance form = work->executor->plan->settings.balance;
    const pl_use *total = pl_work_find(work, PL_BUF_BALANCE_TOTAL, PL_USE_WRITE, PL_ANY_PART);
    void *counts = NULL, *running = NULL, *sums = NULL;
    const void *scores = NULL;
    PL_TRY(pl_work_update(work, PL_BUF_BALANCE, 8 * balance_elements(s), &counts));
    PL_TRY(pl_work_read(work, PL_BUF_BALANCE_SCORES, 4 * balance_elements(s), &scores));
    PL_TRY(pl_work_update(work, PL_BUF_LOSS_SUM, 16, &sums));
    if (total) PL_TRY(pl_work_use(work, total, 8 * s->moe_layers * s->experts, &running));
    double steps = (double)s->rounds * (double)s->micro_batches;
    double factor = (double)entry->scale.numerator / (double)entry->scale.denominator / steps;
    double tokens = step_tokens(s);
    if (form == PL_BALANCE_SEQUENCE) {
        factor /= (double)s->sequences * (double)s->stage_ranks;
        tokens = (double)s->sequence;
    }
    return PL_DO(work, balance, .counts = counts, .scores = scores, .running = running,
                 .running_begins = total && (total->flags & PL_USE_BEGIN), .loss_sums = sums,
                 .layers = s->moe_layers, .micro_batches = s->micro_batches, .sets = s->sets,
                 .experts = s->experts, .chosen = s->chosen, .tokens = tokens,
                 .running_tokens = tokens * (double)s->micro_batches *
                                   (double)(entry->name.round < 0 ? 0 : entry->name.round),
                 .factor = factor);
}
