/* Units: parameters gathered, cast and let go; gradients reduced, cast and added up. */
#include "common/memory.h"
#include "train/entries.h"

static const pl_use *uses_of(const pl_work *work)
{
    return work->section->uses + work->entry->use_first;
}

static pl_buffer_kind kind_of(const pl_work *work, const pl_use *use)
{
    return (pl_buffer_kind)work->section->buffers[use->buffer].kind;
}

/* --- collectives: a segment for each tensor --- */

typedef struct segments {
    pl_segment *list;
    int count;
    size_t capacity;
} segments;

/* Add the tensors of PART that stand in both kinds of buffers; counts are of one member. */
static pl_status add_part(const pl_work *work, segments *all, int32_t part, pl_buffer_kind from,
                          pl_buffer_kind to)
{
    const pl_part_map *map = &work->executor->map;
    const pl_part *p = &map->parts.part[part];
    const void *send = NULL;
    void *recv = NULL;
    PL_TRY(pl_work_read_part(work, from, part, &send));
    PL_TRY(pl_work_write_part(work, to, part, &recv));
    for (int64_t i = p->first_tensor; i < p->first_tensor + p->tensor_count; ++i) {
        pl_map_place a, b;
        if (!pl_part_map_place(map, from, i, &a) || !pl_part_map_place(map, to, i, &b)) continue;
        if (a.dtype != b.dtype)
            return PL_FAIL(
                PL_BAD_INPUT, "%s is %s in '%s' and %s in '%s'; collectives cast nothing",
                map->items[i].tensor->suffix, pl_dtype_name(a.dtype), pl_buffer_kind_stem(from),
                pl_dtype_name(b.dtype), pl_buffer_kind_stem(to));
        int64_t rows = a.room < b.room ? a.room : b.room;
        PL_TRY(pl_grow(&all->list, &all->capacity, (size_t)all->count + 1, sizeof *all->list,
                       "segments of a collective"));
        all->list[all->count++] = (pl_segment){.send = (const char *)send + a.offset,
                                               .recv = (char *)recv + b.offset,
                                               .count = rows * a.cols,
                                               .dtype = a.dtype};
    }
    return pl_work_require_group(work, map->shards[part]);
}

/* The kind that an entry turns into KIND for PART: the first of two that it reads. */
static pl_buffer_kind source_of(const pl_work *work, int32_t part, pl_buffer_kind first,
                                pl_buffer_kind second)
{
    return pl_work_find(work, first, PL_USE_READ, part) ? first : second;
}

static pl_status gather_or_reduce(pl_work *work, segments *all, bool reduce)
{
    const pl_use *uses = uses_of(work);
    for (uint32_t i = 0; i < work->entry->use_count; ++i) {
        pl_buffer_kind kind = kind_of(work, &uses[i]), from = PL_BUF_PARAMETER;
        bool wanted = reduce ? kind == PL_BUF_GRADIENT || kind == PL_BUF_GRADIENT_PIECE
                             : kind == PL_BUF_WIRE || kind == PL_BUF_FULL;
        int32_t part = pl_work_buffer_part(work, &uses[i]);
        if (!(uses[i].flags & PL_USE_WRITE) || !wanted || part < 0) continue;
        if (reduce) from = source_of(work, part, PL_BUF_GRADIENT_WIRE, PL_BUF_GRADIENT_SUM);
        PL_TRY(add_part(work, all, part, from, kind));
        pl_work_wrote_gradients(work, &uses[i]);
    }
    if (all->count == 0)
        return PL_FAIL(PL_BAD_INPUT, "the entry names no buffer that it is to fill");
    return pl_work_collective(work, reduce ? PL_REDUCE_SCATTER : PL_ALL_GATHER, all->list,
                              all->count);
}

pl_status pl_do_gather(pl_work *work)
{
    segments all = {0};
    pl_status status = gather_or_reduce(work, &all, false);
    pl_free(all.list);
    return status;
}

pl_status pl_do_reduce(pl_work *work)
{
    segments all = {0};
    pl_status status = gather_or_reduce(work, &all, true);
    pl_free(all.list);
    return status;
}

