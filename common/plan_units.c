/* When units are gathered, let go and reduced: the policies of design §5 in one place. */
#include "common/plan_builder.h"

static const pl_unit *unit_of(const pl_builder *builder, int32_t part)
{
    return &builder->facts->parts.unit[builder->facts->parts.part[part].unit];
}

static bool sharded(const pl_part *part)
{
    return part->trained_elements + part->frozen_elements > 0;
}

void pl_builder_read_part(pl_builder *builder, int32_t part)
{
    const pl_part *p = &builder->facts->parts.part[part];
    bool full = unit_of(builder, part)->shards > 1 || p->cast_after_gather;
    if (sharded(p))
        pl_builder_read(
            builder, pl_builder_buffer(builder, full ? PL_BUF_FULL : PL_BUF_PARAMETER, part, -1));
    if (p->ignored_elements + p->ignored_frozen_elements > 0)
        pl_builder_read(builder, pl_builder_buffer(builder, PL_BUF_IGNORED, part, -1));
}

/* --- gathering --- */

/* Name of an entry of a unit's call: the operation on PART. */
static pl_entry_name call_name(const pl_builder *builder, pl_operation operation,
                               const pl_part *part, const pl_unit_call *call)
{
    pl_entry_name name = pl_builder_name(builder, operation, part->subject, part->layer,
                                         call->micro_batch, call->pass);
    name.ordinal = call->ordinal;
    return name;
}

static void emit_cast_after_gather(pl_builder *builder, int32_t part, const pl_unit_call *call,
                                   bool gathered)
{
    const pl_part *p = &builder->facts->parts.part[part];
    pl_builder_open(builder, call_name(builder, PL_OP_CAST, p, call), PL_STREAM_COMPUTE);
    uint32_t from = pl_builder_buffer(builder, gathered ? PL_BUF_WIRE : PL_BUF_PARAMETER, part, -1);
    pl_builder_read_last(builder, from, gathered);
    pl_builder_begin(builder, pl_builder_buffer(builder, PL_BUF_FULL, part, -1));
    pl_builder_close(builder);
}

static void emit_gather(pl_builder *builder, int32_t unit_number, const pl_unit_call *call)
{
    const pl_parts *parts = &builder->facts->parts;
    const pl_unit *unit = &parts->unit[unit_number];
    const pl_part *first = &parts->part[unit->part[0]];
    if (unit->shards > 1) {
        pl_builder_open(builder, call_name(builder, PL_OP_GATHER, first, call),
                        PL_STREAM_COMMUNICATION);
        pl_builder_communicate(builder, unit->shard_role, PL_REDUCTION_NONE, unit->wire,
                               pl_builder_product(builder, unit->wire_bytes, unit->shards, 1, 1));
        /* Gathering no further ahead than the plan says bounds the memory of gathered copies. */
        pl_builder_wait(builder, builder->last_reshard);
        for (int32_t i = 0; i < unit->part_count; ++i) {
            const pl_part *part = &parts->part[unit->part[i]];
            if (!sharded(part)) continue;
            pl_buffer_kind kind = part->cast_after_gather ? PL_BUF_WIRE : PL_BUF_FULL;
            pl_builder_read(builder,
                            pl_builder_buffer(builder, PL_BUF_PARAMETER, unit->part[i], -1));
            pl_builder_begin(builder, pl_builder_buffer(builder, kind, unit->part[i], -1));
        }
        pl_builder_close(builder);
    }
    for (int32_t i = 0; i < unit->part_count; ++i)
        if (parts->part[unit->part[i]].cast_after_gather)
            emit_cast_after_gather(builder, unit->part[i], call, unit->shards > 1);
    builder->present[unit_number] = true;
}

/* The next call of another unit, in this round; prefetching crosses no round. */
static void prefetch(pl_builder *builder)
{
    const pl_plan_facts *facts = builder->facts;
    int32_t next = builder->call + 1;
    if (facts->settings->policy.prefetch != PL_PREFETCH_NEXT_UNIT) return;
    if (next >= facts->call_count) return;
    const pl_unit_call *call = &facts->calls[next];
    if (builder->present[call->unit] || call->unit == facts->calls[builder->call].unit) return;
    emit_gather(builder, call->unit, call);
}

