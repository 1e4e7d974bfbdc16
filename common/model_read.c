/* The facts of a config.json. Sizes are never filled in; what else a file may leave out gets the
 * value that the model's class in transformers gives it. */
#include <float.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "common/memory.h"
#include "common/model_internal.h"

static bool same_value(const json_t *a, const json_t *b)
{
    if (json_is_integer(a) && json_is_integer(b))
        return json_integer_value(a) == json_integer_value(b);
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

pl_status pl_model_either_key(const char **key_out, const pl_json_node *top, const char *usual,
                              const char *other)
{
    char given_usual[PL_JSON_WORDS], given_other[PL_JSON_WORDS], where[PL_JSON_WORDS];
    bool has_usual = pl_json_has(top, usual), has_other = pl_json_has(top, other);
    if (has_usual && has_other) {
        pl_json_node a, b;
        PL_TRY(pl_json_member(&a, top, usual, ""));
        PL_TRY(pl_json_member(&b, top, other, ""));
        if (!same_value(a.value, b.value))
            return PL_FAIL(PL_BAD_INPUT,
                           "%s and '%s' spell one fact with two values, %s and %s; allowed: one "
                           "of them, or one value",
                           pl_json_where(&a, where), other, pl_json_given(&a, given_usual),
                           pl_json_given(&b, given_other));
    }
    *key_out = has_other && !has_usual ? other : usual;
    return PL_OK;
}

pl_status pl_model_number_above(double *out, const pl_json_node *object, const char *key,
                                double bound, const char *allowed)
{
    pl_json_node node;
    PL_TRY(pl_json_member(&node, object, key, allowed));
    double value = json_number_value(node.value);
    if (!json_is_number(node.value) || value <= bound) return pl_json_refuse(&node, allowed);
    *out = value;
    return PL_OK;
}

pl_status pl_model_read_size(int64_t *out, const pl_json_node *top, const char *key)
{
    return pl_json_integer(out, top, key, 1, PL_MODEL_LARGEST_SIZE);
}

pl_status pl_model_size_or_null(int64_t *out, const pl_json_node *top, const char *key)
{
    pl_json_node node;
    *out = 0;
    PL_TRY(pl_json_member(&node, top, key, "an integer of at least 1, or null for none"));
    return pl_json_has(top, key) ? pl_model_read_size(out, top, key) : PL_OK;
}

pl_status pl_model_optional_boolean(bool *out, const pl_json_node *top, const char *key)
{
    *out = false;
    return pl_json_has(top, key) ? pl_json_boolean(out, top, key) : PL_OK;
}

static bool has_experts(pl_family family)
{
    return family == PL_FAMILY_QWEN3_MOE || family == PL_FAMILY_MIXTRAL ||
           family == PL_FAMILY_DEEPSEEK_V2;
}

static bool has_dense_layer(const pl_model *model)
{
    for (int64_t i = 0; i < model->num_hidden_layers; ++i)
        if (!model->layer_is_moe[i]) return true;
    return false;
}

/* A width that no layer has is checked and left out: the model is the same without it. */
static pl_status read_layers(pl_model *model, const pl_json_node *top)
{
    PL_TRY(pl_json_integer(&model->num_hidden_layers, top, "num_hidden_layers", 1,
                           PL_MODEL_MOST_LAYERS));
    PL_TRY(pl_allocate(&model->layer_is_moe, (size_t)model->num_hidden_layers,
                       sizeof *model->layer_is_moe, "layers of a model"));
    if (has_experts(model->family)) PL_TRY(pl_model_read_experts(model, top));
    if (has_dense_layer(model))
        PL_TRY(pl_model_read_size(&model->intermediate_size, top, "intermediate_size"));
    else if (pl_json_has(top, "intermediate_size")) {
        int64_t unused = 0;
        PL_TRY(pl_model_read_size(&unused, top, "intermediate_size"));
    }
    if (model->family != PL_FAMILY_LLAMA) return PL_OK;
    return pl_model_optional_boolean(&model->mlp_bias, top, "mlp_bias");
}

static pl_status read_numbers(pl_model *model, const pl_json_node *top)
{
    model->rms_norm_eps = model->family == PL_FAMILY_MIXTRAL ? 1e-5 : 1e-6;
    model->initializer_range = 0.02;
    if (pl_json_has(top, "rms_norm_eps"))
        PL_TRY(pl_model_number_above(&model->rms_norm_eps, top, "rms_norm_eps", 0,
                                     "a number above 0"));
    if (pl_json_has(top, "initializer_range"))
        PL_TRY(pl_json_number(&model->initializer_range, top, "initializer_range", 0, DBL_MAX));
    return pl_model_read_rope(model, top);
}

static pl_status read_dtype(pl_model *model, const pl_json_node *top)
{
    static const char *const names[] = {"bfloat16", "float16", "float32"};
    const char *key = NULL, *name = NULL;
    pl_json_node node;
    model->stored_dtype = PL_FP32;
    PL_TRY(pl_model_either_key(&key, top, "torch_dtype", "dtype"));
    if (!pl_json_has(top, key)) return PL_OK;
    PL_TRY(pl_json_member(&node, top, key, "a string"));
    PL_TRY(pl_json_as_string(&name, &node));
    for (int i = 0; i < 3; ++i)
        if (strcmp(name, names[i]) == 0 && pl_dtype_parse(&model->stored_dtype, name)) return PL_OK;
    return pl_json_refuse_choice(&node, name, names, 3);
}

pl_status pl_model_must_be(const pl_json_node *top, const char *key, double value,
                           const char *allowed)
{
    pl_json_node node;
    if (!pl_json_has(top, key)) return PL_OK;
    PL_TRY(pl_json_member(&node, top, key, allowed));
    if (json_is_number(node.value) && json_number_value(node.value) == value) return PL_OK;
    return pl_json_refuse(&node, allowed);
}

pl_status pl_model_must_be_string(const pl_json_node *top, const char *key, const char *value,
                                  const char *allowed)
{
    const char *given = NULL;
    pl_json_node node;
    if (!pl_json_has(top, key)) return PL_OK;
    PL_TRY(pl_json_member(&node, top, key, allowed));
    PL_TRY(pl_json_as_string(&given, &node));
    return strcmp(given, value) == 0 ? PL_OK : pl_json_refuse(&node, allowed);
}

/* A window of null acts nowhere; that of Mixtral everywhere, and that of the others where
 * use_sliding_window is true. */
static pl_status refuse_windows(const pl_model *model, const pl_json_node *top)
{
    static const char everywhere[] =
        "\"full_attention\" for each of num_hidden_layers (pleat has no sliding windows)";
    pl_json_node node;
    bool windows = false;
    PL_TRY(pl_model_optional_boolean(&windows, top, "use_sliding_window"));
    if (windows) {
        PL_TRY(pl_json_member(&node, top, "use_sliding_window", "false"));
        return pl_json_refuse(&node, "false (pleat has no sliding windows)");
    }
    if (pl_json_has(top, "sliding_window")) {
        int64_t unused = 0;
        PL_TRY(pl_json_integer(&unused, top, "sliding_window", 1, INT64_MAX));
        PL_TRY(pl_json_member(&node, top, "sliding_window", "null"));
        if (model->family == PL_FAMILY_MIXTRAL)
            return pl_json_refuse(&node, "null (pleat has no sliding windows)");
    }
    if (!pl_json_has(top, "layer_types")) return PL_OK;
    PL_TRY(pl_json_array(&node, top, "layer_types"));
    if (pl_json_length(&node) != model->num_hidden_layers) return pl_json_refuse(&node, everywhere);
    for (int64_t i = 0; i < pl_json_length(&node); ++i) {
        const char *type = NULL;
        pl_json_node element = pl_json_element(&node, i);
        PL_TRY(pl_json_as_string(&type, &element));
        if (strcmp(type, "full_attention") != 0) return pl_json_refuse(&element, everywhere);
    }
    return PL_OK;
}

/* What pleat does not do is refused: ignoring it would train another model. */
static pl_status refuse_features(const pl_model *model, const pl_json_node *top)
{
    pl_json_node node;
    PL_TRY(pl_model_must_be(top, "attention_dropout", 0, "0 (pleat trains without dropout)"));
    PL_TRY(pl_model_must_be(top, "num_nextn_predict_layers", 0,
                            "0 (pleat has no extra prediction layer)"));
    if (pl_json_has(top, "quantization_config")) {
        PL_TRY(pl_json_object(&node, top, "quantization_config"));
        return pl_json_refuse(&node, "null (pleat reads and trains unquantized weights only)");
    }
    PL_TRY(pl_model_must_be_string(top, "hidden_act", "silu", "\"silu\""));
    return refuse_windows(model, top);
}

static const char family_words[] = "llama, qwen3, qwen3_moe, mixtral, deepseek_v2";

static bool same_digits(const char *a, const char *b)
{
    static const char digits[] = "0123456789";
    for (;;) {
        a += strcspn(a, digits);
        b += strcspn(b, digits);
        if (*a != *b) return false;
        if (!*a) return true;
        ++a;
        ++b;
    }
}

/* Another number is another model (deepseek_v3), not a slip that asks for a suggestion. */
static pl_status refuse_family(const pl_json_node *node, const char *type, const char *const *names)
{
    const char *near = pl_nearest(type, names, PL_FAMILY_COUNT);
    pl_status status = near && !same_digits(near, type)
                           ? pl_json_refuse(node, family_words)
                           : pl_json_refuse_choice(node, type, names, PL_FAMILY_COUNT);
    if (status != PL_BAD_INPUT) return status;
    pl_error_context("pleat does not know this model type");
    return PL_UNSUPPORTED;
}

static pl_status read_family(pl_family *out, const pl_json_node *top)
{
    const char *names[PL_FAMILY_COUNT], *type = NULL;
    pl_json_node node;
    PL_TRY(pl_json_member(&node, top, "model_type", family_words));
    PL_TRY(pl_json_as_string(&type, &node));
    for (int i = 0; i < PL_FAMILY_COUNT; ++i) {
        names[i] = pl_family_name((pl_family)i);
        if (strcmp(type, names[i]) == 0) {
            *out = (pl_family)i;
            return PL_OK;
        }
    }
    return refuse_family(&node, type, names);
}

pl_status pl_model_read_facts(pl_model *model, const pl_json_node *top)
{
    PL_TRY(read_family(&model->family, top));
    PL_TRY(pl_model_check_keys(top, model->family));
    model->routed_scaling_factor = 1;
    PL_TRY(pl_model_read_size(&model->vocab_size, top, "vocab_size"));
    PL_TRY(pl_model_read_size(&model->hidden_size, top, "hidden_size"));
    PL_TRY(pl_model_read_size(&model->max_position_embeddings, top, "max_position_embeddings"));
    PL_TRY(pl_model_read_attention(model, top));
    PL_TRY(read_layers(model, top));
    PL_TRY(pl_model_optional_boolean(&model->tie_word_embeddings, top, "tie_word_embeddings"));
    PL_TRY(read_numbers(model, top));
    PL_TRY(read_dtype(model, top));
    return refuse_features(model, top);
}
