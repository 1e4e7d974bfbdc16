#include "sim/options.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/memory.h"

/* --- the table of options --- */

typedef struct option_facts {
    unsigned takes;
    const char *name, *argument, *words; /* the name with its dashes */
} option_facts;

static const option_facts facts[] = {
    {PL_TAKES_MODEL, "--model", "MODEL", "a built-in model, a config.json, or a folder with one"},
    {PL_TAKES_LAYOUT, "--layout", "LAYOUT",
     "the mesh layout: KIND:world=W,pp=P,cp=C,ep=E,replicas=R"},
    {PL_TAKES_LAYOUTS, "--layout", "LAYOUT",
     "the mesh layout: KIND:world=W,pp=P,cp=C,ep=E,replicas=R; may be given again"},
    {PL_TAKES_SETTINGS, "--set", "KEY=VALUE", "a key of run files, as below; may be given again"},
    {PL_TAKES_PLAN, "--plan", "FILE", "take the plan in FILE instead of making one"},
    {PL_TAKES_RANK, "--rank", "RANK", "look at this rank"},
    {PL_TAKES_PROGRAM, "--program", "PROGRAM",
     "start, step, evaluate, generate, export, save, load, or all; may be given again"},
    {PL_TAKES_SPLIT, "--split", "RANK", "give this rank sections of its own"},
    {PL_TAKES_LIMIT, "--limit", "NUMBER", "print at most so many differences; 0: all of them"},
    {PL_TAKES_OPERATIONS, "--operations", NULL, "print the table of operations, as Markdown"},
    {PL_TAKES_CHECKPOINT, "--checkpoint", "FOLDER",
     "check this checkpoint, or the newest in the folder"},
    {PL_TAKES_JSON, "--json", NULL, "print JSON"},
};

enum { FACTS = sizeof facts / sizeof *facts, HELP_KEY = 'h', FIRST_KEY = 256 };

static bool takes(const pl_usage *usage, int option) { return usage->takes & facts[option].takes; }

/* --- help and refusals --- */

void pl_usage_print(pl_text *text, const pl_usage *usage)
{
    const char *lead = "Usage:";
    for (const char *form = usage->forms; *form; lead = "      ") {
        size_t length = strcspn(form, "\n");
        pl_text_add(text, "%s pleat-sim %s %.*s\n", lead, usage->command, (int)length, form);
        form += length + (form[length] == '\n');
    }
    pl_text_add(text, "\n%s\n\n", usage->about);
    for (int i = 0; i < FACTS; ++i) {
        char shown[40] = "";
        if (!takes(usage, i)) continue;
        strncat(shown, facts[i].name, 16);
        if (facts[i].argument) strncat(strncat(shown, "=", 2), facts[i].argument, 16);
        pl_text_add(text, "  %-18s  %s\n", shown, facts[i].words);
    }
    pl_text_add(text, "  %-18s  %s\n\nExamples:\n", "-h, --help", "this text");
    for (const char *example = usage->examples; *example;) {
        size_t length = strcspn(example, "\n");
        pl_text_add(text, "  %.*s\n", (int)length, example);
        example += length + (example[length] == '\n');
    }
    if (!(usage->takes & PL_TAKES_SETTINGS)) return;
    pl_text_add_string(text, "\nKeys of --set and of run files:\n");
    pl_run_describe_keys(text, false);
}

pl_status pl_output_status(const pl_output *output, pl_status status)
{
    bool stands = status == PL_OK || status == PL_CHECK_FAILED || output->stands;
    if (stands && output->text.out_of_memory) return pl_text_status(&output->text);
    return status;
}

pl_status pl_usage_refuse(const pl_usage *usage, pl_text *text)
{
    pl_status status = pl_text_status(text);
    if (status == PL_OK) {
        status = PL_FAIL(PL_BAD_INPUT, "%s", pl_text_string(text));
        pl_error_context("see 'pleat-sim %s --help'", usage->command);
    }
    pl_text_free(text);
    return status;
}

/* --- taking options --- */

typedef struct taking {
    const pl_usage *usage;
    pl_options options;
    pl_status status;
    int refused; /* place of the argument that getopt refused; 0: none */
} taking;

static pl_status refuse_second(const taking *t, const char *name)
{
    pl_text text = {0};
    pl_text_add(&text, "%s is given twice", name);
    return pl_usage_refuse(t->usage, &text);
}

static pl_status take_word(const taking *t, const char **place, const char *value, int option)
{
    if (*place) return refuse_second(t, facts[option].name);
    *place = value;
    return PL_OK;
}

static pl_status take_number(const taking *t, int64_t *place, const char *value, int option)
{
    int64_t number = 0;
    if (*place >= 0) return refuse_second(t, facts[option].name);
    if (!pl_parse_integer(&number, value) || number < 0) {
        pl_text text = {0};
        pl_text_add(&text, "%s: ", facts[option].name);
        pl_text_add_quoted(&text, value);
        pl_text_add_string(&text, " is not a whole number of at least 0");
        return pl_usage_refuse(t->usage, &text);
    }
    *place = number;
    return PL_OK;
}

static pl_status take_program(const taking *t, uint32_t *programs, const char *value)
{
    const char *names[PL_PROGRAM_COUNT + 1];
    pl_program program = PL_PROGRAM_START;
    pl_text text = {0};
    if (pl_program_parse(&program, value)) {
        *programs |= 1U << program;
        return PL_OK;
    }
    if (strcmp(value, "all") == 0) {
        *programs |= (1U << PL_PROGRAM_COUNT) - 1;
        return PL_OK;
    }
    for (int i = 0; i < PL_PROGRAM_COUNT; ++i) names[i] = pl_program_name((pl_program)i);
    names[PL_PROGRAM_COUNT] = "all";
    pl_text_add_string(&text, "--program: unknown program ");
    pl_text_add_quoted(&text, value);
    pl_text_add_choices(&text, value, names, PL_PROGRAM_COUNT + 1);
    return pl_usage_refuse(t->usage, &text);
}