void pl_builder_need(pl_builder *builder, int32_t part, pl_pass pass, int32_t micro_batch,
                     int32_t ordinal)
{
    const pl_plan_facts *facts = builder->facts;
    pl_unit_call call = {facts->parts.part[part].unit, micro_batch, pass, ordinal};
    if (builder->status != PL_OK || !pl_unit_gathers(&facts->parts, call.unit)) return;
    if (!pl_unit_call_equal(&facts->calls[builder->call], &call)) {
        ++builder->call;
        if (builder->call >= facts->call_count ||
            !pl_unit_call_equal(&facts->calls[builder->call], &call)) {
            builder->status =
                PL_FAIL(PL_INTERNAL, "unit %d is called out of order", (int)call.unit);
            return;
        }
    }
    if (!builder->present[call.unit]) emit_gather(builder, call.unit, &call);
    prefetch(builder);
}

/* --- letting go --- */

static bool called_again(const pl_builder *builder, int32_t unit)
{
    return builder->facts->last_call[unit] > builder->call;
}

/* Kept from forward to backward: the last layer with its experts, and a tied embedding until the
 * head has used it. */
static bool keeps(const pl_builder *builder, int32_t unit)
{
    const pl_parts *parts = &builder->facts->parts;
    const pl_part *part = &parts->part[parts->unit[unit].part[0]];
    bool last_layer = part->layer == parts->layer_count - 1;
    bool tied = parts->head == parts->embedding && part->subject == PL_SUBJECT_EMBEDDING;
    return last_layer || tied;
}

static bool lets_go(const pl_builder *builder, int32_t unit, pl_pass pass)
{
    const pl_plan_facts *facts = builder->facts;
    bool again = called_again(builder, unit);
    switch (facts->settings->policy.reshard) {
    case PL_RESHARD_PER_CALL: return true;
    case PL_RESHARD_NEVER: return !again && builder->round == facts->rounds - 1;
    default: return !(again && pass == PL_PASS_FORWARD && keeps(builder, unit));
    }
}

void pl_builder_done(pl_builder *builder, int32_t part, pl_pass pass)
{
    const pl_parts *parts = &builder->facts->parts;
    int32_t number = parts->part[part].unit;
    const pl_unit *unit = &parts->unit[number];
    if (builder->status != PL_OK || !builder->present[number]) return;
    if (!lets_go(builder, number, pass)) return;
    const pl_part *first = &parts->part[unit->part[0]];
    pl_builder_open(builder,
                    call_name(builder, PL_OP_RESHARD, first, &builder->facts->calls[builder->call]),
                    PL_STREAM_COMPUTE);
    for (int32_t i = 0; i < unit->part_count; ++i) {
        const pl_part *p = &parts->part[unit->part[i]];
        if (sharded(p) && (unit->shards > 1 || p->cast_after_gather))
            pl_builder_end(builder, pl_builder_buffer(builder, PL_BUF_FULL, unit->part[i], -1));
    }
    pl_builder_close(builder);
    builder->last_reshard = (int32_t)builder->section->entry_count - 1;
    builder->present[number] = false;
}

/* --- gradients --- */

bool pl_part_trained(const pl_part *part, pl_module module)
{
    return part->trained_sharded[module] || part->trained_ignored[module];
}

uint32_t pl_builder_gradient_target(pl_builder *builder, int32_t part)
{
    /* With one shard the whole gradient is the shard's: no copy, no reduction. */
    pl_buffer_kind kind =
        unit_of(builder, part)->shards > 1 ? PL_BUF_GRADIENT_SUM : PL_BUF_GRADIENT;
    return pl_builder_buffer(builder, kind, part, -1);
}

void pl_builder_add_gradients(pl_builder *builder, int32_t part, pl_module module)
{
    const pl_part *p = &builder->facts->parts.part[part];
    if (p->trained_sharded[module])
        pl_builder_add_into(builder, pl_builder_gradient_target(builder, part));
    if (p->trained_ignored[module])
        pl_builder_add_into(builder, pl_builder_buffer(builder, PL_BUF_IGNORED_GRADIENT, part, -1));
}

static pl_entry_name gradient_name(const pl_builder *builder, pl_operation operation,
                                   const pl_part *part, int32_t ordinal)
{
    pl_entry_name name = pl_builder_name(builder, operation, part->subject, part->layer, -1,
                                         PL_PASS_BACKWARD_WEIGHTS);
    name.ordinal = ordinal;
    return name;
}