/* What it ends is let go when it retires. */
pl_status pl_do_reshard(pl_work *work)
{
    (void)work;
    return PL_OK;
}

/* --- casts: runs of tensors that stand together in both buffers --- */

typedef struct run {
    const char *from;
    char *to;
    pl_dtype from_dtype, to_dtype;
    int64_t count;
    bool add;
} run;

static pl_status flush(pl_work *work, run *r)
{
    int64_t count = r->count;
    r->count = 0;
    if (count == 0) return PL_OK;
    return PL_DO(work, cast, .from = r->from, .to = r->to, .from_dtype = r->from_dtype,
                 .to_dtype = r->to_dtype, .count = count, .add = r->add);
}

static bool continues(const run *r, const char *from, const char *to, pl_dtype from_dtype,
                      pl_dtype to_dtype)
{
    return r->count > 0 && from_dtype == r->from_dtype && to_dtype == r->to_dtype &&
           from == r->from + r->count * pl_dtype_bytes(from_dtype) &&
           to == r->to + r->count * pl_dtype_bytes(to_dtype);
}

static pl_status cast_part(pl_work *work, int32_t part, pl_buffer_kind from, pl_buffer_kind to,
                           bool add)
{
    const pl_part_map *map = &work->executor->map;
    const pl_part *p = &map->parts.part[part];
    const void *source = NULL;
    void *target = NULL;
    run r = {.add = add};
    PL_TRY(pl_work_read_part(work, from, part, &source));
    PL_TRY(pl_work_write_part(work, to, part, &target));
    for (int64_t i = p->first_tensor; i < p->first_tensor + p->tensor_count; ++i) {
        pl_map_place a, b;
        if (!pl_part_map_place(map, from, i, &a) || !pl_part_map_place(map, to, i, &b)) continue;
        if (a.room != b.room)
            return PL_FAIL(PL_BAD_INPUT,
                           "'%s' and '%s' are not equally large in a shard group "
                           "of several ranks",
                           pl_buffer_kind_stem(from), pl_buffer_kind_stem(to));
        const char *at = (const char *)source + a.offset;
        char *out = (char *)target + b.offset;
        if (!continues(&r, at, out, a.dtype, b.dtype)) {
            PL_TRY(flush(work, &r));
            r = (run){at, out, a.dtype, b.dtype, 0, add};
        }
        r.count += a.room * a.cols;
    }
    return flush(work, &r);
}

/* What KIND is cast from. False when nothing is cast to it. */
static bool cast_source(const pl_work *work, pl_buffer_kind kind, int32_t part, pl_buffer_kind *out)
{
    switch (kind) {
    case PL_BUF_FULL: *out = source_of(work, part, PL_BUF_WIRE, PL_BUF_PARAMETER); return true;
    case PL_BUF_PARAMETER: *out = PL_BUF_MASTER; return true;
    case PL_BUF_GRADIENT_WIRE: *out = PL_BUF_GRADIENT_SUM; return true;
    case PL_BUF_GRADIENT: *out = PL_BUF_GRADIENT_PIECE; return true;
    default: return false;
    }
}

static pl_status cast_all(pl_work *work, bool add)
{
    const pl_use *uses = uses_of(work);
    bool any = false;
    for (uint32_t i = 0; i < work->entry->use_count; ++i) {
        pl_buffer_kind kind = kind_of(work, &uses[i]), from = kind;
        int32_t part = pl_work_buffer_part(work, &uses[i]);
        if (!(uses[i].flags & PL_USE_WRITE) || part < 0) continue;
        if (!cast_source(work, kind, part, &from)) continue;
        PL_TRY(cast_part(work, part, from, kind, add));
        pl_work_wrote_gradients(work, &uses[i]);
        any = true;
    }
    if (any) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT, "the entry names no buffer that it is to fill");
}

pl_status pl_do_cast(pl_work *work) { return cast_all(work, false); }

pl_status pl_do_accumulate(pl_work *work) { return cast_all(work, true); }
