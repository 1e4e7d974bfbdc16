/* Which keys may stand in a config.json, and what is said about the others. */
#include <jansson.h>
#include <string.h>

#include "common/model_internal.h"

enum {
    LLAMA = 1 << PL_FAMILY_LLAMA,
    QWEN3 = 1 << PL_FAMILY_QWEN3,
    MOE = 1 << PL_FAMILY_QWEN3_MOE,
    ALL = LLAMA | QWEN3 | MOE
};

/* Keys that are read, and the model types in which they mean something. */
static const struct {
    const char *name;
    unsigned families;
} read_keys[] = {
    {"attention_bias", ALL},
    {"attention_dropout", ALL},
    {"decoder_sparse_step", MOE},
    {"dtype", ALL},
    {"experts_per_token", MOE},
    {"head_dim", ALL},
    {"hidden_act", ALL},
    {"hidden_size", ALL},
    {"initializer_range", ALL},
    {"intermediate_size", ALL},
    {"layer_types", ALL},
    {"max_position_embeddings", ALL},
    {"mlp_bias", LLAMA},
    {"mlp_only_layers", MOE},
    {"model_type", ALL},
    {"moe_intermediate_size", MOE},
    {"norm_topk_prob", MOE},
    {"num_attention_heads", ALL},
    {"num_experts", MOE},
    {"num_experts_per_tok", MOE},
    {"num_hidden_layers", ALL},
    {"num_key_value_heads", ALL},
    {"num_local_experts", MOE},
    {"num_nextn_predict_layers", ALL},
    {"partial_rotary_factor", ALL},
    {"quantization_config", ALL},
    {"rms_norm_eps", ALL},
    {"rope_parameters", ALL},
    {"rope_scaling", ALL},
    {"rope_theta", ALL},
    {"router_aux_loss_coef", MOE},
    {"sliding_window", QWEN3 | MOE},
    {"tie_word_embeddings", ALL},
    {"torch_dtype", ALL},
    {"use_sliding_window", QWEN3 | MOE},
    {"vocab_size", ALL},
};

/* Keys that change neither a tensor nor a number that pleat computes. */
static const char *const harmless_keys[] = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "auto_map",
    "bos_token_id",
    "eos_token_id",
    "ep_size",
    "id2label",
    "label2id",
    "max_window_layers",
    "name_or_path",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "return_dict",
    "sep_token_id",
    "task_specific_params",
    "tokenizer_class",
    "torchscript",
    "transformers_version",
    "unk_token_id",
    "use_cache",
};

/* Spellings of other libraries and model types, and what to write instead. */
static const struct {
    const char *name, *instead;
} foreign_keys[] = {
    {"activation_function", "write 'hidden_act'"},
    {"aux_loss_alpha", "write 'router_aux_loss_coef'"},
    {"d_ff", "write 'intermediate_size'"},
    {"d_model", "write 'hidden_size'"},
    {"dim", "write 'hidden_size'"},
    {"expert_intermediate_size", "write 'moe_intermediate_size'"},
    {"ffn_dim", "write 'intermediate_size'"},
    {"ffn_hidden_size", "write 'intermediate_size'"},
    {"first_k_dense_replace", "list the dense layers in 'mlp_only_layers'"},
    {"hidden_activation", "write 'hidden_act'"},
    {"kv_channels", "write 'head_dim'"},
    {"layer_norm_eps", "write 'rms_norm_eps'"},
    {"layer_norm_epsilon", "write 'rms_norm_eps'"},
    {"layernorm_epsilon", "write 'rms_norm_eps'"},
    {"max_seq_len", "write 'max_position_embeddings'"},
    {"max_sequence_length", "write 'max_position_embeddings'"},
    {"moe_aux_loss_coeff", "write 'router_aux_loss_coef'"},
    {"moe_ffn_hidden_size", "write 'moe_intermediate_size'"},
    {"moe_layer_freq", "write 'decoder_sparse_step'"},
    {"moe_num_experts", "write 'num_experts'"},
    {"moe_router_topk", "write 'num_experts_per_tok'"},
    {"moe_top_k", "write 'num_experts_per_tok'"},
    {"moe_topk", "write 'num_experts_per_tok'"},
    {"n_embd", "write 'hidden_size'"},
    {"n_head", "write 'num_attention_heads'"},
    {"n_heads", "write 'num_attention_heads'"},
    {"n_inner", "write 'intermediate_size'"},
    {"n_kv_heads", "write 'num_key_value_heads'"},
    {"n_layer", "write 'num_hidden_layers'"},
    {"n_layers", "write 'num_hidden_layers'"},
    {"n_positions", "write 'max_position_embeddings'"},
    {"n_routed_experts", "write 'num_experts'"},
    {"n_shared_experts", "leave it out: these model types have no shared experts"},
    {"n_vocab", "write 'vocab_size'"},
    {"norm_eps", "write 'rms_norm_eps'"},
    {"num_heads", "write 'num_attention_heads'"},
    {"num_kv_heads", "write 'num_key_value_heads'"},
    {"num_layers", "write 'num_hidden_layers'"},
    {"num_moe_experts", "write 'num_experts'"},
    {"num_query_groups", "write 'num_key_value_heads'"},
    {"padded_vocab_size", "write 'vocab_size'"},
    {"params_dtype", "write 'torch_dtype'"},
    {"qkv_bias", "write 'attention_bias'"},
    {"rope_base", "write 'rope_theta'"},
    {"rotary_base", "write 'rope_theta'"},
    {"seq_length", "write 'max_position_embeddings'"},
    {"shared_expert_intermediate_size", "leave it out: these model types have no shared experts"},
};

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

