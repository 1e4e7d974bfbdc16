/* Plans: names, sharing between ranks, classes of ranks, golden texts, splitting, refusals. What
 * the emitters write is in test_plan_emitters.c, reading in test_plan_text.c. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/memory.h"
#include "tests/common/plan_cases.h"
#include "tests/test.h"

static pl_plan build(const plan_case *c, bool separate)
{
    pl_plan plan;
    pl_status status = plan_case_build(&plan, c, separate);
    if (status != PL_OK) fail_msg("%s, %s: %s", c->name, c->layout, pl_error_text());
    return plan;
}

static char *text_of(const pl_plan *plan, int64_t rank)
{
    pl_text text = {0};
    pl_plan_write(&text, plan, rank);
    assert_ok(pl_text_status(&text));
    return text.bytes;
}

/* --- names --- */

static int compare_names(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(pl_entry_name));
}

/* How many entries of SECTION have the name of another. */
static size_t shared_names(const pl_section *section)
{
    pl_entry_name *names = NULL;
    size_t shared = 0;
    assert_ok(pl_allocate(&names, section->entry_count, sizeof *names, "names"));
    for (size_t i = 0; i < section->entry_count; ++i) names[i] = section->entries[i].name;
    qsort(names, section->entry_count, sizeof *names, compare_names);
    for (size_t i = 1; i < section->entry_count; ++i)
        shared += pl_entry_name_equal(&names[i - 1], &names[i]);
    pl_free(names);
    return shared;
}

static void expect_own_names(const plan_case *c)
{
    pl_plan plan = build(c, false);
    for (size_t i = 0; i < plan.section_count; ++i)
        if (shared_names(&plan.sections[i]) > 0)
            fail_msg("%s, %s: names are shared", c->model, c->layout);
    pl_plan_free(&plan);
}

static void set_policy(plan_case *c, int number)
{
    c->policy.reshard = (pl_reshard)(number % 3);
    c->policy.prefetch = (pl_prefetch)(number / 3 % 2);
    c->policy.recompute = (pl_recompute)(number / 6 % 2);
    c->policy.accumulate = (pl_accumulate)(number / 12 % 2);
    c->policy.dispatch = (pl_dispatch)(number / 24 % 2);
    c->balance = (pl_balance)(number % PL_BALANCE_COUNT);
    c->bf16 = number / 48 % 2;
}

