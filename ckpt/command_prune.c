/* pleat-ckpt prune, pin, unpin: which checkpoints of a run stay. */
#include <inttypes.h>
#include <string.h>

#include "ckpt/command.h"
#include "ckpt/store_folder.h"
#include "common/memory.h"

enum { KEEP, KEEP_EVERY, DRY_RUN, JSON, OPTIONS };

static const pl_option options[OPTIONS] = {
    [KEEP] = {"--keep", "K", "how many of the newest stay, at least 1", false},
    [KEEP_EVERY] = {"--keep-every", "N", "those stay too whose step is a multiple of N", false},
    [DRY_RUN] = {"--dry-run", NULL, "say what would be removed, and remove nothing", false},
    [JSON] = {"--json", NULL, "print JSON", false}};

static const pl_command_usage prune_usage = {
    .program = "pleat-ckpt",
    .command = "prune",
    .forms = "FOLDER --keep=K [OPTION...]",
    .about = "Removes old checkpoints and what killed processes left behind from FOLDER, which is\n"
             "one of checkpoints or that of a run. Pinned checkpoints stay. While a run writes\n"
             "there, nothing is removed (exit status 2).",
    .examples = "pleat-ckpt prune runs/licenses --keep 2 --dry-run\n"
                "pleat-ckpt prune runs/licenses --keep 2 --keep-every 100",
    .options = options,
    .option_count = OPTIONS};

typedef struct prune_options {
    const char *given;
    int64_t keep, keep_every;
    bool dry_run, json;
} prune_options;

static pl_status take(void *context, int option, const char *value)
{
    prune_options *o = context;
    const char *name = option >= 0 ? options[option].name : NULL;
    switch (option) {
    case KEEP: return pl_arguments_integer(&o->keep, &prune_usage, name, value, 1, INT64_MAX);
    case KEEP_EVERY:
        return pl_arguments_integer(&o->keep_every, &prune_usage, name, value, 1, INT64_MAX);
    case DRY_RUN: o->dry_run = true; return PL_OK;
    case JSON: o->json = true; return PL_OK;
    default: return pl_command_take_word(&o->given, &prune_usage, value);
    }
}

/* --- what is to be done --- */

/* All owned. */
typedef struct pruning {
    pl_text root, left_overs; /* a name a line */
    pl_prune_step *steps;
    int64_t count;
    int lock; /* -1: not held */
} pruning;

static void close_pruning(pruning *p)
{
    pl_checkpoint_unlock(p->lock);
    pl_text_free(&p->root);
    pl_text_free(&p->left_overs);
    pl_free(p->steps);
}

static pl_status look(pruning *p, const prune_options *o)
{
    const char *root = pl_text_string(&p->root);
    pl_text_clear(&p->left_overs);
    pl_free(p->steps);
    p->steps = NULL;
    PL_TRY(pl_checkpoint_left_overs(&p->left_overs, root));
    PL_TRY(pl_checkpoint_prune_plan(&p->steps, &p->count, root, o->keep, o->keep_every));
    if (p->count > 0 || p->left_overs.length > 0) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT, "%s: no checkpoint is in it", root);
}

/* Looked at before the lock too, which is a file: none is put where there are no checkpoints. */
static pl_status prune(pruning *p, const prune_options *o)
{
    PL_TRY(pl_checkpoint_find_root(&p->root, o->given));
    const char *root = pl_text_string(&p->root);
    PL_TRY(look(p, o));
    if (o->dry_run) return PL_OK;
    PL_TRY(pl_checkpoint_lock(&p->lock, root));
    PL_TRY(look(p, o));
    PL_TRY(pl_checkpoint_clean(root, 0, NULL));
    return pl_checkpoint_prune(root, o->keep, o->keep_every, NULL);
}

/* --- what is said --- */

static const char *const reasons[] = {[PL_PRUNE_KEEP_NEWEST] = "newest",
                                      [PL_PRUNE_KEEP_PINNED] = "pinned",
                                      [PL_PRUNE_KEEP_MULTIPLE] = "multiple"};

static void add_text(pl_text *text, const pruning *p, bool dry_run)
{
    int64_t removed = 0;
    const char *did = dry_run ? "would remove" : "removed";
    for (const char *name = pl_text_string(&p->left_overs); *name;) {
        size_t length = strcspn(name, "\n");
        pl_text_add(text, "%s  %.*s, left behind by a killed process\n", did, (int)length, name);
        name += length + 1;
    }
    for (int64_t i = 0; i < p->count; ++i) {
        const pl_prune_step *step = &p->steps[i];
        removed += step->verdict == PL_PRUNE_REMOVE;
        if (step->verdict == PL_PRUNE_REMOVE)
            pl_text_add(text, "%s  step-%" PRId64 "\n", did, step->step);
        else
            pl_text_add(text, "%-*s  step-%" PRId64 ", %s\n", (int)strlen(did), "kept", step->step,
                        reasons[step->verdict]);
    }
    pl_text_add(text, "%s: %" PRId64 " checkpoints %s, %" PRId64 " kept\n",
                pl_text_string(&p->root), removed, dry_run ? "to be removed" : "removed",
                p->count - removed);
}

