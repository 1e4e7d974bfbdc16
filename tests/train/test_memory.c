/* The memory of a rank is what placement and plan say: resident bytes of parameters, masters,
 * moments and gradients, gathered copies, and the most that each class ever comes to.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/memory.h"
#include "tests/train/memory_walk.h"
#include "tests/train/small_trials.h"
#include "train/memory_need.h"

enum { RANKS_MOST = 8 };

typedef struct memory_case {
    const char *model, *layout;
    pl_accumulate accumulate;
    pl_reshard reshard;
    pl_optimizer optimizer;
    bool narrow_wire; /* gathers in bf16, so masters in fp32 */
    const char *keep_fp32, *frozen;
} memory_case;

static const memory_case cases[] = {
    {.model = "mixed", .layout = "single:world=1"},
    {.model = "mixed", .layout = "single:world=8,ep=4", .narrow_wire = true},
    {.model = "mixed", .layout = "legacy:world=8,ep=4"},
    {.model = "mixed", .layout = "legacy:world=8,ep=2", .accumulate = PL_ACCUMULATE_UNSHARDED},
    {.model = "mixed", .layout = "legacy:world=8,replicas=2", .narrow_wire = true},
    {.model = "mixed", .layout = "decoupled:world=8,ep=4", .reshard = PL_RESHARD_PER_CALL},
    {.model = "mixed",
     .layout = "decoupled:world=8,ep=4,replicas=2",
     .accumulate = PL_ACCUMULATE_UNSHARDED,
     .narrow_wire = true},
    {.model = "moe-tied", .layout = "folded:world=8,ep=8", .reshard = PL_RESHARD_NEVER},
    {.model = "moe", .layout = "folded:world=8,ep=2,replicas=2"},
    {.model = "moe", .layout = "folded:world=6,ep=2,grain=expert", .optimizer = PL_OPTIMIZER_SGD},
    {.model = "mixed",
     .layout = "decoupled:world=4,ep=2",
     .keep_fp32 = "norm",
     .frozen = "model.layers.1.mlp.experts.*",
     .narrow_wire = true},
};
enum { CASES = sizeof cases / sizeof *cases };

/* Bytes of one rank by what they are for. */
typedef struct held {
    int64_t parameters, masters, moments, gradients;
} held;

typedef struct memory_run memory_run;

/* One rank: what was seen of it. */
typedef struct seen {
    held resident; /* buffers that live before the optimizer's step */
    pl_memory_use use;
    int64_t *rows[PL_PROGRAM_COUNT]; /* [entries] R, where it matters */
    int64_t gathered;                /* copies compared */
    char words[256];                 /* the first difference; "": none */
} seen;

struct memory_run {
    const memory_case *c;
    pl_model model; /* patterns not applied */
    trial t;
    pl_plan plan; /* as the ranks' */
    seen rank[RANKS_MOST];
    pl_memory_use *end; /* [world] behind the last step */
};

/* --- what placement says --- */

/* Rows that every member's buffer has room for: what the member that holds most holds. */
static int64_t room(const pl_plan *plan, const pl_tensor *tensor)
{
    int64_t most = 0;
    for (int64_t r = 0; r < plan->layout.world; ++r) {
        pl_box box = pl_placement_box(&plan->layout, tensor, r);
        if (box.end - box.begin > most) most = box.end - box.begin;
    }
    return most;
}

static int64_t wire_bytes(const pl_plan *plan, const pl_tensor *tensor)
{
    if (tensor->class_ == PL_CLASS_IGNORED) return 4;
    return pl_dtype_bytes(tensor->frozen ? plan->model.stored_dtype
                                         : plan->settings.precision.gather);
}

static held placed(const pl_plan *plan)
{
    held h = {0};
    bool masters = plan->settings.precision.gather != PL_FP32;
    bool moments = plan->settings.optimizer == PL_OPTIMIZER_ADAMW;
    for (int64_t i = 0; i < plan->model.tensor_count; ++i) {
        const pl_tensor *tensor = &plan->model.tensors[i];
        int64_t elements = room(plan, tensor) * tensor->cols;
        h.parameters += elements * wire_bytes(plan, tensor);
        if (tensor->frozen) continue;
        if (masters && tensor->class_ != PL_CLASS_IGNORED) h.masters += 4 * elements;
        if (moments) h.moments += 2 * 4 * elements;
        h.gradients += 4 * elements;
    }
    return h;
}

