/* Programs save and load: a run that is saved in the middle and loaded by new executors ends with
 * the bits, in every resident buffer of every rank, of one that was not interrupted.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cpu/cpu.h"
#include "tests/test.h"
#include "tests/train/lone_rank.h"
#include "tests/train/value_store.h"

enum { RANKS_MOST = 8, HALF = 3, STEPS = 2 * HALF };

typedef struct saving_case {
    const char *what, *model, *layout;
    const char *frozen[PLAN_CASE_PATTERNS], *keep_fp32[PLAN_CASE_PATTERNS];
    bool narrow_wire;   /* gathers in bf16, so masters in fp32 */
    bool narrow_stored; /* the model's own type is bf16 */
    pl_optimizer optimizer;
} saving_case;

static const saving_case cases[] = {
    {.what = "one rank", .model = "mixed", .layout = "single:world=1"},
    {.what = "one rank with masters",
     .model = "mixed",
     .layout = "single:world=1",
     .narrow_wire = true},
    {.what = "legacy", .model = "mixed", .layout = "legacy:world=8,ep=4"},
    {.what = "replicas and masters",
     .model = "moe",
     .layout = "decoupled:world=8,ep=2,replicas=2",
     .narrow_wire = true},
    {.what = "folded", .model = "mixed-last", .layout = "folded:world=6,ep=2"},
    {.what = "whole experts", .model = "moe", .layout = "single:world=4,ep=2,grain=expert"},
    {.what = "kept whole and frozen",
     .model = "mixed",
     .layout = "decoupled:world=4,ep=2",
     .keep_fp32 = {"*layernorm*", "k_norm", "lm_head.weight"},
     .frozen = {"q_norm", "post_attention_layernorm", "model.layers.1.mlp.experts.*"},
     .narrow_wire = true},
    {.what = "frozen in the type that it is stored in",
     .model = "dense",
     .layout = "legacy:world=2",
     .frozen = {"*embed_tokens*"},
     .narrow_stored = true},
    {.what = "tied", .model = "moe-tied", .layout = "legacy:world=3", .narrow_wire = true},
    {.what = "sgd",
     .model = "moe-tied",
     .layout = "decoupled:world=4,ep=2,replicas=2",
     .keep_fp32 = {"q_norm"},
     .optimizer = PL_OPTIMIZER_SGD},
};
enum { CASES = sizeof cases / sizeof *cases };

/* --- plans --- */

/* The model of C, whose own type may be another one. */
static pl_status make_model(pl_model *out, const saving_case *c)
{
    char text[1024];
    snprintf(text, sizeof text, "%s", plan_case_model_text(c->model));
    char *type = strstr(text, "\"float32\"");
    if (type && c->narrow_stored) snprintf(type, 32, "\"bfloat16\"}");
    return pl_model_parse(out, text, c->model, c->model);
}

static void make_plan(pl_plan *out, const saving_case *c, const char *layout, uint32_t programs)
{
    plan_case base = {.name = c->what, .model = c->model, .layout = layout};
    pl_model model;
    pl_plan_request request;
    base.balance = PL_BALANCE_MICRO_STEP;
    memcpy(base.frozen, c->frozen, sizeof base.frozen);
    memcpy(base.keep_fp32, c->keep_fp32, sizeof base.keep_fp32);
    assert_ok(make_model(&model, c));
    assert_ok(plan_case_request(&request, &base, &model));
    request.programs = programs;
    request.settings.shape = (pl_shape){9, 1, 2, 1};
    request.settings.optimizer = c->optimizer;
    if (c->narrow_wire) request.settings.precision.gather = PL_BF16;
    pl_status status = pl_plan_build(out, &request);
    pl_model_free(&model);
    if (status != PL_OK) fail_msg("%s: %s", c->what, pl_error_text());
}

/* --- a world of ranks --- */

typedef struct world world;

typedef struct member {
    world *all;
    int64_t rank, step, calls;
    pl_status status;
    char words[2048];
    pl_program_result steps[STEPS];
    char **held; /* [resident buffers], in the order of the table of RESIDENTS; owned */
} member;