enum { READ_KEYS = LENGTH(read_keys), HARMLESS_KEYS = LENGTH(harmless_keys) };

/* null, false, 0, [] and {} switch a feature off. */
static bool is_off(const json_t *value)
{
    if (json_is_number(value)) return json_number_value(value) == 0;
    if (json_is_array(value)) return json_array_size(value) == 0;
    if (json_is_object(value)) return json_object_size(value) == 0;
    return json_is_null(value) || json_is_false(value);
}

static pl_status refuse_other_family(const pl_json_node *node, unsigned families, pl_family family)
{
    char where[PL_JSON_WORDS], given[PL_JSON_WORDS];
    pl_text owners = {0};
    for (int i = 0; i < PL_FAMILY_COUNT; ++i)
        if (families >> i & 1)
            pl_text_add(&owners, "%s%s", owners.length ? ", " : "", pl_family_name((pl_family)i));
    pl_status status = pl_text_status(&owners);
    if (status == PL_OK)
        status = PL_FAIL(PL_BAD_INPUT,
                         "%s: given %s, but it belongs to model_type %s and this is %s; allowed: "
                         "leave it out",
                         pl_json_where(node, where), pl_json_given(node, given),
                         pl_text_string(&owners), pl_family_name(family));
    pl_text_free(&owners);
    return status;
}

static pl_status refuse_unknown(const pl_json_node *top, const pl_json_node *node)
{
    char where[PL_JSON_WORDS];
    const char *known[READ_KEYS + HARMLESS_KEYS];
    for (int i = 0; i < LENGTH(foreign_keys); ++i)
        if (strcmp(node->key, foreign_keys[i].name) == 0)
            return PL_FAIL(PL_BAD_INPUT, "%s is not a key of these model types; %s",
                           pl_json_where(node, where), foreign_keys[i].instead);
    for (int i = 0; i < READ_KEYS; ++i) known[i] = read_keys[i].name;
    for (int i = 0; i < HARMLESS_KEYS; ++i) known[READ_KEYS + i] = harmless_keys[i];
    return pl_json_refuse_key(top, node->key, known, LENGTH(known));
}

static pl_status check_key(const pl_json_node *top, const pl_json_node *node, pl_family family)
{
    for (int i = 0; i < READ_KEYS; ++i) {
        if (strcmp(node->key, read_keys[i].name) != 0) continue;
        if (read_keys[i].families >> family & 1 || is_off(node->value)) return PL_OK;
        return refuse_other_family(node, read_keys[i].families, family);
    }
    for (int i = 0; i < HARMLESS_KEYS; ++i)
        if (strcmp(node->key, harmless_keys[i]) == 0) return PL_OK;
    return refuse_unknown(top, node);
}

pl_status pl_model_check_keys(const pl_json_node *top, pl_family family)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(top->value, key, value)
    {
        pl_json_node node = {.value = value, .source = top->source, .parent = top, .key = key};
        PL_TRY(check_key(top, &node, family));
    }
    return PL_OK;
}
