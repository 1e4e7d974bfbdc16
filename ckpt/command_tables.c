/* pleat-ckpt tables: what the pages under docs/ quote, printed by the program that it is about. */
#include <string.h>

#include "ckpt/command.h"
#include "ckpt/manifest_keys.h"
#include "ckpt/store_damage.h"

static const pl_command_usage usage = {
    .program = "pleat-ckpt",
    .command = "tables",
    .forms = "NAME",
    .about =
        "Prints what the pages under docs/ quote, as Markdown: manifest, tensor and rank (keys of\n"
        "the JSON files of a checkpoint), damage (what verify finds), json (what --json prints).",
    .examples = "pleat-ckpt tables damage"};

static void add_damage(pl_text *text)
{
    pl_text_add_string(text, "| damage | what it means |\n|---|---|\n");
    for (int i = 0; i < PL_DAMAGE_KIND_COUNT; ++i)
        pl_text_add(text, "| %s | %s |\n", pl_damage_kind_name((pl_damage_kind)i),
                    pl_damage_kind_meaning((pl_damage_kind)i));
}

static void add_keys(pl_text *text, pl_manifest_object object)
{
    int count = 0;
    const pl_manifest_key *keys = pl_manifest_keys(object, &count);
    pl_text_add_string(text, "| key | what it is |\n|---|---|\n");
    for (int i = 0; i < count; ++i)
        pl_text_add(text, "| `%s` | %s |\n", keys[i].name, keys[i].meaning);
}

static void add_manifest(pl_text *text) { add_keys(text, PL_KEYS_MANIFEST); }

static void add_tensor(pl_text *text) { add_keys(text, PL_KEYS_TENSOR); }

static void add_rank(pl_text *text) { add_keys(text, PL_KEYS_RANK); }

/* What --json prints; a case of tests/cli compares the keys. */
static void add_json(pl_text *text)
{
    static const struct {
        const char *command, *key, *meaning;
    } keys[] = {
        {"inspect", "checkpoint", "the folder"},
        {"inspect", "pinned", "whether it is kept from being removed"},
        {"inspect", "trained", "as in the manifest, like the next ones"},
        {"inspect", "step", "..."},
        {"inspect", "updates", "..."},
        {"inspect", "tokens", "..."},
        {"inspect", "windows", "..."},
        {"inspect", "seed", "..."},
        {"inspect", "optimizer", "..."},
        {"inspect", "model", "the model's name"},
        {"inspect", "family", "the model_type"},
        {"inspect", "layout", "as in the manifest, like the next ones"},
        {"inspect", "keep_fp32", "..."},
        {"inspect", "frozen", "..."},
        {"inspect", "settings", "..."},
        {"inspect", "provenance", "..."},
        {"inspect", "kinds", "of each kind kept: types, tensors, values, bytes"},
        {"inspect", "ranks",
         "of each rank that wrote: rank, and the bytes of its values, list, sums"},
        {"inspect", "bytes", "of all files"},
        {"inspect", "tensors",
         "with --tensors, of each: name, shape, experts, class, frozen; under "
         "kept, of each kind: type, pieces, bytes, and with --statistics "
         "least, most, mean, rms, zeroes, nans, infinities"},
        {"verify", "checkpoint", "the folder"},
        {"verify", "files", "how many were looked at"},
        {"verify", "bytes", "read from HDF5 files and the index"},
        {"verify", "pieces", "pieces of tensors"},
        {"verify", "blocks", "blocks of 1 MiB or less"},
        {"verify", "unseen_ranks",
         "ranks whose values were not looked at, their lists being damaged"},
        {"verify", "seconds", "how long it took"},
        {"verify", "damages",
         "of each: what (the table above), file, words; where they are known "
         "tensor, kind, rows, bytes, each [first, after the last]"},
        {"verify", "notes", "the same of what is no damage"},
        {"diff", "a", "the first folder"},
        {"diff", "b", "the second"},
        {"diff", "equal", "whether values are, and all facts that count"},
        {"diff", "compared", "tensors and kinds that both have"},
        {"diff", "values", "in them"},
        {"diff", "facts", "of each that differs: name, a, b, counts"},
        {"diff", "tensors",
         "of each kind of a tensor that differs: name, kind, type_a, type_b (null: "
         "not kept); where both keep it values, different, nans, largest, at "
         "[row, column], relative, relative_l2"},
        {"prune", "folder", "the folder of checkpoints"},
        {"prune", "dry_run", "whether nothing was done"},
        {"prune", "left_overs", "folders of killed processes that were removed"},
        {"prune", "removed", "steps"},
        {"prune", "kept", "of each: step, why (newest, multiple, pinned)"},
        {"import", "checkpoint", "the folder that was made"},
        {"import", "tensors", "of the model; experts of a layer are one"},
        {"import", "ranks", "whose files were written"},
        {"import", "bytes", "of values"},
        {"import", "notes", "what was odd about the files and let pass, lines of text"},
        {"import", "seconds", "how long it took"},
        {"export", "checkpoint", "the folder that was read"},
        {"export", "folder", "the one that was written"},
        {"export", "files", "of tensors"},
        {"export", "tensors", "in them; experts count one by one"},
        {"export", "masters", "tensors of the model that were written from masters"},
        {"export", "bytes", "of tensors"},
        {"export", "seconds", "how long it took"},
    };
    pl_text_add_string(text, "| command | key | what it is |\n|---|---|---|\n");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; ++i)
        pl_text_add(text, "| %s | `%s` | %s |\n", keys[i].command, keys[i].key, keys[i].meaning);
}

static const struct {
    const char *name;
    void (*add)(pl_text *text);
} tables[] = {{"manifest", add_manifest},
              {"tensor", add_tensor},
              {"rank", add_rank},
              {"damage", add_damage},
              {"json", add_json}};

enum { TABLES = sizeof tables / sizeof *tables };

static pl_status take(void *context, int option, const char *value)
{
    const char **name = context;
    (void)option;
    if (*name)
        return pl_arguments_refuse_word(&usage, "one name is meant, so this is too much: ", value);
    *name = value;
    return PL_OK;
}

static pl_status refuse_name(const char *name)
{
    const char *names[TABLES];
    pl_text text = {0};
    for (int i = 0; i < TABLES; ++i) names[i] = tables[i].name;
    pl_text_add_string(&text, "no table ");
    pl_text_add_quoted(&text, name);
    pl_text_add_choices(&text, name, names, TABLES);
    return pl_arguments_refuse(&usage, &text);
}

pl_status pl_command_tables(pl_output *output, int count, char **arguments)
{
    bool help = false;
    const char *name = NULL;
    PL_TRY(pl_arguments_parse(&help, &usage, count, arguments, take, &name));
    if (help) return pl_command_help(output, &usage);
    if (!name) return pl_arguments_refuse_word(&usage, "no name of a table", NULL);
    for (int i = 0; i < TABLES; ++i) {
        if (strcmp(name, tables[i].name) != 0) continue;
        tables[i].add(&output->text);
        return pl_text_status(&output->text);
    }
    return refuse_name(name);
}