/* What all ranks do: start or load, steps FIRST to END - 1, save if there is a store to save to. */
struct world {
    pl_plan plan;
    value_store *from, *to;
    int64_t first, end;
    pl_order order;
    pl_process_group *groups[RANKS_MOST];
    pl_backend *backend;
    member members[RANKS_MOST];
};

/* The section that has all resident buffers. */
static const pl_section *residents(const world *w, int64_t rank)
{
    return pl_plan_section(&w->plan, w->from ? PL_PROGRAM_LOAD : PL_PROGRAM_START, rank);
}

static pl_status load_batch(void *context, const pl_shape *shape, int64_t data_index,
                            int64_t data_ranks, int32_t *batch)
{
    const member *m = context;
    int64_t vocabulary = m->all->plan.model.vocab_size, all = shape->rounds * shape->intra_layer;
    lone_batch(shape, data_index, data_ranks, vocabulary, batch);
    for (int64_t i = 0; i < 2 * all * shape->micro_batch * shape->sequence; ++i)
        if (batch[i] >= 0)
            batch[i] = (int32_t)((batch[i] + (m->step + 1) * (i % 7 + 1)) % vocabulary);
    return PL_OK;
}

static pl_status initial_values(void *context, const pl_tensor *tensor, int64_t row_begin,
                                int64_t row_end, pl_dtype dtype, void *out)
{
    pl_value_source source = {5, 0.3};
    (void)context;
    return pl_value_source_initial(&source, tensor, row_begin, row_end, dtype, out);
}

/* What is handed out or asked for must be the rows that the rank holds, and no row of padding. */
static pl_status check_rows(member *m, pl_value_kind kind, const pl_tensor *tensor,
                            int64_t row_begin, int64_t row_end)
{
    pl_box box = pl_placement_box(&m->all->plan.layout, tensor, m->rank);
    ++m->calls;
    if (row_begin < row_end && box.begin == row_begin && box.end == row_end) return PL_OK;
    return PL_FAIL(PL_INTERNAL, "%s of %s: rows %" PRId64 " to %" PRId64 " are not the rank's",
                   pl_value_kind_name(kind), tensor->suffix, row_begin, row_end);
}

static pl_status save_values(void *context, pl_value_kind kind, const pl_tensor *tensor,
                             int64_t row_begin, int64_t row_end, pl_dtype dtype, const void *values)
{
    member *m = context;
    PL_TRY(check_rows(m, kind, tensor, row_begin, row_end));
    return store_put(m->all->to, kind, tensor, tensor - m->all->plan.model.tensors, row_begin,
                     row_end, dtype, values);
}

static pl_status load_values(void *context, pl_value_kind kind, const pl_tensor *tensor,
                             int64_t row_begin, int64_t row_end, pl_dtype dtype, void *out)
{
    member *m = context;
    PL_TRY(check_rows(m, kind, tensor, row_begin, row_end));
    return store_take(m->all->from, kind, tensor, tensor - m->all->plan.model.tensors, row_begin,
                      row_end, dtype, out);
}

static pl_status keep_residents(member *m, pl_executor *executor)
{
    const pl_section *section = residents(m->all, m->rank);
    m->held = calloc(section->buffer_count, sizeof *m->held);
    for (uint32_t i = 0; i < section->buffer_count; ++i) {
        const pl_buffer *buffer = &section->buffers[i];
        if (!buffer->resident) continue;
        m->held[i] = malloc((size_t)buffer->bytes);
        PL_TRY(pl_executor_read(executor, section, i, m->held[i], buffer->bytes));
    }
    return PL_OK;
}

static pl_status run_programs(member *m, pl_executor *executor)
{
    const world *all = m->all;
    pl_program_input input = lone_input();
    pl_program_result result;
    PL_TRY(
        pl_executor_run(executor, all->from ? PL_PROGRAM_LOAD : PL_PROGRAM_START, &input, &result));
    for (m->step = all->first; m->step < all->end; ++m->step) {
        input.update = m->step + 1;
        PL_TRY(pl_executor_run(executor, PL_PROGRAM_STEP, &input, &m->steps[m->step]));
    }
    if (all->to) PL_TRY(pl_executor_run(executor, PL_PROGRAM_SAVE, &input, &result));
    return keep_residents(m, executor);
}

