/* Weights, their gradients, and linear layers. */
#include <inttypes.h>

#include "common/memory.h"
#include "train/executor_work.h"

static pl_status refuse_tensor(const char *suffix)
{
    return PL_FAIL(PL_BAD_INPUT, "the part of this entry has no tensor %s", suffix);
}

/* The kind of buffer that modules read ITEM from. */
static pl_buffer_kind weight_kind(const pl_work *work, const pl_map_item *item)
{
    const pl_part_map *map = &work->executor->map;
    if (item->ignored) return PL_BUF_IGNORED;
    return map->shards[item->part] > 1 || map->parts.part[item->part].cast_after_gather
               ? PL_BUF_FULL
               : PL_BUF_PARAMETER;
}

static pl_status locate_weight(pl_work *work, int64_t number, const void **out)
{
    const pl_map_item *item = &work->executor->map.items[number];
    pl_buffer_kind kind = weight_kind(work, item);
    const void *buffer = NULL;
    pl_map_place place;
    if (!pl_part_map_place(&work->executor->map, kind, number, &place))
        return refuse_tensor(item->tensor->suffix);
    PL_TRY(pl_work_read_part(work, kind, item->part, &buffer));
    *out = (const char *)buffer + place.offset;
    if (place.dtype == work->sizes->dtype) return PL_OK;
    /* Kept in fp32, computed with in less. */
    int64_t count = (place.end - place.begin) * place.cols;
    void *cast = NULL;
    PL_TRY(pl_work_space(work, count * work->sizes->element, &cast));
    PL_TRY(PL_DO(work, cast, .from = *out, .to = cast, .from_dtype = place.dtype,
                 .to_dtype = work->sizes->dtype, .count = count));
    *out = cast;
    return PL_OK;
}

pl_status pl_work_weight_if(pl_work *work, int32_t part, const char *suffix, const void **out)
{
    int64_t number = pl_part_map_find(&work->executor->map, part, suffix);
    *out = NULL;
    return number < 0 ? PL_OK : locate_weight(work, number, out);
}

pl_status pl_work_weight(pl_work *work, int32_t part, const char *suffix, const void **out)
{
    int64_t number = pl_part_map_find(&work->executor->map, part, suffix);
    *out = NULL;
    return number < 0 ? refuse_tensor(suffix) : locate_weight(work, number, out);
}

/* --- gradients --- */

static pl_status fill_zero(pl_work *work, float *at, int64_t count)
{
    if (count == 0) return PL_OK;
    return work->device->functions->fill(work->device, work->stream, at, 0, count * 4);
}

/* Rows that only padding holds, behind the real ones. */
static pl_status zero_padding(pl_work *work, float *data, const pl_map_place *place)
{
    int64_t real = (place->end - place->begin) * place->cols;
    return fill_zero(work, data + real, place->room * place->cols - real);
}

pl_status pl_work_gradient(pl_work *work, int32_t part, const char *suffix, pl_gradient *out)
{
    const pl_part_map *map = &work->executor->map;
    int64_t number = pl_part_map_find(map, part, suffix);
    *out = (pl_gradient){0};
    if (number < 0 || map->items[number].frozen) return PL_OK;
    pl_buffer_kind kind = map->items[number].ignored ? PL_BUF_IGNORED_GRADIENT
                          : map->shards[part] > 1    ? PL_BUF_GRADIENT_SUM
                                                     : PL_BUF_GRADIENT;
    const pl_use *use = pl_work_find(work, kind, PL_USE_WRITE, part);
    pl_map_place place;
    void *buffer = NULL;
    if (!use || !pl_part_map_place(map, kind, number, &place)) return PL_OK;
    PL_TRY(pl_work_use(work, use, pl_part_map_bytes(map, kind, part), &buffer));
    uint8_t *mark = work->executor->running->live[use->buffer]->gradients +
                    (number - map->parts.part[part].first_tensor);
    out->data = (float *)(void *)((char *)buffer + place.offset);
    out->add = *mark == PL_GRADIENT_WRITTEN;
    if (*mark == PL_GRADIENT_UNDEFINED) PL_TRY(zero_padding(work, out->data, &place));
    *mark = PL_GRADIENT_WRITTEN;
    return PL_OK;
}

