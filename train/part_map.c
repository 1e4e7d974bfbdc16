#include "train/part_map.h"

#include <string.h>

#include "common/memory.h"
#include "common/placement.h"

/* --- making --- */

/* The largest buffer of a part is fp32 or less, every shard of it: count that, and all others can
 * be counted. */
static pl_status check_countable(const pl_part_map *map, int32_t part)
{
    static const char *const what = "bytes of a part";
    const pl_part *p = &map->parts.part[part];
    int64_t elements = 0, whole = 0;
    PL_TRY(pl_add(&elements, p->trained_elements, p->frozen_elements, what));
    PL_TRY(pl_multiply(&whole, elements, map->shards[part], what));
    PL_TRY(pl_multiply(&whole, whole, 8, what));
    PL_TRY(pl_add(&elements, p->ignored_elements, p->ignored_frozen_elements, what));
    return pl_multiply(&whole, elements, 8, what);
}

static pl_status refuse_alignment(const pl_tensor *tensor, pl_dtype dtype)
{
    pl_text name = {0};
    pl_tensor_name(&name, tensor);
    pl_status status = pl_text_status(&name);
    if (status == PL_OK)
        status = PL_FAIL(PL_UNSUPPORTED,
                         "tensor %s (%s) would not stand at a multiple of its type's bytes behind "
                         "tensors of another type; train or freeze the whole part, or freeze "
                         "tensors with an even number of elements a rank",
                         pl_text_string(&name), pl_dtype_name(dtype));
    pl_text_free(&name);
    return status;
}

/* Fill in ITEM, which stands behind what TOTALS counts, and count it. */
static pl_status add_item(const pl_part_map *map, pl_map_item *item, const pl_layout *layout,
                          int64_t rank, pl_map_item *totals)
{
    const pl_tensor *tensor = item->tensor;
    pl_box box = pl_placement_box(layout, tensor, rank);
    int64_t rows = pl_tensor_total_rows(tensor);
    item->ignored = tensor->class_ == PL_CLASS_IGNORED;
    item->frozen = tensor->frozen;
    item->wire = pl_parts_wire_dtype(map->model, &map->precision, tensor);
    item->initial = tensor->frozen && !item->ignored ? map->model->stored_dtype : PL_FP32;
    item->padded_rows = pl_placement_padded_rows(layout, tensor);
    item->shard_begin = box.begin;
    item->shard_end = box.end;
    item->whole_end = rows;
    if (tensor->class_ == PL_CLASS_EXPERT) {
        int64_t owners = pl_layout_group_size(layout, PL_GROUP_EXPERT_OWNER);
        int64_t owner = pl_layout_group_index(layout, PL_GROUP_EXPERT_OWNER, rank);
        int64_t own = tensor->experts / owners * tensor->rows;
        item->whole_begin = owner * own;
        item->whole_end = item->whole_begin + own;
    }
    item->elements_before = totals->elements_before;
    item->trained_before = totals->trained_before;
    item->ignored_before = totals->ignored_before;
    item->ignored_trained_before = totals->ignored_trained_before;
    item->wire_before = totals->wire_before;
    item->initial_before = totals->initial_before;
    int64_t elements = item->padded_rows * tensor->cols;
    if (item->ignored) {
        totals->ignored_before += elements;
        if (!item->frozen) totals->ignored_trained_before += elements;
        return PL_OK;
    }
    if (item->wire_before % pl_dtype_bytes(item->wire) != 0)
        return refuse_alignment(tensor, item->wire);
    if (item->initial_before % pl_dtype_bytes(item->initial) != 0)
        return refuse_alignment(tensor, item->initial);
    totals->elements_before += elements;
    if (!item->frozen) totals->trained_before += elements;
    totals->wire_before += elements * pl_dtype_bytes(item->wire);
    totals->initial_before += elements * pl_dtype_bytes(item->initial);
    return PL_OK;
}

static pl_status fill(pl_part_map *map, const pl_layout *layout, int64_t rank)
{
    for (int32_t i = 0; i < map->parts.part_count; ++i) {
        const pl_part *part = &map->parts.part[i];
        pl_map_item totals = {0};
        map->shards[i] = pl_layout_group_size(layout, part->shard_role);
        PL_TRY(check_countable(map, i));
        for (int64_t j = part->first_tensor; j < part->first_tensor + part->tensor_count; ++j) {
            map->items[j].tensor = &map->model->tensors[j];
            map->items[j].part = i;
            PL_TRY(add_item(map, &map->items[j], layout, rank, &totals));
        }
    }
    return PL_OK;
}

pl_status pl_part_map_make(pl_part_map *out, const pl_model *model, const pl_layout *layout,
                           const pl_precision *precision, int64_t rank)
{
    pl_part_map map = {.model = model, .precision = *precision};
    size_t tensors = (size_t)model->tensor_count;
    pl_status status = pl_parts_make(&map.parts, model, layout, precision);
    PL_TRY_TO(status, failed, status);
    PL_TRY_TO(status, failed, pl_allocate(&map.items, tensors, sizeof *map.items, "tensors"));
    PL_TRY_TO(status, failed,
              pl_allocate(&map.shards, (size_t)map.parts.part_count, sizeof *map.shards, "parts"));
    PL_TRY_TO(status, failed, fill(&map, layout, rank));
    *out = map;
    return PL_OK;
failed:
    pl_part_map_free(&map);
    return status;
}

