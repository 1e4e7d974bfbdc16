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

static void add_experts(pl_text *text, const pl_model *model)
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

static void add_rope(pl_text *text, const pl_model *model)
{
    const pl_rope_scaling *scaling = &model->rope_scaling;
    add_number(text, "rope_theta", model->rope_theta);
    if (!scaling->llama3) {
        pl_text_add_string(text, ", \"rope_scaling\": null");
        return;
    }
    pl_text_add_string(text, ", \"rope_scaling\": {\"rope_type\": \"llama3\"");
    add_number(text, "factor", scaling->factor);
    add_number(text, "low_freq_factor", scaling->low_freq_factor);
    add_number(text, "high_freq_factor", scaling->high_freq_factor);
    add_integer(text, "original_max_position_embeddings",
                scaling->original_max_position_embeddings);
    pl_text_add_string(text, "}");
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
    add_integer(text, "num_attention_heads", model->num_attention_heads);
    add_integer(text, "num_key_value_heads", model->num_key_value_heads);
    add_integer(text, "head_dim", model->head_dim);
    if (model->intermediate_size > 0)
        add_integer(text, "intermediate_size", model->intermediate_size);
    if (model->family == PL_FAMILY_QWEN3_MOE) add_experts(text, model);
    add_integer(text, "max_position_embeddings", model->max_position_embeddings);
    pl_text_add_string(text, ", \"hidden_act\": \"silu\"");
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