static bool is_of_part(const pl_tensor *tensor, const pl_buffer *buffer)
{
    pl_subject subject = tensor->role == PL_TENSOR_ROUTED      ? PL_SUBJECT_EXPERTS
                         : tensor->layer >= 0                  ? PL_SUBJECT_LAYER
                         : tensor->role == PL_TENSOR_EMBEDDING ? PL_SUBJECT_EMBEDDING
                         : tensor->role == PL_TENSOR_HEAD      ? PL_SUBJECT_HEAD
                                                               : PL_SUBJECT_NORM;
    return buffer->subject == subject && buffer->layer == tensor->layer;
}

/* A gathered copy: the room of all members of the shard group, in the type of the wire or of the
 * computation. */
static int64_t gathered_bytes(const pl_plan *plan, const pl_buffer *buffer)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < plan->model.tensor_count; ++i) {
        const pl_tensor *tensor = &plan->model.tensors[i];
        if (!is_of_part(tensor, buffer) || tensor->class_ == PL_CLASS_IGNORED) continue;
        int64_t members = pl_layout_group_size(&plan->layout, tensor->class_ == PL_CLASS_EXPERT
                                                                  ? PL_GROUP_EXPERT_SHARD
                                                                  : PL_GROUP_DENSE_SHARD);
        int64_t element = buffer->kind == PL_BUF_WIRE ? wire_bytes(plan, tensor) : 4;
        bytes += members * room(plan, tensor) * tensor->cols * element;
    }
    return bytes;
}

/* --- what the ranks hold --- */

static void add_held(held *h, const pl_buffer *buffer, int64_t bytes)
{
    switch ((pl_buffer_kind)buffer->kind) {
    case PL_BUF_PARAMETER:
    case PL_BUF_IGNORED: h->parameters += bytes; break;
    case PL_BUF_MASTER: h->masters += bytes; break;
    case PL_BUF_ADAM_M:
    case PL_BUF_ADAM_V:
    case PL_BUF_IGNORED_M:
    case PL_BUF_IGNORED_V: h->moments += bytes; break;
    case PL_BUF_GRADIENT:
    case PL_BUF_IGNORED_GRADIENT: h->gradients += bytes; break;
    default: break;
    }
}

static void see_gathered(memory_run *run, seen *s, const pl_executor *executor,
                         const pl_section *section)
{
    int64_t all = 0;
    for (size_t i = 0; i < section->buffer_count; ++i) {
        const pl_buffer *buffer = &section->buffers[i];
        int64_t bytes = pl_executor_buffer_bytes(executor, section, (uint32_t)i);
        if (buffer->class_ != PL_BUFFER_GATHERED || bytes < 0) continue;
        int64_t expected = gathered_bytes(&run->plan, buffer);
        if (bytes != expected && !s->words[0])
            snprintf(s->words, sizeof s->words,
                     "gathered copy %zu has %" PRId64 " bytes, placement says %" PRId64, i, bytes,
                     expected);
        all += bytes;
        ++s->gathered;
    }
    int64_t now = pl_executor_memory(executor).now[PL_BUFFER_GATHERED];
    if (now != all && !s->words[0])
        snprintf(s->words, sizeof s->words,
                 "gathered copies are %" PRId64 " bytes, counted %" PRId64, all, now);
}

static void see_resident(seen *s, const pl_executor *executor, const pl_section *section)
{
    for (size_t i = 0; i < section->buffer_count; ++i) {
        int64_t bytes = pl_executor_buffer_bytes(executor, section, (uint32_t)i);
        if (bytes > 0) add_held(&s->resident, &section->buffers[i], bytes);
    }
    s->use = pl_executor_memory(executor);
}

