/* Programs besides the step: which of them a plan has, and what they have of the step and of the
 * start. Waits, names and texts of all programs are the other suites' of plans. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/memory.h"
#include "tests/common/plan_cases.h"
#include "tests/test.h"

static pl_plan build(const plan_case *c)
{
    pl_plan plan;
    pl_status status = plan_case_build(&plan, c, false);
    if (status != PL_OK) fail_msg("%s, %s: %s", c->name, c->layout, pl_error_text());
    return plan;
}

static const plan_case plain = {
    .name = "plain", .model = "moe", .layout = "decoupled:world=4,ep=2"};

typedef void (*look)(const plan_case *c, const pl_plan *plan);

/* LOOK at the forced cases, and at COUNT random ones. */
static void look_at_cases(look look_at, uint64_t seed, int count)
{
    for (int i = 0; i < PLAN_FORCED_CASES + count; ++i) {
        char notation[PL_LAYOUT_TEXT];
        bool forced = i < PLAN_FORCED_CASES;
        plan_case c = forced ? plan_forced_cases()[i] : plan_case_random(&seed, notation);
        pl_plan plan = build(&c);
        look_at(&c, &plan);
        pl_plan_free(&plan);
    }
}

/* --- which programs --- */

static pl_status build_programs(pl_plan *out, const plan_case *c, uint32_t programs)
{
    pl_model model;
    pl_plan_request request;
    assert_ok(plan_case_model(&model, c->model));
    assert_ok(plan_case_request(&request, c, &model));
    request.programs = programs;
    pl_status status = pl_plan_build(out, &request);
    pl_model_free(&model);
    return status;
}

static void expect_programs(const plan_case *c, uint32_t asked, uint32_t programs)
{
    pl_plan plan;
    assert_ok(build_programs(&plan, c, asked));
    int last = -1;
    for (size_t i = 0; i < plan.section_count; ++i) { /* in the order of pl_program */
        assert_true((int)plan.sections[i].program >= last);
        last = (int)plan.sections[i].program;
    }
    for (int program = 0; program < PL_PROGRAM_COUNT; ++program)
        for (int64_t rank = 0; rank < plan.layout.world; ++rank)
            assert_int_equal(pl_plan_section(&plan, (pl_program)program, rank) != NULL,
                             programs >> program & 1u);
    pl_plan_free(&plan);
}

static void a_plan_has_the_programs_asked_for(void **state)
{
    (void)state;
    expect_programs(&plain, 0, PL_PROGRAMS_START | PL_PROGRAMS_STEP);
    for (uint32_t set = 1; set < 1u << PL_PROGRAM_COUNT; ++set) expect_programs(&plain, set, set);
}

/* A section does not depend on what other programs the plan has. */
static void programs_do_not_change_one_another(void **state)
{
    plan_case c = plan_forced_cases()[5];
    pl_plan all, one;
    (void)state;
    assert_ok(build_programs(&all, &c, (1u << PL_PROGRAM_COUNT) - 1));
    for (int program = 0; program < PL_PROGRAM_COUNT; ++program) {
        assert_ok(build_programs(&one, &c, 1u << program));
        for (int64_t rank = 0; rank < all.layout.world; ++rank) {
            const pl_section *a = pl_plan_section(&all, (pl_program)program, rank);
            const pl_section *b = pl_plan_section(&one, (pl_program)program, rank);
            assert_int_equal(a->entry_count, b->entry_count);
            assert_memory_equal(a->entries, b->entries, a->entry_count * sizeof *a->entries);
            assert_memory_equal(a->uses, b->uses, a->use_count * sizeof *a->uses);
        }
        pl_plan_free(&one);
    }
    pl_plan_free(&all);
}

static void programs_have_names(void **state)
{
    static const char *const names[PL_PROGRAM_COUNT] = {"start",  "step", "evaluate", "generate",
                                                        "export", "save", "load"};
    (void)state;
    for (int i = 0; i < PL_PROGRAM_COUNT; ++i) {
        pl_program program = PL_PROGRAM_COUNT;
        assert_string_equal(pl_program_name((pl_program)i), names[i]);
        assert_true(pl_program_parse(&program, names[i]));
        assert_int_equal(program, i);
    }
    pl_program untouched = PL_PROGRAM_EXPORT;
    assert_false(pl_program_parse(&untouched, "stop"));
    assert_int_equal(untouched, PL_PROGRAM_EXPORT);
}

