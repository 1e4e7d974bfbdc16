#include "train/resume.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "ckpt/store_folder.h"
#include "ckpt/weights_folder_values.h"
#include "common/json.h"
#include "common/memory.h"
#include "train/run_folder.h"
#include "train/run_log.h"

pl_status pl_resume_newest(pl_text *path, const char *folder)
{
    int64_t *steps = NULL, count = 0;
    pl_text root = {0};
    pl_text_clear(path);
    pl_run_folder_path(&root, folder, PL_RUN_FOLDER_CHECKPOINTS);
    pl_status status = pl_text_status(&root);
    if (status == PL_OK) status = pl_checkpoint_steps(&steps, &count, pl_text_string(&root));
    if (status == PL_OK && count > 0)
        status = pl_checkpoint_path(path, pl_text_string(&root), steps[count - 1]);
    pl_free(steps);
    pl_text_free(&root);
    return status;
}

/* --- the model --- */

static pl_status compare_texts(const char *folder, const char *theirs, const char *ours)
{
    if (strcmp(theirs, ours) == 0) return PL_OK;
    size_t same = 0;
    while (theirs[same] && theirs[same] == ours[same]) ++same;
    while (same > 0 && theirs[same] != '"' && theirs[same] != ',') --same; /* back to the key */
    return PL_FAIL(PL_BAD_INPUT,
                   "%s: a checkpoint of another model: it has %.60s where this run has %.60s",
                   folder, theirs + same, ours + same);
}

pl_status pl_resume_check_model(const pl_store_reader *checkpoint, const pl_model *model)
{
    pl_text theirs = {0}, ours = {0};
    pl_model_write(&theirs, &pl_store_reader_manifest(checkpoint)->model);
    pl_model_write(&ours, model);
    pl_status status = pl_text_status(&theirs);
    if (status == PL_OK) status = pl_text_status(&ours);
    if (status == PL_OK)
        status = compare_texts(pl_store_reader_folder(checkpoint), pl_text_string(&theirs),
                               pl_text_string(&ours));
    pl_text_free(&theirs);
    pl_text_free(&ours);
    return status;
}

/* --- types --- */

static const char *type_name(pl_dtype dtype)
{
    return dtype == PL_DTYPE_COUNT ? "none" : pl_dtype_name(dtype);
}

static pl_status compare_types(const char *folder, const pl_manifest *theirs,
                               const pl_kept_values *ours)
{
    for (int64_t i = 0; i < theirs->model.tensor_count; ++i) {
        for (int kind = 0; kind < PL_VALUE_KIND_COUNT; ++kind) {
            pl_dtype is = theirs->kept[i].dtype[kind], should = ours[i].dtype[kind];
            pl_text name = {0};
            if (is == should) continue;
            pl_tensor_name(&name, &theirs->model.tensors[i]);
            pl_status status = PL_FAIL(
                PL_BAD_INPUT,
                "%s: %s of %s: the checkpoint has %s, this run %s: precision.gather, keep_fp32 and "
                "frozen must be those of the run that wrote it",
                folder, pl_value_kind_name((pl_value_kind)kind), pl_text_string(&name),
                type_name(is), type_name(should));
            pl_text_free(&name);
            return status;
        }
    }
    return PL_OK;
}

static pl_status check_types(const pl_store_reader *checkpoint, const pl_model *model,
                             const pl_settings *settings)
{
    pl_kept_values *kept = NULL;
    PL_TRY(pl_allocate(&kept, (size_t)model->tensor_count, sizeof *kept, "values of tensors"));
    pl_kept_values_of_training(kept, model, &settings->precision, settings->optimizer);
    pl_status status = compare_types(pl_store_reader_folder(checkpoint),
                                     pl_store_reader_manifest(checkpoint), kept);
    pl_free(kept);
    return status;
}

/* --- settings --- */

/* Keys that may differ in any way: where and how fast a run runs, not what it computes. */
static bool is_free(const char *key)
{
    static const char *const keys[] = {"output",  "steps", "layout",    "workers",    "backend",
                                       "timeout", "model", "init_from", "batch.micro"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; ++i)
        if (strcmp(key, keys[i]) == 0) return true;
    return strncmp(key, "checkpoint.", 11) == 0 || strncmp(key, "evaluate.", 9) == 0 ||
           strncmp(key, "policy.", 7) == 0;
}

