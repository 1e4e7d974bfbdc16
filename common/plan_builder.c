#include "common/plan_builder.h"

#include <string.h>

#include "common/memory.h"

enum { NO_ENTRY = -1 };

/* --- names and buffers --- */

pl_entry_name pl_builder_name(const pl_builder *builder, pl_operation operation, pl_subject subject,
                              int32_t layer, int32_t micro_batch, pl_pass pass)
{
    pl_entry_name name = pl_entry_name_make(operation, subject);
    name.layer = layer;
    name.round = builder->round;
    name.micro_batch = micro_batch;
    name.pass = (uint8_t)pass;
    return name;
}

static void size_overflows(pl_builder *builder)
{
    builder->status = PL_FAIL(PL_BAD_INPUT, "a size of the plan does not fit 63 bits");
}

int64_t pl_builder_product(pl_builder *builder, int64_t a, int64_t b, int64_t c, int64_t d)
{
    int64_t product = 0;
    if (builder->status != PL_OK) return 0;
    if (__builtin_mul_overflow(a, b, &product) || __builtin_mul_overflow(product, c, &product) ||
        __builtin_mul_overflow(product, d, &product))
        size_overflows(builder);
    return product;
}

int64_t pl_builder_sum(pl_builder *builder, int64_t a, int64_t b)
{
    int64_t sum = 0;
    if (builder->status == PL_OK && __builtin_add_overflow(a, b, &sum)) size_overflows(builder);
    return sum;
}

static size_t map_place(const pl_builder *builder, pl_buffer_kind kind, int32_t slot,
                        int32_t micro_batch)
{
    size_t width = (size_t)builder->facts->micro_batches + 1;
    return ((size_t)kind * builder->slots + (size_t)slot) * width + (size_t)(micro_batch + 1);
}

static pl_status make_buffer(pl_builder *builder, const pl_buffer *buffer)
{
    pl_section *section = builder->section;
    size_t count = section->buffer_count;
    PL_TRY(pl_grow(&section->buffers, &section->buffer_capacity, count + 1, sizeof *buffer,
                   "plan buffers"));
    PL_TRY(pl_grow(&builder->state, &builder->state_capacity, count + 1, sizeof *builder->state,
                   "plan buffers"));
    section->buffers[count] = *buffer;
    pl_buffer_state *state = &builder->state[count];
    state->writer = NO_ENTRY;
    for (int i = 0; i < PL_STREAM_COUNT; ++i) state->reader[i] = NO_ENTRY;
    state->alive = buffer->resident && !pl_program_makes_residents(section->program);
    section->buffer_count = count + 1;
    return PL_OK;
}

uint32_t pl_builder_buffer(pl_builder *builder, pl_buffer_kind kind, int32_t slot,
                           int32_t micro_batch)
{
    if (builder->status != PL_OK) return 0;
    int32_t *place = &builder->buffer_of[map_place(builder, kind, slot, micro_batch)];
    if (*place >= 0) return (uint32_t)*place;
    pl_buffer buffer;
    pl_buffer_describe(builder, &buffer, kind, slot, micro_batch);
    if (builder->status == PL_OK) builder->status = make_buffer(builder, &buffer);
    if (builder->status != PL_OK) return 0;
    *place = (int32_t)builder->section->buffer_count - 1;
    return (uint32_t)*place;
}

/* --- entries --- */

pl_entry *pl_builder_open(pl_builder *builder, pl_entry_name name, pl_stream stream)
{
    static const pl_entry blank = {
        .group = PL_GROUP_NONE, .wire = PL_U8, .peer = -1, .scale = {1, 1, 0}};
    pl_section *section = builder->section;
    if (builder->status == PL_OK)
        builder->status = pl_grow(&section->entries, &section->entry_capacity,
                                  section->entry_count + 1, sizeof blank, "plan entries");
    if (builder->status == PL_OK)
        builder->status = pl_grow(&builder->clock, &builder->clock_capacity,
                                  section->entry_count + 1, sizeof *builder->clock, "plan entries");
    builder->open =
        builder->status == PL_OK ? &section->entries[section->entry_count] : &builder->discarded;
    *builder->open = blank;
    builder->open->name = name;
    builder->open->stream = (uint8_t)stream;
    builder->open->label = (uint32_t)section->entry_count;
    builder->open->use_first = (uint32_t)section->use_count;
    builder->extra_wait = NO_ENTRY;
    return builder->open;
}

static void add_use(pl_builder *builder, uint32_t buffer, uint32_t flags)
{
    pl_section *section = builder->section;
    if (builder->status != PL_OK) return;
    builder->status = pl_grow(&section->uses, &section->use_capacity, section->use_count + 1,
                              sizeof *section->uses, "plan uses");
    if (builder->status != PL_OK) return;
    section->uses[section->use_count++] = (pl_use){buffer, flags};
    if (flags & PL_USE_BEGIN) builder->state[buffer].alive = true;
    if (flags & PL_USE_END) builder->state[buffer].alive = false;
}