static void generating_needs_a_shape_of_its_own(void **state)
{
    static const struct {
        int64_t micro_batches, rounds;
        const char *words;
    } cases[] = {{2, 1, "intra_layer=2"}, {1, 3, "rounds=3"}};
    pl_plan plan;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        plan_case c = plain;
        c.micro_batches = cases[i].micro_batches;
        c.rounds = cases[i].rounds;
        assert_fails(PL_BAD_INPUT, build_programs(&plan, &c, PL_PROGRAMS_GENERATE),
                     "one sequence at a time", cases[i].words, "plan of its own");
        assert_ok(build_programs(&plan, &c, PL_PROGRAMS_EVALUATE));
        pl_plan_free(&plan);
    }
    assert_fails(PL_BAD_INPUT, build_programs(&plan, &plain, 1u << PL_PROGRAM_COUNT), "0x80");
    pl_shape shape = pl_generate_shape((pl_shape){128, 4, 2, 3});
    assert_true(shape.sequence == 128 && shape.micro_batch == 1);
    assert_true(shape.intra_layer == 1 && shape.rounds == 1);
}

/* The same is refused where a plan is read, at its section. */
static void generating_in_another_shape_is_not_read(void **state)
{
    pl_plan plan, read;
    pl_text text = {0};
    (void)state;
    assert_ok(build_programs(&plan, &plain, PL_PROGRAMS_GENERATE));
    plan.settings.shape.micro_batch = 7;
    pl_plan_write(&text, &plan, -1);
    assert_ok(pl_text_status(&text));
    assert_fails(PL_BAD_INPUT, pl_plan_read(&read, pl_text_string(&text), "some.plan"),
                 "micro_batch=7", "some.plan:9", "in this section");
    pl_text_free(&text);
    pl_plan_free(&plan);
}

/* --- evaluation --- */

static bool uses_kind(const pl_section *section, pl_buffer_kind kind)
{
    for (size_t i = 0; i < section->buffer_count; ++i)
        if (section->buffers[i].kind == (uint8_t)kind) return true;
    return false;
}

/* What only a step has: values saved, gradients, counts, optimizer state. */
static bool is_of_training(pl_buffer_kind kind)
{
    switch (kind) {
    case PL_BUF_MASTER:
    case PL_BUF_ADAM_M:
    case PL_BUF_ADAM_V:
    case PL_BUF_IGNORED_M:
    case PL_BUF_IGNORED_V:
    case PL_BUF_GRADIENT_SUM:
    case PL_BUF_GRADIENT_WIRE:
    case PL_BUF_GRADIENT_PIECE:
    case PL_BUF_GRADIENT:
    case PL_BUF_IGNORED_GRADIENT:
    case PL_BUF_SAVE_ATTENTION:
    case PL_BUF_SAVE_MLP:
    case PL_BUF_SAVE_ROUTE:
    case PL_BUF_SAVE_EXPERTS:
    case PL_BUF_D_FINAL: return true;
    default:
        return (kind >= PL_BUF_D_INPUT && kind <= PL_BUF_D_ROUTES_IN) ||
               (kind >= PL_BUF_BALANCE && kind != PL_BUF_LOSS_SUM && kind != PL_BUF_FLAGS);
    }
}

static void expect_forward_only(const plan_case *c, const pl_section *section)
{
    for (int kind = 0; kind < PL_BUFFER_KIND_COUNT; ++kind)
        if (is_of_training((pl_buffer_kind)kind) && uses_kind(section, (pl_buffer_kind)kind))
            fail_msg("%s, %s: %s has a buffer %s", c->name, c->layout,
                     pl_program_name(section->program), pl_buffer_kind_stem((pl_buffer_kind)kind));
    for (size_t i = 0; i < section->entry_count; ++i) {
        const pl_entry *entry = &section->entries[i];
        assert_true(entry->name.pass == PL_PASS_NONE || entry->name.pass == PL_PASS_FORWARD);
        assert_true(entry->name.round <= 0);
        assert_int_equal(entry->predicate, PL_IF_ALWAYS);
        assert_int_equal(entry->elements, 0);
    }
}

/* Modules and exchanges of a forward pass. */
static bool is_forward(const pl_entry *entry)
{
    return entry->name.pass == PL_PASS_FORWARD && entry->name.round == 0 &&
           entry->name.operation >= PL_OP_EMBED && entry->name.operation <= PL_OP_FINAL_NORM;
}

