#include "common/arguments.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/run_file.h"

enum { HELP_KEY = 'h', FIRST_KEY = 256 };

/* --- help and refusals --- */

/* Add each line of LINES behind LEAD; later ones behind LATER. */
static void add_lines(pl_text *text, const char *lines, const char *lead, const char *later)
{
    while (*lines) {
        size_t length = strcspn(lines, "\n");
        pl_text_add(text, "%s%.*s\n", lead, (int)length, lines);
        lines += length + (lines[length] == '\n');
        lead = later;
    }
}

static void add_option(pl_text *text, const char *name, const char *argument, const char *words)
{
    char shown[64];
    snprintf(shown, sizeof shown, "%s%s%s", name, argument ? "=" : "", argument ? argument : "");
    pl_text_add(text, "  %-20s  %s\n", shown, words);
}

void pl_arguments_help(pl_text *text, const pl_command_usage *usage)
{
    char lead[64], later[64];
    snprintf(lead, sizeof lead, "Usage: %s %s ", usage->program, usage->command);
    snprintf(later, sizeof later, "       %s %s ", usage->program, usage->command);
    add_lines(text, usage->forms, lead, later);
    pl_text_add(text, "\n%s\n\n", usage->about);
    for (int i = 0; i < usage->option_count; ++i)
        add_option(text, usage->options[i].name, usage->options[i].argument,
                   usage->options[i].words);
    add_option(text, "-h, --help", NULL, "this text");
    pl_text_add_string(text, "\nExamples:\n");
    add_lines(text, usage->examples, "  ", "  ");
    if (!usage->run_file_keys) return;
    pl_text_add_string(text, "\nKeys of --set and of run files:\n");
    pl_run_describe_keys(text, false);
}

pl_status pl_arguments_refuse(const pl_command_usage *usage, pl_text *text)
{
    pl_status status = pl_text_status(text);
    if (status == PL_OK) {
        status = PL_FAIL(PL_BAD_INPUT, "%s", pl_text_string(text));
        pl_error_context("see '%s %s --help'", usage->program, usage->command);
    }
    pl_text_free(text);
    return status;
}

pl_status pl_arguments_refuse_word(const pl_command_usage *usage, const char *lead,
                                   const char *word)
{
    pl_text text = {0};
    pl_text_add_string(&text, lead);
    if (word) pl_text_add_quoted(&text, word);
    return pl_arguments_refuse(usage, &text);
}

pl_status pl_arguments_integer(int64_t *out, const pl_command_usage *usage, const char *option,
                               const char *value, int64_t least, int64_t most)
{
    int64_t number = 0;
    if (pl_parse_integer(&number, value) && number >= least && number <= most) {
        *out = number;
        return PL_OK;
    }
    pl_text text = {0};
    pl_text_add(&text, "%s: ", option);
    pl_text_add_quoted(&text, value);
    pl_text_add(&text, " is not a whole number of at least %" PRId64, least);
    if (most < INT64_MAX) pl_text_add(&text, " and at most %" PRId64, most);
    return pl_arguments_refuse(usage, &text);
}

/* --- parsing --- */

typedef struct reading {
    const pl_command_usage *usage;
    pl_take_argument take;
    void *context;
    bool help, given[PL_OPTIONS_MOST];
    pl_status status;
    int refused; /* place of the argument that getopt refused */
} reading;

static pl_status take_option(reading *r, int option, const char *value)
{
    const pl_option *facts = &r->usage->options[option];
    if (r->given[option] && !facts->repeats) {
        pl_text text = {0};
        pl_text_add(&text, "%s is given twice", facts->name);
        return pl_arguments_refuse(r->usage, &text);
    }
    r->given[option] = true;
    return r->take(r->context, option, value);
}

static error_t take_argument(int key, char *value, struct argp_state *state)
{
    reading *r = state->input;
    switch (key) {
    case HELP_KEY: r->help = true; break;
    case ARGP_KEY_ARG: r->status = r->take(r->context, -1, value); break;
    case ARGP_KEY_ERROR: r->refused = state->next - 1; break;
    default:
        if (key < FIRST_KEY || key >= FIRST_KEY + r->usage->option_count) return ARGP_ERR_UNKNOWN;
        r->status = take_option(r, key - FIRST_KEY, value);
    }
    return r->status == PL_OK ? 0 : EINVAL;
}

/* The only option that the LENGTH bytes of WORD may stand for; -1: none, -2: several. */
static int find_option(const pl_command_usage *usage, const char *word, size_t length)
{
    int found = -1;
    for (int i = 0; i < usage->option_count; ++i) {
        if (strncmp(usage->options[i].name, word, length) != 0) continue;
        if (strlen(usage->options[i].name) == length) return i;
        found = found == -1 ? i : -2;
    }
    return found;
}

static pl_status refuse_option(const pl_command_usage *usage, const char *word)
{
    const char *names[PL_OPTIONS_MOST + 1];
    size_t length = strcspn(word, "=");
    int count = 0, option = find_option(usage, word, length);
    const pl_option *facts = option >= 0 ? &usage->options[option] : NULL;
    pl_text text = {0}, given = {0};
    for (int i = 0; i < usage->option_count; ++i) names[count++] = usage->options[i].name;
    names[count++] = "--help";
    pl_text_add_bytes(&given, word, length);
    if (facts && facts->argument) {
        pl_text_add(&text, "%s needs a value: %s=%s", facts->name, facts->name, facts->argument);
    } else if (facts) {
        pl_text_add(&text, "%s takes no value", facts->name);
    } else {
        pl_text_add_string(&text,
                           option == -2 ? "more than one option begins with " : "unknown option ");
        pl_text_add_quoted(&text, pl_text_string(&given));
        pl_text_add_choices(&text, pl_text_string(&given), names, count);
    }
    pl_text_free(&given);
    return pl_arguments_refuse(usage, &text);
}

/* argp prints nothing and never exits here, so that words and statuses are the program's. */
pl_status pl_arguments_parse(bool *help, const pl_command_usage *usage, int count, char **arguments,
                             pl_take_argument take, void *context)
{
    struct argp_option list[PL_OPTIONS_MOST + 2];
    reading r = {.usage = usage, .take = take, .context = context};
    int used = 0;
    memset(list, 0, sizeof list);
    if (usage->option_count > PL_OPTIONS_MOST)
        return PL_FAIL(PL_INTERNAL, "%s %s has too many options", usage->program, usage->command);
    for (int i = 0; i < usage->option_count; ++i) {
        list[used].name = usage->options[i].name + 2;
        list[used].key = FIRST_KEY + i;
        list[used++].arg = usage->options[i].argument;
    }
    list[used].name = "help";
    list[used].key = HELP_KEY;
    const struct argp argp = {.options = list, .parser = take_argument};
    error_t error =
        argp_parse(&argp, count, arguments, ARGP_IN_ORDER | ARGP_NO_ERRS | ARGP_NO_HELP, NULL, &r);
    if (r.status != PL_OK) return r.status;
    if (error == ENOMEM) return PL_FAIL(PL_NO_MEMORY, "out of memory for arguments");
    if (error != 0) return refuse_option(usage, arguments[r.refused]);
    *help = r.help;
    return PL_OK;
}
