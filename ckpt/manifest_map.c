#include "ckpt/manifest_map.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/memory.h"

void pl_checkpoint_rows_print(pl_text *text, const pl_tensor *tensor, pl_value_kind kind,
                              int64_t row_begin, int64_t row_end)
{
    pl_text_add(text, "rows %" PRId64 "-%" PRId64 " of ", row_begin, row_end - 1);
    pl_tensor_name(text, tensor);
    pl_text_add(text, " (%s)", pl_value_kind_name(kind));
}

/* --- collecting --- */

static pl_status add_pieces(pl_checkpoint_map *map, const pl_checkpoint_boxes *boxes,
                            int64_t source)
{
    PL_TRY(pl_grow(&map->piece, &map->capacity, map->count + boxes->count, sizeof *map->piece,
                   "pieces of a checkpoint"));
    for (size_t i = 0; i < boxes->count; ++i) {
        const pl_checkpoint_box *box = &boxes->box[i];
        map->piece[map->count++] = (pl_checkpoint_piece){.row_begin = box->row_begin,
                                                         .row_end = box->row_end,
                                                         .offset = box->offset,
                                                         .first_sum = box->first_sum,
                                                         .source = (int32_t)source,
                                                         .tensor = box->tensor,
                                                         .kind = box->kind};
    }
    return PL_OK;
}

pl_status pl_checkpoint_map_begin(pl_checkpoint_map *map, int64_t ranks)
{
    *map = (pl_checkpoint_map){0};
    return pl_allocate(&map->source, (size_t)ranks, sizeof *map->source, "files of a checkpoint");
}

pl_status pl_checkpoint_map_add(pl_checkpoint_map *map, const pl_rank_boxes *rank, int64_t source)
{
    map->source[source] = (pl_checkpoint_source){.rank = rank->rank,
                                                 .bytes = rank->data_bytes,
                                                 .sums = rank->boxes.sums,
                                                 .outside_hash = rank->outside_hash,
                                                 .sums_hash = rank->sums_hash};
    return add_pieces(map, &rank->boxes, source);
}

static pl_status read_sources(pl_checkpoint_map *map, const pl_manifest *manifest,
                              const char *folder)
{
    PL_TRY(pl_checkpoint_map_begin(map, manifest->rank_count));
    for (int64_t i = 0; i < manifest->rank_count; ++i) {
        pl_rank_boxes rank;
        PL_TRY(pl_rank_boxes_read(&rank, manifest, folder, i));
        pl_status status = pl_checkpoint_map_add(map, &rank, i);
        pl_rank_boxes_free(&rank);
        PL_TRY(status);
    }
    return PL_OK;
}

static pl_status plan_sources(pl_checkpoint_map *map, const pl_model *model,
                              const pl_kept_values *kept, const pl_layout *layout)
{
    PL_TRY(pl_checkpoint_map_begin(map, layout->world));
    for (int64_t rank = 0; rank < layout->world; ++rank) {
        pl_checkpoint_boxes boxes;
        PL_TRY(pl_checkpoint_boxes_of_rank(&boxes, model, kept, layout, rank));
        map->source[rank] =
            (pl_checkpoint_source){.rank = rank, .bytes = boxes.bytes, .sums = boxes.sums};
        pl_status status = add_pieces(map, &boxes, rank);
        pl_checkpoint_boxes_free(&boxes);
        PL_TRY(status);
    }
    return PL_OK;
}

/* --- order and cover --- */

static int compare(const void *a, const void *b)
{
    const pl_checkpoint_piece *left = a, *right = b;
    if (left->kind != right->kind) return left->kind < right->kind ? -1 : 1;
    if (left->tensor != right->tensor) return left->tensor < right->tensor ? -1 : 1;
    if (left->row_begin != right->row_begin) return left->row_begin < right->row_begin ? -1 : 1;
    return (left->source > right->source) - (left->source < right->source);
}

pl_status pl_checkpoint_map_sort(pl_checkpoint_map *map, const pl_model *model)
{
    size_t tensors = (size_t)model->tensor_count, lists = PL_VALUE_KIND_COUNT * tensors, next = 0;
    if (map->count > 0) qsort(map->piece, map->count, sizeof *map->piece, compare);
    PL_TRY(pl_allocate(&map->first, lists + 1, sizeof *map->first, "pieces of tensors"));
    for (size_t i = 0; i < lists; ++i) {
        map->first[i] = next;
        while (next < map->count &&
               map->piece[next].kind * tensors + (size_t)map->piece[next].tensor == i)
            ++next;
    }
    map->first[lists] = next;
    return PL_OK;
}

void pl_cover_fault_print(pl_text *text, const pl_cover_fault *fault)
{
    if (fault->first < 0)
        pl_text_add_string(text, "are in no rank's file");
    else
        pl_text_add(text, "are twice there: rank %" PRId64 " and rank %" PRId64, fault->first,
                    fault->second);
}

