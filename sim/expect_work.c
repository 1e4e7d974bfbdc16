/* What each entry of a program must be, from model, layout and settings alone.
 *
 * A name is looked up: does such an entry belong here, on which stream, in which group, and what
 * must it read and write? Nothing is emitted; the order of entries is other proofs' concern.
 */
#include <string.h>

#include "sim/proof.h"

/* The question being answered. */
typedef struct query {
    const pl_sim_world *world;
    const pl_settings *settings;
    const pl_expected_parts *parts;
    const pl_entry_name *name;
    pl_expected_entry *out;
    int32_t layer, mb;
    bool exchanges, all_to_all;
} query;

/* --- questions about modules --- */

bool pl_expect_moe(const pl_sim_world *world, int32_t layer)
{
    return world->parts.experts[layer].exists;
}

/* Places of modules in forward order, as said at pl_expected_parts. */
static int32_t attention_place(int32_t layer) { return 3 * layer + 1; }
static int32_t feed_place(int32_t layer) { return 3 * layer + 2; }
static int32_t experts_place(int32_t layer) { return 3 * layer + 3; }
static int32_t norm_place(const query *q) { return 3 * q->parts->layers + 1; }

/* A module at PLACE runs backward when it or something before it trains. */
static bool backward_at(const query *q, int32_t place) { return q->parts->first_trained <= place; }

static bool layer_backward(const query *q, int32_t layer)
{
    return backward_at(q,
                       pl_expect_moe(q->world, layer) ? experts_place(layer) : feed_place(layer));
}

static bool recomputes(const query *q, int32_t layer)
{
    return q->settings->policy.recompute == PL_RECOMPUTE_FULL && layer + 1 < q->parts->layers &&
           layer_backward(q, layer);
}

bool pl_expect_recompute(const pl_sim_world *world, int32_t layer)
{
    query q = {.world = world, .settings = &world->plan->settings, .parts = &world->parts};
    return recomputes(&q, layer);
}

static bool trains_first(const pl_expected_part *part)
{
    return part->sharded_attention || part->whole_attention;
}

static bool trains_feed(const pl_expected_part *part)
{
    return part->sharded_feed || part->whole_feed;
}

static bool balance_counts(const query *q)
{
    bool moe = false;
    for (int32_t i = 0; i < q->parts->layers; ++i) moe |= pl_expect_moe(q->world, i);
    return moe && q->settings->balance != PL_BALANCE_NONE && q->settings->balance_coefficient > 0;
}

/* --- building the answer --- */

static void add(pl_expected_use *list, int *count, pl_buffer_kind kind, pl_subject subject,
                int32_t layer, int32_t mb)
{
    if (*count == PL_EXPECTED_USES) return;
    list[(*count)++] = (pl_expected_use){(uint8_t)kind, (uint8_t)subject, layer, mb};
}

static void reads(const query *q, pl_buffer_kind kind)
{
    add(q->out->read, &q->out->reads, kind, 0, q->layer, q->mb);
}

static void writes(const query *q, pl_buffer_kind kind)
{
    add(q->out->write, &q->out->writes, kind, 0, q->layer, q->mb);
}

static void reads_input_of(const query *q, pl_buffer_kind kind, int32_t layer)
{
    add(q->out->read, &q->out->reads, kind, 0, layer, q->mb);
}

static void reads_one(const query *q, pl_buffer_kind kind)
{
    add(q->out->read, &q->out->reads, kind, 0, -1, -1);
}

static void writes_one(const query *q, pl_buffer_kind kind)
{
    add(q->out->write, &q->out->writes, kind, 0, -1, -1);
}

static void reads_part(const query *q, pl_subject subject, int32_t layer, pl_buffer_kind kind)
{
    add(q->out->read, &q->out->reads, kind, subject, layer, -1);
}

static void writes_part(const query *q, pl_subject subject, int32_t layer, pl_buffer_kind kind)
{
    add(q->out->write, &q->out->writes, kind, subject, layer, -1);
}

/* A module computes with the gathered copy, or with the shard where the shard is all. */
static void reads_parameters(const query *q, pl_subject subject, int32_t layer)
{
    const pl_expected_part *part = pl_expected_part_of(q->parts, subject, layer);
    bool gathered = part->shards > 1 || part->cast;
    if (part->trained + part->frozen > 0)
        reads_part(q, subject, layer, gathered ? PL_BUF_FULL : PL_BUF_PARAMETER);
    if (part->whole + part->whole_frozen > 0) reads_part(q, subject, layer, PL_BUF_IGNORED);
}

static void writes_gradients(const query *q, pl_subject subject, int32_t layer, bool sharded,
                             bool whole)
{
    const pl_expected_part *part = pl_expected_part_of(q->parts, subject, layer);
    if (sharded)
        writes_part(q, subject, layer, part->shards > 1 ? PL_BUF_GRADIENT_SUM : PL_BUF_GRADIENT);
    if (whole) writes_part(q, subject, layer, PL_BUF_IGNORED_GRADIENT);
}

static void on(const query *q, pl_stream stream)
{
    q->out->wanted = true;
    q->out->stream = stream;
}

static void among(const query *q, pl_group_role role, pl_reduction reduction, pl_dtype wire)
{
    on(q, PL_STREAM_COMMUNICATION);
    q->out->group = role;
    q->out->reduction = reduction;
    q->out->wire = wire;
}

static bool pass_is(const query *q, pl_pass pass) { return q->name->pass == pass; }

/* Forward, and recompute where there is one. */
static bool pass_forwards(const query *q)
{
    return pass_is(q, PL_PASS_FORWARD) ||
           (pass_is(q, PL_PASS_RECOMPUTE) && recomputes(q, q->layer));
}

/* Whether what backward needs is saved by this forward pass. */
static bool saves(const query *q)
{
    return layer_backward(q, q->layer) &&
           (pass_is(q, PL_PASS_RECOMPUTE) || !recomputes(q, q->layer));
}