static void add_value(pl_text *text, const json_t *value)
{
    enum { DIGITS = 12 };
    char *shown =
        value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(DIGITS))
              : NULL;
    pl_text_add(text, "%.80s", shown ? shown : "nothing");
    pl_library_free(shown);
}

static void note_settings(pl_text *notes, const json_t *theirs, json_t *ours)
{
    const char *key = NULL;
    json_t *value = NULL;
    bool first = true;
    json_object_foreach(ours, key, value)
    {
        const json_t *was = json_object_get(theirs, key);
        if (is_free(key) || (was && json_equal(was, value))) continue;
        pl_text_add(notes, "%s%s ", first ? "not as in the run that wrote the checkpoint: " : ", ",
                    key);
        add_value(notes, value);
        pl_text_add_string(notes, " (was ");
        add_value(notes, was);
        pl_text_add_string(notes, ")");
        first = false;
    }
    if (!first) pl_text_add_string(notes, "\n");
}

static pl_status check_number(const char *folder, const char *what, int64_t theirs, int64_t ours)
{
    if (theirs == ours) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT, "%s: %s: the checkpoint's run has %" PRId64 ", this one %" PRId64,
                   folder, what, theirs, ours);
}

static pl_status check_settings(pl_text *notes, const pl_store_reader *checkpoint,
                                const pl_run *run)
{
    const pl_manifest *m = pl_store_reader_manifest(checkpoint);
    const char *folder = pl_store_reader_folder(checkpoint);
    const json_t *sequence = json_object_get(m->settings, "data.sequence");
    json_t *ours = NULL;
    PL_TRY(check_number(folder, "seed", m->progress.seed, run->seed));
    if (json_is_integer(sequence))
        PL_TRY(check_number(folder, "data.sequence", json_integer_value(sequence),
                            run->data.sequence));
    PL_TRY(pl_run_log_settings(&ours, run));
    note_settings(notes, m->settings, ours);
    pl_json_free(ours);
    return pl_text_status(notes);
}

pl_status pl_resume_check(pl_text *notes, const pl_store_reader *checkpoint, const pl_run *run,
                          const pl_model *model, const pl_settings *settings)
{
    const pl_manifest *m = pl_store_reader_manifest(checkpoint);
    const char *folder = pl_store_reader_folder(checkpoint);
    int count = 0;
    const char *const *names = pl_optimizer_names(&count);
    if (!m->trained)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: it holds weights and no place in a training to go on from; init_from "
                       "takes the weights",
                       folder);
    PL_TRY(pl_resume_check_model(checkpoint, model));
    if (m->optimizer != settings->optimizer)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: optimizer.kind: the checkpoint has the state of %s, this run uses %s; "
                       "init_from takes the weights alone",
                       folder, names[m->optimizer], names[settings->optimizer]);
    PL_TRY(check_types(checkpoint, model, settings));
    return check_settings(notes, checkpoint, run);
}

/* --- weights --- */

pl_status pl_resume_weights(pl_store_reader *checkpoint, int64_t tensor, int64_t row_begin,
                            int64_t row_end, pl_dtype dtype, void *out)
{
    const pl_manifest *m = pl_store_reader_manifest(checkpoint);
    const pl_kept_values *kept = &m->kept[tensor];
    bool master = pl_keeps(kept, PL_VALUE_MASTER) && dtype == PL_FP32;
    pl_value_kind kind = master ? PL_VALUE_MASTER : PL_VALUE_PARAMETER;
    pl_dtype stored = kept->dtype[kind];
    int64_t count = (row_end - row_begin) * m->model.tensors[tensor].cols;
    void *values = NULL;
    if (stored == dtype) return pl_store_read(checkpoint, kind, tensor, row_begin, row_end, out);
    PL_TRY(pl_allocate(&values, (size_t)count, (size_t)pl_dtype_bytes(stored), "weights"));
    pl_status status = pl_store_read(checkpoint, kind, tensor, row_begin, row_end, values);
    if (status == PL_OK) pl_weights_convert(out, dtype, values, stored, count);
    pl_free(values);
    return status;
}
