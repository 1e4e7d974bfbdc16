/* What ranks hold, between host and device: initial values and checkpoints in, parameters and
 * checkpoints out; moments. */
#include <string.h>

#include "common/memory.h"
#include "train/entries.h"

/* Kinds of host buffers stand in this order: those that copies bring to the device, from INITIAL to
 * HOST_IGNORED_V, overlap with those that they fill, from HOST_PARAMETER to OUTGOING_IGNORED. */
_Static_assert((int)PL_BUF_INITIAL < (int)PL_BUF_HOST_PARAMETER &&
                   (int)PL_BUF_HOST_IGNORED_V < (int)PL_BUF_OUTGOING &&
                   (int)PL_BUF_OUTGOING_IGNORED - (int)PL_BUF_INITIAL == 10,
               "the order of host buffers");

/* Whether KIND is the host's side of a checkpoint. */
static bool is_saved(pl_buffer_kind kind) { return pl_buffer_kind_held(kind) != kind; }

/* What a checkpoint calls the values of buffers of KIND. */
static pl_value_kind value_kind(pl_buffer_kind kind)
{
    switch (pl_buffer_kind_held(kind)) {
    case PL_BUF_MASTER: return PL_VALUE_MASTER;
    case PL_BUF_ADAM_M:
    case PL_BUF_IGNORED_M: return PL_VALUE_ADAM_M;
    case PL_BUF_ADAM_V:
    case PL_BUF_IGNORED_V: return PL_VALUE_ADAM_V;
    default: return PL_VALUE_PARAMETER;
    }
}

/* One tensor of a part on its way: called for each that stands in buffers of KIND. */
typedef pl_status (*tensor_function)(pl_work *work, pl_buffer_kind kind, const pl_map_item *item,
                                     const pl_map_place *place, char *memory);

static pl_status each_tensor(pl_work *work, pl_buffer_kind kind, int32_t part, char *buffer,
                             tensor_function function)
{
    const pl_part_map *map = &work->executor->map;
    const pl_part *p = &map->parts.part[part];
    for (int64_t i = p->first_tensor; i < p->first_tensor + p->tensor_count; ++i) {
        pl_map_place place;
        if (pl_part_map_place(map, kind, i, &place))
            PL_TRY(function(work, kind, &map->items[i], &place, buffer + place.offset));
    }
    return PL_OK;
}

/* Rows of nobody are zero on the device, whoever fills the others. */
static void zero_padding(const pl_map_place *place, char *memory)
{
    int64_t row = place->cols * pl_dtype_bytes(place->dtype);
    int64_t real = (place->end - place->begin) * row;
    memset(memory + real, 0, (size_t)(place->room * row - real));
}

static pl_status make_values(pl_work *work, pl_buffer_kind kind, const pl_map_item *item,
                             const pl_map_place *place, char *memory)
{
    const pl_executor_outside *outside = &work->executor->outside;
    (void)kind;
    zero_padding(place, memory);
    if (place->begin == place->end) return PL_OK;
    return outside->initial_values(outside->context, item->tensor, place->begin, place->end,
                                   place->dtype, memory);
}

static pl_status load_values(pl_work *work, pl_buffer_kind kind, const pl_map_item *item,
                             const pl_map_place *place, char *memory)
{
    const pl_executor_outside *outside = &work->executor->outside;
    zero_padding(place, memory);
    if (place->begin == place->end) return PL_OK;
    return outside->load_values(outside->context, value_kind(kind), item->tensor, place->begin,
                                place->end, place->dtype, memory);
}

static pl_status write_values(pl_work *work, pl_buffer_kind kind, const pl_map_item *item,
                              const pl_map_place *place, char *memory)
{
    const pl_executor_outside *outside = &work->executor->outside;
    (void)kind;
    if (place->begin == place->end) return PL_OK;
    return outside->write_values(outside->context, item->tensor, place->begin, place->end,
                                 place->dtype, memory);
}

static pl_status save_values(pl_work *work, pl_buffer_kind kind, const pl_map_item *item,
                             const pl_map_place *place, char *memory)
{
    const pl_executor_outside *outside = &work->executor->outside;
    if (place->begin == place->end) return PL_OK;
    return outside->save_values(outside->context, value_kind(kind), item->tensor, place->begin,
                                place->end, place->dtype, memory);
}

