#include "common/placement.h"

#include <inttypes.h>

#include "common/layout_rules.h"
#include "common/memory.h"

/* Rows that member INDEX of SHARDS owns, in chunks of ceil(ROWS/SHARDS). Compares before it
 * multiplies, so that no product exceeds ROWS. */
static pl_box cut(int64_t rows, int64_t shards, int64_t index)
{
    int64_t chunk = pl_divide_up(rows, shards);
    pl_box box = {rows, rows};
    if (chunk == 0 || index > rows / chunk) return box;
    box.begin = index * chunk;
    if (rows - box.begin > chunk) box.end = box.begin + chunk;
    return box;
}

pl_box pl_placement_dense_box(const pl_layout *layout, int64_t rows, int64_t rank)
{
    return cut(rows, layout->dense_shards,
               pl_layout_group_index(layout, PL_GROUP_DENSE_SHARD, rank));
}

int64_t pl_placement_dense_padded(const pl_layout *layout, int64_t rows)
{
    return pl_divide_up(rows, layout->dense_shards);
}

pl_box pl_placement_expert_box(const pl_layout *layout, int64_t experts, int64_t rows, int64_t rank)
{
    int64_t owner = pl_layout_group_index(layout, PL_GROUP_EXPERT_OWNER, rank);
    int64_t index = pl_layout_group_index(layout, PL_GROUP_EXPERT_SHARD, rank);
    int64_t owned = experts / layout->ep;
    int64_t grain = layout->grain == PL_GRAIN_EXPERT ? rows : 1;
    int64_t pieces = layout->grain == PL_GRAIN_EXPERT ? owned : owned * rows;
    pl_box box = cut(pieces, layout->expert_shards, index);
    box.begin = owner * owned * rows + box.begin * grain;
    box.end = owner * owned * rows + box.end * grain;
    return box;
}

int64_t pl_placement_expert_padded(const pl_layout *layout, int64_t experts, int64_t rows)
{
    int64_t owned = experts / layout->ep;
    if (layout->grain == PL_GRAIN_EXPERT) return pl_divide_up(owned, layout->expert_shards) * rows;
    return pl_divide_up(owned * rows, layout->expert_shards);
}

static int64_t whole_rows(const pl_tensor *tensor)
{
    return tensor->experts ? tensor->experts * tensor->rows : tensor->rows;
}

pl_box pl_placement_box(const pl_layout *layout, const pl_tensor *tensor, int64_t rank)
{
    pl_box whole = {0, whole_rows(tensor)};
    switch (tensor->class_) {
    case PL_CLASS_DENSE: return pl_placement_dense_box(layout, whole.end, rank);
    case PL_CLASS_EXPERT:
        return pl_placement_expert_box(layout, tensor->experts, tensor->rows, rank);
    case PL_CLASS_IGNORED:
    case PL_TENSOR_CLASS_COUNT: break;
    }
    return whole;
}

int64_t pl_placement_padded_rows(const pl_layout *layout, const pl_tensor *tensor)
{
    switch (tensor->class_) {
    case PL_CLASS_DENSE: return pl_placement_dense_padded(layout, whole_rows(tensor));
    case PL_CLASS_EXPERT: return pl_placement_expert_padded(layout, tensor->experts, tensor->rows);
    case PL_CLASS_IGNORED:
    case PL_TENSOR_CLASS_COUNT: break;
    }
    return whole_rows(tensor);
}

pl_group_role pl_placement_shard_role(const pl_tensor *tensor)
{
    switch (tensor->class_) {
    case PL_CLASS_DENSE: return PL_GROUP_DENSE_SHARD;
    case PL_CLASS_EXPERT: return PL_GROUP_EXPERT_SHARD;
    case PL_CLASS_IGNORED:
    case PL_TENSOR_CLASS_COUNT: break;
    }
    return PL_GROUP_NONE;
}

pl_group_role pl_placement_replica_role(const pl_tensor *tensor)
{
    switch (tensor->class_) {
    case PL_CLASS_DENSE: return PL_GROUP_DENSE_REPLICA;
    case PL_CLASS_EXPERT: return PL_GROUP_EXPERT_REPLICA;
    case PL_CLASS_IGNORED:
    case PL_TENSOR_CLASS_COUNT: break;
    }
    return PL_GROUP_STAGE;
}

static int64_t greatest_common_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static pl_status check_experts(const pl_layout *layout, const pl_model *model, const char *notation)
{
    pl_text text = {0};
    if (model->num_experts == 0 && layout->ep == 1) return PL_OK;
    if (model->num_experts > 0 && model->num_experts % layout->ep == 0) return PL_OK;
    pl_layout_add_place(&text, notation, 0);
    if (model->num_experts == 0) {
        pl_text_add(&text,
                    "ep=%" PRId64 ", but model %s is dense (0 routed experts); ep=1 would fit",
                    layout->ep, model->name);
        return pl_layout_refuse(PL_BAD_INPUT, &text);
    }
    /* What fits must also divide what this layout cuts ep from. */
    int64_t ranks = layout->stage_ranks / layout->replicas;
    if (layout->kind == PL_LAYOUT_SINGLE) ranks /= layout->cp;
    pl_text_add(&text, "ep=%" PRId64 " does not divide the %" PRId64 " experts of model %s; ",
                layout->ep, model->num_experts, model->name);
    pl_layout_add_divisors(&text, "ep", greatest_common_divisor(ranks, model->num_experts),
                           layout->ep);
    pl_text_add_string(&text, " would fit");
    return pl_layout_refuse(PL_BAD_INPUT, &text);
}

/* Largest divisor of NUMBER that is at most LIMIT; 1 when LIMIT is less. */
static int64_t divisor_up_to(int64_t number, int64_t limit)
{
    for (int64_t divisor = limit; divisor > 1; --divisor)
        if (number % divisor == 0) return divisor;
    return 1;
}

static pl_status check_stages(const pl_layout *layout, const pl_model *model, const char *notation)
{
    if (layout->pp <= model->num_hidden_layers) return PL_OK;
    pl_text text = {0};
    pl_layout_add_place(&text, notation, 0);
    /* A divisor of pp keeps every other division of the layout exact. */
    pl_text_add(&text,
                "pp=%" PRId64 " stages for the %" PRId64 " layers of model %s, at least one layer "
                "a stage; pp=%" PRId64 " would fit",
                layout->pp, model->num_hidden_layers, model->name,
                divisor_up_to(layout->pp, model->num_hidden_layers));
    return pl_layout_refuse(PL_BAD_INPUT, &text);
}

pl_status pl_placement_check(const pl_layout *layout, const pl_model *model)
{
    char notation[PL_LAYOUT_TEXT];
    pl_layout_format(layout, notation);
    PL_TRY(check_experts(layout, model, notation));
    return check_stages(layout, model, notation);
}
