/* What the tensors of each part of the model come to, by the checkers' own sums. */
#include <string.h>

#include "common/memory.h"
#include "sim/expect.h"

static pl_expected_part *part_of(pl_expected_parts *parts, const pl_tensor *tensor)
{
    if (tensor->role == PL_TENSOR_ROUTED) return &parts->experts[tensor->layer];
    if (tensor->layer >= 0) return &parts->layer[tensor->layer];
    if (tensor->role == PL_TENSOR_EMBEDDING) return &parts->embedding;
    return tensor->role == PL_TENSOR_HEAD ? &parts->head : &parts->norm;
}

static bool in_second_module(const pl_tensor *tensor)
{
    return tensor->layer >= 0 &&
           (tensor->role == PL_TENSOR_DENSE_MLP || tensor->role == PL_TENSOR_ROUTER ||
            tensor->role == PL_TENSOR_SHARED ||
            strncmp(tensor->suffix, "post_attention", strlen("post_attention")) == 0);
}

static void add_tensor(pl_expected_parts *parts, const pl_plan *plan,
                       const pl_expected_groups *groups, const pl_tensor *tensor)
{
    const pl_precision *precision = &plan->settings.precision;
    pl_expected_part *part = part_of(parts, tensor);
    bool second = in_second_module(tensor), whole = tensor->class_ == PL_CLASS_IGNORED;
    int64_t rows = pl_expected_padded_rows(groups, &plan->layout, tensor);
    pl_group_role role =
        tensor->role == PL_TENSOR_ROUTED ? PL_GROUP_EXPERT_SHARD : PL_GROUP_DENSE_SHARD;
    part->exists = true;
    part->shards = groups->size[role];
    if (whole) {
        *(tensor->frozen ? &part->whole_frozen : &part->whole) += rows * tensor->cols;
        if (!tensor->frozen) *(second ? &part->whole_feed : &part->whole_attention) = true;
        return;
    }
    pl_dtype wire = tensor->frozen ? plan->model.stored_dtype : precision->gather;
    *(tensor->frozen ? &part->frozen : &part->trained) += rows * tensor->cols;
    part->wire_bytes += rows * tensor->cols * pl_dtype_bytes(wire);
    if (wire != precision->compute) part->cast = true;
    if (!tensor->frozen) *(second ? &part->sharded_feed : &part->sharded_attention) = true;
}

/* Trained tensors travel in the wire's type, frozen ones as they are stored. */
static void set_wire(pl_expected_part *part, const pl_plan *plan)
{
    pl_dtype trained = plan->settings.precision.gather, frozen = plan->model.stored_dtype;
    if (part->frozen == 0)
        part->wire = trained;
    else if (part->trained == 0)
        part->wire = frozen;
    else
        part->wire = trained == frozen ? trained : PL_U8;
}

static int32_t place_of_first_trained(const pl_plan *plan)
{
    int32_t first = INT32_MAX;
    for (int64_t i = 0; i < plan->model.tensor_count; ++i) {
        const pl_tensor *tensor = &plan->model.tensors[i];
        int32_t layers = (int32_t)plan->model.num_hidden_layers, place = 3 * layers + 1;
        if (tensor->frozen) continue;
        if (tensor->layer >= 0)
            place = 3 * tensor->layer + (tensor->role == PL_TENSOR_ROUTED ? 3
                                         : in_second_module(tensor)       ? 2
                                                                          : 1);
        else if (tensor->role == PL_TENSOR_EMBEDDING)
            place = 0;
        else if (tensor->role == PL_TENSOR_HEAD)
            place = 3 * layers + 2;
        if (place < first) first = place;
    }
    return first;
}

