/* Collectives of a step, counted by walking the plan, against closed forms. */
#include <inttypes.h>
#include <stdio.h>

#include "common/memory.h"
#include "sim/proof.h"
#include "tests/common/plan_cases.h"
#include "tests/test.h"

/* --- closed forms --- */

/* What the forms speak of: L layers, X of them with routed experts, M micro-batches together, A
 * rounds. */
typedef struct form {
    int64_t L, X, M, A;
    bool legacy, tied, last_is_moe;
    bool dense_sharded, experts_sharded; /* shard groups of more than one rank */
    pl_reshard reshard;
    pl_accumulate accumulate;
} form;

/* Units that move bytes: a layer, under legacy with its experts; experts elsewhere; embedding and
 * norm; a head of its own. */
static int64_t expert_units(const form *f) { return f->legacy || !f->experts_sharded ? 0 : f->X; }

static int64_t layer_units(const form *f) { return f->dense_sharded ? f->L : 0; }

/* After forward: every unit once in forward; in backward all but embedding and head, which have
 * nothing to gather, and the last layer with its experts, which stay. Per call: all of these for
 * each micro-batch, and nothing stays; a tied head calls the embedding once more. */
static int64_t gathers_of_round(const form *f)
{
    int64_t layers = layer_units(f), experts = expert_units(f);
    int64_t dense = f->dense_sharded ? (f->tied ? 1 : 2) : 0; /* embedding, head */
    int64_t norm = f->dense_sharded ? 2 : 0;
    int64_t kept = (layers > 0) + (experts > 0 && f->last_is_moe);
    if (f->reshard == PL_RESHARD_PER_CALL)
        return f->M * (2 * layers + 2 * experts + norm + dense + (f->tied && f->dense_sharded));
    return 2 * layers + 2 * experts - kept + norm + dense;
}

static int64_t units(const form *f)
{
    int64_t ends = f->dense_sharded ? (f->tied ? 2 : 3) : 0; /* embedding, norm, head */
    return layer_units(f) + expert_units(f) + ends;
}

static int64_t gathers(const form *f)
{
    return f->reshard == PL_RESHARD_NEVER ? units(f) : f->A * gathers_of_round(f);
}

static int64_t reduces(const form *f)
{
    return units(f) * (f->accumulate == PL_ACCUMULATE_UNSHARDED ? 1 : f->A);
}

/* --- plans of real models --- */

typedef struct counted {
    pl_plan plan;
    pl_counts counts;
} counted;

static counted count_model(const char *name, const char *notation, pl_policy policy, int64_t m,
                           int64_t a)
{
    counted c;
    pl_model model;
    pl_plan_request request = {.model = &model, .settings = pl_settings_default()};
    memset(&c.counts, -1, sizeof c.counts);
    assert_ok(pl_model_open(&model, name));
    assert_ok(pl_layout_parse(&request.layout, notation));
    request.settings.policy = policy;
    request.settings.shape.intra_layer = m;
    request.settings.shape.rounds = a;
    request.programs = PL_PROGRAMS_STEP;
    assert_ok(pl_plan_build(&c.plan, &request));
    pl_count_section(&c.counts, &c.plan, pl_plan_section(&c.plan, PL_PROGRAM_STEP, 0));
    pl_model_free(&model);
    return c;
}

static void expect_totals(const char *name, const char *notation, pl_policy policy, int64_t m,
                          int64_t all_gathers, int64_t reductions)
{
    counted c = count_model(name, notation, policy, m, 1);
    if (c.counts.gathers != all_gathers || c.counts.reduces != reductions)
        fail_msg("%s, %s: %" PRId64 " gathers and %" PRId64 " reductions", name, notation,
                 c.counts.gathers, c.counts.reduces);
    assert_int_equal(c.counts.unused_gathers, 0);
    pl_plan_free(&c.plan);
}