static pl_status take_option(taking *t, int option, const char *value)
{
    pl_options *o = &t->options;
    switch (facts[option].takes) {
    case PL_TAKES_MODEL: return take_word(t, &o->model, value, option);
    case PL_TAKES_PLAN: return take_word(t, &o->plan, value, option);
    case PL_TAKES_CHECKPOINT: return take_word(t, &o->checkpoint, value, option);
    case PL_TAKES_LAYOUT:
    case PL_TAKES_LAYOUTS: o->layouts[o->layout_count++] = value; return PL_OK;
    case PL_TAKES_SETTINGS: o->settings[o->setting_count++] = value; return PL_OK;
    case PL_TAKES_RANK: return take_number(t, &o->rank, value, option);
    case PL_TAKES_SPLIT: return take_number(t, &o->split, value, option);
    case PL_TAKES_LIMIT: return take_number(t, &o->limit, value, option);
    case PL_TAKES_PROGRAM: return take_program(t, &o->programs, value);
    case PL_TAKES_OPERATIONS: o->operations = true; return PL_OK;
    case PL_TAKES_JSON: o->json = true; return PL_OK;
    default: return PL_FAIL(PL_INTERNAL, "option %s is taken by nobody", facts[option].name);
    }
}

static error_t take_argument(int key, char *value, struct argp_state *state)
{
    taking *t = state->input;
    switch (key) {
    case HELP_KEY: t->options.help = true; break;
    case ARGP_KEY_ARG: t->options.words[t->options.word_count++] = value; break;
    case ARGP_KEY_ERROR: t->refused = state->next - 1; break;
    default:
        if (key < FIRST_KEY || key >= FIRST_KEY + FACTS) return ARGP_ERR_UNKNOWN;
        t->status = take_option(t, key - FIRST_KEY, value);
    }
    return t->status == PL_OK ? 0 : EINVAL;
}

/* --- what getopt refused --- */

/* The only option that WORD may stand for; -1: none, -2: several. */
static int find_option(const taking *t, const char *word, size_t length)
{
    int found = -1;
    for (int i = 0; i < FACTS; ++i) {
        if (!takes(t->usage, i) || strncmp(facts[i].name, word, length) != 0) continue;
        if (strlen(facts[i].name) == length) return i;
        found = found == -1 ? i : -2;
    }
    return found;
}

static pl_status refuse_option(const taking *t, const char *word)
{
    const char *names[FACTS + 1];
    int count = 0;
    size_t length = strcspn(word, "=");
    int option = find_option(t, word, length);
    pl_text text = {0}, given = {0};
    for (int i = 0; i < FACTS; ++i)
        if (takes(t->usage, i)) names[count++] = facts[i].name;
    names[count++] = "--help";
    pl_text_add_bytes(&given, word, length);
    if (option >= 0 && facts[option].argument) {
        pl_text_add(&text, "%s needs a value: %s=%s", facts[option].name, facts[option].name,
                    facts[option].argument);
    } else if (option >= 0) {
        pl_text_add(&text, "%s takes no value", facts[option].name);
    } else {
        pl_text_add_string(&text,
                           option == -2 ? "more than one option begins with " : "unknown option ");
        pl_text_add_quoted(&text, pl_text_string(&given));
        pl_text_add_choices(&text, pl_text_string(&given), names, count);
    }
    pl_text_free(&given);
    return pl_usage_refuse(t->usage, &text);
}

/* --- parsing --- */

static pl_status make_room(pl_options *options, int count)
{
    size_t most = (size_t)count + 1;
    PL_TRY(pl_allocate(&options->layouts, most, sizeof *options->layouts, "arguments"));
    PL_TRY(pl_allocate(&options->settings, most, sizeof *options->settings, "arguments"));
    return pl_allocate(&options->words, most, sizeof *options->words, "arguments");
}

/* argp prints nothing and never exits here, so that words and statuses are this program's. */
static pl_status parse(taking *t, int count, char **arguments)
{
    struct argp_option list[FACTS + 2];
    int used = 0;
    memset(list, 0, sizeof list);
    for (int i = 0; i < FACTS; ++i) {
        if (!takes(t->usage, i)) continue;
        list[used].name = facts[i].name + 2;
        list[used].key = FIRST_KEY + i;
        list[used++].arg = facts[i].argument;
    }
    list[used].name = "help";
    list[used].key = HELP_KEY;
    const struct argp argp = {.options = list, .parser = take_argument};
    error_t error = argp_parse(&argp, count, arguments, ARGP_NO_ERRS | ARGP_NO_HELP, NULL, t);
    if (t->status != PL_OK) return t->status;
    if (error == ENOMEM) return PL_FAIL(PL_NO_MEMORY, "out of memory for arguments");
    if (error != 0) return refuse_option(t, arguments[t->refused]);
    return PL_OK;
}

pl_status pl_options_parse(pl_options *out, const pl_usage *usage, int count, char **arguments)
{
    taking t = {.usage = usage, .options = {.rank = -1, .split = -1, .limit = -1}};
    pl_status status = make_room(&t.options, count);
    if (status == PL_OK) status = parse(&t, count, arguments);
    if (status == PL_OK)
        *out = t.options;
    else
        pl_options_free(&t.options);
    return status;
}

void pl_options_free(pl_options *options)
{
    pl_free(options->layouts);
    pl_free(options->settings);
    pl_free(options->words);
    memset(options, 0, sizeof *options);
}