/* R of the entry, from the buffer that bind filled. */
static pl_status see_rows(seen *s, pl_executor *executor, const pl_section *section, int64_t index)
{
    const pl_entry_name *name = &section->entries[index].name;
    for (size_t i = 0; i < section->buffer_count; ++i) {
        const pl_buffer *buffer = &section->buffers[i];
        int64_t counts[64], sum = 0;
        if (buffer->kind != PL_BUF_ROWS || buffer->layer != name->layer ||
            buffer->micro_batch != name->micro_batch)
            continue;
        int64_t bytes = pl_executor_buffer_bytes(executor, section, (uint32_t)i);
        if (bytes <= 0 || bytes > (int64_t)sizeof counts) continue;
        PL_TRY(pl_executor_read(executor, section, (uint32_t)i, counts, bytes));
        for (int64_t j = 0; j < bytes / 8; ++j) sum += counts[j];
        s->rows[section->program][index] = sum;
    }
    return PL_OK;
}

static pl_status watch(void *context, int64_t rank, int64_t step, pl_executor *executor,
                       const pl_section *section, int64_t index)
{
    memory_run *run = context;
    seen *s = &run->rank[rank];
    (void)step;
    if (section->program != PL_PROGRAM_STEP) return PL_OK;
    see_gathered(run, s, executor, section);
    if (section->entries[index].name.operation == PL_OP_STEP) see_resident(s, executor, section);
    return see_rows(s, executor, section, index);
}

/* --- runs --- */

static void make_trial(memory_run *run, const memory_case *c)
{
    run->c = c;
    run->t = small_trial(&run->model, c->layout);
    run->t.steps = 1;
    run->t.settings.policy.accumulate = c->accumulate;
    run->t.settings.policy.reshard = c->reshard;
    run->t.settings.optimizer = c->optimizer;
    if (c->narrow_wire) run->t.settings.precision.gather = PL_BF16;
    run->t.keep_fp32 = &c->keep_fp32;
    run->t.keep_fp32_count = c->keep_fp32 != NULL;
    run->t.frozen = &c->frozen;
    run->t.frozen_count = c->frozen != NULL;
    run->t.watch = watch;
    run->t.watch_start = true;
    run->t.watch_context = run;
}

static memory_run *open_run(const memory_case *c)
{
    memory_run *run = calloc(1, sizeof *run);
    assert_non_null(run);
    assert_ok(plan_case_model(&run->model, c->model));
    make_trial(run, c);
    pl_plan_request request = {.model = &run->model,
                               .settings = run->t.settings,
                               .keep_fp32 = run->t.keep_fp32,
                               .frozen = run->t.frozen,
                               .keep_fp32_count = run->t.keep_fp32_count,
                               .frozen_count = run->t.frozen_count};
    assert_ok(pl_layout_parse(&request.layout, c->layout));
    assert_ok(pl_plan_build(&run->plan, &request));
    assert_true(run->plan.layout.world <= RANKS_MOST);
    for (int64_t r = 0; r < run->plan.layout.world; ++r)
        for (int i = PL_PROGRAM_START; i <= PL_PROGRAM_STEP; ++i) {
            const pl_section *section = pl_plan_section(&run->plan, (pl_program)i, r);
            run->rank[r].rows[i] = calloc(section->entry_count, sizeof(int64_t));
            assert_non_null(run->rank[r].rows[i]);
        }
    return run;
}

static void close_run(memory_run *run)
{
    for (int r = 0; r < RANKS_MOST; ++r)
        for (int i = 0; i < PL_PROGRAM_COUNT; ++i) free(run->rank[r].rows[i]);
    pl_plan_free(&run->plan);
    pl_model_free(&run->model);
    free(run->end);
    free(run);
}

static memory_run *run_case(const memory_case *c)
{
    memory_run *run = open_run(c);
    trial_result result = small_run(&run->t);
    run->end = calloc((size_t)result.world, sizeof *run->end);
    assert_non_null(run->end);
    memcpy(run->end, result.memory, (size_t)result.world * sizeof *run->end);
    trial_free(&result);
    return run;
}