/* The pass that an entry with these gradients must carry. */
static bool backward_is(const query *q, bool inputs, bool weights)
{
    if (inputs && weights) return pass_is(q, PL_PASS_BACKWARD);
    if (inputs) return pass_is(q, PL_PASS_BACKWARD_INPUTS);
    return weights && pass_is(q, PL_PASS_BACKWARD_WEIGHTS);
}

/* --- dense modules --- */

static void expect_embed(const query *q)
{
    if (pass_is(q, PL_PASS_FORWARD)) {
        on(q, PL_STREAM_COMPUTE);
        reads_parameters(q, PL_SUBJECT_EMBEDDING, -1);
        add(q->out->read, &q->out->reads, PL_BUF_TOKENS, 0, -1, q->mb);
        add(q->out->write, &q->out->writes, PL_BUF_INPUT, 0, 0, q->mb);
    } else if (pass_is(q, PL_PASS_BACKWARD_WEIGHTS) && trains_first(&q->parts->embedding)) {
        on(q, PL_STREAM_COMPUTE);
        add(q->out->read, &q->out->reads, PL_BUF_TOKENS, 0, -1, q->mb);
        reads_input_of(q, PL_BUF_D_INPUT, 0);
        writes_gradients(q, PL_SUBJECT_EMBEDDING, -1, q->parts->embedding.sharded_attention,
                         q->parts->embedding.whole_attention);
    }
}

static void expect_attention(const query *q)
{
    const pl_expected_part *part = &q->parts->layer[q->layer];
    bool runs_back = backward_at(q, attention_place(q->layer));
    bool below = backward_at(q, experts_place(q->layer - 1));
    if (pass_forwards(q)) {
        on(q, PL_STREAM_COMPUTE);
        reads_parameters(q, PL_SUBJECT_LAYER, q->layer);
        reads(q, PL_BUF_INPUT);
        writes(q, PL_BUF_ATTENDED);
        if (saves(q) && runs_back) writes(q, PL_BUF_SAVE_ATTENTION);
    } else if (runs_back && backward_is(q, below, trains_first(part))) {
        on(q, PL_STREAM_COMPUTE);
        reads_parameters(q, PL_SUBJECT_LAYER, q->layer);
        reads(q, PL_BUF_INPUT);
        reads(q, PL_BUF_SAVE_ATTENTION);
        reads(q, PL_BUF_D_ATTENDED);
        if (below) writes(q, PL_BUF_D_INPUT);
        writes_gradients(q, PL_SUBJECT_LAYER, q->layer, part->sharded_attention,
                         part->whole_attention);
    }
}

static void expect_mlp(const query *q)
{
    const pl_expected_part *part = &q->parts->layer[q->layer];
    bool inputs = backward_at(q, attention_place(q->layer));
    if (pl_expect_moe(q->world, q->layer)) return;
    if (pass_forwards(q)) {
        on(q, PL_STREAM_COMPUTE);
        reads_parameters(q, PL_SUBJECT_LAYER, q->layer);
        reads(q, PL_BUF_ATTENDED);
        if (pass_is(q, PL_PASS_FORWARD))
            add(q->out->write, &q->out->writes, PL_BUF_INPUT, 0, q->layer + 1, q->mb);
        if (saves(q)) writes(q, PL_BUF_SAVE_MLP);
    } else if (layer_backward(q, q->layer) && backward_is(q, inputs, trains_feed(part))) {
        on(q, PL_STREAM_COMPUTE);
        reads_parameters(q, PL_SUBJECT_LAYER, q->layer);
        reads(q, PL_BUF_ATTENDED);
        reads(q, PL_BUF_SAVE_MLP);
        reads_input_of(q, PL_BUF_D_INPUT, q->layer + 1);
        if (inputs) writes(q, PL_BUF_D_ATTENDED);
        writes_gradients(q, PL_SUBJECT_LAYER, q->layer, part->sharded_feed, part->whole_feed);
    }
}

static void expect_final_norm(const query *q)
{
    const pl_expected_part *part = &q->parts->norm;
    bool inputs = backward_at(q, norm_place(q) - 1);
    if (pass_is(q, PL_PASS_FORWARD)) {
        on(q, PL_STREAM_COMPUTE);
        reads_parameters(q, PL_SUBJECT_NORM, -1);
        reads_input_of(q, PL_BUF_INPUT, q->parts->layers);
        add(q->out->write, &q->out->writes, PL_BUF_FINAL, 0, -1, q->mb);
    } else if (backward_is(q, inputs, trains_first(part))) {
        on(q, PL_STREAM_COMPUTE);
        reads_parameters(q, PL_SUBJECT_NORM, -1);
        reads_input_of(q, PL_BUF_INPUT, q->parts->layers);
        add(q->out->read, &q->out->reads, PL_BUF_D_FINAL, 0, -1, q->mb);
        if (inputs) add(q->out->write, &q->out->writes, PL_BUF_D_INPUT, 0, q->parts->layers, q->mb);
        writes_gradients(q, PL_SUBJECT_NORM, -1, part->sharded_attention, part->whole_attention);
    }
}

static void expect_loss(const query *q)
{
    pl_subject subject = q->parts->tied ? PL_SUBJECT_EMBEDDING : PL_SUBJECT_HEAD;
    const pl_expected_part *part = pl_expected_part_of(q->parts, subject, -1);
    if (!pass_is(q, PL_PASS_FORWARD)) return;
    on(q, PL_STREAM_COMPUTE);
    reads_parameters(q, subject, -1);
    add(q->out->read, &q->out->reads, PL_BUF_FINAL, 0, -1, q->mb);
    add(q->out->read, &q->out->reads, PL_BUF_LABELS, 0, -1, q->mb);
    if (backward_at(q, norm_place(q)))
        add(q->out->write, &q->out->writes, PL_BUF_D_FINAL, 0, -1, q->mb);
    writes_gradients(q, subject, -1, part->sharded_attention, part->whole_attention);
    writes_one(q, PL_BUF_LOSS_SUM);
}

/* --- MoE layers --- */

