/* Programs: the order in which modules pass over layers, micro-batches and rounds.
 *
 * M micro-batches are carried through every layer together: within a MoE layer all of them are
 * routed and sent before the first is computed, so that an exchange hides behind the computation
 * of another micro-batch. Under per-call resharding they go one after another.
 */
#include "common/plan_builder.h"

/* First and one past the last micro-batch of group GROUP, and what units are called with. */
typedef struct span {
    int32_t first, end, call;
} span;

static int32_t span_count(const pl_builder *builder)
{
    bool per_call = builder->facts->settings->policy.reshard == PL_RESHARD_PER_CALL;
    return per_call ? builder->facts->micro_batches : 1;
}

static span span_number(const pl_builder *builder, int32_t number)
{
    if (span_count(builder) > 1 || builder->facts->settings->policy.reshard == PL_RESHARD_PER_CALL)
        return (span){number, number + 1, number};
    return (span){0, builder->facts->micro_batches, -1};
}

/* --- forward --- */

static void forward_layer(pl_builder *builder, int32_t layer, span s)
{
    const pl_parts *parts = &builder->facts->parts;
    int32_t dense = parts->layer[layer], experts = parts->experts[layer];
    bool moe = builder->facts->layer[layer].moe;
    bool together = moe && parts->part[dense].unit == parts->part[experts].unit;
    pl_builder_need(builder, dense, PL_PASS_FORWARD, s.call, 0);
    for (int32_t mb = s.first; mb < s.end; ++mb) {
        pl_emit_attention(builder, layer, mb, PL_PASS_FORWARD);
        if (moe)
            pl_emit_moe_send(builder, layer, mb, PL_PASS_FORWARD);
        else
            pl_emit_dense_mlp(builder, layer, mb, PL_PASS_FORWARD);
    }
    if (!together) pl_builder_done(builder, dense, PL_PASS_FORWARD);
    if (!moe) return;
    pl_builder_need(builder, experts, PL_PASS_FORWARD, s.call, 0);
    for (int32_t mb = s.first; mb < s.end; ++mb)
        pl_emit_moe_compute(builder, layer, mb, PL_PASS_FORWARD);
    pl_builder_done(builder, experts, PL_PASS_FORWARD);
}

/* What the head is for: losses, or the logits of one position. */
typedef void (*head_emitter)(pl_builder *builder, int32_t micro_batch);

static void forward_ends(pl_builder *builder, head_emitter emit_head)
{
    const pl_parts *parts = &builder->facts->parts;
    bool tied = parts->head == parts->embedding;
    for (int32_t i = 0; i < span_count(builder); ++i) {
        span s = span_number(builder, i);
        pl_builder_need(builder, parts->norm, PL_PASS_FORWARD, s.call, 0);
        for (int32_t mb = s.first; mb < s.end; ++mb)
            pl_emit_final_norm(builder, mb, PL_PASS_FORWARD);
        pl_builder_done(builder, parts->norm, PL_PASS_FORWARD);
    }
    for (int32_t i = 0; i < span_count(builder); ++i) {
        span s = span_number(builder, i);
        pl_builder_need(builder, parts->head, PL_PASS_FORWARD, s.call, tied);
        for (int32_t mb = s.first; mb < s.end; ++mb) emit_head(builder, mb);
        pl_builder_done(builder, parts->head, PL_PASS_FORWARD);
    }
}

static void forward(pl_builder *builder, int32_t round, head_emitter emit_head)
{
    const pl_parts *parts = &builder->facts->parts;
    builder->round = round;
    builder->call = 0;
    pl_emit_copy_batch(builder, emit_head == pl_emit_loss);
    for (int32_t i = 0; i < span_count(builder); ++i) {
        span s = span_number(builder, i);
        pl_builder_need(builder, parts->embedding, PL_PASS_FORWARD, s.call, 0);
        for (int32_t mb = s.first; mb < s.end; ++mb)
            pl_emit_embedding(builder, mb, PL_PASS_FORWARD);
        pl_builder_done(builder, parts->embedding, PL_PASS_FORWARD);
    }
    for (int32_t layer = 0; layer < parts->layer_count; ++layer)
        for (int32_t i = 0; i < span_count(builder); ++i)
            forward_layer(builder, layer, span_number(builder, i));
    forward_ends(builder, emit_head);
}

/* --- backward --- */

static void backward_dense_layer(pl_builder *builder, int32_t layer, span s)
{
    int32_t part = builder->facts->parts.layer[layer];
    pl_builder_need(builder, part, PL_PASS_BACKWARD, s.call, 0);
    for (int32_t mb = s.first; mb < s.end; ++mb) {
        if (builder->facts->layer[layer].recompute) {
            pl_emit_attention(builder, layer, mb, PL_PASS_RECOMPUTE);
            pl_emit_dense_mlp(builder, layer, mb, PL_PASS_RECOMPUTE);
        }
        pl_emit_dense_mlp(builder, layer, mb, PL_PASS_BACKWARD);
        pl_emit_attention(builder, layer, mb, PL_PASS_BACKWARD);
    }
    pl_builder_done(builder, part, PL_PASS_BACKWARD);
}

