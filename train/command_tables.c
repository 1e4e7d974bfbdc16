/* pleat-train tables: what the pages under docs/ quote, printed by the program that it is about. */
#include <string.h>

#include "train/command.h"
#include "train/recorder.h"
#include "train/samples.h"
#include "train/schedule.h"
#include "train/tokens.h"

static const pl_command_usage tables_usage = {
    .program = "pleat-train",
    .command = "tables",
    .forms = "NAME",
    .about =
        "Prints what the pages under docs/ quote: data (kinds of files), samples (which of them\n"
        "a rank reads), schedule (of the learning rate), log (fields of run.jsonl), events\n"
        "(tags of TensorBoard files). Tables are Markdown.",
    .examples = "pleat-train tables log"};

static void add_log(pl_text *text)
{
    int count = 0;
    const pl_log_field *fields = pl_run_log_fields(&count);
    pl_text_add_string(text, "| `kind` | field | what it is |\n|---|---|---|\n");
    for (int i = 0; i < count; ++i)
        pl_text_add(text, "| %s | `%s` | %s |\n", fields[i].kind, fields[i].name,
                    fields[i].meaning);
}

static void add_events(pl_text *text)
{
    int count = 0;
    const pl_recorder_tag *tags = pl_recorder_tags(&count);
    pl_text_add_string(text, "| tag | in run.jsonl |\n|---|---|\n");
    for (int i = 0; i < count; ++i)
        pl_text_add(text, "| `%s` | %s |\n", tags[i].name, tags[i].meaning);
}

static const struct {
    const char *name;
    void (*add)(pl_text *text);
} tables[] = {{"data", pl_tokens_describe},
              {"samples", pl_samples_describe},
              {"schedule", pl_learning_rate_describe},
              {"log", add_log},
              {"events", add_events}};

enum { TABLES = sizeof tables / sizeof *tables };

static pl_status take(void *context, int option, const char *value)
{
    const char **name = context;
    (void)option;
    if (*name)
        return pl_command_refuse(&tables_usage, "one name is meant, so this is too much: ", value);
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
    return pl_arguments_refuse(&tables_usage, &text);
}

pl_status pl_command_tables(const pl_program_facts *program, int count, char **arguments)
{
    bool help = false;
    const char *name = NULL;
    (void)program;
    PL_TRY(pl_arguments_parse(&help, &tables_usage, count, arguments, take, &name));
    if (help) return pl_command_help(&tables_usage);
    if (!name) return pl_command_refuse(&tables_usage, "no name of a table", NULL);
    for (int i = 0; i < TABLES; ++i) {
        if (strcmp(name, tables[i].name) != 0) continue;
        pl_text text = {0};
        tables[i].add(&text);
        return pl_command_print(&text);
    }
    return refuse_name(name);
}
