#include "tests/sim/pairs.h"

#include <string.h>

#include "common/memory.h"

/* Rows that no shard group divides (7, 5), a dense layer before, between or after others, tied and
 * untied heads, models without experts. */
#define TAIL "\"vocab_size\": 7, \"max_position_embeddings\": 64, \"torch_dtype\": \"float32\"}"
static const struct {
    const char *name, *text;
} configs[PAIRS_MODELS] = {
    {"dense-first",
     "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 3, \"mlp_only_layers\": [0], "
     "\"hidden_size\": 6, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 2, "
     "\"intermediate_size\": 5, \"moe_intermediate_size\": 5, \"num_experts\": 12, "
     "\"num_experts_per_tok\": 2, \"router_aux_loss_coef\": 0.01, " TAIL},
    {"tied", "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 2, \"hidden_size\": 5, "
             "\"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"head_dim\": 2, "
             "\"moe_intermediate_size\": 7, \"num_experts\": 8, \"num_experts_per_tok\": 3, "
             "\"router_aux_loss_coef\": 0.001, \"tie_word_embeddings\": true, " TAIL},
    {"dense", "{\"model_type\": \"qwen3\", \"num_hidden_layers\": 2, \"hidden_size\": 6, "
              "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 2, "
              "\"intermediate_size\": 7, " TAIL},
    {"dense-tied", "{\"model_type\": \"qwen3\", \"num_hidden_layers\": 3, \"hidden_size\": 5, "
                   "\"num_attention_heads\": 1, \"num_key_value_heads\": 1, \"head_dim\": 4, "
                   "\"intermediate_size\": 5, \"tie_word_embeddings\": true, " TAIL},
    {"dense-last",
     "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 2, \"mlp_only_layers\": [1], "
     "\"hidden_size\": 6, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 2, "
     "\"intermediate_size\": 7, \"moe_intermediate_size\": 5, \"num_experts\": 4, "
     "\"num_experts_per_tok\": 1, \"router_aux_loss_coef\": 0.01, " TAIL},
};

uint64_t pairs_random(uint64_t *state, uint64_t below)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

/* --- one plan --- */

pl_status pair_plan(pl_plan *out, const pair_list *list, const pair *chosen, int64_t split)
{
    pl_plan plan = {0};
    pl_plan_request request = {.model = &list->models[chosen->model], .layout = chosen->layout};
    request.settings = chosen->settings;
    request.programs = chosen->programs;
    request.keep_fp32 = &chosen->keep_fp32;
    request.keep_fp32_count = chosen->keep_fp32 != NULL;
    request.frozen = &chosen->frozen;
    request.frozen_count = chosen->frozen != NULL;
    PL_TRY(pl_plan_build(&plan, &request));
    pl_status status = split < 0 ? PL_OK : pl_plan_split_rank(&plan, split);
    if (status != PL_OK)
        pl_plan_free(&plan);
    else
        *out = plan;
    return status;
}

pl_status pair_text(pl_text *text, const pair_list *list, const pair *chosen, int64_t split)
{
    pl_plan plan = {0};
    PL_TRY(pair_plan(&plan, list, chosen, split));
    pl_plan_write(text, &plan, -1);
    pl_plan_free(&plan);
    return pl_text_status(text);
}

/* --- choosing --- */

static pl_layout_kind choose_kind(uint64_t *state)
{
    return (pl_layout_kind)pairs_random(state, PL_LAYOUT_KIND_COUNT);
}

/* PL_BAD_INPUT when the numbers drawn make no layout. */
static pl_status choose_layout(pl_layout *out, uint64_t *state, bool moe)
{
    static const int64_t worlds[] = {1, 2, 4, 6, 8, 8, 12, 16};
    static const int64_t owners[] = {1, 2, 2, 3, 4, 6, 8}, replicas[] = {1, 1, 1, 2, 2, 3, 4};
    pl_layout_kind kind = choose_kind(state);
    int64_t world = worlds[pairs_random(state, 8)];
    int64_t ep = moe ? owners[pairs_random(state, 7)] : 1;
    int64_t r = replicas[pairs_random(state, 7)];
    pl_grain grain = pairs_random(state, 3) ? PL_GRAIN_ROW : PL_GRAIN_EXPERT;
    return pl_layout_make(out, kind, world, 1, 1, ep, r, grain);
}

