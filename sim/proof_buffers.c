/* Ordering and lifetimes of buffers: what each section does with them, entry by entry. */
#include <inttypes.h>
#include <string.h>

#include "common/memory.h"
#include "sim/proof.h"

enum { NONE = -1 };

/* What each stream has surely finished before an entry runs: the last such entry. */
typedef struct clock {
    int32_t done[PL_STREAM_COUNT];
} clock;

typedef struct access {
    int32_t writer;                  /* last entry that wrote, began or ended it */
    int32_t reader[PL_STREAM_COUNT]; /* last readers since */
} access;

typedef struct order {
    pl_verdict *verdict;
    const pl_section *section;
    int64_t rank;
    clock *clocks;  /* of each entry */
    access *access; /* of each buffer */
    clock start;    /* what is done before the entry in work */
} order;

/* --- ordering --- */

static bool is_done(const order *o, int32_t entry)
{
    return entry <= o->start.done[o->section->entries[entry].stream];
}

static void fail_pair(const order *o, const pl_entry *entry, const pl_use *use, int32_t other,
                      const char *what)
{
    pl_text name = {0}, words = {0};
    pl_buffer_print(&name, &o->section->buffers[use->buffer]);
    pl_entry_name_print(&words, &o->section->entries[other].name);
    pl_verdict_fail(o->verdict, o->rank, o->section->program, o->section, entry,
                    "%s %s, but no stream or wait orders it after entry %u, %s, which %s it",
                    (use->flags & PL_USE_WRITE) ? "writes"
                    : (use->flags & PL_USE_END) ? "ends"
                                                : "reads",
                    pl_text_string(&name), o->section->entries[other].label, pl_text_string(&words),
                    what);
    pl_verdict_free_text(o->verdict, &name);
    pl_verdict_free_text(o->verdict, &words);
}

static void check_use(const order *o, const pl_entry *entry, const pl_use *use)
{
    const access *a = &o->access[use->buffer];
    ++o->verdict->checked;
    if (a->writer != NONE && !is_done(o, a->writer)) fail_pair(o, entry, use, a->writer, "writes");
    if (!(use->flags & (PL_USE_WRITE | PL_USE_END))) return;
    for (int s = 0; s < PL_STREAM_COUNT; ++s)
        if (a->reader[s] != NONE && !is_done(o, a->reader[s]))
            fail_pair(o, entry, use, a->reader[s], "reads");
}

static void note_use(const order *o, int32_t number, const pl_use *use)
{
    access *a = &o->access[use->buffer];
    if (use->flags & (PL_USE_WRITE | PL_USE_END)) {
        a->writer = number;
        for (int s = 0; s < PL_STREAM_COUNT; ++s) a->reader[s] = NONE;
    } else {
        a->reader[o->section->entries[number].stream] = number;
    }
}

static void learn(clock *to, const clock *from)
{
    for (int s = 0; s < PL_STREAM_COUNT; ++s)
        if (from->done[s] > to->done[s]) to->done[s] = from->done[s];
}

static void check_waits(order *o, int32_t number)
{
    const pl_entry *entry = &o->section->entries[number];
    for (uint32_t i = 0; i < entry->wait_count; ++i) {
        int32_t wait = o->section->waits[entry->wait_first + i];
        if (wait == PL_WAIT_MISSING)
            pl_verdict_fail(o->verdict, o->rank, o->section->program, o->section, entry,
                            "waits for an entry that is not in the plan");
        else if (wait >= number)
            pl_verdict_fail(o->verdict, o->rank, o->section->program, o->section, entry,
                            "waits for entry %u, which is issued after it",
                            o->section->entries[wait].label);
        else
            learn(&o->start, &o->clocks[wait]);
    }
}

/* A gather runs only when the reshard before it has: else nothing would bound how far a rank
 * gathers ahead, and the memory of gathered copies. */
static void check_gather(const order *o, const pl_entry *entry, int32_t reshard)
{
    if (entry->name.operation != PL_OP_GATHER || reshard == NONE || is_done(o, reshard)) return;
    pl_verdict_fail(o->verdict, o->rank, o->section->program, o->section, entry,
                    "may run before entry %u, a reshard that stands before it: gathered copies "
                    "have no bound",
                    o->section->entries[reshard].label);
}

static void order_section(order *o)
{
    int32_t reshard = NONE;
    const pl_section *section = o->section;
    int32_t last[PL_STREAM_COUNT];
    for (int s = 0; s < PL_STREAM_COUNT; ++s) last[s] = NONE;
    for (size_t i = 0; i < section->buffer_count; ++i) {
        o->access[i].writer = NONE;
        for (int s = 0; s < PL_STREAM_COUNT; ++s) o->access[i].reader[s] = NONE;
    }
    for (int32_t number = 0; number < (int32_t)section->entry_count; ++number) {
        const pl_entry *entry = &section->entries[number];
        const pl_use *uses = section->uses + entry->use_first;
        for (int s = 0; s < PL_STREAM_COUNT; ++s) o->start.done[s] = NONE;
        if (last[entry->stream] != NONE) o->start = o->clocks[last[entry->stream]];
        check_waits(o, number);
        check_gather(o, entry, reshard);
        if (entry->name.operation == PL_OP_RESHARD) reshard = number;
        for (uint32_t i = 0; i < entry->use_count; ++i) check_use(o, entry, &uses[i]);
        for (uint32_t i = 0; i < entry->use_count; ++i) note_use(o, number, &uses[i]);
        o->clocks[number] = o->start;
        o->clocks[number].done[entry->stream] = number;
        last[entry->stream] = number;
    }
}

