#include "tests/train/call_watch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

/* --- words --- */

static const pl_entry *current(const call_watch *watch)
{
    return &watch->section->entries[watch->index];
}

/* Keep the first difference: rank, program, entry, and what is wrong with it. */
static void differ(call_watch *watch, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void differ(call_watch *watch, const char *format, ...)
{
    char what[512];
    pl_text name = {0};
    va_list arguments;
    if (watch->words[0]) return;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    if (watch->index >= 0) pl_entry_name_print(&name, &current(watch)->name);
    snprintf(watch->words, sizeof watch->words,
             "rank %" PRId64 ", program %s, entry %" PRId64 ": %s: %s", watch->rank,
             watch->section ? pl_program_name(watch->section->program) : "-", watch->index,
             pl_text_string(&name), what);
    pl_text_free(&name);
}

static const char *buffer_name(const call_watch *watch, uint32_t buffer, char *out, size_t size)
{
    pl_text name = {0};
    pl_buffer_print(&name, &watch->section->buffers[buffer]);
    snprintf(out, size, "%s", pl_text_string(&name));
    pl_text_free(&name);
    return out;
}

static const pl_use *use_number(const call_watch *watch, int32_t use)
{
    return &watch->section->uses[current(watch)->use_first + (uint32_t)use];
}

/* --- memory as it is --- */

/* Look up every buffer that lives; buffers of no bytes are left out. */
static void look(call_watch *watch)
{
    const pl_section *section = watch->section;
    const pl_entry *entry = current(watch);
    watch->buffer_count = 0;
    if (pl_grow(&watch->buffers, &watch->buffer_room, section->buffer_count, sizeof *watch->buffers,
                "buffers") != PL_OK)
        return;
    for (size_t i = 0; i < section->buffer_count; ++i) {
        int64_t bytes = pl_executor_buffer_bytes(watch->executor, section, (uint32_t)i);
        if (bytes <= 0) continue;
        const char *start = pl_executor_buffer_address(watch->executor, section, (uint32_t)i);
        watch->buffers[watch->buffer_count++] = (watch_buffer){start, bytes, -1};
        for (uint32_t j = 0; j < entry->use_count; ++j)
            if (section->uses[entry->use_first + j].buffer == i)
                watch->buffers[watch->buffer_count - 1].use = (int32_t)j;
    }
}

static const watch_buffer *buffer_at(const call_watch *watch, const char *address)
{
    for (size_t i = 0; i < watch->buffer_count; ++i) {
        const watch_buffer *buffer = &watch->buffers[i];
        if (address >= buffer->start && address < buffer->start + buffer->bytes) return buffer;
    }
    return NULL;
}

static bool overlaps_any(const call_watch *watch, const char *start, int64_t bytes)
{
    for (size_t i = 0; i < watch->buffer_count; ++i) {
        const watch_buffer *buffer = &watch->buffers[i];
        if (start < buffer->start + buffer->bytes && start + bytes > buffer->start) return true;
    }
    return false;
}

static void keep_range(call_watch *watch, const watch_range *range)
{
    if (pl_grow(&watch->ranges, &watch->range_room, watch->range_count + 1, sizeof *watch->ranges,
                "ranges") == PL_OK)
        watch->ranges[watch->range_count++] = *range;
}

/* How far what was written of USE reaches from BEGIN without a gap. */
static int64_t written_until(const call_watch *watch, int32_t use, int64_t begin)
{
    for (bool grew = true; grew;) {
        grew = false;
        for (size_t i = 0; i < watch->range_count; ++i) {
            const watch_range *range = &watch->ranges[i];
            if (range->use != use || !range->written) continue;
            if (range->begin > begin || range->end <= begin) continue;
            begin = range->end;
            grew = true;
        }
    }
    return begin;
}

/* --- a touch --- */

/* Memory that belongs to no buffer. */
static void check_outside(call_watch *watch, const char *what, const pl_touch *touch)
{
    const char *kind = double_device_memory(watch->device, touch->start, touch->bytes);
    const char *rights = touch->written ? "writes" : "reads";
    int64_t begin = (int64_t)(intptr_t)touch->start, end = begin + touch->bytes;
    if (!kind) {
        differ(watch, "%s %s %" PRId64 " bytes that are no memory of the device", what, rights,
               touch->bytes);
    } else if (strcmp(kind, "rotary table") == 0) {
        if (touch->written || strncmp(what, "head_rotate", 11) != 0)
            differ(watch, "%s %s the rotary table", what, rights);
    } else if (strcmp(kind, "small numbers") == 0) {
        if (current(watch)->name.operation != PL_OP_CONTROL)
            differ(watch, "%s %s the staging of small numbers", what, rights);
    } else if (overlaps_any(watch, touch->start, touch->bytes)) {
        differ(watch, "%s %s a range across the border of a buffer", what, rights);
    } else if (strcmp(kind, "buffers of a plan") == 0 && touch->read &&
               written_until(watch, -1, begin) < end) {
        differ(watch, "%s reads work space that the entry has not written", what);
    } else {
        keep_range(watch, &(watch_range){-1, begin, end, touch->read, touch->written});
    }
}

/* A piece of TOUCH that lies in BUFFER. */
static void check_inside(call_watch *watch, const char *what, const pl_touch *touch,
                         const watch_buffer *buffer, int64_t begin, int64_t end)
{
    char name[64];
    if (buffer->use < 0) {
        size_t number = 0;
        for (size_t i = 0; i < watch->section->buffer_count; ++i)
            if (pl_executor_buffer_address(watch->executor, watch->section, (uint32_t)i) ==
                buffer->start)
                number = i;
        differ(watch, "%s touches buffer %s, which the entry does not use", what,
               buffer_name(watch, (uint32_t)number, name, sizeof name));
        return;
    }
    const pl_use *use = use_number(watch, buffer->use);
    buffer_name(watch, use->buffer, name, sizeof name);
    if (touch->written && !(use->flags & PL_USE_WRITE))
        differ(watch, "%s writes buffer %s, which the entry only reads", what, name);
    /* What an entry begins it may read once it has written it. */
    bool own = (use->flags & PL_USE_BEGIN) && written_until(watch, buffer->use, begin) >= end;
    if (touch->read && !(use->flags & PL_USE_READ) && !own)
        differ(watch, "%s reads buffer %s, which the entry is to write", what, name);
    keep_range(watch, &(watch_range){buffer->use, begin, end, touch->read, touch->written});
}

/* Ranges that continue one another were joined: they may go through several buffers. */
static void check_touch(call_watch *watch, const char *what, const pl_touch *touch)
{
    const char *at = touch->start, *end = at + touch->bytes;
    if (!buffer_at(watch, at)) {
        check_outside(watch, what, touch);
        return;
    }
    while (at < end && !watch->words[0]) {
        const watch_buffer *buffer = buffer_at(watch, at);
        if (!buffer) {
            differ(watch, "%s touches %" PRId64 " bytes behind a buffer", what,
                   (int64_t)(end - at));
            return;
        }
        const char *stop = buffer->start + buffer->bytes;
        if (stop > end) stop = end;
        check_inside(watch, what, touch, buffer, at - buffer->start, stop - buffer->start);
        at = stop;
    }
}

/* --- a call --- */

/* Rows that an uneven exchange sends: for each choice of the rank's tokens, or what it received. */
static int64_t rows_sent(const call_watch *watch)
{
    const pl_settings *settings = &watch->facts->plan.settings;
    const pl_entry_name *name = &current(watch)->name;
    bool backward = name->pass != PL_PASS_FORWARD && name->pass != PL_PASS_RECOMPUTE;
    bool to_owners = (name->operation == PL_OP_DISPATCH) != backward;
    int64_t tokens = settings->shape.sequence * settings->shape.micro_batch;
    return to_owners ? tokens * watch->facts->plan.model.num_experts_per_tok : watch->rows;
}

static void check_collective(call_watch *watch, const pl_call_record *record)
{
    const pl_entry *entry = current(watch);
    pl_rank_set members =
        pl_layout_group(&watch->facts->plan.layout, (pl_group_role)entry->group, watch->rank);
    int64_t bytes = entry->bytes;
    if (entry->rows == PL_ROWS_EXCHANGED) bytes *= rows_sent(watch);
    /* choices and weights travel together; trained and frozen tensors may */
    bool mixed = entry->wire == PL_U8 || (entry->name.operation == PL_OP_SHARE_ROUTES &&
                                          entry->name.pass == PL_PASS_FORWARD);
    if (!pl_rank_set_equal(&members, record->members))
        differ(watch, "%s: the members are not those of group %s", record->what,
               pl_group_role_name((pl_group_role)entry->group));
    if (record->reduction != entry->reduction)
        differ(watch, "%s: reduction %s, not %s", record->what,
               pl_reduction_name((pl_reduction)record->reduction),
               pl_reduction_name((pl_reduction)entry->reduction));
    if ((entry->wire != PL_U8 && record->dtype != entry->wire) || record->one_dtype == mixed)
        differ(watch, "%s: type %s, not %s", record->what, pl_dtype_name((pl_dtype)record->dtype),
               pl_dtype_name((pl_dtype)entry->wire));
    if (record->bytes != bytes)
        differ(watch, "%s: %" PRId64 " bytes, not %" PRId64, record->what, record->bytes, bytes);
}

/* Before the first program the rotary table is brought to the device, and nothing else done. */
static void check_opening(call_watch *watch, const pl_call_record *record)
{
    const pl_touch *to = &record->touch[record->touch_count - 1];
    const char *memory = record->touch_count == 2 && to->written
                             ? double_device_memory(watch->device, to->start, to->bytes)
                             : NULL;
    if (watch->programs > 0 || !memory || strcmp(memory, "rotary table") != 0 ||
        strcmp(record->what, "copy") != 0)
        differ(watch, "%s is called outside of programs", record->what);
}

static void take_record(void *context, const pl_call_record *record)
{
    call_watch *watch = context;
    if (watch->index < 0) {
        check_opening(watch, record);
        return;
    }
    ++watch->calls;
    const pl_entry *entry = current(watch);
    int number = watch->calls_seen++;
    if (watch->words[0]) return;
    if (!pl_entry_name_equal(&record->entry, &entry->name))
        differ(watch, "%s is called for another entry", record->what);
    if (record->stream != (pl_stream)entry->stream)
        differ(watch, "%s is called on stream %s", record->what, pl_stream_name(record->stream));
    if (number >= watch->expected.count || number >= CALLS_MOST)
        differ(watch, "%s is called, and no call %d is expected", record->what, number);
    else if (strcmp(record->what, watch->expected.name[number]) != 0)
        differ(watch, "call %d is %s, expected is %s", number, record->what,
               watch->expected.name[number]);
    if (record->collective != (entry->group != PL_GROUP_NONE) && record->collective)
        differ(watch, "%s, and the entry does not communicate", record->what);
    if (record->touch_count > PL_CALL_TOUCHES)
        differ(watch, "%s touches more ranges than a record holds", record->what);
    if (watch->words[0]) return;
    watch->flops += record->flops;
    if (record->collective) check_collective(watch, record);
    look(watch);
    for (int i = 0; i < record->touch_count; ++i)
        check_touch(watch, record->what, &record->touch[i]);
}

/* --- an entry as a whole --- */

/* Modules of a layer name all of its parameters, and read those of their own. */
static bool is_of_other_module(const call_watch *watch, const pl_buffer *buffer)
{
    bool ignored = buffer->kind == PL_BUF_IGNORED;
    int32_t part = call_part(watch->facts, buffer->subject, buffer->layer);
    pl_operation operation = (pl_operation)current(watch)->name.operation;
    if (operation != PL_OP_ATTENTION && operation != PL_OP_MLP && operation != PL_OP_ROUTE)
        return false;
    if (buffer->kind != PL_BUF_PARAMETER && buffer->kind != PL_BUF_FULL && !ignored) return false;
    return !call_module_has(watch->facts, operation, part, ignored);
}

/* Buffers that an entry names for its order alone, or that the host follows by itself. */
static bool is_silent(const call_watch *watch, const pl_use *use)
{
    const pl_entry *entry = current(watch);
    const pl_buffer *buffer = &watch->section->buffers[use->buffer];
    if (is_of_other_module(watch, buffer)) return true;
    bool all_gather = watch->facts->plan.settings.policy.dispatch == PL_DISPATCH_ALL_GATHER;
    switch ((pl_operation)entry->name.operation) {
    case PL_OP_COUNT_TOKENS: return buffer->kind == PL_BUF_BATCH;
    case PL_OP_DISPATCH:
    case PL_OP_COMBINE: return buffer->kind == PL_BUF_ROWS;
    case PL_OP_ROUTE: /* recompute makes the scores again and no choices */
        return buffer->kind == PL_BUF_ROUTE && entry->name.pass == PL_PASS_RECOMPUTE;
    case PL_OP_MERGE: return buffer->kind == PL_BUF_ROUTE && all_gather;
    case PL_OP_SCALE:
    case PL_OP_GRADIENT_NORM:
    case PL_OP_STEP: break;
    default: return false;
    }
    /* A rank may hold no row of a part, or of any. */
    if (pl_buffer_kind_scope((pl_buffer_kind)buffer->kind) != PL_SCOPE_PART)
        return watch->expected.count == 0;
    pl_buffer_kind kind = (pl_buffer_kind)buffer->kind;
    bool ignored = kind == PL_BUF_IGNORED || kind == PL_BUF_IGNORED_M || kind == PL_BUF_IGNORED_V ||
                   kind == PL_BUF_IGNORED_GRADIENT;
    return !call_holds_trained(watch->facts,
                               call_part(watch->facts, buffer->subject, buffer->layer), ignored,
                               watch->rank);
}

/* Bytes of a begun buffer that must be written: all, but for room that no row came for. */
static int64_t bytes_to_write(const call_watch *watch, const pl_use *use, int64_t bytes)
{
    const pl_buffer *buffer = &watch->section->buffers[use->buffer];
    const call_facts *facts = watch->facts;
    bool pairs = buffer->kind == PL_BUF_SAVE_EXPERTS || buffer->kind == PL_BUF_D_ACTIVATION;
    if (!pairs || facts->plan.settings.policy.dispatch != PL_DISPATCH_ALL_GATHER) return bytes;
    if (watch->rows < 0) return bytes; /* one owner: every choice is here */
    return watch->rows * 2 * facts->plan.model.moe_intermediate_size *
           pl_dtype_bytes(facts->plan.settings.precision.compute);
}

static void check_use(call_watch *watch, int32_t number)
{
    const pl_use *use = use_number(watch, number);
    const pl_buffer *buffer = &watch->section->buffers[use->buffer];
    bool read = false, written = false, lives = false;
    char name[64];
    int64_t bytes = 0;
    for (size_t i = 0; i < watch->buffer_count; ++i) {
        if (watch->buffers[i].use != number) continue;
        bytes = watch->buffers[i].bytes;
        lives = true;
    }
    for (size_t i = 0; i < watch->range_count; ++i) {
        if (watch->ranges[i].use != number) continue;
        read |= watch->ranges[i].read;
        written |= watch->ranges[i].written;
    }
    buffer_name(watch, use->buffer, name, sizeof name);
    if (!lives || is_silent(watch, use)) return;
    /* the counts are changed only where they run on over the rounds */
    bool changes = buffer->kind != PL_BUF_BALANCE ||
                   current(watch)->name.operation != PL_OP_BALANCE ||
                   watch->facts->plan.settings.balance == PL_BALANCE_GLOBAL_BATCH;
    if ((use->flags & PL_USE_WRITE) && changes && !written)
        differ(watch, "buffer %s is not written", name);
    if ((use->flags & PL_USE_READ) && !(use->flags & PL_USE_WRITE) && !read)
        differ(watch, "buffer %s is not read", name);
    int64_t wanted = bytes_to_write(watch, use, bytes);
    if ((use->flags & PL_USE_BEGIN) && written_until(watch, number, 0) != wanted)
        differ(watch, "buffer %s is written up to byte %" PRId64 " of %" PRId64, name,
               written_until(watch, number, 0), wanted);
    if (bytes != buffer->bytes * (buffer->per_row ? watch->rows : 1))
        differ(watch, "buffer %s has %" PRId64 " bytes", name, bytes);
}

static void compare(call_watch *watch)
{
    const pl_entry *entry = current(watch);
    int64_t rows = entry->rows == PL_ROWS_RECEIVED ? watch->rows : 1;
    if (watch->words[0]) return;
    if (watch->calls_seen != watch->expected.count)
        differ(watch, "%d calls, expected are %d; the next is %s", watch->calls_seen,
               watch->expected.count,
               watch->calls_seen < CALLS_MOST ? watch->expected.name[watch->calls_seen] : "?");
    if (watch->flops != entry->flops * rows)
        differ(watch, "calls of %" PRId64 " FLOPs, the entry has %" PRId64 " times %" PRId64,
               watch->flops, entry->flops, rows);
    for (uint32_t i = 0; i < entry->use_count && watch->calls_seen > 0; ++i)
        check_use(watch, (int32_t)i);
    ++watch->entries;
}

/* --- rows that routing decides --- */

static int64_t find_live(const call_watch *watch, pl_buffer_kind kind)
{
    const pl_entry_name *name = &current(watch)->name;
    for (size_t i = 0; i < watch->section->buffer_count; ++i) {
        const pl_buffer *buffer = &watch->section->buffers[i];
        if (buffer->kind != (uint8_t)kind || buffer->layer != name->layer ||
            buffer->micro_batch != name->micro_batch)
            continue;
        if (pl_executor_buffer_bytes(watch->executor, watch->section, (uint32_t)i) > 0)
            return (int64_t)i;
    }
    return -1;
}

static pl_status read_buffer(const call_watch *watch, pl_executor *executor, int64_t buffer,
                             void *out, int64_t *bytes)
{
    *bytes = pl_executor_buffer_bytes(watch->executor, watch->section, (uint32_t)buffer);
    void *copy = NULL;
    PL_TRY(pl_allocate(&copy, (size_t)*bytes, 1, "copy of a buffer"));
    pl_status status = pl_executor_read(executor, watch->section, (uint32_t)buffer, copy, *bytes);
    if (status == PL_OK)
        memcpy(out, &copy, sizeof copy);
    else
        pl_free(copy);
    return status;
}

/* Rows that came for the experts of this rank: as counted, or as chosen by all tokens. */
static pl_status find_rows(call_watch *watch, pl_executor *executor)
{
    const call_facts *facts = watch->facts;
    int64_t counted = find_live(watch, PL_BUF_ROWS);
    int64_t shared = find_live(watch, PL_BUF_ROUTES_IN), bytes = 0;
    watch->rows = -1;
    if (counted >= 0) {
        int64_t *counts = NULL;
        PL_TRY(read_buffer(watch, executor, counted, &counts, &bytes));
        watch->rows = 0;
        for (int64_t i = 0; i < bytes / 8; ++i) watch->rows += counts[i];
        pl_free(counts);
    } else if (shared >= 0) {
        int32_t *choices = NULL;
        int64_t owners = pl_layout_group_size(&facts->plan.layout, PL_GROUP_EXPERT_OWNER);
        int64_t owner =
            pl_layout_group_index(&facts->plan.layout, PL_GROUP_EXPERT_OWNER, watch->rank);
        int64_t own = facts->plan.model.num_experts / owners;
        PL_TRY(read_buffer(watch, executor, shared, &choices, &bytes));
        watch->rows = 0;
        for (int64_t i = 0; i < bytes / 8; ++i) watch->rows += choices[i] / own == owner;
        pl_free(choices);
    }
    return PL_OK;
}

/* Before bind: what this rank sends to each owner. What it receives is known behind it. */
static pl_status note_bound(call_watch *watch, pl_executor *executor)
{
    const call_facts *facts = watch->facts;
    const pl_entry *entry = current(watch);
    int64_t owners = pl_layout_group_size(&facts->plan.layout, PL_GROUP_EXPERT_OWNER), bytes = 0;
    int64_t own = facts->plan.model.num_experts / owners, *counts = NULL;
    if (entry->name.operation == PL_OP_DISPATCH && entry->rows == PL_ROWS_EXCHANGED &&
        entry->name.pass == PL_PASS_FORWARD)
        for (size_t i = 0; i < watch->bound_count; ++i)
            if (watch->bound[i].received < 0 && watch->bound[i].entry.layer == entry->name.layer &&
                watch->bound[i].entry.micro_batch == entry->name.micro_batch)
                watch->bound[i].received = watch->rows;
    if (entry->name.operation != PL_OP_BIND || owners > WATCH_OWNERS) return PL_OK;
    int64_t buffer = find_live(watch, PL_BUF_COUNTS);
    if (buffer < 0) return PL_OK;
    PL_TRY(pl_grow(&watch->bound, &watch->bound_room, watch->bound_count + 1, sizeof *watch->bound,
                   "bound rows"));
    PL_TRY(read_buffer(watch, executor, buffer, &counts, &bytes));
    watch_bound *bound = &watch->bound[watch->bound_count++];
    *bound = (watch_bound){.entry = entry->name, .received = -1};
    for (int64_t i = 0; i < bytes / 8; ++i) bound->sent[i / own] += counts[i];
    pl_free(counts);
    return PL_OK;
}

/* --- following --- */

static void end_program(call_watch *watch)
{
    int64_t last = (int64_t)watch->section->entry_count - 1;
    if (watch->index != last)
        differ(watch, "the program ends here, and not with entry %" PRId64, last);
    watch->index = -1;
}

pl_status call_watch_before(call_watch *watch, pl_executor *executor, const pl_section *section,
                            int64_t index)
{
    if (watch->index >= 0) compare(watch);
    int64_t expected = watch->index + 1;
    if (index == 0 && watch->index >= 0) {
        end_program(watch);
        expected = 0;
    }
    if (index == 0) ++watch->programs;
    watch->executor = executor;
    watch->section = section;
    watch->index = index;
    if (index != expected) differ(watch, "entry %" PRId64 " is next in the plan", expected);
    watch->calls_seen = 0;
    watch->flops = 0;
    watch->range_count = watch->buffer_count = 0;
    call_expect(&watch->expected, watch->facts, watch->rank, section, current(watch));
    PL_TRY(find_rows(watch, executor));
    return note_bound(watch, executor);
}

void call_watch_finish(call_watch *watch)
{
    if (watch->index < 0) return;
    compare(watch);
    end_program(watch);
}

void call_watch_open(call_watch *watch, const call_facts *facts, int64_t rank,
                     const double_device *device)
{
    *watch = (call_watch){.facts = facts, .rank = rank, .device = device, .index = -1};
    watch->log = (pl_call_log){take_record, watch};
}

void call_watch_close(call_watch *watch)
{
    pl_free(watch->buffers);
    pl_free(watch->ranges);
    pl_free(watch->bound);
    *watch = (call_watch){0};
}
