/* Damage to the words and numbers of an entry. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/tools/mutation_kinds.h"

static const char *const groups[] = {"world",          "stage",        "pipeline",
                                     "data",           "context",      "dense-shard",
                                     "dense-replica",  "expert-owner", "expert-shard",
                                     "expert-replica", "expert-block", NULL};
static const char *const reductions[] = {"sum", "average", "max", NULL};
static const char *const dtypes[] = {"bf16", "fp16", "fp32", "fp64", "i32", "i64", "u8", NULL};
static const char *const passes[] = {"f", "r", "bi", "bw", "b", "-", NULL};
static const char *const streams[] = {"compute", "communication", "copy", "host", NULL};
static const char *const scales[] = {"1",   "2",     "1/2",   "1/T",   "2/T", "1/2*T",
                                     "T*1", "T*1/2", "T*1/4", "T*1/8", "0",   NULL};
static const char *const conditions[] = {"update", NULL};

static const struct {
    const char *key;
    const char *const *choices;
} choices_of[] = {{"group", groups}, {"reduction", reductions}, {"wire", dtypes},
                  {"pass", passes},  {"stream", streams},       {"scale", scales},
                  {"if", conditions}};

static const char *const *choices(const char *key)
{
    for (size_t i = 0; i < sizeof choices_of / sizeof *choices_of; ++i)
        if (strcmp(choices_of[i].key, key) == 0) return choices_of[i].choices;
    return NULL;
}

static char *own_line(const mutation_site *site) { return site->lines->line[site->at]; }

static void replace(mutation_site *site, char *line)
{
    mutation_replace(site->lines, site->at, line);
}

const char *mutation_other_choice(mutation_site *site, const char *const *list,
                                  mutation_piece piece)
{
    const char *chosen = NULL;
    long seen = 0;
    for (; *list; ++list)
        if (!mutation_piece_is(piece, *list) && mutation_random(site, ++seen) == 0) chosen = *list;
    return chosen;
}

bool mutation_change_choice(mutation_site *site, const char *argument)
{
    char *line = own_line(site);
    mutation_piece value = mutation_value(line, argument);
    if (!value.start) return false;
    replace(site, mutation_with_piece(line, value,
                                      mutation_other_choice(site, choices(argument), value)));
    return true;
}

bool mutation_remove_choice(mutation_site *site, const char *argument)
{
    char *line = own_line(site);
    mutation_piece value = mutation_value(line, argument);
    if (!value.start || mutation_piece_is(value, "1")) return false; /* a scale of 1 is none */
    replace(site, mutation_with_value(line, argument, NULL));
    return true;
}

bool mutation_add_choice(mutation_site *site, const char *argument)
{
    static const mutation_piece one = {"1", 1}; /* a scale of 1 is none */
    char *line = own_line(site);
    if (mutation_value(line, argument).start) return false;
    replace(site, mutation_with_value(line, argument,
                                      mutation_other_choice(site, choices(argument), one)));
    return true;
}

/* --- numbers --- */

char *mutation_other_number(mutation_site *site, const char *line, mutation_piece piece)
{
    char text[32];
    long long number = 0;
    snprintf(text, sizeof text, "%.*s", (int)piece.length, piece.start);
    number = strtoll(text, NULL, 10);
    const long long others[] = {number * 2, number / 2, number + 1, number - 1, number + 8, 0};
    long long chosen = others[mutation_random(site, sizeof others / sizeof *others)];
    if (chosen == number || chosen < 0) chosen = number + 1;
    snprintf(text, sizeof text, "%lld", chosen);
    return mutation_with_piece(line, piece, text);
}

static mutation_piece digits_of(mutation_piece piece)
{
    size_t length = 0;
    while (length < piece.length && piece.start[length] >= '0' && piece.start[length] <= '9')
        ++length;
    piece.length = length;
    return piece;
}

bool mutation_change_number(mutation_site *site, const char *argument)
{
    char *line = own_line(site);
    mutation_piece value = mutation_value(line, argument);
    if (!value.start) return false;
    replace(site, mutation_other_number(site, line, digits_of(value)));
    return true;
}

