#include "common/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/memory.h"
#include "common/model_internal.h"

/* Far above any real config.json. */
enum { MOST_BYTES = 16 << 20 };

static const char *const role_names[PL_TENSOR_ROLE_COUNT] = {
    [PL_TENSOR_EMBEDDING] = "embedding", [PL_TENSOR_HEAD] = "head",
    [PL_TENSOR_NORM] = "norm",           [PL_TENSOR_ATTENTION] = "attention",
    [PL_TENSOR_DENSE_MLP] = "dense_mlp", [PL_TENSOR_ROUTER] = "router",
    [PL_TENSOR_ROUTED] = "routed",       [PL_TENSOR_SHARED] = "shared",
};

static const char *const class_names[PL_TENSOR_CLASS_COUNT] = {
    [PL_CLASS_DENSE] = "dense", [PL_CLASS_EXPERT] = "expert", [PL_CLASS_IGNORED] = "ignored"};

static const char *const family_names[PL_FAMILY_COUNT] = {
    [PL_FAMILY_LLAMA] = "llama",
    [PL_FAMILY_QWEN3] = "qwen3",
    [PL_FAMILY_QWEN3_MOE] = "qwen3_moe",
    [PL_FAMILY_MIXTRAL] = "mixtral",
    [PL_FAMILY_DEEPSEEK_V2] = "deepseek_v2",
};

const char *pl_tensor_role_name(pl_tensor_role role) { return role_names[role]; }

const char *pl_tensor_class_name(pl_tensor_class class_) { return class_names[class_]; }

const char *pl_family_name(pl_family family) { return family_names[family]; }

bool pl_model_is_trained(const pl_model *model)
{
    for (int64_t i = 0; i < model->tensor_count; ++i)
        if (!model->tensors[i].frozen) return true;
    return false;
}

/* Plans have no latent attention, no shared experts and no groups of experts yet, and a module with
 * experts stands behind an attention with norms of queries and keys only. */
bool pl_family_is_planned(pl_family family)
{
    return family == PL_FAMILY_LLAMA || family == PL_FAMILY_QWEN3 || family == PL_FAMILY_QWEN3_MOE;
}

pl_status pl_model_check_planned(const pl_model *model)
{
    pl_text planned = {0};
    if (pl_family_is_planned(model->family)) return PL_OK;
    for (int i = 0; i < PL_FAMILY_COUNT; ++i)
        if (pl_family_is_planned((pl_family)i))
            pl_text_add(&planned, "%s%s", planned.length ? ", " : "", family_names[i]);
    pl_status status = pl_text_status(&planned);
    if (status == PL_OK)
        status = PL_FAIL(PL_UNSUPPORTED,
                         "%s has model_type %s, which has no plans so far: it is laid out over "
                         "ranks ('pleat-sim layout') but neither checked nor trained; allowed: %s",
                         model->name, family_names[model->family], pl_text_string(&planned));
    pl_text_free(&planned);
    return status;
}

void pl_model_free(pl_model *model)
{
    pl_free(model->layer_is_moe);
    pl_free(model->tensors);
    memset(model, 0, sizeof *model);
}

static pl_status parse_tree(pl_model *model, struct json_t *tree, const char *source)
{
    pl_json_node top;
    PL_TRY(pl_json_top_object(&top, tree, source));
    PL_TRY(pl_model_read_facts(model, &top));
    return pl_model_build_tensors(model, source);
}

static pl_status parse_bytes(pl_model *out, const char *text, size_t length, const char *source,
                             const char *name)
{
    struct json_t *tree = NULL;
    pl_model model;
    memset(&model, 0, sizeof model);
    snprintf(model.name, sizeof model.name, "%s", name);
    PL_TRY(pl_json_parse(&tree, text, length, source));
    pl_status status = parse_tree(&model, tree, source);
    pl_json_free(tree);
    if (status == PL_OK)
        *out = model;
    else
        pl_model_free(&model);
    return status;
}

pl_status pl_model_parse(pl_model *out, const char *text, const char *source, const char *name)
{
    return parse_bytes(out, text, strlen(text), source, name);
}

/* A model's name from its file's: without folder and ".json"; a config.json is called after its
 * folder. Control characters, which a line of text cannot hold, become '?'. */
static void name_of_file(char *name, const char *file)
{
    size_t end = strlen(file), begin = 0;
    if (end >= 12 && strcmp(file + end - 12, "/config.json") == 0)
        end -= 12;
    else if (end > 5 && strcmp(file + end - 5, ".json") == 0)
        end -= 5;
    while (end > 1 && file[end - 1] == '/') --end;
    for (begin = end; begin > 0 && file[begin - 1] != '/'; --begin) continue;
    if (begin == end || strncmp(file + begin, "..", end - begin) == 0) {
        file = "config";
        begin = 0;
        end = strlen(file);
    }
    if (end - begin >= PL_MODEL_NAME) end = begin + PL_MODEL_NAME - 1;
    for (size_t i = begin; i < end; ++i) {
        char letter = file[i];
        if ((unsigned char)letter < 0x20) letter = '?';
        name[i - begin] = letter;
    }
    name[end - begin] = '\0';
}