/* The use of a host buffer of one of the kinds FIRST to LAST; NULL: there is none. */
static const pl_use *find_use(const pl_work *work, pl_buffer_kind first, pl_buffer_kind last,
                              uint32_t flags)
{
    const pl_use *found = NULL;
    for (int kind = (int)first; kind <= (int)last && !found; ++kind)
        found = pl_work_find(work, (pl_buffer_kind)kind, flags, PL_ANY_PART);
    return found;
}

static pl_status find_host(const pl_work *work, pl_buffer_kind first, pl_buffer_kind last,
                           uint32_t flags, const pl_use **out)
{
    *out = find_use(work, first, last, flags);
    if (*out) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT,
                   "the entry must %s a host buffer such as '%s' or '%s', and names none",
                   flags == PL_USE_READ ? "read" : "write", pl_buffer_kind_stem(first),
                   pl_buffer_kind_stem(last));
}

static pl_status host_buffer(const pl_work *work, const pl_use *use, int32_t *part,
                             pl_buffer_kind *kind, void **memory)
{
    *kind = (pl_buffer_kind)work->section->buffers[use->buffer].kind;
    *part = pl_work_buffer_part(work, use);
    if (*part < 0)
        return pl_buffer_refuse(work->executor, use->buffer, "is of a part that the model lacks");
    return pl_work_use(work, use, pl_part_map_bytes(&work->executor->map, *kind, *part), memory);
}

pl_status pl_do_initialize(pl_work *work)
{
    const pl_use *use = NULL;
    pl_buffer_kind kind = PL_BUF_INITIAL;
    int32_t part = -1;
    void *memory = NULL;
    PL_TRY(find_host(work, PL_BUF_INITIAL, PL_BUF_INITIAL_IGNORED, PL_USE_WRITE, &use));
    PL_TRY(host_buffer(work, use, &part, &kind, &memory));
    if (!work->executor->outside.initial_values)
        return PL_FAIL(PL_INTERNAL, "nobody was named who makes initial values");
    return each_tensor(work, kind, part, memory, make_values);
}

pl_status pl_do_read(pl_work *work)
{
    const pl_use *use = NULL;
    pl_buffer_kind kind = PL_BUF_HOST_PARAMETER;
    int32_t part = -1;
    void *memory = NULL;
    PL_TRY(find_host(work, PL_BUF_HOST_PARAMETER, PL_BUF_HOST_IGNORED_V, PL_USE_WRITE, &use));
    PL_TRY(host_buffer(work, use, &part, &kind, &memory));
    if (!work->executor->outside.load_values)
        return PL_FAIL(PL_INTERNAL, "nobody was named who gives what was saved");
    return each_tensor(work, kind, part, memory, load_values);
}

pl_status pl_do_write(pl_work *work)
{
    const pl_use *use = NULL;
    pl_buffer_kind kind = PL_BUF_OUTGOING;
    int32_t part = -1;
    void *memory = NULL;
    PL_TRY(find_host(work, PL_BUF_HOST_PARAMETER, PL_BUF_OUTGOING_IGNORED, PL_USE_READ, &use));
    PL_TRY(host_buffer(work, use, &part, &kind, &memory));
    if (is_saved(kind) && !work->executor->outside.save_values)
        return PL_FAIL(PL_INTERNAL, "nobody was named who takes what is saved");
    if (!is_saved(kind) && !work->executor->outside.write_values)
        return PL_FAIL(PL_INTERNAL, "nobody was named who takes parameters");
    return each_tensor(work, kind, part, memory, is_saved(kind) ? save_values : write_values);
}

/* --- copies --- */

/* Bytes that stand together in both buffers. */
typedef struct run {
    char *host, *device;
    int64_t bytes;
} run;

static pl_status flush(const pl_work *work, run *r, bool to_device)
{
    int64_t bytes = r->bytes;
    r->bytes = 0;
    if (to_device) return pl_work_copy(work, r->device, r->host, bytes, PL_COPY_TO_DEVICE);
    return pl_work_copy(work, r->host, r->device, bytes, PL_COPY_TO_HOST);
}

/* The tensors of PART that stand in buffers of KIND, between host memory laid out as HOST_KIND and
 * the device's: trained ones, frozen ones, or both. */
typedef struct transfer {
    pl_buffer_kind kind, host_kind;
    int32_t part;
    bool trained, frozen, to_device;
    char *host, *device;
} transfer;