void pl_builder_read(pl_builder *builder, uint32_t buffer)
{
    add_use(builder, buffer, PL_USE_READ);
}

void pl_builder_read_last(pl_builder *builder, uint32_t buffer, bool ends)
{
    add_use(builder, buffer, PL_USE_READ | (ends ? PL_USE_END : 0));
}

void pl_builder_begin(pl_builder *builder, uint32_t buffer)
{
    add_use(builder, buffer, PL_USE_WRITE | PL_USE_BEGIN);
}

void pl_builder_update(pl_builder *builder, uint32_t buffer)
{
    add_use(builder, buffer, PL_USE_READ | PL_USE_WRITE);
}

void pl_builder_update_last(pl_builder *builder, uint32_t buffer, bool ends)
{
    add_use(builder, buffer, PL_USE_READ | PL_USE_WRITE | (ends ? PL_USE_END : 0));
}

void pl_builder_add_into(pl_builder *builder, uint32_t buffer)
{
    if (pl_builder_alive(builder, buffer))
        pl_builder_update(builder, buffer);
    else
        pl_builder_begin(builder, buffer);
}

/* An entry uses a buffer once, with all its flags: as the text form reads it back. */
void pl_builder_end(pl_builder *builder, uint32_t buffer)
{
    pl_section *section = builder->section;
    if (builder->status != PL_OK) return;
    for (size_t i = builder->open->use_first; i < section->use_count; ++i) {
        if (section->uses[i].buffer != buffer) continue;
        section->uses[i].flags |= PL_USE_END;
        builder->state[buffer].alive = false;
        return;
    }
    add_use(builder, buffer, PL_USE_END);
}

bool pl_builder_alive(const pl_builder *builder, uint32_t buffer)
{
    return builder->status == PL_OK && builder->state[buffer].alive;
}

void pl_builder_wait(pl_builder *builder, int32_t entry) { builder->extra_wait = entry; }

void pl_builder_communicate(pl_builder *builder, pl_group_role group, pl_reduction reduction,
                            pl_dtype wire, int64_t bytes)
{
    builder->open->group = (uint8_t)group;
    builder->open->reduction = (uint8_t)reduction;
    builder->open->wire = (uint8_t)wire;
    builder->open->bytes = bytes;
}

/* --- waits --- */

/* The latest entry of each stream that must be done before the open one. */
static void consider(const pl_section *section, int32_t entry, int32_t *latest)
{
    if (entry == NO_ENTRY) return;
    int stream = section->entries[entry].stream;
    if (entry > latest[stream]) latest[stream] = entry;
}

static void collect(const pl_builder *builder, const pl_use *use, int32_t *latest)
{
    const pl_buffer_state *state = &builder->state[use->buffer];
    consider(builder->section, state->writer, latest);
    if (!(use->flags & (PL_USE_WRITE | PL_USE_END))) return;
    for (int i = 0; i < PL_STREAM_COUNT; ++i) consider(builder->section, state->reader[i], latest);
}

static void note_use(pl_builder *builder, const pl_use *use, int32_t entry, int stream)
{
    pl_buffer_state *state = &builder->state[use->buffer];
    if (!(use->flags & (PL_USE_WRITE | PL_USE_END))) {
        state->reader[stream] = entry;
        return;
    }
    state->writer = entry;
    for (int i = 0; i < PL_STREAM_COUNT; ++i) state->reader[i] = NO_ENTRY;
}

/* Reads first, then writes, begins, ends: the order of the text form. */
static int text_place(const pl_use *use)
{
    if (use->flags & PL_USE_READ) return 0;
    if (use->flags & PL_USE_BEGIN) return 2;
    return use->flags & PL_USE_WRITE ? 1 : 3;
}

static void order_uses(pl_use *uses, size_t count)
{
    for (size_t i = 1; i < count; ++i) {
        pl_use use = uses[i];
        size_t j = i;
        for (; j > 0 && text_place(&uses[j - 1]) > text_place(&use); --j) uses[j] = uses[j - 1];
        uses[j] = use;
    }
}

static void add_wait(pl_builder *builder, int32_t entry)
{
    pl_section *section = builder->section;
    if (builder->status != PL_OK) return;
    builder->status = pl_grow(&section->waits, &section->wait_capacity, section->wait_count + 1,
                              sizeof *section->waits, "plan waits");
    if (builder->status == PL_OK) section->waits[section->wait_count++] = entry;
}

/* Of the entries that must be done first, keep those that nothing else implies: not the own
 * stream's order, not what the own stream has waited for, not another of the waits. */
