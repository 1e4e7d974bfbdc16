/* What was proved is what runs: the logs that devices and process groups write by themselves, from
 * their own arguments, equal the plan, entry for entry, on every rank (tests/train/call_watch.h
 * says what is compared). And a device or a group that skips or repeats a call is found out.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/train/call_watch.h"
#include "tests/train/small_trials.h"

enum { RANKS_MOST = 8, PATTERNS = 3 };

typedef struct calls_case {
    const char *what, *model, *layout;
    const char *frozen[PATTERNS], *keep_fp32[PATTERNS];
    pl_policy policy;
    pl_balance balance;
    pl_optimizer optimizer;
    bool narrow_wire; /* gathers and gradients in bf16 */
} calls_case;

static const calls_case cases[] = {
    {.what = "ep 4", .model = "mixed", .layout = "legacy:world=8,ep=4"},
    {.what = "replicas", .model = "mixed", .layout = "decoupled:world=8,ep=4,replicas=2"},
    {.what = "no shards of experts", .model = "mixed", .layout = "folded:world=8,ep=8"},
    {.what = "one rank", .model = "mixed", .layout = "single:world=1"},
    {.what = "whole experts",
     .model = "moe",
     .layout = "single:world=8,ep=2,grain=expert",
     .policy = {.accumulate = PL_ACCUMULATE_UNSHARDED}},
    {.what = "all-gather",
     .model = "mixed",
     .layout = "decoupled:world=8,ep=4",
     .policy = {.dispatch = PL_DISPATCH_ALL_GATHER}},
    {.what = "all-gather, one rank, SGD",
     .model = "moe-tied",
     .layout = "single:world=1",
     .policy = {.dispatch = PL_DISPATCH_ALL_GATHER},
     .optimizer = PL_OPTIMIZER_SGD},
    {.what = "recompute",
     .model = "mixed",
     .layout = "legacy:world=4,ep=2",
     .policy = {.recompute = PL_RECOMPUTE_FULL, .reshard = PL_RESHARD_PER_CALL},
     .balance = PL_BALANCE_SEQUENCE},
    {.what = "recompute, all-gather",
     .model = "mixed",
     .layout = "folded:world=4,ep=4",
     .policy = {.recompute = PL_RECOMPUTE_FULL,
                .dispatch = PL_DISPATCH_ALL_GATHER,
                .prefetch = PL_PREFETCH_NEXT_UNIT}},
    {.what = "held whole and frozen",
     .model = "mixed",
     .layout = "decoupled:world=4,ep=2",
     .keep_fp32 = {"norm", "*mlp.gate.*"},
     .frozen = {"lm_head*", "model.layers.1.mlp.experts.*"}},
    {.what = "bf16 on the wire",
     .model = "mixed",
     .layout = "decoupled:world=4,ep=2",
     .frozen = {"model.layers.2.mlp.experts.*"},
     .narrow_wire = true,
     .balance = PL_BALANCE_GLOBAL_BATCH},
    {.what = "tied, never",
     .model = "moe-tied",
     .layout = "legacy:world=4,ep=2",
     .policy = {.reshard = PL_RESHARD_NEVER, .routing = PL_ROUTING_BALANCED}},
    {.what = "dense, replicas", .model = "dense", .layout = "legacy:world=4,replicas=2"},
    {.what = "biases", .model = "biased", .layout = "single:world=2"},
};
enum { CASES = sizeof cases / sizeof *cases };

static const char biased_model[] =
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"attention_bias\": true, "
    "\"mlp_bias\": true, \"hidden_size\": 6, \"num_attention_heads\": 2, "
    "\"num_key_value_heads\": 1, \"head_dim\": 4, \"intermediate_size\": 7, \"vocab_size\": 11, "
    "\"max_position_embeddings\": 64, \"torch_dtype\": \"float32\"}";

static pl_status make_model(pl_model *out, const char *name)
{
    if (strcmp(name, "biased") == 0) return pl_model_parse(out, biased_model, name, name);
    return plan_case_model(out, name);
}

/* A run whose ranks are watched. */
typedef struct watched {
    pl_model model;
    call_facts facts;
    trial t;
    int64_t world;
    call_watch watch[RANKS_MOST];
    double_device device[RANKS_MOST];
    double_world group[RANKS_MOST];
} watched;