static pl_status copy_tensors(const pl_work *work, const transfer *t)
{
    const pl_part_map *map = &work->executor->map;
    const pl_part *part = &map->parts.part[t->part];
    run r = {0};
    for (int64_t i = part->first_tensor; i < part->first_tensor + part->tensor_count; ++i) {
        pl_map_place from, to;
        if (map->items[i].frozen ? !t->frozen : !t->trained) continue;
        if (!pl_part_map_place(map, t->host_kind, i, &from) ||
            !pl_part_map_place(map, t->kind, i, &to))
            continue;
        if (from.dtype != to.dtype)
            return PL_FAIL(PL_BAD_INPUT, "%s is %s in '%s' and %s in '%s'; a copy casts nothing",
                           map->items[i].tensor->suffix, pl_dtype_name(from.dtype),
                           pl_buffer_kind_stem(t->host_kind), pl_dtype_name(to.dtype),
                           pl_buffer_kind_stem(t->kind));
        char *host = t->host + from.offset, *device = t->device + to.offset;
        if (host != r.host + r.bytes || device != r.device + r.bytes) {
            PL_TRY(flush(work, &r, t->to_device));
            r.host = host;
            r.device = device;
        }
        r.bytes += from.room * from.cols * pl_dtype_bytes(from.dtype);
    }
    return flush(work, &r, t->to_device);
}

/* Masters hold what is trained where they stand apart, parameters the rest. */
static pl_status copy_part(pl_work *work, const pl_use *host_use, bool to_device)
{
    const uint32_t flags = to_device ? PL_USE_WRITE : PL_USE_READ;
    const pl_part_map *map = &work->executor->map;
    transfer t = {.to_device = to_device, .trained = true};
    void *host = NULL;
    PL_TRY(host_buffer(work, host_use, &t.part, &t.host_kind, &host));
    t.host = host;
    static const pl_buffer_kind kinds[3] = {PL_BUF_MASTER, PL_BUF_PARAMETER, PL_BUF_IGNORED};
    for (int i = 0; i < 3; ++i) {
        void *device = NULL;
        const pl_use *use = pl_work_find(work, kinds[i], flags, t.part);
        if (!use) continue;
        PL_TRY(pl_work_use(work, use, pl_part_map_bytes(map, kinds[i], t.part), &device));
        t.kind = kinds[i];
        t.device = device;
        t.frozen = kinds[i] != PL_BUF_MASTER;
        PL_TRY(copy_tensors(work, &t));
        t.trained = kinds[i] != PL_BUF_MASTER;
    }
    return PL_OK;
}

/* Both sides are laid out alike: one copy, padding with it. */
static pl_status copy_saved(pl_work *work, const pl_use *host_use, bool to_device)
{
    pl_buffer_kind kind = PL_BUF_HOST_PARAMETER;
    int32_t part = -1;
    void *host = NULL, *to = NULL;
    const void *from = NULL;
    PL_TRY(host_buffer(work, host_use, &part, &kind, &host));
    int64_t bytes = pl_part_map_bytes(&work->executor->map, kind, part);
    if (to_device) {
        PL_TRY(pl_work_write_part(work, pl_buffer_kind_held(kind), part, &to));
        return pl_work_copy(work, to, host, bytes, PL_COPY_TO_DEVICE);
    }
    PL_TRY(pl_work_read_part(work, pl_buffer_kind_held(kind), part, &from));
    return pl_work_copy(work, host, from, bytes, PL_COPY_TO_HOST);
}

pl_status pl_do_copy(pl_work *work)
{
    const pl_use *use = NULL;
    if (work->entry->name.subject == PL_SUBJECT_BATCH) return pl_do_copy_batch(work);
    use = find_use(work, PL_BUF_HOST_PARAMETER, PL_BUF_OUTGOING_IGNORED, PL_USE_WRITE);
    bool to_device = !use;
    if (to_device)
        PL_TRY(find_host(work, PL_BUF_INITIAL, PL_BUF_HOST_IGNORED_V, PL_USE_READ, &use));
    if (is_saved((pl_buffer_kind)work->section->buffers[use->buffer].kind))
        return copy_saved(work, use, to_device);
    return copy_part(work, use, to_device);
}

pl_status pl_do_zero(pl_work *work)
{
    const pl_use *uses = work->section->uses + work->entry->use_first;
    for (uint32_t i = 0; i < work->entry->use_count; ++i) {
        const pl_live *live = work->executor->running->live[uses[i].buffer];
        if (!(uses[i].flags & PL_USE_WRITE) || live->bytes == 0) continue;
        if (live->host)
            return pl_buffer_refuse(work->executor, uses[i].buffer,
                                    "is in host memory, and devices zero their own");
        PL_TRY(work->device->functions->fill(work->device, work->stream, live->memory, 0,
                                             live->bytes));
    }
    return PL_OK;
}
