/* Rotary embedding: rope_theta beside rope_scaling (transformers 4), all of it in rope_parameters
 * (transformers 5), or rope_theta inside rope_scaling. */
#include <float.h>
#include <string.h>

#include "common/model_internal.h"

static const char *const rope_types[] = {"default", "llama3"};

/* The keys of rope_type llama3; those of default are the first four. */
static const char *const rope_keys[] = {
    "rope_type",        "type",
    "rope_theta",       "partial_rotary_factor",
    "factor",           "low_freq_factor",
    "high_freq_factor", "original_max_position_embeddings",
};

enum { DEFAULT_KEYS = 4, LLAMA3_KEYS = 8 };

/* rope_theta and where it was found. */
typedef struct theta {
    double value;
    const char *key; /* NULL: nowhere yet */
} theta;

static pl_status take_theta(theta *found, const pl_json_node *object, const char *key)
{
    double value = 0;
    if (!pl_json_has(object, "rope_theta")) return PL_OK;
    PL_TRY(pl_model_number_above(&value, object, "rope_theta", 0, "a number above 0"));
    if (found->key && found->value != value)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: keys '%s' and '%s' spell one fact with two values, %.15g and %.15g; "
                       "allowed: one of them, or one value",
                       object->source, found->key, key, found->value, value);
    *found = (theta){.value = value, .key = key};
    return PL_OK;
}

static pl_status read_type(bool *llama3, const pl_json_node *object)
{
    const char *key = NULL, *type = rope_types[0];
    pl_json_node node;
    PL_TRY(pl_model_either_key(&key, object, "rope_type", "type"));
    *llama3 = false;
    if (!pl_json_has(object, key)) return PL_OK;
    PL_TRY(pl_json_member(&node, object, key, "default or llama3"));
    PL_TRY(pl_json_as_string(&type, &node));
    *llama3 = strcmp(type, rope_types[1]) == 0;
    if (*llama3 || strcmp(type, rope_types[0]) == 0) return PL_OK;
    return pl_json_refuse_choice(&node, type, rope_types, 2);
}

/* Llama 3.1's four numbers; the wavelengths they bound must not cross. */
static pl_status read_llama3(pl_rope_scaling *out, const pl_json_node *object)
{
    out->llama3 = true;
    PL_TRY(pl_json_number(&out->factor, object, "factor", 1, DBL_MAX));
    PL_TRY(pl_model_number_above(&out->low_freq_factor, object, "low_freq_factor", 0,
                                 "a number above 0"));
    PL_TRY(pl_model_number_above(&out->high_freq_factor, object, "high_freq_factor",
                                 out->low_freq_factor, "a number above low_freq_factor"));
    return pl_json_integer(&out->original_max_position_embeddings, object,
                           "original_max_position_embeddings", 1, PL_MODEL_LARGEST_SIZE);
}

/* A model whose rotary embedding turns only a part of each head is another model. */
static pl_status check_partial(const pl_json_node *object)
{
    const char *key = "partial_rotary_factor";
    const char *allowed = "1 (pleat turns whole heads)";
    pl_json_node node;
    double factor = 1;
    if (!pl_json_has(object, key)) return PL_OK;
    PL_TRY(pl_json_member(&node, object, key, allowed));
    PL_TRY(pl_json_as_number(&factor, &node, 0, DBL_MAX));
    return factor == 1 ? PL_OK : pl_json_refuse(&node, allowed);
}

static pl_status read_object(pl_rope_scaling *out, const pl_json_node *object)
{
    bool llama3 = false;
    PL_TRY(read_type(&llama3, object));
    pl_status status = pl_json_check_keys(object, rope_keys, llama3 ? LLAMA3_KEYS : DEFAULT_KEYS);
    if (status != PL_OK) {
        pl_error_context("rope_type is %s", rope_types[llama3]);
        return status;
    }
    PL_TRY(check_partial(object));
    return llama3 ? read_llama3(out, object) : PL_OK;
}

static bool scaling_equal(const pl_rope_scaling *a, const pl_rope_scaling *b)
{
    return a->llama3 == b->llama3 && a->factor == b->factor &&
           a->low_freq_factor == b->low_freq_factor && a->high_freq_factor == b->high_freq_factor &&
           a->original_max_position_embeddings == b->original_max_position_embeddings;
}

pl_status pl_model_read_rope(pl_model *model, const pl_json_node *top)
{
    static const struct {
        const char *key, *theta;
    } spellings[] = {{"rope_scaling", "rope_scaling.rope_theta"},
                     {"rope_parameters", "rope_parameters.rope_theta"}};
    theta found = {.value = 10000}; /* what the classes of transformers fill in */
    pl_rope_scaling scaling[2];
    bool has[2] = {false, false};
    memset(scaling, 0, sizeof scaling);
    PL_TRY(check_partial(top));
    PL_TRY(take_theta(&found, top, "rope_theta"));
    for (int i = 0; i < 2; ++i) {
        pl_json_node object;
        has[i] = pl_json_has(top, spellings[i].key);
        if (!has[i]) continue;
        PL_TRY(pl_json_object(&object, top, spellings[i].key));
        PL_TRY(read_object(&scaling[i], &object));
        PL_TRY(take_theta(&found, &object, spellings[i].theta));
    }
    if (has[0] && has[1] && !scaling_equal(&scaling[0], &scaling[1]))
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: keys 'rope_scaling' and 'rope_parameters' spell one fact with two "
                       "values; allowed: one of them, or equal ones",
                       top->source);
    model->rope_theta = found.value;
    model->rope_scaling = scaling[has[1] ? 1 : 0];
    return PL_OK;
}