static void expect_route(const query *q)
{
    const pl_expected_part *part = &q->parts->layer[q->layer];
    bool runs_back = backward_at(q, feed_place(q->layer));
    bool inputs = backward_at(q, attention_place(q->layer));
    if (pass_forwards(q)) {
        bool forward = pass_is(q, PL_PASS_FORWARD);
        on(q, PL_STREAM_COMPUTE);
        reads_parameters(q, PL_SUBJECT_LAYER, q->layer);
        reads(q, PL_BUF_ATTENDED);
        if (!forward) reads(q, PL_BUF_ROUTE);
        writes(q, PL_BUF_NORMED);
        if (forward) writes(q, PL_BUF_ROUTE);
        if (forward && q->exchanges && q->all_to_all) writes(q, PL_BUF_COUNTS);
        if (saves(q) && runs_back) writes(q, PL_BUF_SAVE_ROUTE);
        if (forward && balance_counts(q)) writes_one(q, PL_BUF_BALANCE);
    } else if (runs_back && backward_is(q, inputs, trains_feed(part))) {
        static const pl_buffer_kind needed[] = {PL_BUF_ATTENDED, PL_BUF_NORMED,   PL_BUF_SAVE_ROUTE,
                                                PL_BUF_ROUTE,    PL_BUF_D_NORMED, PL_BUF_D_ROUTE};
        on(q, PL_STREAM_COMPUTE);
        reads_parameters(q, PL_SUBJECT_LAYER, q->layer);
        for (size_t i = 0; i < sizeof needed / sizeof *needed; ++i) reads(q, needed[i]);
        if (inputs) {
            reads(q, PL_BUF_D_ATTENDED);
            writes(q, PL_BUF_D_ATTENDED);
        }
        if (balance_counts(q)) {
            reads_one(q, PL_BUF_BALANCE);
            reads_one(q, PL_BUF_TOKEN_COUNT);
            q->out->scale.denominator =
                (int32_t)(q->settings->shape.rounds * q->settings->shape.intra_layer);
            q->out->scale.tokens = 1;
        }
        writes_gradients(q, PL_SUBJECT_LAYER, q->layer, part->sharded_feed, part->whole_feed);
    }
}

static void expect_counts(const query *q)
{
    if (!q->exchanges || !q->all_to_all || !pass_is(q, PL_PASS_FORWARD)) return;
    if (q->name->operation == PL_OP_EXCHANGE_COUNTS) {
        among(q, PL_GROUP_EXPERT_OWNER, PL_REDUCTION_NONE, PL_I64);
        reads(q, PL_BUF_COUNTS);
        writes(q, PL_BUF_COUNTS_IN);
    } else {
        on(q, PL_STREAM_HOST);
        reads(q, PL_BUF_COUNTS_IN);
        writes(q, PL_BUF_ROWS);
    }
}

static void expect_permute(const query *q)
{
    if (!q->all_to_all) return;
    if (pass_forwards(q)) {
        on(q, PL_STREAM_COMPUTE);
        reads(q, PL_BUF_NORMED);
        reads(q, PL_BUF_ROUTE);
        writes(q, PL_BUF_SEND);
    } else if (pass_is(q, PL_PASS_BACKWARD_INPUTS) && backward_at(q, feed_place(q->layer))) {
        on(q, PL_STREAM_COMPUTE);
        reads(q, PL_BUF_D_SEND);
        reads(q, PL_BUF_ROUTE);
        writes(q, PL_BUF_D_NORMED);
    }
}

static void expect_share_routes(const query *q)
{
    if (!q->exchanges || q->all_to_all) return;
    if (pass_is(q, PL_PASS_FORWARD)) {
        among(q, PL_GROUP_EXPERT_OWNER, PL_REDUCTION_NONE, PL_I32);
        reads(q, PL_BUF_ROUTE);
        writes(q, PL_BUF_ROUTES_IN);
    } else if (pass_is(q, PL_PASS_BACKWARD) && backward_at(q, feed_place(q->layer))) {
        among(q, PL_GROUP_EXPERT_OWNER, PL_REDUCTION_SUM, PL_FP32);
        reads(q, PL_BUF_D_ROUTES_IN);
        writes(q, PL_BUF_D_ROUTE);
    }
}

static void expect_exchange(const query *q, pl_buffer_kind from, pl_buffer_kind to, bool reduces)
{
    among(q, PL_GROUP_EXPERT_OWNER, reduces ? PL_REDUCTION_SUM : PL_REDUCTION_NONE,
          q->settings->precision.compute);
    reads(q, from);
    if (q->all_to_all) reads(q, PL_BUF_ROWS);
    writes(q, to);
}

static void expect_dispatch(const query *q)
{
    if (!q->exchanges) return;
    if (pass_forwards(q))
        expect_exchange(q, q->all_to_all ? PL_BUF_SEND : PL_BUF_NORMED, PL_BUF_RECEIVED, false);
    else if (pass_is(q, PL_PASS_BACKWARD) && backward_at(q, feed_place(q->layer)))
        expect_exchange(q, PL_BUF_D_RECEIVED, q->all_to_all ? PL_BUF_D_SEND : PL_BUF_D_NORMED,
                        !q->all_to_all);
}

/* Recompute repeats the experts' results only where routing weights need them for gradients. */
static bool makes_results(const query *q)
{
    return pass_is(q, PL_PASS_FORWARD) || (q->all_to_all && backward_at(q, feed_place(q->layer)));
}

static void expect_combine(const query *q)
{
    if (!q->exchanges) return;
    if (pass_forwards(q) && makes_results(q))
        expect_exchange(q, PL_BUF_EXPERT_OUT, PL_BUF_RETURNED, !q->all_to_all);
    else if (pass_is(q, PL_PASS_BACKWARD) && layer_backward(q, q->layer))
        expect_exchange(q, PL_BUF_D_RETURNED, PL_BUF_D_EXPERT_OUT, false);
}

