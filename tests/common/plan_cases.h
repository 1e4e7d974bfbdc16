/* Small models and plans of them, for the suites of plans and proofs. */
#ifndef PL_TESTS_COMMON_PLAN_CASES_H
#define PL_TESTS_COMMON_PLAN_CASES_H

#include <stdio.h>
#include <string.h>

#include "common/placement.h"
#include "common/plan.h"

enum { PLAN_CASE_PATTERNS = 5, PLAN_CASE_MODELS = 6, PLAN_FORCED_CASES = 19 };

/* One way to make a plan. */
typedef struct plan_case {
    const char *name;           /* what is special about it */
    const char *model, *layout; /* a name of plan_case_model_text; a notation */
    const char *frozen[PLAN_CASE_PATTERNS], *keep_fp32[PLAN_CASE_PATTERNS]; /* NULL behind */
    pl_policy policy;
    pl_balance balance;
    bool bf16;                     /* compute, gathers and gradients' wire; else fp32 throughout */
    int64_t micro_batches, rounds; /* 0: 1 */
} plan_case;

/* Rows that few shard groups divide: 11 of the vocabulary, 5 of an expert, 6 of a norm. */
static inline const char *plan_case_model_text(const char *name)
{
#define PLAN_CASE_REST                                                                             \
    "\"hidden_size\": 6, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "                 \
    "\"head_dim\": 4, \"intermediate_size\": 7, \"vocab_size\": 11, "                              \
    "\"max_position_embeddings\": 64, \"torch_dtype\": \"float32\"}"
#define PLAN_CASE_EXPERTS                                                                          \
    "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 5, "               \
    "\"router_aux_loss_coef\": 0.01, "
    static const struct {
        const char *name, *text;
    } models[PLAN_CASE_MODELS] = {
        {"moe", "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 2, " PLAN_CASE_EXPERTS
                    PLAN_CASE_REST},
        {"moe-tied", "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 2, "
                     "\"tie_word_embeddings\": true, " PLAN_CASE_EXPERTS PLAN_CASE_REST},
        {"mixed", "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 3, "
                  "\"mlp_only_layers\": [0], " PLAN_CASE_EXPERTS PLAN_CASE_REST},
        {"mixed-last", "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 3, "
                       "\"mlp_only_layers\": [0, 2], " PLAN_CASE_EXPERTS PLAN_CASE_REST},
        {"dense", "{\"model_type\": \"qwen3\", \"num_hidden_layers\": 2, " PLAN_CASE_REST},
        {"dense-tied", "{\"model_type\": \"qwen3\", \"num_hidden_layers\": 2, "
                       "\"tie_word_embeddings\": true, " PLAN_CASE_REST},
    };
#undef PLAN_CASE_REST
#undef PLAN_CASE_EXPERTS
    for (int i = 0; i < PLAN_CASE_MODELS; ++i)
        if (strcmp(models[i].name, name) == 0) return models[i].text;
    return "no such model";
}

static inline pl_status plan_case_model(pl_model *out, const char *name)
{
    return pl_model_parse(out, plan_case_model_text(name), name, name);
}

static inline int plan_case_count(const char *const *patterns)
{
    int count = 0;
    while (count < PLAN_CASE_PATTERNS && patterns[count]) ++count;
    return count;
}

/* Sequences of 8 tokens, 1 a micro-batch. */
static inline pl_settings plan_case_settings(const plan_case *c)
{
    pl_settings settings = pl_settings_default();
    settings.policy = c->policy;
    settings.balance = c->balance;
    settings.balance_coefficient = c->balance == PL_BALANCE_NONE ? 0 : 0.01;
    pl_dtype narrow = c->bf16 ? PL_BF16 : PL_FP32;
    settings.precision = (pl_precision){narrow, narrow, narrow, PL_FP32};
    settings.shape =
        (pl_shape){8, 1, c->micro_batches ? c->micro_batches : 1, c->rounds ? c->rounds : 1};
    return settings;
}

/* Every program that the shape of SETTINGS allows. */
static inline uint32_t plan_case_programs(const pl_settings *settings)
{
    const pl_shape *shape = &settings->shape;
    uint32_t all = (1u << PL_PROGRAM_COUNT) - 1;
    bool one = shape->micro_batch == 1 && shape->intra_layer == 1 && shape->rounds == 1;
    return one ? all : all & ~(uint32_t)PL_PROGRAMS_GENERATE;
}