pl_status pl_prove_ordering(const pl_sim_world *world, pl_verdict *verdict)
{
    for (size_t i = 0; i < world->plan->section_count; ++i) {
        const pl_section *section = &world->plan->sections[i];
        order o = {.verdict = verdict, .section = section};
        o.rank = pl_section_first_rank(section);
        pl_status status = pl_allocate(&o.clocks, section->entry_count, sizeof(clock), "clocks");
        if (status == PL_OK)
            status = pl_allocate(&o.access, section->buffer_count, sizeof(access), "accesses");
        if (status == PL_OK) order_section(&o);
        pl_free(o.clocks);
        pl_free(o.access);
        PL_TRY(status);
    }
    return PL_OK;
}

/* --- lifetimes --- */

typedef struct life {
    pl_verdict *verdict;
    const pl_section *section;
    int64_t rank;
    bool *alive;      /* of each buffer */
    int32_t *changed; /* entry that began or ended it last, or NONE */
} life;

static void fail_life(const life *l, const pl_entry *entry, uint32_t buffer, const char *what)
{
    pl_text name = {0}, words = {0};
    pl_buffer_print(&name, &l->section->buffers[buffer]);
    if (l->changed[buffer] != NONE) {
        const pl_entry *other = &l->section->entries[l->changed[buffer]];
        pl_text_add(&words, " (last %s by entry %u, ", l->alive[buffer] ? "begun" : "ended",
                    other->label);
        pl_entry_name_print(&words, &other->name);
        pl_text_add_string(&words, ")");
    }
    pl_verdict_fail(l->verdict, l->rank, l->section->program, l->section, entry, "%s %s%s", what,
                    pl_text_string(&name), pl_text_string(&words));
    pl_verdict_free_text(l->verdict, &name);
    pl_verdict_free_text(l->verdict, &words);
}

static void live_use(const life *l, int32_t number, const pl_use *use)
{
    const pl_entry *entry = &l->section->entries[number];
    const pl_buffer *buffer = &l->section->buffers[use->buffer];
    bool makes = pl_expect_makes(l->section->program);
    ++l->verdict->checked;
    if (use->flags & PL_USE_BEGIN) {
        if (l->alive[use->buffer]) fail_life(l, entry, use->buffer, "begins what lives already:");
        if (use->flags & PL_USE_READ) fail_life(l, entry, use->buffer, "begins and reads at once:");
        l->alive[use->buffer] = true;
        l->changed[use->buffer] = number;
    } else if (!l->alive[use->buffer]) {
        fail_life(l, entry, use->buffer,
                  (use->flags & PL_USE_READ)    ? "reads what does not live:"
                  : (use->flags & PL_USE_WRITE) ? "writes what does not live:"
                                                : "ends what does not live:");
    }
    if (buffer->resident && ((use->flags & PL_USE_END) || ((use->flags & PL_USE_BEGIN) && !makes)))
        fail_life(l, entry, use->buffer, "begins or ends a resident buffer:");
    if (use->flags & PL_USE_END) {
        l->alive[use->buffer] = false;
        l->changed[use->buffer] = number;
    }
}

static void live_section(const life *l)
{
    const pl_section *section = l->section;
    for (size_t i = 0; i < section->buffer_count; ++i) {
        l->alive[i] = section->buffers[i].resident && !pl_expect_makes(section->program);
        l->changed[i] = NONE;
    }
    for (int32_t number = 0; number < (int32_t)section->entry_count; ++number) {
        const pl_entry *entry = &section->entries[number];
        for (uint32_t i = 0; i < entry->use_count; ++i)
            live_use(l, number, &section->uses[entry->use_first + i]);
    }
    for (size_t i = 0; i < section->buffer_count; ++i) {
        const pl_entry *last = l->changed[i] == NONE ? NULL : &section->entries[l->changed[i]];
        if (l->alive[i] && !section->buffers[i].resident)
            fail_life(l, last, (uint32_t)i, "leaves over at the end:");
        if (!l->alive[i] && section->buffers[i].resident)
            fail_life(l, last, (uint32_t)i, "is never made:");
    }
}

pl_status pl_prove_lifetimes(const pl_sim_world *world, pl_verdict *verdict)
{
    for (size_t i = 0; i < world->plan->section_count; ++i) {
        const pl_section *section = &world->plan->sections[i];
        life l = {.verdict = verdict, .section = section};
        l.rank = pl_section_first_rank(section);
        pl_status status = pl_allocate(&l.alive, section->buffer_count, sizeof(bool), "lifetimes");
        if (status == PL_OK)
            status = pl_allocate(&l.changed, section->buffer_count, sizeof(int32_t), "lifetimes");
        if (status == PL_OK) live_section(&l);
        pl_free(l.alive);
        pl_free(l.changed);
        PL_TRY(status);
    }
    return PL_OK;
}