static pl_status add_json(pl_text *text, const pruning *p, bool dry_run)
{
    pl_json_builder json = {.failed = false};
    json_t *top = json_object(), *removed = json_array(), *kept = json_array();
    json_t *left_overs = json_array();
    for (const char *name = pl_text_string(&p->left_overs); *name;) {
        size_t length = strcspn(name, "\n");
        pl_json_append(&json, left_overs, json_stringn(name, length));
        name += length + 1;
    }
    for (int64_t i = 0; i < p->count; ++i) {
        const pl_prune_step *step = &p->steps[i];
        if (step->verdict == PL_PRUNE_REMOVE) {
            pl_json_append(&json, removed, json_integer(step->step));
            continue;
        }
        json_t *object = json_object();
        pl_json_put_number(&json, object, "step", step->step);
        pl_json_put_string(&json, object, "why", reasons[step->verdict]);
        pl_json_append(&json, kept, object);
    }
    pl_json_put_string(&json, top, "folder", pl_text_string(&p->root));
    pl_json_put(&json, top, "dry_run", json_boolean(dry_run));
    pl_json_put(&json, top, "left_overs", left_overs);
    pl_json_put(&json, top, "removed", removed);
    pl_json_put(&json, top, "kept", kept);
    return pl_json_finish(&json, text, top);
}

pl_status pl_command_prune(pl_output *output, int count, char **arguments)
{
    prune_options o = {0};
    pruning p = {.lock = -1};
    bool help = false;
    PL_TRY(pl_arguments_parse(&help, &prune_usage, count, arguments, take, &o));
    if (help) return pl_command_help(output, &prune_usage);
    if (!o.given)
        return pl_arguments_refuse_word(
            &prune_usage, "no folder; for example 'pleat-ckpt prune runs/licenses --keep 2'", NULL);
    if (o.keep == 0)
        return pl_arguments_refuse_word(&prune_usage, "--keep is needed: how many stay", NULL);
    pl_status status = prune(&p, &o);
    if (status == PL_OK && o.json)
        status = add_json(&output->text, &p, o.dry_run);
    else if (status == PL_OK)
        add_text(&output->text, &p, o.dry_run);
    close_pruning(&p);
    return status;
}

/* --- pins --- */

static const pl_command_usage pin_usage = {
    .program = "pleat-ckpt",
    .command = "pin",
    .forms = "CHECKPOINT",
    .about =
        "Pins a checkpoint: neither a run nor prune removes it. CHECKPOINT is a folder step-N,\n"
        "or one with such folders in it, or that of a run; then the newest is meant.",
    .examples = "pleat-ckpt pin runs/licenses/checkpoints/step-100"};

static const pl_command_usage unpin_usage = {
    .program = "pleat-ckpt",
    .command = "unpin",
    .forms = "CHECKPOINT",
    .about = "Lets a pinned checkpoint be removed again. CHECKPOINT as for pin.",
    .examples = "pleat-ckpt unpin runs/licenses/checkpoints/step-100"};

typedef struct pin_options {
    const pl_command_usage *usage;
    const char *given;
} pin_options;

static pl_status take_pin(void *context, int option, const char *value)
{
    pin_options *o = context;
    (void)option;
    return pl_command_take_word(&o->given, o->usage, value);
}

static pl_status pin(pl_output *output, const pl_command_usage *usage, bool pinned, int count,
                     char **arguments)
{
    pin_options o = {.usage = usage};
    bool help = false;
    pl_text folder = {0};
    PL_TRY(pl_arguments_parse(&help, usage, count, arguments, take_pin, &o));
    if (help) return pl_command_help(output, usage);
    if (!o.given) return pl_arguments_refuse_word(usage, "no checkpoint", NULL);
    pl_status status = pl_checkpoint_find(&folder, o.given);
    if (status == PL_OK) status = pl_checkpoint_pin(pl_text_string(&folder), pinned);
    if (status == PL_OK)
        pl_text_add(&output->text, "%s is %s\n", pl_text_string(&folder),
                    pinned ? "pinned" : "not pinned");
    pl_text_free(&folder);
    return status;
}

pl_status pl_command_pin(pl_output *output, int count, char **arguments)
{
    return pin(output, &pin_usage, true, count, arguments);
}

pl_status pl_command_unpin(pl_output *output, int count, char **arguments)
{
    return pin(output, &unpin_usage, false, count, arguments);
}