/* Before the reduction: to the wire's type. */
static void emit_cast_to_wire(pl_builder *builder, int32_t part)
{
    const pl_part *p = &builder->facts->parts.part[part];
    pl_builder_open(builder, gradient_name(builder, PL_OP_CAST, p, 0), PL_STREAM_COMPUTE);
    pl_builder_read_last(builder, pl_builder_buffer(builder, PL_BUF_GRADIENT_SUM, part, -1), true);
    pl_builder_begin(builder, pl_builder_buffer(builder, PL_BUF_GRADIENT_WIRE, part, -1));
    pl_builder_close(builder);
}

/* After it: into the step's gradient, which the first round begins and later ones add to. */
static void emit_keep_piece(pl_builder *builder, int32_t part)
{
    const pl_part *p = &builder->facts->parts.part[part];
    uint32_t gradient = pl_builder_buffer(builder, PL_BUF_GRADIENT, part, -1);
    bool first = !pl_builder_alive(builder, gradient);
    pl_builder_open(builder,
                    gradient_name(builder, first ? PL_OP_CAST : PL_OP_ACCUMULATE, p, first),
                    PL_STREAM_COMPUTE);
    pl_builder_read_last(builder, pl_builder_buffer(builder, PL_BUF_GRADIENT_PIECE, part, -1),
                         true);
    pl_builder_add_into(builder, gradient);
    pl_builder_close(builder);
}

static void emit_reduce(pl_builder *builder, const pl_unit *unit, const bool *has, bool wire_casts)
{
    const pl_plan_facts *facts = builder->facts;
    pl_dtype wire = facts->settings->precision.gradient;
    const pl_part *first = &facts->parts.part[unit->part[0]];
    bool piece[2] = {false, false};
    int64_t bytes = 0;
    pl_builder_open(builder, gradient_name(builder, PL_OP_REDUCE, first, 0),
                    PL_STREAM_COMMUNICATION);
    for (int32_t i = 0; i < unit->part_count && i < 2; ++i) {
        int32_t part = unit->part[i];
        if (!has[i]) continue;
        uint32_t gradient = pl_builder_buffer(builder, PL_BUF_GRADIENT, part, -1);
        pl_buffer_kind from = wire_casts ? PL_BUF_GRADIENT_WIRE : PL_BUF_GRADIENT_SUM;
        piece[i] = wire_casts || pl_builder_alive(builder, gradient);
        pl_builder_read_last(builder, pl_builder_buffer(builder, from, part, -1), true);
        pl_builder_begin(builder, piece[i]
                                      ? pl_builder_buffer(builder, PL_BUF_GRADIENT_PIECE, part, -1)
                                      : gradient);
        bytes += pl_builder_product(builder, facts->parts.part[part].trained_elements, unit->shards,
                                    pl_dtype_bytes(wire), 1);
    }
    pl_builder_communicate(builder, unit->shard_role, PL_REDUCTION_SUM, wire, bytes);
    pl_builder_close(builder);
    for (int32_t i = 0; i < unit->part_count && i < 2; ++i)
        if (piece[i]) emit_keep_piece(builder, unit->part[i]);
}

void pl_builder_reduce(pl_builder *builder, int32_t part)
{
    const pl_plan_facts *facts = builder->facts;
    const pl_unit *unit = unit_of(builder, part);
    bool wire_casts = facts->settings->precision.gradient != PL_FP32;
    bool has[2] = {false, false};
    if (builder->status != PL_OK || unit->shards == 1) return;
    if (facts->settings->policy.accumulate == PL_ACCUMULATE_UNSHARDED &&
        builder->round < facts->rounds - 1)
        return;
    for (int32_t i = 0; i < unit->part_count && i < 2; ++i) {
        if (facts->parts.part[unit->part[i]].trained_elements == 0) continue;
        has[i] = pl_builder_alive(
            builder, pl_builder_buffer(builder, PL_BUF_GRADIENT_SUM, unit->part[i], -1));
        if (has[i] && wire_casts) emit_cast_to_wire(builder, unit->part[i]);
    }
    if (has[0] || has[1]) emit_reduce(builder, unit, has, wire_casts);
}
