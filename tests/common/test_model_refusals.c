/* Configs that are wrong, one fault each, and the words that answer them.
 *
 * Each case changes one of five right configs: a key gets another value, a key goes, a key comes.
 */
#include <jansson.h>
#include <stdlib.h>

#include "common/memory.h"
#include "common/model.h"
#include "tests/test.h"

static const char moe_text[] =
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 100, \"hidden_size\": 64, "
    "\"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"head_dim\": 16, \"intermediate_size\": 96, \"max_position_embeddings\": 128, "
    "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
    "\"decoder_sparse_step\": 1, \"mlp_only_layers\": [0], \"norm_topk_prob\": true, "
    "\"rms_norm_eps\": 1e-6, \"hidden_act\": \"silu\", \"attention_dropout\": 0.0, "
    "\"rope_theta\": 10000.0, \"rope_scaling\": null, \"torch_dtype\": \"bfloat16\", "
    "\"sliding_window\": 4096, \"use_sliding_window\": false}";

static const char llama_text[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 100, \"hidden_size\": 64, "
    "\"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"intermediate_size\": 96, \"max_position_embeddings\": 128, \"mlp_bias\": false, "
    "\"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, "
    "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
    "\"original_max_position_embeddings\": 64}}";

static const char dense_text[] =
    "{\"model_type\": \"qwen3\", \"vocab_size\": 100, \"hidden_size\": 64, "
    "\"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"head_dim\": 16, \"intermediate_size\": 96, \"max_position_embeddings\": 128}";

static const char mixtral_text[] =
    "{\"model_type\": \"mixtral\", \"vocab_size\": 100, \"hidden_size\": 64, "
    "\"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"intermediate_size\": 96, \"max_position_embeddings\": 128, \"num_local_experts\": 8, "
    "\"num_experts_per_tok\": 2, \"router_aux_loss_coef\": 0.02, \"sliding_window\": null}";

static const char deepseek_text[] =
    "{\"model_type\": \"deepseek_v2\", \"vocab_size\": 100, \"hidden_size\": 64, "
    "\"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, "
    "\"q_lora_rank\": 20, \"kv_lora_rank\": 12, \"qk_nope_head_dim\": 10, "
    "\"qk_rope_head_dim\": 6, \"v_head_dim\": 14, \"intermediate_size\": 96, "
    "\"max_position_embeddings\": 128, \"n_routed_experts\": 8, \"n_shared_experts\": 2, "
    "\"num_experts_per_tok\": 3, \"moe_intermediate_size\": 24, \"first_k_dense_replace\": 1, "
    "\"moe_layer_freq\": 1, \"topk_method\": \"group_limited_greedy\", \"n_group\": 4, "
    "\"topk_group\": 2, \"scoring_func\": \"softmax\", \"norm_topk_prob\": false, "
    "\"routed_scaling_factor\": 16.0, \"aux_loss_alpha\": 0.001, \"seq_aux\": true, "
    "\"rope_theta\": 10000, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, "
    "\"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 0.707, \"mscale_all_dim\": 0.707, "
    "\"original_max_position_embeddings\": 4096}}";

#define GONE NULL

/* KEY of BASE gets VALUE (JSON text, GONE removes it); OBJECT names an object inside, or NULL. */
typedef struct fault {
    const char *base, *object, *key, *value;
    const char *words[3];
} fault;

static const fault faults[] = {
    /* missing and null sizes */
    {moe_text, NULL, "model_type", GONE, {"key 'model_type' is missing", "llama, qwen3"}},
    {moe_text, NULL, "hidden_size", GONE, {"key 'hidden_size' is missing", "an integer from 1"}},
    {moe_text, NULL, "vocab_size", GONE, {"key 'vocab_size' is missing"}},
    {moe_text, NULL, "num_hidden_layers", GONE, {"key 'num_hidden_layers' is missing"}},
    {moe_text, NULL, "num_attention_heads", GONE, {"key 'num_attention_heads' is missing"}},
    {moe_text, NULL, "num_key_value_heads", GONE, {"key 'num_key_value_heads' is missing"}},
    {moe_text, NULL, "head_dim", GONE, {"key 'head_dim' is missing"}},
    {moe_text, NULL, "head_dim", "null", {"key 'head_dim': given null"}},
    {dense_text, NULL, "head_dim", GONE, {"key 'head_dim' is missing"}},
    {moe_text, NULL, "max_position_embeddings", GONE, {"'max_position_embeddings' is missing"}},
    {moe_text, NULL, "num_experts", GONE, {"key 'num_experts' is missing"}},
    {moe_text, NULL, "num_experts_per_tok", GONE, {"key 'num_experts_per_tok' is missing"}},
    {moe_text, NULL, "moe_intermediate_size", GONE, {"key 'moe_intermediate_size' is missing"}},
    {moe_text, NULL, "intermediate_size", GONE, {"key 'intermediate_size' is missing"}},
    {dense_text, NULL, "intermediate_size", "null", {"key 'intermediate_size': given null"}},
    /* wrong types */
    {moe_text, NULL, "model_type", "3", {"key 'model_type': given 3", "a string"}},
    {moe_text, NULL, "hidden_size", "\"64\"", {"key 'hidden_size': given \"64\"", "an integer"}},
    {moe_text, NULL, "hidden_size", "64.5", {"given 64.5", "an integer"}},
    {moe_text, NULL, "norm_topk_prob", "1", {"key 'norm_topk_prob': given 1", "true or false"}},
    {moe_text, NULL, "mlp_only_layers", "0", {"key 'mlp_only_layers': given 0", "an array"}},
    {moe_text, NULL, "mlp_only_layers", "[\"a\"]", {"key 'mlp_only_layers[0]': given \"a\""}},
    {moe_text, NULL, "rope_scaling", "8", {"key 'rope_scaling': given 8", "an object"}},
    {moe_text, NULL, "rms_norm_eps", "\"x\"", {"'rms_norm_eps': given \"x\"", "a number above 0"}},
    {moe_text, NULL, "torch_dtype", "16", {"key 'torch_dtype': given 16", "a string"}},
    {moe_text, NULL, "hidden_act", "[]", {"key 'hidden_act': given []", "a string"}},
    {moe_text, NULL, "layer_types", "\"full_attention\"", {"key 'layer_types'", "an array"}},
    {moe_text, NULL, "sliding_window", "true", {"key 'sliding_window': given true"}},
    {moe_text, NULL, "tie_word_embeddings", "\"no\"", {"'tie_word_embeddings'", "true or false"}},
    /* ranges */
    {moe_text, NULL, "vocab_size", "0", {"key 'vocab_size': given 0", "from 1 to 2147483647"}},
    {moe_text, NULL, "hidden_size", "-64", {"key 'hidden_size': given -64"}},
    {moe_text, NULL, "hidden_size", "2147483648", {"given 2147483648", "from 1 to 2147483647"}},
    {moe_text, NULL, "num_hidden_layers", "4097", {"'num_hidden_layers'", "from 1 to 4096"}},
    {moe_text, NULL, "num_experts_per_tok", "9", {"given 9", "number of experts, 8"}},
    {moe_text, NULL, "num_experts_per_tok", "0", {"'num_experts_per_tok': given 0"}},
    {moe_text, NULL, "num_experts", "0", {"key 'num_experts': given 0"}},
    {moe_text, NULL, "num_key_value_heads", "3", {"given 3", "num_attention_heads = 4"}},
    {moe_text, NULL, "num_key_value_heads", "8", {"given 8", "num_attention_heads = 4"}},
    {moe_text, NULL, "head_dim", "15", {"key 'head_dim': given 15", "an even integer"}},
    {llama_text, NULL, "num_attention_heads", "6", {"64 / 6", "'head_dim' is missing"}},
    {llama_text, NULL, "hidden_size", "60", {"60 / 4", "no even integer"}},
    {moe_text, NULL, "mlp_only_layers", "[4]", {"'mlp_only_layers[0]': given 4", "from 0 to 3"}},
    {moe_text, NULL, "mlp_only_layers", "[0,-1]", {"'mlp_only_layers[1]': given -1"}},
    {moe_text, NULL, "mlp_only_layers", "[0,1,2,3]", {"no layer with experts", "'mlp_only_lay"}},
    {moe_text, NULL, "decoder_sparse_step", "0", {"key 'decoder_sparse_step': given 0"}},
    {moe_text, NULL, "decoder_sparse_step", "5", {"no layer with experts"}},
    {moe_text, NULL, "rms_norm_eps", "0", {"key 'rms_norm_eps': given 0", "above 0"}},
    {moe_text, NULL, "initializer_range", "-1", {"key 'initializer_range': given -1"}},
    {moe_text, NULL, "router_aux_loss_coef", "-0.5", {"key 'router_aux_loss_coef': given -0.5"}},
    {moe_text, NULL, "rope_theta", "0", {"key 'rope_theta': given 0", "above 0"}},
    {moe_text, NULL, "torch_dtype", "\"int8\"", {"'torch_dtype': given \"int8\"", "bfloat16"}},
    {moe_text, NULL, "torch_dtype", "\"uint8\"", {"'torch_dtype': given \"uint8\"", "float32"}},
    {moe_text, NULL, "torch_dtype", "\"bfloat61\"", {"did you mean 'bfloat16'?"}},
    /* products */
    {moe_text, NULL, "moe_intermediate_size", "2147483647", {NULL}}, /* still countable */
    {moe_text, NULL, "intermediate_size", "2147483647", {NULL}},
    /* two spellings with two values */
    {moe_text, NULL, "num_local_experts", "16", {"'num_experts' and 'num_local_experts'", "8 and"}},
    {moe_text, NULL, "num_local_experts", "8", {NULL}},
    {moe_text, NULL, "experts_per_token", "4", {"'experts_per_token'", "2 and 4", "one value"}},
    {moe_text, NULL, "dtype", "\"float32\"", {"'torch_dtype' and 'dtype'", "\"float32\""}},
    {moe_text,
     NULL,
     "rope_scaling",
     "{\"rope_type\": \"default\", \"rope_theta\": 5}",
     {"'rope_theta' and 'rope_scaling.rope_theta'", "10000 and 5"}},
    {moe_text,
     NULL,
     "rope_parameters",
     "{\"rope_type\": \"default\", \"rope_theta\": 5}",
     {"'rope_theta' and 'rope_parameters.rope_theta'", "10000 and 5"}},
    {llama_text,
     NULL,
     "rope_parameters",
     "{\"rope_type\": \"default\"}",
     {"'rope_scaling' and 'rope_parameters'", "two values"}},
    {llama_text, "rope_scaling", "type", "\"yarn\"", {"'rope_scaling.rope_type' and 'type'"}},
    {llama_text, "rope_scaling", "type", "\"llama3\"", {NULL}},
    /* rotary embedding */
    {llama_text,
     "rope_scaling",
     "rope_type",
     "\"yarn\"",
     {"key 'rope_scaling.rope_type': given \"yarn\"", "default, llama3"}},
    {llama_text, "rope_scaling", "rope_type", "\"llama\"", {"did you mean 'llama3'?"}},
    {llama_text,
     "rope_scaling",
     "rope_type",
     GONE,
     {"key 'rope_scaling.factor' is unknown", "rope_type is default"}},
    {llama_text, "rope_scaling", "factor", GONE, {"key 'rope_scaling.factor' is missing"}},
    {llama_text, "rope_scaling", "factor", "0.5", {"'rope_scaling.factor': given 0.5"}},
    {llama_text, "rope_scaling", "low_freq_factor", "0", {"low_freq_factor': given 0", "above 0"}},
    {llama_text, "rope_scaling", "high_freq_factor", "1", {"a number above low_freq_factor"}},
    {llama_text,
     "rope_scaling",
     "original_max_position_embeddings",
     "1.5",
     {"'rope_scaling.original_max_position_embeddings': given 1.5"}},
    {llama_text, "rope_scaling", "faktor", "8", {"'rope_scaling.faktor'", "mean 'factor'?"}},
    {llama_text, "rope_scaling", "partial_rotary_factor", "0.5", {"given 0.5", "whole heads"}},
    {moe_text, NULL, "partial_rotary_factor", "0.5", {"'partial_rotary_factor': given 0.5"}},
    {moe_text, NULL, "partial_rotary_factor", "1.0", {NULL}},
    /* what pleat does not do */
    {moe_text, NULL, "use_sliding_window", "true", {"key 'use_sliding_window': given true"}},
    {llama_text, NULL, "sliding_window", "4096", {"key 'sliding_window': given 4096", "llama"}},
    {llama_text, NULL, "sliding_window", "null", {NULL}},
    {moe_text,
     NULL,
     "layer_types",
     "[\"full_attention\", \"sliding_attention\", \"full_attention\", \"full_attention\"]",
     {"key 'layer_types[1]': given \"sliding_attention\"", "full_attention"}},
    {moe_text, NULL, "layer_types", "[\"full_attention\"]", {"key 'layer_types'", "each of num_h"}},
    {moe_text, NULL, "hidden_act", "\"gelu\"", {"key 'hidden_act': given \"gelu\"", "\"silu\""}},
    {moe_text, NULL, "attention_dropout", "0.1", {"'attention_dropout': given 0.1", "allowed: 0"}},
    {moe_text,
     NULL,
     "quantization_config",
     "{\"quant_method\": \"fp8\"}",
     {"key 'quantization_config': given {\"quant_method\":\"fp8\"}", "unquantized"}},
    {moe_text, NULL, "num_nextn_predict_layers", "1", {"'num_nextn_predict_layers': given 1"}},
    {moe_text, NULL, "num_nextn_predict_layers", "0", {NULL}},
    /* keys of other model types, other libraries, and misspelt ones */
    {llama_text, NULL, "num_experts", "8", {"'num_experts': given 8", "qwen3_moe", "is llama"}},
    {dense_text, NULL, "norm_topk_prob", "true", {"'norm_topk_prob'", "is qwen3;"}},
    {moe_text, NULL, "mlp_bias", "true", {"key 'mlp_bias': given true", "model_type llama"}},
    {moe_text, NULL, "mlp_bias", "false", {NULL}},
    {moe_text, NULL, "n_routed_experts", "8", {"key 'n_routed_experts'", "write 'num_experts'"}},
    {moe_text, NULL, "moe_topk", "2", {"key 'moe_topk'", "write 'num_experts_per_tok'"}},
    {moe_text, NULL, "n_layer", "2", {"key 'n_layer'", "write 'num_hidden_layers'"}},
    {moe_text, NULL, "n_shared_experts", "2", {"no shared experts"}},
    {moe_text, NULL, "hiden_size", "64", {"'hiden_size' is unknown", "mean 'hidden_size'?"}},
    {moe_text, NULL, "num_attention_head", "4", {"did you mean 'num_attention_heads'?"}},
    {moe_text, NULL, "quite_something_else", "4", {"key 'quite_something_else' is unknown"}},
    /* Mixtral */
    {mixtral_text, NULL, "num_local_experts", GONE, {"key 'num_local_experts' is missing"}},
    {mixtral_text, NULL, "num_local_experts", "0", {"'num_local_experts': given 0", "from 1"}},
    {mixtral_text, NULL, "intermediate_size", GONE, {"key 'intermediate_size' is missing"}},
    {mixtral_text,
     NULL,
     "num_experts_per_tok",
     "9",
     {"'num_experts_per_tok': given 9", "number of experts, 8"}},
    {mixtral_text, NULL, "num_key_value_heads", GONE, {"key 'num_key_value_heads' is missing"}},
    {mixtral_text, NULL, "num_attention_heads", "6", {"64 / 6", "'head_dim' is missing"}},
    {mixtral_text, NULL, "head_dim", "15", {"'head_dim': given 15", "an even integer"}},
    {mixtral_text, NULL, "head_dim", "null", {NULL}},
    {mixtral_text,
     NULL,
     "sliding_window",
     "4096",
     {"'sliding_window': given 4096", "null (pleat has no sliding windows)"}},
    {mixtral_text,
     NULL,
     "sliding_window",
     "\"wide\"",
     {"'sliding_window': given \"wide\"", "an integer"}},
    {mixtral_text,
     NULL,
     "use_sliding_window",
     "true",
     {"'use_sliding_window': given true", "qwen3, qwen3_moe and this is mixtral"}},
    {mixtral_text,
     NULL,
     "router_jitter_noise",
     "0.1",
     {"'router_jitter_noise': given 0.1", "0 (pleat routes without noise)"}},
    {mixtral_text, NULL, "router_jitter_noise", "0.0", {NULL}},
    {mixtral_text, NULL, "router_aux_loss_coef", "-1", {"'router_aux_loss_coef': given -1"}},
    {mixtral_text,
     NULL,
     "attention_bias",
     "true",
     {"'attention_bias': given true", "and this is mixtral"}},
    {mixtral_text, NULL, "attention_bias", "false", {NULL}},
    {mixtral_text,
     NULL,
     "norm_topk_prob",
     "true",
     {"'norm_topk_prob': given true", "qwen3_moe, deepseek_v2 and this is mixtral"}},
    {mixtral_text,
     NULL,
     "num_experts",
     "8",
     {"key 'num_experts' is not a key of model_type mixtral", "write 'num_local_experts'"}},
    {mixtral_text,
     NULL,
     "moe_intermediate_size",
     "24",
     {"'moe_intermediate_size'", "write 'intermediate_size'"}},
    {mixtral_text,
     NULL,
     "moe_num_experts",
     "8",
     {"'moe_num_experts'", "write 'num_local_experts'"}},
    {mixtral_text, NULL, "n_shared_experts", "2", {"'n_shared_experts'", "no shared experts"}},
    {mixtral_text, NULL, "n_shared_experts", "null", {NULL}},
    {mixtral_text,
     NULL,
     "mlp_only_layers",
     "[0]",
     {"'mlp_only_layers': given [0]", "belongs to model_type qwen3_moe"}},
    {mixtral_text,
     NULL,
     "rope_scaling",
     "{\"type\": \"yarn\", \"factor\": 4}",
     {"'rope_scaling.type': given \"yarn\"", "default, llama3"}},
    {mixtral_text,
     NULL,
     "layer_types",
     "[\"full_attention\", \"sliding_attention\", \"full_attention\", \"full_attention\"]",
     {"'layer_types[1]'"}},
    {mixtral_text, NULL, "hidden_act", "\"gelu\"", {"'hidden_act': given \"gelu\"", "\"silu\""}},
    {mixtral_text, NULL, "hidden_act", "\"silu\"", {NULL}},
    /* DeepSeek-V2: sizes */
    {deepseek_text,
     NULL,
     "q_lora_rank",
     GONE,
     {"key 'q_lora_rank' is missing", "or null for none"}},
    {deepseek_text, NULL, "q_lora_rank", "null", {NULL}},
    {deepseek_text, NULL, "q_lora_rank", "0", {"'q_lora_rank': given 0", "from 1"}},
    {deepseek_text, NULL, "kv_lora_rank", GONE, {"key 'kv_lora_rank' is missing"}},
    {deepseek_text, NULL, "kv_lora_rank", "null", {"'kv_lora_rank': given null"}},
    {deepseek_text, NULL, "qk_nope_head_dim", GONE, {"key 'qk_nope_head_dim' is missing"}},
    {deepseek_text, NULL, "qk_rope_head_dim", GONE, {"key 'qk_rope_head_dim' is missing"}},
    {deepseek_text,
     NULL,
     "qk_rope_head_dim",
     "7",
     {"'qk_rope_head_dim': given 7", "an even integer"}},
    {deepseek_text, NULL, "v_head_dim", GONE, {"key 'v_head_dim' is missing"}},
    {deepseek_text, NULL, "v_head_dim", "\"14\"", {"'v_head_dim': given \"14\"", "an integer"}},
    {deepseek_text,
     NULL,
     "num_key_value_heads",
     "2",
     {"'num_key_value_heads': given 2", "num_attention_heads = 4"}},
    {deepseek_text, NULL, "num_key_value_heads", GONE, {NULL}},
    {deepseek_text,
     NULL,
     "head_dim",
     "16",
     {"'head_dim': given 16", "qk_rope_head_dim = 6, or leave it out"}},
    {deepseek_text, NULL, "head_dim", "6", {NULL}},
    {deepseek_text,
     NULL,
     "qk_head_dim",
     "6",
     {"'qk_head_dim': given 6", "qk_nope_head_dim + qk_rope_head_dim = 16"}},
    {deepseek_text, NULL, "qk_head_dim", "16", {NULL}},
    {deepseek_text, NULL, "n_routed_experts", GONE, {"key 'n_routed_experts' is missing"}},
    {deepseek_text,
     NULL,
     "n_shared_experts",
     GONE,
     {"key 'n_shared_experts' is missing", "or null for none"}},
    {deepseek_text, NULL, "n_shared_experts", "0", {"'n_shared_experts': given 0"}},
    {deepseek_text, NULL, "n_shared_experts", "null", {NULL}},
    {deepseek_text,
     NULL,
     "moe_intermediate_size",
     GONE,
     {"key 'moe_intermediate_size' is missing"}},
    {deepseek_text, NULL, "intermediate_size", GONE, {"key 'intermediate_size' is missing"}},
    {deepseek_text, NULL, "num_experts_per_tok", "9", {"given 9", "number of experts, 8"}},
    /* DeepSeek-V2: layers and routing */
    {deepseek_text,
     NULL,
     "first_k_dense_replace",
     "4",
     {"'first_k_dense_replace': given 4", "from 0 to 3"}},
    {deepseek_text, NULL, "first_k_dense_replace", "-1", {"'first_k_dense_replace': given -1"}},
    {deepseek_text, NULL, "first_k_dense_replace", "0", {NULL}},
    {deepseek_text, NULL, "first_k_dense_replace", GONE, {NULL}},
    {deepseek_text, NULL, "moe_layer_freq", "2", {"'moe_layer_freq': given 2", "allowed: 1"}},
    {deepseek_text, NULL, "moe_layer_freq", GONE, {NULL}},
    {deepseek_text,
     NULL,
     "topk_method",
     "\"noaux_tc\"",
     {"'topk_method': given \"noaux_tc\"", "greedy, group_limited_greedy"}},
    {deepseek_text, NULL, "topk_method", "\"greedi\"", {"did you mean 'greedy'?"}},
    {deepseek_text, NULL, "topk_method", "1", {"'topk_method': given 1", "a string"}},
    {deepseek_text, NULL, "topk_method", "\"greedy\"", {NULL}},
    {deepseek_text, NULL, "topk_method", GONE, {NULL}},
    {deepseek_text, NULL, "n_group", GONE, {"key 'n_group' is missing"}},
    {deepseek_text,
     NULL,
     "n_group",
     "3",
     {"'n_group': given 3", "a divisor of n_routed_experts = 8"}},
    {deepseek_text, NULL, "topk_group", GONE, {"key 'topk_group' is missing"}},
    {deepseek_text, NULL, "topk_group", "5", {"'topk_group': given 5", "from 1 to 4"}},
    {deepseek_text,
     NULL,
     "topk_group",
     "1",
     {"'topk_group': given 1", "groups of 2 experts that hold the 3"}},
    {deepseek_text,
     NULL,
     "scoring_func",
     "\"sigmoid\"",
     {"'scoring_func': given \"sigmoid\"", "\"softmax\""}},
    {deepseek_text, NULL, "norm_topk_prob", "true", {"'norm_topk_prob': given true", "false"}},
    {deepseek_text, NULL, "norm_topk_prob", "0", {"'norm_topk_prob': given 0", "true or false"}},
    {deepseek_text,
     NULL,
     "routed_scaling_factor",
     "0",
     {"'routed_scaling_factor': given 0", "above 0"}},
    {deepseek_text, NULL, "aux_loss_alpha", "-1", {"'aux_loss_alpha': given -1"}},
    {deepseek_text, NULL, "seq_aux", "1", {"'seq_aux': given 1", "true or false"}},
    /* DeepSeek-V2: rotary embedding */
    {deepseek_text,
     "rope_scaling",
     "type",
     "\"llama3\"",
     {"'rope_scaling.type': given \"llama3\"", "default, yarn"}},
    {deepseek_text, "rope_scaling", "factor", GONE, {"key 'rope_scaling.factor' is missing"}},
    {deepseek_text, "rope_scaling", "factor", "0.5", {"'rope_scaling.factor': given 0.5"}},
    {deepseek_text,
     "rope_scaling",
     "original_max_position_embeddings",
     GONE,
     {"'rope_scaling.original_max_position_embeddings' is missing"}},
    {deepseek_text,
     "rope_scaling",
     "beta_slow",
     "0",
     {"'rope_scaling.beta_slow': given 0", "above 0"}},
    {deepseek_text,
     "rope_scaling",
     "beta_fast",
     "1",
     {"'rope_scaling.beta_fast': given 1", "above beta_slow"}},
    {deepseek_text, "rope_scaling", "beta_fast", GONE, {NULL}},
    {deepseek_text, "rope_scaling", "beta_slow", GONE, {NULL}},
    {deepseek_text,
     "rope_scaling",
     "mscale",
     "0",
     {"'rope_scaling.mscale': given 0", "or neither"}},
    {deepseek_text,
     "rope_scaling",
     "mscale",
     GONE,
     {"key 'rope_scaling.mscale' is missing", "or neither"}},
    {deepseek_text,
     "rope_scaling",
     "mscale_all_dim",
     GONE,
     {"key 'rope_scaling.mscale_all_dim' is missing", "or neither"}},
    {deepseek_text,
     "rope_scaling",
     "attention_factor",
     "1",
     {"'rope_scaling.attention_factor' is unknown", "rope_type is yarn"}},
    {deepseek_text,
     "rope_scaling",
     "low_freq_factor",
     "1",
     {"'rope_scaling.low_freq_factor' is unknown", "rope_type is yarn"}},
    {deepseek_text, "rope_scaling", "rope_type", "\"yarn\"", {NULL}},
    {deepseek_text,
     "rope_scaling",
     "rope_type",
     "\"default\"",
     {"'rope_scaling.rope_type' and 'type'"}},
    {deepseek_text,
     NULL,
     "rope_scaling",
     "{\"type\": \"yarn\", \"factor\": 40, \"beta_slow\": 32, "
     "\"original_max_position_embeddings\": 64}",
     {"'rope_scaling.beta_slow': given 32", "below beta_fast, which is 32"}},
    {deepseek_text, NULL, "rope_scaling", "null", {NULL}},
    /* DeepSeek-V2: keys of other families */
    {deepseek_text,
     NULL,
     "num_experts",
     "8",
     {"'num_experts' is not a key of model_type deepseek_v2", "write 'n_routed_experts'"}},
    {deepseek_text,
     NULL,
     "num_local_experts",
     "8",
     {"'num_local_experts'", "write 'n_routed_experts'"}},
    {deepseek_text,
     NULL,
     "mlp_only_layers",
     "[0]",
     {"'mlp_only_layers'", "write 'first_k_dense_replace'"}},
    {deepseek_text,
     NULL,
     "router_aux_loss_coef",
     "0.1",
     {"'router_aux_loss_coef'", "write 'aux_loss_alpha'"}},
    {deepseek_text, NULL, "shared_expert_intermediate_size", "48", {"write 'n_shared_experts'"}},
    {deepseek_text,
     NULL,
     "sliding_window",
     "4096",
     {"'sliding_window': given 4096", "qwen3, qwen3_moe, mixtral and this is deepseek_v2"}},
    {deepseek_text, NULL, "mlp_bias", "true", {"'mlp_bias': given true", "model_type llama"}},
    {deepseek_text,
     NULL,
     "kv_lora_ranks",
     "12",
     {"'kv_lora_ranks' is unknown", "mean 'kv_lora_rank'?"}},
    {deepseek_text, NULL, "ep_size", "1", {NULL}},
    {llama_text,
     NULL,
     "q_lora_rank",
     "20",
     {"'q_lora_rank': given 20", "deepseek_v2 and this is llama"}},
    {moe_text, NULL, "aux_loss_alpha", "0.1", {"'aux_loss_alpha'", "write 'router_aux_loss_coef'"}},
    {moe_text, NULL, "first_k_dense_replace", "1", {"list the dense layers in 'mlp_only_layers'"}},
    {moe_text,
     NULL,
     "v_head_dim",
     "16",
     {"'v_head_dim': given 16", "deepseek_v2 and this is qwen3_moe"}},
    /* harmless ones */
    {moe_text, NULL, "max_window_layers", "48", {NULL}},
    {moe_text, NULL, "eos_token_id", "[1, 2]", {NULL}},
    {llama_text, NULL, "pretraining_tp", "1", {NULL}},
    {llama_text, NULL, "architectures", "[\"LlamaForCausalLM\"]", {NULL}},
};

enum { FAULTS = sizeof faults / sizeof *faults };

static char *faulty_text(const fault *f)
{
    json_error_t error;
    json_t *config = json_loads(f->base, 0, &error);
    assert_non_null(config);
    json_t *object = f->object ? json_object_get(config, f->object) : config;
    if (f->value) {
        json_t *value = json_loads(f->value, JSON_DECODE_ANY, &error);
        if (!value) fail_msg("%s", f->value);
        assert_int_equal(json_object_set_new(object, f->key, value), 0);
    } else {
        assert_int_equal(json_object_del(object, f->key), 0);
    }
    char *text = json_dumps(config, JSON_REAL_PRECISION(15));
    json_decref(config);
    assert_non_null(text);
    return text;
}

static pl_status parse_status(const char *text)
{
    pl_model model;
    pl_status status = pl_model_parse(&model, text, "wrong.json", "wrong");
    if (status == PL_OK) pl_model_free(&model);
    return status;
}

static void right_configs_are_accepted(void **state)
{
    (void)state;
    assert_ok(parse_status(moe_text));
    assert_ok(parse_status(llama_text));
    assert_ok(parse_status(dense_text));
    assert_ok(parse_status(mixtral_text));
    assert_ok(parse_status(deepseek_text));
}

static void check_fault(const fault *f)
{
    char *text = faulty_text(f);
    if (f->words[0])
        assert_fails(PL_BAD_INPUT, parse_status(text), "wrong.json: ", f->words[0],
                     f->words[1] ? f->words[1] : "", f->words[2] ? f->words[2] : "");
    else
        assert_ok(parse_status(text));
    free(text);
}

static void each_fault_is_named(void **state)
{
    (void)state;
    int refused = 0;
    for (int i = 0; i < FAULTS; ++i) {
        check_fault(&faults[i]);
        refused += faults[i].words[0] != NULL;
    }
    assert_true(refused >= 160);
}

static void bad_json_has_a_position(void **state)
{
    (void)state;
    assert_fails(PL_BAD_INPUT, parse_status("{\"vocab_size\": 1,\n  \"hidden_size\" 64}"),
                 "wrong.json:2:18:");
    assert_fails(PL_BAD_INPUT, parse_status("{\"vocab_size\": 1,\n\"vocab_size\": 2}"),
                 "wrong.json:2:", "duplicate", "vocab_size");
    assert_fails(PL_BAD_INPUT, parse_status("[]"), "wrong.json: the whole text", "an object");
    assert_fails(PL_BAD_INPUT, parse_status(""), "wrong.json:1:0:");
}

static void other_model_types_are_unsupported(void **state)
{
    (void)state;
    assert_fails(PL_UNSUPPORTED, parse_status("{\"model_type\": \"gpt_oss\", \"n_embd\": 3}"),
                 "wrong.json: key 'model_type': given \"gpt_oss\"",
                 "llama, qwen3, qwen3_moe, mixtral, deepseek_v2");
    assert_fails(PL_UNSUPPORTED, parse_status("{\"model_type\": \"qwen3-moe\"}"),
                 "did you mean 'qwen3_moe'?");
    assert_fails(PL_UNSUPPORTED, parse_status("{\"model_type\": \"qwen2_moe\"}"), "qwen2_moe");
    assert_null(strstr(pl_error_text(), "did you mean")); /* another version is no slip */
}

/* A fact that another family alone has would be lost. */
static void facts_of_one_family_are_refused_in_others(void **state)
{
    (void)state;
    static const char *const deepseek_only[] = {
        "aux_loss_alpha", "first_k_dense_replace", "kv_lora_rank", "moe_layer_freq",
        "n_group",        "n_routed_experts",      "q_lora_rank",  "n_shared_experts",
        "qk_head_dim",    "qk_nope_head_dim",      "topk_group",   "qk_rope_head_dim",
        "topk_method",    "routed_scaling_factor", "scoring_func", "seq_aux",
        "v_head_dim"};
    static const char *const others[] = {llama_text, dense_text, moe_text, mixtral_text};
    for (size_t key = 0; key < sizeof deepseek_only / sizeof *deepseek_only; ++key)
        for (size_t i = 0; i < sizeof others / sizeof *others; ++i) {
            check_fault(&(fault){others[i], NULL, deepseek_only[key], "8", {deepseek_only[key]}});
            check_fault(&(fault){others[i], NULL, deepseek_only[key], "null", {NULL}});
        }
}

static void families_without_plans_are_named(void **state)
{
    (void)state;
    pl_model model;
    assert_ok(pl_model_parse(&model, mixtral_text, "x.json", "small"));
    assert_fails(PL_UNSUPPORTED, pl_model_check_planned(&model), "small has model_type mixtral",
                 "neither checked nor trained", "allowed: llama, qwen3, qwen3_moe");
    pl_model_free(&model);
    assert_ok(pl_model_parse(&model, deepseek_text, "x.json", "small"));
    assert_fails(PL_UNSUPPORTED, pl_model_check_planned(&model),
                 "small has model_type deepseek_v2");
    pl_model_free(&model);
    assert_ok(pl_model_parse(&model, moe_text, "x.json", "small"));
    assert_ok(pl_model_check_planned(&model));
    pl_model_free(&model);
}

/* Sizes that pass one by one but multiply past 63 bits, or leave no room for bytes. */
static void products_are_checked(void **state)
{
    (void)state;
#define SIZES(vocabulary, hidden, experts, width)                                                  \
    "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 4, \"num_attention_heads\": 4, "       \
    "\"num_key_value_heads\": 2, \"head_dim\": 16, \"max_position_embeddings\": 128, "             \
    "\"num_experts_per_tok\": 2, \"vocab_size\": " vocabulary ", \"hidden_size\": " hidden         \
    ", \"num_experts\": " experts ", \"moe_intermediate_size\": " width "}"
    assert_fails(PL_BAD_INPUT, parse_status(SIZES("8", "64", "2147483647", "2147483647")),
                 "mlp.experts.gate_proj.weight", "does not fit 63 bits", "wrong.json");
    assert_fails(PL_BAD_INPUT, parse_status(SIZES("8", "2147483647", "2147483647", "2147483647")),
                 "does not fit 63 bits", "wrong.json");
    assert_fails(PL_BAD_INPUT, parse_status(SIZES("2147483647", "2147483647", "2147483647", "2")),
                 "does not fit 63 bits", "parameters of the model");
    assert_fails(PL_BAD_INPUT, parse_status(SIZES("1000000000", "1000000000", "8", "2")),
                 "wrong.json: the sizes multiply to", "parameters; allowed: at most");
    assert_ok(parse_status(SIZES("2147483647", "16777216", "8", "2")));
#define LATENT(heads, parts, shared)                                                               \
    "{\"model_type\": \"deepseek_v2\", \"num_hidden_layers\": 1, \"vocab_size\": 8, "              \
    "\"hidden_size\": 2147483647, \"max_position_embeddings\": 128, \"kv_lora_rank\": 4, "         \
    "\"q_lora_rank\": null, \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, "                 \
    "\"qk_rope_head_dim\": 2, \"num_attention_heads\": " heads ", \"qk_nope_head_dim\": " parts    \
    ", \"v_head_dim\": " parts ", \"moe_intermediate_size\": " shared                              \
    ", \"n_shared_experts\": " shared "}"
    assert_fails(PL_BAD_INPUT, parse_status(LATENT("2147483647", "2147483647", "1")),
                 "self_attn.q_proj.weight", "does not fit 63 bits");
    assert_fails(PL_BAD_INPUT, parse_status(LATENT("1", "2", "2147483647")),
                 "mlp.shared_experts.gate_proj.weight", "does not fit 63 bits");
}

static void a_refused_model_is_left_alone(void **state)
{
    (void)state;
    pl_model model, kept;
    memset(&model, 0x5a, sizeof model);
    memset(&kept, 0x5a, sizeof kept);
    assert_fails(PL_BAD_INPUT, pl_model_parse(&model, "{}", "wrong.json", "wrong"), "model_type");
    assert_memory_equal(&model, &kept, sizeof kept);
}

static pl_status parse_misspelt(void)
{
    return parse_status("{\"model_type\": \"llama\", \"hiden_size\": 1}");
}

static void allocation_failures_are_reported(void **state)
{
    (void)state;
    for (int64_t after = 0;; ++after) {
        pl_allocation_fail_after(after);
        pl_status status = parse_misspelt();
        bool failed = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        assert_int_equal(status, failed ? PL_NO_MEMORY : PL_BAD_INPUT);
        if (failed) continue;
        assert_true(after > 0);
        return;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_configs_are_accepted),
        cmocka_unit_test(each_fault_is_named),
        cmocka_unit_test(bad_json_has_a_position),
        cmocka_unit_test(other_model_types_are_unsupported),
        cmocka_unit_test(facts_of_one_family_are_refused_in_others),
        cmocka_unit_test(families_without_plans_are_named),
        cmocka_unit_test(products_are_checked),
        cmocka_unit_test(a_refused_model_is_left_alone),
        cmocka_unit_test(allocation_failures_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
