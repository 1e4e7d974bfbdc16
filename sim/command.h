/* The commands of pleat-sim.
 *
 * A command reads its own arguments, adds all it has to say to its output and returns. Its status
 * becomes the program's exit status: PL_CHECK_FAILED says that the answer is no, in words that
 * stand in the output; every other failure has its words in pl_error_text.
 */
#ifndef PL_SIM_COMMAND_H
#define PL_SIM_COMMAND_H

#include <stdbool.h>

#include "common/status.h"
#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_output {
    pl_text text;
    bool colours; /* a terminal reads it */
    bool stands;  /* what is in text is to be printed although the command fails */
} pl_output;

/* ARGUMENTS[0] is the command's name; ARGUMENTS[COUNT] is NULL, as for main. */
pl_status pl_command_layout(pl_output *output, int count, char **arguments);
pl_status pl_command_plan(pl_output *output, int count, char **arguments);
pl_status pl_command_count(pl_output *output, int count, char **arguments);
pl_status pl_command_check(pl_output *output, int count, char **arguments);
pl_status pl_command_tables(pl_output *output, int count, char **arguments);

#ifdef __cplusplus
}
#endif
#endif
