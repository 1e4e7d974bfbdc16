/* What is equal for all ranks of a plan, worked out once: sizes, which layers need backward, and
 * the order in which units are called. */
#include <string.h>

#include "common/memory.h"
#include "common/plan_builder.h"

bool pl_unit_gathers(const pl_parts *parts, int32_t unit)
{
    const pl_unit *u = &parts->unit[unit];
    bool casts = false;
    for (int32_t i = 0; i < u->part_count; ++i) casts |= parts->part[u->part[i]].cast_after_gather;
    return u->wire_bytes > 0 && (u->shards > 1 || casts);
}

static bool any_trained(const pl_part *part)
{
    return pl_part_trained(part, PL_MODULE_FIRST) || pl_part_trained(part, PL_MODULE_SECOND);
}

/* A program that does not train is one in which no module has anything to train: emitters then
 * save nothing, make no gradients and add no counts. */
static void train_nothing(pl_parts *parts)
{
    for (int32_t i = 0; i < parts->part_count; ++i)
        for (int module = 0; module < PL_MODULE_COUNT; ++module)
            parts->part[i].trained_sharded[module] = parts->part[i].trained_ignored[module] = false;
}

static void find_backward(pl_plan_facts *facts)
{
    const pl_parts *parts = &facts->parts;
    bool below = any_trained(&parts->part[parts->embedding]);
    facts->balance_reader = -1;
    for (int32_t i = 0; i < parts->layer_count; ++i) {
        pl_layer_facts *layer = &facts->layer[i];
        const pl_part *part = &parts->part[parts->layer[i]];
        bool experts = parts->experts[i] >= 0 && any_trained(&parts->part[parts->experts[i]]);
        layer->moe = parts->experts[i] >= 0;
        layer->below = below;
        layer->attention_backward = below || pl_part_trained(part, PL_MODULE_FIRST);
        layer->feed_backward = layer->attention_backward || pl_part_trained(part, PL_MODULE_SECOND);
        layer->backward = layer->feed_backward || experts;
        layer->recompute = layer->backward && i < parts->layer_count - 1 &&
                           facts->settings->policy.recompute == PL_RECOMPUTE_FULL;
        below = layer->backward;
        facts->moe_layers += layer->moe;
        if (layer->moe && layer->feed_backward && facts->balance_reader < 0)
            facts->balance_reader = i;
    }
}

/* --- calls of units --- */

bool pl_unit_call_equal(const pl_unit_call *a, const pl_unit_call *b)
{
    return a->unit == b->unit && a->pass == b->pass && a->micro_batch == b->micro_batch &&
           a->ordinal == b->ordinal;
}

static void add_call(pl_plan_facts *facts, int32_t part, pl_pass pass, int32_t micro_batch,
                     int32_t ordinal)
{
    int32_t unit = facts->parts.part[part].unit;
    pl_unit_call call = {unit, micro_batch, pass, ordinal};
    if (!pl_unit_gathers(&facts->parts, unit)) return;
    if (facts->call_count > 0 && pl_unit_call_equal(&facts->calls[facts->call_count - 1], &call))
        return;
    facts->last_call[unit] = facts->call_count;
    facts->calls[facts->call_count++] = call;
}

static void add_layer_calls(pl_plan_facts *facts, int32_t layer, pl_pass pass, int32_t micro_batch)
{
    const pl_layer_facts *l = &facts->layer[layer];
    int32_t dense = facts->parts.layer[layer], experts = facts->parts.experts[layer];
    bool dense_first = pass == PL_PASS_FORWARD || l->recompute;
    if (dense_first) add_call(facts, dense, pass, micro_batch, 0);
    if (l->moe) add_call(facts, experts, pass, micro_batch, 0);
    if (!dense_first && l->feed_backward) add_call(facts, dense, pass, micro_batch, 0);
}