static void names_are_unique_under_every_policy(void **state)
{
    static const char *const where[][2] = {
        {"mixed", "legacy:world=8,ep=4"},       {"moe-tied", "decoupled:world=8,ep=2,replicas=2"},
        {"moe", "folded:world=4,ep=4"},         {"mixed-last", "single:world=4,ep=2"},
        {"dense-tied", "legacy:world=4"},       {"moe-tied", "decoupled:world=1"},
        {"dense", "folded:world=4,replicas=4"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof where / sizeof *where; ++i) {
        for (int number = 0; number < 96; ++number) {
            plan_case c = {.name = "every policy", .model = where[i][0], .layout = where[i][1]};
            set_policy(&c, number);
            c.micro_batches = 3;
            c.rounds = 2;
            expect_own_names(&c);
        }
    }
    uint64_t seed = 7;
    for (int i = 0; i < 300; ++i) {
        char notation[PL_LAYOUT_TEXT];
        plan_case c = plan_case_random(&seed, notation);
        expect_own_names(&c);
    }
}

static void a_shared_name_would_be_seen(void **state)
{
    plan_case c = {.name = "plain", .model = "moe", .layout = "decoupled:world=4,ep=2"};
    (void)state;
    pl_plan plan = build(&c, false);
    pl_section *section = plan_case_section(&plan, PL_PROGRAM_STEP, 0);
    section->entries[3].name = section->entries[40].name;
    assert_int_equal(shared_names(section), 1);
    pl_plan_free(&plan);
}

/* --- the same text --- */

static size_t count_programs(const pl_plan *plan)
{
    size_t count = 0;
    for (int i = 0; i < PL_PROGRAM_COUNT; ++i)
        count += pl_plan_section(plan, (pl_program)i, 0) != NULL;
    return count;
}

static void expect_same_for_each_rank(const plan_case *c)
{
    pl_plan shared = build(c, false), apart = build(c, true), again = build(c, false);
    char *first = text_of(&shared, -1), *second = text_of(&again, -1);
    assert_string_equal(first, second);
    free(first);
    free(second);
    assert_int_equal(apart.section_count, count_programs(&shared) * (size_t)shared.layout.world);
    for (int64_t rank = 0; rank < shared.layout.world; ++rank) {
        char *of_shared = text_of(&shared, rank), *of_apart = text_of(&apart, rank);
        if (strcmp(of_shared, of_apart) != 0)
            fail_msg("%s, %s: rank %" PRId64 " has another plan when it shares one", c->model,
                     c->layout, rank);
        free(of_shared);
        free(of_apart);
    }
    pl_plan_free(&shared);
    pl_plan_free(&apart);
    pl_plan_free(&again);
}

static void sharing_changes_no_rank(void **state)
{
    uint64_t seed = 1;
    (void)state;
    for (int i = 0; i < PLAN_FORCED_CASES; ++i) expect_same_for_each_rank(&plan_forced_cases()[i]);
    for (int i = 0; i < 60; ++i) {
        char notation[PL_LAYOUT_TEXT];
        plan_case c = plan_case_random(&seed, notation);
        expect_same_for_each_rank(&c);
    }
}

static void the_step_alone_leaves_the_start_out(void **state)
{
    plan_case c = {.name = "plain", .model = "moe", .layout = "decoupled:world=4,ep=2"};
    pl_model model;
    pl_plan_request request;
    pl_plan plan;
    (void)state;
    assert_ok(plan_case_model(&model, c.model));
    assert_ok(plan_case_request(&request, &c, &model));
    request.programs = PL_PROGRAMS_STEP;
    assert_ok(pl_plan_build(&plan, &request));
    assert_null(pl_plan_section(&plan, PL_PROGRAM_START, 0));
    for (int64_t rank = 0; rank < 4; ++rank)
        assert_non_null(pl_plan_section(&plan, PL_PROGRAM_STEP, rank));
    assert_null(pl_plan_section(&plan, PL_PROGRAM_STEP, 4));
    pl_plan_free(&plan);
    pl_model_free(&model);
}

/* --- golden texts --- */

static const plan_case golden[] = {
    {"legacy-mixed", "mixed", "legacy:world=4,ep=2", .micro_batches = 2},
    {"decoupled-tied", "moe-tied", "decoupled:world=4,ep=2,replicas=2", .keep_fp32 = {"q_norm"},
     .policy = {.prefetch = PL_PREFETCH_NEXT_UNIT, .recompute = PL_RECOMPUTE_FULL},
     .balance = PL_BALANCE_GLOBAL_BATCH, .bf16 = true, .rounds = 2},
    {"folded-dense", "dense", "folded:world=5", .frozen = {"*embed_tokens*", "q_norm"},
     .policy = {.reshard = PL_RESHARD_PER_CALL, .accumulate = PL_ACCUMULATE_UNSHARDED},
     .micro_batches = 2, .rounds = 2},
};

/* Number of the first line in which two texts differ. */
static int first_difference(const char *a, const char *b)
{
    int line = 1;
    for (; *a && *a == *b; ++a, ++b) line += *a == '\n';
    return line;
}

static void texts_are_those_of_the_golden_files(void **state)
{
    const char *update = getenv("PL_UPDATE_GOLDEN");
    (void)state;
    for (size_t i = 0; i < sizeof golden / sizeof *golden; ++i) {
        char file[64], *expected = NULL;
        size_t length = 0;
        pl_plan plan = build(&golden[i], false);
        char *text = text_of(&plan, -1);
        snprintf(file, sizeof file, "testdata/plans/%s.plan", golden[i].name);
        if (update && strcmp(update, "1") == 0) {
            FILE *out = fopen(file, "w");
            assert_non_null(out);
            assert_true(fputs(text, out) >= 0);
            assert_int_equal(fclose(out), 0);
        }
        assert_ok(pl_read_file(&expected, &length, file, 1 << 20));
        if (strcmp(text, expected) != 0)
            fail_msg("%s differs in line %d; PL_UPDATE_GOLDEN=1 writes it anew", file,
                     first_difference(text, expected));
        pl_free(expected);
        free(text);
        pl_plan_free(&plan);
    }
}

/* --- classes of ranks --- */

static void expect_equal_elements_in_classes(const plan_case *c)
{
    pl_plan plan = build(c, false);
    for (size_t i = 0; i < plan.section_count; ++i) {
        int64_t known = -1;
        pl_program program = plan.sections[i].program;
        if (program == PL_PROGRAM_EVALUATE || program == PL_PROGRAM_GENERATE) continue;
        for (int64_t rank = 0; rank < plan.layout.world; ++rank) {
            int64_t sum = 0;
            if (!pl_section_has_rank(&plan.sections[i], rank)) continue;
            for (int64_t t = 0; t < plan.model.tensor_count; ++t) {
                const pl_tensor *tensor = &plan.model.tensors[t];
                pl_box box = pl_placement_box(&plan.layout, tensor, rank);
                sum += tensor->frozen ? 0 : (box.end - box.begin) * tensor->cols;
            }
            if (known >= 0) assert_int_equal(sum, known);
            known = sum;
        }
        assert_true(known >= 0);
    }
    pl_plan_free(&plan);
}

static void ranks_of_a_section_hold_equally_much(void **state)
{
    uint64_t seed = 3;
    (void)state;
    for (int i = 0; i < 100; ++i) {
        char notation[PL_LAYOUT_TEXT];
        plan_case c = plan_case_random(&seed, notation);
        expect_equal_elements_in_classes(&c);
    }
}

/* The plan of a model in JSON without a start program. */
static pl_plan build_step(const char *json, const char *notation)
{
    pl_model model;
    pl_plan plan;
    plan_case c = {.name = "classes", .layout = notation};
    pl_plan_request request;
    assert_ok(pl_model_parse(&model, json, "test", "test"));
    assert_ok(plan_case_request(&request, &c, &model));
    request.programs = PL_PROGRAMS_STEP;
    assert_ok(pl_plan_build(&plan, &request));
    pl_model_free(&model);
    return plan;
}

/* Sections are the runs of ranks that begin at FIRST[i], COUNT of them, of those that REPLICAS
 * copies of a shard group of WORLD / REPLICAS ranks have in common. */
static void expect_classes(const pl_plan *plan, int64_t replicas, const int64_t *first,
                           size_t count)
{
    int64_t shards = plan->layout.world / replicas;
    assert_int_equal(plan->section_count, count);
    for (int64_t rank = 0; rank < plan->layout.world; ++rank) {
        size_t own = 0;
        while (own + 1 < count && first[own + 1] <= rank % shards) ++own;
        for (size_t i = 0; i < count; ++i)
            assert_int_equal(pl_section_has_rank(&plan->sections[i], rank), i == own);
    }
    int64_t total = 0;
    for (size_t i = 0; i < count; ++i) total += pl_section_rank_count(&plan->sections[i]);
    assert_int_equal(total, plan->layout.world);
}

static void classes_are_those_of_uneven_tensors(void **state)
{
    /* One row a member: k and v 16 rows, norms and what ends in hidden 24, q 32, the MLP 40. The
     * vocabulary goes in twos: 101 rows fill 50 members, and one has a single row. */
    static const char dense[] =
        "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 24, "
        "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 16, "
        "\"intermediate_size\": 40, \"vocab_size\": 101, \"max_position_embeddings\": 64, "
        "\"torch_dtype\": \"float32\"}";
    static const int64_t dense_first[] = {0, 16, 24, 32, 40, 50, 51};
    /* 8 shards of 20 rows of the vocabulary: threes, a two, nothing; an owner's 10 rows of
     * experts: twos for five; all else divides evenly. */
    static const char moe[] =
        "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 1, \"hidden_size\": 8, "
        "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8, "
        "\"num_experts\": 16, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 5, "
        "\"vocab_size\": 20, \"max_position_embeddings\": 64, \"torch_dtype\": \"float32\"}";
    static const int64_t moe_first[] = {0, 40, 48, 56};
    /* 16 shards, four copies: norms, down and o 8 rows, q 16, vocabulary in twos for ten */
    static const int64_t copied_first[] = {0, 8, 10};
    (void)state;
    pl_plan plan = build_step(dense, "decoupled:world=64");
    expect_classes(&plan, 1, dense_first, 7);
    pl_plan_free(&plan);
    plan = build_step(moe, "legacy:world=64,ep=8");
    expect_classes(&plan, 1, moe_first, 4);
    pl_plan_free(&plan);
    plan = build_step(moe, "folded:world=64,ep=16,replicas=4");
    expect_classes(&plan, 4, copied_first, 3);
    pl_plan_free(&plan);
}

/* --- splitting a rank off --- */

/* Sixteen ranks, four copies of four shards; 11 rows: 3, 3, 3, 2, and other sizes. */
static const plan_case copied = {
    .name = "four copies", .model = "dense", .layout = "decoupled:world=16,replicas=4"};

static void expect_runs(const pl_section *section, const pl_rank_run *runs, size_t count)
{
    assert_int_equal(section->run_count, count);
    for (size_t i = 0; i < count; ++i) {
        assert_int_equal(section->runs[i].first, runs[i].first);
        assert_int_equal(section->runs[i].last, runs[i].last);
        assert_int_equal(section->runs[i].stride, runs[i].stride);
    }
}

static void split(pl_plan *plan, int64_t rank)
{
    size_t sections = plan->section_count;
    assert_ok(pl_plan_split_rank(plan, rank));
    assert_true(plan->section_count <= sections + PL_PROGRAM_COUNT);
    for (int program = 0; program < PL_PROGRAM_COUNT; ++program) {
        const pl_section *own = pl_plan_section(plan, (pl_program)program, rank);
        expect_runs(own, &(pl_rank_run){rank, rank, 1}, 1);
    }
}

static void ranks_are_split_off_runs(void **state)
{
    static const pl_rank_run whole[] = {{3, 15, 4}}, first_off[] = {{7, 15, 4}};
    static const pl_rank_run middle_off[] = {{7, 7, 1}, {15, 15, 1}}, last_off[] = {{7, 7, 1}};
    (void)state;
    pl_plan plan = build(&copied, false);
    expect_runs(pl_plan_section(&plan, PL_PROGRAM_STEP, 3), whole, 1);
    split(&plan, 3);
    expect_runs(pl_plan_section(&plan, PL_PROGRAM_STEP, 7), first_off, 1);
    split(&plan, 11);
    expect_runs(pl_plan_section(&plan, PL_PROGRAM_STEP, 7), middle_off, 2);
    split(&plan, 15);
    expect_runs(pl_plan_section(&plan, PL_PROGRAM_STEP, 7), last_off, 1);
    size_t sections = plan.section_count;
    for (int64_t rank = 3; rank < 16; rank += 4)
        if (rank != 7) split(&plan, rank); /* alone already */
    assert_int_equal(plan.section_count, sections);
    split(&plan, 7); /* ... but where all 16 did the same, evaluating and generating */
    assert_int_equal(plan.section_count, sections + 2);
    pl_plan_free(&plan);
}

static void splitting_changes_no_rank(void **state)
{
    (void)state;
    pl_plan plan = build(&copied, false), whole = build(&copied, false), read;
    for (int64_t rank = 15; rank >= 0; rank -= 2) split(&plan, rank);
    for (int program = 0; program < PL_PROGRAM_COUNT; ++program) {
        int64_t total = 0;
        for (size_t i = 0; i < plan.section_count; ++i)
            if (plan.sections[i].program == (pl_program)program)
                total += pl_section_rank_count(&plan.sections[i]);
        assert_int_equal(total, 16);
    }
    char *text = text_of(&plan, -1);
    assert_ok(pl_plan_read(&read, text, "split"));
    for (int64_t rank = 0; rank < 16; ++rank) {
        char *before = text_of(&whole, rank), *after = text_of(&plan, rank);
        char *back = text_of(&read, rank);
        /* sections stand in another order: the start program of a split rank comes last */
        assert_int_equal(strlen(before), strlen(after));
        assert_string_equal(after, back);
        free(before);
        free(after);
        free(back);
    }
    pl_text differences = {0};
    int64_t count = -1;
    assert_ok(pl_plan_diff(&differences, &whole, &plan, 0, &count));
    assert_int_equal(count, 0);
    assert_int_equal(differences.length, 0);
    pl_text_free(&differences);
    free(text);
    pl_plan_free(&read);
    pl_plan_free(&plan);
    pl_plan_free(&whole);
}

static void an_edit_of_a_split_rank_stays_with_it(void **state)
{
    (void)state;
    pl_plan plan = build(&copied, false), whole = build(&copied, false);
    pl_text differences = {0};
    int64_t count = 0;
    split(&plan, 7);
    pl_section *own = plan_case_section(&plan, PL_PROGRAM_STEP, 7);
    own->entries[5].flops += 1;
    assert_ok(pl_plan_diff(&differences, &whole, &plan, 0, &count));
    assert_int_equal(count, 1);
    assert_non_null(strstr(pl_text_string(&differences), "rank 7"));
    pl_text_free(&differences);
    pl_plan_free(&plan);
    pl_plan_free(&whole);
}

static void ranks_outside_are_refused(void **state)
{
    (void)state;
    pl_plan plan = build(&copied, false);
    size_t sections = plan.section_count;
    assert_fails(PL_BAD_INPUT, pl_plan_split_rank(&plan, 16), "rank 16", "0 to 15");
    assert_fails(PL_BAD_INPUT, pl_plan_split_rank(&plan, -1), "rank -1", "0 to 15");
    assert_int_equal(plan.section_count, sections);
    pl_plan_free(&plan);
}

/* --- refusals --- */

static pl_status try_build(const pl_plan_request *request)
{
    pl_plan plan;
    pl_status status = pl_plan_build(&plan, request);
    if (status == PL_OK) pl_plan_free(&plan);
    return status;
}

/* A request for the model "moe" or "dense", to be made wrong. */
typedef struct requested {
    pl_model model;
    plan_case c;
    pl_plan_request request;
} requested;

static void make_request(requested *r, const char *model, const char *layout)
{
    r->c = (plan_case){.name = "wrong", .model = model, .layout = layout};
    assert_ok(plan_case_model(&r->model, model));
    assert_ok(plan_case_request(&r->request, &r->c, &r->model));
}

static void layouts_that_cannot_be_planned_are_refused(void **state)
{
    requested r;
    (void)state;
    make_request(&r, "moe", "decoupled:world=8,pp=2,ep=2");
    assert_fails(PL_UNSUPPORTED, try_build(&r.request), "pp=2", "pp=1", "decoupled:world=8");
    pl_model_free(&r.model);
    make_request(&r, "moe", "folded:world=8,cp=2,ep=2");
    assert_fails(PL_UNSUPPORTED, try_build(&r.request), "cp=2", "cp=1", "folded:world=8");
    pl_model_free(&r.model);
    make_request(&r, "moe", "decoupled:world=6,ep=6");
    assert_fails(PL_BAD_INPUT, try_build(&r.request), "ep=6", "8 experts", "ep=2 would fit");
    pl_model_free(&r.model);
    make_request(&r, "dense", "legacy:world=4,ep=2");
    assert_fails(PL_BAD_INPUT, try_build(&r.request), "ep=2", "dense", "ep=1 would fit");
    pl_model_free(&r.model);
}

static void shapes_out_of_range_are_refused(void **state)
{
    static const struct {
        pl_shape shape;
        const char *words;
    } cases[] = {
        {{0, 1, 1, 1}, "sequence=0"},
        {{INT64_C(1) << 31, 1, 1, 1}, "sequence=2147483648"},
        {{-8, 1, 1, 1}, "sequence=-8"},
        {{8, 0, 1, 1}, "micro_batch=0"},
        {{8, (1 << 20) + 1, 1, 1}, "micro_batch=1048577"},
        {{8, 1, 0, 1}, "intra_layer=0"},
        {{8, 1, 4097, 1}, "intra_layer=4097"},
        {{8, 1, 1, 0}, "rounds=0"},
        {{8, 1, 1, (1 << 20) + 1}, "rounds=1048577"},
    };
    requested r;
    (void)state;
    make_request(&r, "moe", "decoupled:world=4,ep=2");
    assert_ok(try_build(&r.request));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        r.request.settings.shape = cases[i].shape;
        r.request.programs = i % 2 ? 0 : PL_PROGRAMS_EVALUATE;
        assert_fails(PL_BAD_INPUT, try_build(&r.request), cases[i].words, "allowed");
    }
    /* each number is allowed, but not all of them together */
    r.request.programs = 0;
    r.request.settings.shape = (pl_shape){8, 1, 1024, 1 << 20};
    assert_fails(PL_BAD_INPUT, try_build(&r.request), "1048576 rounds of 1024", "would fit");
    pl_model_free(&r.model);
}