/* What a look at the pieces of one tensor needs. */
typedef struct cover {
    const pl_checkpoint_map *map;
    pl_cover_visit visit;
    void *context;
    pl_cover_fault fault; /* of this tensor and kind */
} cover;

static pl_status tell(cover *c, int64_t begin, int64_t end, int64_t first, int64_t second)
{
    c->fault.row_begin = begin;
    c->fault.row_end = end;
    c->fault.first = first;
    c->fault.second = second;
    return c->visit(c->context, &c->fault);
}

static pl_status check_pieces(cover *c, const pl_checkpoint_piece *pieces, size_t count,
                              int64_t rows)
{
    int64_t next = 0; /* rows before it are there */
    size_t last = 0;  /* the piece that goes on the longest so far */
    for (size_t i = 0; i < count; ++i) {
        const pl_checkpoint_piece *piece = &pieces[i];
        if (piece->row_begin > next) PL_TRY(tell(c, next, piece->row_begin, -1, -1));
        if (piece->row_begin < next)
            PL_TRY(tell(c, piece->row_begin, piece->row_end < next ? piece->row_end : next,
                        c->map->source[pieces[last].source].rank,
                        c->map->source[piece->source].rank));
        if (piece->row_end <= next) continue;
        next = piece->row_end;
        last = i;
    }
    return next < rows ? tell(c, next, rows, -1, -1) : PL_OK;
}

pl_status pl_checkpoint_map_check(const pl_checkpoint_map *map, const pl_model *model,
                                  const pl_kept_values *kept, pl_cover_visit visit, void *context)
{
    cover c = {.map = map, .visit = visit, .context = context};
    for (int kind = 0; kind < PL_VALUE_KIND_COUNT; ++kind) {
        for (int64_t i = 0; i < model->tensor_count; ++i) {
            size_t count = 0;
            if (!pl_keeps(&kept[i], (pl_value_kind)kind)) continue;
            const pl_checkpoint_piece *pieces =
                pl_checkpoint_map_pieces(map, model->tensor_count, (pl_value_kind)kind, i, &count);
            c.fault.tensor = (int32_t)i;
            c.fault.kind = (uint8_t)kind;
            PL_TRY(check_pieces(&c, pieces, count, pl_tensor_total_rows(&model->tensors[i])));
        }
    }
    return PL_OK;
}

static pl_status refuse(void *context, const pl_cover_fault *fault)
{
    const pl_model *const *model = context;
    pl_text words = {0};
    pl_checkpoint_rows_print(&words, &(*model)->tensors[fault->tensor], (pl_value_kind)fault->kind,
                             fault->row_begin, fault->row_end);
    pl_text_add_string(&words, " ");
    pl_cover_fault_print(&words, fault);
    pl_status status = pl_text_status(&words);
    if (status == PL_OK) status = PL_FAIL(PL_BAD_INPUT, "%s", pl_text_string(&words));
    pl_text_free(&words);
    return status;
}

static pl_status finish(pl_checkpoint_map *map, const pl_model *model, const pl_kept_values *kept)
{
    PL_TRY(pl_checkpoint_map_sort(map, model));
    return pl_checkpoint_map_check(map, model, kept, refuse, &model);
}

pl_status pl_checkpoint_map_read(pl_checkpoint_map *out, const pl_manifest *manifest,
                                 const char *folder)
{
    pl_checkpoint_map map = {0};
    pl_status status = read_sources(&map, manifest, folder);
    if (status == PL_OK) {
        status = finish(&map, &manifest->model, manifest->kept);
        if (status != PL_OK) pl_error_context("the checkpoint %s", folder);
    }
    if (status == PL_OK)
        *out = map;
    else
        pl_checkpoint_map_free(&map);
    return status;
}

pl_status pl_checkpoint_map_plan(pl_checkpoint_map *out, const pl_model *model,
                                 const pl_kept_values *kept, const pl_layout *layout)
{
    pl_checkpoint_map map = {0};
    char notation[PL_LAYOUT_TEXT];
    pl_status status = plan_sources(&map, model, kept, layout);
    if (status == PL_OK) {
        status = finish(&map, model, kept);
        if (status != PL_OK) pl_error_context("what %s writes", pl_layout_format(layout, notation));
    }
    if (status == PL_OK)
        *out = map;
    else
        pl_checkpoint_map_free(&map);
    return status;
}

void pl_checkpoint_map_free(pl_checkpoint_map *map)
{
    pl_free(map->piece);
    pl_free(map->first);
    pl_free(map->source);
    *map = (pl_checkpoint_map){0};
}

const pl_checkpoint_piece *pl_checkpoint_map_pieces(const pl_checkpoint_map *map, int64_t tensors,
                                                    pl_value_kind kind, int64_t tensor,
                                                    size_t *count)
{
    size_t list = (size_t)((int64_t)kind * tensors + tensor);
    *count = map->first[list + 1] - map->first[list];
    return map->piece + map->first[list];
}

size_t pl_checkpoint_piece_at(const pl_checkpoint_piece *pieces, size_t count, int64_t row)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (pieces[middle].row_end <= row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