static pl_precision choose_precision(uint64_t *state)
{
    static const pl_precision precisions[] = {
        {PL_BF16, PL_BF16, PL_FP32, PL_FP32}, {PL_FP32, PL_FP32, PL_FP32, PL_FP32},
        {PL_BF16, PL_BF16, PL_BF16, PL_FP32}, {PL_BF16, PL_FP32, PL_FP32, PL_FP32},
        {PL_FP32, PL_BF16, PL_BF16, PL_FP32},
    };
    return precisions[pairs_random(state, sizeof precisions / sizeof *precisions)];
}

static void choose_settings(pl_settings *out, uint64_t *state, const pl_model *model)
{
    *out = pl_settings_default();
    out->policy.reshard = (pl_reshard)pairs_random(state, PL_RESHARD_COUNT);
    out->policy.prefetch = (pl_prefetch)pairs_random(state, PL_PREFETCH_COUNT);
    out->policy.recompute = (pl_recompute)pairs_random(state, PL_RECOMPUTE_COUNT);
    out->policy.accumulate = (pl_accumulate)pairs_random(state, PL_ACCUMULATE_COUNT);
    out->policy.dispatch = (pl_dispatch)pairs_random(state, PL_DISPATCH_COUNT);
    out->policy.routing = (pl_routing)pairs_random(state, PL_ROUTING_COUNT);
    out->precision = choose_precision(state);
    out->shape.sequence = 4 + 2 * (int64_t)pairs_random(state, 3);
    out->shape.micro_batch = 1 + (int64_t)pairs_random(state, 2);
    out->shape.intra_layer = 1 + (int64_t)pairs_random(state, 3);
    out->shape.rounds = 1 + (int64_t)pairs_random(state, 2);
    out->balance = (pl_balance)pairs_random(state, PL_BALANCE_COUNT);
    out->balance_coefficient = pairs_random(state, 4) ? model->router_aux_loss_coef : 0;
    out->optimizer = (pl_optimizer)pairs_random(state, PL_OPTIMIZER_COUNT);
    out->clip = pairs_random(state, 4) ? 1.0 : 0.0;
}

/* What pleat-train runs, or a part of it; generating needs a shape of its own. */
static void choose_programs(pair *chosen, uint64_t *state)
{
    static const uint32_t sets[] = {
        PL_PROGRAMS_START | PL_PROGRAMS_STEP,
        PL_PROGRAMS_LOAD | PL_PROGRAMS_STEP | PL_PROGRAMS_EVALUATE | PL_PROGRAMS_SAVE,
        PL_PROGRAMS_START | PL_PROGRAMS_STEP | PL_PROGRAMS_EVALUATE | PL_PROGRAMS_EXPORT,
        PL_PROGRAMS_GENERATE | PL_PROGRAMS_EXPORT,
    };
    chosen->programs = sets[pairs_random(state, 4)];
    if (chosen->programs & PL_PROGRAMS_GENERATE)
        chosen->settings.shape = pl_generate_shape(chosen->settings.shape);
}

static void choose_patterns(pair *chosen, uint64_t *state)
{
    static const char *const keep[] = {"model.norm", "q_norm",   "input_layernorm",
                                       "lm_head",    "mlp.gate", "*layers.0.self_attn*"};
    static const char *const frozen[] = {"embed_tokens", "*layers.0.*", "q_proj",        "lm_head",
                                         "experts",      "model.norm",  "*layers.1.mlp*"};
    if (pairs_random(state, 3) == 0) chosen->keep_fp32 = keep[pairs_random(state, 6)];
    if (pairs_random(state, 3) == 0) chosen->frozen = frozen[pairs_random(state, 7)];
}