static void reads_rows(const query *q)
{
    if (!q->exchanges)
        reads(q, q->all_to_all ? PL_BUF_SEND : PL_BUF_NORMED);
    else
        reads(q, PL_BUF_RECEIVED);
}

static void reads_routes(const query *q)
{
    if (!q->exchanges)
        reads(q, PL_BUF_ROUTE);
    else
        reads(q, q->all_to_all ? PL_BUF_ROWS : PL_BUF_ROUTES_IN);
}

static void expect_experts_backward(const query *q, bool trains)
{
    const pl_expected_part *part = &q->parts->experts[q->layer];
    bool feed = backward_at(q, feed_place(q->layer));
    if (!layer_backward(q, q->layer)) return;
    if (pass_is(q, PL_PASS_BACKWARD_INPUTS)) {
        on(q, PL_STREAM_COMPUTE);
        reads_parameters(q, PL_SUBJECT_EXPERTS, q->layer);
        if (trains) writes(q, PL_BUF_D_ACTIVATION);
        if (feed)
            writes(q, q->exchanges    ? PL_BUF_D_RECEIVED
                      : q->all_to_all ? PL_BUF_D_SEND
                                      : PL_BUF_D_NORMED);
        if (feed && !q->all_to_all) writes(q, q->exchanges ? PL_BUF_D_ROUTES_IN : PL_BUF_D_ROUTE);
    } else if (pass_is(q, PL_PASS_BACKWARD_WEIGHTS) && trains) {
        on(q, PL_STREAM_COMPUTE);
        reads_rows(q);
        reads(q, PL_BUF_D_ACTIVATION);
        writes_gradients(q, PL_SUBJECT_EXPERTS, q->layer, part->sharded_attention,
                         part->whole_attention);
    } else {
        return;
    }
    reads(q, PL_BUF_SAVE_EXPERTS);
    reads(q, q->exchanges ? PL_BUF_D_EXPERT_OUT : PL_BUF_D_RETURNED);
    reads_routes(q);
}

static void expect_experts(const query *q)
{
    if (!pass_forwards(q)) {
        expect_experts_backward(q, trains_first(&q->parts->experts[q->layer]));
        return;
    }
    on(q, PL_STREAM_COMPUTE);
    reads_parameters(q, PL_SUBJECT_EXPERTS, q->layer);
    reads_rows(q);
    reads_routes(q);
    if (makes_results(q)) writes(q, q->exchanges ? PL_BUF_EXPERT_OUT : PL_BUF_RETURNED);
    if (saves(q)) writes(q, PL_BUF_SAVE_EXPERTS);
}

static void expect_merge(const query *q)
{
    bool feed = backward_at(q, feed_place(q->layer));
    if (pass_is(q, PL_PASS_FORWARD)) {
        on(q, PL_STREAM_COMPUTE);
        reads(q, PL_BUF_RETURNED);
        if (q->all_to_all) reads(q, PL_BUF_ROUTE);
        reads(q, PL_BUF_ATTENDED);
        add(q->out->write, &q->out->writes, PL_BUF_INPUT, 0, q->layer + 1, q->mb);
    } else if (pass_is(q, PL_PASS_BACKWARD_INPUTS) && layer_backward(q, q->layer)) {
        on(q, PL_STREAM_COMPUTE);
        reads_input_of(q, PL_BUF_D_INPUT, q->layer + 1);
        if (q->all_to_all) reads(q, PL_BUF_ROUTE);
        if (q->all_to_all && feed) reads(q, PL_BUF_RETURNED);
        writes(q, PL_BUF_D_RETURNED);
        if (q->all_to_all && feed) writes(q, PL_BUF_D_ROUTE);
        if (backward_at(q, attention_place(q->layer))) writes(q, PL_BUF_D_ATTENDED);
    }
}

/* --- units: gathers, casts, reductions --- */

static bool is_part(const query *q)
{
    return pl_expected_part_of(q->parts, (pl_subject)q->name->subject, q->name->layer)->exists;
}

/* Under legacy a layer brings its experts along; elsewhere they are a unit of their own. */
static bool brings_experts(const query *q)
{
    return q->world->plan->layout.kind == PL_LAYOUT_LEGACY &&
           q->name->subject == PL_SUBJECT_LAYER && pl_expect_moe(q->world, q->name->layer);
}

static bool leads_unit(const query *q)
{
    return is_part(q) && !(q->world->plan->layout.kind == PL_LAYOUT_LEGACY &&
                           q->name->subject == PL_SUBJECT_EXPERTS);
}

static pl_group_role shard_role(const query *q)
{
    return q->name->subject == PL_SUBJECT_EXPERTS ? PL_GROUP_EXPERT_SHARD : PL_GROUP_DENSE_SHARD;
}

static void gather_part(const query *q, pl_subject subject)
{
    const pl_expected_part *part = pl_expected_part_of(q->parts, subject, q->name->layer);
    if (part->trained + part->frozen == 0) return;
    reads_part(q, subject, q->name->layer, PL_BUF_PARAMETER);
    writes_part(q, subject, q->name->layer, part->cast ? PL_BUF_WIRE : PL_BUF_FULL);
}

static bool pass_of_unit(const query *q)
{
    return pass_is(q, PL_PASS_FORWARD) || pass_is(q, PL_PASS_BACKWARD);
}

/* A tied embedding is called a second time, by the head. */
static bool ordinal_of_unit(const query *q)
{
    return q->name->ordinal == 0 || (q->parts->tied && pass_is(q, PL_PASS_FORWARD) &&
                                     q->name->subject == PL_SUBJECT_EMBEDDING);
}

static void expect_gather(const query *q)
{
    const pl_expected_part *part =
        pl_expected_part_of(q->parts, (pl_subject)q->name->subject, q->name->layer);
    if (!leads_unit(q) || !pass_of_unit(q) || part->shards == 1 || !ordinal_of_unit(q)) return;
    among(q, shard_role(q), PL_REDUCTION_NONE, q->settings->precision.gather);
    q->out->free = true;
    gather_part(q, (pl_subject)q->name->subject);
    if (brings_experts(q)) gather_part(q, PL_SUBJECT_EXPERTS);
}

