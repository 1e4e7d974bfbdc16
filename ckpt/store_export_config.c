/* The config.json of an export. */
#include <jansson.h>
#include <string.h>

#include "ckpt/store_export_folder.h"
#include "ckpt/store_import.h"
#include "common/json.h"
#include "common/memory.h"

static const char *text_of(const pl_manifest *m, const char *key)
{
    return json_string_value(json_object_get(m->provenance, key));
}

/* The type of most values. */
static pl_dtype main_dtype(const pl_model *model, const pl_dtype *dtypes)
{
    int64_t values[PL_DTYPE_COUNT] = {0};
    int most = 0;
    for (int64_t t = 0; t < model->tensor_count; ++t)
        values[dtypes[t]] += pl_tensor_elements(&model->tensors[t]);
    for (int d = 1; d < PL_DTYPE_COUNT; ++d)
        if (values[d] > values[most]) most = d;
    return (pl_dtype)most;
}

static const char *hub_name(pl_dtype dtype)
{
    return dtype == PL_FP32 ? "float32" : dtype == PL_BF16 ? "bfloat16" : "float16";
}

static int add_piece(const char *piece, size_t length, void *text)
{
    pl_text_add_bytes(text, piece, length);
    return 0;
}

/* In as few digits as keep every number. */
static bool print(pl_text *text, const json_t *config)
{
    enum { FEW = 15, ALL = 17 };
    const size_t flags = JSON_INDENT(2) | JSON_PRESERVE_ORDER;
    pl_text_clear(text);
    if (json_dump_callback(config, add_piece, text, flags | JSON_REAL_PRECISION(FEW)) != 0)
        return false;
    json_t *again = json_loadb(text->bytes, text->length, 0, NULL);
    bool same = again && json_equal(again, config);
    json_decref(again);
    if (same) return true;
    pl_text_clear(text);
    return json_dump_callback(config, add_piece, text, flags | JSON_REAL_PRECISION(ALL)) == 0;
}

static bool set_name(json_t *config, const char *key, pl_dtype dtype)
{
    json_t *name = json_string(hub_name(dtype));
    return name && json_object_set_new(config, key, name) == 0;
}

/* SOURCE with another type in it. */
static pl_status with_dtype(pl_text *text, const char *source, pl_dtype dtype)
{
    struct json_t *config = NULL;
    PL_TRY(pl_json_parse(&config, source, strlen(source), "the kept config.json"));
    bool newer = json_object_get(config, "dtype"), older = json_object_get(config, "torch_dtype");
    bool whole = (!newer || set_name(config, "dtype", dtype)) &&
                 ((newer && !older) || set_name(config, "torch_dtype", dtype)) &&
                 print(text, config) && !pl_library_failed();
    pl_library_forget_failure();
    pl_json_free(config);
    pl_text_add_string(text, "\n");
    if (!whole) return PL_FAIL(PL_NO_MEMORY, "out of memory for a config.json");
    return pl_text_status(text);
}

pl_status pl_export_config(pl_text *text, const pl_manifest *manifest, const pl_dtype *dtypes,
                           bool converted)
{
    const char *kept = text_of(manifest, PL_IMPORT_CONFIG);
    pl_dtype dtype = main_dtype(&manifest->model, dtypes);
    pl_model stored = manifest->model;
    converted = converted || text_of(manifest, PL_IMPORT_DTYPE);
    if (kept && converted && dtype != stored.stored_dtype) return with_dtype(text, kept, dtype);
    if (kept) {
        pl_text_add_string(text, kept);
        return pl_text_status(text);
    }
    stored.stored_dtype = dtype;
    pl_model_write(text, &stored);
    pl_text_add_string(text, "\n");
    return pl_text_status(text);
}
