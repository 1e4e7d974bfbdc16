/* pleat-ckpt import: weights of a Hugging Face folder as a checkpoint. */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "ckpt/command.h"
#include "ckpt/progress.h"
#include "ckpt/store_import.h"
#include "common/json.h"

enum { LAYOUT, DTYPE, MODEL, THREADS, JSON, OPTIONS };

static const pl_option options[OPTIONS] = {
    [LAYOUT] = {"--layout", "LAYOUT", "whose ranks' files are written; default: single:world=1",
                false},
    [DTYPE] = {"--dtype", "TYPE", "as-stored (default), fp32, bf16 or fp16", false},
    [MODEL] = {"--model", "CONFIG", "a config.json, or its folder; default: FOLDER's", false},
    [THREADS] = {"--threads", "N", "that read and write; default: processors, at most 8", false},
    [JSON] = {"--json", NULL, "print JSON", false}};

static const pl_command_usage usage = {
    .program = "pleat-ckpt",
    .command = "import",
    .forms = "FOLDER CHECKPOINT [OPTION...]",
    .about =
        "Makes a checkpoint of the weights in a Hugging Face folder: config.json with\n"
        "model.safetensors, or with shards and their index. Every tensor keeps its type and its\n"
        "bits, and must be the model's: what is missing, unexpected or of another shape or type\n"
        "is said at once. CHECKPOINT is a folder step-N, or another one, in which step-0 is\n"
        "made. Runs start from it by 'init_from: CHECKPOINT' in their file.\n\n"
        "PyTorch's own checkpoints (pickles, DCP folders) are not read: docs/guide.md says how\n"
        "PyTorch makes safetensors of them.",
    .examples = "pleat-ckpt import testdata/hf/qwen3-moe-tiny runs/start\n"
                "pleat-ckpt import testdata/hf/qwen3-moe-tiny runs/start/step-1 \\\n"
                "    --layout legacy:world=8,ep=4 --dtype bf16",
    .options = options,
    .option_count = OPTIONS};

typedef struct import_options {
    pl_import_request request;
    int64_t threads;
    const char *layout;
    bool json;
    int count; /* of the command's words, for the provenance */
    char **arguments;
} import_options;

static pl_status take(void *context, int option, const char *value)
{
    import_options *o = context;
    pl_import_request *r = &o->request;
    switch (option) {
    case LAYOUT: o->layout = value; return PL_OK;
    case DTYPE: return pl_command_dtype(&r->dtype, &usage, value);
    case MODEL: r->model = value; return PL_OK;
    case THREADS:
        return pl_arguments_integer(&o->threads, &usage, options[THREADS].name, value, 1,
                                    PL_STORE_THREADS_MOST);
    case JSON: o->json = true; return PL_OK;
    default: break;
    }
    if (!r->folder || !r->checkpoint)
        return pl_command_take_word(r->folder ? &r->checkpoint : &r->folder, &usage, value);
    return pl_arguments_refuse_word(&usage, "two folders are meant, so this is too much: ", value);
}

static struct json_t *make_provenance(pl_json_builder *json, const pl_output *output,
                                      const import_options *o)
{
    char time_words[32] = "";
    time_t now = time(NULL);
    struct tm parts;
    json_t *object = json_object(), *command = json_array();
    pl_json_put_string(json, object, "program", "pleat-ckpt");
    pl_json_put_string(json, object, "version", output->version);
    if (*output->commit) pl_json_put_string(json, object, "commit", output->commit);
    pl_json_append(json, command, json_string("pleat-ckpt"));
    for (int i = 0; i < o->count; ++i)
        pl_json_append(json, command, pl_json_words(o->arguments[i]));
    pl_json_put(json, object, "command", command);
    if (gmtime_r(&now, &parts))
        (void)strftime(time_words, sizeof time_words, "%Y-%m-%dT%H:%M:%SZ", &parts);
    pl_json_put_string(json, object, "written", time_words);
    return object;
}

static pl_status add_json(pl_text *text, const pl_import_report *report, double seconds)
{
    pl_json_builder json = {.failed = false};
    json_t *top = json_object();
    pl_json_put_string(&json, top, "checkpoint", pl_text_string(&report->checkpoint));
    pl_json_put_number(&json, top, "tensors", report->tensors);
    pl_json_put_number(&json, top, "ranks", report->ranks);
    pl_json_put_number(&json, top, "bytes", report->bytes);
    pl_json_put(&json, top, "notes", pl_json_words(pl_text_string(&report->notes)));
    pl_json_put_real(&json, top, "seconds", seconds);
    return pl_json_finish(&json, text, top);
}

static pl_status add_report(pl_text *text, const import_options *o, const pl_import_report *report,
                            double seconds)
{
    char bytes[32], notation[PL_LAYOUT_TEXT];
    pl_dtype dtype = o->request.dtype;
    pl_text_add_string(text, pl_text_string(&report->notes));
    pl_text_add(text, "%s: %" PRId64 " tensors, %s%s, in the files of %" PRId64 " rank%s of %s, ",
                pl_text_string(&report->checkpoint), report->tensors,
                pl_format_bytes(bytes, report->bytes),
                dtype == PL_DTYPE_COUNT ? " as stored" : ", rounded where another type was stored",
                report->ranks, report->ranks == 1 ? "" : "s",
                pl_layout_format(&o->request.layout, notation));
    pl_text_add(text, "%.1f s\n", seconds);
    return pl_text_status(text);
}

static void show(void *context, int64_t done, int64_t bytes)
{
    pl_progress_show(context, done, bytes);
}

static pl_status import(pl_output *output, const import_options *o)
{
    pl_progress progress = pl_progress_begin();
    pl_json_builder json = {.failed = false};
    pl_import_report report;
    pl_import_request request = o->request;
    request.threads = o->threads > 0 ? (int)o->threads : pl_store_threads();
    request.progress = show;
    request.progress_context = &progress;
    request.provenance = make_provenance(&json, output, o);
    pl_status status = PL_OK;
    if (json.failed) status = PL_FAIL(PL_NO_MEMORY, "out of memory for the provenance");
    if (status == PL_OK) status = pl_store_import(&report, &request);
    pl_json_free(request.provenance);
    pl_progress_end(&progress);
    PL_TRY(status);
    double seconds = pl_progress_seconds(&progress);
    status = o->json ? add_json(&output->text, &report, seconds)
                     : add_report(&output->text, o, &report, seconds);
    pl_import_report_free(&report);
    return status;
}

pl_status pl_command_import(pl_output *output, int count, char **arguments)
{
    import_options o = {.request = {.dtype = PL_DTYPE_COUNT},
                        .layout = "single:world=1",
                        .count = count,
                        .arguments = arguments};
    bool help = false;
    PL_TRY(pl_arguments_parse(&help, &usage, count, arguments, take, &o));
    if (help) return pl_command_help(output, &usage);
    if (!o.request.checkpoint)
        return pl_arguments_refuse_word(
            &usage, "two folders are meant: one of Hugging Face's, and the checkpoint's", NULL);
    PL_TRY(pl_layout_parse(&o.request.layout, o.layout));
    return import(output, &o);
}
