#include "train/executor_work.h"

#include <inttypes.h>
#include <string.h>

#include "common/memory.h"

pl_status pl_work_lacks(const char *name)
{
    return PL_FAIL(PL_UNSUPPORTED, "the device has no operation %s yet", name);
}

/* --- buffers --- */

int32_t pl_work_buffer_part(const pl_work *work, const pl_use *use)
{
    const pl_buffer *buffer = &work->section->buffers[use->buffer];
    if (pl_buffer_kind_scope((pl_buffer_kind)buffer->kind) != PL_SCOPE_PART) return -1;
    return pl_part_map_part(&work->executor->map, (pl_subject)buffer->subject, buffer->layer);
}

const pl_use *pl_work_find(const pl_work *work, pl_buffer_kind kind, uint32_t flags, int32_t part)
{
    const pl_use *uses = work->section->uses + work->entry->use_first;
    for (uint32_t i = 0; i < work->entry->use_count; ++i) {
        if (work->section->buffers[uses[i].buffer].kind != (uint8_t)kind) continue;
        if ((uses[i].flags & flags) != flags) continue;
        if (part == PL_ANY_PART || pl_work_buffer_part(work, &uses[i]) == part) return &uses[i];
    }
    return NULL;
}

static const char *words_of(uint32_t flags)
{
    if (flags == (PL_USE_READ | PL_USE_WRITE)) return "read and write";
    return flags & PL_USE_READ ? "read" : "write";
}

static pl_status refuse_missing(const pl_work *work, pl_buffer_kind kind, uint32_t flags,
                                int32_t part)
{
    const char *stem = pl_buffer_kind_stem(kind);
    pl_text subject = {0};
    if (part != PL_ANY_PART) {
        const pl_part *p = &work->executor->map.parts.part[part];
        pl_text_add_string(&subject, ".");
        pl_subject_print(&subject, p->subject, p->layer);
    }
    pl_status status = pl_text_status(&subject);
    if (status == PL_OK)
        status = PL_FAIL(PL_BAD_INPUT, "the entry must %s a buffer '%s%s', and names none",
                         words_of(flags), stem, pl_text_string(&subject));
    pl_text_free(&subject);
    return status;
}

pl_status pl_work_use(const pl_work *work, const pl_use *use, int64_t bytes, void **out)
{
    const pl_live *live = work->executor->running->live[use->buffer];
    *out = live->memory;
    if (live->bytes == bytes) return PL_OK;
    pl_text words = {0};
    pl_text_add(&words, "has %" PRId64 " bytes, this entry works on %" PRId64, live->bytes, bytes);
    pl_status status = pl_text_status(&words);
    if (status == PL_OK)
        status = pl_buffer_refuse(work->executor, use->buffer, pl_text_string(&words));
    pl_text_free(&words);
    return status;
}

static pl_status get(const pl_work *work, pl_buffer_kind kind, uint32_t flags, int32_t part,
                     int64_t bytes, void **out)
{
    const pl_use *use = pl_work_find(work, kind, flags, part);
    return use ? pl_work_use(work, use, bytes, out) : refuse_missing(work, kind, flags, part);
}

pl_status pl_work_read(const pl_work *work, pl_buffer_kind kind, int64_t bytes, const void **out)
{
    void *memory = NULL;
    PL_TRY(get(work, kind, PL_USE_READ, PL_ANY_PART, bytes, &memory));
    *out = memory;
    return PL_OK;
}

pl_status pl_work_write(const pl_work *work, pl_buffer_kind kind, int64_t bytes, void **out)
{
    return get(work, kind, PL_USE_WRITE, PL_ANY_PART, bytes, out);
}

pl_status pl_work_update(const pl_work *work, pl_buffer_kind kind, int64_t bytes, void **out)
{
    return get(work, kind, PL_USE_READ | PL_USE_WRITE, PL_ANY_PART, bytes, out);
}

pl_status pl_work_read_part(const pl_work *work, pl_buffer_kind kind, int32_t part,
                            const void **out)
{
    void *memory = NULL;
    int64_t bytes = pl_part_map_bytes(&work->executor->map, kind, part);
    PL_TRY(get(work, kind, PL_USE_READ, part, bytes, &memory));
    *out = memory;
    return PL_OK;
}

pl_status pl_work_write_part(const pl_work *work, pl_buffer_kind kind, int32_t part, void **out)
{
    int64_t bytes = pl_part_map_bytes(&work->executor->map, kind, part);
    return get(work, kind, PL_USE_WRITE, part, bytes, out);
}

pl_status pl_work_part(const pl_work *work, int32_t *out)
{
    const pl_entry_name *name = &work->entry->name;
    *out = pl_part_map_part(&work->executor->map, (pl_subject)name->subject, name->layer);
    if (*out >= 0) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT, "the model has no such part as the subject of this entry");
}

/* --- memory for the time of the entry --- */

static pl_status lend(pl_work *work, bool host, int64_t bytes, void *out)
{
    pl_arena_grant grant;
    if (work->grant_count >= PL_WORK_GRANTS)
        return PL_FAIL(PL_INTERNAL, "an entry asks for more than %d pieces of work space",
                       (int)PL_WORK_GRANTS);
    PL_TRY(pl_memory_lend(work->executor, work->index, host, bytes, &grant));
    work->grant[work->grant_count].memory = grant.memory;
    work->grant[work->grant_count].bytes = bytes;
    work->grant[work->grant_count].block = grant.block;
    work->grant[work->grant_count].host = host;
    ++work->grant_count;
    memcpy(out, &grant.memory, sizeof grant.memory);
    return PL_OK;
}

pl_status pl_work_space(pl_work *work, int64_t bytes, void *out)
{
    return lend(work, false, bytes, out);
}

pl_status pl_work_host_space(pl_work *work, int64_t bytes, void *out)
{
    return lend(work, true, bytes, out);
}

void pl_work_end_space(pl_work *work)
{
    while (work->grant_count > 0) {
        --work->grant_count;
        pl_memory_take_back(work->executor, work->index, work->grant[work->grant_count].host,
                            work->grant[work->grant_count].memory,
                            work->grant[work->grant_count].bytes,
                            work->grant[work->grant_count].block);
    }
}

pl_status pl_work_copy(const pl_work *work, void *to, const void *from, int64_t bytes,
                       pl_copy_kind kind)
{
    if (bytes == 0) return PL_OK;
    return work->device->functions->copy(work->device, work->stream, to, from, bytes, kind);
}