static void assert_bytes(const memory_case *c, int64_t rank, const char *what, int64_t found,
                         int64_t expected)
{
    if (found != expected)
        fail_msg("%s, rank %" PRId64 ": %s are %" PRId64 " bytes, must be %" PRId64, c->layout,
                 rank, what, found, expected);
}

static void assert_resident(const memory_run *run, int64_t r)
{
    const seen *s = &run->rank[r];
    held expected = placed(&run->plan);
    int64_t shards = expected.parameters + expected.masters + expected.moments;
    if (s->words[0]) fail_msg("%s, rank %" PRId64 ": %s", run->c->layout, r, s->words);
    assert_bytes(run->c, r, "parameters", s->resident.parameters, expected.parameters);
    assert_bytes(run->c, r, "masters", s->resident.masters, expected.masters);
    assert_bytes(run->c, r, "moments", s->resident.moments, expected.moments);
    assert_bytes(run->c, r, "gradients", s->resident.gradients, expected.gradients);
    assert_bytes(run->c, r, "shards in use", s->use.now[PL_BUFFER_SHARD], shards);
    assert_bytes(run->c, r, "gradients in use", s->use.now[PL_BUFFER_GRADIENT], expected.gradients);
    for (int i = 0; i < PL_BUFFER_CLASS_COUNT; ++i)
        assert_bytes(run->c, r, "what stays after the step", run->end[r].now[i],
                     i == PL_BUFFER_SHARD ? shards : 0);
}

static void resident_bytes_are_what_placement_says(void **state)
{
    (void)state;
    int64_t ranks = 0, copies = 0;
    for (int i = 0; i < CASES; ++i) {
        memory_run *run = run_case(&cases[i]);
        for (int64_t r = 0; r < run->plan.layout.world; ++r, ++ranks) {
            assert_resident(run, r);
            copies += run->rank[r].gathered;
        }
        close_run(run);
    }
    assert_true(copies > 0);
    print_message("resident bytes of %" PRId64 " ranks, %" PRId64 " sights of gathered copies\n",
                  ranks, copies);
}

static void peaks_are_those_of_a_walk_over_the_plan(void **state)
{
    (void)state;
    int64_t peaks = 0;
    for (int i = 0; i < CASES; ++i) {
        memory_run *run = run_case(&cases[i]);
        for (int64_t r = 0; r < run->plan.layout.world; ++r) {
            memory_walk walk = {{0}, {0}, 0, 0};
            for (int p = PL_PROGRAM_START; p <= PL_PROGRAM_STEP; ++p)
                assert_ok(memory_walk_section(&walk, &run->plan.layout,
                                              pl_plan_section(&run->plan, (pl_program)p, r),
                                              run->rank[r].rows[p]));
            for (int class_ = 0; class_ < PL_BUFFER_CLASS_COUNT; ++class_, ++peaks) {
                assert_bytes(run->c, r, pl_buffer_class_name((pl_buffer_class)class_),
                             run->end[r].peak[class_], walk.peak[class_]);
                assert_bytes(run->c, r, "what is left", run->end[r].now[class_], walk.now[class_]);
            }
            assert_bytes(run->c, r, "all classes", run->end[r].peak_total, walk.peak_total);
        }
        close_run(run);
    }
    print_message("%" PRId64 " peaks\n", peaks);
}

/* Whole gradients over the rounds instead of their sums as sharded. */
static void unsharded_accumulation_holds_whole_gradients(void **state)
{
    (void)state;
    memory_case sharded = {.model = "mixed", .layout = "decoupled:world=8,ep=4"};
    memory_case whole = sharded;
    whole.accumulate = PL_ACCUMULATE_UNSHARDED;
    memory_run *a = run_case(&sharded), *b = run_case(&whole);
    for (int64_t r = 0; r < 8; ++r) {
        assert_true(b->end[r].peak[PL_BUFFER_SUM] > 2 * a->end[r].peak[PL_BUFFER_SUM]);
        assert_int_equal(b->end[r].peak[PL_BUFFER_GRADIENT], a->end[r].peak[PL_BUFFER_GRADIENT]);
    }
    close_run(a);
    close_run(b);
}

