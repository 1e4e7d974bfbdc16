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

static void forward_ends(pl_builder *builder)
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
        for (int32_t mb = s.first; mb < s.end; ++mb) pl_emit_loss(builder, mb);
        pl_builder_done(builder, parts->head, PL_PASS_FORWARD);
    }
}

static void forward(pl_builder *builder)
{
    const pl_parts *parts = &builder->facts->parts;
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
    forward_ends(builder);
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

void pl_emit_step(pl_builder *builder)
{
    pl_emit_batch(builder);
    /* After a failure, the rest of a million rounds would only take time. */
    for (int32_t round = 0; round < builder->facts->rounds && builder->status == PL_OK; ++round) {
        builder->round = round;
        builder->call = 0;
        pl_emit_batch(builder);
        forward(builder);
        pl_emit_balance(builder);
        backward(builder);
    }
    builder->round = -1;
    pl_emit_update(builder);
    pl_emit_control(builder);
}

/* --- start --- */

static pl_entry *open_start(pl_builder *builder, pl_operation operation, const pl_part *part,
                            int32_t ordinal, pl_stream stream)
{
    pl_entry_name name =
        pl_builder_name(builder, operation, part->subject, part->layer, -1, PL_PASS_NONE);
    name.ordinal = ordinal;
    return pl_builder_open(builder, name, stream);
}

static void zero_moments(pl_builder *builder, int32_t part, int32_t ordinal, pl_buffer_kind m,
                         pl_buffer_kind v)
{
    if (builder->facts->settings->optimizer != PL_OPTIMIZER_ADAMW) return;
    open_start(builder, PL_OP_ZERO, &builder->facts->parts.part[part], ordinal, PL_STREAM_COMPUTE);
    pl_builder_begin(builder, pl_builder_buffer(builder, m, part, -1));
    pl_builder_begin(builder, pl_builder_buffer(builder, v, part, -1));
    pl_builder_close(builder);
}

/* Host values to the device: into masters where they stand apart, and into the parameters
 * themselves for what has no master (frozen tensors, fp32 on the wire). */
static void start_sharded(pl_builder *builder, int32_t number)
{
    const pl_plan_facts *facts = builder->facts;
    const pl_part *part = &facts->parts.part[number];
    bool masters = facts->masters && part->trained_elements > 0;
    bool direct = !facts->masters || part->frozen_elements > 0;
    uint32_t initial = pl_builder_buffer(builder, PL_BUF_INITIAL, number, -1);
    uint32_t parameter = pl_builder_buffer(builder, PL_BUF_PARAMETER, number, -1);
    pl_entry *entry = open_start(builder, PL_OP_INITIALIZE, part, 0, PL_STREAM_HOST);
    if (part->trained_elements > 0)
        entry->elements += pl_builder_local_elements(builder, number, false);
    if (part->frozen_elements > 0)
        entry->elements += pl_builder_local_elements(builder, number, true);
    pl_builder_begin(builder, initial);
    pl_builder_close(builder);
    open_start(builder, PL_OP_COPY, part, 0, PL_STREAM_COPY);
    pl_builder_read_last(builder, initial, true);
    if (masters) pl_builder_begin(builder, pl_builder_buffer(builder, PL_BUF_MASTER, number, -1));
    if (direct) pl_builder_begin(builder, parameter);
    pl_builder_close(builder);
    if (masters) {
        open_start(builder, PL_OP_CAST, part, 0, PL_STREAM_COMPUTE);
        pl_builder_read(builder, pl_builder_buffer(builder, PL_BUF_MASTER, number, -1));
        pl_builder_add_into(builder, parameter);
        pl_builder_close(builder);
    }
    if (part->trained_elements > 0) zero_moments(builder, number, 0, PL_BUF_ADAM_M, PL_BUF_ADAM_V);
}

static void start_ignored(pl_builder *builder, int32_t number)
{
    const pl_part *part = &builder->facts->parts.part[number];
    uint32_t initial = pl_builder_buffer(builder, PL_BUF_INITIAL_IGNORED, number, -1);
    pl_entry *entry = open_start(builder, PL_OP_INITIALIZE, part, 1, PL_STREAM_HOST);
    entry->elements = part->ignored_elements + part->ignored_frozen_elements;
    pl_builder_begin(builder, initial);
    pl_builder_close(builder);
    open_start(builder, PL_OP_COPY, part, 1, PL_STREAM_COPY);
    pl_builder_read_last(builder, initial, true);
    pl_builder_begin(builder, pl_builder_buffer(builder, PL_BUF_IGNORED, number, -1));
    pl_builder_close(builder);
    if (part->ignored_elements > 0)
        zero_moments(builder, number, 1, PL_BUF_IGNORED_M, PL_BUF_IGNORED_V);
}

void pl_emit_start(pl_builder *builder)
{
    const pl_parts *parts = &builder->facts->parts;
    for (int32_t i = 0; i < parts->part_count; ++i) {
        const pl_part *part = &parts->part[i];
        if (part->trained_elements + part->frozen_elements > 0) start_sharded(builder, i);
        if (part->ignored_elements + part->ignored_frozen_elements > 0) start_ignored(builder, i);
    }
    pl_emit_control(builder);
}