static const pl_entry *next_forward(const pl_section *section, size_t *at)
{
    while (*at < section->entry_count && !is_forward(&section->entries[*at])) ++*at;
    return *at < section->entry_count ? &section->entries[(*at)++] : NULL;
}

/* The modules of forward are those of a step's first round, in order, with equal FLOPs and bytes.
 */
static void expect_forward_of_step(const plan_case *c, const pl_plan *plan, pl_program program)
{
    const pl_section *step = pl_plan_section(plan, PL_PROGRAM_STEP, 0);
    const pl_section *section = pl_plan_section(plan, program, 0);
    size_t at_step = 0, at = 0, count = 0;
    for (;; ++count) {
        const pl_entry *x = next_forward(step, &at_step), *y = next_forward(section, &at);
        if (!x && !y) break;
        if (!x || !y || !pl_entry_name_equal(&x->name, &y->name) || x->flops != y->flops ||
            x->bytes != y->bytes || x->group != y->group || x->rows != y->rows)
            fail_msg("%s, %s: module %zu of %s is not that of the step", c->name, c->layout, count,
                     pl_program_name(program));
    }
    assert_true(count > 4);
}

static const pl_entry *find_entry(const pl_section *section, pl_operation operation)
{
    for (size_t i = 0; i < section->entry_count; ++i)
        if (section->entries[i].name.operation == (uint8_t)operation) return &section->entries[i];
    return NULL;
}

static uint32_t flags_of(const pl_section *section, const pl_entry *entry, pl_buffer_kind kind)
{
    uint32_t flags = 0;
    for (uint32_t i = 0; i < entry->use_count; ++i)
        if (section->buffers[section->uses[entry->use_first + i].buffer].kind == (uint8_t)kind)
            flags |= section->uses[entry->use_first + i].flags;
    return flags;
}

static int64_t bytes_of(const pl_section *section, pl_buffer_kind kind)
{
    for (size_t i = 0; i < section->buffer_count; ++i)
        if (section->buffers[i].kind == (uint8_t)kind) return section->buffers[i].bytes;
    return -1;
}

static void look_at_evaluation(const plan_case *c, const pl_plan *plan)
{
    const pl_section *step = pl_plan_section(plan, PL_PROGRAM_STEP, 0);
    const pl_section *section = pl_plan_section(plan, PL_PROGRAM_EVALUATE, 0);
    const pl_shape *shape = &plan->settings.shape;
    assert_int_equal(pl_section_rank_count(section), plan->layout.world); /* all ranks alike */
    expect_forward_only(c, section);
    expect_forward_of_step(c, plan, PL_PROGRAM_EVALUATE);
    assert_int_equal(bytes_of(section, PL_BUF_BATCH) * shape->rounds, bytes_of(step, PL_BUF_BATCH));
    const pl_entry *loss = find_entry(section, PL_OP_LOSS);
    assert_int_equal(loss->flops, 2 * 8 * plan->model.hidden_size * plan->model.vocab_size);
    assert_int_equal(flags_of(section, loss, PL_BUF_LABELS), PL_USE_READ | PL_USE_END);
    const pl_entry *control = &section->entries[section->entry_count - 1];
    assert_int_equal(control->name.operation, PL_OP_CONTROL);
    assert_int_equal(flags_of(section, control, PL_BUF_LOSS_SUM), PL_USE_READ | PL_USE_END);
    assert_int_equal(flags_of(section, control, PL_BUF_TOKEN_COUNT), PL_USE_READ | PL_USE_END);
    control = &step->entries[step->entry_count - 1];
    assert_int_equal(flags_of(step, control, PL_BUF_TOKEN_COUNT), PL_USE_READ | PL_USE_END);
}

static void evaluation_is_the_forward_pass_of_a_round(void **state)
{
    (void)state;
    look_at_cases(look_at_evaluation, 41, 60);
}

/* --- generating --- */