static pl_status before(void *context, int64_t rank, int64_t step, pl_executor *executor,
                        const pl_section *section, int64_t index)
{
    watched *w = context;
    (void)step;
    w->device[rank].rule.armed = w->group[rank].rule.armed = true;
    return call_watch_before(&w->watch[rank], executor, section, index);
}

static const pl_call_log *log_of(void *context, int64_t rank)
{
    return &((watched *)context)->watch[rank].log;
}

static pl_device *wrap_device(void *context, int64_t rank, pl_device *device)
{
    return double_device_open(&((watched *)context)->device[rank], device);
}

static pl_process_group *wrap_world(void *context, int64_t rank, pl_process_group *world)
{
    return double_world_open(&((watched *)context)->group[rank], world);
}

static void ended(void *context, int64_t rank, pl_status status, const char *words)
{
    watched *w = context;
    (void)status;
    (void)words;
    call_watch_finish(&w->watch[rank]);
}

static int pattern_count(const char *const *patterns)
{
    int count = 0;
    while (count < PATTERNS && patterns[count]) ++count;
    return count;
}

static void make_trial(watched *w, const calls_case *c)
{
    w->t = small_trial(&w->model, c->layout);
    w->t.settings.policy = c->policy;
    w->t.settings.optimizer = c->optimizer;
    if (c->balance != PL_BALANCE_NONE) w->t.settings.balance = c->balance;
    if (c->narrow_wire)
        w->t.settings.precision = (pl_precision){PL_FP32, PL_BF16, PL_BF16, PL_FP32};
    w->t.frozen = c->frozen;
    w->t.frozen_count = pattern_count(c->frozen);
    w->t.keep_fp32 = c->keep_fp32;
    w->t.keep_fp32_count = pattern_count(c->keep_fp32);
    w->t.watch = before;
    w->t.watch_start = true;
    w->t.log = log_of;
    w->t.wrap_device = wrap_device;
    w->t.wrap_world = wrap_world;
    w->t.ended = ended;
    w->t.watch_context = w->t.log_context = w->t.wrap_context = w->t.rank_context = w;
}

static watched *open_watched(const calls_case *c)
{
    watched *w = calloc(1, sizeof *w);
    assert_non_null(w);
    assert_ok(make_model(&w->model, c->model));
    make_trial(w, c);
    pl_plan_request request = {.model = &w->model,
                               .settings = w->t.settings,
                               .keep_fp32 = w->t.keep_fp32,
                               .frozen = w->t.frozen,
                               .keep_fp32_count = w->t.keep_fp32_count,
                               .frozen_count = w->t.frozen_count};
    assert_ok(pl_layout_parse(&request.layout, c->layout));
    assert_ok(call_facts_make(&w->facts, &request));
    w->world = request.layout.world;
    assert_true(w->world <= RANKS_MOST);
    for (int64_t r = 0; r < w->world; ++r)
        call_watch_open(&w->watch[r], &w->facts, r, &w->device[r]);
    return w;
}

static void close_watched(watched *w)
{
    for (int64_t r = 0; r < w->world; ++r) {
        call_watch_close(&w->watch[r]);
        double_world_free(&w->group[r]);
    }
    call_facts_free(&w->facts);
    pl_model_free(&w->model);
    free(w);
}

/* Both sides of an all-to-all name the same C: what a rank received is what the members of its
 * group say that they sent to it. Returns how many receptions were compared. */
static int64_t compare_bound(const watched *w)
{
    const pl_layout *layout = &w->facts.plan.layout;
    int64_t compared = 0;
    for (int64_t r = 0; r < w->world; ++r) {
        pl_rank_set owners = pl_layout_group(layout, PL_GROUP_EXPERT_OWNER, r);
        int64_t index = pl_rank_set_index(&owners, r);
        for (size_t i = 0; i < w->watch[r].bound_count; ++i, ++compared) {
            int64_t sum = 0;
            for (int64_t m = 0; m < pl_rank_set_size(&owners); ++m) {
                const call_watch *other = &w->watch[pl_rank_set_member(&owners, m)];
                assert_int_equal(other->bound_count, w->watch[r].bound_count);
                sum += other->bound[i].sent[index];
            }
            assert_int_equal(sum, w->watch[r].bound[i].received);
        }
    }
    return compared;
}

