/* The list of proofs, and running them all. */
#include "sim/proof.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "common/memory.h"

static const struct {
    const char *name, *claim;
} proofs[PL_PROOF_COUNT] = {
    [PL_PROOF_TILING] = {"tiling", "the ranks' rows tile every tensor once per replica, and "
                                   "entries count the rows really held"},
    [PL_PROOF_GROUPS] = {"groups", "every group has the members, order and size that the layout "
                                   "demands, and every collective uses the right one"},
    [PL_PROOF_WORK] = {"work", "each module runs once for each round, micro-batch and pass, "
                               "reading and writing what it must"},
    [PL_PROOF_SIZES] = {"sizes", "buffers, messages and products have the sizes and types that "
                                 "the model and precision demand"},
    [PL_PROOF_COLLECTIVES] = {"collectives", "all members of a group issue the same calls in the "
                                             "same order, and every program ends in control"},
    [PL_PROOF_DEADLOCK] = {"deadlock", "all ranks run to the end: no wait and no collective is "
                                       "left hanging, issue orders have no cycle"},
    [PL_PROOF_ORDERING] = {"ordering", "entries that share a buffer, one of them writing, are "
                                       "ordered by streams and waits"},
    [PL_PROOF_LIFETIMES] = {"lifetimes", "every buffer is begun before it is used, not used after "
                                         "it ends, and none is left over"},
    [PL_PROOF_GATHERS] = {"gathers", "each unit is gathered as often as the policy says, and no "
                                     "gather is wasted"},
    [PL_PROOF_PARAMETERS] = {"parameters", "every module computes with parameters gathered whole "
                                           "from the right ranks"},
    [PL_PROOF_GRADIENTS] = {"gradients", "every token of the step weighs exactly 1/T in every "
                                         "gradient of every class on every rank"},
    [PL_PROOF_COUNTS] = {"counts", "T, load-balance counts and loss sums cover the right ranks "
                                   "once each"},
    [PL_PROOF_NORM] = {"norm", "the gradient norm counts every element of every tensor once"},
    [PL_PROOF_UPDATE] = {"update", "every trained element is updated once, replicas stay equal, "
                                   "frozen ones are untouched"},
};

const char *pl_proof_name(pl_proof_id proof) { return proofs[proof].name; }

const char *pl_proof_claim(pl_proof_id proof) { return proofs[proof].claim; }

int64_t pl_section_first_rank(const pl_section *section)
{
    int64_t first = section->runs[0].first;
    for (size_t i = 1; i < section->run_count; ++i)
        if (section->runs[i].first < first) first = section->runs[i].first;
    return first;
}

void pl_verdict_fail(pl_verdict *verdict, int64_t rank, pl_program program,
                     const pl_section *section, const pl_entry *entry, const char *format, ...)
{
    va_list arguments;
    if (verdict->outcome == PL_FAILED) return;
    verdict->outcome = PL_FAILED;
    pl_text_clear(&verdict->words);
    if (rank >= 0) pl_text_add(&verdict->words, "rank %" PRId64, rank);
    if (section && pl_section_rank_count(section) > 1)
        pl_text_add(&verdict->words, " (one of %" PRId64 " alike)", pl_section_rank_count(section));
    if (rank >= 0) pl_text_add_string(&verdict->words, ": ");
    if (section || entry) pl_text_add(&verdict->words, "%s: ", pl_program_name(program));
    if (entry) {
        pl_text_add(&verdict->words, "entry %u, ", entry->label);
        pl_entry_name_print(&verdict->words, &entry->name);
        pl_text_add_string(&verdict->words, ": ");
    }
    va_start(arguments, format);
    pl_text_add_list(&verdict->words, format, arguments);
    va_end(arguments);
}

void pl_verdict_close(pl_verdict *verdict)
{
    if (verdict->outcome == PL_UNDECIDED) verdict->outcome = PL_PROVED;
}

void pl_verdict_free_text(pl_verdict *verdict, pl_text *text)
{
    verdict->words.out_of_memory |= text->out_of_memory;
    pl_text_free(text);
}

/* --- world --- */

static pl_status find_sections(pl_sim_world *world, pl_program program)
{
    const pl_plan *plan = world->plan;
    bool any = false;
    for (size_t i = 0; i < plan->section_count; ++i) any |= plan->sections[i].program == program;
    if (!any) return PL_OK;
    PL_TRY(pl_allocate(&world->section[program], (size_t)world->ranks, sizeof(const pl_section *),
                       "sections of ranks"));
    for (size_t i = 0; i < plan->section_count; ++i) {
        const pl_section *section = &plan->sections[i];
        if (section->program != program) continue;
        for (size_t j = 0; j < section->run_count; ++j)
            for (int64_t rank = section->runs[j].first; rank <= section->runs[j].last;
                 rank += section->runs[j].stride)
                world->section[program][rank] = section;
    }
    return PL_OK;
}