pl_status pl_model_read(pl_model *out, const char *file)
{
    char *text = NULL, name[PL_MODEL_NAME];
    size_t length = 0;
    name_of_file(name, file);
    PL_TRY(pl_read_file(&text, &length, file, MOST_BYTES));
    pl_status status = parse_bytes(out, text, length, file, name);
    pl_free(text);
    return status;
}

const char *const *pl_model_builtin_names(int *count_out)
{
    *count_out = pl_builtin_model_count;
    return pl_builtin_model_names;
}

static pl_status open_builtin(pl_model *out, int index)
{
    const pl_builtin_model *builtin = &pl_builtin_models[index];
    char source[PL_MODEL_NAME + 32];
    snprintf(source, sizeof source, "built-in model %s", pl_builtin_model_names[index]);
    return parse_bytes(out, builtin->text, builtin->length, source, pl_builtin_model_names[index]);
}

static pl_status open_folder(pl_model *out, const char *folder)
{
    pl_text file = {0};
    size_t length = strlen(folder);
    pl_text_add(&file, "%s%sconfig.json", folder, length && folder[length - 1] == '/' ? "" : "/");
    pl_status status = pl_text_status(&file);
    if (status == PL_OK) status = pl_model_read(out, pl_text_string(&file));
    pl_text_free(&file);
    return status;
}

static pl_status refuse_name(const char *name)
{
    pl_text words = {0};
    pl_text_add_choices(&words, name, pl_builtin_model_names, pl_builtin_model_count);
    pl_status status = pl_text_status(&words);
    if (status == PL_OK)
        status = PL_FAIL(PL_BAD_INPUT,
                         "model '%s' is no built-in model, no config.json and no folder with "
                         "one%s",
                         name, pl_text_string(&words));
    pl_text_free(&words);
    return status;
}

/* A built-in name wins over a file of that name, which is reached as "./NAME". */
pl_status pl_model_open(pl_model *out, const char *name)
{
    struct stat info;
    for (int i = 0; i < pl_builtin_model_count; ++i)
        if (strcmp(name, pl_builtin_model_names[i]) == 0) return open_builtin(out, i);
    if (stat(name, &info) != 0) return refuse_name(name);
    return S_ISDIR(info.st_mode) ? open_folder(out, name) : pl_model_read(out, name);
}

void pl_tensor_name(pl_text *text, const pl_tensor *tensor)
{
    if (tensor->layer >= 0) pl_text_add(text, "model.layers.%d.", tensor->layer);
    pl_text_add_string(text, tensor->suffix);
}

void pl_tensor_expert_name(pl_text *text, const pl_tensor *tensor, int64_t expert)
{
    static const char stack[] = ".experts.";
    const char *found = strstr(tensor->suffix, stack);
    size_t before = found ? (size_t)(found - tensor->suffix) + sizeof stack - 1 : 0;
    pl_text_add(text, "model.layers.%d.%.*s%" PRId64 ".%s", tensor->layer, (int)before,
                tensor->suffix, expert, tensor->suffix + before);
}

int64_t pl_tensor_total_rows(const pl_tensor *tensor)
{
    return tensor->experts > 0 ? tensor->experts * tensor->rows : tensor->rows;
}

int64_t pl_tensor_elements(const pl_tensor *tensor)
{
    return pl_tensor_total_rows(tensor) * tensor->cols;
}

pl_parameter_counts pl_model_count(const pl_model *model)
{
    pl_parameter_counts counts;
    memset(&counts, 0, sizeof counts);
    for (int64_t i = 0; i < model->tensor_count; ++i) {
        const pl_tensor *tensor = &model->tensors[i];
        int64_t elements = pl_tensor_elements(tensor);
        counts.by_role[tensor->role] += elements;
        counts.total += elements;
        counts.tensors += tensor->experts > 0 ? tensor->experts : 1;
    }
    counts.routed = counts.by_role[PL_TENSOR_ROUTED];
    counts.dense = counts.total - counts.routed;
    counts.active = counts.dense;
    if (model->num_experts > 0)
        counts.active += counts.routed / model->num_experts * model->num_experts_per_tok;
    /* A tied matrix is used whole as the head: only its second use is a look-up of rows. */
    int64_t embedding = counts.by_role[PL_TENSOR_EMBEDDING];
    counts.active_without_embedding = counts.active - (model->tie_word_embeddings ? 0 : embedding);
    counts.active_without_embedding_and_head =
        counts.active - embedding - counts.by_role[PL_TENSOR_HEAD];
    return counts;
}
