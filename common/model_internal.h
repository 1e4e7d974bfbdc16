/* What the files model*.c share; for nobody else.
 *
 * pl_model_parse walks: JSON -> model type -> keys that may stand there (model_keys.c) -> facts
 * (model_read.c, model_attention.c, model_experts.c, model_rope.c) -> tensors (model_tensors.c).
 */
#ifndef PL_COMMON_MODEL_INTERNAL_H
#define PL_COMMON_MODEL_INTERNAL_H

#include <stddef.h>

#include "common/json.h"
#include "common/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Largest size of a config: such numbers still fit 32 bits with a sign. */
#define PL_MODEL_LARGEST_SIZE INT32_MAX
/* Bounds what a small file can make pleat allocate. */
#define PL_MODEL_MOST_LAYERS 4096

/* Every key of TOP is one that FAMILY reads, one that changes nothing, or one of another family
 * with a value that switches it off. Errors: PL_BAD_INPUT with the nearest key, or today's
 * spelling of a foreign one. */
pl_status pl_model_check_keys(const pl_json_node *top, pl_family family);

/* Fill the facts of MODEL (all but name and tensors) from TOP; layer_is_moe is allocated. */
pl_status pl_model_read_facts(pl_model *model, const pl_json_node *top);

/* Heads and their sizes; of DeepSeek-V2 those of its latent attention. */
pl_status pl_model_read_attention(pl_model *model, const pl_json_node *top);

/* Routed and shared experts, how a token chooses among them, and which layers have them. For
 * families with experts; layer_is_moe is there already. */
pl_status pl_model_read_experts(pl_model *model, const pl_json_node *top);

/* rope_theta and rope_scaling from their three spellings. */
pl_status pl_model_read_rope(pl_model *model, const pl_json_node *top);

/* *KEY_OUT is that of two spellings of one fact that TOP has; USUAL when it has none. Errors:
 * PL_BAD_INPUT, naming both, when it has both with two values. */
pl_status pl_model_either_key(const char **key_out, const pl_json_node *top, const char *usual,
                              const char *other);

/* The value of KEY, a number above BOUND; ALLOWED says so in words. Errors: PL_BAD_INPUT. */
pl_status pl_model_number_above(double *out, const pl_json_node *object, const char *key,
                                double bound, const char *allowed);

/* The value of KEY, an integer from 1 to PL_MODEL_LARGEST_SIZE. Errors: PL_BAD_INPUT. */
pl_status pl_model_read_size(int64_t *out, const pl_json_node *top, const char *key);

/* The same where KEY must stand but may be null, which is 0. Errors: PL_BAD_INPUT. */
pl_status pl_model_size_or_null(int64_t *out, const pl_json_node *top, const char *key);

/* The value of KEY, false where it does not stand. Errors: PL_BAD_INPUT. */
pl_status pl_model_optional_boolean(bool *out, const pl_json_node *top, const char *key);

/* KEY, where it stands, is the number VALUE; ALLOWED says so in words. Errors: PL_BAD_INPUT. */
pl_status pl_model_must_be(const pl_json_node *top, const char *key, double value,
                           const char *allowed);

/* KEY, where it stands, is the string VALUE. Errors: PL_BAD_INPUT. */
pl_status pl_model_must_be_string(const pl_json_node *top, const char *key, const char *value,
                                  const char *allowed);

/* Make the tensors of MODEL from its facts. Errors: PL_BAD_INPUT when they are too large to
 * count in bytes; PL_NO_MEMORY. MODEL keeps what was made so far. */
pl_status pl_model_build_tensors(pl_model *model, const char *source);

/* The configs of testdata/models, made into C by cmake/embed_models.cmake. Sorted by name. */
typedef struct pl_builtin_model {
    const char *text;
    size_t length;
} pl_builtin_model;

extern const char *const pl_builtin_model_names[];
extern const pl_builtin_model pl_builtin_models[];
extern const int pl_builtin_model_count;

#ifdef __cplusplus
}
#endif
#endif