pl_status pl_sim_world_make(pl_sim_world *out, const pl_plan *plan, uint32_t programs)
{
    pl_sim_world world = {.plan = plan, .ranks = plan->layout.world};
    world.programs = programs ? programs : PL_PROGRAMS_START | PL_PROGRAMS_STEP;
    pl_status status = pl_expected_groups_make(&world.groups, &plan->layout);
    if (status == PL_OK) status = pl_expected_parts_make(&world.parts, plan, &world.groups);
    for (int program = 0; program < PL_PROGRAM_COUNT && status == PL_OK; ++program)
        status = find_sections(&world, (pl_program)program);
    if (status != PL_OK)
        pl_sim_world_free(&world);
    else
        *out = world;
    return status;
}

void pl_sim_world_free(pl_sim_world *world)
{
    pl_expected_groups_free(&world->groups);
    pl_expected_parts_free(&world->parts);
    for (int i = 0; i < PL_PROGRAM_COUNT; ++i) pl_free(world->section[i]);
    memset(world, 0, sizeof *world);
}

bool pl_sim_world_holds_shape(const pl_sim_world *world)
{
    enum { MOST = 1 << 24 }; /* without a step program */
    const pl_shape *shape = &world->plan->settings.shape;
    if (shape->rounds > MOST / shape->intra_layer) return false;
    for (size_t i = 0; i < world->plan->section_count; ++i) {
        const pl_section *section = &world->plan->sections[i];
        int64_t rounds = section->program == PL_PROGRAM_STEP ? shape->rounds : 1;
        bool moves = pl_expect_moves(section->program);
        if (!moves && (int64_t)section->entry_count < rounds * shape->intra_layer) return false;
    }
    return true;
}

/* --- the check --- */

static pl_status run_proofs(pl_check *check, const pl_sim_world *world)
{
    typedef pl_status (*prove)(const pl_sim_world *, pl_verdict *);
    static const struct {
        pl_proof_id proof;
        prove run;
    } list[] = {
        {PL_PROOF_TILING, pl_prove_tiling},
        {PL_PROOF_GROUPS, pl_prove_groups},
        {PL_PROOF_WORK, pl_prove_work},
        {PL_PROOF_SIZES, pl_prove_sizes},
        {PL_PROOF_COLLECTIVES, pl_prove_collectives},
        {PL_PROOF_ORDERING, pl_prove_ordering},
        {PL_PROOF_LIFETIMES, pl_prove_lifetimes},
        {PL_PROOF_GATHERS, pl_prove_gathers},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; ++i) {
        pl_verdict *verdict = &check->verdict[list[i].proof];
        PL_TRY(list[i].run(world, verdict));
        pl_verdict_close(verdict);
    }
    return pl_prove_by_walking(world, check->verdict);
}

static void count_plan(pl_check *check, const pl_sim_world *world)
{
    check->ranks = world->ranks;
    check->sections = (int64_t)world->plan->section_count;
    for (int program = 0; program < PL_PROGRAM_COUNT; ++program)
        for (int64_t rank = 0; world->section[program] && rank < world->ranks; ++rank)
            check->entries += (int64_t)world->section[program][rank]->entry_count;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

pl_status pl_check_programs(pl_check *out, const pl_plan *plan, uint32_t programs)
{
    pl_check check = {0};
    pl_sim_world world = {0};
    double begin = now();
    if (plan->layout.world > PL_CHECK_MOST_RANKS)
        return PL_FAIL(PL_UNSUPPORTED,
                       "world=%" PRId64 ": the proofs walk every rank, at most %d so far",
                       plan->layout.world, PL_CHECK_MOST_RANKS);
    pl_status status = pl_sim_world_make(&world, plan, programs);
    if (status == PL_OK) {
        count_plan(&check, &world);
        status = run_proofs(&check, &world);
    }
    pl_sim_world_free(&world);
    check.seconds = now() - begin;
    for (int i = 0; i < PL_PROOF_COUNT && status == PL_OK; ++i)
        status = pl_text_status(&check.verdict[i].words);
    if (status != PL_OK)
        pl_check_free(&check);
    else
        *out = check;
    return status;
}

pl_status pl_check_plan(pl_check *out, const pl_plan *plan)
{
    return pl_check_programs(out, plan, 0);
}

void pl_check_free(pl_check *check)
{
    for (int i = 0; i < PL_PROOF_COUNT; ++i) pl_text_free(&check->verdict[i].words);
    memset(check, 0, sizeof *check);
}

bool pl_check_proved(const pl_check *check)
{
    for (int i = 0; i < PL_PROOF_COUNT; ++i)
        if (check->verdict[i].outcome != PL_PROVED) return false;
    return true;
}