static pl_status run_member(member *m)
{
    world *all = m->all;
    pl_device *device = NULL;
    pl_executor *executor = NULL;
    PL_TRY(all->backend->functions->open_device(all->backend, &device, m->rank, m->rank));
    pl_executor_options options = {.plan = &all->plan,
                                   .world = all->groups[m->rank],
                                   .device = device,
                                   .order = all->order,
                                   .order_seed = (uint64_t)m->rank + 1};
    options.outside = (pl_executor_outside){.context = m,
                                            .load_batch = load_batch,
                                            .initial_values = initial_values,
                                            .save_values = save_values,
                                            .load_values = load_values};
    pl_status status = pl_executor_open(&executor, &options);
    if (status == PL_OK) status = run_programs(m, executor);
    if (status != PL_OK) {
        snprintf(m->words, sizeof m->words, "%s", pl_error_text());
        pl_process_group_fail(all->groups[m->rank], status, m->words);
    }
    pl_executor_close(executor);
    device->functions->close(device);
    return status;
}

static void *member_main(void *argument)
{
    member *m = argument;
    m->status = run_member(m);
    return NULL;
}

/* Run the ranks of W as threads. */
static void run_world(world *w)
{
    pthread_t threads[RANKS_MOST];
    int64_t ranks = w->plan.layout.world;
    assert_ok(pl_backend_cpu_open(&w->backend, 1));
    assert_ok(pl_group_threads_open(w->groups, ranks, 60));
    for (int64_t r = 0; r < ranks; ++r) {
        w->members[r] = (member){.all = w, .rank = r};
        if (pthread_create(&threads[r], NULL, member_main, &w->members[r]) != 0) abort();
    }
    for (int64_t r = 0; r < ranks; ++r) pthread_join(threads[r], NULL);
    for (int64_t r = 0; r < ranks; ++r) pl_process_group_close(w->groups[r]);
    w->backend->functions->close(w->backend);
}

static const uint32_t programs =
    PL_PROGRAMS_START | PL_PROGRAMS_STEP | PL_PROGRAMS_SAVE | PL_PROGRAMS_LOAD;

/* The same, which must succeed; W is made here. */
static void run_case(world *w, const saving_case *c, const char *layout)
{
    make_plan(&w->plan, c, layout, programs);
    assert_true(w->plan.layout.world <= RANKS_MOST);
    run_world(w);
    for (int64_t r = 0; r < w->plan.layout.world; ++r)
        if (w->members[r].status != PL_OK && w->members[r].status != PL_PEER_FAILED)
            fail_msg("%s, %s, rank %" PRId64 ": %s", c->what, layout, r, w->members[r].words);
}

static void close_world(world *w)
{
    for (int64_t r = 0; r < w->plan.layout.world; ++r) {
        const pl_section *section = residents(w, r);
        for (size_t i = 0; w->members[r].held && i < section->buffer_count; ++i)
            free(w->members[r].held[i]);
        free(w->members[r].held);
    }
    pl_plan_free(&w->plan);
}

/* --- comparing --- */

static const char *held_as(const world *w, int64_t rank, const pl_buffer *buffer)
{
    const pl_section *section = residents(w, rank);
    for (size_t i = 0; i < section->buffer_count; ++i)
        if (section->buffers[i].kind == buffer->kind &&
            section->buffers[i].subject == buffer->subject &&
            section->buffers[i].layer == buffer->layer)
            return w->members[rank].held[i];
    return NULL;
}

/* Resident buffers in which two worlds differ, all ranks together; the first in WORDS. */
static int64_t differences(const world *a, const world *b, char words[200])
{
    int64_t count = 0, compared = 0;
    for (int64_t r = 0; r < a->plan.layout.world; ++r) {
        const pl_section *section = residents(a, r);
        for (size_t i = 0; i < section->buffer_count; ++i) {
            const pl_buffer *buffer = &section->buffers[i];
            if (!buffer->resident) continue;
            const char *other = held_as(b, r, buffer);
            ++compared;
            if (other && memcmp(a->members[r].held[i], other, (size_t)buffer->bytes) == 0) continue;
            pl_text name = {0};
            pl_buffer_print(&name, buffer);
            if (count++ == 0)
                snprintf(words, 200, "rank %" PRId64 ", %s", r, pl_text_string(&name));
            pl_text_free(&name);
        }
    }
    assert_true(compared > 4 * a->plan.layout.world);
    return count;
}