static void recompute_moe_layer(pl_builder *builder, int32_t layer, span s)
{
    const pl_parts *parts = &builder->facts->parts;
    pl_builder_need(builder, parts->layer[layer], PL_PASS_BACKWARD, s.call, 0);
    for (int32_t mb = s.first; mb < s.end; ++mb) {
        pl_emit_attention(builder, layer, mb, PL_PASS_RECOMPUTE);
        pl_emit_moe_send(builder, layer, mb, PL_PASS_RECOMPUTE);
    }
    pl_builder_need(builder, parts->experts[layer], PL_PASS_BACKWARD, s.call, 0);
    for (int32_t mb = s.first; mb < s.end; ++mb)
        pl_emit_moe_compute(builder, layer, mb, PL_PASS_RECOMPUTE);
}

static void backward_moe_layer(pl_builder *builder, int32_t layer, span s)
{
    const pl_parts *parts = &builder->facts->parts;
    const pl_layer_facts *facts = &builder->facts->layer[layer];
    int32_t dense = parts->layer[layer], experts = parts->experts[layer];
    bool together = parts->part[dense].unit == parts->part[experts].unit;
    if (facts->recompute)
        recompute_moe_layer(builder, layer, s);
    else
        pl_builder_need(builder, experts, PL_PASS_BACKWARD, s.call, 0);
    for (int32_t mb = s.first; mb < s.end; ++mb) pl_emit_moe_merge_backward(builder, layer, mb);
    for (int32_t mb = s.first; mb < s.end; ++mb) pl_emit_moe_experts_backward(builder, layer, mb);
    if (!together) pl_builder_done(builder, experts, PL_PASS_BACKWARD);
    for (int32_t mb = s.first; mb < s.end; ++mb) pl_emit_moe_experts_weights(builder, layer, mb);
    if (!together && s.end == builder->facts->micro_batches) pl_builder_reduce(builder, experts);
    if (facts->feed_backward && !facts->recompute)
        pl_builder_need(builder, dense, PL_PASS_BACKWARD, s.call, 0);
    for (int32_t mb = s.first; mb < s.end; ++mb) {
        pl_emit_moe_route_backward(builder, layer, mb);
        pl_emit_attention(builder, layer, mb, PL_PASS_BACKWARD);
    }
    pl_builder_done(builder, dense, PL_PASS_BACKWARD);
}

static void backward_layers(pl_builder *builder)
{
    const pl_plan_facts *facts = builder->facts;
    for (int32_t layer = facts->parts.layer_count - 1; layer >= 0; --layer) {
        if (!facts->layer[layer].backward) return;
        for (int32_t i = 0; i < span_count(builder); ++i) {
            span s = span_number(builder, i);
            if (facts->layer[layer].moe)
                backward_moe_layer(builder, layer, s);
            else
                backward_dense_layer(builder, layer, s);
        }
        pl_builder_reduce(builder, facts->parts.layer[layer]);
    }
}

static void backward_norm(pl_builder *builder)
{
    const pl_parts *parts = &builder->facts->parts;
    for (int32_t i = 0; i < span_count(builder); ++i) {
        span s = span_number(builder, i);
        pl_builder_need(builder, parts->norm, PL_PASS_BACKWARD, s.call, 0);
        for (int32_t mb = s.first; mb < s.end; ++mb)
            pl_emit_final_norm(builder, mb, PL_PASS_BACKWARD);
        pl_builder_done(builder, parts->norm, PL_PASS_BACKWARD);
    }
    pl_builder_reduce(builder, parts->norm);
}

static void backward(pl_builder *builder)
{
    const pl_plan_facts *facts = builder->facts;
    const pl_parts *parts = &facts->parts;
    bool tied = parts->head == parts->embedding;
    bool embedding = pl_part_trained(&parts->part[parts->embedding], PL_MODULE_FIRST);
    bool layers = facts->layer[parts->layer_count - 1].backward;
    if (!tied) pl_builder_reduce(builder, parts->head);
    if (layers || pl_part_trained(&parts->part[parts->norm], PL_MODULE_FIRST))
        backward_norm(builder);
    backward_layers(builder);
    for (int32_t mb = 0; mb < facts->micro_batches && embedding; ++mb)
        pl_emit_embedding(builder, mb, PL_PASS_BACKWARD);
    pl_builder_reduce(builder, parts->embedding);
}

/* --- whole programs --- */

void pl_emit_step(pl_builder *builder)
{
    pl_emit_load_batch(builder);
    pl_emit_token_count(builder);
    /* After a failure, the rest of a million rounds would only take time. */
    for (int32_t round = 0; round < builder->facts->rounds && builder->status == PL_OK; ++round) {
        forward(builder, round, pl_emit_loss);
        pl_emit_balance(builder);
        backward(builder);
    }
    builder->round = -1;
    pl_emit_update(builder);
    pl_emit_loss_sum(builder);
    pl_emit_control(builder);
}

/* One round of what a step reads, forward only. */
void pl_emit_evaluate(pl_builder *builder)
{
    pl_emit_load_batch(builder);
    pl_emit_token_count(builder);
    forward(builder, 0, pl_emit_loss);
    builder->round = -1;
    pl_emit_loss_sum(builder);
    pl_emit_control(builder);
}

void pl_emit_generate(pl_builder *builder)
{
    pl_emit_load_batch(builder);
    forward(builder, 0, pl_emit_logits);
    builder->round = -1;
    pl_emit_control(builder);
}
