/* Gathers: each unit as often as the reshard policy promises, and none for nothing. */
#include <inttypes.h>
#include <string.h>

#include "common/memory.h"
#include "sim/proof.h"

typedef struct unit_tally {
    int64_t forward, backward; /* in the round in work, or in the program under `never` */
} unit_tally;

typedef struct gathers {
    const pl_sim_world *world;
    pl_verdict *verdict;
    const pl_section *section;
    int64_t rank;
    unit_tally *tally; /* [unit_number] */
} gathers;

/* Number of a unit by the part that leads it. */
static size_t unit_number(const gathers *g, int subject, int32_t layer)
{
    if (subject == PL_SUBJECT_LAYER) return 3 + (size_t)layer;
    if (subject == PL_SUBJECT_EXPERTS) return 3 + (size_t)(g->world->parts.layers + layer);
    return subject == PL_SUBJECT_EMBEDDING ? 0 : subject == PL_SUBJECT_NORM ? 1 : 2;
}

/* Whether the unit's parameters are computed with in backward, by the module places of
 * sim/expect.h. */
static bool needed_in_backward(const gathers *g, int subject, int32_t layer)
{
    if (g->section->program != PL_PROGRAM_STEP) return false;
    int32_t first = g->world->parts.first_trained, layers = g->world->parts.layers;
    bool legacy = g->world->plan->layout.kind == PL_LAYOUT_LEGACY;
    bool moe = layer >= 0 && pl_expect_moe(g->world, layer);
    bool layer_back = first <= 3 * layer + (moe ? 3 : 2);
    switch (subject) {
    case PL_SUBJECT_NORM: return first <= 3 * layers + 1;
    case PL_SUBJECT_EXPERTS: return layer_back;
    case PL_SUBJECT_LAYER:
        return first <= 3 * layer + 2 || (layer_back && pl_expect_recompute(g->world, layer)) ||
               (legacy && layer_back);
    default: return false;
    }
}

/* How often the policy gathers a unit in one round (in the step under `never`). */
static unit_tally promised(const gathers *g, int subject, int32_t layer)
{
    const pl_settings *settings = &g->world->plan->settings;
    int64_t m = settings->shape.intra_layer;
    bool tied = subject == PL_SUBJECT_EMBEDDING && g->world->parts.tied;
    bool last = layer == g->world->parts.layers - 1 && layer >= 0;
    bool back = needed_in_backward(g, subject, layer);
    switch (settings->policy.reshard) {
    case PL_RESHARD_NEVER: return (unit_tally){1, 0};
    case PL_RESHARD_PER_CALL: return (unit_tally){tied ? 2 * m : m, back ? m : 0};
    default: return (unit_tally){1, back && !last};
    }
}

static void check_unit(const gathers *g, int subject, int32_t layer)
{
    const pl_expected_part *part =
        pl_expected_part_of(&g->world->parts, (pl_subject)subject, layer);
    const pl_expected_part *experts = NULL;
    bool legacy = g->world->plan->layout.kind == PL_LAYOUT_LEGACY;
    unit_tally found = g->tally[unit_number(g, subject, layer)];
    if (!part->exists || (legacy && subject == PL_SUBJECT_EXPERTS)) return;
    if (legacy && subject == PL_SUBJECT_LAYER) experts = &g->world->parts.experts[layer];
    int64_t bytes = part->wire_bytes + (experts ? experts->wire_bytes : 0);
    unit_tally must = {0, 0};
    if (part->shards > 1 && bytes > 0) must = promised(g, subject, layer);
    ++g->verdict->checked;
    if (found.forward == must.forward && found.backward == must.backward) return;
    pl_text name = {0};
    pl_subject_print(&name, (pl_subject)subject, layer);
    pl_verdict_fail(g->verdict, g->rank, g->section->program, g->section, NULL,
                    "%s is gathered %" PRId64 " times in forward and %" PRId64
                    " in backward, must be %" PRId64 " and %" PRId64,
                    pl_text_string(&name), found.forward, found.backward, must.forward,
                    must.backward);
    pl_verdict_free_text(g->verdict, &name);
}

static void check_round(const gathers *g)
{
    static const int single[] = {PL_SUBJECT_EMBEDDING, PL_SUBJECT_NORM, PL_SUBJECT_HEAD};
    for (int i = 0; i < 3; ++i) check_unit(g, single[i], -1);
    for (int32_t layer = 0; layer < g->world->parts.layers; ++layer) {
        check_unit(g, PL_SUBJECT_LAYER, layer);
        check_unit(g, PL_SUBJECT_EXPERTS, layer);
    }
}

