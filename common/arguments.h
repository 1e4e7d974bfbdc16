/* Arguments of the commands of a program: "PROGRAM COMMAND [WORD | OPTION]...", over argp.
 *
 * One table of options serves parsing, help and refusals. Words about wrong arguments name what
 * was given, the nearest option, and where the help is; nothing is printed here.
 */
#ifndef PL_COMMON_ARGUMENTS_H
#define PL_COMMON_ARGUMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PL_OPTIONS_MOST = 32 }; /* of one command */

typedef struct pl_option {
    const char *name;     /* with its dashes: "--set" */
    const char *argument; /* what stands for its value in the help; NULL: it takes none */
    const char *words;    /* what it does, one line */
    bool repeats;         /* may be given any number of times */
} pl_option;

/* What a command is, for parsing and for its help. All commands take --help and -h. */
typedef struct pl_command_usage {
    const char *program, *command;
    const char *forms;    /* what follows "PROGRAM COMMAND", a form a line */
    const char *about;    /* paragraphs */
    const char *examples; /* whole command lines, one a line */
    const pl_option *options;
    int option_count;
    bool run_file_keys; /* the help ends with the keys of run files */
} pl_command_usage;

/* OPTION is the index in the usage's table, -1 for a word that is no option. VALUE is NULL for
 * options without one; borrowed from the argument vector. */
typedef pl_status (*pl_take_argument)(void *context, int option, const char *value);

/* Read ARGUMENTS[1] .. ARGUMENTS[COUNT - 1] in order; ARGUMENTS[0] is the command's name and
 * ARGUMENTS[COUNT] is NULL. *HELP says whether --help is among them. Errors: PL_BAD_INPUT for
 * unknown options, missing values and options given twice; those of TAKE. */
pl_status pl_arguments_parse(bool *help, const pl_command_usage *usage, int count, char **arguments,
                             pl_take_argument take, void *context);

/* Add the help of a command: forms, options, examples. */
void pl_arguments_help(pl_text *text, const pl_command_usage *usage);

/* Refuse with TEXT, which is freed, and a pointer to the command's help: PL_BAD_INPUT. */
pl_status pl_arguments_refuse(const pl_command_usage *usage, pl_text *text);

/* The same with LEAD and WORD, quoted; NULL: none. */
pl_status pl_arguments_refuse_word(const pl_command_usage *usage, const char *lead,
                                   const char *word);

/* Read VALUE of OPTION as a whole number in [LEAST, MOST]. Errors: PL_BAD_INPUT. */
pl_status pl_arguments_integer(int64_t *out, const pl_command_usage *usage, const char *option,
                               const char *value, int64_t least, int64_t most);

#ifdef __cplusplus
}
#endif
#endif
