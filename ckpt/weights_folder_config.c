/* What the config.json beside weights says otherwise than the model they are read for. */
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/weights_folder_values.h"
#include "common/json.h"
#include "common/text.h"

static void add_value(pl_text *notes, const json_t *value)
{
    enum { SHOWN = 60, DIGITS = 12 };
    char shown[SHOWN];
    size_t flags = JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(DIGITS);
    size_t length = value ? json_dumpb(value, shown, sizeof shown, flags) : 0;
    if (!value)
        pl_text_add_string(notes, "not given");
    else if (length <= sizeof shown)
        pl_text_add_bytes(notes, shown, length);
    else
        pl_text_add_string(notes, "another list");
}

/* Whether KEY has a part in what the model computes from its weights. */
static bool matters(const char *key)
{
    static const char *const others[] = {
        "initializer_range", "torch_dtype", "router_aux_loss_coef",
        "aux_loss_alpha",    "seq_aux",     "max_position_embeddings"};
    for (size_t i = 0; i < sizeof others / sizeof *others; ++i)
        if (strcmp(key, others[i]) == 0) return false;
    return true;
}

static void note_differences(pl_text *notes, const char *file, json_t *there, json_t *here)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(here, key, value)
    {
        const json_t *other = json_object_get(there, key);
        if (!matters(key) || (other && json_equal(other, value))) continue;
        pl_text_add(notes, "%s: %s is ", file, key);
        add_value(notes, other);
        pl_text_add_string(notes, ", in the model of this run ");
        add_value(notes, value);
        pl_text_add_string(notes, "\n");
    }
}

static pl_status compare(pl_text *notes, const char *file, const pl_model *model)
{
    pl_model beside;
    json_t *there = NULL, *here = NULL;
    PL_TRY(pl_model_read(&beside, file));
    pl_status status = pl_model_facts(&there, &beside);
    if (status == PL_OK) status = pl_model_facts(&here, model);
    if (status == PL_OK) note_differences(notes, file, there, here);
    pl_json_free(there);
    pl_json_free(here);
    pl_model_free(&beside);
    return status == PL_OK ? pl_text_status(notes) : status;
}

pl_status pl_weights_note_config(pl_text *notes, const char *path, const pl_model *model)
{
    struct stat facts;
    pl_text file = {0};
    pl_text_add(&file, "%s/config.json", path);
    pl_status status = pl_text_status(&file);
    if (status == PL_OK && stat(pl_text_string(&file), &facts) == 0)
        status = compare(notes, pl_text_string(&file), model);
    pl_text_free(&file);
    return status;
}