static void tally_round(const gathers *g, int64_t round)
{
    const pl_section *section = g->section;
    memset(g->tally, 0, (3 + 2 * (size_t)g->world->parts.layers) * sizeof *g->tally);
    for (size_t i = 0; i < section->entry_count; ++i) {
        const pl_entry *entry = &section->entries[i];
        const pl_entry_name *name = &entry->name;
        if (name->operation != PL_OP_GATHER || name->subject > PL_SUBJECT_HEAD) continue;
        if (name->layer >= g->world->parts.layers) continue;
        if (round >= 0 && name->round != round) continue;
        unit_tally *tally = &g->tally[unit_number(g, name->subject, name->layer)];
        ++*(name->pass == PL_PASS_BACKWARD ? &tally->backward : &tally->forward);
    }
    check_round(g);
}

/* Whether ENTRY computes with a gathered copy; a cast from the wire only prepares one. */
static bool computes(const gathers *g, const pl_entry *entry, size_t *unit)
{
    bool legacy = g->world->plan->layout.kind == PL_LAYOUT_LEGACY;
    if (entry->name.operation == PL_OP_CAST) return false;
    for (uint32_t i = 0; i < entry->use_count; ++i) {
        const pl_use *use = &g->section->uses[entry->use_first + i];
        const pl_buffer *buffer = &g->section->buffers[use->buffer];
        if (!(use->flags & PL_USE_READ) || buffer->kind != PL_BUF_FULL) continue;
        if (buffer->layer >= g->world->parts.layers) continue;
        bool joined = legacy && buffer->subject == PL_SUBJECT_EXPERTS;
        *unit = unit_number(g, joined ? PL_SUBJECT_LAYER : buffer->subject, buffer->layer);
        return true;
    }
    return false;
}

/* A unit is gathered where it is needed, or one unit ahead: at a gather, so many others may be
 * gathered and not yet computed with. */
static void check_ahead(const gathers *g)
{
    bool next = g->world->plan->settings.policy.prefetch == PL_PREFETCH_NEXT_UNIT;
    int64_t ahead = 0;
    size_t unit = 0;
    memset(g->tally, 0, (3 + 2 * (size_t)g->world->parts.layers) * sizeof *g->tally);
    for (size_t i = 0; i < g->section->entry_count; ++i) {
        const pl_entry *entry = &g->section->entries[i];
        if (entry->name.operation == PL_OP_GATHER && entry->name.subject <= PL_SUBJECT_HEAD &&
            entry->name.layer < g->world->parts.layers) {
            if (ahead > next)
                pl_verdict_fail(g->verdict, g->rank, g->section->program, g->section, entry,
                                "gathers further ahead than prefetch=%s: %" PRId64
                                " other units are gathered and not yet used",
                                next ? "next-unit" : "none", ahead);
            g->tally[unit_number(g, entry->name.subject, entry->name.layer)].forward = 1;
            ++ahead;
        }
        if (!computes(g, entry, &unit) || g->tally[unit].forward == 0) continue;
        g->tally[unit].forward = 0;
        --ahead;
    }
}

static void check_section(const gathers *g)
{
    const pl_settings *settings = &g->world->plan->settings;
    for (size_t i = 0; i < g->section->entry_count; ++i) {
        const pl_entry *entry = &g->section->entries[i];
        if (entry->name.operation != PL_OP_GATHER) continue;
        ++g->verdict->checked;
        if (!pl_gather_is_used(g->section, i))
            pl_verdict_fail(g->verdict, g->rank, g->section->program, g->section, entry,
                            "nothing computes with what it gathers");
    }
    check_ahead(g);
    if (settings->policy.reshard == PL_RESHARD_NEVER) {
        tally_round(g, -1);
        return;
    }
    int64_t rounds = g->section->program == PL_PROGRAM_STEP ? settings->shape.rounds : 1;
    for (int64_t round = 0; round < rounds && g->verdict->outcome != PL_FAILED; ++round)
        tally_round(g, round);
}

pl_status pl_prove_gathers(const pl_sim_world *world, pl_verdict *verdict)
{
    for (size_t i = 0; i < world->plan->section_count; ++i) {
        const pl_section *section = &world->plan->sections[i];
        gathers g = {.world = world, .verdict = verdict, .section = section};
        if (pl_expect_moves(section->program)) continue;
        g.rank = pl_section_first_rank(section);
        PL_TRY(
            pl_allocate(&g.tally, 3 + 2 * (size_t)world->parts.layers, sizeof *g.tally, "gathers"));
        check_section(&g);
        pl_free(g.tally);
    }
    return PL_OK;
}