static void look_at_generating(const plan_case *c, const pl_plan *plan)
{
    const pl_section *section = pl_plan_section(plan, PL_PROGRAM_GENERATE, 0);
    if (!section) return;
    int64_t vocabulary = plan->model.vocab_size;
    expect_forward_only(c, section);
    expect_forward_of_step(c, plan, PL_PROGRAM_GENERATE);
    assert_false(uses_kind(section, PL_BUF_LABELS));
    assert_false(uses_kind(section, PL_BUF_TOKEN_COUNT));
    assert_null(find_entry(section, PL_OP_LOSS));
    const pl_entry *logits = find_entry(section, PL_OP_LOGITS);
    const pl_entry *sample = find_entry(section, PL_OP_SAMPLE);
    assert_int_equal(logits->flops, 2 * plan->model.hidden_size * vocabulary);
    assert_int_equal(bytes_of(section, PL_BUF_LOGITS), vocabulary * 4);
    assert_int_equal(flags_of(section, logits, PL_BUF_FINAL), PL_USE_READ | PL_USE_END);
    assert_int_equal(sample->stream, PL_STREAM_HOST);
    assert_int_equal(flags_of(section, sample, PL_BUF_LOGITS), PL_USE_READ | PL_USE_END);
}

static void generating_is_a_forward_pass_to_logits(void **state)
{
    (void)state;
    look_at_cases(look_at_generating, 43, 120);
}

/* --- export --- */

/* Buffers of the kinds that both programs know, and what one writes the other reads. */
static void expect_mirrored(const pl_section *start, const pl_entry *in, const pl_section *out_of,
                            const pl_entry *out)
{
    static const pl_buffer_kind device[] = {PL_BUF_MASTER, PL_BUF_PARAMETER, PL_BUF_IGNORED};
    for (size_t i = 0; i < sizeof device / sizeof *device; ++i)
        assert_int_equal((flags_of(start, in, device[i]) & PL_USE_WRITE) != 0,
                         (flags_of(out_of, out, device[i]) & PL_USE_READ) != 0);
    bool whole = in->name.ordinal == 1;
    assert_int_equal(out->name.ordinal, whole ? 3 : 2);
    assert_int_equal(flags_of(out_of, out, whole ? PL_BUF_OUTGOING_IGNORED : PL_BUF_OUTGOING),
                     PL_USE_WRITE | PL_USE_BEGIN);
}

/* The N-th entry with OPERATION. */
static const pl_entry *entry_number(const pl_section *section, pl_operation operation, size_t n)
{
    for (size_t i = 0; i < section->entry_count; ++i)
        if (section->entries[i].name.operation == (uint8_t)operation && n-- == 0)
            return &section->entries[i];
    return NULL;
}

/* Sizes and types of what comes in and what goes out, part by part. */
static void expect_equal_buffers(const pl_section *start, const pl_section *export)
{
    size_t compared = 0;
    for (size_t i = 0; i < start->buffer_count; ++i)
        for (size_t j = 0; j < export->buffer_count; ++j) {
            const pl_buffer *x = &start->buffers[i], *y = &export->buffers[j];
            bool pair = (x->kind == PL_BUF_INITIAL && y->kind == PL_BUF_OUTGOING) ||
                        (x->kind == PL_BUF_INITIAL_IGNORED && y->kind == PL_BUF_OUTGOING_IGNORED);
            if (!pair || x->subject != y->subject || x->layer != y->layer) continue;
            assert_int_equal(x->bytes, y->bytes);
            assert_int_equal(x->dtype, y->dtype);
            assert_int_equal(y->class_, PL_BUFFER_HOST);
            ++compared;
        }
    assert_true(compared > 2);
}

static void look_at_export(const plan_case *c, const pl_plan *plan)
{
    for (int64_t rank = 0; rank < plan->layout.world; ++rank) {
        const pl_section *start = pl_plan_section(plan, PL_PROGRAM_START, rank);
        const pl_section *export = pl_plan_section(plan, PL_PROGRAM_EXPORT, rank);
        size_t n = 0;
        for (;; ++n) {
            const pl_entry *in = entry_number(start, PL_OP_COPY, n);
            const pl_entry *out = entry_number(export, PL_OP_COPY, n);
            if (!in && !out) break;
            if (!in || !out) fail_msg("%s, %s: parts differ", c->name, c->layout);
            expect_mirrored(start, in, export, out);
            assert_int_equal(entry_number(start, PL_OP_INITIALIZE, n)->elements,
                             entry_number(export, PL_OP_WRITE, n)->elements);
        }
        assert_true(n > 2);
        assert_int_equal(export->entry_count, 2 * n + 1);
        expect_equal_buffers(start, export);
    }
}

static void export_hands_out_what_start_brought_in(void **state)
{
    (void)state;
    look_at_cases(look_at_export, 47, 40);
}

/* --- save and load --- */