/* How many steps of rank 0 from HALF on went differently. */
static int64_t different_steps(const world *a, const world *b)
{
    int64_t count = 0;
    for (int i = HALF; i < STEPS; ++i) {
        const pl_program_result *x = &a->members[0].steps[i], *y = &b->members[0].steps[i];
        assert_true(x->loss_sum > 0 && x->updated);
        count += x->loss_sum != y->loss_sum || x->norm != y->norm || x->tokens != y->tokens;
    }
    return count;
}

/* --- what is saved --- */

static bool is_kept(const pl_plan *plan, const pl_tensor *tensor, pl_value_kind kind)
{
    bool ignored = tensor->class_ == PL_CLASS_IGNORED;
    if (kind == PL_VALUE_PARAMETER) return true;
    if (kind == PL_VALUE_MASTER)
        return !tensor->frozen && !ignored && plan->settings.precision.gather != PL_FP32;
    return !tensor->frozen && plan->settings.optimizer == PL_OPTIMIZER_ADAMW;
}

static pl_dtype type_of(const pl_plan *plan, const pl_tensor *tensor, pl_value_kind kind)
{
    if (kind != PL_VALUE_PARAMETER || tensor->class_ == PL_CLASS_IGNORED) return PL_FP32;
    return tensor->frozen ? plan->model.stored_dtype : plan->settings.precision.gather;
}

/* Every row of every tensor was saved, of the kinds that there are and of no others. */
static void expect_all_saved(const saving_case *c, const world *w)
{
    const pl_plan *plan = &w->plan;
    for (int kind = 0; kind < PL_VALUE_KIND_COUNT; ++kind)
        for (int64_t i = 0; i < plan->model.tensor_count; ++i) {
            const pl_tensor *tensor = &plan->model.tensors[i];
            bool kept = is_kept(plan, tensor, (pl_value_kind)kind);
            if (store_rows(w->to, (pl_value_kind)kind, tensor, i) !=
                (kept ? pl_tensor_total_rows(tensor) : 0))
                fail_msg("%s: %s of %s: %" PRId64 " rows were saved", c->what,
                         pl_value_kind_name((pl_value_kind)kind), tensor->suffix,
                         store_rows(w->to, (pl_value_kind)kind, tensor, i));
            if (kept)
                assert_int_equal(w->to->slot[kind][i].dtype,
                                 type_of(plan, tensor, (pl_value_kind)kind));
        }
    assert_int_equal(w->to->disagreements, 0);
}

/* Every rank is asked once for each kind of each tensor that it holds rows of. */
static void expect_calls(const saving_case *c, const world *w)
{
    for (int64_t r = 0; r < w->plan.layout.world; ++r) {
        int64_t expected = 0;
        for (int64_t i = 0; i < w->plan.model.tensor_count; ++i) {
            const pl_tensor *tensor = &w->plan.model.tensors[i];
            pl_box box = pl_placement_box(&w->plan.layout, tensor, r);
            for (int kind = 0; kind < PL_VALUE_KIND_COUNT && box.begin < box.end; ++kind)
                expected += is_kept(&w->plan, tensor, (pl_value_kind)kind);
        }
        if (w->members[r].calls != expected)
            fail_msg("%s, rank %" PRId64 ": %" PRId64 " calls, expected %" PRId64, c->what, r,
                     w->members[r].calls, expected);
    }
}

/* --- the tests --- */

static void run_uninterrupted(world *w, const saving_case *c)
{
    *w = (world){.end = STEPS};
    run_case(w, c, c->layout);
}

static void run_first_half(world *w, const saving_case *c, value_store *store)
{
    *w = (world){.end = HALF, .to = store};
    run_case(w, c, c->layout);
}