void pl_part_map_free(pl_part_map *map)
{
    pl_parts_free(&map->parts);
    pl_free(map->items);
    pl_free(map->shards);
    memset(map, 0, sizeof *map);
}

/* --- asking --- */

int32_t pl_part_map_part(const pl_part_map *map, pl_subject subject, int32_t layer)
{
    const pl_parts *parts = &map->parts;
    bool has_layer = layer >= 0 && layer < parts->layer_count;
    switch (subject) {
    case PL_SUBJECT_EMBEDDING: return parts->embedding;
    case PL_SUBJECT_NORM: return parts->norm;
    case PL_SUBJECT_HEAD: return parts->head;
    case PL_SUBJECT_LAYER: return has_layer ? parts->layer[layer] : -1;
    case PL_SUBJECT_EXPERTS: return has_layer ? parts->experts[layer] : -1;
    default: return -1;
    }
}

int64_t pl_part_map_find(const pl_part_map *map, int32_t part, const char *suffix)
{
    const pl_part *p = &map->parts.part[part];
    for (int64_t i = p->first_tensor; i < p->first_tensor + p->tensor_count; ++i)
        if (strcmp(map->model->tensors[i].suffix, suffix) == 0) return i;
    return -1;
}

/* How a kind of buffer is laid out. */
typedef struct form {
    bool of_part, ignored; /* holds sharded tensors, or those kept whole */
    bool trained;          /* ... only trained ones */
    bool whole;            /* every member's shard */
    bool wire, initial;    /* types differ by tensor, as param's or initial's */
    pl_dtype dtype;        /* else */
} form;

static form form_of(const pl_part_map *map, pl_buffer_kind kind)
{
    form f = {.of_part = true, .dtype = PL_FP32};
    switch (pl_buffer_kind_held(kind)) {
    case PL_BUF_PARAMETER: f.wire = true; break;
    case PL_BUF_WIRE: f.wire = f.whole = true; break;
    case PL_BUF_FULL:
        f.whole = true;
        f.dtype = map->precision.compute;
        break;
    case PL_BUF_INITIAL:
    case PL_BUF_OUTGOING: f.initial = true; break;
    case PL_BUF_GRADIENT_SUM: f.trained = f.whole = true; break;
    case PL_BUF_GRADIENT_WIRE:
        f.trained = f.whole = true;
        f.dtype = map->precision.gradient;
        break;
    case PL_BUF_GRADIENT_PIECE:
        f.trained = true;
        f.dtype = map->precision.gradient;
        break;
    case PL_BUF_MASTER:
    case PL_BUF_ADAM_M:
    case PL_BUF_ADAM_V:
    case PL_BUF_GRADIENT: f.trained = true; break;
    case PL_BUF_IGNORED:
    case PL_BUF_INITIAL_IGNORED:
    case PL_BUF_OUTGOING_IGNORED: f.ignored = true; break;
    case PL_BUF_IGNORED_M:
    case PL_BUF_IGNORED_V:
    case PL_BUF_IGNORED_GRADIENT: f.ignored = f.trained = true; break;
    default: f.of_part = false;
    }
    return f;
}

bool pl_part_map_place(const pl_part_map *map, pl_buffer_kind kind, int64_t item, pl_map_place *out)
{
    form f = form_of(map, kind);
    const pl_map_item *i = &map->items[item];
    int64_t copies = f.whole ? map->shards[i->part] : 1;
    if (!f.of_part || f.ignored != i->ignored || (f.trained && i->frozen)) return false;
    pl_map_place place = {.dtype = f.dtype, .cols = i->tensor->cols};
    if (f.wire) {
        place.dtype = i->wire;
        place.offset = copies * i->wire_before;
    } else if (f.initial) {
        place.dtype = i->initial;
        place.offset = i->initial_before;
    } else {
        int64_t before = f.ignored   ? f.trained ? i->ignored_trained_before : i->ignored_before
                         : f.trained ? i->trained_before
                                     : i->elements_before;
        place.offset = copies * before * pl_dtype_bytes(f.dtype);
    }
    place.room = copies * i->padded_rows;
    place.begin = f.whole ? i->whole_begin : i->shard_begin;
    place.end = f.whole ? i->whole_end : i->shard_end;
    *out = place;
    return true;
}

int64_t pl_part_map_bytes(const pl_part_map *map, pl_buffer_kind kind, int32_t part)
{
    form f = form_of(map, kind);
    const pl_part *p = &map->parts.part[part];
    int64_t bytes = 0;
    if (!f.of_part) return -1;
    for (int64_t i = p->first_tensor; i < p->first_tensor + p->tensor_count; ++i) {
        pl_map_place place;
        if (pl_part_map_place(map, kind, i, &place))
            bytes += place.room * place.cols * pl_dtype_bytes(place.dtype);
    }
    return bytes;
}