static pl_status finish_gradient(pl_work *work, const pl_use *use)
{
    const pl_part_map *map = &work->executor->map;
    const pl_live *live = work->executor->running->live[use->buffer];
    pl_buffer_kind kind = (pl_buffer_kind)work->section->buffers[use->buffer].kind;
    int32_t number = pl_work_buffer_part(work, use);
    const pl_part *part = &map->parts.part[number];
    void *buffer = NULL;
    PL_TRY(pl_work_use(work, use, pl_part_map_bytes(map, kind, number), &buffer));
    for (int64_t i = 0; i < part->tensor_count; ++i) {
        pl_map_place place;
        if (live->gradients[i] != PL_GRADIENT_UNDEFINED) continue;
        live->gradients[i] = PL_GRADIENT_ZERO;
        if (!pl_part_map_place(map, kind, part->first_tensor + i, &place)) continue;
        PL_TRY(fill_zero(work, (float *)(void *)((char *)buffer + place.offset),
                         place.room * place.cols));
    }
    return PL_OK;
}

pl_status pl_work_finish_gradients(pl_work *work)
{
    const pl_use *uses = work->section->uses + work->entry->use_first;
    for (uint32_t i = 0; i < work->entry->use_count; ++i)
        if ((uses[i].flags & PL_USE_BEGIN) &&
            work->executor->running->live[uses[i].buffer]->gradients)
            PL_TRY(finish_gradient(work, &uses[i]));
    return PL_OK;
}

void pl_work_wrote_gradients(const pl_work *work, const pl_use *use)
{
    const pl_live *live = work->executor->running->live[use->buffer];
    int32_t part = pl_work_buffer_part(work, use);
    if (!live->gradients || part < 0) return;
    for (int64_t i = 0; i < work->executor->map.parts.part[part].tensor_count; ++i)
        live->gradients[i] = PL_GRADIENT_WRITTEN;
}

/* --- linear layers --- */

pl_status pl_work_linear(pl_work *work, pl_linear shape, const void *x, const void *weight,
                         const void *bias, const void *addend, void *y)
{
    pl_dtype dtype = work->sizes->dtype;
    PL_TRY(PL_DO(work, product, .a = x, .b = weight, .addend = addend, .c = y, .dtype = dtype,
                 .c_dtype = dtype, .m = shape.rows, .n = shape.out, .k = shape.in,
                 .transpose_b = true));
    if (!bias) return PL_OK;
    return PL_DO(work, bias, .x = y, .bias = bias, .dtype = dtype, .rows = shape.rows,
                 .cols = shape.out);
}

pl_status pl_work_linear_inputs(pl_work *work, pl_linear shape, const void *dy, const void *weight,
                                const void *addend, void *dx)
{
    pl_dtype dtype = work->sizes->dtype;
    return PL_DO(work, product, .a = dy, .b = weight, .addend = addend, .c = dx, .dtype = dtype,
                 .c_dtype = dtype, .m = shape.rows, .n = shape.in, .k = shape.out);
}

pl_status pl_work_linear_weights(pl_work *work, pl_linear shape, const void *dy, const void *x,
                                 pl_gradient weight, pl_gradient bias)
{
    pl_dtype dtype = work->sizes->dtype;
    if (weight.data)
        PL_TRY(PL_DO(work, product, .a = dy, .b = x, .addend = weight.add ? weight.data : NULL,
                     .c = weight.data, .dtype = dtype, .c_dtype = PL_FP32, .m = shape.out,
                     .n = shape.in, .k = shape.rows, .transpose_a = true));
    if (!bias.data) return PL_OK;
    return PL_DO(work, bias_backward, .x = dy, .to = bias.data, .dtype = dtype, .rows = shape.rows,
                 .cols = shape.out, .add = bias.add);
}
