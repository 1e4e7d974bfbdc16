/* Collectives: the calls of all members of every group, compared one by one. */
#include <inttypes.h>
#include <string.h>

#include "common/memory.h"
#include "sim/proof.h"

/* The calls of a section in one role, in the order of issue. */
typedef struct calls {
    const pl_section *section;
    int32_t *entry; /* [count] */
    size_t count, capacity;
} calls;

static bool communicates(const pl_entry *entry)
{
    return entry->group != PL_GROUP_NONE && entry->name.operation != PL_OP_LOAD_BATCH;
}

static pl_status collect(calls *c, const pl_section *section, pl_group_role role)
{
    c->section = section;
    c->count = 0;
    const pl_entry *entries = section->entries;
    for (size_t i = 0; entries && i < section->entry_count; ++i) {
        if (!communicates(&entries[i]) || entries[i].group != (uint8_t)role) continue;
        PL_TRY(pl_grow(&c->entry, &c->capacity, c->count + 1, sizeof *c->entry, "calls"));
        c->entry[c->count++] = (int32_t)i;
    }
    return PL_OK;
}

static void print_group(pl_text *text, const pl_sim_world *world, pl_group_role role, int64_t rank)
{
    const int32_t *members = pl_expected_members(&world->groups, role, rank);
    pl_text_add(text, "%s {", pl_group_role_name(role));
    for (int32_t i = 0; i < world->groups.size[role] && i < 16; ++i)
        pl_text_add(text, "%s%" PRId32, i ? "," : "", members[i]);
    pl_text_add_string(text, world->groups.size[role] > 16 ? ",...}" : "}");
}

static const char *difference(const pl_entry *a, const pl_entry *b)
{
    if (!pl_entry_name_equal(&a->name, &b->name)) return "another call";
    if (a->bytes != b->bytes || a->rows != b->rows) return "another size";
    if (a->wire != b->wire) return "another element type";
    if (a->reduction != b->reduction) return "another reduction";
    if (a->peer != b->peer) return "another peer";
    return NULL;
}

/* Calls of two members of a group, side by side. */
static void compare(const pl_sim_world *world, pl_verdict *verdict, pl_group_role role,
                    const calls *a, int64_t rank_a, const calls *b, int64_t rank_b)
{
    pl_text group = {0}, other = {0};
    for (size_t i = 0; i < a->count || i < b->count; ++i) {
        const pl_entry *x = i < a->count ? &a->section->entries[a->entry[i]] : NULL;
        const pl_entry *y = i < b->count ? &b->section->entries[b->entry[i]] : NULL;
        const char *what = x && y ? difference(x, y) : "no call";
        ++verdict->checked;
        if (!what) continue;
        print_group(&group, world, role, rank_a);
        if (y) {
            pl_text_add(&other, "entry %u, ", y->label);
            pl_entry_name_print(&other, &y->name);
        } else {
            pl_text_add_string(&other, "none");
        }
        pl_verdict_fail(verdict, rank_a, a->section->program, a->section, x,
                        "call %zu of group %s meets %s on rank %" PRId64 ": %s", i,
                        pl_text_string(&group), what, rank_b, pl_text_string(&other));
        break;
    }
    pl_verdict_free_text(verdict, &group);
    pl_verdict_free_text(verdict, &other);
}

/* The control entry of a section, wherever it stands; NULL when there is none. */
static const pl_entry *find_control(const pl_section *section)
{
    for (size_t i = section->entry_count; i > 0; --i)
        if (section->entries[i - 1].name.operation == PL_OP_CONTROL)
            return &section->entries[i - 1];
    return NULL;
}

/* A program ends in one control entry over the world, the last that is issued. */
static void check_control(const pl_sim_world *world, pl_verdict *verdict, const pl_section *section)
{
    int64_t rank = pl_section_first_rank(section);
    const pl_entry *last =
        section->entry_count ? &section->entries[section->entry_count - 1] : NULL;
    const pl_entry *control = find_control(section);
    ++verdict->checked;
    if (last && control && control != last)
        pl_verdict_fail(verdict, rank, section->program, section, control,
                        "must be the last entry of the program, but entry %u is issued after it",
                        last->label);
    else if (!control)
        pl_verdict_fail(verdict, rank, section->program, section, last,
                        "is the last entry of the program; control must be");
    const pl_entry *entries = section->entries;
    for (size_t i = 0; entries && i < section->entry_count; ++i)
        if (communicates(&entries[i]) && world->groups.size[entries[i].group] == 1)
            pl_verdict_fail(verdict, rank, section->program, section, &entries[i],
                            "a collective in a group of one rank");
}

static pl_status check_role(const pl_sim_world *world, pl_verdict *verdict, pl_program program,
                            pl_group_role role)
{
    calls first = {0}, other = {0};
    const pl_section *known_a = NULL, *known_b = NULL;
    pl_status status = PL_OK;
    for (int64_t rank = 0; rank < world->ranks && status == PL_OK; ++rank) {
        int64_t leader = pl_expected_members(&world->groups, role, rank)[0];
        const pl_section *a = world->section[program][leader], *b = world->section[program][rank];
        if (a == b || (a == known_a && b == known_b)) continue;
        if (first.section != a) status = collect(&first, a, role);
        if (status == PL_OK) status = collect(&other, b, role);
        if (status == PL_OK) compare(world, verdict, role, &first, leader, &other, rank);
        known_a = a;
        known_b = b;
    }
    pl_free(first.entry);
    pl_free(other.entry);
    return status;
}

pl_status pl_prove_collectives(const pl_sim_world *world, pl_verdict *verdict)
{
    for (size_t i = 0; i < world->plan->section_count; ++i)
        check_control(world, verdict, &world->plan->sections[i]);
    for (int program = 0; program < PL_PROGRAM_COUNT; ++program)
        for (int role = PL_GROUP_WORLD; role < PL_GROUP_ROLE_COUNT; ++role)
            if (world->section[program] && world->groups.size[role] > 1)
                PL_TRY(check_role(world, verdict, (pl_program)program, (pl_group_role)role));
    return PL_OK;
}