/* The plan walked in its order, R at its mean, against what was held: ranks without exchanges of
 * uneven R agree to the byte but for what collectives hold longer. */
static void the_need_of_a_plan_is_near_what_is_held(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; ++i) {
        memory_run *run = run_case(&cases[i]);
        double need = 0, held_most = 0;
        for (int64_t r = 0; r < run->plan.layout.world; ++r) {
            need += (double)pl_memory_need(&run->plan, r, false);
            held_most += (double)(run->end[r].peak_total + run->end[r].peak[PL_BUFFER_HOST]);
        }
        if (need < 0.85 * held_most || need > 1.05 * held_most)
            fail_msg("%s: need %.0f bytes, held %.0f", cases[i].layout, need, held_most);
        close_run(run);
    }
}

/* What the last rank needs for PROGRAMS. */
static int64_t need_of(const memory_run *run, uint32_t programs)
{
    pl_plan_request request = {.model = &run->model, .layout = run->plan.layout};
    pl_plan plan;
    request.settings = run->plan.settings;
    request.programs = programs;
    assert_ok(pl_plan_build(&plan, &request));
    int64_t need = pl_memory_need(&plan, plan.layout.world - 1, false);
    pl_plan_free(&plan);
    return need;
}

/* What is resident counts once, whichever program makes it, and when there are two. A step needs
 * more than they do. */
static void what_start_and_load_make_counts_once(void **state)
{
    const uint32_t start = PL_PROGRAMS_START, load = PL_PROGRAMS_LOAD, step = PL_PROGRAMS_STEP;
    (void)state;
    for (int i = 0; i < CASES; ++i) {
        memory_run *run = open_run(&cases[i]);
        int64_t of_start = need_of(run, start), of_load = need_of(run, load);
        int64_t larger = of_start > of_load ? of_start : of_load, all = need_of(run, start | step);
        assert_true(of_load > 0 && larger < all);
        assert_int_equal(need_of(run, start | load), larger);
        assert_int_equal(need_of(run, load | step), all);
        assert_int_equal(need_of(run, start | load | step | PL_PROGRAMS_SAVE), all);
        assert_true(need_of(run, load | PL_PROGRAMS_SAVE) < all);
        close_run(run);
    }
}

static void more_than_there_is_is_refused(void **state)
{
    (void)state;
    memory_run *run = open_run(&cases[0]);
    const pl_plan *plan = &run->plan;
    int64_t world = plan->layout.world, need = 0;
    for (int64_t r = 0; r < world; ++r) need += pl_memory_need(plan, r, false);
    assert_true(need > 0);
    assert_ok(pl_memory_require(plan, false, 0, world, 1, need));
    assert_ok(pl_memory_require(plan, false, 0, world, 1, -1));
    assert_fails(PL_BAD_INPUT, pl_memory_require(plan, false, 0, world, 1, need - 1),
                 "the ranks on this machine need at least");
    int64_t one = pl_memory_need(plan, 0, false);
    assert_ok(pl_memory_require(plan, false, 0, 1, 3, 3 * one));
    assert_fails(PL_BAD_INPUT, pl_memory_require(plan, false, 0, 1, 3, 3 * one - 1), "available");
    assert_fails(PL_BAD_INPUT, pl_memory_require(plan, false, 0, 1, INT64_MAX, INT64_MAX - 1),
                 "PiB");
    assert_true(pl_memory_available() != 0);
    close_run(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resident_bytes_are_what_placement_says),
        cmocka_unit_test(peaks_are_those_of_a_walk_over_the_plan),
        cmocka_unit_test(unsharded_accumulation_holds_whole_gradients),
        cmocka_unit_test(the_need_of_a_plan_is_near_what_is_held),
        cmocka_unit_test(what_start_and_load_make_counts_once),
        cmocka_unit_test(more_than_there_is_is_refused),
    };
    return cmocka_run_group_tests_name("train/memory", tests, NULL, NULL);
}
