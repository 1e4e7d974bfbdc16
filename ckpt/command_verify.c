/* pleat-ckpt verify: read every byte of a checkpoint and list all damage. */
#include <inttypes.h>
#include <unistd.h>

#include "ckpt/command.h"
#include "ckpt/progress.h"
#include "ckpt/store_folder.h"
#include "ckpt/store_verify.h"

enum { THREADS, JSON, OPTIONS };

static const pl_option options[OPTIONS] = {
    [THREADS] = {"--threads", "N", "that read and hash; default: as many as processors", false},
    [JSON] = {"--json", NULL, "print JSON", false}};

static const pl_command_usage usage = {
    .program = "pleat-ckpt",
    .command = "verify",
    .forms = "CHECKPOINT [OPTION...]",
    .about =
        "Reads every byte of a checkpoint and lists all damage: the file, and where values are\n"
        "concerned the tensor, its rows and the bytes of the file. CHECKPOINT is a folder\n"
        "step-N, or one with such folders in it, or that of a run; then the newest is meant.\n"
        "Files that belong to no checkpoint are noted; they are no damage.\n\n"
        "Exit status: 0 no damage, 1 damage, 2 no checkpoint.",
    .examples = "pleat-ckpt verify runs/licenses\n"
                "pleat-ckpt verify runs/licenses/checkpoints/step-200 --threads 2 --json",
    .options = options,
    .option_count = OPTIONS};

typedef struct verify_options {
    const char *given;
    int64_t threads;
    bool json;
} verify_options;

static pl_status take(void *context, int option, const char *value)
{
    verify_options *o = context;
    switch (option) {
    case THREADS:
        return pl_arguments_integer(&o->threads, &usage, options[THREADS].name, value, 1,
                                    PL_VERIFY_THREADS_MOST);
    case JSON: o->json = true; return PL_OK;
    default: return pl_command_take_word(&o->given, &usage, value);
    }
}

/* --- text --- */

static void add_damage(pl_output *output, const pl_damage *damage, const pl_model *model)
{
    pl_text words = {0};
    bool note = damage->kind == PL_DAMAGE_SURPLUS;
    pl_damage_print(&words, damage, model);
    pl_command_colour(output, note ? PL_COLOUR_BOLD : PL_COLOUR_RED, note ? "note  " : "damage");
    pl_text_add(&output->text, "  %-8s  %s%s%s\n", pl_damage_kind_name(damage->kind), damage->file,
                words.length > 0 ? ": " : "", pl_text_string(&words));
    output->text.out_of_memory |= words.out_of_memory;
    pl_text_free(&words);
}

static void add_report(pl_output *output, const char *folder, const pl_verify_report *report,
                       double seconds)
{
    char bytes[32], blocks[32], words[64];
    pl_text *text = &output->text;
    size_t count = pl_damages_count(&report->damages);
    for (size_t i = 0; i < report->damages.count; ++i)
        add_damage(output, &report->damages.list[i], &report->manifest.model);
    pl_text_add(text, "%s: %" PRId64 " files, %s, %s blocks, %.1f s\n", folder, report->files,
                pl_format_bytes(bytes, report->bytes), pl_format_thousands(blocks, report->blocks),
                seconds);
    if (report->unseen > 0)
        pl_text_add(text,
                    "the values of %" PRId64 " ranks were not looked at: their lists are "
                    "damaged\n",
                    report->unseen);
    snprintf(words, sizeof words, "%zu damage%s\n", count, count == 1 ? "" : "s");
    if (count == 0)
        pl_command_colour(output, PL_COLOUR_GREEN, "no damage\n");
    else
        pl_command_colour(output, PL_COLOUR_RED, words);
}

/* --- JSON --- */

static json_t *damage_json(pl_json_builder *json, const pl_damage *damage, const pl_model *model)
{
    json_t *object = json_object();
    pl_json_put_string(json, object, "what", pl_damage_kind_name(damage->kind));
    pl_json_put_string(json, object, "file", damage->file);
    if (damage->tensor >= 0) {
        pl_text name = {0};
        pl_tensor_name(&name, &model->tensors[damage->tensor]);
        json->failed |= name.out_of_memory;
        pl_json_put_string(json, object, "tensor", pl_text_string(&name));
        pl_text_free(&name);
        pl_json_put_string(json, object, "kind", pl_value_kind_name(damage->kept));
        pl_json_put(json, object, "rows", json_pack("[I,I]", damage->row_begin, damage->row_end));
    }
    if (damage->byte_end > 0)
        pl_json_put(json, object, "bytes",
                    json_pack("[I,I]", damage->byte_begin, damage->byte_end));
    if (*damage->words) pl_json_put_string(json, object, "words", damage->words);
    return object;
}

static pl_status add_json(pl_text *text, const char *folder, const pl_verify_report *report,
                          double seconds)
{
    pl_json_builder json = {.failed = false};
    json_t *top = json_object(), *damages = json_array(), *notes = json_array();
    for (size_t i = 0; i < report->damages.count; ++i) {
        const pl_damage *damage = &report->damages.list[i];
        pl_json_append(&json, damage->kind == PL_DAMAGE_SURPLUS ? notes : damages,
                       damage_json(&json, damage, &report->manifest.model));
    }
    pl_json_put_string(&json, top, "checkpoint", folder);
    pl_json_put_number(&json, top, "files", report->files);
    pl_json_put_number(&json, top, "bytes", report->bytes);
    pl_json_put_number(&json, top, "pieces", report->pieces);
    pl_json_put_number(&json, top, "blocks", report->blocks);
    pl_json_put_number(&json, top, "unseen_ranks", report->unseen);
    pl_json_put_real(&json, top, "seconds", seconds);
    pl_json_put(&json, top, "damages", damages);
    pl_json_put(&json, top, "notes", notes);
    return pl_json_finish(&json, text, top);
}

/* --- the command --- */

static void show(void *context, int64_t done, int64_t bytes)
{
    pl_progress_show(context, done, bytes);
}

static pl_status verify(pl_output *output, const verify_options *o, const char *folder)
{
    pl_progress progress = pl_progress_begin();
    pl_verify_report report;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t threads = o->threads > 0 ? o->threads : processors > 0 ? processors : 1;
    const pl_verify_request request = {
        .folder = folder,
        .threads = (int)(threads < PL_VERIFY_THREADS_MOST ? threads : PL_VERIFY_THREADS_MOST),
        .progress = show,
        .context = &progress};
    pl_status status = pl_store_verify(&report, &request);
    pl_progress_end(&progress);
    PL_TRY(status);
    double seconds = pl_progress_seconds(&progress);
    if (o->json)
        status = add_json(&output->text, folder, &report, seconds);
    else
        add_report(output, folder, &report, seconds);
    if (status == PL_OK && pl_damages_count(&report.damages) > 0) status = PL_CHECK_FAILED;
    pl_verify_report_free(&report);
    return status;
}

pl_status pl_command_verify(pl_output *output, int count, char **arguments)
{
    verify_options o = {0};
    bool help = false;
    pl_text folder = {0};
    PL_TRY(pl_arguments_parse(&help, &usage, count, arguments, take, &o));
    if (help) return pl_command_help(output, &usage);
    if (!o.given)
        return pl_arguments_refuse_word(
            &usage, "no checkpoint; for example 'pleat-ckpt verify runs/licenses'", NULL);
    pl_status status = pl_checkpoint_find(&folder, o.given);
    if (status == PL_OK) status = verify(output, &o, pl_text_string(&folder));
    pl_text_free(&folder);
    return status;
}