static void qwen3_30b_gathers_as_published_forms_say(void **state)
{
    static const pl_policy after = {.reshard = PL_RESHARD_AFTER_FORWARD};
    static const pl_policy never = {.reshard = PL_RESHARD_NEVER};
    static const pl_policy per_call = {.reshard = PL_RESHARD_PER_CALL};
    static const pl_policy recompute = {.recompute = PL_RECOMPUTE_FULL};
    static const pl_policy ahead = {.prefetch = PL_PREFETCH_NEXT_UNIT};
    static const char model[] = "qwen3-30b-a3b"; /* L = X = 48 */
    (void)state;
    /* 2L + 2X + 2, whatever M; L + X + 3 reductions */
    expect_totals(model, "decoupled:world=8,ep=4", after, 4, 194, 99);
    expect_totals(model, "decoupled:world=8,ep=4", after, 1, 194, 99);
    expect_totals(model, "decoupled:world=8,ep=4", recompute, 4, 194, 99);
    expect_totals(model, "decoupled:world=8,ep=4", ahead, 4, 194, 99);
    expect_totals(model, "folded:world=16,ep=4,replicas=2", recompute, 2, 194, 99);
    /* 2L + 3 and L + 3 where layers bring their experts along */
    expect_totals(model, "legacy:world=8,ep=4", after, 4, 99, 51);
    expect_totals(model, "legacy:world=8,ep=4", recompute, 4, 99, 51);
    expect_totals(model, "decoupled:world=8,ep=4", never, 4, 99, 99);
    expect_totals(model, "legacy:world=8,ep=4", never, 4, 51, 51);
    /* M (2L + 2X + 4), M (2L + 4) */
    expect_totals(model, "decoupled:world=8,ep=4", per_call, 4, 784, 99);
    expect_totals(model, "legacy:world=8,ep=4", per_call, 4, 400, 51);
    /* one rank, and experts that are not sharded */
    expect_totals(model, "single:world=1", after, 4, 0, 0);
    expect_totals(model, "folded:world=8,ep=8", after, 4, 99, 51);
    expect_totals("qwen3-8b", "decoupled:world=8", after, 2, 2 * 36 + 3, 36 + 3);
}

static void gathers_are_counted_by_unit_and_pass(void **state)
{
    (void)state;
    counted c = count_model("qwen3-30b-a3b", "decoupled:world=8,ep=4", (pl_policy){0}, 4, 3);
    const pl_unit_count *by = c.counts.by_part;
    static const int64_t forward[5] = {1, 48, 48, 1, 1}, backward[5] = {0, 47, 47, 1, 0};
    int64_t total = 0;
    for (int i = 0; i < 5; ++i) {
        assert_int_equal(by[i].forward, 3 * forward[i]);
        assert_int_equal(by[i].backward, 3 * backward[i]);
        assert_int_equal(by[i].unused, 0);
        total += by[i].forward + by[i].backward;
    }
    assert_int_equal(total, c.counts.gathers);
    pl_plan_free(&c.plan);
}

/* --- many forms --- */

/* A model of L layers, those in DENSE (a JSON list) without experts. */
static void make_model(pl_model *out, int64_t layers, const char *dense, bool tied)
{
    char text[600];
    snprintf(text, sizeof text,
             "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": %" PRId64 ", "
             "\"mlp_only_layers\": %s, \"tie_word_embeddings\": %s, \"hidden_size\": 8, "
             "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 4, "
             "\"intermediate_size\": 16, \"moe_intermediate_size\": 8, \"num_experts\": 8, "
             "\"num_experts_per_tok\": 2, \"router_aux_loss_coef\": 0.01, \"vocab_size\": 16, "
             "\"max_position_embeddings\": 64, \"torch_dtype\": \"float32\"}",
             layers, dense, tied ? "true" : "false");
    assert_ok(pl_model_parse(out, text, "test", "test"));
}

static pl_plan build_form(const form *f, const pl_model *model, const char *notation,
                          pl_dispatch dispatch, pl_recompute recompute)
{
    pl_plan plan;
    pl_plan_request request = {.model = model, .settings = pl_settings_default()};
    assert_ok(pl_layout_parse(&request.layout, notation));
    request.settings.policy.reshard = f->reshard;
    request.settings.policy.accumulate = f->accumulate;
    request.settings.policy.dispatch = dispatch;
    request.settings.policy.recompute = recompute;
    request.settings.shape = (pl_shape){8, 2, f->M, f->A};
    request.programs = PL_PROGRAMS_STEP;
    assert_ok(pl_plan_build(&plan, &request));
    return plan;
}

