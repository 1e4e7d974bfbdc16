#include "common/parts.h"

#include <string.h>

#include "common/memory.h"
#include "common/placement.h"

pl_dtype pl_parts_wire_dtype(const pl_model *model, const pl_precision *precision,
                             const pl_tensor *tensor)
{
    return tensor->frozen ? model->stored_dtype : precision->gather;
}

/* Input norm and attention are one module of a layer; norm, router, MLP the other. */
static pl_module module_of(const pl_part *part, const pl_tensor *tensor)
{
    if (part->subject != PL_SUBJECT_LAYER || tensor->role == PL_TENSOR_ATTENTION ||
        strcmp(tensor->suffix, "input_layernorm.weight") == 0)
        return PL_MODULE_FIRST;
    return PL_MODULE_SECOND;
}

/* The type of two things together: bytes where they differ. */
static pl_dtype common_type(pl_dtype a, pl_dtype b) { return a == b ? a : PL_U8; }

static pl_status add_tensor(pl_part *part, const pl_model *model, const pl_layout *layout,
                            const pl_precision *precision, const pl_tensor *tensor)
{
    static const char *const what = "elements of a part";
    pl_module module = module_of(part, tensor);
    if (tensor->class_ == PL_CLASS_IGNORED) {
        int64_t *sum = tensor->frozen ? &part->ignored_frozen_elements : &part->ignored_elements;
        part->trained_ignored[module] |= !tensor->frozen;
        return pl_add(sum, *sum, pl_tensor_elements(tensor), what);
    }
    pl_dtype wire = pl_parts_wire_dtype(model, precision, tensor);
    int64_t *sum = tensor->frozen ? &part->frozen_elements : &part->trained_elements;
    int64_t elements = 0, bytes = 0;
    PL_TRY(pl_multiply(&elements, pl_placement_padded_rows(layout, tensor), tensor->cols, what));
    PL_TRY(pl_multiply(&bytes, elements, pl_dtype_bytes(wire), what));
    PL_TRY(pl_add(sum, *sum, elements, what));
    part->wire = part->wire_bytes == 0 ? wire : common_type(part->wire, wire);
    part->trained_sharded[module] |= !tensor->frozen;
    part->cast_after_gather |= wire != precision->compute;
    return pl_add(&part->wire_bytes, part->wire_bytes, bytes, what);
}

static pl_status make_part(pl_parts *parts, const pl_model *model, const pl_layout *layout,
                           const pl_precision *precision, pl_subject subject, int64_t first)
{
    const pl_tensor *tensor = &model->tensors[first];
    pl_part *part = &parts->part[parts->part_count];
    memset(part, 0, sizeof *part);
    part->subject = subject;
    part->layer = tensor->layer;
    part->first_tensor = first;
    part->like = parts->part_count;
    bool routed = subject == PL_SUBJECT_EXPERTS;
    part->shard_role = routed ? PL_GROUP_EXPERT_SHARD : PL_GROUP_DENSE_SHARD;
    part->replica_role = routed ? PL_GROUP_EXPERT_REPLICA : PL_GROUP_DENSE_REPLICA;
    for (int64_t i = first; i < model->tensor_count; ++i, ++part->tensor_count) {
        tensor = &model->tensors[i];
        if (tensor->layer != part->layer || (tensor->role == PL_TENSOR_ROUTED) != routed) break;
        if (part->layer < 0 && i > first) break;
        PL_TRY(add_tensor(part, model, layout, precision, tensor));
    }
    ++parts->part_count;
    return PL_OK;
}

static bool same_shape(const pl_model *model, const pl_part *a, const pl_part *b)
{
    if (a->subject != b->subject || a->tensor_count != b->tensor_count) return false;
    for (int64_t i = 0; i < a->tensor_count; ++i) {
        const pl_tensor *s = &model->tensors[a->first_tensor + i];
        const pl_tensor *t = &model->tensors[b->first_tensor + i];
        if (s->rows != t->rows || s->cols != t->cols || s->experts != t->experts ||
            s->class_ != t->class_ || s->frozen != t->frozen || s->suffix != t->suffix)
            return false;
    }
    return true;
}

/* Layers repeat few shapes: compare with the last part of each kind before it. */
static void find_likes(pl_parts *parts, const pl_model *model)
{
    for (int32_t i = 0; i < parts->part_count; ++i) {
        int compared = 0;
        for (int32_t j = i - 1; j >= 0 && compared < 8; --j) {
            if (parts->part[j].like != j || parts->part[j].subject != parts->part[i].subject)
                continue;
            ++compared;
            if (!same_shape(model, &parts->part[j], &parts->part[i])) continue;
            parts->part[i].like = j;
            break;
        }
    }
}

