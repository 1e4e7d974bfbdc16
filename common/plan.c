/* Building plans for all ranks, and what one asks of a plan. */
#include "common/plan.h"

#include <inttypes.h>
#include <string.h>

#include "common/memory.h"
#include "common/placement.h"
#include "common/plan_builder.h"

static const char *const program_names[PL_PROGRAM_COUNT] = {
    "start", "step", "evaluate", "generate", "export", "save", "load"};

const char *pl_program_name(pl_program program) { return program_names[program]; }

bool pl_program_parse(pl_program *out, const char *name)
{
    for (int i = 0; i < PL_PROGRAM_COUNT; ++i) {
        if (strcmp(program_names[i], name) != 0) continue;
        *out = (pl_program)i;
        return true;
    }
    return false;
}

bool pl_program_makes_residents(pl_program program)
{
    return program == PL_PROGRAM_START || program == PL_PROGRAM_LOAD;
}

/* --- what can be planned --- */

static pl_status check_shape(const pl_shape *shape)
{
    enum { MOST = 1 << 20 };
    if (shape->sequence < 1 || shape->sequence > INT32_MAX || shape->micro_batch < 1 ||
        shape->micro_batch > MOST)
        return PL_FAIL(PL_BAD_INPUT,
                       "shape: sequence=%" PRId64 ", micro_batch=%" PRId64
                       ": a sequence of 1 to %" PRId32 " tokens and 1 to %d sequences are allowed",
                       shape->sequence, shape->micro_batch, INT32_MAX, MOST);
    if (shape->intra_layer < 1 || shape->intra_layer > 4096 || shape->rounds < 1 ||
        shape->rounds > MOST)
        return PL_FAIL(PL_BAD_INPUT,
                       "shape: intra_layer=%" PRId64 ", rounds=%" PRId64
                       ": 1 to 4096 micro-batches together and 1 to %d rounds are allowed",
                       shape->intra_layer, shape->rounds, MOST);
    return PL_OK;
}

/* A plan is built in memory: refuse what could not be held before it is tried. A MoE layer has at
 * most 24 entries for a micro-batch and round. */
static pl_status check_length(const pl_plan *plan)
{
    enum { MOST = 1 << 22 };
    const pl_shape *shape = &plan->settings.shape;
    int64_t entries = 0;
    if (__builtin_mul_overflow(shape->rounds * shape->intra_layer,
                               24 * plan->model.num_hidden_layers + 8, &entries) ||
        entries > MOST)
        return PL_FAIL(PL_BAD_INPUT,
                       "%" PRId64 " rounds of %" PRId64 " micro-batches through %" PRId64
                       " layers make a plan of more than %d entries for one rank: fewer rounds "
                       "(a smaller global batch, or larger micro-batches) would fit",
                       shape->rounds, shape->intra_layer, plan->model.num_hidden_layers, MOST);
    return PL_OK;
}

static pl_status check_trained(const pl_model *model)
{
    if (pl_model_is_trained(model)) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT, "every tensor of %s is frozen: a step needs something to train",
                   model->name);
}

static bool is_float(pl_dtype dtype)
{
    return dtype == PL_BF16 || dtype == PL_FP16 || dtype == PL_FP32;
}

static pl_status check_precision(const pl_precision *precision)
{
    if (!is_float(precision->compute) || !is_float(precision->gather) ||
        !is_float(precision->gradient))
        return PL_FAIL(PL_BAD_INPUT,
                       "precision: bf16, fp16 and fp32 are allowed, not compute=%s, "
                       "gather=%s, gradient=%s",
                       pl_dtype_name(precision->compute), pl_dtype_name(precision->gather),
                       pl_dtype_name(precision->gradient));
    if (precision->master != PL_FP32)
        return PL_FAIL(PL_BAD_INPUT, "precision: master=%s: masters are fp32",
                       pl_dtype_name(precision->master));
    return PL_OK;
}