static void expect_reshard(const query *q)
{
    if (!leads_unit(q) || !pass_of_unit(q) || !ordinal_of_unit(q)) return;
    on(q, PL_STREAM_COMPUTE);
    q->out->free = true;
}

static bool last_round(const query *q) { return q->name->round == q->settings->shape.rounds - 1; }

/* Whether gradients are reduced in this round, and whether an earlier one did so already. */
static bool reduces_now(const query *q)
{
    return q->settings->policy.accumulate == PL_ACCUMULATE_SHARDED || last_round(q);
}

static bool reduced_before(const query *q)
{
    return q->settings->policy.accumulate == PL_ACCUMULATE_SHARDED && q->name->round > 0;
}

static void reduce_part(const query *q, pl_subject subject)
{
    const pl_expected_part *part = pl_expected_part_of(q->parts, subject, q->name->layer);
    bool casts = q->settings->precision.gradient != PL_FP32;
    if (part->trained == 0) return;
    reads_part(q, subject, q->name->layer, casts ? PL_BUF_GRADIENT_WIRE : PL_BUF_GRADIENT_SUM);
    writes_part(q, subject, q->name->layer,
                casts || reduced_before(q) ? PL_BUF_GRADIENT_PIECE : PL_BUF_GRADIENT);
}

static void expect_reduce(const query *q)
{
    const pl_expected_part *part =
        pl_expected_part_of(q->parts, (pl_subject)q->name->subject, q->name->layer);
    if (!leads_unit(q) || !pass_is(q, PL_PASS_BACKWARD_WEIGHTS) || !reduces_now(q)) return;
    if (part->shards == 1) return;
    among(q, shard_role(q), PL_REDUCTION_SUM, q->settings->precision.gradient);
    reduce_part(q, (pl_subject)q->name->subject);
    if (brings_experts(q)) reduce_part(q, PL_SUBJECT_EXPERTS);
    if (q->out->reads == 0) q->out->wanted = false;
}

static void expect_accumulate(const query *q)
{
    const pl_expected_part *part =
        pl_expected_part_of(q->parts, (pl_subject)q->name->subject, q->name->layer);
    if (!is_part(q) || !pass_is(q, PL_PASS_BACKWARD_WEIGHTS) || !reduced_before(q)) return;
    if (part->shards == 1 || part->trained == 0) return;
    on(q, PL_STREAM_COMPUTE);
    reads_part(q, (pl_subject)q->name->subject, q->name->layer, PL_BUF_GRADIENT_PIECE);
    writes_part(q, (pl_subject)q->name->subject, q->name->layer, PL_BUF_GRADIENT);
}

/* Casts: of gathered parameters, of gradients to and from the wire, of updated masters. */
static void expect_cast(const query *q, pl_program program)
{
    pl_subject subject = (pl_subject)q->name->subject;
    const pl_expected_part *part = pl_expected_part_of(q->parts, subject, q->name->layer);
    bool masters = q->settings->precision.gather != PL_FP32;
    bool wire = q->settings->precision.gradient != PL_FP32;
    int32_t layer = q->name->layer;
    if (program == PL_PROGRAM_START) {
        if (!is_part(q) || !masters || part->trained == 0 || !pass_is(q, PL_PASS_NONE)) return;
        on(q, PL_STREAM_COMPUTE);
        reads_part(q, subject, layer, PL_BUF_MASTER);
        writes_part(q, subject, layer, PL_BUF_PARAMETER);
    } else if (subject == PL_SUBJECT_PARAMETERS) {
        if (!masters || !pass_is(q, PL_PASS_NONE) || q->name->ordinal != 0) return;
        on(q, PL_STREAM_COMPUTE);
        q->out->predicate = PL_IF_UPDATE;
        q->out->writes_parameters = true;
    } else if (is_part(q) && pass_of_unit(q) && ordinal_of_unit(q) && part->cast) {
        on(q, PL_STREAM_COMPUTE);
        q->out->free = true;
        reads_part(q, subject, layer, part->shards > 1 ? PL_BUF_WIRE : PL_BUF_PARAMETER);
        writes_part(q, subject, layer, PL_BUF_FULL);
    } else if (is_part(q) && pass_is(q, PL_PASS_BACKWARD_WEIGHTS) && wire && reduces_now(q)) {
        bool back = q->name->ordinal == 1;
        if (part->shards == 1 || part->trained == 0 || (back && reduced_before(q))) return;
        on(q, PL_STREAM_COMPUTE);
        reads_part(q, subject, layer, back ? PL_BUF_GRADIENT_PIECE : PL_BUF_GRADIENT_SUM);
        writes_part(q, subject, layer, back ? PL_BUF_GRADIENT : PL_BUF_GRADIENT_WIRE);
    }
}

/* --- around the layers --- */

static bool covers(const query *q, unsigned what)
{
    const pl_expected_parts *p = q->parts;
    bool dense = p->embedding.trained + p->norm.trained + p->head.trained > 0, experts = false;
    bool whole = p->embedding.whole + p->norm.whole + p->head.whole > 0;
    for (int32_t i = 0; i < p->layers; ++i) {
        dense |= p->layer[i].trained > 0;
        experts |= p->experts[i].trained > 0;
        whole |= p->layer[i].whole > 0;
    }
    return ((what & PL_COVERS_DENSE) && dense) || ((what & PL_COVERS_EXPERTS) && experts) ||
           ((what & PL_COVERS_IGNORED) && whole);
}

static bool communicates(const query *q, pl_group_role role)
{
    return q->world->groups.size[role] > 1;
}

static void reduce_gradients(const query *q, unsigned what, pl_group_role role)
{
    if (!covers(q, what) || !communicates(q, role)) return;
    among(q, role, PL_REDUCTION_SUM, PL_FP32);
    q->out->reads_gradients = q->out->writes_gradients = what;
}

