#include "ckpt/manifest_boxes.h"

#include "common/memory.h"
#include "common/parts.h"
#include "common/placement.h"

/* --- what is kept --- */

void pl_kept_values_of_training(pl_kept_values *kept, const pl_model *model,
                                const pl_precision *precision, pl_optimizer optimizer)
{
    for (int64_t i = 0; i < model->tensor_count; ++i) {
        const pl_tensor *tensor = &model->tensors[i];
        bool ignored = tensor->class_ == PL_CLASS_IGNORED, trained = !tensor->frozen;
        pl_dtype wire = ignored ? PL_FP32 : pl_parts_wire_dtype(model, precision, tensor);
        pl_dtype moment = trained && optimizer == PL_OPTIMIZER_ADAMW ? PL_FP32 : PL_DTYPE_COUNT;
        kept[i].dtype[PL_VALUE_PARAMETER] = wire;
        kept[i].dtype[PL_VALUE_MASTER] =
            trained && !ignored && wire != PL_FP32 ? PL_FP32 : PL_DTYPE_COUNT;
        kept[i].dtype[PL_VALUE_ADAM_M] = moment;
        kept[i].dtype[PL_VALUE_ADAM_V] = moment;
    }
}

int64_t pl_kept_kind_row_bytes(const pl_tensor *tensor, const pl_kept_values *kept,
                               pl_value_kind kind)
{
    return pl_keeps(kept, kind) ? tensor->cols * pl_dtype_bytes(kept->dtype[kind]) : 0;
}

int64_t pl_kept_row_bytes(const pl_tensor *tensor, const pl_kept_values *kept)
{
    int64_t bytes = 0;
    for (int i = 0; i < PL_VALUE_KIND_COUNT; ++i)
        bytes += pl_kept_kind_row_bytes(tensor, kept, (pl_value_kind)i);
    return bytes;
}

/* --- who writes --- */

/* Bytes given to each member of RANK's replica group of one class so far. */
typedef struct turns {
    int64_t members, index; /* index: RANK's */
    int64_t *bytes;
} turns;

static pl_status open_turns(turns *out, const pl_layout *layout, pl_group_role role, int64_t rank)
{
    out->members = pl_layout_group_size(layout, role);
    out->index = pl_layout_group_index(layout, role, rank);
    return pl_allocate(&out->bytes, (size_t)out->members, sizeof *out->bytes,
                       "bytes of each replica");
}

/* Whether the next box, of BYTES bytes, is this rank's. */
static bool take_turn(turns *t, int64_t bytes)
{
    int64_t least = 0;
    for (int64_t i = 1; i < t->members; ++i)
        if (t->bytes[i] < t->bytes[least]) least = i;
    t->bytes[least] += bytes;
    return least == t->index;
}

static pl_status open_classes(turns *classes, const pl_layout *layout, int64_t rank)
{
    PL_TRY(open_turns(&classes[PL_CLASS_DENSE], layout, PL_GROUP_DENSE_REPLICA, rank));
    PL_TRY(open_turns(&classes[PL_CLASS_EXPERT], layout, PL_GROUP_EXPERT_REPLICA, rank));
    return open_turns(&classes[PL_CLASS_IGNORED], layout, PL_GROUP_STAGE, rank);
}

/* mine[i]: the rows of tensor I that RANK writes, none where another replica does. */
static pl_status find_rows(pl_box *mine, const pl_model *model, const pl_kept_values *kept,
                           const pl_layout *layout, int64_t rank)
{
    turns classes[PL_TENSOR_CLASS_COUNT] = {{0}};
    pl_status status = open_classes(classes, layout, rank);
    for (int64_t i = 0; status == PL_OK && i < model->tensor_count; ++i) {
        const pl_tensor *tensor = &model->tensors[i];
        pl_box box = pl_placement_box(layout, tensor, rank);
        int64_t bytes = 0;
        mine[i] = (pl_box){0, 0};
        status = pl_multiply(&bytes, box.end - box.begin, pl_kept_row_bytes(tensor, &kept[i]),
                             "bytes of a box");
        /* An empty box is empty on all replicas. */
        if (status == PL_OK && bytes > 0 && take_turn(&classes[tensor->class_], bytes))
            mine[i] = box;
    }
    for (int i = 0; i < PL_TENSOR_CLASS_COUNT; ++i) pl_free(classes[i].bytes);
    return status;
}

pl_status pl_checkpoint_boxes_add(pl_checkpoint_boxes *boxes, const pl_checkpoint_box *box)
{
    PL_TRY(pl_grow(&boxes->box, &boxes->capacity, boxes->count + 1, sizeof *boxes->box,
                   "boxes of a checkpoint"));
    PL_TRY(pl_add(&boxes->bytes, boxes->bytes, box->bytes, "bytes of a rank"));
    boxes->box[boxes->count] = *box;
    boxes->box[boxes->count++].first_sum = boxes->sums;
    boxes->sums += pl_checkpoint_blocks(box->bytes);
    return PL_OK;
}

static pl_status list_boxes(pl_checkpoint_boxes *out, const pl_box *mine, const pl_model *model,
                            const pl_kept_values *kept)
{
    for (int kind = 0; kind < PL_VALUE_KIND_COUNT; ++kind) {
        for (int64_t i = 0; i < model->tensor_count; ++i) {
            int64_t rows = mine[i].end - mine[i].begin;
            int64_t row = pl_kept_kind_row_bytes(&model->tensors[i], &kept[i], (pl_value_kind)kind);
            if (rows * row == 0) continue;
            const pl_checkpoint_box box = {.tensor = (int32_t)i,
                                           .kind = (uint8_t)kind,
                                           .dtype = (uint8_t)kept[i].dtype[kind],
                                           .row_begin = mine[i].begin,
                                           .row_end = mine[i].end,
                                           .bytes = rows * row};
            PL_TRY(pl_checkpoint_boxes_add(out, &box));
        }
    }
    return PL_OK;
}

pl_status pl_checkpoint_boxes_of_rank(pl_checkpoint_boxes *out, const pl_model *model,
                                      const pl_kept_values *kept, const pl_layout *layout,
                                      int64_t rank)
{
    pl_checkpoint_boxes boxes = {0};
    pl_box *mine = NULL;
    PL_TRY(pl_allocate(&mine, (size_t)model->tensor_count, sizeof *mine, "rows of a rank"));
    pl_status status = find_rows(mine, model, kept, layout, rank);
    if (status == PL_OK) status = list_boxes(&boxes, mine, model, kept);
    pl_free(mine);
    if (status == PL_OK)
        *out = boxes;
    else
        pl_checkpoint_boxes_free(&boxes);
    return status;
}

void pl_checkpoint_boxes_free(pl_checkpoint_boxes *boxes)
{
    pl_free(boxes->box);
    *boxes = (pl_checkpoint_boxes){0};
}

const pl_checkpoint_box *pl_checkpoint_boxes_find(const pl_checkpoint_boxes *boxes,
                                                  pl_value_kind kind, int64_t tensor)
{
    size_t low = 0, high = boxes->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const pl_checkpoint_box *box = &boxes->box[middle];
        if (box->kind == kind && box->tensor == tensor) return box;
        if (box->kind < kind || (box->kind == kind && box->tensor < tensor))
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}
