/* The manifest as a value, and its text. Reading: manifest_read.c. */
#include "ckpt/manifest.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "common/memory.h"

const char *pl_manifest_rank_file(int64_t rank, const char *ending, char *buffer)
{
    snprintf(buffer, PL_MANIFEST_NAME, "rank-%05" PRId64 "%s", rank, ending);
    return buffer;
}

pl_status pl_manifest_path(pl_text *path, const char *folder, const char *file)
{
    size_t length = strlen(folder);
    pl_text_clear(path);
    pl_text_add(path, "%s%s%s", folder, length > 0 && folder[length - 1] == '/' ? "" : "/", file);
    return pl_text_status(path);
}

/* --- the value --- */

static pl_status copy_patterns(char ***out, int *count_out, const char *const *patterns, int count)
{
    PL_TRY(pl_allocate(out, (size_t)count, sizeof(char *), "patterns"));
    for (int i = 0; i < count; ++i) {
        PL_TRY(pl_duplicate(&(*out)[i], patterns[i], "a pattern"));
        *count_out = i + 1;
    }
    return PL_OK;
}

static pl_status copy_model(pl_model *out, const pl_model *model)
{
    pl_text text = {0};
    pl_model_write(&text, model);
    pl_status status = pl_text_status(&text);
    if (status == PL_OK)
        status = pl_model_parse(out, pl_text_string(&text), "the model's own facts", model->name);
    pl_text_free(&text);
    return status;
}

pl_status pl_manifest_set_model(pl_manifest *out, const pl_model *model,
                                const char *const *keep_fp32, int keep_fp32_count,
                                const char *const *frozen, int frozen_count)
{
    PL_TRY(copy_model(&out->model, model));
    out->has_model = true;
    PL_TRY(copy_patterns(&out->keep_fp32, &out->keep_fp32_count, keep_fp32, keep_fp32_count));
    PL_TRY(copy_patterns(&out->frozen, &out->frozen_count, frozen, frozen_count));
    return pl_model_apply_patterns(&out->model, keep_fp32, keep_fp32_count, frozen, frozen_count);
}

static void free_patterns(char **patterns, int count)
{
    for (int i = 0; i < count; ++i) pl_free(patterns[i]);
    pl_free(patterns);
}

void pl_manifest_free(pl_manifest *manifest)
{
    if (manifest->has_model) pl_model_free(&manifest->model);
    free_patterns(manifest->keep_fp32, manifest->keep_fp32_count);
    free_patterns(manifest->frozen, manifest->frozen_count);
    pl_free(manifest->kept);
    pl_json_free(manifest->settings);
    pl_json_free(manifest->provenance);
    pl_free(manifest->ranks);
    *manifest = (pl_manifest){0};
}

/* --- its text --- */

/* Jansson's functions take NULL for values that could not be made and say so, but for strings that
 * are no UTF-8: here they are names and numbers. */
typedef struct writer {
    bool failed;
} writer;

static void put(writer *w, json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0) w->failed = true;
}

static void put_integer(writer *w, json_t *object, const char *key, int64_t value)
{
    put(w, object, key, json_integer(value));
}

static void append(writer *w, json_t *list, json_t *value)
{
    if (json_array_append_new(list, value) != 0) w->failed = true;
}

static json_t *hash_of(uint64_t hash)
{
    char digits[PL_HASH_TEXT];
    return json_string(pl_hash_print(hash, digits));
}

static json_t *words_of(writer *w, char *const *words, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; ++i) append(w, list, json_string(words[i]));
    return list;
}

static json_t *facts_of(writer *w, const char *file, const pl_file_facts *facts)
{
    json_t *list = json_array();
    append(w, list, json_string(file));
    append(w, list, json_integer(facts->bytes));
    append(w, list, hash_of(facts->hash));
    return list;
}

static json_t *files_of(writer *w, const pl_manifest *m)
{
    json_t *files = json_array();
    char name[PL_MANIFEST_NAME];
    append(w, files, facts_of(w, PL_MANIFEST_INDEX, &m->index));
    for (int64_t i = 0; i < m->rank_count; ++i) {
        const pl_manifest_rank *rank = &m->ranks[i];
        append(w, files,
               facts_of(w, pl_manifest_rank_file(rank->rank, ".json", name), &rank->boxes));
        append(w, files,
               facts_of(w, pl_manifest_rank_file(rank->rank, ".sums", name), &rank->sums));
        append(w, files, facts_of(w, pl_manifest_rank_file(rank->rank, ".h5", name), &rank->data));
    }
    return files;
}