pl_status pl_plan_check_header(const pl_plan *plan)
{
    enum { MOST_RANKS = 1 << 18 };
    const pl_layout *layout = &plan->layout;
    char notation[PL_LAYOUT_TEXT];
    PL_TRY(pl_model_check_planned(&plan->model));
    if (layout->pp > 1 || layout->cp > 1)
        return PL_FAIL(PL_UNSUPPORTED,
                       "%s: plans are made for pp=1 and cp=1 so far, not pp=%" PRId64
                       ", cp=%" PRId64,
                       pl_layout_format(layout, notation), layout->pp, layout->cp);
    if (layout->world > MOST_RANKS)
        return PL_FAIL(PL_UNSUPPORTED, "%s: plans are made for at most %d ranks so far",
                       pl_layout_format(layout, notation), MOST_RANKS);
    PL_TRY(pl_placement_check(layout, &plan->model));
    PL_TRY(check_shape(&plan->settings.shape));
    PL_TRY(check_length(plan));
    PL_TRY(check_precision(&plan->settings.precision));
    return check_trained(&plan->model);
}

/* Generating reads one position of one sequence: more of them would be computed for nothing. */
pl_status pl_plan_check_programs(const pl_plan *plan, uint32_t programs)
{
    const pl_shape *shape = &plan->settings.shape;
    if (programs >> PL_PROGRAM_COUNT)
        return PL_FAIL(PL_BAD_INPUT, "programs %#" PRIx32 ": there are %d of them", programs,
                       (int)PL_PROGRAM_COUNT);
    if ((programs & PL_PROGRAMS_GENERATE) &&
        (shape->micro_batch != 1 || shape->intra_layer != 1 || shape->rounds != 1))
        return PL_FAIL(PL_BAD_INPUT,
                       "generate computes one sequence at a time: micro_batch=1, intra_layer=1, "
                       "rounds=1, not micro_batch=%" PRId64 ", intra_layer=%" PRId64
                       ", rounds=%" PRId64 "; it needs a plan of its own",
                       shape->micro_batch, shape->intra_layer, shape->rounds);
    return PL_OK;
}

/* --- header --- */

static pl_status copy_patterns(char ***out, int *count_out, const char *const *patterns, int count)
{
    char **copy = NULL;
    PL_TRY(pl_allocate(&copy, (size_t)count, sizeof *copy, "patterns"));
    *out = copy;
    *count_out = count;
    for (int i = 0; i < count; ++i) PL_TRY(pl_duplicate(&copy[i], patterns[i], "patterns"));
    return PL_OK;
}

pl_status pl_plan_set_header(pl_plan *plan, const pl_plan_request *request)
{
    pl_text facts = {0};
    pl_model_write(&facts, request->model);
    pl_status status = pl_text_status(&facts);
    if (status == PL_OK)
        status = pl_model_parse(&plan->model, pl_text_string(&facts), request->model->name,
                                request->model->name);
    pl_text_free(&facts);
    PL_TRY(status);
    plan->layout = request->layout;
    plan->settings = request->settings;
    PL_TRY(copy_patterns(&plan->keep_fp32, &plan->keep_fp32_count, request->keep_fp32,
                         request->keep_fp32_count));
    PL_TRY(
        copy_patterns(&plan->frozen, &plan->frozen_count, request->frozen, request->frozen_count));
    return pl_model_apply_patterns(&plan->model, request->keep_fp32, request->keep_fp32_count,
                                   request->frozen, request->frozen_count);
}

/* --- sections --- */

pl_status pl_plan_add_section(pl_plan *plan, pl_section **out)
{
    PL_TRY(pl_grow(&plan->sections, &plan->section_capacity, plan->section_count + 1,
                   sizeof *plan->sections, "plan sections"));
    *out = &plan->sections[plan->section_count++];
    memset(*out, 0, sizeof **out);
    return PL_OK;
}

pl_status pl_section_add_run(pl_section *section, pl_rank_run run)
{
    PL_TRY(pl_grow(&section->runs, &section->run_capacity, section->run_count + 1, sizeof run,
                   "ranks of a section"));
    section->runs[section->run_count++] = run;
    return PL_OK;
}

/* Ranks come in ascending order: continue the last run where the stride allows. */
static pl_status add_rank(pl_section *section, int64_t rank)
{
    if (section->run_count > 0) {
        pl_rank_run *last = &section->runs[section->run_count - 1];
        bool single = last->first == last->last;
        if (single || rank - last->last == last->stride) {
            if (single) last->stride = rank - last->last;
            last->last = rank;
            return PL_OK;
        }
    }
    return pl_section_add_run(section, (pl_rank_run){rank, rank, 1});
}

