/* The commands of pleat-ckpt.
 *
 * A command reads its own arguments, adds all it has to say to its output and returns. Its status
 * becomes the program's exit status: PL_CHECK_FAILED says that the answer is no, in words that
 * stand in the output; every other failure has its words in pl_error_text.
 */
#ifndef PL_CKPT_COMMAND_H
#define PL_CKPT_COMMAND_H

#include <jansson.h>

#include "ckpt/manifest.h"
#include "common/arguments.h"
#include "common/json_text.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_output {
    pl_text text;
    bool colours;                 /* a terminal reads it */
    const char *version, *commit; /* of the program, for provenances; commit "": not known */
} pl_output;

/* ARGUMENTS[0] is the command's name; ARGUMENTS[COUNT] is NULL, as for main. */
pl_status pl_command_inspect(pl_output *output, int count, char **arguments);
pl_status pl_command_verify(pl_output *output, int count, char **arguments);
pl_status pl_command_reshard(pl_output *output, int count, char **arguments);
pl_status pl_command_diff(pl_output *output, int count, char **arguments);
pl_status pl_command_prune(pl_output *output, int count, char **arguments);
pl_status pl_command_pin(pl_output *output, int count, char **arguments);
pl_status pl_command_unpin(pl_output *output, int count, char **arguments);
pl_status pl_command_import(pl_output *output, int count, char **arguments);
pl_status pl_command_export(pl_output *output, int count, char **arguments);
pl_status pl_command_tables(pl_output *output, int count, char **arguments);

/* Add the help of a command. */
pl_status pl_command_help(pl_output *output, const pl_command_usage *usage);

/* Take VALUE as the only WORD of a command, which names a checkpoint. Errors: PL_BAD_INPUT for a
 * second one. */
pl_status pl_command_take_word(const char **word, const pl_command_usage *usage, const char *value);

/* Read VALUE of --dtype: fp32, bf16 or fp16; PL_DTYPE_COUNT for as-stored. Errors: PL_BAD_INPUT. */
pl_status pl_command_dtype(pl_dtype *out, const pl_command_usage *usage, const char *value);

/* Add TEXT between the signs that make it bold, green or red where OUTPUT has colours. */
typedef enum pl_colour { PL_COLOUR_BOLD, PL_COLOUR_GREEN, PL_COLOUR_RED } pl_colour;
void pl_command_colour(pl_output *output, pl_colour colour, const char *text);

#ifdef __cplusplus
}
#endif
#endif