static void precisions_out_of_range_are_refused(void **state)
{
    static const struct {
        pl_precision precision;
        const char *words, *more;
    } cases[] = {
        {{PL_I32, PL_FP32, PL_FP32, PL_FP32}, "compute=i32", "bf16, fp16 and fp32"},
        {{PL_BF16, PL_FP64, PL_FP32, PL_FP32}, "gather=fp64", "bf16, fp16 and fp32"},
        {{PL_BF16, PL_BF16, PL_U8, PL_FP32}, "gradient=u8", "bf16, fp16 and fp32"},
        {{PL_BF16, PL_BF16, PL_FP32, PL_BF16}, "master=bf16", "masters are fp32"},
    };
    requested r;
    (void)state;
    make_request(&r, "moe", "decoupled:world=4,ep=2");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        r.request.settings.precision = cases[i].precision;
        assert_fails(PL_BAD_INPUT, try_build(&r.request), cases[i].words, cases[i].more);
    }
    pl_model_free(&r.model);
}

static void patterns_that_leave_nothing_are_refused(void **state)
{
    const char *all = "*", *unknown = "q_nrom", *experts = "*experts*";
    requested r;
    (void)state;
    make_request(&r, "moe", "decoupled:world=4,ep=2");
    r.request.frozen = &all;
    r.request.frozen_count = 1;
    assert_fails(PL_BAD_INPUT, try_build(&r.request), "every tensor of moe is frozen");
    r.request.frozen = &unknown;
    assert_fails(PL_BAD_INPUT, try_build(&r.request), "q_nrom", "q_norm");
    r.request.frozen_count = 0;
    r.request.keep_fp32 = &experts;
    r.request.keep_fp32_count = 1;
    assert_fails(PL_BAD_INPUT, try_build(&r.request), "*experts*", "expert");
    pl_model_free(&r.model);
}

