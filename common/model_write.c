/* A model as one line of JSON, in the key names of transformers 4. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/json.h"
#include "common/model_internal.h"

static void add_integer(pl_text *text, const char *key, int64_t value)
{
    pl_text_add(text, ", \"%s\": %" PRId64, key, value);
}

static void add_boolean(pl_text *text, const char *key, bool value)
{
    pl_text_add(text, ", \"%s\": %s", key, value ? "true" : "false");
}

/* The shortest of the usual spellings that reads back as the same double. */
static void add_number(pl_text *text, const char *key, double value)
{
    char number[40];
    for (int digits = 15; digits <= 17; ++digits) {
        snprintf(number, sizeof number, "%.*g", digits, value);
        if (strtod(number, NULL) == value) break;
    }
    pl_text_add(text, ", \"%s\": %s", key, number);
}

/* null for 0. */
static void add_size_or_null(pl_text *text, const char *key, int64_t value)
{
    if (value > 0)
        add_integer(text, key, value);
    else
        pl_text_add(text, ", \"%s\": null", key);
}

static void add_qwen_experts(pl_text *text, const pl_model *model)
{
    bool first = true;
    add_integer(text, "num_experts", model->num_experts);
    add_integer(text, "num_experts_per_tok", model->num_experts_per_tok);
    add_integer(text, "moe_intermediate_size", model->moe_intermediate_size);
    add_integer(text, "decoder_sparse_step", 1);
    pl_text_add_string(text, ", \"mlp_only_layers\": [");
    for (int64_t i = 0; i < model->num_hidden_layers; ++i) {
        if (model->layer_is_moe[i]) continue;
        pl_text_add(text, "%s%" PRId64, first ? "" : ", ", i);
        first = false;
    }
    pl_text_add_string(text, "]");
    add_boolean(text, "norm_topk_prob", model->norm_topk_prob);
    add_number(text, "router_aux_loss_coef", model->router_aux_loss_coef);
}

static void add_mixtral_experts(pl_text *text, const pl_model *model)
{
    add_integer(text, "num_local_experts", model->num_experts);
    add_integer(text, "num_experts_per_tok", model->num_experts_per_tok);
    add_integer(text, "intermediate_size", model->moe_intermediate_size);
    add_number(text, "router_aux_loss_coef", model->router_aux_loss_coef);
}

static int64_t count_dense_layers(const pl_model *model)
{
    int64_t count = 0;
    for (int64_t i = 0; i < model->num_hidden_layers; ++i) count += !model->layer_is_moe[i];
    return count;
}

static void add_deepseek_experts(pl_text *text, const pl_model *model)
{
    add_integer(text, "n_routed_experts", model->num_experts);
    add_integer(text, "num_experts_per_tok", model->num_experts_per_tok);
    add_integer(text, "moe_intermediate_size", model->moe_intermediate_size);
    add_size_or_null(text, "n_shared_experts", model->n_shared_experts);
    add_integer(text, "first_k_dense_replace", count_dense_layers(model));
    add_integer(text, "moe_layer_freq", 1);
    pl_text_add_string(text, ", \"scoring_func\": \"softmax\"");
    if (model->n_group > 0) {
        pl_text_add_string(text, ", \"topk_method\": \"group_limited_greedy\"");
        add_integer(text, "n_group", model->n_group);
        add_integer(text, "topk_group", model->topk_group);
    } else {
        pl_text_add_string(text, ", \"topk_method\": \"greedy\"");
    }
    add_boolean(text, "norm_topk_prob", false);
    add_number(text, "routed_scaling_factor", model->routed_scaling_factor);
    add_number(text, "aux_loss_alpha", model->router_aux_loss_coef);
    add_boolean(text, "seq_aux", model->seq_aux);
}

static void add_experts(pl_text *text, const pl_model *model)
{
    if (model->family == PL_FAMILY_QWEN3_MOE) add_qwen_experts(text, model);
    if (model->family == PL_FAMILY_MIXTRAL) add_mixtral_experts(text, model);
    if (model->family == PL_FAMILY_DEEPSEEK_V2) add_deepseek_experts(text, model);
}