/* The request of C with MODEL, which it borrows like the patterns of C. */
static inline pl_status plan_case_request(pl_plan_request *out, const plan_case *c,
                                          const pl_model *model)
{
    pl_plan_request request = {.model = model, .settings = plan_case_settings(c)};
    PL_TRY(pl_layout_parse(&request.layout, c->layout));
    request.programs = plan_case_programs(&request.settings);
    request.frozen = c->frozen;
    request.frozen_count = plan_case_count(c->frozen);
    request.keep_fp32 = c->keep_fp32;
    request.keep_fp32_count = plan_case_count(c->keep_fp32);
    *out = request;
    return PL_OK;
}

/* The plan of C; SEPARATE gives each rank sections of its own. */
static inline pl_status plan_case_build(pl_plan *out, const plan_case *c, bool separate)
{
    pl_model model;
    pl_plan_request request;
    PL_TRY(plan_case_model(&model, c->model));
    pl_status status = plan_case_request(&request, c, &model);
    request.separate_ranks = separate;
    if (status == PL_OK) status = pl_plan_build(out, &request);
    pl_model_free(&model);
    return status;
}

/* The section of RANK in PROGRAM, to be changed; NULL when there is none. */
static inline pl_section *plan_case_section(pl_plan *plan, pl_program program, int64_t rank)
{
    for (size_t i = 0; i < plan->section_count; ++i)
        if (plan->sections[i].program == program && pl_section_has_rank(&plan->sections[i], rank))
            return &plan->sections[i];
    return NULL;
}

/* Cases that force each turn of the emitters: what trains, what is held whole, who shares. */
static inline const plan_case *plan_forced_cases(void)
{
    static const plan_case cases[PLAN_FORCED_CASES] = {
        {"frozen embedding", "moe", "decoupled:world=4,ep=2", .frozen = {"*embed_tokens*"},
         .rounds = 2},
        {"frozen embedding, tied", "moe-tied", "decoupled:world=4,ep=2",
         .frozen = {"*embed_tokens*"}},
        {"frozen lowest layer", "mixed", "legacy:world=4,ep=2",
         .frozen = {"*embed_tokens*", "model.layers.0.*"}, .micro_batches = 2},
        {"frozen lower layers", "mixed", "folded:world=4,ep=4",
         .frozen = {"*embed_tokens*", "model.layers.0.*", "model.layers.1.*"}, .bf16 = true},
        {"only the head trains", "mixed", "decoupled:world=4,ep=2",
         .frozen = {"*embed_tokens*", "model.layers.*", "model.norm.weight"}},
        {"all experts frozen", "moe", "decoupled:world=8,ep=4", .frozen = {"*experts*"},
         .policy = {.recompute = PL_RECOMPUTE_FULL}, .bf16 = true},
        {"all but experts frozen", "moe", "decoupled:world=8,ep=4",
         .frozen = {"*embed_tokens*", "*norm*", "*self_attn*", "*mlp.gate.*", "lm_head*"},
         .micro_batches = 2},
        {"all but experts frozen, all-gather", "moe", "legacy:world=4,ep=2",
         .frozen = {"*embed_tokens*", "*norm*", "*self_attn*", "*mlp.gate.*", "lm_head*"},
         .policy = {.dispatch = PL_DISPATCH_ALL_GATHER, .recompute = PL_RECOMPUTE_FULL}},
        {"only norms train", "moe", "folded:world=4,ep=2",
         .frozen = {"*embed_tokens*", "*self_attn.?_proj*", "*mlp*", "lm_head*"}, .bf16 = true},
        {"router held whole", "moe", "decoupled:world=4,ep=2", .keep_fp32 = {"*mlp.gate.*"},
         .balance = PL_BALANCE_MICRO_STEP, .rounds = 2},
        {"q_norm held whole, frozen too", "moe", "legacy:world=4,ep=2", .frozen = {"q_norm"},
         .keep_fp32 = {"q_norm", "k_norm"}, .bf16 = true},
        {"tied head, never", "moe-tied", "legacy:world=4,ep=2",
         .policy = {.reshard = PL_RESHARD_NEVER}, .micro_batches = 2, .rounds = 2},
        {"tied head, after forward", "moe-tied", "decoupled:world=4,ep=2",
         .policy = {.reshard = PL_RESHARD_AFTER_FORWARD}, .micro_batches = 2, .rounds = 2},
        {"tied head, per call", "moe-tied", "folded:world=4,ep=2",
         .policy = {.reshard = PL_RESHARD_PER_CALL}, .micro_batches = 2, .rounds = 2},
        {"one owner", "moe", "single:world=4", .balance = PL_BALANCE_GLOBAL_BATCH, .rounds = 2},
        {"one owner, all-gather, one rank", "moe", "decoupled:world=1",
         .policy = {.dispatch = PL_DISPATCH_ALL_GATHER}, .bf16 = true},
        {"no experts", "dense", "legacy:world=4,replicas=2", .micro_batches = 2, .bf16 = true},
        {"experts in the middle layer", "mixed-last", "decoupled:world=8,ep=4,replicas=2",
         .policy = {.prefetch = PL_PREFETCH_NEXT_UNIT}, .balance = PL_BALANCE_SEQUENCE},
        {"experts above a dense layer", "mixed", "single:world=4,ep=4",
         .policy = {.accumulate = PL_ACCUMULATE_UNSHARDED, .recompute = PL_RECOMPUTE_FULL},
         .rounds = 3},
    };
    return cases;
}