/* In a random order, with memory that is full of NaN before it is written. */
static void run_second_half(world *w, const saving_case *c, value_store *store)
{
    *w = (world){.from = store, .first = HALF, .end = STEPS, .order = PL_ORDER_RANDOM};
    run_case(w, c, c->layout);
}

static void a_loaded_run_goes_on_with_the_same_bits(void **state)
{
    static world whole, first, second;
    (void)state;
    for (int i = 0; i < CASES; ++i) {
        value_store store;
        char words[200];
        store_open(&store);
        run_uninterrupted(&whole, &cases[i]);
        run_first_half(&first, &cases[i], &store);
        expect_all_saved(&cases[i], &first);
        expect_calls(&cases[i], &first);
        run_second_half(&second, &cases[i], &store);
        expect_calls(&cases[i], &second);
        if (differences(&whole, &second, words) != 0) fail_msg("%s: %s", cases[i].what, words);
        assert_int_equal(different_steps(&whole, &second), 0);
        assert_true(differences(&first, &second, words) > 0);
        close_world(&whole);
        close_world(&first);
        close_world(&second);
        store_close(&store);
    }
}

/* Loaded at once, every buffer is as it was saved; with one bit of one number changed, that one
 * buffer differs, on the ranks of both replicas that hold the row. */
static void one_changed_bit_is_seen_in_every_kind(void **state)
{
    static const char *const names[] = {"param.layer.0", "master.layer.0", "adam_m.layer.0",
                                        "adam_v.layer.0"};
    static world first, second;
    const saving_case *c = &cases[3];
    value_store store;
    (void)state;
    store_open(&store);
    run_first_half(&first, c, &store);
    for (int kind = 0; kind <= PL_VALUE_KIND_COUNT; ++kind) {
        bool changed = kind < PL_VALUE_KIND_COUNT;
        char words[200] = "";
        if (changed) store.slot[kind][1].bytes[0] ^= 1;
        second = (world){.from = &store};
        run_case(&second, c, c->layout);
        assert_int_equal(differences(&first, &second, words), changed ? 2 : 0);
        if (changed) assert_non_null(strstr(words, names[kind]));
        if (changed) store.slot[kind][1].bytes[0] ^= 1;
        close_world(&second);
    }
    close_world(&first);
    store_close(&store);
}

static bool same_slot(const pl_tensor *tensor, const store_slot *a, const store_slot *b)
{
    size_t bytes = (size_t)(pl_tensor_elements(tensor) * pl_dtype_bytes(a->dtype));
    if (!a->bytes || !b->bytes) return !a->bytes && !b->bytes;
    return a->dtype == b->dtype && memcmp(a->bytes, b->bytes, bytes) == 0;
}

/* Saved under one layout, loaded and saved again under another: no bit is another one. */
static void another_layout_loads_and_saves_the_same(void **state)
{
    static const struct {
        int number;
        const char *layout;
    } moves[] = {{2, "folded:world=6,ep=2"},
                 {3, "legacy:world=4,ep=4"},
                 {6, "legacy:world=3"},
                 {7, "single:world=1"},
                 {9, "folded:world=8,ep=8"}};
    static world first, second;
    (void)state;
    for (size_t i = 0; i < sizeof moves / sizeof *moves; ++i) {
        const saving_case *c = &cases[moves[i].number];
        value_store one, two;
        store_open(&one);
        store_open(&two);
        run_first_half(&first, c, &one);
        second = (world){.from = &one, .to = &two, .order = PL_ORDER_RANDOM};
        run_case(&second, c, moves[i].layout);
        expect_all_saved(c, &second);
        for (int kind = 0; kind < PL_VALUE_KIND_COUNT; ++kind)
            for (int64_t t = 0; t < first.plan.model.tensor_count; ++t)
                if (!same_slot(&first.plan.model.tensors[t], &one.slot[kind][t],
                               &two.slot[kind][t]))
                    fail_msg("%s to %s: %s of %s", c->what, moves[i].layout,
                             pl_value_kind_name((pl_value_kind)kind),
                             first.plan.model.tensors[t].suffix);
        close_world(&first);
        close_world(&second);
        store_close(&one);
        store_close(&two);
    }
}

