/* What entries of units must be: gathers, reshards, casts, reductions. */
#include "sim/expect_query.h"

/* --- units: gathers, casts, reductions --- */

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
    return pass_is(q, PL_PASS_FORWARD) || (trains(q) && pass_is(q, PL_PASS_BACKWARD));
}

/* A tied embedding is called a second time, by the head. */
static bool ordinal_of_unit(const query *q)
{
    return q->name->ordinal == 0 || (q->parts->tied && pass_is(q, PL_PASS_FORWARD) &&
                                     q->name->subject == PL_SUBJECT_EMBEDDING);
}

/* One type where all of the unit travels in one, else bytes. */
static pl_dtype wire_of_unit(const query *q, const pl_expected_part *part)
{
    if (!brings_experts(q)) return part->wire;
    const pl_expected_part *experts = &q->parts->experts[q->name->layer];
    if (part->wire_bytes == 0) return experts->wire;
    return experts->wire_bytes == 0 || experts->wire == part->wire ? part->wire : PL_U8;
}

void pl_expect_gather_entry(const query *q)
{
    const pl_expected_part *part =
        pl_expected_part_of(q->parts, (pl_subject)q->name->subject, q->name->layer);
    if (!leads_unit(q) || !pass_of_unit(q) || part->shards == 1 || !ordinal_of_unit(q)) return;
    among(q, shard_role(q), PL_REDUCTION_NONE, wire_of_unit(q, part));
    q->out->free = true;
    gather_part(q, (pl_subject)q->name->subject);
    if (brings_experts(q)) gather_part(q, PL_SUBJECT_EXPERTS);
}

void pl_expect_reshard_entry(const query *q)
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

void pl_expect_reduce_entry(const query *q)
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

void pl_expect_accumulate_entry(const query *q)
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
void pl_expect_cast_entry(const query *q)
{
    pl_subject subject = (pl_subject)q->name->subject;
    const pl_expected_part *part = pl_expected_part_of(q->parts, subject, q->name->layer);
    bool masters = q->settings->precision.gather != PL_FP32;
    bool wire = q->settings->precision.gradient != PL_FP32;
    int32_t layer = q->name->layer;
    if (q->program == PL_PROGRAM_START) {
        if (!is_part(q) || !masters || part->trained == 0 || !pass_is(q, PL_PASS_NONE)) return;
        on(q, PL_STREAM_COMPUTE);
        reads_part(q, subject, layer, PL_BUF_MASTER);
        writes_part(q, subject, layer, PL_BUF_PARAMETER);
    } else if (subject == PL_SUBJECT_PARAMETERS) {
        if (!trains(q) || !masters || !pass_is(q, PL_PASS_NONE) || q->name->ordinal != 0) return;
        on(q, PL_STREAM_COMPUTE);
        q->out->predicate = PL_IF_UPDATE;
        q->out->writes_parameters = true;
    } else if (is_part(q) && pass_of_unit(q) && ordinal_of_unit(q) && part->cast) {
        on(q, PL_STREAM_COMPUTE);
        q->out->free = true;
        reads_part(q, subject, layer, part->shards > 1 ? PL_BUF_WIRE : PL_BUF_PARAMETER);
        writes_part(q, subject, layer, PL_BUF_FULL);
    } else if (trains(q) && is_part(q) && pass_is(q, PL_PASS_BACKWARD_WEIGHTS) && wire &&
               reduces_now(q)) {
        bool back = q->name->ordinal == 1;
        if (part->shards == 1 || part->trained == 0 || (back && reduced_before(q))) return;
        on(q, PL_STREAM_COMPUTE);
        reads_part(q, subject, layer, back ? PL_BUF_GRADIENT_PIECE : PL_BUF_GRADIENT_SUM);
        writes_part(q, subject, layer, back ? PL_BUF_GRADIENT : PL_BUF_GRADIENT_WIRE);
    }
}