static pl_status make_units(pl_parts *parts, const pl_layout *layout)
{
    for (int32_t i = 0; i < parts->part_count; ++i) {
        pl_part *part = &parts->part[i];
        bool joins = part->subject == PL_SUBJECT_EXPERTS && layout->kind == PL_LAYOUT_LEGACY;
        if (!joins) parts->unit_count++;
        pl_unit *unit = &parts->unit[parts->unit_count - 1];
        if (!joins) {
            unit->shard_role = part->shard_role;
            unit->shards = pl_layout_group_size(layout, part->shard_role);
        }
        bool first = unit->wire_bytes == 0;
        if (part->wire_bytes > 0)
            unit->wire = first ? part->wire : common_type(unit->wire, part->wire);
        unit->part[unit->part_count++] = i;
        part->unit = parts->unit_count - 1;
        PL_TRY(pl_add(&unit->wire_bytes, unit->wire_bytes, part->wire_bytes, "bytes of a unit"));
    }
    return PL_OK;
}

static pl_status make_parts(pl_parts *parts, const pl_model *model, const pl_layout *layout,
                            const pl_precision *precision)
{
    parts->embedding = parts->norm = parts->head = -1;
    for (int64_t i = 0; i < model->tensor_count;) {
        const pl_tensor *tensor = &model->tensors[i];
        int32_t number = parts->part_count;
        pl_subject subject = PL_SUBJECT_LAYER;
        if (tensor->role == PL_TENSOR_EMBEDDING) {
            subject = PL_SUBJECT_EMBEDDING;
            parts->embedding = number;
        } else if (tensor->role == PL_TENSOR_HEAD) {
            subject = PL_SUBJECT_HEAD;
            parts->head = number;
        } else if (tensor->layer < 0) {
            subject = PL_SUBJECT_NORM;
            parts->norm = number;
        } else if (tensor->role == PL_TENSOR_ROUTED) {
            subject = PL_SUBJECT_EXPERTS;
            parts->experts[tensor->layer] = number;
        } else {
            parts->layer[tensor->layer] = number;
        }
        PL_TRY(make_part(parts, model, layout, precision, subject, i));
        i += parts->part[number].tensor_count;
    }
    if (parts->head < 0) parts->head = parts->embedding;
    find_likes(parts, model);
    return make_units(parts, layout);
}

pl_status pl_parts_make(pl_parts *out, const pl_model *model, const pl_layout *layout,
                        const pl_precision *precision)
{
    pl_parts parts = {.layer_count = (int32_t)model->num_hidden_layers};
    size_t layers = (size_t)parts.layer_count, most = 2 * layers + 3;
    pl_status status = pl_allocate(&parts.part, most, sizeof *parts.part, "parts");
    PL_TRY_TO(status, failed, status);
    PL_TRY_TO(status, failed, pl_allocate(&parts.unit, most, sizeof *parts.unit, "units"));
    PL_TRY_TO(status, failed, pl_allocate(&parts.layer, layers, sizeof *parts.layer, "parts"));
    PL_TRY_TO(status, failed, pl_allocate(&parts.experts, layers, sizeof *parts.experts, "parts"));
    for (size_t i = 0; i < layers; ++i) parts.experts[i] = -1;
    PL_TRY_TO(status, failed, make_parts(&parts, model, layout, precision));
    *out = parts;
    return PL_OK;
failed:
    pl_parts_free(&parts);
    return status;
}

void pl_parts_free(pl_parts *parts)
{
    pl_free(parts->part);
    pl_free(parts->unit);
    pl_free(parts->layer);
    pl_free(parts->experts);
    memset(parts, 0, sizeof *parts);
}

int64_t pl_parts_payload(const pl_parts *parts, const pl_model *model, const pl_layout *layout,
                         const pl_precision *precision, int32_t part, pl_payload_item *items,
                         int64_t most)
{
    const pl_part *p = &parts->part[part];
    int64_t count = 0, offset = 0;
    for (int64_t i = p->first_tensor; i < p->first_tensor + p->tensor_count; ++i) {
        const pl_tensor *tensor = &model->tensors[i];
        if (tensor->class_ == PL_CLASS_IGNORED) continue;
        pl_dtype wire = pl_parts_wire_dtype(model, precision, tensor);
        int64_t rows = pl_placement_padded_rows(layout, tensor);
        if (count < most) items[count] = (pl_payload_item){i, wire, rows, offset, 0};
        ++count;
        offset += rows * tensor->cols * pl_dtype_bytes(wire);
    }
    return count;
}

int64_t pl_parts_local_elements(const pl_parts *parts, const pl_model *model,
                                const pl_layout *layout, int32_t part, int64_t rank, bool frozen)
{
    const pl_part *p = &parts->part[part];
    int64_t elements = 0;
    for (int64_t i = 0; i < p->tensor_count; ++i) {
        const pl_tensor *tensor = &model->tensors[p->first_tensor + i];
        if (tensor->class_ == PL_CLASS_IGNORED || tensor->frozen != frozen) continue;
        pl_box box = pl_placement_box(layout, tensor, rank);
        elements += (box.end - box.begin) * tensor->cols;
    }
    return elements;
}