bool pl_section_has_rank(const pl_section *section, int64_t rank)
{
    for (size_t i = 0; i < section->run_count; ++i) {
        const pl_rank_run *run = &section->runs[i];
        if (rank >= run->first && rank <= run->last && (rank - run->first) % run->stride == 0)
            return true;
    }
    return false;
}

int64_t pl_section_rank_count(const pl_section *section)
{
    int64_t count = 0;
    for (size_t i = 0; i < section->run_count; ++i)
        count += (section->runs[i].last - section->runs[i].first) / section->runs[i].stride + 1;
    return count;
}

const pl_section *pl_plan_section(const pl_plan *plan, pl_program program, int64_t rank)
{
    for (size_t i = 0; i < plan->section_count; ++i)
        if (plan->sections[i].program == program && pl_section_has_rank(&plan->sections[i], rank))
            return &plan->sections[i];
    return NULL;
}

static void free_section(pl_section *section)
{
    pl_free(section->runs);
    pl_free(section->buffers);
    pl_free(section->entries);
    pl_free(section->uses);
    pl_free(section->waits);
    memset(section, 0, sizeof *section);
}

void pl_plan_free(pl_plan *plan)
{
    for (size_t i = 0; i < plan->section_count; ++i) free_section(&plan->sections[i]);
    pl_free(plan->sections);
    for (int i = 0; i < plan->keep_fp32_count; ++i) pl_free(plan->keep_fp32[i]);
    for (int i = 0; i < plan->frozen_count; ++i) pl_free(plan->frozen[i]);
    pl_free(plan->keep_fp32);
    pl_free(plan->frozen);
    pl_model_free(&plan->model);
    memset(plan, 0, sizeof *plan);
}

/* --- classes of ranks --- */

/* What the emitters asked about the first rank of a section, by section. */
typedef struct rank_class {
    pl_rank_question *questions;
    size_t count;
} rank_class;

typedef struct classes {
    rank_class *list;
    size_t count, capacity;
} classes;

static void free_classes(classes *known)
{
    for (size_t i = 0; i < known->count; ++i) pl_free(known->list[i].questions);
    pl_free(known->list);
}

static pl_status remember_class(classes *known, const pl_builder *builder)
{
    PL_TRY(pl_grow(&known->list, &known->capacity, known->count + 1, sizeof *known->list,
                   "classes of ranks"));
    rank_class *new = &known->list[known->count];
    PL_TRY(pl_allocate(&new->questions, builder->question_count, sizeof *new->questions,
                       "classes of ranks"));
    if (builder->question_count > 0)
        memcpy(new->questions, builder->questions,
               builder->question_count * sizeof *new->questions);
    new->count = builder->question_count;
    ++known->count;
    return PL_OK;
}

static bool belongs(const pl_plan_facts *facts, const rank_class *class_, int64_t rank)
{
    for (size_t i = 0; i < class_->count; ++i) {
        const pl_rank_question *q = &class_->questions[i];
        if (pl_rank_answer(facts, q->kind, q->part, rank) != q->answer) return false;
    }
    return true;
}

/* Sections of one program are of much the same size: room for as much as the last one took. */
static pl_status reserve(pl_section *section, const pl_section *last)
{
    static const char *const what = "plan entries";
    PL_TRY(pl_grow(&section->buffers, &section->buffer_capacity, last->buffer_count,
                   sizeof *section->buffers, what));
    PL_TRY(pl_grow(&section->entries, &section->entry_capacity, last->entry_count + 1,
                   sizeof *section->entries, what));
    PL_TRY(pl_grow(&section->uses, &section->use_capacity, last->use_count, sizeof *section->uses,
                   what));
    return pl_grow(&section->waits, &section->wait_capacity, last->wait_count,
                   sizeof *section->waits, what);
}

static void (*const emitters[PL_PROGRAM_COUNT])(pl_builder *) = {
    [PL_PROGRAM_START] = pl_emit_start,       [PL_PROGRAM_STEP] = pl_emit_step,
    [PL_PROGRAM_EVALUATE] = pl_emit_evaluate, [PL_PROGRAM_GENERATE] = pl_emit_generate,
    [PL_PROGRAM_EXPORT] = pl_emit_export,     [PL_PROGRAM_SAVE] = pl_emit_save,
    [PL_PROGRAM_LOAD] = pl_emit_load,
};

