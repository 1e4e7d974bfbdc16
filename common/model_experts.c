/* The experts of a config.json: how many, how wide, how a token chooses, and which layers have
 * them; Qwen3-MoE, Mixtral and DeepSeek-V2 each in their own keys. */
#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/model_internal.h"

/* num_experts_per_tok, spelled KEY. */
static pl_status read_choices(pl_model *model, const pl_json_node *top, const char *key)
{
    char allowed[96];
    pl_json_node node;
    snprintf(allowed, sizeof allowed, "an integer from 1 to the number of experts, %" PRId64,
             model->num_experts);
    PL_TRY(pl_model_read_size(&model->num_experts_per_tok, top, key));
    PL_TRY(pl_json_member(&node, top, key, allowed));
    return model->num_experts_per_tok <= model->num_experts ? PL_OK
                                                            : pl_json_refuse(&node, allowed);
}

static pl_status read_balance(pl_model *model, const pl_json_node *top, const char *key)
{
    model->router_aux_loss_coef = 0.001;
    if (!pl_json_has(top, key)) return PL_OK;
    return pl_json_number(&model->router_aux_loss_coef, top, key, 0, DBL_MAX);
}

static bool has_moe_layer(const pl_model *model)
{
    for (int64_t i = 0; i < model->num_hidden_layers; ++i)
        if (model->layer_is_moe[i]) return true;
    return false;
}

/* --- Qwen3-MoE --- */

/* Layer i is MoE unless mlp_only_layers has it, if decoder_sparse_step divides i + 1. */
static pl_status choose_qwen_layers(pl_model *model, const pl_json_node *top)
{
    int64_t step = 1;
    if (pl_json_has(top, "decoder_sparse_step"))
        PL_TRY(pl_model_read_size(&step, top, "decoder_sparse_step"));
    for (int64_t i = 0; i < model->num_hidden_layers; ++i)
        model->layer_is_moe[i] = (i + 1) % step == 0;
    if (pl_json_has(top, "mlp_only_layers")) {
        pl_json_node layers;
        PL_TRY(pl_json_array(&layers, top, "mlp_only_layers"));
        for (int64_t i = 0; i < pl_json_length(&layers); ++i) {
            int64_t layer = 0;
            pl_json_node node = pl_json_element(&layers, i);
            PL_TRY(pl_json_as_integer(&layer, &node, 0, model->num_hidden_layers - 1));
            model->layer_is_moe[layer] = false;
        }
    }
    if (has_moe_layer(model)) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT,
                   "%s: keys 'mlp_only_layers' and 'decoder_sparse_step' leave no layer with "
                   "experts; allowed: at least one, or model_type qwen3",
                   top->source);
}

static pl_status read_qwen(pl_model *model, const pl_json_node *top)
{
    const char *key = NULL;
    PL_TRY(pl_model_either_key(&key, top, "num_experts", "num_local_experts"));
    PL_TRY(pl_model_read_size(&model->num_experts, top, key));
    PL_TRY(pl_model_either_key(&key, top, "num_experts_per_tok", "experts_per_token"));
    PL_TRY(read_choices(model, top, key));
    PL_TRY(pl_model_read_size(&model->moe_intermediate_size, top, "moe_intermediate_size"));
    PL_TRY(pl_model_optional_boolean(&model->norm_topk_prob, top, "norm_topk_prob"));
    PL_TRY(read_balance(model, top, "router_aux_loss_coef"));
    return choose_qwen_layers(model, top);
}

/* --- Mixtral --- */

/* Every layer has experts, whose width is intermediate_size; chosen weights always sum to 1. */
static pl_status read_mixtral(pl_model *model, const pl_json_node *top)
{
    for (int64_t i = 0; i < model->num_hidden_layers; ++i) model->layer_is_moe[i] = true;
    model->norm_topk_prob = true;
    PL_TRY(pl_model_read_size(&model->num_experts, top, "num_local_experts"));
    PL_TRY(read_choices(model, top, "num_experts_per_tok"));
    PL_TRY(pl_model_read_size(&model->moe_intermediate_size, top, "intermediate_size"));
    PL_TRY(pl_model_must_be(top, "router_jitter_noise", 0, "0 (pleat routes without noise)"));
    return read_balance(model, top, "router_aux_loss_coef");
}

/* --- DeepSeek-V2 --- */

/* The first layers are dense. What a moe_layer_freq above 1 means, the classes of transformers and
 * DeepSeek's own do not agree on. */
