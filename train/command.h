/* The commands of pleat-train.
 *
 * A command reads its own arguments, writes what it has to say to standard output as it goes, and
 * returns the status that becomes the program's exit status. The words of a failure are in
 * pl_error_text; "" when they have been said already.
 */
#ifndef PL_TRAIN_COMMAND_H
#define PL_TRAIN_COMMAND_H

#include "common/arguments.h"
#include "train/run_log.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ARGUMENTS[0] is the command's name; ARGUMENTS[COUNT] is NULL, as for main. */
pl_status pl_command_run(const pl_program_facts *program, int count, char **arguments);
pl_status pl_command_sample(const pl_program_facts *program, int count, char **arguments);
pl_status pl_command_devices(const pl_program_facts *program, int count, char **arguments);
pl_status pl_command_tables(const pl_program_facts *program, int count, char **arguments);

/* Print TEXT, which is freed; the help of a command. Errors: PL_IO_FAILED, PL_NO_MEMORY. */
pl_status pl_command_print(pl_text *text);
pl_status pl_command_help(const pl_command_usage *usage);

/* Refuse WORD, or its absence (NULL), with LEAD in front: PL_BAD_INPUT. */
pl_status pl_command_refuse(const pl_command_usage *usage, const char *lead, const char *word);

/* Read VALUE of OPTION as a whole number in [LEAST, MOST], or as any number. Errors: PL_BAD_INPUT.
 */
pl_status pl_command_integer(int64_t *out, const pl_command_usage *usage, const char *option,
                             const char *value, int64_t least, int64_t most);
pl_status pl_command_number(double *out, const pl_command_usage *usage, const char *option,
                            const char *value, double least, double most);

#ifdef __cplusplus
}
#endif
#endif
