/* The question that the files of expected entries answer together, and words to answer it in.
 * Private to sim/expect_*.c. */
#ifndef PL_SIM_EXPECT_QUERY_H
#define PL_SIM_EXPECT_QUERY_H

#include "sim/proof.h"

/* The subject of a buffer that belongs to no part. */
#define PL_NO_PART PL_SUBJECT_EMBEDDING

/* The name being looked up, and where the answer goes. */
typedef struct query {
    const pl_sim_world *world;
    pl_program program;
    const pl_settings *settings;
    const pl_expected_parts *parts;
    const pl_entry_name *name;
    pl_expected_entry *out;
    int32_t layer, mb;
    bool exchanges, all_to_all;
} query;

/* --- questions about modules --- */

/* Places of modules in forward order, as said at pl_expected_parts. */
static inline int32_t attention_place(int32_t layer) { return 3 * layer + 1; }
static inline int32_t feed_place(int32_t layer) { return 3 * layer + 2; }
static inline int32_t experts_place(int32_t layer) { return 3 * layer + 3; }
static inline int32_t norm_place(const query *q) { return 3 * q->parts->layers + 1; }

/* Only a step trains; the other programs that compute do so forward, in one round. */
static inline bool trains(const query *q) { return q->program == PL_PROGRAM_STEP; }

static inline bool computes(const query *q) { return !pl_expect_moves(q->program); }

/* Whether losses are summed, over T tokens. */
static inline bool sums_losses(const query *q)
{
    return trains(q) || q->program == PL_PROGRAM_EVALUATE;
}

/* A module at PLACE runs backward when it or something before it trains. */
static inline bool backward_at(const query *q, int32_t place)
{
    return trains(q) && q->parts->first_trained <= place;
}

static inline bool layer_backward(const query *q, int32_t layer)
{
    return backward_at(q,
                       pl_expect_moe(q->world, layer) ? experts_place(layer) : feed_place(layer));
}

static inline bool recomputes(const query *q, int32_t layer)
{
    return q->settings->policy.recompute == PL_RECOMPUTE_FULL && layer + 1 < q->parts->layers &&
           layer_backward(q, layer);
}

static inline bool trains_first(const query *q, const pl_expected_part *part)
{
    return trains(q) && (part->sharded_attention || part->whole_attention);
}

static inline bool trains_feed(const query *q, const pl_expected_part *part)
{
    return trains(q) && (part->sharded_feed || part->whole_feed);
}

static inline bool balance_counts(const query *q)
{
    bool moe = false;
    for (int32_t i = 0; i < q->parts->layers; ++i) moe |= pl_expect_moe(q->world, i);
    return trains(q) && moe && q->settings->balance != PL_BALANCE_NONE &&
           q->settings->balance_coefficient > 0;
}

/* --- building the answer --- */

static inline void add(pl_expected_use *list, int *count, pl_buffer_kind kind, pl_subject subject,
                       int32_t layer, int32_t mb)
{
    if (*count == PL_EXPECTED_USES) return;
    pl_expected_use use = {(uint8_t)kind, (uint8_t)subject, layer, mb};
    list[(*count)++] = use;
}

static inline void reads(const query *q, pl_buffer_kind kind)
{
    add(q->out->read, &q->out->reads, kind, PL_NO_PART, q->layer, q->mb);
}

static inline void writes(const query *q, pl_buffer_kind kind)
{
    add(q->out->write, &q->out->writes, kind, PL_NO_PART, q->layer, q->mb);
}

static inline void reads_input_of(const query *q, pl_buffer_kind kind, int32_t layer)
{
    add(q->out->read, &q->out->reads, kind, PL_NO_PART, layer, q->mb);
}

static inline void reads_one(const query *q, pl_buffer_kind kind)
{
    add(q->out->read, &q->out->reads, kind, PL_NO_PART, -1, -1);
}

static inline void writes_one(const query *q, pl_buffer_kind kind)
{
    add(q->out->write, &q->out->writes, kind, PL_NO_PART, -1, -1);
}

static inline void reads_part(const query *q, pl_subject subject, int32_t layer,
                              pl_buffer_kind kind)
{
    add(q->out->read, &q->out->reads, kind, subject, layer, -1);
}