/* Under per-call resharding every micro-batch calls by itself, else one call serves them all. */
static void add_calls(pl_plan_facts *facts)
{
    const pl_parts *parts = &facts->parts;
    bool per_call = facts->settings->policy.reshard == PL_RESHARD_PER_CALL;
    int32_t times = per_call ? facts->micro_batches : 1;
    int32_t layers = parts->layer_count;
    for (int32_t m = 0; m < times; ++m)
        add_call(facts, parts->embedding, PL_PASS_FORWARD, per_call ? m : -1, 0);
    for (int32_t i = 0; i < layers; ++i)
        for (int32_t m = 0; m < times; ++m)
            add_layer_calls(facts, i, PL_PASS_FORWARD, per_call ? m : -1);
    for (int32_t m = 0; m < times; ++m)
        add_call(facts, parts->norm, PL_PASS_FORWARD, per_call ? m : -1, 0);
    for (int32_t m = 0; m < times; ++m)
        add_call(facts, parts->head, PL_PASS_FORWARD, per_call ? m : -1,
                 parts->head == parts->embedding);
    bool norm_backward =
        any_trained(&parts->part[parts->norm]) || facts->layer[layers - 1].backward;
    for (int32_t m = 0; m < times && norm_backward; ++m)
        add_call(facts, parts->norm, PL_PASS_BACKWARD, per_call ? m : -1, 0);
    for (int32_t i = layers - 1; i >= 0 && facts->layer[i].backward; --i)
        for (int32_t m = 0; m < times; ++m)
            add_layer_calls(facts, i, PL_PASS_BACKWARD, per_call ? m : -1);
}

/* --- making --- */

static void set_numbers(pl_plan_facts *facts)
{
    const pl_settings *settings = facts->settings;
    facts->micro_batches = (int32_t)settings->shape.intra_layer;
    facts->rounds = facts->trains ? (int32_t)settings->shape.rounds : 1;
    facts->tokens = settings->shape.sequence * settings->shape.micro_batch;
    facts->element_bytes = pl_dtype_bytes(settings->precision.compute);
    facts->owners = pl_layout_group_size(facts->layout, PL_GROUP_EXPERT_OWNER);
    facts->masters = settings->precision.gather != settings->precision.master;
}

static pl_status make_facts(pl_plan_facts *facts)
{
    PL_TRY(pl_parts_make(&facts->parts, facts->model, facts->layout, &facts->settings->precision));
    if (!facts->trains) train_nothing(&facts->parts);
    size_t layers = (size_t)facts->parts.layer_count, units = (size_t)facts->parts.unit_count;
    size_t times =
        facts->settings->policy.reshard == PL_RESHARD_PER_CALL ? (size_t)facts->micro_batches : 1;
    size_t most = (4 * layers + 4) * times; /* two units a layer, forward and backward; the ends */
    PL_TRY(pl_allocate(&facts->layer, layers, sizeof *facts->layer, "layers"));
    PL_TRY(pl_allocate(&facts->calls, most, sizeof *facts->calls, "calls of units"));
    PL_TRY(pl_allocate(&facts->last_call, units, sizeof *facts->last_call, "calls of units"));
    for (size_t i = 0; i < units; ++i) facts->last_call[i] = -1;
    find_backward(facts);
    add_calls(facts);
    facts->balance = facts->trains && facts->moe_layers > 0 &&
                     facts->settings->balance != PL_BALANCE_NONE &&
                     facts->settings->balance_coefficient > 0;
    return PL_OK;
}

pl_status pl_plan_facts_make(pl_plan_facts *out, const pl_model *model, const pl_layout *layout,
                             const pl_settings *settings, bool trains)
{
    pl_plan_facts facts = {.model = model, .layout = layout, .settings = settings};
    facts.trains = trains;
    set_numbers(&facts);
    pl_status status = make_facts(&facts);
    if (status != PL_OK)
        pl_plan_facts_free(&facts);
    else
        *out = facts;
    return status;
}

int64_t pl_rank_answer(const pl_plan_facts *facts, pl_question_kind kind, int32_t part,
                       int64_t rank)
{
    return pl_parts_local_elements(&facts->parts, facts->model, facts->layout, part, rank,
                                   kind == PL_ASKS_FROZEN_ELEMENTS);
}

void pl_plan_facts_free(pl_plan_facts *facts)
{
    pl_parts_free(&facts->parts);
    pl_free(facts->layer);
    pl_free(facts->calls);
    pl_free(facts->last_call);
    memset(facts, 0, sizeof *facts);
}
