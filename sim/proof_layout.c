/* Tiling and groups: what the plan's layout says against the checkers' own arithmetic. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/placement.h"
#include "sim/proof.h"

/* --- tiling --- */

static void print_tensor(pl_text *name, const pl_tensor *tensor)
{
    pl_text_clear(name);
    pl_tensor_name(name, tensor);
}

/* The ranks that together hold a tensor once: all with replica index 0 of one stage. */
static bool is_holder(const pl_sim_world *world, const pl_tensor *tensor, int64_t rank)
{
    pl_group_role replica =
        tensor->class_ == PL_CLASS_EXPERT ? PL_GROUP_EXPERT_REPLICA : PL_GROUP_DENSE_REPLICA;
    return world->groups.place[PL_GROUP_PIPELINE][rank].index == 0 &&
           world->groups.place[replica][rank].index == 0;
}

typedef struct interval {
    int64_t begin, end, rank;
} interval;

static int compare_intervals(const void *a, const void *b)
{
    const interval *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* Sorted boxes of one copy must follow one another from row 0 to the last. */
static void check_cover(pl_verdict *verdict, const char *name, interval *list, size_t count,
                        int64_t rows)
{
    int64_t next = 0;
    qsort(list, count, sizeof *list, compare_intervals);
    for (size_t i = 0; i < count; ++i) {
        if (list[i].begin != next)
            pl_verdict_fail(verdict, list[i].rank, PL_PROGRAM_STEP, NULL, NULL,
                            "%s: rows %" PRId64 " to %" PRId64 " are held by %s", name,
                            next < list[i].begin ? next : list[i].begin,
                            next < list[i].begin ? list[i].begin : next,
                            next < list[i].begin ? "nobody" : "two ranks");
        next = list[i].end;
    }
    if (next != rows)
        pl_verdict_fail(verdict, -1, PL_PROGRAM_STEP, NULL, NULL,
                        "%s: rows end at %" PRId64 " instead of %" PRId64, name, next, rows);
}

static void check_box(const pl_sim_world *world, pl_verdict *verdict, const pl_tensor *tensor,
                      int64_t rank, pl_box *box, pl_text *name)
{
    const pl_layout *layout = &world->plan->layout;
    int64_t begin = 0, end = 0;
    *box = pl_placement_box(layout, tensor, rank);
    pl_expected_rows(&world->groups, layout, tensor, rank, &begin, &end);
    bool empty = box->begin == box->end && begin == end;
    if (!empty && (box->begin != begin || box->end != end)) {
        print_tensor(name, tensor);
        pl_verdict_fail(verdict, rank, PL_PROGRAM_STEP, NULL, NULL,
                        "%s: holds rows %" PRId64 " to %" PRId64 ", must hold %" PRId64
                        " to %" PRId64,
                        pl_text_string(name), box->begin, box->end, begin, end);
    }
    if (box->end - box->begin > pl_placement_padded_rows(layout, tensor)) {
        print_tensor(name, tensor);
        pl_verdict_fail(verdict, rank, PL_PROGRAM_STEP, NULL, NULL,
                        "%s: %" PRId64 " rows do not fit a buffer of %" PRId64,
                        pl_text_string(name), box->end - box->begin,
                        pl_placement_padded_rows(layout, tensor));
    }
    ++verdict->checked;
}

/* Layers repeat the same tensors: one with the same shape before it speaks for this one. */
static bool seen_before(const pl_model *model, int64_t number)
{
    const pl_tensor *t = &model->tensors[number];
    for (int64_t i = number - 1; i >= 0 && number - i < 64; --i) {
        const pl_tensor *s = &model->tensors[i];
        if (s->rows == t->rows && s->experts == t->experts && s->class_ == t->class_) return true;
    }
    return false;
}

static void check_tensor(const pl_sim_world *world, pl_verdict *verdict, const pl_tensor *tensor,
                         interval *list, pl_text *name)
{
    size_t count = 0;
    for (int64_t rank = 0; rank < world->ranks; ++rank) {
        pl_box box;
        check_box(world, verdict, tensor, rank, &box, name);
        if (is_holder(world, tensor, rank) && box.begin < box.end)
            list[count++] = (interval){box.begin, box.end, rank};
    }
    if (tensor->class_ == PL_CLASS_IGNORED) return; /* whole on every rank: checked above */
    int64_t rows = tensor->experts > 0 ? tensor->experts * tensor->rows : tensor->rows;
    if (verdict->outcome == PL_FAILED) return;
    print_tensor(name, tensor);
    check_cover(verdict, pl_text_string(name), list, count, rows);
}

/* Elements that an entry which hands out, or takes in, is to count. */
static int64_t moved(const pl_sim_world *world, pl_program program, const pl_entry_name *name,
                     int64_t rank)
{
    pl_subject subject = (pl_subject)name->subject;
    bool keeps = program == PL_PROGRAM_SAVE || program == PL_PROGRAM_LOAD;
    bool known = keeps && name->ordinal >= 0 && name->ordinal < PL_EXPECTED_SAVED;
    bool whole = known ? pl_expect_saved(name->ordinal)->whole : name->ordinal == 1;
    if (known && pl_expect_saved(name->ordinal)->trained)
        return pl_expected_part_trained(world->plan, &world->groups, subject, name->layer, whole,
                                        rank);
    return pl_expected_part_elements(world->plan, &world->groups, subject, name->layer, whole,
                                     rank);
}

/* Entries that count elements count those really held, without padding. */
static void check_elements(const pl_sim_world *world, pl_verdict *verdict, pl_program program,
                           const pl_section *section, int64_t rank, int64_t trained)
{
    for (size_t i = 0; i < section->entry_count; ++i) {
        const pl_entry *entry = &section->entries[i];
        int64_t expected = 0;
        switch ((pl_operation)entry->name.operation) {
        case PL_OP_SCALE:
        case PL_OP_GRADIENT_NORM:
        case PL_OP_STEP: expected = trained; break;
        case PL_OP_INITIALIZE:
        case PL_OP_WRITE:
        case PL_OP_READ: expected = moved(world, program, &entry->name, rank); break;
        default: break;
        }
        ++verdict->checked;
        if (entry->elements != expected)
            pl_verdict_fail(verdict, rank, program, section, entry,
                            "elements=%" PRId64 ", but the rank holds %" PRId64, entry->elements,
                            expected);
    }
}

/* Rows of a tensor that a rank holds, times its columns. */
static int64_t held(const pl_sim_world *world, const pl_tensor *tensor, int64_t rank)
{
    int64_t begin = 0, end = 0;
    pl_expected_rows(&world->groups, &world->plan->layout, tensor, rank, &begin, &end);
    return (end - begin) * tensor->cols;
}

/* Ranks that share a section hold equally much of what its entries count: what is right for one of
 * them is right for all. Programs that move values count every part by itself (tensors of a part
 * stand together), save and load trained ones apart too; a step counts all that is trained, other
 * programs nothing. */
static void check_alike(const pl_sim_world *world, pl_verdict *verdict, pl_program program,
                        int64_t rank)
{
    const pl_model *model = &world->plan->model;
    const pl_section *section = world->section[program][rank];
    int64_t first = pl_section_first_rank(section), difference = 0, frozen = 0;
    bool by_part = pl_expect_moves(program);
    bool apart = program == PL_PROGRAM_SAVE || program == PL_PROGRAM_LOAD;
    if (!by_part && program != PL_PROGRAM_STEP) return;
    for (int64_t i = 0; i < model->tensor_count && rank != first; ++i) {
        const pl_tensor *tensor = &model->tensors[i], *next = tensor + 1;
        bool last = i + 1 == model->tensor_count;
        bool ends_part = last || next->layer != tensor->layer || tensor->layer < 0 ||
                         (next->role == PL_TENSOR_ROUTED) != (tensor->role == PL_TENSOR_ROUTED);
        int64_t own = held(world, tensor, rank) - held(world, tensor, first);
        if (by_part || !tensor->frozen) difference += own;
        if (apart && tensor->frozen) frozen += own;
        ++verdict->checked;
        if (!(by_part ? ends_part : last) || (difference == 0 && frozen == 0)) continue;
        pl_text name = {0};
        print_tensor(&name, tensor);
        pl_verdict_fail(verdict, rank, program, section, NULL,
                        "holds %+" PRId64 " elements against rank %" PRId64
                        ", whose plan it shares (counted up to %s)",
                        difference != 0 ? difference : frozen, first, pl_text_string(&name));
        pl_verdict_free_text(verdict, &name);
        return;
    }
}

static void check_all_elements(const pl_sim_world *world, pl_verdict *verdict)
{
    for (int program = 0; program < PL_PROGRAM_COUNT; ++program) {
        for (size_t i = 0; i < world->plan->section_count; ++i) {
            const pl_section *section = &world->plan->sections[i];
            if (section->program != (pl_program)program) continue;
            int64_t rank = pl_section_first_rank(section);
            int64_t trained = pl_expected_trained_elements(world->plan, &world->groups, rank);
            check_elements(world, verdict, (pl_program)program, section, rank, trained);
        }
        for (int64_t rank = 0; world->section[program] && rank < world->ranks; ++rank)
            check_alike(world, verdict, (pl_program)program, rank);
    }
}

pl_status pl_prove_tiling(const pl_sim_world *world, pl_verdict *verdict)
{
    const pl_model *model = &world->plan->model;
    interval *list = NULL;
    pl_text name = {0};
    PL_TRY(pl_allocate(&list, (size_t)world->ranks, sizeof *list, "boxes"));
    for (int64_t i = 0; i < model->tensor_count; ++i)
        if (!seen_before(model, i)) check_tensor(world, verdict, &model->tensors[i], list, &name);
    check_all_elements(world, verdict);
    pl_free(list);
    pl_verdict_free_text(verdict, &name);
    return PL_OK;
}

/* --- groups --- */

static void print_members(pl_text *text, const int32_t *members, int32_t size)
{
    pl_text_add_string(text, "{");
    for (int32_t i = 0; i < size && i < 16; ++i)
        pl_text_add(text, "%s%" PRId32, i ? "," : "", members[i]);
    pl_text_add_string(text, size > 16 ? ",...}" : "}");
}

static void check_group(const pl_sim_world *world, pl_verdict *verdict, pl_group_role role,
                        int64_t rank)
{
    const pl_expected_place *place = &world->groups.place[role][rank];
    const int32_t *members = pl_expected_members(&world->groups, role, rank);
    pl_rank_set set = pl_layout_group(&world->plan->layout, role, rank);
    bool good =
        pl_rank_set_size(&set) == place->size && pl_rank_set_index(&set, rank) == place->index;
    /* Members are compared by the first of each group; indices of all ranks are compared anyway. */
    for (int32_t i = 0; good && place->index == 0 && i < place->size; ++i)
        good = pl_rank_set_member(&set, i) == members[i];
    ++verdict->checked;
    if (good) return;
    pl_text expected = {0}, found = {0};
    print_members(&expected, members, place->size);
    pl_rank_set_print(&found, &set);
    pl_verdict_fail(verdict, rank, PL_PROGRAM_STEP, NULL, NULL, "group %s is %s, must be %s",
                    pl_group_role_name(role), pl_text_string(&found), pl_text_string(&expected));
    pl_verdict_free_text(verdict, &expected);
    pl_verdict_free_text(verdict, &found);
}

static void check_roles(const pl_sim_world *world, pl_verdict *verdict, const pl_section *section)
{
    int64_t rank = pl_section_first_rank(section);
    for (size_t i = 0; i < section->entry_count; ++i) {
        const pl_entry *entry = &section->entries[i];
        pl_expected_entry expected;
        pl_expect_entry(&expected, world, section->program, &entry->name);
        ++verdict->checked;
        if (!expected.wanted || entry->group == (uint8_t)expected.group) continue;
        bool both = entry->group != PL_GROUP_NONE && expected.group != PL_GROUP_NONE;
        if (both &&
            pl_expected_roles_equal(&world->groups, (pl_group_role)entry->group, expected.group))
            continue;
        pl_text must = {0};
        print_members(&must, pl_expected_members(&world->groups, expected.group, rank),
                      world->groups.size[expected.group]);
        pl_verdict_fail(verdict, rank, section->program, section, entry, "group=%s, must be %s %s",
                        pl_group_role_name((pl_group_role)entry->group),
                        pl_group_role_name(expected.group), pl_text_string(&must));
        pl_verdict_free_text(verdict, &must);
    }
}

pl_status pl_prove_groups(const pl_sim_world *world, pl_verdict *verdict)
{
    for (int role = PL_GROUP_WORLD; role < PL_GROUP_ROLE_COUNT; ++role)
        for (int64_t rank = 0; rank < world->ranks; ++rank)
            check_group(world, verdict, (pl_group_role)role, rank);
    for (size_t i = 0; i < world->plan->section_count; ++i)
        check_roles(world, verdict, &world->plan->sections[i]);
    return PL_OK;
}