static void every_call_is_the_plans(void **state)
{
    (void)state;
    int64_t entries = 0, calls = 0, bound = 0, sections = 0;
    for (int i = 0; i < CASES; ++i) {
        watched *w = open_watched(&cases[i]);
        trial_result result = trial_run(&w->t);
        if (result.status != PL_OK) fail_msg("%s: %s", cases[i].what, result.words);
        assert_int_equal(result.disagreements, 0);
        for (int64_t r = 0; r < w->world; ++r) {
            const call_watch *watch = &w->watch[r];
            int64_t wanted = 0;
            if (watch->words[0])
                fail_msg("%s, %s: %s", cases[i].what, cases[i].layout, watch->words);
            for (int program = PL_PROGRAM_START; program <= PL_PROGRAM_STEP; ++program)
                wanted +=
                    (int64_t)pl_plan_section(&w->facts.plan, (pl_program)program, r)->entry_count *
                    (program == PL_PROGRAM_STEP ? w->t.steps : 1);
            assert_int_equal(watch->entries, wanted);
            assert_int_equal(watch->programs, 1 + w->t.steps);
            entries += watch->entries;
            calls += watch->calls;
            sections += watch->programs;
        }
        bound += compare_bound(w);
        trial_free(&result);
        close_watched(w);
    }
    assert_true(bound > 0);
    print_message("calls equal the plan: %d cases, %" PRId64 " programs of ranks, %" PRId64
                  " entries, %" PRId64 " calls, %" PRId64 " receptions\n",
                  (int)CASES, sections, entries, calls, bound);
}

/* --- what makes the comparison fail --- */

enum { FAULTY_RANK = 2, PLACES = 5 };

static const calls_case faulty_case = {.model = "mixed", .layout = "legacy:world=4,ep=2"};

/* Run with RULE: for the device of one rank, for groups on all, which must be of one mind. */
static watched *run_with(const double_rule *rule)
{
    watched *w = open_watched(&faulty_case);
    w->t.steps = 1;
    if (rule->counts == DOUBLE_GROUPS)
        for (int64_t r = 0; r < w->world; ++r) w->group[r].rule = *rule;
    else
        w->device[FAULTY_RANK].rule = *rule;
    trial_result result = trial_run(&w->t); /* may fail: numbers may make no sense any more */
    if (rule->act == DOUBLE_DO && result.status != PL_OK) fail_msg("%s", result.words);
    trial_free(&result);
    return w;
}

static const double_record *record_of(const watched *w, unsigned kind)
{
    return kind == DOUBLE_GROUPS ? &w->group[FAULTY_RANK].record : &w->device[FAULTY_RANK].record;
}

static void assert_names_the_entry(const watched *w, const double_rule *rule)
{
    const double_record *record = record_of(w, rule->counts);
    const char *words = w->watch[FAULTY_RANK].words;
    const char *what = rule->act == DOUBLE_SKIP ? "skipped" : "repeated";
    pl_text name = {0};
    assert_true(record->acted > 0);
    pl_entry_name_print(&name, &record->entry);
    assert_ok(pl_text_status(&name));
    if (!strstr(words, pl_text_string(&name)))
        fail_msg("%s was %s in %s, and the comparison says: '%s'", record->what, what,
                 pl_text_string(&name), words);
    pl_text_free(&name);
}

static void a_call_skipped_or_repeated_is_named(void **state)
{
    (void)state;
    static const unsigned kinds[] = {DOUBLE_OPERATIONS, DOUBLE_COPIES, DOUBLE_FILLS, DOUBLE_GROUPS};
    int64_t runs = 0, least = INT64_MAX;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
        double_rule rule = {.logged = true, .act = DOUBLE_DO, .counts = kinds[i]};
        watched *sound = run_with(&rule);
        int64_t calls = record_of(sound, kinds[i])->calls;
        assert_string_equal(sound->watch[FAULTY_RANK].words, "");
        close_watched(sound);
        if (calls < least) least = calls;
        for (int place = 0; place < 2 * PLACES; ++place, ++runs) {
            rule.act = place % 2 ? DOUBLE_REPEAT : DOUBLE_SKIP;
            rule.after = calls * (place / 2) / PLACES;
            rule.every = place == 3 ? 11 : 0; /* and every n-th from there */
            watched *w = run_with(&rule);
            assert_names_the_entry(w, &rule);
            close_watched(w);
        }
    }
    assert_true(least >= PLACES);
    print_message("%" PRId64 " runs with a call skipped or repeated: each found, its entry named\n",
                  runs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_is_the_plans),
        cmocka_unit_test(a_call_skipped_or_repeated_is_named),
    };
    return cmocka_run_group_tests_name("train/calls", tests, NULL, NULL);
}