static void reduce_one(const query *q, pl_buffer_kind kind, pl_group_role role, pl_dtype wire)
{
    if (!communicates(q, role)) return;
    among(q, role, PL_REDUCTION_SUM, wire);
    reads_one(q, kind);
    writes_one(q, kind);
}

static void expect_all_reduce(const query *q)
{
    bool in_round = q->name->round >= 0;
    if (!pass_is(q, PL_PASS_NONE) || in_round != (q->name->subject == PL_SUBJECT_BALANCE)) return;
    switch ((pl_subject)q->name->subject) {
    case PL_SUBJECT_TOKENS: reduce_one(q, PL_BUF_TOKEN_COUNT, PL_GROUP_STAGE, PL_I64); break;
    case PL_SUBJECT_BALANCE:
        if (balance_counts(q))
            reduce_one(q, PL_BUF_BALANCE,
                       q->settings->balance == PL_BALANCE_SEQUENCE ? PL_GROUP_CONTEXT
                                                                   : PL_GROUP_STAGE,
                       PL_I64);
        break;
    case PL_SUBJECT_DENSE_GRADIENTS:
        reduce_gradients(q, PL_COVERS_DENSE, PL_GROUP_DENSE_REPLICA);
        break;
    case PL_SUBJECT_EXPERT_GRADIENTS:
        reduce_gradients(q, PL_COVERS_EXPERTS, PL_GROUP_EXPERT_REPLICA);
        break;
    case PL_SUBJECT_IGNORED_GRADIENTS:
        reduce_gradients(q, PL_COVERS_IGNORED, PL_GROUP_STAGE);
        break;
    case PL_SUBJECT_DENSE_SQUARES:
        if (covers(q, PL_COVERS_DENSE))
            reduce_one(q, PL_BUF_DENSE_SQUARES, PL_GROUP_DENSE_SHARD, PL_FP64);
        break;
    case PL_SUBJECT_EXPERT_SQUARES:
        if (covers(q, PL_COVERS_EXPERTS))
            reduce_one(q, PL_BUF_EXPERT_SQUARES, PL_GROUP_EXPERT_BLOCK, PL_FP64);
        break;
    case PL_SUBJECT_LOSS: reduce_one(q, PL_BUF_LOSS_SUM, PL_GROUP_STAGE, PL_FP64); break;
    default: break;
    }
}

static void expect_balance(const query *q)
{
    if (!balance_counts(q) || !pass_is(q, PL_PASS_NONE)) return;
    on(q, PL_STREAM_COMPUTE);
    reads_one(q, PL_BUF_BALANCE);
    writes_one(q, PL_BUF_BALANCE);
    writes_one(q, PL_BUF_LOSS_SUM);
    if (q->settings->balance == PL_BALANCE_GLOBAL_BATCH) writes_one(q, PL_BUF_BALANCE_TOTAL);
}

static void expect_squares(const query *q, bool clip)
{
    on(q, PL_STREAM_COMPUTE);
    if (!clip) q->out->reads_gradients = PL_COVERS_ALL;
    for (int i = 0; i < 3; ++i) {
        static const pl_buffer_kind kinds[] = {PL_BUF_DENSE_SQUARES, PL_BUF_EXPERT_SQUARES,
                                               PL_BUF_IGNORED_SQUARES};
        if (!covers(q, 1u << i)) continue;
        if (clip)
            reads_one(q, kinds[i]);
        else
            writes_one(q, kinds[i]);
    }
    if (clip) writes_one(q, PL_BUF_CLIP);
}

static void expect_update(const query *q)
{
    if (!pass_is(q, PL_PASS_NONE)) return;
    switch ((pl_operation)q->name->operation) {
    case PL_OP_SCALE:
        on(q, PL_STREAM_COMPUTE);
        q->out->scale.tokens = -1;
        reads_one(q, PL_BUF_TOKEN_COUNT);
        q->out->reads_gradients = q->out->writes_gradients = PL_COVERS_ALL;
        break;
    case PL_OP_GRADIENT_NORM: expect_squares(q, false); break;
    case PL_OP_CLIP: expect_squares(q, true); break;
    case PL_OP_STEP:
        on(q, PL_STREAM_COMPUTE);
        q->out->predicate = PL_IF_UPDATE;
        reads_one(q, PL_BUF_CLIP);
        reads_one(q, PL_BUF_TOKEN_COUNT);
        q->out->reads_gradients = PL_COVERS_ALL;
        q->out->writes_state = true;
        break;
    default: break;
    }
}

static void expect_control(const query *q, pl_program program)
{
    if (!pass_is(q, PL_PASS_NONE)) return;
    if (communicates(q, PL_GROUP_WORLD))
        among(q, PL_GROUP_WORLD, PL_REDUCTION_MAX, PL_I64);
    else
        on(q, PL_STREAM_HOST);
    if (program == PL_PROGRAM_STEP) {
        reads_one(q, PL_BUF_CLIP);
        reads_one(q, PL_BUF_LOSS_SUM);
    }
    writes_one(q, PL_BUF_FLAGS);
}

static void expect_batch(const query *q)
{
    switch ((pl_operation)q->name->operation) {
    case PL_OP_LOAD_BATCH:
        if (!pass_is(q, PL_PASS_NONE)) return;
        on(q, PL_STREAM_HOST);
        q->out->group = PL_GROUP_DATA;
        writes_one(q, PL_BUF_BATCH);
        break;
    case PL_OP_COUNT_TOKENS:
        if (!pass_is(q, PL_PASS_NONE)) return;
        on(q, PL_STREAM_HOST);
        reads_one(q, PL_BUF_BATCH);
        writes_one(q, PL_BUF_TOKEN_COUNT);
        break;
    default:
        if (!pass_is(q, PL_PASS_FORWARD)) return;
        on(q, PL_STREAM_COPY);
        reads_one(q, PL_BUF_BATCH);
        add(q->out->write, &q->out->writes, PL_BUF_TOKENS, 0, -1, q->mb);
        add(q->out->write, &q->out->writes, PL_BUF_LABELS, 0, -1, q->mb);
    }
}