static void add_waits(pl_builder *builder, int32_t *latest, pl_clock *clock)
{
    const pl_entry *open = builder->open;
    latest[open->stream] = NO_ENTRY;
    for (int s = 0; s < PL_STREAM_COUNT; ++s)
        if (latest[s] <= clock->seen[s]) latest[s] = NO_ENTRY;
    for (int s = 0; s < PL_STREAM_COUNT; ++s) {
        if (latest[s] == NO_ENTRY) continue;
        bool implied = false;
        for (int t = 0; t < PL_STREAM_COUNT; ++t)
            implied |=
                t != s && latest[t] != NO_ENTRY && builder->clock[latest[t]].seen[s] >= latest[s];
        if (!implied) add_wait(builder, latest[s]);
    }
    for (int s = 0; s < PL_STREAM_COUNT; ++s) {
        if (latest[s] == NO_ENTRY) continue;
        for (int t = 0; t < PL_STREAM_COUNT; ++t) {
            int32_t seen = builder->clock[latest[s]].seen[t];
            if (seen > clock->seen[t]) clock->seen[t] = seen;
        }
    }
}

void pl_builder_close(pl_builder *builder)
{
    if (builder->status != PL_OK) return;
    pl_section *section = builder->section;
    pl_entry *open = builder->open;
    int32_t entry = (int32_t)section->entry_count, last = builder->stream_last[open->stream];
    pl_use *uses = section->uses + open->use_first;
    size_t use_count = section->use_count - open->use_first;
    open->use_count = (uint32_t)use_count;
    order_uses(uses, use_count);

    int32_t latest[PL_STREAM_COUNT];
    pl_clock clock;
    for (int s = 0; s < PL_STREAM_COUNT; ++s) {
        latest[s] = NO_ENTRY;
        clock.seen[s] = last == NO_ENTRY ? NO_ENTRY : builder->clock[last].seen[s];
    }
    for (size_t i = 0; i < use_count; ++i) collect(builder, &uses[i], latest);
    consider(section, builder->extra_wait, latest);
    open->wait_first = (uint32_t)section->wait_count;
    add_waits(builder, latest, &clock);
    open->wait_count = (uint32_t)(section->wait_count - open->wait_first);

    clock.seen[open->stream] = entry;
    builder->clock[entry] = clock;
    builder->stream_last[open->stream] = entry;
    for (size_t i = 0; i < use_count; ++i) note_use(builder, &uses[i], entry, open->stream);
    ++section->entry_count;
}

/* --- what is read about the rank --- */

static int64_t ask(pl_builder *builder, pl_question_kind kind, int32_t part)
{
    for (size_t i = 0; i < builder->question_count; ++i)
        if (builder->questions[i].part == part && builder->questions[i].kind == kind)
            return builder->questions[i].answer;
    int64_t answer = pl_rank_answer(builder->facts, kind, part, builder->rank);
    if (builder->status != PL_OK) return 0;
    builder->status =
        pl_grow(&builder->questions, &builder->question_capacity, builder->question_count + 1,
                sizeof *builder->questions, "facts about a rank");
    if (builder->status != PL_OK) return 0;
    builder->questions[builder->question_count++] = (pl_rank_question){kind, part, answer};
    return answer;
}

int64_t pl_builder_local_elements(pl_builder *builder, int32_t part, bool frozen)
{
    return ask(builder, frozen ? PL_ASKS_FROZEN_ELEMENTS : PL_ASKS_TRAINED_ELEMENTS,
               builder->facts->parts.part[part].like);
}

/* --- life of a builder --- */

pl_status pl_builder_init(pl_builder *builder, const pl_plan_facts *facts)
{
    memset(builder, 0, sizeof *builder);
    builder->facts = facts;
    size_t parts = (size_t)facts->parts.part_count, layers = (size_t)facts->parts.layer_count + 1;
    builder->slots = parts > layers ? parts : layers;
    size_t places = PL_BUFFER_KIND_COUNT * builder->slots * ((size_t)facts->micro_batches + 1);
    PL_TRY(pl_allocate(&builder->buffer_of, places, sizeof *builder->buffer_of, "plan buffers"));
    PL_TRY(pl_allocate(&builder->present, (size_t)facts->parts.unit_count, sizeof *builder->present,
                       "units"));
    return PL_OK;
}

void pl_builder_begin_section(pl_builder *builder, pl_section *section, int64_t rank)
{
    const pl_plan_facts *facts = builder->facts;
    size_t places = PL_BUFFER_KIND_COUNT * builder->slots * ((size_t)facts->micro_batches + 1);
    builder->section = section;
    builder->rank = rank;
    builder->question_count = 0;
    builder->call = 0;
    builder->last_reshard = NO_ENTRY;
    builder->round = -1;
    for (size_t i = 0; i < places; ++i) builder->buffer_of[i] = -1;
    memset(builder->present, 0, sizeof *builder->present * (size_t)facts->parts.unit_count);
    for (int i = 0; i < PL_STREAM_COUNT; ++i) builder->stream_last[i] = NO_ENTRY;
}

void pl_builder_free(pl_builder *builder)
{
    pl_free(builder->buffer_of);
    pl_free(builder->present);
    pl_free(builder->state);
    pl_free(builder->clock);
    pl_free(builder->questions);
    memset(builder, 0, sizeof *builder);
}