static const struct {
    int64_t layers, moe;
    const char *dense;
    bool last_is_moe;
} stacks[] = {{1, 1, "[]", true},
              {3, 3, "[]", true},
              {4, 3, "[0]", true},
              {4, 3, "[3]", false},
              {5, 2, "[0, 2, 4]", false}};

static const struct {
    const char *notation;
    bool dense_sharded, experts_sharded;
} where[] = {
    {"single:world=8,ep=4", true, true},     {"legacy:world=8,ep=4", true, true},
    {"legacy:world=4,ep=4", false, false},   {"decoupled:world=8,ep=2,replicas=2", true, true},
    {"decoupled:world=4,ep=4", true, false}, {"folded:world=8,replicas=8", false, false}};

static void closed_forms_hold(void **state)
{
    int64_t compared = 0;
    (void)state;
    for (int number = 0; number < 5 * 6 * 3 * 16; ++number) {
        int s = number % 5, w = number / 5 % 6, policy = number / 30 % 3, rest = number / 90;
        form f = {.L = stacks[s].layers, .X = stacks[s].moe, .last_is_moe = stacks[s].last_is_moe};
        pl_counts counts;
        pl_model model;
        f.M = 1 + rest / 4 % 2 * 2;
        f.A = 1 + rest / 8 % 2;
        f.tied = rest % 2;
        f.accumulate = (pl_accumulate)(rest / 2 % 2);
        f.reshard = (pl_reshard)policy;
        f.legacy = strncmp(where[w].notation, "legacy", 6) == 0;
        f.dense_sharded = where[w].dense_sharded;
        f.experts_sharded = where[w].experts_sharded;
        make_model(&model, f.L, stacks[s].dense, f.tied);
        pl_plan plan = build_form(&f, &model, where[w].notation, PL_DISPATCH_ALL_TO_ALL,
                                  (pl_recompute)((rest / 2 + w) % 2));
        pl_count_section(&counts, &plan, &plan.sections[0]);
        if (counts.gathers != gathers(&f) || counts.reduces != reduces(&f) ||
            counts.unused_gathers != 0)
            fail_msg("L=%" PRId64 " X=%" PRId64 " M=%" PRId64 " A=%" PRId64 " %s %s: %" PRId64
                     " gathers, must be %" PRId64 "; %" PRId64 " reductions, must be %" PRId64,
                     f.L, f.X, f.M, f.A, where[w].notation, pl_reshard_names(&(int){0})[policy],
                     counts.gathers, gathers(&f), counts.reduces, reduces(&f));
        ++compared;
        pl_plan_free(&plan);
        pl_model_free(&model);
    }
    assert_true(compared > 1000);
}

/* --- exchanges and bytes --- */

static pl_counts count_form(const char *notation, pl_dispatch dispatch, pl_recompute recompute)
{
    form f = {.M = 3, .A = 2};
    pl_counts counts;
    pl_model model;
    make_model(&model, 4, "[0]", false);
    pl_plan plan = build_form(&f, &model, notation, dispatch, recompute);
    pl_count_section(&counts, &plan, &plan.sections[0]);
    pl_plan_free(&plan);
    pl_model_free(&model);
    return counts;
}