/* A number of the entry's name: another one, gone, or there where there was none. */
bool mutation_change_name(mutation_site *site, const char *argument)
{
    char *line = own_line(site), text[32];
    mutation_piece value = mutation_value(line, argument);
    if (!value.start) {
        bool one =
            strcmp(argument, "ordinal") == 0 || mutation_random(site, 2); /* 0 is its default */
        replace(site, mutation_with_value(line, argument, one ? "1" : "0"));
        return true;
    }
    if (mutation_random(site, 4) == 0) {
        replace(site, mutation_with_value(line, argument, NULL));
        return true;
    }
    long number = strtol(value.start, NULL, 10);
    number += number > 0 && mutation_random(site, 2) ? -1 : 1;
    snprintf(text, sizeof text, "%ld", number);
    replace(site, mutation_with_piece(line, value, text));
    return true;
}

/* "*C" behind bytes, "*R" behind flops: dropped or added. */
bool mutation_change_suffix(mutation_site *site, const char *argument)
{
    char *line = own_line(site), text[48];
    mutation_piece value = mutation_value(line, argument), digits = digits_of(value);
    if (!value.start) return false;
    const char *suffix = digits.length < value.length     ? ""
                         : strcmp(argument, "bytes") == 0 ? "*C"
                                                          : "*R";
    snprintf(text, sizeof text, "%.*s%s", (int)digits.length, digits.start, suffix);
    replace(site, mutation_with_piece(line, value, text));
    return true;
}

/* --- what it is, and to what --- */

/* "layer.3" or "experts.3": another number. */
bool mutation_change_layer(mutation_site *site, const char *argument)
{
    (void)argument;
    char *line = own_line(site), text[48];
    mutation_piece subject = mutation_word(line, 3);
    if (!subject.start) return false;
    const char *dot = memchr(subject.start, '.', subject.length);
    if (!dot) return false;
    long layer = strtol(dot + 1, NULL, 10);
    layer += layer > 0 && mutation_random(site, 2) ? -1 : 1;
    snprintf(text, sizeof text, "%.*s.%ld", (int)(dot - subject.start), subject.start, layer);
    replace(site, mutation_with_piece(line, subject, text));
    return true;
}

bool mutation_change_subject(mutation_site *site, const char *argument)
{
    static const char *const subjects[] = {"embed",
                                           "layer.0",
                                           "layer.1",
                                           "experts.0",
                                           "experts.1",
                                           "norm",
                                           "head",
                                           "batch",
                                           "tokens",
                                           "balance",
                                           "dense-gradients",
                                           "expert-gradients",
                                           "ignored-gradients",
                                           "gradients",
                                           "dense-squares",
                                           "expert-squares",
                                           "parameters",
                                           "loss",
                                           "flags",
                                           NULL};
    (void)argument;
    char *line = own_line(site);
    mutation_piece subject = mutation_word(line, 3);
    replace(site,
            mutation_with_piece(line, subject, mutation_other_choice(site, subjects, subject)));
    return true;
}

bool mutation_change_operation(mutation_site *site, const char *argument)
{
    static const char *const operations[] = {
        "load-batch",    "count-tokens", "copy",    "initialize",      "write",      "zero",
        "cast",          "gather",       "reshard", "reduce",          "accumulate", "embed",
        "attention",     "mlp",          "route",   "exchange-counts", "bind",       "permute",
        "share-routes",  "dispatch",     "experts", "combine",         "merge",      "final-norm",
        "loss",          "logits",       "sample",  "balance",         "all-reduce", "scale",
        "gradient-norm", "clip",         "step",    "control",         NULL};
    (void)argument;
    char *line = own_line(site);
    mutation_piece operation = mutation_word(line, 2);
    replace(site, mutation_with_piece(line, operation,
                                      mutation_other_choice(site, operations, operation)));
    return true;
}

/* Another micro-batch, round or layer for an exchange among the owners of experts. */
bool mutation_change_exchange(mutation_site *site, const char *argument)
{
    if (!mutation_piece_is(mutation_value(own_line(site), "group"), "expert-owner")) return false;
    switch (mutation_random(site, 3)) {
    case 0: return mutation_change_name(site, "mb");
    case 1: return mutation_change_name(site, "round");
    default: return mutation_change_layer(site, argument);
    }
}