static pl_status emit_section(pl_plan *plan, pl_builder *builder, pl_program program, int64_t rank)
{
    pl_section *section = NULL;
    PL_TRY(pl_plan_add_section(plan, &section));
    section->program = program;
    PL_TRY(add_rank(section, rank));
    const pl_section *last = plan->section_count > 1 ? section - 1 : NULL;
    if (last && last->program == program) PL_TRY(reserve(section, last));
    pl_builder_begin_section(builder, section, rank);
    emitters[program](builder);
    return builder->status;
}

static pl_status emit_program(pl_plan *plan, pl_builder *builder, pl_program program,
                              bool separate_ranks, classes *known)
{
    size_t first = plan->section_count;
    for (int64_t rank = 0; rank < plan->layout.world; ++rank) {
        size_t found = known->count;
        for (size_t i = 0; i < known->count && !separate_ranks; ++i) {
            if (!belongs(builder->facts, &known->list[i], rank)) continue;
            found = i;
            break;
        }
        if (found < known->count) {
            PL_TRY(add_rank(&plan->sections[first + found], rank));
            continue;
        }
        PL_TRY(emit_section(plan, builder, program, rank));
        if (!separate_ranks) PL_TRY(remember_class(known, builder));
    }
    return PL_OK;
}

/* Programs that only compute forward, and so have facts of their own. */
enum { FORWARD_ONLY = PL_PROGRAMS_EVALUATE | PL_PROGRAMS_GENERATE };

static bool trains(int program) { return !(FORWARD_ONLY >> program & 1); }

/* FACTS[0] is of programs that do not train, FACTS[1] of the others, as far as PROGRAMS has some.
 */
static pl_status emit_programs(pl_plan *plan, pl_plan_facts *facts, uint32_t programs,
                               bool separate_ranks)
{
    pl_builder builder;
    /* Numbers of parts and micro-batches, for which room is made, are the same in both. */
    bool any_trains = (programs & ~(uint32_t)FORWARD_ONLY) != 0;
    pl_status status = pl_builder_init(&builder, &facts[any_trains]);
    for (int program = 0; program < PL_PROGRAM_COUNT && status == PL_OK; ++program) {
        classes known = {0};
        if (!(programs >> program & 1U)) continue;
        builder.facts = &facts[trains(program)];
        status = emit_program(plan, &builder, (pl_program)program, separate_ranks, &known);
        free_classes(&known);
    }
    pl_builder_free(&builder);
    return status;
}

static pl_status make_facts(pl_plan_facts *facts, const pl_plan *plan, uint32_t programs)
{
    if (programs & FORWARD_ONLY)
        PL_TRY(pl_plan_facts_make(&facts[0], &plan->model, &plan->layout, &plan->settings, false));
    if (programs & ~(uint32_t)FORWARD_ONLY)
        PL_TRY(pl_plan_facts_make(&facts[1], &plan->model, &plan->layout, &plan->settings, true));
    return PL_OK;
}

pl_status pl_plan_build(pl_plan *out, const pl_plan_request *request)
{
    pl_plan plan = {0};
    pl_plan_facts facts[2] = {{0}, {0}};
    uint32_t programs = request->programs;
    if (programs == 0) programs = PL_PROGRAMS_START | PL_PROGRAMS_STEP;
    pl_status status = pl_plan_set_header(&plan, request);
    if (status == PL_OK) status = pl_plan_check_header(&plan);
    if (status == PL_OK) status = pl_plan_check_programs(&plan, programs);
    if (status == PL_OK) status = make_facts(facts, &plan, programs);
    if (status == PL_OK) status = emit_programs(&plan, facts, programs, request->separate_ranks);
    pl_plan_facts_free(&facts[0]);
    pl_plan_facts_free(&facts[1]);
    if (status != PL_OK)
        pl_plan_free(&plan);
    else
        *out = plan;
    return status;
}

/* --- splitting a rank off --- */