pl_status pl_expected_parts_make(pl_expected_parts *out, const pl_plan *plan,
                                 const pl_expected_groups *groups)
{
    pl_expected_parts parts = {.layers = (int32_t)plan->model.num_hidden_layers};
    size_t layers = (size_t)parts.layers;
    pl_status status = pl_allocate(&parts.layer, layers, sizeof *parts.layer, "parts");
    if (status == PL_OK)
        status = pl_allocate(&parts.experts, layers, sizeof *parts.experts, "parts");
    if (status != PL_OK) {
        pl_expected_parts_free(&parts);
        return status;
    }
    for (int64_t i = 0; i < plan->model.tensor_count; ++i)
        add_tensor(&parts, plan, groups, &plan->model.tensors[i]);
    parts.tied = !parts.head.exists;
    set_wire(&parts.embedding, plan);
    set_wire(&parts.norm, plan);
    set_wire(&parts.head, plan);
    for (size_t i = 0; i < layers; ++i) {
        set_wire(&parts.layer[i], plan);
        set_wire(&parts.experts[i], plan);
    }
    parts.first_trained = place_of_first_trained(plan);
    *out = parts;
    return PL_OK;
}

void pl_expected_parts_free(pl_expected_parts *parts)
{
    pl_free(parts->layer);
    pl_free(parts->experts);
    memset(parts, 0, sizeof *parts);
}

const pl_expected_part *pl_expected_part_of(const pl_expected_parts *parts, pl_subject subject,
                                            int32_t layer)
{
    static const pl_expected_part none = {0};
    bool inside = layer >= 0 && layer < parts->layers;
    switch (subject) {
    case PL_SUBJECT_EMBEDDING: return &parts->embedding;
    case PL_SUBJECT_NORM: return &parts->norm;
    case PL_SUBJECT_HEAD: return &parts->head;
    case PL_SUBJECT_LAYER: return inside ? &parts->layer[layer] : &none;
    case PL_SUBJECT_EXPERTS: return inside ? &parts->experts[layer] : &none;
    default: return &none;
    }
}

static int64_t elements(const pl_plan *plan, const pl_expected_groups *groups,
                        const pl_tensor *tensor, int64_t rank)
{
    int64_t begin = 0, end = 0;
    pl_expected_rows(groups, &plan->layout, tensor, rank, &begin, &end);
    return (end - begin) * tensor->cols;
}

int64_t pl_expected_trained_elements(const pl_plan *plan, const pl_expected_groups *groups,
                                     int64_t rank)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < plan->model.tensor_count; ++i)
        if (!plan->model.tensors[i].frozen)
            sum += elements(plan, groups, &plan->model.tensors[i], rank);
    return sum;
}

static int64_t part_elements(const pl_plan *plan, const pl_expected_groups *groups,
                             pl_subject subject, int32_t layer, bool whole, bool trained,
                             int64_t rank)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < plan->model.tensor_count; ++i) {
        const pl_tensor *tensor = &plan->model.tensors[i];
        pl_subject own = tensor->role == PL_TENSOR_ROUTED      ? PL_SUBJECT_EXPERTS
                         : tensor->layer >= 0                  ? PL_SUBJECT_LAYER
                         : tensor->role == PL_TENSOR_EMBEDDING ? PL_SUBJECT_EMBEDDING
                         : tensor->role == PL_TENSOR_HEAD      ? PL_SUBJECT_HEAD
                                                               : PL_SUBJECT_NORM;
        if (own != subject || tensor->layer != layer) continue;
        if ((tensor->class_ == PL_CLASS_IGNORED) != whole || (trained && tensor->frozen)) continue;
        sum += elements(plan, groups, tensor, rank);
    }
    return sum;
}

int64_t pl_expected_part_elements(const pl_plan *plan, const pl_expected_groups *groups,
                                  pl_subject subject, int32_t layer, bool whole, int64_t rank)
{
    return part_elements(plan, groups, subject, layer, whole, false, rank);
}

int64_t pl_expected_part_trained(const pl_plan *plan, const pl_expected_groups *groups,
                                 pl_subject subject, int32_t layer, bool whole, int64_t rank)
{
    return part_elements(plan, groups, subject, layer, whole, true, rank);
}
