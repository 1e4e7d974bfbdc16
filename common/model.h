/* Models: what a Hugging Face config.json means in tensors.
 *
 * Tensors carry their Hugging Face names. Routed experts are stacked: the gate projections of all
 * experts of a layer are one tensor of experts*rows rows named "...mlp.experts.gate_proj.weight",
 * the global expert index outermost. Tensors stand in the order embedding, layers (attention norm
 * first, as the forward pass meets them; routed experts last, gate, up and down, which Mixtral
 * calls w1, w3 and w2), final norm, head; a tied head is no tensor of its own.
 *
 * Every family is read, laid out over ranks and has its weights read. Plans are made for those
 * alone of which pl_family_is_planned says so.
 */
#ifndef PL_COMMON_MODEL_H
#define PL_COMMON_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/dtype.h"
#include "common/status.h"
#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pl_family {
    PL_FAMILY_LLAMA,       /* model_type "llama" */
    PL_FAMILY_QWEN3,       /* "qwen3" */
    PL_FAMILY_QWEN3_MOE,   /* "qwen3_moe" */
    PL_FAMILY_MIXTRAL,     /* "mixtral" */
    PL_FAMILY_DEEPSEEK_V2, /* "deepseek_v2" */
    PL_FAMILY_COUNT
} pl_family;

/* What a tensor does. Text form as in testdata/models: "embedding", "dense_mlp", "routed", ... */
typedef enum pl_tensor_role {
    PL_TENSOR_EMBEDDING,
    PL_TENSOR_HEAD,
    PL_TENSOR_NORM,
    PL_TENSOR_ATTENTION,
    PL_TENSOR_DENSE_MLP,
    PL_TENSOR_ROUTER,
    PL_TENSOR_ROUTED,
    PL_TENSOR_SHARED,
    PL_TENSOR_ROLE_COUNT
} pl_tensor_role;

/* How a tensor is held: sharded over the dense group, by EP and the expert group, or whole on
 * every rank ("ignored" by sharding, fp32; chosen by keep_fp32 patterns). */
typedef enum pl_tensor_class {
    PL_CLASS_DENSE,
    PL_CLASS_EXPERT,
    PL_CLASS_IGNORED,
    PL_TENSOR_CLASS_COUNT
} pl_tensor_class;

typedef struct pl_tensor {
    pl_tensor_role role;
    pl_tensor_class class_; /* of placement, after keep_fp32 */
    bool frozen;            /* no gradient, no optimizer state, stored dtype kept */
    int layer;              /* -1 outside the layers */
    const char *suffix;     /* "self_attn.q_proj.weight" after "model.layers.N.", or the whole name
                               outside the layers ("model.norm.weight"); static */
    int64_t experts;        /* stacked experts; 0 for tensors that are no stack */
    int64_t rows;           /* of one expert, or of the tensor */
    int64_t cols;           /* 1 for vectors */
    int dimensions;         /* of the Hugging Face tensor: 1 or 2 */
} pl_tensor;

/* Rotary embedding scaling of config.json: none, Llama 3.1's, or DeepSeek-V2's "yarn". */
typedef struct pl_rope_scaling {
    bool llama3, yarn; /* one at most */
    double factor;
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow;              /* yarn */
    double mscale,
        mscale_all_dim; /* yarn; 1 and 0 where the file has neither: no scale of scores */
    int64_t original_max_position_embeddings;
} pl_rope_scaling;

/* Attention of DeepSeek-V2, which makes keys and values, and queries where q_lora_rank is not 0,
 * from vectors of fewer numbers. All 0 in the other families. */
typedef struct pl_latent_attention {
    int64_t q_lora_rank; /* 0: queries come from the hidden state in one product */
    int64_t kv_lora_rank;
    int64_t qk_nope_head_dim, qk_rope_head_dim; /* of a query or key: not turned, turned */
    int64_t v_head_dim;
} pl_latent_attention;

enum { PL_MODEL_NAME = 64 };