static void sizes_that_overflow_are_refused(void **state)
{
    /* Each product fits, their sum does not: 3.9e18 for projections, 7.6e18 for scores. */
    static const char wide[] =
        "{\"model_type\": \"llama\", \"num_hidden_layers\": 1, \"hidden_size\": 350000, "
        "\"num_attention_heads\": 1, \"num_key_value_heads\": 1, \"head_dim\": 1048576, "
        "\"intermediate_size\": 8, \"vocab_size\": 8, \"max_position_embeddings\": 64, "
        "\"torch_dtype\": \"float32\"}";
    static const pl_shape shapes[] = {
        {INT32_MAX, 1 << 20, 1, 1}, {INT32_MAX, 1 << 20, 8, 8}, {INT32_MAX, 1 << 12, 1, 1}};
    requested r;
    pl_model model;
    (void)state;
    make_request(&r, "moe", "decoupled:world=4,ep=2");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i) {
        r.request.settings.shape = shapes[i];
        r.request.programs = i % 2 ? PL_PROGRAMS_STEP : PL_PROGRAMS_EVALUATE;
        assert_fails(PL_BAD_INPUT, try_build(&r.request), "does not fit 63 bits");
    }
    assert_ok(pl_model_parse(&model, wide, "test", "wide"));
    r.request.model = &model;
    assert_ok(pl_layout_parse(&r.request.layout, "folded:world=1"));
    r.request.settings.shape = (pl_shape){1345000, 1, 1, 1};
    assert_fails(PL_BAD_INPUT, try_build(&r.request), "does not fit 63 bits");
    r.request.settings.shape.sequence = 134500;
    assert_ok(try_build(&r.request));
    pl_model_free(&model);
    pl_model_free(&r.model);
}

