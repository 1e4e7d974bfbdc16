/* Which keys may stand in a config.json, and what is said about the others. */
#include <jansson.h>
#include <string.h>

#include "common/model_internal.h"

enum {
    LLAMA = 1 << PL_FAMILY_LLAMA,
    QWEN3 = 1 << PL_FAMILY_QWEN3,
    MOE = 1 << PL_FAMILY_QWEN3_MOE,
    MIXTRAL = 1 << PL_FAMILY_MIXTRAL,
    DEEPSEEK = 1 << PL_FAMILY_DEEPSEEK_V2,
    OLDER = LLAMA | QWEN3 | MOE,
    ALL = OLDER | MIXTRAL | DEEPSEEK
};

/* Keys that are read, and the model types in which they mean something. */
static const struct {
    const char *name;
    unsigned families;
} read_keys[] = {
    {"attention_bias", ALL & ~MIXTRAL},
    {"attention_dropout", ALL},
    {"aux_loss_alpha", DEEPSEEK},
    {"decoder_sparse_step", MOE},
    {"dtype", ALL},
    {"experts_per_token", MOE},
    {"first_k_dense_replace", DEEPSEEK},
    {"head_dim", ALL},
    {"hidden_act", ALL},
    {"hidden_size", ALL},
    {"initializer_range", ALL},
    {"intermediate_size", ALL},
    {"kv_lora_rank", DEEPSEEK},
    {"layer_types", ALL},
    {"max_position_embeddings", ALL},
    {"mlp_bias", LLAMA},
    {"mlp_only_layers", MOE},
    {"model_type", ALL},
    {"moe_intermediate_size", MOE | DEEPSEEK},
    {"moe_layer_freq", DEEPSEEK},
    {"n_group", DEEPSEEK},
    {"n_routed_experts", DEEPSEEK},
    {"n_shared_experts", DEEPSEEK},
    {"norm_topk_prob", MOE | DEEPSEEK},
    {"num_attention_heads", ALL},
    {"num_experts", MOE},
    {"num_experts_per_tok", MOE | MIXTRAL | DEEPSEEK},
    {"num_hidden_layers", ALL},
    {"num_key_value_heads", ALL},
    {"num_local_experts", MOE | MIXTRAL},
    {"num_nextn_predict_layers", ALL},
    {"partial_rotary_factor", ALL},
    {"q_lora_rank", DEEPSEEK},
    {"qk_head_dim", DEEPSEEK},
    {"qk_nope_head_dim", DEEPSEEK},
    {"qk_rope_head_dim", DEEPSEEK},
    {"quantization_config", ALL},
    {"rms_norm_eps", ALL},
    {"rope_parameters", ALL},
    {"rope_scaling", ALL},
    {"rope_theta", ALL},
    {"routed_scaling_factor", DEEPSEEK},
    {"router_aux_loss_coef", MOE | MIXTRAL},
    {"router_jitter_noise", MIXTRAL},
    {"scoring_func", DEEPSEEK},
    {"seq_aux", DEEPSEEK},
    {"sliding_window", QWEN3 | MOE | MIXTRAL},
    {"tie_word_embeddings", ALL},
    {"topk_group", DEEPSEEK},
    {"topk_method", DEEPSEEK},
    {"torch_dtype", ALL},
    {"use_sliding_window", QWEN3 | MOE},
    {"v_head_dim", DEEPSEEK},
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

/* Spellings of other libraries and model types, and what to write instead in which model types. */
static const struct {
    const char *name;
    unsigned families;
    const char *instead;
} foreign_keys[] = {
    {"activation_function", ALL, "write 'hidden_act'"},
    {"aux_loss_alpha", MOE | MIXTRAL, "write 'router_aux_loss_coef'"},
    {"d_ff", ALL, "write 'intermediate_size'"},
    {"d_model", ALL, "write 'hidden_size'"},
    {"dim", ALL, "write 'hidden_size'"},
    {"expert_intermediate_size", ALL & ~MIXTRAL, "write 'moe_intermediate_size'"},
    {"expert_intermediate_size", MIXTRAL, "write 'intermediate_size'"},
    {"ffn_dim", ALL, "write 'intermediate_size'"},
    {"ffn_hidden_size", ALL, "write 'intermediate_size'"},
    {"first_k_dense_replace", MOE, "list the dense layers in 'mlp_only_layers'"},
    {"hidden_activation", ALL, "write 'hidden_act'"},
    {"kv_channels", ALL & ~DEEPSEEK, "write 'head_dim'"},
    {"layer_norm_eps", ALL, "write 'rms_norm_eps'"},
    {"layer_norm_epsilon", ALL, "write 'rms_norm_eps'"},
    {"layernorm_epsilon", ALL, "write 'rms_norm_eps'"},
    {"max_seq_len", ALL, "write 'max_position_embeddings'"},
    {"max_sequence_length", ALL, "write 'max_position_embeddings'"},
    {"mlp_only_layers", DEEPSEEK, "write 'first_k_dense_replace', the number of dense layers"},
    {"moe_aux_loss_coeff", ALL & ~DEEPSEEK, "write 'router_aux_loss_coef'"},
    {"moe_aux_loss_coeff", DEEPSEEK, "write 'aux_loss_alpha'"},
    {"moe_ffn_hidden_size", ALL & ~MIXTRAL, "write 'moe_intermediate_size'"},
    {"moe_ffn_hidden_size", MIXTRAL, "write 'intermediate_size'"},
    {"moe_intermediate_size", MIXTRAL,
     "write 'intermediate_size', which is an expert's width here"},
    {"moe_layer_freq", MOE, "write 'decoder_sparse_step'"},
    {"moe_num_experts", OLDER, "write 'num_experts'"},
    {"moe_num_experts", MIXTRAL, "write 'num_local_experts'"},
    {"moe_num_experts", DEEPSEEK, "write 'n_routed_experts'"},
    {"moe_router_topk", ALL, "write 'num_experts_per_tok'"},
    {"moe_top_k", ALL, "write 'num_experts_per_tok'"},
    {"moe_topk", ALL, "write 'num_experts_per_tok'"},
    {"n_embd", ALL, "write 'hidden_size'"},
    {"n_head", ALL, "write 'num_attention_heads'"},
    {"n_heads", ALL, "write 'num_attention_heads'"},
    {"n_inner", ALL, "write 'intermediate_size'"},
    {"n_kv_heads", ALL, "write 'num_key_value_heads'"},
    {"n_layer", ALL, "write 'num_hidden_layers'"},
    {"n_layers", ALL, "write 'num_hidden_layers'"},
    {"n_positions", ALL, "write 'max_position_embeddings'"},
    {"n_routed_experts", MOE, "write 'num_experts'"},
    {"n_routed_experts", MIXTRAL, "write 'num_local_experts'"},
    {"n_shared_experts", ALL & ~DEEPSEEK, "leave it out: this model type has no shared experts"},
    {"n_vocab", ALL, "write 'vocab_size'"},
    {"norm_eps", ALL, "write 'rms_norm_eps'"},
    {"num_experts", MIXTRAL, "write 'num_local_experts'"},
    {"num_experts", DEEPSEEK, "write 'n_routed_experts'"},
    {"num_heads", ALL, "write 'num_attention_heads'"},
    {"num_kv_heads", ALL, "write 'num_key_value_heads'"},
    {"num_layers", ALL, "write 'num_hidden_layers'"},
    {"num_local_experts", DEEPSEEK, "write 'n_routed_experts'"},
    {"num_moe_experts", OLDER, "write 'num_experts'"},
    {"num_moe_experts", MIXTRAL, "write 'num_local_experts'"},
    {"num_moe_experts", DEEPSEEK, "write 'n_routed_experts'"},
    {"num_query_groups", ALL, "write 'num_key_value_heads'"},
    {"padded_vocab_size", ALL, "write 'vocab_size'"},
    {"params_dtype", ALL, "write 'torch_dtype'"},
    {"qkv_bias", ALL & ~MIXTRAL, "write 'attention_bias'"},
    {"rope_base", ALL, "write 'rope_theta'"},
    {"rotary_base", ALL, "write 'rope_theta'"},
    {"router_aux_loss_coef", DEEPSEEK, "write 'aux_loss_alpha'"},
    {"seq_length", ALL, "write 'max_position_embeddings'"},
    {"shared_expert_intermediate_size", ALL & ~DEEPSEEK,
     "leave it out: this model type has no shared experts"},
    {"shared_expert_intermediate_size", DEEPSEEK,
     "write 'n_shared_experts', which are as wide as routed ones"},
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

/* What to write instead of KEY in FAMILY; NULL where that is not known. */
static const char *instead_of(const char *key, pl_family family)
{
    for (int i = 0; i < LENGTH(foreign_keys); ++i)
        if (strcmp(key, foreign_keys[i].name) == 0 && (foreign_keys[i].families >> family & 1))
            return foreign_keys[i].instead;
    return NULL;
}

static pl_status refuse_foreign(const pl_json_node *node, pl_family family, const char *instead)
{
    char where[PL_JSON_WORDS];
    return PL_FAIL(PL_BAD_INPUT, "%s is not a key of model_type %s; %s", pl_json_where(node, where),
                   pl_family_name(family), instead);
}

static pl_status refuse_unknown(const pl_json_node *top, const pl_json_node *node)
{
    const char *known[READ_KEYS + HARMLESS_KEYS];
    for (int i = 0; i < READ_KEYS; ++i) known[i] = read_keys[i].name;
    for (int i = 0; i < HARMLESS_KEYS; ++i) known[READ_KEYS + i] = harmless_keys[i];
    return pl_json_refuse_key(top, node->key, known, LENGTH(known));
}

static pl_status check_key(const pl_json_node *top, const pl_json_node *node, pl_family family)
{
    const char *instead = instead_of(node->key, family);
    for (int i = 0; i < READ_KEYS; ++i) {
        if (strcmp(node->key, read_keys[i].name) != 0) continue;
        if (read_keys[i].families >> family & 1 || is_off(node->value)) return PL_OK;
        if (instead) return refuse_foreign(node, family, instead);
        return refuse_other_family(node, read_keys[i].families, family);
    }
    for (int i = 0; i < HARMLESS_KEYS; ++i)
        if (strcmp(node->key, harmless_keys[i]) == 0) return PL_OK;
    if (instead) return refuse_foreign(node, family, instead);
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