/* --- what is distinct --- */

static uint64_t hash_text(const char *text, size_t length)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < length; ++i) hash = (hash ^ (uint8_t)text[i]) * 0x100000001b3u;
    return hash;
}

static bool is_new(const uint64_t *hashes, size_t count, uint64_t hash)
{
    for (size_t i = 0; i < count; ++i)
        if (hashes[i] == hash) return false;
    return true;
}

static pl_status note(uint64_t **hashes, size_t *capacity, size_t *count, uint64_t hash)
{
    PL_TRY(pl_grow(hashes, capacity, *count + 1, sizeof **hashes, "hashes"));
    (*hashes)[(*count)++] = hash;
    return PL_OK;
}

static pl_status keep(pair_list *list, const pair *chosen, const char *text)
{
    const char *sections = strstr(text, "\nsection ");
    if (!sections) return PL_FAIL(PL_INTERNAL, "a plan's text has no section");
    size_t header_length = (size_t)(sections - text);
    uint64_t header = hash_text(text, header_length), plan = hash_text(sections, strlen(sections));
    if (!is_new(list->headers, list->count, header)) return PL_OK;
    PL_TRY(pl_grow(&list->pairs, &list->capacity, list->count + 1, sizeof *list->pairs, "pairs"));
    list->pairs[list->count] = *chosen;
    if (is_new(list->plans, list->plan_count, plan))
        PL_TRY(note(&list->plans, &list->plan_capacity, &list->plan_count, plan));
    return note(&list->headers, &list->header_capacity, &list->count, header);
}

/* Draw one pair; what makes no plan is left out. */
static pl_status draw(pair_list *list, uint64_t *state)
{
    pair chosen = {.model = (int)pairs_random(state, PAIRS_MODELS)};
    const pl_model *model = &list->models[chosen.model];
    pl_status layout = choose_layout(&chosen.layout, state, model->num_experts > 0);
    pl_text text = {0};
    choose_settings(&chosen.settings, state, model);
    choose_patterns(&chosen, state);
    choose_programs(&chosen, state);
    if (layout != PL_OK) return layout == PL_BAD_INPUT ? PL_OK : layout;
    pl_status status = pair_text(&text, list, &chosen, PAIRS_NO_SPLIT);
    if (status == PL_OK) {
        status = keep(list, &chosen, pl_text_string(&text));
    } else if (status == PL_BAD_INPUT) {
        ++list->refused;
        status = PL_OK;
    }
    pl_text_free(&text);
    return status;
}

static pl_status fill(pair_list *list, uint64_t seed, size_t wanted)
{
    for (; list->model_count < PAIRS_MODELS; ++list->model_count) {
        int i = list->model_count;
        PL_TRY(pl_model_parse(&list->models[i], configs[i].text, configs[i].name, configs[i].name));
    }
    size_t draws = 0;
    while (list->count < wanted) {
        if (++draws > wanted * 100)
            return PL_FAIL(PL_INTERNAL, "%zu draws gave only %zu plans: %zu were refused", draws,
                           list->count, list->refused);
        PL_TRY(draw(list, &seed));
    }
    return PL_OK;
}

pl_status pairs_make(pair_list *out, uint64_t seed, size_t wanted)
{
    pair_list list = {0};
    pl_status status = fill(&list, seed, wanted);
    if (status != PL_OK)
        pairs_free(&list);
    else
        *out = list;
    return status;
}

void pairs_free(pair_list *list)
{
    for (int i = 0; i < list->model_count; ++i) pl_model_free(&list->models[i]);
    pl_free(list->pairs);
    pl_free(list->headers);
    pl_free(list->plans);
    memset(list, 0, sizeof *list);
}