enum { KEPT = PL_BUF_IGNORED_V - PL_BUF_PARAMETER + 1 };

/* How ENTRY uses the buffer of KIND of its own part, *OUT. */
static uint32_t use_of_part(const pl_section *section, const pl_entry *entry, int kind,
                            const pl_buffer **out)
{
    for (uint32_t i = 0; i < entry->use_count; ++i) {
        const pl_use *use = &section->uses[entry->use_first + i];
        const pl_buffer *buffer = &section->buffers[use->buffer];
        *out = buffer;
        if (buffer->kind == kind && buffer->subject == entry->name.subject &&
            buffer->layer == entry->name.layer)
            return use->flags;
    }
    *out = NULL;
    return 0;
}

/* A host entry of OPERATION and the copy beside it, about one kind of one part: what goes through
 * is laid out on the host as on the device. Bit of the kind in *SEEN. */
static void expect_moved(const pl_section *section, const pl_entry *host, const pl_entry *copy,
                         bool saves, unsigned *seen)
{
    int kind = host->name.ordinal;
    const pl_buffer *outside = NULL, *inside = NULL, *again = NULL;
    assert_in_range(kind, 0, KEPT - 1);
    assert_int_equal(host->name.subject, copy->name.subject);
    assert_int_equal(host->name.layer, copy->name.layer);
    assert_int_equal(copy->name.ordinal, 4 + kind + (saves ? KEPT : 0));
    assert_true(host->stream == PL_STREAM_HOST && copy->stream == PL_STREAM_COPY);
    assert_true(host->use_count == 1 && copy->use_count == 2);
    assert_int_equal(use_of_part(section, host, PL_BUF_HOST_PARAMETER + kind, &outside),
                     saves ? PL_USE_READ | PL_USE_END : PL_USE_WRITE | PL_USE_BEGIN);
    assert_int_equal(use_of_part(section, copy, PL_BUF_HOST_PARAMETER + kind, &again),
                     saves ? PL_USE_WRITE | PL_USE_BEGIN : PL_USE_READ | PL_USE_END);
    assert_int_equal(use_of_part(section, copy, PL_BUF_PARAMETER + kind, &inside),
                     saves ? PL_USE_READ : PL_USE_WRITE | PL_USE_BEGIN);
    assert_ptr_equal(outside, again);
    assert_true(outside && inside && outside->bytes == inside->bytes);
    assert_int_equal(outside->dtype, inside->dtype);
    assert_true(outside->class_ == PL_BUFFER_HOST && !outside->resident && inside->resident);
    assert_true(host->elements * pl_dtype_bytes((pl_dtype)outside->dtype) <= outside->bytes);
    *seen |= 1u << kind;
}

static size_t count_residents(const pl_section *section)
{
    size_t count = 0;
    for (size_t i = 0; i < section->buffer_count; ++i) count += section->buffers[i].resident;
    return count;
}

/* Every resident buffer that start makes goes out, and comes in, once. */
static void look_at_saving(const plan_case *c, const pl_plan *plan)
{
    (void)c;
    for (int64_t rank = 0; rank < plan->layout.world; ++rank) {
        const pl_section *start = pl_plan_section(plan, PL_PROGRAM_START, rank);
        const pl_section *save = pl_plan_section(plan, PL_PROGRAM_SAVE, rank);
        const pl_section *load = pl_plan_section(plan, PL_PROGRAM_LOAD, rank);
        size_t buffers = count_residents(start);
        unsigned saved = 0, loaded = 0;
        assert_true(buffers > 2);
        assert_int_equal(save->entry_count, 2 * buffers + 1);
        assert_int_equal(load->entry_count, 2 * buffers + 1);
        for (size_t i = 0; i < 2 * buffers; i += 2) {
            const pl_entry *out = &save->entries[i], *in = &load->entries[i];
            assert_true(out[0].name.operation == PL_OP_COPY &&
                        out[1].name.operation == PL_OP_WRITE);
            assert_true(in[0].name.operation == PL_OP_READ && in[1].name.operation == PL_OP_COPY);
            expect_moved(save, &out[1], &out[0], true, &saved);
            expect_moved(load, &in[0], &in[1], false, &loaded);
            assert_int_equal(out[1].elements, in[0].elements);
            assert_true(out[1].name.ordinal == in[0].name.ordinal &&
                        out[1].name.subject == in[0].name.subject &&
                        out[1].name.layer == in[0].name.layer);
        }
        assert_int_equal(saved, loaded);
        assert_int_equal(saved >> 1 & 1u, plan->settings.precision.gather != PL_FP32);
        assert_int_equal(save->entries[2 * buffers].name.operation, PL_OP_CONTROL);
        assert_int_equal(load->entries[2 * buffers].name.operation, PL_OP_CONTROL);
        assert_int_equal(count_residents(save), buffers);
        assert_int_equal(count_residents(load), buffers);
    }
}