static json_t *shape_of(writer *w, const pl_tensor *tensor)
{
    json_t *shape = json_array();
    append(w, shape, json_integer(pl_tensor_total_rows(tensor)));
    if (tensor->dimensions > 1) append(w, shape, json_integer(tensor->cols));
    return shape;
}

static json_t *tensor_of(writer *w, const pl_tensor *tensor, const pl_kept_values *kept)
{
    json_t *object = json_object();
    pl_text name = {0};
    pl_tensor_name(&name, tensor);
    if (pl_text_status(&name) != PL_OK) w->failed = true;
    put(w, object, "name", json_string(pl_text_string(&name)));
    pl_text_free(&name);
    put(w, object, "shape", shape_of(w, tensor));
    put_integer(w, object, "experts", tensor->experts);
    put(w, object, "class", json_string(pl_tensor_class_name(tensor->class_)));
    put(w, object, "frozen", json_boolean(tensor->frozen));
    for (int kind = 0; kind < PL_VALUE_KIND_COUNT; ++kind)
        if (pl_keeps(kept, (pl_value_kind)kind))
            put(w, object, pl_value_kind_name((pl_value_kind)kind),
                json_string(pl_dtype_name(kept->dtype[kind])));
    return object;
}

static void put_progress(writer *w, json_t *object, const pl_manifest *m)
{
    const pl_manifest_progress *p = &m->progress;
    put(w, object, "trained", json_boolean(m->trained));
    put_integer(w, object, "step", p->step);
    put_integer(w, object, "updates", p->updates);
    put_integer(w, object, "tokens", p->tokens);
    put_integer(w, object, "windows", p->windows);
    put_integer(w, object, "seed", p->seed);
    int count = 0;
    const char *const *names = pl_optimizer_names(&count);
    put(w, object, "optimizer", m->trained ? json_string(names[m->optimizer]) : json_null());
}

static void put_model(writer *w, json_t *object, const pl_manifest *m)
{
    json_t *model = NULL;
    char notation[PL_LAYOUT_TEXT];
    if (pl_model_facts(&model, &m->model) != PL_OK) w->failed = true;
    put(w, object, "layout", json_string(pl_layout_format(&m->layout, notation)));
    put(w, object, "model_name", json_string(m->model.name));
    put(w, object, "model", model);
    put(w, object, "keep_fp32", words_of(w, m->keep_fp32, m->keep_fp32_count));
    put(w, object, "frozen", words_of(w, m->frozen, m->frozen_count));
}

static json_t *object_of(writer *w, const pl_manifest *m)
{
    json_t *object = json_object(), *tensors = json_array();
    put_integer(w, object, "format", PL_MANIFEST_FORMAT);
    put(w, object, "requires", json_array());
    put_progress(w, object, m);
    put_model(w, object, m);
    put(w, object, "settings", m->settings ? json_incref(m->settings) : json_object());
    put(w, object, "provenance", m->provenance ? json_incref(m->provenance) : json_object());
    for (int64_t i = 0; i < m->model.tensor_count; ++i)
        append(w, tensors, tensor_of(w, &m->model.tensors[i], &m->kept[i]));
    put(w, object, "tensors", tensors);
    put(w, object, "files", files_of(w, m));
    return object;
}

static int add_piece(const char *piece, size_t length, void *text)
{
    pl_text_add_bytes(text, piece, length);
    return 0;
}

/* The text ends in the hash of itself with zeroes in its place. */
static void add_hash(pl_text *text)
{
    static const char end[] = "\"\n}\n";
    char digits[PL_HASH_TEXT];
    while (text->length > 0 &&
           (text->bytes[text->length - 1] == '}' || text->bytes[text->length - 1] == '\n'))
        --text->length;
    pl_text_add(text, ",\n \"hash\": \"%016d%s", 0, end);
    if (pl_text_status(text) != PL_OK) return;
    pl_hash_print(pl_hash(text->bytes, text->length), digits);
    memcpy(text->bytes + text->length - (sizeof end - 1) - PL_HASH_DIGITS, digits, PL_HASH_DIGITS);
}

pl_status pl_manifest_write(pl_text *text, const pl_manifest *manifest)
{
    enum { DIGITS = 17 };
    writer w = {false};
    json_t *object = object_of(&w, manifest);
    pl_text_clear(text);
    size_t flags = JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(DIGITS);
    if (!object || json_dump_callback(object, add_piece, text, flags) != 0) w.failed = true;
    if (pl_library_failed()) w.failed = true;
    pl_library_forget_failure();
    json_decref(object);
    add_hash(text);
    if (w.failed) return PL_FAIL(PL_NO_MEMORY, "out of memory while writing a manifest");
    return pl_text_status(text);
}
