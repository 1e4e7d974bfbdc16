#include "tests/train/memory_walk.h"

#include "common/memory.h"

typedef struct clock_of_streams {
    int64_t of[PL_STREAM_COUNT]; /* entries of each stream that are over: their places, from 1 */
} clock_of_streams;

typedef struct walker {
    memory_walk *walk;
    const pl_layout *layout;
    const pl_section *section;
    clock_of_streams stream[PL_STREAM_COUNT];
    clock_of_streams *after; /* [entries] */
    int64_t *bytes;          /* [buffers] as they were begun */
    size_t *pending;         /* [entries] collectives that nobody waited for yet, in their order */
    size_t pending_count;
} walker;

static const pl_use *uses_of(const walker *w, const pl_entry *entry)
{
    return w->section->uses + entry->use_first;
}

static void account(memory_walk *walk, const pl_buffer *buffer, int64_t bytes)
{
    int class_ = buffer->class_;
    walk->now[class_] += bytes;
    if (walk->now[class_] > walk->peak[class_]) walk->peak[class_] = walk->now[class_];
    if (class_ == PL_BUFFER_HOST) return;
    walk->now_total += bytes;
    if (walk->now_total > walk->peak_total) walk->peak_total = walk->now_total;
}

static void let_go(walker *w, size_t index)
{
    const pl_entry *entry = &w->section->entries[index];
    for (uint32_t i = 0; i < entry->use_count; ++i) {
        const pl_use *use = &uses_of(w, entry)[i];
        if (use->flags & PL_USE_END)
            account(w->walk, &w->section->buffers[use->buffer], -w->bytes[use->buffer]);
    }
}

static void complete(walker *w, size_t number)
{
    let_go(w, w->pending[number]);
    --w->pending_count;
    for (size_t i = number; i < w->pending_count; ++i) w->pending[i] = w->pending[i + 1];
}

/* Order the stream of ENTRY behind entry OTHER. */
static void order_behind(walker *w, const pl_entry *entry, size_t other)
{
    clock_of_streams *clock = &w->stream[entry->stream];
    int from = w->section->entries[other].stream;
    if (from == entry->stream || clock->of[from] >= (int64_t)other + 1) return;
    for (size_t i = 0; i < w->pending_count;) {
        if (w->section->entries[w->pending[i]].stream == from && w->pending[i] <= other)
            complete(w, i);
        else
            ++i;
    }
    for (int s = 0; s < PL_STREAM_COUNT; ++s)
        if (w->after[other].of[s] > clock->of[s]) clock->of[s] = w->after[other].of[s];
}

/* Whether A and B use a buffer that one of them changes. */
static bool in_the_way(const walker *w, const pl_entry *a, const pl_entry *b)
{
    const uint32_t changes = PL_USE_WRITE | PL_USE_END;
    for (uint32_t i = 0; i < a->use_count; ++i)
        for (uint32_t j = 0; j < b->use_count; ++j)
            if (uses_of(w, a)[i].buffer == uses_of(w, b)[j].buffer &&
                ((uses_of(w, a)[i].flags | uses_of(w, b)[j].flags) & changes))
                return true;
    return false;
}

static bool is_collective(const walker *w, const pl_entry *entry)
{
    return entry->group != PL_GROUP_NONE && entry->name.operation != PL_OP_LOAD_BATCH &&
           pl_layout_group_size(w->layout, (pl_group_role)entry->group) > 1;
}

static void begin(walker *w, const pl_entry *entry, int64_t rows)
{
    for (uint32_t i = 0; i < entry->use_count; ++i) {
        const pl_use *use = &uses_of(w, entry)[i];
        const pl_buffer *buffer = &w->section->buffers[use->buffer];
        if (!(use->flags & PL_USE_BEGIN)) continue;
        w->bytes[use->buffer] = buffer->bytes * (buffer->per_row ? rows : 1);
        account(w->walk, buffer, w->bytes[use->buffer]);
    }
}

static void do_entry(walker *w, size_t index, int64_t rows)
{
    const pl_entry *entry = &w->section->entries[index];
    for (uint32_t i = 0; i < entry->wait_count; ++i)
        order_behind(w, entry, (size_t)w->section->waits[entry->wait_first + i]);
    for (size_t i = 0; i < w->pending_count;) {
        if (in_the_way(w, &w->section->entries[w->pending[i]], entry))
            complete(w, i);
        else
            ++i;
    }
    begin(w, entry, rows);
    w->stream[entry->stream].of[entry->stream] = (int64_t)index + 1;
    w->after[index] = w->stream[entry->stream];
    if (is_collective(w, entry))
        w->pending[w->pending_count++] = index;
    else
        let_go(w, index);
}

pl_status memory_walk_section(memory_walk *walk, const pl_layout *layout, const pl_section *section,
                              const int64_t *rows)
{
    walker w = {.walk = walk, .layout = layout, .section = section};
    size_t entries = section->entry_count;
    pl_status status = pl_allocate(&w.after, entries, sizeof *w.after, "clocks");
    if (status == PL_OK)
        status = pl_allocate(&w.bytes, section->buffer_count, sizeof *w.bytes, "sizes");
    if (status == PL_OK) status = pl_allocate(&w.pending, entries, sizeof *w.pending, "entries");
    for (size_t i = 0; i < entries && status == PL_OK; ++i) do_entry(&w, i, rows[i]);
    while (w.pending_count > 0) complete(&w, 0);
    pl_free(w.after);
    pl_free(w.bytes);
    pl_free(w.pending);
    return status;
}