/* X = 3, M = 3, A = 2: 18 times through experts; 16 tokens, two experts each; 16 bytes a row. */
static void exchanges_are_counted_with_their_bytes(void **state)
{
    static const int64_t times = 18, tokens = 16, row = 16, ep = 4;
    (void)state;
    /* there and back, twice; the counts of 8 experts, a quarter of them one's own */
    pl_counts counts = count_form("decoupled:world=8,ep=4", PL_DISPATCH_ALL_TO_ALL, 0);
    int64_t exchange = tokens * 2 * row * (ep - 1) / ep, numbers = INT64_C(64) * (ep - 1) / ep;
    assert_int_equal(counts.exchanges, times * 5);
    assert_int_equal(counts.exchange_bytes, times * (4 * exchange + numbers));
    /* recomputing all but the last layer sends there and back once more */
    counts = count_form("decoupled:world=8,ep=4", PL_DISPATCH_ALL_TO_ALL, PL_RECOMPUTE_FULL);
    assert_int_equal(counts.exchanges, times * 5 + times * 2 / 3 * 2);
    assert_int_equal(counts.exchange_bytes,
                     times * (4 * exchange + numbers) + times * 2 / 3 * 2 * exchange);
    /* every token to all others; routes of 8 bytes, their gradients of 4, for two experts each */
    counts = count_form("legacy:world=8,ep=4", PL_DISPATCH_ALL_GATHER, 0);
    exchange = tokens * row * (ep - 1);
    numbers = tokens * 2 * (8 + 4) * (ep - 1);
    assert_int_equal(counts.exchanges, times * 6);
    assert_int_equal(counts.exchange_bytes, times * (4 * exchange + numbers));
    counts = count_form("decoupled:world=8", PL_DISPATCH_ALL_TO_ALL, PL_RECOMPUTE_FULL);
    assert_int_equal(counts.exchanges, 0);
    assert_int_equal(counts.exchange_bytes, 0);
}

static void bytes_of_gathers_are_those_of_the_model(void **state)
{
    (void)state;
    /* All of it in bf16 once in forward; in backward all but the last layer, embedding and head;
     * every size divides by eight. Gradients are reduced in fp32. */
    counted c = count_model("qwen3-30b-a3b", "decoupled:world=8,ep=1", (pl_policy){0}, 1, 1);
    pl_parameter_counts p = pl_model_count(&c.plan.model);
    int64_t ends = p.by_role[PL_TENSOR_EMBEDDING] + p.by_role[PL_TENSOR_HEAD];
    int64_t layer = (p.total - ends - 2048) / 48;
    assert_int_equal(c.counts.gather_bytes, 2 * (p.total + (p.total - ends - layer)));
    assert_int_equal(c.counts.reduce_bytes, 4 * p.total);
    assert_int_equal(c.counts.others, 1); /* control */
    pl_plan_free(&c.plan);
}

/* T, the loss, two sums of squares; per round the load-balance counts; once the dense copies. */
static void all_reduces_are_counted(void **state)
{
    static const struct {
        const char *layout;
        int64_t once;
    } cases[] = {{"legacy:world=8,ep=4", 5},
                 {"decoupled:world=8,ep=4", 4},
                 {"decoupled:world=8,ep=2,replicas=2", 6},
                 {"folded:world=8,replicas=8", 4},
                 {"single:world=1", 0}};
    (void)state;
    for (size_t i = 0; i < 2 * (sizeof cases / sizeof *cases); ++i) {
        int64_t once = cases[i / 2].once, balances = once && i % 2 ? 3 : 0;
        plan_case c = {.name = "sums", .model = "moe", .layout = cases[i / 2].layout, .rounds = 3};
        pl_plan plan = {0};
        pl_counts counts;
        c.balance = i % 2 ? PL_BALANCE_MICRO_STEP : PL_BALANCE_NONE;
        assert_ok(plan_case_build(&plan, &c, false));
        pl_count_section(&counts, &plan, pl_plan_section(&plan, PL_PROGRAM_STEP, 0));
        assert_int_equal(counts.all_reduces, once + balances);
        pl_plan_free(&plan);
    }
}

/* --- unused gathers --- */

/* The backward of layer 0's modules no longer reads what was gathered for it. */
static void forget_reads(pl_section *section)
{
    for (size_t i = 0; i < section->entry_count; ++i) {
        pl_entry *entry = &section->entries[i];
        bool module =
            entry->name.operation == PL_OP_ROUTE || entry->name.operation == PL_OP_ATTENTION;
        if (!module || entry->name.layer != 0 || entry->name.pass != PL_PASS_BACKWARD) continue;
        for (uint32_t u = 0; u < entry->use_count; ++u) {
            pl_use *use = &section->uses[entry->use_first + u];
            if (section->buffers[use->buffer].kind == PL_BUF_FULL) use->flags = 0;
        }
    }
}

