/* What the commands of pleat-sim share: their options, their help, and where model, layout and
 * settings come from.
 */
#ifndef PL_SIM_OPTIONS_H
#define PL_SIM_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/plan.h"
#include "common/run_file.h"
#include "sim/command.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Options that a command may take; all take --help. */
enum {
    PL_TAKES_MODEL = 1 << 0,
    PL_TAKES_LAYOUT = 1 << 1,
    PL_TAKES_LAYOUTS = 1 << 2, /* --layout any number of times */
    PL_TAKES_SETTINGS = 1 << 3,
    PL_TAKES_PLAN = 1 << 4,
    PL_TAKES_RANK = 1 << 5,
    PL_TAKES_PROGRAM = 1 << 6,
    PL_TAKES_SPLIT = 1 << 7,
    PL_TAKES_LIMIT = 1 << 8,
    PL_TAKES_OPERATIONS = 1 << 9,
    PL_TAKES_JSON = 1 << 10,
    PL_TAKES_CHECKPOINT = 1 << 11
};

/* What a command is, for parsing and for its help. */
typedef struct pl_usage {
    const char *command;
    const char *forms;    /* what follows "pleat-sim COMMAND", a form a line */
    const char *about;    /* paragraphs */
    const char *examples; /* whole command lines, one a line */
    unsigned takes;
} pl_usage;

/* The arguments as given. Strings are borrowed from the argument vector. */
typedef struct pl_options {
    bool help, json, operations;
    const char *model, *plan, *checkpoint;
    uint32_t programs;                         /* PL_PROGRAMS_...; 0: not given */
    int64_t rank, split, limit;                /* -1: not given */
    const char **layouts, **settings, **words; /* owned arrays */
    int layout_count, setting_count, word_count;
} pl_options;

/* Read the arguments of a command. The caller frees with pl_options_free. Errors: PL_BAD_INPUT
 * with the argument and what is allowed. */
pl_status pl_options_parse(pl_options *out, const pl_usage *usage, int count, char **arguments);
void pl_options_free(pl_options *options);

/* Add the help of a command: forms, options, an example, the keys of --set. */
void pl_usage_print(pl_text *text, const pl_usage *usage);

/* What a command ends in: STATUS, or PL_NO_MEMORY when text that stands was lost. */
pl_status pl_output_status(const pl_output *output, pl_status status);

/* Refuse with TEXT, which is freed, and a pointer to the command's help: PL_BAD_INPUT. */
pl_status pl_usage_refuse(const pl_usage *usage, pl_text *text);

/* The run that OPTIONS describe: the run file FILE (NULL: none) or the defaults of pleat-sim, then
 * the options --model, --layout (LAYOUT; NULL: not given) and --set. The caller frees with
 * pl_run_free. Errors: those of reading and setting. */
pl_status pl_options_run(pl_run *out, const pl_options *options, const char *file,
                         const char *layout);

/* In the place of a set of programs: those that pleat-train runs, start, step, evaluate and export;
 * where it writes checkpoints, save, and load to go on from one. */
enum { PL_PROGRAMS_OF_RUN = 1 << 30 };

/* The plan that OPTIONS describe, read from --plan as it stands, or made: of PROGRAMS
 * (PL_PROGRAMS_...; 0: start and step), with LAYOUT (NULL: as it stands in the run file); generate
 * by itself gets its own shape. At most one word is allowed, the run file. The caller frees with
 * pl_plan_free. Errors: PL_BAD_INPUT when something is missing or too much; those of reading and
 * building. */
pl_status pl_options_plan(pl_plan *out, const pl_options *options, const pl_usage *usage,
                          const char *layout, uint32_t programs);

/* The layout of a command that takes only one: NULL when none was given. Errors: PL_BAD_INPUT. */
pl_status pl_options_layout(const char **out, const pl_options *options, const pl_usage *usage);

/* Read the plan in FILE. Errors: PL_BAD_INPUT, PL_IO_FAILED, PL_NO_MEMORY. */
pl_status pl_read_plan_file(pl_plan *out, const char *file);

/* Whether RANK is one of LAYOUT's. OPTION begins the words. Errors: PL_BAD_INPUT. */
pl_status pl_check_rank(int64_t rank, const pl_layout *layout, const char *option);

/* Add the model's name, the layout and all settings of PLAN, three lines. */
void pl_plan_describe(pl_text *text, const pl_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