static pl_status choose_deepseek_layers(pl_model *model, const pl_json_node *top)
{
    int64_t dense = 0, layers = model->num_hidden_layers;
    PL_TRY(pl_model_must_be(top, "moe_layer_freq", 1,
                            "1 (transformers ignores others, DeepSeek's own code does not)"));
    if (pl_json_has(top, "first_k_dense_replace"))
        PL_TRY(pl_json_integer(&dense, top, "first_k_dense_replace", 0, layers - 1));
    for (int64_t i = 0; i < layers; ++i) model->layer_is_moe[i] = i >= dense;
    return PL_OK;
}

/* The groups of group_limited_greedy: equal parts of the experts, enough of them kept for a
 * token's choices. */
static pl_status read_groups(pl_model *model, const pl_json_node *top)
{
    char allowed[128];
    pl_json_node node;
    int64_t experts = model->num_experts, choices = model->num_experts_per_tok;
    snprintf(allowed, sizeof allowed, "a divisor of n_routed_experts = %" PRId64, experts);
    PL_TRY(pl_model_read_size(&model->n_group, top, "n_group"));
    PL_TRY(pl_json_member(&node, top, "n_group", allowed));
    if (experts % model->n_group != 0) return pl_json_refuse(&node, allowed);
    PL_TRY(pl_json_integer(&model->topk_group, top, "topk_group", 1, model->n_group));
    if (model->topk_group * (experts / model->n_group) >= choices) return PL_OK;
    snprintf(allowed, sizeof allowed,
             "groups of %" PRId64 " experts that hold the %" PRId64 " of num_experts_per_tok",
             experts / model->n_group, choices);
    PL_TRY(pl_json_member(&node, top, "topk_group", allowed));
    return pl_json_refuse(&node, allowed);
}

/* Groups that greedy does not use are checked and left out: the model is the same without them. */
static pl_status read_method(pl_model *model, const pl_json_node *top)
{
    static const char *const methods[] = {"greedy", "group_limited_greedy"};
    static const char *const groups[] = {"n_group", "topk_group"};
    const char *method = methods[0];
    pl_json_node node;
    if (pl_json_has(top, "topk_method")) {
        PL_TRY(pl_json_member(&node, top, "topk_method", "a string"));
        PL_TRY(pl_json_as_string(&method, &node));
        if (strcmp(method, methods[1]) == 0) return read_groups(model, top);
        if (strcmp(method, methods[0]) != 0)
            return pl_json_refuse_choice(&node, method, methods, 2);
    }
    for (int i = 0; i < 2; ++i) {
        int64_t unused = 0;
        if (pl_json_has(top, groups[i])) PL_TRY(pl_model_read_size(&unused, top, groups[i]));
    }
    return PL_OK;
}

static pl_status read_routing(pl_model *model, const pl_json_node *top)
{
    bool renormalised = false;
    pl_json_node node;
    PL_TRY(pl_model_must_be_string(top, "scoring_func", "softmax", "\"softmax\""));
    PL_TRY(pl_model_optional_boolean(&renormalised, top, "norm_topk_prob"));
    if (renormalised) {
        PL_TRY(pl_json_member(&node, top, "norm_topk_prob", "false"));
        return pl_json_refuse(&node,
                              "false (transformers ignores true, DeepSeek's own code does not)");
    }
    if (pl_json_has(top, "routed_scaling_factor"))
        PL_TRY(pl_model_number_above(&model->routed_scaling_factor, top, "routed_scaling_factor", 0,
                                     "a number above 0"));
    model->seq_aux = true;
    if (pl_json_has(top, "seq_aux")) PL_TRY(pl_json_boolean(&model->seq_aux, top, "seq_aux"));
    PL_TRY(read_balance(model, top, "aux_loss_alpha"));
    return read_method(model, top);
}

static pl_status read_deepseek(pl_model *model, const pl_json_node *top)
{
    PL_TRY(pl_model_read_size(&model->num_experts, top, "n_routed_experts"));
    PL_TRY(read_choices(model, top, "num_experts_per_tok"));
    PL_TRY(pl_model_read_size(&model->moe_intermediate_size, top, "moe_intermediate_size"));
    PL_TRY(pl_model_size_or_null(&model->n_shared_experts, top, "n_shared_experts"));
    PL_TRY(read_routing(model, top));
    return choose_deepseek_layers(model, top);
}

pl_status pl_model_read_experts(pl_model *model, const pl_json_node *top)
{
    if (model->family == PL_FAMILY_MIXTRAL) return read_mixtral(model, top);
    if (model->family == PL_FAMILY_DEEPSEEK_V2) return read_deepseek(model, top);
    return read_qwen(model, top);
}
