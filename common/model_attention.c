/* The attention of a config.json: heads and their sizes, and the latent attention of DeepSeek-V2.
 */
#include <inttypes.h>
#include <stdio.h>

#include "common/model_internal.h"

static const char even[] = "an even integer of at least 2 (rotary embedding turns pairs)";

static pl_status read_even(int64_t *out, const pl_json_node *top, const char *key)
{
    pl_json_node node;
    PL_TRY(pl_model_read_size(out, top, key));
    PL_TRY(pl_json_member(&node, top, key, even));
    return *out % 2 == 0 ? PL_OK : pl_json_refuse(&node, even);
}

/* Llama and Mixtral may leave head_dim out. */
static pl_status read_head_dim(pl_model *model, const pl_json_node *top)
{
    int64_t heads = model->num_attention_heads;
    bool derived = model->family == PL_FAMILY_LLAMA || model->family == PL_FAMILY_MIXTRAL;
    if (!derived || pl_json_has(top, "head_dim"))
        return read_even(&model->head_dim, top, "head_dim");
    model->head_dim = model->hidden_size / heads;
    if (model->hidden_size % heads != 0 || model->head_dim % 2 != 0)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: key 'head_dim' is missing, and hidden_size / num_attention_heads = "
                       "%" PRId64 " / %" PRId64 " is no even integer; allowed: %s",
                       top->source, model->hidden_size, heads, even);
    return PL_OK;
}

static pl_status read_grouped(pl_model *model, const pl_json_node *top)
{
    pl_json_node node;
    PL_TRY(pl_model_read_size(&model->num_key_value_heads, top, "num_key_value_heads"));
    if (model->num_attention_heads % model->num_key_value_heads != 0) {
        char allowed[96];
        snprintf(allowed, sizeof allowed, "a divisor of num_attention_heads = %" PRId64,
                 model->num_attention_heads);
        PL_TRY(pl_json_member(&node, top, "num_key_value_heads", allowed));
        return pl_json_refuse(&node, allowed);
    }
    return read_head_dim(model, top);
}

/* KEY, where it stands, repeats VALUE, which is that of WHAT. */
static pl_status must_repeat(const pl_json_node *top, const char *key, int64_t value,
                             const char *what)
{
    char allowed[128];
    snprintf(allowed, sizeof allowed, "%s = %" PRId64 ", or leave it out", what, value);
    return pl_model_must_be(top, key, (double)value, allowed);
}

/* Every query head has keys and values of its own; transformers 5 writes the turned part of a
 * head as head_dim. */
static pl_status read_latent(pl_model *model, const pl_json_node *top)
{
    pl_latent_attention *latent = &model->latent;
    PL_TRY(pl_model_size_or_null(&latent->q_lora_rank, top, "q_lora_rank"));
    PL_TRY(pl_model_read_size(&latent->kv_lora_rank, top, "kv_lora_rank"));
    PL_TRY(pl_model_read_size(&latent->qk_nope_head_dim, top, "qk_nope_head_dim"));
    PL_TRY(read_even(&latent->qk_rope_head_dim, top, "qk_rope_head_dim"));
    PL_TRY(pl_model_read_size(&latent->v_head_dim, top, "v_head_dim"));
    model->head_dim = latent->qk_nope_head_dim + latent->qk_rope_head_dim;
    model->num_key_value_heads = model->num_attention_heads;
    PL_TRY(
        must_repeat(top, "num_key_value_heads", model->num_attention_heads, "num_attention_heads"));
    PL_TRY(must_repeat(top, "head_dim", latent->qk_rope_head_dim, "qk_rope_head_dim"));
    return must_repeat(top, "qk_head_dim", model->head_dim, "qk_nope_head_dim + qk_rope_head_dim");
}

pl_status pl_model_read_attention(pl_model *model, const pl_json_node *top)
{
    PL_TRY(pl_model_read_size(&model->num_attention_heads, top, "num_attention_heads"));
    PL_TRY(pl_model_optional_boolean(&model->attention_bias, top, "attention_bias"));
    return model->family == PL_FAMILY_DEEPSEEK_V2 ? read_latent(model, top)
                                                  : read_grouped(model, top);
}