/* --- failing allocations --- */

static const plan_case small = {"small", "moe-tied", "legacy:world=3", .keep_fp32 = {"q_norm"},
                                .frozen = {"k_norm"}};

typedef struct attempt {
    pl_model model;
    pl_plan_request request;
    pl_plan a, b;
    char *text;
} attempt;

static pl_status attempt_build(attempt *t)
{
    pl_plan plan;
    PL_TRY(pl_plan_build(&plan, &t->request));
    pl_plan_free(&plan);
    return PL_OK;
}

static pl_status attempt_write(attempt *t)
{
    pl_text text = {0};
    pl_plan_write(&text, &t->a, -1);
    pl_status status = pl_text_status(&text);
    pl_text_free(&text);
    return status;
}

static pl_status attempt_read(attempt *t)
{
    pl_plan plan;
    PL_TRY(pl_plan_read(&plan, t->text, "text"));
    pl_plan_free(&plan);
    return PL_OK;
}

static pl_status attempt_diff(attempt *t)
{
    pl_text text = {0};
    int64_t count = 0;
    pl_status status = pl_plan_diff(&text, &t->a, &t->b, 0, &count);
    pl_text_free(&text);
    if (status == PL_OK) assert_int_equal(count, 2); /* a lost line must not be a lost difference */
    return status;
}