/* --- start --- */

static void expect_start(const query *q)
{
    pl_subject subject = (pl_subject)q->name->subject;
    const pl_expected_part *part = pl_expected_part_of(q->parts, subject, q->name->layer);
    bool whole = q->name->ordinal == 1, adam = q->settings->optimizer == PL_OPTIMIZER_ADAMW;
    bool masters = q->settings->precision.gather != PL_FP32;
    int64_t trained = whole ? part->whole : part->trained;
    int64_t frozen = whole ? part->whole_frozen : part->frozen;
    int32_t layer = q->name->layer;
    pl_buffer_kind initial = whole ? PL_BUF_INITIAL_IGNORED : PL_BUF_INITIAL;
    if (!is_part(q) || !pass_is(q, PL_PASS_NONE) || trained + frozen == 0) return;
    switch ((pl_operation)q->name->operation) {
    case PL_OP_INITIALIZE:
        on(q, PL_STREAM_HOST);
        writes_part(q, subject, layer, initial);
        break;
    case PL_OP_COPY:
        on(q, PL_STREAM_COPY);
        reads_part(q, subject, layer, initial);
        if (whole) writes_part(q, subject, layer, PL_BUF_IGNORED);
        if (!whole && masters && trained > 0) writes_part(q, subject, layer, PL_BUF_MASTER);
        if (!whole && (!masters || frozen > 0)) writes_part(q, subject, layer, PL_BUF_PARAMETER);
        break;
    case PL_OP_ZERO:
        if (!adam || trained == 0) return;
        on(q, PL_STREAM_COMPUTE);
        writes_part(q, subject, layer, whole ? PL_BUF_IGNORED_M : PL_BUF_ADAM_M);
        writes_part(q, subject, layer, whole ? PL_BUF_IGNORED_V : PL_BUF_ADAM_V);
        break;
    default: break;
    }
}

/* --- the lookup --- */

/* Which numbers an operation's name carries. */
typedef struct shape {
    pl_subject subject; /* PL_SUBJECT_COUNT: several, see expect_... */
    bool round, micro_batch, free_micro_batch;
    int ordinals;
} shape;

static shape shape_of(pl_operation operation, pl_program program)
{
    bool step = program == PL_PROGRAM_STEP;
    switch (operation) {
    case PL_OP_LOAD_BATCH: return (shape){PL_SUBJECT_BATCH, false, false, false, 1};
    case PL_OP_COUNT_TOKENS: return (shape){PL_SUBJECT_TOKENS, false, false, false, 1};
    case PL_OP_COPY:
        return step ? (shape){PL_SUBJECT_BATCH, true, true, false, 1}
                    : (shape){PL_SUBJECT_COUNT, false, false, false, 2};
    case PL_OP_INITIALIZE:
    case PL_OP_ZERO: return (shape){PL_SUBJECT_COUNT, false, false, false, 2};
    case PL_OP_CAST:
        return step ? (shape){PL_SUBJECT_COUNT, true, false, true, 2}
                    : (shape){PL_SUBJECT_COUNT, false, false, false, 1};
    case PL_OP_GATHER:
    case PL_OP_RESHARD: return (shape){PL_SUBJECT_COUNT, true, false, true, 2};
    case PL_OP_REDUCE:
    case PL_OP_ACCUMULATE: return (shape){PL_SUBJECT_COUNT, true, false, false, 1};
    case PL_OP_EMBED: return (shape){PL_SUBJECT_EMBEDDING, true, true, false, 1};
    case PL_OP_EXPERTS: return (shape){PL_SUBJECT_EXPERTS, true, true, false, 1};
    case PL_OP_FINAL_NORM: return (shape){PL_SUBJECT_NORM, true, true, false, 1};
    case PL_OP_LOSS: return (shape){PL_SUBJECT_HEAD, true, true, false, 1};
    case PL_OP_BALANCE: return (shape){PL_SUBJECT_BALANCE, true, false, false, 1};
    case PL_OP_ALL_REDUCE: return (shape){PL_SUBJECT_COUNT, false, false, false, 1};
    case PL_OP_SCALE:
    case PL_OP_GRADIENT_NORM:
    case PL_OP_CLIP: return (shape){PL_SUBJECT_GRADIENTS, false, false, false, 1};
    case PL_OP_STEP: return (shape){PL_SUBJECT_PARAMETERS, false, false, false, 1};
    case PL_OP_CONTROL: return (shape){PL_SUBJECT_FLAGS, false, false, false, 1};
    default: return (shape){PL_SUBJECT_LAYER, true, true, false, 1};
    }
}

static bool number_fits(int32_t number, bool has, int64_t below)
{
    return has ? number >= 0 && number < below : number == -1;
}

static bool name_fits(const query *q, pl_program program)
{
    const pl_entry_name *n = q->name;
    const pl_shape *sizes = &q->settings->shape;
    shape s = shape_of((pl_operation)n->operation, program);
    bool layered = n->subject == PL_SUBJECT_LAYER || n->subject == PL_SUBJECT_EXPERTS;
    /* The end of a step belongs to no round: updated masters, reductions of sums. */
    bool after = n->subject == PL_SUBJECT_PARAMETERS && n->operation == PL_OP_CAST;
    bool in_round = s.round && !after;
    if (n->operation == PL_OP_ALL_REDUCE) in_round = n->subject == PL_SUBJECT_BALANCE;
    if (s.subject != PL_SUBJECT_COUNT && n->subject != (uint8_t)s.subject) return false;
    if (!number_fits(n->layer, layered, q->parts->layers)) return false;
    if (n->chunk != -1 || n->ordinal < 0 || n->ordinal >= s.ordinals) return false;
    if (!number_fits(n->round, in_round, sizes->rounds)) return false;
    if (s.free_micro_batch && n->micro_batch != -1) {
        /* one for each micro-batch, where the policy calls units so */
        return q->settings->policy.reshard == PL_RESHARD_PER_CALL && n->micro_batch >= 0 &&
               n->micro_batch < sizes->intra_layer && in_round;
    }
    return number_fits(n->micro_batch, s.micro_batch, sizes->intra_layer);
}