static void add_heads(pl_text *text, const pl_model *model)
{
    const pl_latent_attention *latent = &model->latent;
    add_integer(text, "num_attention_heads", model->num_attention_heads);
    add_integer(text, "num_key_value_heads", model->num_key_value_heads);
    if (model->family != PL_FAMILY_DEEPSEEK_V2) {
        add_integer(text, "head_dim", model->head_dim);
        return;
    }
    add_size_or_null(text, "q_lora_rank", latent->q_lora_rank);
    add_integer(text, "kv_lora_rank", latent->kv_lora_rank);
    add_integer(text, "qk_nope_head_dim", latent->qk_nope_head_dim);
    add_integer(text, "qk_rope_head_dim", latent->qk_rope_head_dim);
    add_integer(text, "v_head_dim", latent->v_head_dim);
}

/* The numbers of llama3 or yarn. */
static void add_scaling(pl_text *text, const pl_rope_scaling *scaling)
{
    pl_text_add(text, ", \"rope_scaling\": {\"%s\": \"%s\"", scaling->yarn ? "type" : "rope_type",
                scaling->yarn ? "yarn" : "llama3");
    add_number(text, "factor", scaling->factor);
    if (scaling->yarn) {
        add_number(text, "beta_fast", scaling->beta_fast);
        add_number(text, "beta_slow", scaling->beta_slow);
    } else {
        add_number(text, "low_freq_factor", scaling->low_freq_factor);
        add_number(text, "high_freq_factor", scaling->high_freq_factor);
    }
    if (scaling->mscale_all_dim > 0) {
        add_number(text, "mscale", scaling->mscale);
        add_number(text, "mscale_all_dim", scaling->mscale_all_dim);
    }
    add_integer(text, "original_max_position_embeddings",
                scaling->original_max_position_embeddings);
    pl_text_add_string(text, "}");
}

static void add_rope(pl_text *text, const pl_model *model)
{
    const pl_rope_scaling *scaling = &model->rope_scaling;
    add_number(text, "rope_theta", model->rope_theta);
    if (scaling->llama3 || scaling->yarn)
        add_scaling(text, scaling);
    else
        pl_text_add_string(text, ", \"rope_scaling\": null");
}

static const char *stored_dtype_name(pl_dtype dtype)
{
    return dtype == PL_BF16 ? "bfloat16" : dtype == PL_FP16 ? "float16" : "float32";
}

void pl_model_write(pl_text *text, const pl_model *model)
{
    pl_text_add(text, "{\"model_type\": \"%s\"", pl_family_name(model->family));
    add_integer(text, "vocab_size", model->vocab_size);
    add_integer(text, "hidden_size", model->hidden_size);
    add_integer(text, "num_hidden_layers", model->num_hidden_layers);
    add_heads(text, model);
    if (model->intermediate_size > 0)
        add_integer(text, "intermediate_size", model->intermediate_size);
    add_experts(text, model);
    add_integer(text, "max_position_embeddings", model->max_position_embeddings);
    pl_text_add_string(text, ", \"hidden_act\": \"silu\"");
    if (model->family != PL_FAMILY_MIXTRAL)
        add_boolean(text, "attention_bias", model->attention_bias);
    if (model->family == PL_FAMILY_LLAMA) add_boolean(text, "mlp_bias", model->mlp_bias);
    add_boolean(text, "tie_word_embeddings", model->tie_word_embeddings);
    add_number(text, "rms_norm_eps", model->rms_norm_eps);
    add_number(text, "initializer_range", model->initializer_range);
    add_rope(text, model);
    pl_text_add(text, ", \"torch_dtype\": \"%s\"}", stored_dtype_name(model->stored_dtype));
}

pl_status pl_model_facts(struct json_t **out, const pl_model *model)
{
    pl_text text = {0};
    pl_model_write(&text, model);
    pl_status status = pl_text_status(&text);
    if (status == PL_OK)
        status = pl_json_parse(out, pl_text_string(&text), text.length, "the model");
    pl_text_free(&text);
    return status;
}
