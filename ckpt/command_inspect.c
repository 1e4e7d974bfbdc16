/* pleat-ckpt inspect: what a checkpoint holds and how it came about. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/command.h"
#include "ckpt/inspection.h"
#include "ckpt/store_folder.h"

enum { TENSORS, STATISTICS, JSON, OPTIONS };

static const pl_option options[OPTIONS] = {
    [TENSORS] = {"--tensors", NULL, "list the tensors, or those that PATTERN matches", false},
    [STATISTICS] = {"--statistics", NULL, "... with least, most, mean and rms of their values",
                    false},
    [JSON] = {"--json", NULL, "print JSON", false}};

static const pl_command_usage usage = {
    .program = "pleat-ckpt",
    .command = "inspect",
    .forms = "CHECKPOINT [--json]\n"
             "CHECKPOINT --tensors [PATTERN] [--statistics] [--json]",
    .about =
        "Says where training stood, which model and optimizer it is of, how it came about and\n"
        "what is kept. CHECKPOINT is a folder step-N, or one with such folders in it, or that\n"
        "of a run; then the newest is meant. Values are read for --statistics alone.\n\n"
        "PATTERN: '*' any run of letters, '?' one letter; without them, a part of the name\n"
        "between dots.",
    .examples = "pleat-ckpt inspect runs/licenses\n"
                "pleat-ckpt inspect runs/licenses --tensors 'model.layers.0.*'\n"
                "pleat-ckpt inspect runs/licenses --tensors q_norm --statistics --json",
    .options = options,
    .option_count = OPTIONS};

typedef struct inspect_options {
    const char *given, *pattern;
    bool tensors, statistics, json;
} inspect_options;

static pl_status take(void *context, int option, const char *value)
{
    inspect_options *o = context;
    switch (option) {
    case TENSORS: o->tensors = true; return PL_OK;
    case STATISTICS: o->statistics = true; return PL_OK;
    case JSON: o->json = true; return PL_OK;
    default: break;
    }
    if (!o->given || !o->tensors) return pl_command_take_word(&o->given, &usage, value);
    return pl_command_take_word(&o->pattern, &usage, value);
}

static pl_status inspect(pl_output *output, const inspect_options *o, const char *folder)
{
    pl_inspection inspection;
    const pl_inspection_request request = {.folder = folder,
                                           .tensors = o->tensors || o->statistics,
                                           .statistics = o->statistics,
                                           .pattern = o->pattern};
    PL_TRY(pl_inspection_make(&inspection, &request));
    pl_status status = o->json ? pl_inspection_json(&output->text, &inspection)
                               : pl_inspection_print(output, &inspection);
    pl_inspection_free(&inspection);
    return status;
}

pl_status pl_command_inspect(pl_output *output, int count, char **arguments)
{
    inspect_options o = {0};
    bool help = false;
    pl_text folder = {0};
    PL_TRY(pl_arguments_parse(&help, &usage, count, arguments, take, &o));
    if (help) return pl_command_help(output, &usage);
    if (!o.given)
        return pl_arguments_refuse_word(
            &usage, "no checkpoint; for example 'pleat-ckpt inspect runs/licenses'", NULL);
    pl_status status = pl_checkpoint_find(&folder, o.given);
    if (status == PL_OK) status = inspect(output, &o, pl_text_string(&folder));
    pl_text_free(&folder);
    return status;
}