static inline void writes_part(const query *q, pl_subject subject, int32_t layer,
                               pl_buffer_kind kind)
{
    add(q->out->write, &q->out->writes, kind, subject, layer, -1);
}

/* A module computes with the gathered copy, or with the shard where the shard is all. */
static inline void reads_parameters(const query *q, pl_subject subject, int32_t layer)
{
    const pl_expected_part *part = pl_expected_part_of(q->parts, subject, layer);
    bool gathered = part->shards > 1 || part->cast;
    if (part->trained + part->frozen > 0)
        reads_part(q, subject, layer, gathered ? PL_BUF_FULL : PL_BUF_PARAMETER);
    if (part->whole + part->whole_frozen > 0) reads_part(q, subject, layer, PL_BUF_IGNORED);
}

static inline void writes_gradients(const query *q, pl_subject subject, int32_t layer, bool sharded,
                                    bool whole)
{
    const pl_expected_part *part = pl_expected_part_of(q->parts, subject, layer);
    if (!trains(q)) return;
    if (sharded)
        writes_part(q, subject, layer, part->shards > 1 ? PL_BUF_GRADIENT_SUM : PL_BUF_GRADIENT);
    if (whole) writes_part(q, subject, layer, PL_BUF_IGNORED_GRADIENT);
}

static inline void on(const query *q, pl_stream stream)
{
    q->out->wanted = true;
    q->out->stream = stream;
}

static inline void among(const query *q, pl_group_role role, pl_reduction reduction, pl_dtype wire)
{
    on(q, PL_STREAM_COMMUNICATION);
    q->out->group = role;
    q->out->reduction = reduction;
    q->out->wire = wire;
}

static inline bool pass_is(const query *q, pl_pass pass) { return q->name->pass == pass; }

/* Forward, and recompute where there is one. */
static inline bool pass_forwards(const query *q)
{
    return pass_is(q, PL_PASS_FORWARD) ||
           (pass_is(q, PL_PASS_RECOMPUTE) && recomputes(q, q->layer));
}

/* Whether what backward needs is saved by this forward pass. */
static inline bool saves(const query *q)
{
    return layer_backward(q, q->layer) &&
           (pass_is(q, PL_PASS_RECOMPUTE) || !recomputes(q, q->layer));
}

/* The pass that an entry with these gradients must carry. */
static inline bool backward_is(const query *q, bool inputs, bool weights)
{
    if (inputs && weights) return pass_is(q, PL_PASS_BACKWARD);
    if (inputs) return pass_is(q, PL_PASS_BACKWARD_INPUTS);
    return weights && pass_is(q, PL_PASS_BACKWARD_WEIGHTS);
}

/* Whether the name's subject is a part that the model has. */
static inline bool is_part(const query *q)
{
    return pl_expected_part_of(q->parts, (pl_subject)q->name->subject, q->name->layer)->exists;
}

/* --- answers by kind of entry --- */

void pl_expect_embed_entry(const query *q);
void pl_expect_attention_entry(const query *q);
void pl_expect_mlp_entry(const query *q);
void pl_expect_final_norm_entry(const query *q);
void pl_expect_loss_entry(const query *q);
void pl_expect_logits_entry(const query *q);
void pl_expect_route_entry(const query *q);
void pl_expect_counts_entry(const query *q);
void pl_expect_permute_entry(const query *q);
void pl_expect_share_routes_entry(const query *q);
void pl_expect_dispatch_entry(const query *q);
void pl_expect_combine_entry(const query *q);
void pl_expect_experts_entry(const query *q);
void pl_expect_merge_entry(const query *q);
void pl_expect_gather_entry(const query *q);
void pl_expect_reshard_entry(const query *q);
void pl_expect_reduce_entry(const query *q);
void pl_expect_accumulate_entry(const query *q);
void pl_expect_cast_entry(const query *q);
void pl_expect_all_reduce_entry(const query *q);
void pl_expect_balance_entry(const query *q);
void pl_expect_update_entry(const query *q);
void pl_expect_control_entry(const query *q);
void pl_expect_batch_entry(const query *q);
void pl_expect_start_entry(const query *q);
void pl_expect_export_entry(const query *q);
void pl_expect_saved_entry(const query *q);

#endif