/* Splits a copy of the plan; whatever happens, every rank still has its sections. */
static pl_status attempt_split(attempt *t)
{
    pl_plan plan;
    PL_TRY(pl_plan_read(&plan, t->text, "text"));
    pl_status status = pl_plan_split_rank(&plan, 1);
    for (int64_t rank = 0; rank < 3; ++rank) {
        assert_non_null(pl_plan_section(&plan, PL_PROGRAM_START, rank));
        assert_non_null(pl_plan_section(&plan, PL_PROGRAM_STEP, rank));
    }
    pl_plan_free(&plan);
    return status;
}

static void fail_each_allocation(attempt *t, pl_status (*act)(attempt *), int64_t at_least)
{
    pl_status status = PL_OK;
    int64_t n = -1;
    for (int failed = 1; failed;) {
        pl_allocation_fail_after(++n);
        status = act(t);
        failed = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        if (failed && status != PL_NO_MEMORY)
            fail_msg("allocation %" PRId64 " fails: status %s", n, pl_status_name(status));
    }
    assert_ok(status);
    assert_true(n >= at_least);
}

static void failed_allocations_are_reported(void **state)
{
    attempt t;
    (void)state;
    memset(&t, 0, sizeof t);
    assert_ok(plan_case_model(&t.model, small.model));
    assert_ok(plan_case_request(&t.request, &small, &t.model));
    t.a = build(&small, false);
    t.b = build(&small, false);
    t.b.settings.shape.rounds = 2; /* in the header alone */
    t.b.sections[0].entries[0].bytes = 12345;
    t.text = text_of(&t.a, -1);
    fail_each_allocation(&t, attempt_build, 40);
    fail_each_allocation(&t, attempt_write, 3);
    fail_each_allocation(&t, attempt_read, 40);
    fail_each_allocation(&t, attempt_diff, 5);
    fail_each_allocation(&t, attempt_split, 50);
    free(t.text);
    pl_plan_free(&t.a);
    pl_plan_free(&t.b);
    pl_model_free(&t.model);
}