typedef struct pl_model {
    char name[PL_MODEL_NAME]; /* built-in name, or that of the file (config.json: of its folder) */
    pl_family family;
    int64_t vocab_size, hidden_size, num_hidden_layers;
    int64_t num_attention_heads, num_key_value_heads;
    int64_t head_dim; /* of a query or key: in DeepSeek-V2 both parts */
    pl_latent_attention latent;
    int64_t intermediate_size;                                       /* dense layers; 0 if none */
    int64_t num_experts, num_experts_per_tok, moe_intermediate_size; /* 0 for dense models */
    int64_t n_shared_experts;    /* one MLP, so many times as wide as an expert; 0: none */
    int64_t n_group, topk_group; /* experts are chosen in topk_group of n_group; 0: among all */
    int64_t max_position_embeddings;
    bool norm_topk_prob, tie_word_embeddings, attention_bias, mlp_bias;
    bool seq_aux; /* DeepSeek-V2's balance loss is meant by sequence */
    double rms_norm_eps, rope_theta, initializer_range;
    double router_aux_loss_coef;  /* aux_loss_alpha in DeepSeek-V2 */
    double routed_scaling_factor; /* of the routed experts' weights; 1 but in DeepSeek-V2 */
    pl_rope_scaling rope_scaling;
    pl_dtype stored_dtype; /* torch_dtype or dtype; fp32 when the file has neither */
    bool *layer_is_moe;    /* [num_hidden_layers], owned */
    pl_tensor *tensors;    /* owned */
    int64_t tensor_count;
} pl_model;

/* Read a config.json from FILE. Errors: PL_BAD_INPUT with file, line and column for bad JSON, or
 * file and key with what was given and what is allowed (missing key, wrong type, out of range,
 * two spellings with two values, a value that pleat does not do such as sliding windows);
 * PL_UNSUPPORTED for another model_type, naming those known. The caller frees with
 * pl_model_free. */
pl_status pl_model_read(pl_model *out, const char *file);

/* The same from TEXT; SOURCE stands for the file in messages; NAME is the model's name. */
pl_status pl_model_parse(pl_model *out, const char *text, const char *source, const char *name);

/* NAME is a built-in name ("qwen3-30b-a3b") or a path of a config.json or of a folder with one.
 * Errors as above; a name that is neither is answered with the nearest built-in one. */
pl_status pl_model_open(pl_model *out, const char *name);

/* Built-in names, sorted; COUNT_OUT receives their number. Static storage. */
const char *const *pl_model_builtin_names(int *count_out);

void pl_model_free(pl_model *model);

/* Whether any tensor is trained: not all are frozen. */
bool pl_model_is_trained(const pl_model *model);

/* Whether plans are made for models of FAMILY, and so whether they are checked and trained. */
bool pl_family_is_planned(pl_family family);

/* The same of MODEL, in words. Errors: PL_UNSUPPORTED, with the families that are planned. */
pl_status pl_model_check_planned(const pl_model *model);

/* The facts of MODEL as one line of JSON in transformers-4 spelling, fixed key order, from which
 * pl_model_parse makes an equal model. */
void pl_model_write(pl_text *text, const pl_model *model);

/* The same as a JSON object, freed with pl_json_free. Errors: PL_NO_MEMORY. */
struct json_t;
pl_status pl_model_facts(struct json_t **out, const pl_model *model);

/* Apply patterns to tensor names: '*' any run of characters, '?' one, otherwise literal and over
 * the whole name; a pattern without '*' or '?' also matches as a dotted part of the name
 * ("q_norm" matches "model.layers.3.self_attn.q_norm.weight"). KEEP_FP32 makes tensors ignored
 * (class PL_CLASS_IGNORED), FROZEN freezes them. Errors: PL_BAD_INPUT for a pattern that matches
 * nothing (nearest name given), or a keep_fp32 pattern that matches a routed expert. */
pl_status pl_model_apply_patterns(pl_model *model, const char *const *keep_fp32,
                                  int keep_fp32_count, const char *const *frozen, int frozen_count);

/* Add the Hugging Face name (stacked form for routed experts). */
void pl_tensor_name(pl_text *text, const pl_tensor *tensor);

/* Add the name of expert EXPERT of a routed tensor as it stands on disk:
 * "model.layers.3.mlp.experts.17.gate_proj.weight",
 * "model.layers.3.block_sparse_moe.experts.5.w1.weight". */
void pl_tensor_expert_name(pl_text *text, const pl_tensor *tensor, int64_t expert);

/* Rows of the whole (stacked) tensor, and its elements. Never overflow: checked on reading. */
int64_t pl_tensor_total_rows(const pl_tensor *tensor);
int64_t pl_tensor_elements(const pl_tensor *tensor);

typedef struct pl_parameter_counts {
    int64_t total, dense, routed;
    int64_t active; /* dense + routed * experts per token / experts */
    int64_t active_without_embedding, active_without_embedding_and_head;
    int64_t by_role[PL_TENSOR_ROLE_COUNT];
    int64_t tensors; /* on disk: routed tensors counted once an expert */
} pl_parameter_counts;

pl_parameter_counts pl_model_count(const pl_model *model);

const char *pl_tensor_role_name(pl_tensor_role role);
const char *pl_tensor_class_name(pl_tensor_class class_);
const char *pl_family_name(pl_family family); /* the model_type */

#ifdef __cplusplus
}
#endif
#endif
