/* Rotary embedding: rope_theta beside rope_scaling (transformers 4), all of it in rope_parameters
 * (transformers 5), or rope_theta inside rope_scaling. */
#include <float.h>
#include <string.h>

#include "common/model_internal.h"

/* A way of scaling that a family may name beside "default": its keys follow the four of that. */
typedef struct rope_type {
    const char *name, *keys[10];
    int key_count;
} rope_type;

#define DEFAULT_ROPE_KEYS "rope_type", "type", "rope_theta", "partial_rotary_factor"

static const rope_type default_type = {"default", {DEFAULT_ROPE_KEYS}, 4};
static const rope_type llama3_type = {"llama3",
                                      {DEFAULT_ROPE_KEYS, "factor", "low_freq_factor",
                                       "high_freq_factor", "original_max_position_embeddings"},
                                      8};
static const rope_type yarn_type = {"yarn",
                                    {DEFAULT_ROPE_KEYS, "factor", "beta_fast", "beta_slow",
                                     "mscale", "mscale_all_dim",
                                     "original_max_position_embeddings"},
                                    10};

static const rope_type *scaled_type(pl_family family)
{
    return family == PL_FAMILY_DEEPSEEK_V2 ? &yarn_type : &llama3_type;
}

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

static pl_status read_type(const rope_type **out, const pl_json_node *object, pl_family family)
{
    const rope_type *scaled = scaled_type(family);
    const char *const names[] = {default_type.name, scaled->name};
    const char *key = NULL, *name = names[0];
    pl_json_node node;
    PL_TRY(pl_model_either_key(&key, object, "rope_type", "type"));
    *out = &default_type;
    if (!pl_json_has(object, key)) return PL_OK;
    PL_TRY(pl_json_member(&node, object, key, "a string"));
    PL_TRY(pl_json_as_string(&name, &node));
    if (strcmp(name, names[1]) == 0) *out = scaled;
    if (strcmp(name, (*out)->name) == 0) return PL_OK;
    return pl_json_refuse_choice(&node, name, names, 2);
}

static pl_status read_original_length(pl_rope_scaling *out, const pl_json_node *object)
{
    return pl_json_integer(&out->original_max_position_embeddings, object,
                           "original_max_position_embeddings", 1, PL_MODEL_LARGEST_SIZE);
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
    return read_original_length(out, object);
}

/* How much attention is scaled besides: both of mscale and mscale_all_dim or neither, since
 * implementations differ on what one alone means. */
static pl_status read_mscale(pl_rope_scaling *out, const pl_json_node *object)
{
    static const char allowed[] = "a number above 0 (mscale and mscale_all_dim, or neither)";
    out->mscale = 1;
    if (!pl_json_has(object, "mscale") && !pl_json_has(object, "mscale_all_dim")) return PL_OK;
    PL_TRY(pl_model_number_above(&out->mscale, object, "mscale", 0, allowed));
    return pl_model_number_above(&out->mscale_all_dim, object, "mscale_all_dim", 0, allowed);
}

/* DeepSeek-V2's; pairs that turn more than beta_fast times in the original length keep their
 * speed, those that turn less than beta_slow times are slowed down by the factor. */
static pl_status read_yarn(pl_rope_scaling *out, const pl_json_node *object)
{
    out->yarn = true;
    out->beta_fast = 32;
    out->beta_slow = 1;
    PL_TRY(pl_json_number(&out->factor, object, "factor", 1, DBL_MAX));
    if (pl_json_has(object, "beta_slow"))
        PL_TRY(pl_model_number_above(&out->beta_slow, object, "beta_slow", 0, "a number above 0"));
    if (pl_json_has(object, "beta_fast"))
        PL_TRY(pl_model_number_above(&out->beta_fast, object, "beta_fast", out->beta_slow,
                                     "a number above beta_slow"));
    if (out->beta_fast <= out->beta_slow) {
        pl_json_node node;
        PL_TRY(pl_json_member(&node, object, "beta_slow", "a number"));
        return pl_json_refuse(&node, "a number below beta_fast, which is 32 where it is left out");
    }
    PL_TRY(read_mscale(out, object));
    return read_original_length(out, object);
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

static pl_status read_object(pl_rope_scaling *out, const pl_json_node *object, pl_family family)
{
    const rope_type *type = NULL;
    PL_TRY(read_type(&type, object, family));
    pl_status status = pl_json_check_keys(object, type->keys, type->key_count);
    if (status != PL_OK) {
        pl_error_context("rope_type is %s", type->name);
        return status;
    }
    PL_TRY(check_partial(object));
    if (type == &llama3_type) return read_llama3(out, object);
    return type == &yarn_type ? read_yarn(out, object) : PL_OK;
}

static bool scaling_equal(const pl_rope_scaling *a, const pl_rope_scaling *b)
{
    return a->llama3 == b->llama3 && a->yarn == b->yarn && a->factor == b->factor &&
           a->low_freq_factor == b->low_freq_factor && a->high_freq_factor == b->high_freq_factor &&
           a->beta_fast == b->beta_fast && a->beta_slow == b->beta_slow && a->mscale == b->mscale &&
           a->mscale_all_dim == b->mscale_all_dim &&
           a->original_max_position_embeddings == b->original_max_position_embeddings;
}

pl_status pl_model_read_rope(pl_model *model, const pl_json_node *top)
{
    static const struct {
        const char *key, *theta;
    } spellings[] = {{"rope_scaling", "rope_scaling.rope_theta"},
                     {"rope_parameters", "rope_parameters.rope_theta"}};
    /* what the classes of transformers fill in */
    theta found = {.value = model->family == PL_FAMILY_MIXTRAL ? 1e6 : 1e4};
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
        PL_TRY(read_object(&scaling[i], &object, model->family));
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