static void save_hands_out_what_load_brings_in(void **state)
{
    (void)state;
    look_at_cases(look_at_saving, 53, 40);
}

static void without_moments_none_are_saved(void **state)
{
    pl_model model;
    pl_plan plan;
    pl_plan_request request;
    (void)state;
    assert_ok(plan_case_model(&model, plain.model));
    assert_ok(plan_case_request(&request, &plain, &model));
    request.settings.optimizer = PL_OPTIMIZER_SGD;
    assert_ok(pl_plan_build(&plan, &request));
    look_at_saving(&plain, &plan);
    const pl_section *save = pl_plan_section(&plan, PL_PROGRAM_SAVE, 0);
    assert_true(uses_kind(save, PL_BUF_HOST_PARAMETER));
    assert_false(uses_kind(save, PL_BUF_HOST_ADAM_M) || uses_kind(save, PL_BUF_ADAM_V));
    pl_plan_free(&plan);
    pl_model_free(&model);
}

static void host_buffers_are_named_after_what_they_hold(void **state)
{
    (void)state;
    for (int kind = 0; kind < PL_BUFFER_KIND_COUNT; ++kind) {
        pl_buffer_kind held = pl_buffer_kind_held((pl_buffer_kind)kind);
        char name[64];
        snprintf(name, sizeof name, "host_%s", pl_buffer_kind_stem(held));
        bool host = strcmp(name, pl_buffer_kind_stem((pl_buffer_kind)kind)) == 0;
        assert_int_equal(host, kind >= PL_BUF_HOST_PARAMETER && kind <= PL_BUF_HOST_IGNORED_V);
        assert_int_equal(host, held != (pl_buffer_kind)kind);
        if (host) assert_in_range(held, PL_BUF_PARAMETER, PL_BUF_IGNORED_V);
    }
}

static void start_and_load_alone_make_what_is_resident(void **state)
{
    (void)state;
    for (int i = 0; i < PL_PROGRAM_COUNT; ++i)
        assert_int_equal(pl_program_makes_residents((pl_program)i),
                         i == PL_PROGRAM_START || i == PL_PROGRAM_LOAD);
}

/* --- failing allocations --- */

static void failed_allocations_are_reported(void **state)
{
    static const plan_case small = {"small", "moe-tied", "legacy:world=3", .keep_fp32 = {"q_norm"}};
    pl_status status = PL_OK;
    pl_plan plan;
    pl_model model;
    pl_plan_request request;
    int64_t n = -1;
    (void)state;
    assert_ok(plan_case_model(&model, small.model));
    assert_ok(plan_case_request(&request, &small, &model));
    assert_int_equal(request.programs, (1u << PL_PROGRAM_COUNT) - 1);
    for (int failed = 1; failed;) {
        pl_allocation_fail_after(++n);
        status = pl_plan_build(&plan, &request);
        failed = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        if (failed && status != PL_NO_MEMORY)
            fail_msg("allocation %" PRId64 " fails: status %s", n, pl_status_name(status));
    }
    assert_ok(status);
    assert_true(n > 100);
    pl_plan_free(&plan);
    pl_model_free(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_has_the_programs_asked_for),
        cmocka_unit_test(programs_do_not_change_one_another),
        cmocka_unit_test(programs_have_names),
        cmocka_unit_test(generating_needs_a_shape_of_its_own),
        cmocka_unit_test(generating_in_another_shape_is_not_read),
        cmocka_unit_test(evaluation_is_the_forward_pass_of_a_round),
        cmocka_unit_test(generating_is_a_forward_pass_to_logits),
        cmocka_unit_test(export_hands_out_what_start_brought_in),
        cmocka_unit_test(save_hands_out_what_load_brings_in),
        cmocka_unit_test(without_moments_none_are_saved),
        cmocka_unit_test(host_buffers_are_named_after_what_they_hold),
        cmocka_unit_test(start_and_load_alone_make_what_is_resident),
        cmocka_unit_test(failed_allocations_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
