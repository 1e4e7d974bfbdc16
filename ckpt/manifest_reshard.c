#include "ckpt/manifest_reshard.h"

#include <inttypes.h>

#include "common/placement.h"

pl_status pl_reshard_check(const pl_layout *layout, const pl_model *model)
{
    char notation[PL_LAYOUT_TEXT];
    if (layout->pp != 1)
        return PL_FAIL(PL_UNSUPPORTED,
                       "layout '%s': checkpoints of pipeline stages are still to come; pp=1 would "
                       "fit",
                       pl_layout_format(layout, notation));
    return pl_placement_check(layout, model);
}

typedef struct walk {
    const pl_manifest *manifest;
    const pl_checkpoint_map *map;
    pl_reshard_visitor visit;
    void *context;
} walk;

static pl_status walk_box(const walk *w, int64_t rank, const pl_checkpoint_box *box)
{
    size_t count = 0;
    const pl_checkpoint_piece *pieces = pl_checkpoint_map_pieces(
        w->map, w->manifest->model.tensor_count, (pl_value_kind)box->kind, box->tensor, &count);
    pl_reshard_move move = {.to = rank, .box = box, .row_begin = box->row_begin};
    for (size_t i = pl_checkpoint_piece_at(pieces, count, box->row_begin);
         i < count && pieces[i].row_begin < box->row_end; ++i) {
        move.piece = &pieces[i];
        move.from = w->map->source[pieces[i].source].rank;
        move.row_end = pieces[i].row_end < box->row_end ? pieces[i].row_end : box->row_end;
        PL_TRY(w->visit(w->context, &move));
        move.row_begin = move.row_end;
    }
    return PL_OK;
}

pl_status pl_reshard_walk(const pl_manifest *manifest, const pl_checkpoint_map *map,
                          const pl_layout *layout, pl_reshard_visitor visit, void *context)
{
    const walk w = {manifest, map, visit, context};
    pl_status status = PL_OK;
    for (int64_t rank = 0; status == PL_OK && rank < layout->world; ++rank) {
        pl_checkpoint_boxes boxes;
        PL_TRY(pl_checkpoint_boxes_of_rank(&boxes, &manifest->model, manifest->kept, layout, rank));
        for (size_t i = 0; status == PL_OK && i < boxes.count; ++i)
            status = walk_box(&w, rank, &boxes.box[i]);
        pl_checkpoint_boxes_free(&boxes);
    }
    return status;
}

/* --- sums --- */

typedef struct adding {
    pl_reshard_facts *facts;
    int64_t rank, rank_bytes; /* of the rank that is being gone through; -1: none yet */
} adding;

static void end_rank(adding *a)
{
    if (a->rank_bytes > a->facts->most_bytes) a->facts->most_bytes = a->rank_bytes;
    a->rank_bytes = 0;
}

/* Bytes of whole blocks of a piece that rows [begin, end) of it, counted in bytes, lie in. */
static int64_t blocks_around(int64_t begin, int64_t end, int64_t bytes)
{
    int64_t first = begin / PL_CHECKPOINT_BLOCK * PL_CHECKPOINT_BLOCK;
    int64_t last = pl_checkpoint_blocks(end) * PL_CHECKPOINT_BLOCK;
    return (last < bytes ? last : bytes) - first;
}

static pl_status add_move(void *context, const pl_reshard_move *move)
{
    adding *a = context;
    const pl_checkpoint_piece *piece = move->piece;
    int64_t row = move->box->bytes / (move->box->row_end - move->box->row_begin);
    int64_t bytes = (move->row_end - move->row_begin) * row;
    if (move->to != a->rank) {
        end_rank(a);
        a->rank = move->to;
        ++a->facts->ranks;
    }
    a->facts->boxes += move->row_begin == move->box->row_begin;
    ++a->facts->reads;
    a->facts->bytes += bytes;
    a->facts->bytes_read += blocks_around((move->row_begin - piece->row_begin) * row,
                                          (move->row_end - piece->row_begin) * row,
                                          (piece->row_end - piece->row_begin) * row);
    if (move->from == move->to) a->facts->staying += bytes;
    a->rank_bytes += bytes;
    return PL_OK;
}

pl_status pl_reshard_plan(pl_reshard_facts *out, const pl_manifest *manifest,
                          const pl_checkpoint_map *map, const pl_layout *layout)
{
    pl_reshard_facts facts = {0};
    adding a = {.facts = &facts, .rank = -1};
    PL_TRY(pl_reshard_walk(manifest, map, layout, add_move, &a));
    end_rank(&a);
    *out = facts;
    return PL_OK;
}