/* --- random cases --- */

/* A number below BELOW > 0; *STATE goes on. */
static inline int plan_case_draw(uint64_t *state, int below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (int)((*state >> 33) % (uint64_t)below);
}

/* False when the numbers drawn make no layout, or one that cannot hold the model. */
static inline bool plan_case_draw_layout(char *notation, uint64_t *state, const char *model_name)
{
    static const int worlds[] = {1, 2, 3, 4, 6, 8, 12, 16};
    pl_layout_kind kind = (pl_layout_kind)plan_case_draw(state, PL_LAYOUT_KIND_COUNT);
    int world = worlds[plan_case_draw(state, 8)], ep = 1 << plan_case_draw(state, 4);
    int replicas = 1 + plan_case_draw(state, 2);
    pl_grain grain = (pl_grain)plan_case_draw(state, PL_GRAIN_COUNT);
    pl_layout layout;
    pl_model model;
    if (pl_layout_make(&layout, kind, world, 1, 1, ep, replicas, grain) != PL_OK) return false;
    if (plan_case_model(&model, model_name) != PL_OK) return false;
    bool fits = pl_placement_check(&layout, &model) == PL_OK;
    pl_model_free(&model);
    pl_layout_format(&layout, notation);
    return fits;
}

/* A random case; NOTATION of PL_LAYOUT_TEXT bytes lends its layout room. */
static inline plan_case plan_case_random(uint64_t *state, char *notation)
{
    static const char *const models[] = {"moe",        "moe-tied", "mixed",
                                         "mixed-last", "dense",    "dense-tied"};
    static const char *const patterns[] = {"*embed_tokens*",    "*layernorm*",      "*self_attn*",
                                           "model.norm.weight", "model.layers.0.*", "k_norm"};
    plan_case c = {.name = "random", .layout = notation};
    do c.model = models[plan_case_draw(state, PLAN_CASE_MODELS)];
    while (!plan_case_draw_layout(notation, state, c.model));
    if (plan_case_draw(state, 2)) c.frozen[0] = patterns[plan_case_draw(state, 6)];
    /* routed experts of layer 0 cannot be held whole */
    static const int whole[] = {0, 1, 2, 3, 5};
    if (plan_case_draw(state, 2)) c.keep_fp32[0] = patterns[whole[plan_case_draw(state, 5)]];
    c.policy.reshard = (pl_reshard)plan_case_draw(state, PL_RESHARD_COUNT);
    c.policy.prefetch = (pl_prefetch)plan_case_draw(state, PL_PREFETCH_COUNT);
    c.policy.recompute = (pl_recompute)plan_case_draw(state, PL_RECOMPUTE_COUNT);
    c.policy.accumulate = (pl_accumulate)plan_case_draw(state, PL_ACCUMULATE_COUNT);
    c.policy.dispatch = (pl_dispatch)plan_case_draw(state, PL_DISPATCH_COUNT);
    c.policy.routing = (pl_routing)plan_case_draw(state, PL_ROUTING_COUNT);
    c.balance = (pl_balance)plan_case_draw(state, PL_BALANCE_COUNT);
    c.bf16 = plan_case_draw(state, 2);
    c.micro_batches = 1 + plan_case_draw(state, 3);
    c.rounds = 1 + plan_case_draw(state, 3);
    return c;
}

#endif