/* A rank that is told of a failure says where; the others stop too. */
static void what_was_not_saved_is_not_loaded(void **state)
{
    static world first, second;
    const saving_case *c = &cases[2];
    value_store store;
    int64_t failed = 0;
    (void)state;
    store_open(&store);
    run_first_half(&first, c, &store);
    store.slot[PL_VALUE_ADAM_V][0].seen[0] = 0;
    second = (world){.from = &store};
    make_plan(&second.plan, c, c->layout, programs);
    run_world(&second);
    for (int64_t r = 0; r < second.plan.layout.world; ++r) {
        const member *m = &second.members[r];
        assert_int_not_equal(m->status, PL_OK);
        if (m->status == PL_PEER_FAILED) continue;
        assert_int_equal(m->status, PL_BAD_INPUT);
        assert_non_null(strstr(m->words, "a row that nobody saved"));
        assert_non_null(strstr(m->words, "program load, entry "));
        assert_non_null(strstr(m->words, ": read embed"));
        ++failed;
    }
    assert_true(failed > 0);
    close_world(&first);
    close_world(&second);
    store_close(&store);
}

/* --- what is refused --- */

static pl_status no_values(void *context, pl_value_kind kind, const pl_tensor *tensor,
                           int64_t row_begin, int64_t row_end, pl_dtype dtype, void *out)
{
    (void)context;
    (void)kind;
    memset(out, 0, (size_t)((row_end - row_begin) * tensor->cols * pl_dtype_bytes(dtype)));
    return PL_OK;
}

static void nobody_to_ask_is_said_in_words(void **state)
{
    lone_rank lone = {.context = NULL};
    pl_program_result result;
    (void)state;
    make_plan(&lone.plan, &cases[0], "single:world=1", programs);
    assert_ok(lone_open(&lone));
    assert_fails(PL_INTERNAL, lone_run(&lone, PL_PROGRAM_LOAD, &result), "nobody was named",
                 "gives what was saved", "program load", "read embed");
    lone_close(&lone);
    lone = (lone_rank){.context = NULL};
    make_plan(&lone.plan, &cases[0], "single:world=1", programs);
    assert_ok(lone_open(&lone));
    assert_ok(lone_run(&lone, PL_PROGRAM_START, &result));
    assert_fails(PL_INTERNAL, lone_run(&lone, PL_PROGRAM_SAVE, &result), "nobody was named",
                 "takes what is saved", "program save", "write embed");
    lone_close(&lone);
}

static void programs_in_the_wrong_order_are_refused(void **state)
{
    static const struct {
        pl_program before, after;
        const char *words;
    } orders[] = {{PL_PROGRAM_COUNT, PL_PROGRAM_SAVE, "is used where it does not live"},
                  {PL_PROGRAM_START, PL_PROGRAM_LOAD, "is begun while it lives"},
                  {PL_PROGRAM_LOAD, PL_PROGRAM_LOAD, "is begun while it lives"},
                  {PL_PROGRAM_LOAD, PL_PROGRAM_START, "is begun while it lives"}};
    (void)state;
    for (size_t i = 0; i < sizeof orders / sizeof *orders; ++i) {
        lone_rank lone = {.outside = {.load_values = no_values}};
        pl_program_result result;
        make_plan(&lone.plan, &cases[0], "single:world=1", programs);
        assert_ok(lone_open(&lone));
        if (orders[i].before < PL_PROGRAM_COUNT)
            assert_ok(lone_run(&lone, orders[i].before, &result));
        assert_fails(PL_BAD_INPUT, lone_run(&lone, orders[i].after, &result), orders[i].words,
                     "param.embed");
        lone_close(&lone);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loaded_run_goes_on_with_the_same_bits),
        cmocka_unit_test(one_changed_bit_is_seen_in_every_kind),
        cmocka_unit_test(another_layout_loads_and_saves_the_same),
        cmocka_unit_test(what_was_not_saved_is_not_loaded),
        cmocka_unit_test(nobody_to_ask_is_said_in_words),
        cmocka_unit_test(programs_in_the_wrong_order_are_refused),
    };
    return cmocka_run_group_tests_name("train/saving", tests, NULL, NULL);
}
