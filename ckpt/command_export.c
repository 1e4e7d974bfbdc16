/* pleat-ckpt export: a checkpoint as a Hugging Face folder. */
#include <inttypes.h>
#include <string.h>

#include "ckpt/command.h"
#include "ckpt/progress.h"
#include "ckpt/store_export.h"
#include "ckpt/store_folder.h"
#include "ckpt/weights_shards.h"

enum { DTYPE, SHARD_SIZE, MASTERS, OVERWRITE, THREADS, JSON, OPTIONS };

static const pl_option options[OPTIONS] = {
    [DTYPE] = {"--dtype", "TYPE", "as-stored (default), fp32, bf16 or fp16", false},
    [SHARD_SIZE] = {"--max-shard-size", "SIZE", "most bytes of tensors in a file; default: 5GB",
                    false},
    [MASTERS] = {"--masters", NULL, "fp32 masters where there are some, not parameters", false},
    [OVERWRITE] = {"--overwrite", NULL, "replace the weights that are in FOLDER", false},
    [THREADS] = {"--threads", "N", "that read and write; default: processors, at most 8", false},
    [JSON] = {"--json", NULL, "print JSON", false}};

static const pl_command_usage usage = {
    .program = "pleat-ckpt",
    .command = "export",
    .forms = "CHECKPOINT FOLDER [OPTION...]",
    .about =
        "Writes a checkpoint of any layout as a Hugging Face folder: config.json, and\n"
        "model.safetensors or shards with their index, cut by Hugging Face's rule. CHECKPOINT is\n"
        "a folder step-N, or one with such folders in it, or that of a run; then the newest is\n"
        "meant. The head of a tied model is not written, as Hugging Face does not.\n\n"
        "FOLDER is made, or is empty. With --overwrite the weights and the config.json in it are\n"
        "replaced when the new ones are whole; other files stay.",
    .examples = "pleat-ckpt export runs/licenses runs/exported\n"
                "pleat-ckpt export runs/licenses runs/exported --overwrite --dtype bf16 \\\n"
                "    --max-shard-size 512MB",
    .options = options,
    .option_count = OPTIONS};

typedef struct export_options {
    pl_export_request request;
    int64_t threads;
    bool json;
} export_options;

static pl_status take_size(int64_t *out, const char *value)
{
    if (pl_shards_parse_size(out, value) == PL_OK) return PL_OK;
    return pl_arguments_refuse_word(
        &usage, "--max-shard-size: a size such as 5GB, 512MB, 1GiB or 700000 is meant, not ",
        value);
}

static pl_status take(void *context, int option, const char *value)
{
    export_options *o = context;
    pl_export_request *r = &o->request;
    switch (option) {
    case DTYPE: return pl_command_dtype(&r->dtype, &usage, value);
    case SHARD_SIZE: return take_size(&r->shard_bytes, value);
    case MASTERS: r->masters = true; return PL_OK;
    case OVERWRITE: r->overwrite = true; return PL_OK;
    case THREADS:
        return pl_arguments_integer(&o->threads, &usage, options[THREADS].name, value, 1,
                                    PL_STORE_THREADS_MOST);
    case JSON: o->json = true; return PL_OK;
    default: break;
    }
    if (!r->checkpoint || !r->folder)
        return pl_command_take_word(r->checkpoint ? &r->folder : &r->checkpoint, &usage, value);
    return pl_arguments_refuse_word(&usage, "two folders are meant, so this is too much: ", value);
}

static pl_status add_json(pl_text *text, const export_options *o, const pl_export_report *report,
                          double seconds)
{
    pl_json_builder json = {.failed = false};
    json_t *top = json_object();
    pl_json_put_string(&json, top, "checkpoint", o->request.checkpoint);
    pl_json_put_string(&json, top, "folder", o->request.folder);
    pl_json_put_number(&json, top, "files", report->files);
    pl_json_put_number(&json, top, "tensors", report->tensors);
    pl_json_put_number(&json, top, "masters", report->masters);
    pl_json_put_number(&json, top, "bytes", report->bytes);
    pl_json_put_real(&json, top, "seconds", seconds);
    return pl_json_finish(&json, text, top);
}

static pl_status add_report(pl_text *text, const export_options *o, const pl_export_report *report,
                            double seconds)
{
    char bytes[32], tensors[32];
    pl_text_add(text, "%s: %s tensors, %s in %" PRId64 " file%s, %.1f s\n", o->request.folder,
                pl_format_thousands(tensors, report->tensors),
                pl_format_bytes(bytes, report->bytes), report->files, report->files == 1 ? "" : "s",
                seconds);
    if (o->request.masters && report->masters == 0)
        pl_text_add_string(text, "there are no masters: parameters were written\n");
    return pl_text_status(text);
}

static void show(void *context, int64_t done, int64_t bytes)
{
    pl_progress_show(context, done, bytes);
}

static pl_status export(pl_output *output, const export_options *o)
{
    pl_progress progress = pl_progress_begin();
    pl_export_report report;
    pl_export_request request = o->request;
    request.threads = o->threads > 0 ? (int)o->threads : pl_store_threads();
    request.progress = show;
    request.progress_context = &progress;
    pl_status status = pl_store_export(&report, &request);
    pl_progress_end(&progress);
    PL_TRY(status);
    double seconds = pl_progress_seconds(&progress);
    return o->json ? add_json(&output->text, o, &report, seconds)
                   : add_report(&output->text, o, &report, seconds);
}

pl_status pl_command_export(pl_output *output, int count, char **arguments)
{
    export_options o = {.request = {.dtype = PL_DTYPE_COUNT, .shard_bytes = PL_EXPORT_SHARD_BYTES}};
    bool help = false;
    pl_text found = {0};
    PL_TRY(pl_arguments_parse(&help, &usage, count, arguments, take, &o));
    if (help) return pl_command_help(output, &usage);
    if (!o.request.folder)
        return pl_arguments_refuse_word(
            &usage, "two folders are meant: a checkpoint, and the one that is written", NULL);
    pl_status status = pl_checkpoint_find(&found, o.request.checkpoint);
    o.request.checkpoint = pl_text_string(&found);
    if (status == PL_OK) status = export(output, &o);
    pl_text_free(&found);
    return status;
}