static void expect_one_unused(const pl_plan *plan, pl_section *section)
{
    pl_counts before, after;
    pl_count_section(&before, plan, section);
    assert_int_equal(before.unused_gathers, 0);
    forget_reads(section);
    pl_count_section(&after, plan, section);
    assert_int_equal(after.gathers, before.gathers);
    assert_int_equal(after.unused_gathers, 1);
    assert_int_equal(after.by_part[PL_SUBJECT_LAYER].unused, 1);
}

static void unused_gathers_are_counted(void **state)
{
    plan_case c = {.name = "unused", .model = "moe", .layout = "decoupled:world=4,ep=2"};
    pl_plan plan = {0};
    (void)state;
    assert_ok(plan_case_build(&plan, &c, false));
    assert_ok(pl_plan_split_rank(&plan, 0));
    expect_one_unused(&plan, plan_case_section(&plan, PL_PROGRAM_STEP, 0));
    pl_plan_free(&plan);
    c.bf16 = true;
    c.frozen[0] = "q_norm"; /* stored as fp32: layers are cast after gathers */
    assert_ok(plan_case_build(&plan, &c, false));
    assert_ok(pl_plan_split_rank(&plan, 0));
    expect_one_unused(&plan, plan_case_section(&plan, PL_PROGRAM_STEP, 0));
    pl_plan_free(&plan);
}

static void a_planted_gather_is_unused(void **state)
{
    static const plan_case c = {.name = "planted", .model = "moe", .layout = "legacy:world=1"};
    static const char lines[] =
        "buffer full.head gathered fp32 264\n"
        "entry 9000 gather head round=0 pass=b stream=communication group=dense-shard bytes=264 "
        "wire=fp32 reads=param.head begins=full.head\n"
        "entry 9001 reshard head round=0 pass=b stream=compute waits=9000 ends=full.head\n";
    pl_plan plan;
    pl_counts counts;
    pl_text text = {0}, planted = {0};
    (void)state;
    assert_ok(plan_case_build(&plan, &c, false));
    pl_count_section(&counts, &plan, pl_plan_section(&plan, PL_PROGRAM_STEP, 0));
    assert_int_equal(counts.gathers, 0);
    pl_plan_write(&text, &plan, -1);
    pl_plan_free(&plan);
    assert_ok(pl_text_status(&text));
    const char *at = strstr(strstr(text.bytes, "section step"), " scale gradients ");
    while (at[-1] != '\n') --at;
    pl_text_add_bytes(&planted, text.bytes, (size_t)(at - text.bytes));
    pl_text_add_string(&planted, lines);
    pl_text_add_string(&planted, at);
    assert_ok(pl_plan_read(&plan, pl_text_string(&planted), "planted.plan"));
    pl_count_section(&counts, &plan, pl_plan_section(&plan, PL_PROGRAM_STEP, 0));
    assert_int_equal(counts.gathers, 1);
    assert_int_equal(counts.unused_gathers, 1);
    assert_int_equal(counts.by_part[PL_SUBJECT_HEAD].backward, 1);
    assert_int_equal(counts.by_part[PL_SUBJECT_HEAD].unused, 1);
    pl_plan_free(&plan);
    pl_text_free(&text);
    pl_text_free(&planted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen3_30b_gathers_as_published_forms_say),
        cmocka_unit_test(gathers_are_counted_by_unit_and_pass),
        cmocka_unit_test(closed_forms_hold),
        cmocka_unit_test(exchanges_are_counted_with_their_bytes),
        cmocka_unit_test(bytes_of_gathers_are_those_of_the_model),
        cmocka_unit_test(all_reduces_are_counted),
        cmocka_unit_test(unused_gathers_are_counted),
        cmocka_unit_test(a_planted_gather_is_unused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