/* --- bytes touched --- */

static void touched_bytes_count_each_reading_and_writing(void **state)
{
    pl_buffer buffers[] = {{.bytes = 100}, {.bytes = 8, .per_row = true}, {.bytes = 7}};
    pl_use uses[] = {{0, PL_USE_READ},
                     {1, PL_USE_READ | PL_USE_WRITE},
                     {2, PL_USE_WRITE | PL_USE_BEGIN},
                     {0, PL_USE_END}};
    pl_section section = {.buffers = buffers, .buffer_count = 3, .uses = uses, .use_count = 4};
    pl_entry entry = {.use_first = 0, .use_count = 4};
    (void)state;
    assert_int_equal(pl_entry_touched_bytes(&section, &entry, 10), 100 + 2 * 80 + 7);
    assert_int_equal(pl_entry_touched_bytes(&section, &entry, 0), 107);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_unique_under_every_policy),
        cmocka_unit_test(a_shared_name_would_be_seen),
        cmocka_unit_test(sharing_changes_no_rank),
        cmocka_unit_test(the_step_alone_leaves_the_start_out),
        cmocka_unit_test(texts_are_those_of_the_golden_files),
        cmocka_unit_test(ranks_of_a_section_hold_equally_much),
        cmocka_unit_test(classes_are_those_of_uneven_tensors),
        cmocka_unit_test(ranks_are_split_off_runs),
        cmocka_unit_test(splitting_changes_no_rank),
        cmocka_unit_test(an_edit_of_a_split_rank_stays_with_it),
        cmocka_unit_test(ranks_outside_are_refused),
        cmocka_unit_test(layouts_that_cannot_be_planned_are_refused),
        cmocka_unit_test(shapes_out_of_range_are_refused),
        cmocka_unit_test(precisions_out_of_range_are_refused),
        cmocka_unit_test(patterns_that_leave_nothing_are_refused),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(failed_allocations_are_reported),
        cmocka_unit_test(touched_bytes_count_each_reading_and_writing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