static void look_up_step(const query *q)
{
    bool moe = q->layer >= 0 && q->layer < q->parts->layers && pl_expect_moe(q->world, q->layer);
    switch ((pl_operation)q->name->operation) {
    case PL_OP_LOAD_BATCH:
    case PL_OP_COUNT_TOKENS:
    case PL_OP_COPY: expect_batch(q); return;
    case PL_OP_CAST: expect_cast(q, PL_PROGRAM_STEP); return;
    case PL_OP_GATHER: expect_gather(q); return;
    case PL_OP_RESHARD: expect_reshard(q); return;
    case PL_OP_REDUCE: expect_reduce(q); return;
    case PL_OP_ACCUMULATE: expect_accumulate(q); return;
    case PL_OP_EMBED: expect_embed(q); return;
    case PL_OP_ATTENTION: expect_attention(q); return;
    case PL_OP_MLP: expect_mlp(q); return;
    case PL_OP_FINAL_NORM: expect_final_norm(q); return;
    case PL_OP_LOSS: expect_loss(q); return;
    case PL_OP_BALANCE: expect_balance(q); return;
    case PL_OP_ALL_REDUCE: expect_all_reduce(q); return;
    case PL_OP_SCALE:
    case PL_OP_GRADIENT_NORM:
    case PL_OP_CLIP:
    case PL_OP_STEP: expect_update(q); return;
    case PL_OP_CONTROL: expect_control(q, PL_PROGRAM_STEP); return;
    default: break;
    }
    if (!moe) return;
    switch ((pl_operation)q->name->operation) {
    case PL_OP_ROUTE: expect_route(q); return;
    case PL_OP_EXCHANGE_COUNTS:
    case PL_OP_BIND: expect_counts(q); return;
    case PL_OP_PERMUTE: expect_permute(q); return;
    case PL_OP_SHARE_ROUTES: expect_share_routes(q); return;
    case PL_OP_DISPATCH: expect_dispatch(q); return;
    case PL_OP_EXPERTS: expect_experts(q); return;
    case PL_OP_COMBINE: expect_combine(q); return;
    case PL_OP_MERGE: expect_merge(q); return;
    default: return;
    }
}

void pl_expect_entry(pl_expected_entry *out, const pl_sim_world *world, pl_program program,
                     const pl_entry_name *name)
{
    const pl_settings *settings = &world->plan->settings;
    query q = {world,
               settings,
               &world->parts,
               name,
               out,
               name->layer,
               name->micro_batch,
               world->groups.size[PL_GROUP_EXPERT_OWNER] > 1,
               settings->policy.dispatch == PL_DISPATCH_ALL_TO_ALL};
    memset(out, 0, sizeof *out);
    out->group = PL_GROUP_NONE;
    out->scale = (pl_scale){1, 1, 0};
    out->wire = PL_U8;
    if (!name_fits(&q, program)) return;
    if (program == PL_PROGRAM_STEP) {
        look_up_step(&q);
    } else if (name->operation == PL_OP_CONTROL) {
        expect_control(&q, program);
    } else if (name->operation == PL_OP_CAST) {
        expect_cast(&q, program);
    } else {
        expect_start(&q);
    }
}

/* --- all names that might be wanted --- */

typedef struct walk {
    const pl_sim_world *world;
    bool (*visit)(void *context, const pl_entry_name *name);
    void *context;
} walk;

static bool visit_passes(const walk *w, pl_entry_name *name, int ordinals)
{
    for (int ordinal = 0; ordinal < ordinals; ++ordinal) {
        for (int pass = 0; pass < PL_PASS_COUNT; ++pass) {
            name->ordinal = ordinal;
            name->pass = (uint8_t)pass;
            if (!w->visit(w->context, name)) return false;
        }
    }
    return true;
}

static bool visit_numbers(const walk *w, pl_entry_name *name, const shape *s, bool in_round)
{
    const pl_shape *sizes = &w->world->plan->settings.shape;
    int64_t rounds = in_round ? sizes->rounds : 1;
    int64_t micro_batches = s->micro_batch ? sizes->intra_layer : 1;
    for (int64_t round = 0; round < rounds; ++round) {
        for (int64_t mb = 0; mb < micro_batches; ++mb) {
            name->round = in_round ? (int32_t)round : -1;
            name->micro_batch = s->micro_batch ? (int32_t)mb : -1;
            if (!visit_passes(w, name, s->ordinals)) return false;
        }
    }
    return true;
}

static bool visit_subject(const walk *w, pl_operation operation, pl_program program,
                          pl_subject subject)
{
    shape s = shape_of(operation, program);
    bool layered = subject == PL_SUBJECT_LAYER || subject == PL_SUBJECT_EXPERTS;
    bool in_round = s.round && subject != PL_SUBJECT_PARAMETERS;
    int32_t layers = layered ? w->world->parts.layers : 1;
    if (operation == PL_OP_ALL_REDUCE) in_round = subject == PL_SUBJECT_BALANCE;
    for (int32_t layer = 0; layer < layers; ++layer) {
        pl_entry_name name = pl_entry_name_make(operation, subject);
        name.layer = layered ? layer : -1;
        if (!visit_numbers(w, &name, &s, in_round)) return false;
    }
    return true;
}

void pl_expect_names(const pl_sim_world *world, pl_program program,
                     bool (*visit)(void *context, const pl_entry_name *name), void *context)
{
    walk w = {world, visit, context};
    for (int operation = 0; operation < PL_OPERATION_COUNT; ++operation) {
        shape s = shape_of((pl_operation)operation, program);
        bool any = s.subject == PL_SUBJECT_COUNT;
        int first = any ? 0 : (int)s.subject, last = any ? PL_SUBJECT_COUNT - 1 : first;
        for (int subject = first; subject <= last; ++subject)
            if (!visit_subject(&w, (pl_operation)operation, program, (pl_subject)subject)) return;
    }
}