static pl_status copy_array(void *out, size_t *capacity, const void *from, size_t count,
                            size_t size)
{
    void *copy = NULL;
    PL_TRY(pl_allocate(&copy, count, size, "copy of a section"));
    if (count > 0) memcpy(copy, from, count * size);
    memcpy(out, &copy, sizeof copy);
    *capacity = count;
    return PL_OK;
}

static pl_status copy_section(pl_section *to, const pl_section *from)
{
    to->program = from->program;
    to->buffer_count = from->buffer_count;
    to->entry_count = from->entry_count;
    to->use_count = from->use_count;
    to->wait_count = from->wait_count;
    PL_TRY(copy_array(&to->buffers, &to->buffer_capacity, from->buffers, from->buffer_count,
                      sizeof *from->buffers));
    PL_TRY(copy_array(&to->entries, &to->entry_capacity, from->entries, from->entry_count,
                      sizeof *from->entries));
    PL_TRY(
        copy_array(&to->uses, &to->use_capacity, from->uses, from->use_count, sizeof *from->uses));
    return copy_array(&to->waits, &to->wait_capacity, from->waits, from->wait_count,
                      sizeof *from->waits);
}

static pl_rank_run run_of(int64_t first, int64_t last, int64_t stride)
{
    return (pl_rank_run){first, last, first == last ? 1 : stride};
}

/* Take RANK out of the runs of SECTION: what is left of its run becomes one or two runs. */
static pl_status remove_rank(pl_section *section, int64_t rank)
{
    for (size_t i = 0; i < section->run_count; ++i) {
        pl_rank_run run = section->runs[i];
        if (rank < run.first || rank > run.last || (rank - run.first) % run.stride != 0) continue;
        PL_TRY(pl_grow(&section->runs, &section->run_capacity, section->run_count + 1, sizeof run,
                       "ranks of a section"));
        pl_rank_run left[2];
        size_t parts = 0;
        if (rank > run.first) left[parts++] = run_of(run.first, rank - run.stride, run.stride);
        if (rank < run.last) left[parts++] = run_of(rank + run.stride, run.last, run.stride);
        memmove(&section->runs[i + parts], &section->runs[i + 1],
                (section->run_count - i - 1) * sizeof run);
        memcpy(&section->runs[i], left, parts * sizeof run);
        section->run_count += parts - 1;
        return PL_OK;
    }
    return PL_OK;
}

static pl_status split_program(pl_plan *plan, pl_program program, int64_t rank)
{
    size_t place = 0;
    while (place < plan->section_count && !(plan->sections[place].program == program &&
                                            pl_section_has_rank(&plan->sections[place], rank)))
        ++place;
    if (place == plan->section_count || pl_section_rank_count(&plan->sections[place]) == 1)
        return PL_OK;
    pl_section *own = NULL;
    PL_TRY(pl_plan_add_section(plan, &own));
    pl_status status = copy_section(own, &plan->sections[place]);
    if (status == PL_OK) status = add_rank(own, rank);
    if (status == PL_OK) status = remove_rank(&plan->sections[place], rank);
    if (status != PL_OK) {
        free_section(own);
        --plan->section_count;
    }
    return status;
}

pl_status pl_plan_split_rank(pl_plan *plan, int64_t rank)
{
    if (rank < 0 || rank >= plan->layout.world)
        return PL_FAIL(PL_BAD_INPUT, "rank %" PRId64 ": the plan is for ranks 0 to %" PRId64, rank,
                       plan->layout.world - 1);
    for (int program = 0; program < PL_PROGRAM_COUNT; ++program)
        PL_TRY(split_program(plan, (pl_program)program, rank));
    return PL_OK;
}

int64_t pl_entry_touched_bytes(const pl_section *section, const pl_entry *entry, int64_t rows)
{
    int64_t touched = 0;
    for (uint32_t i = 0; i < entry->use_count; ++i) {
        const pl_use *use = &section->uses[entry->use_first + i];
        const pl_buffer *buffer = &section->buffers[use->buffer];
        int64_t times = ((use->flags & PL_USE_READ) != 0) + ((use->flags & PL_USE_WRITE) != 0);
        touched += times * (buffer->per_row ? buffer->bytes * rows : buffer->bytes);
    }
    return touched;
}
