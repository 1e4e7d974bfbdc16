/* pleat-ckpt tables: what the pages under docs/ quote, printed by the program that it is about. */
#include <string.h>

#include "ckpt/command.h"
#include "ckpt/store_damage.h"

static const pl_command_usage usage = {
    .program = "pleat-ckpt",
    .command = "tables",
    .forms = "NAME",
    .about = "Prints what the pages under docs/ quote, as Markdown: damage (what verify finds).",
    .examples = "pleat-ckpt tables damage"};

static void add_damage(pl_text *text)
{
    pl_text_add_string(text, "| damage | what it means |\n|---|---|\n");
    for (int i = 0; i < PL_DAMAGE_KIND_COUNT; ++i)
        pl_text_add(text, "| %s | %s |\n", pl_damage_kind_name((pl_damage_kind)i),
                    pl_damage_kind_meaning((pl_damage_kind)i));
}

static const struct {
    const char *name;
    void (*add)(pl_text *text);
} tables[] = {{"damage", add_damage}};

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
