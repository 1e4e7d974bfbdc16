/* The folder of a run: run.yaml, run.jsonl, events.out.tfevents.SECONDS.pleat, weights/,
 * checkpoints/.
 */
#ifndef PL_TRAIN_RUN_FOLDER_H
#define PL_TRAIN_RUN_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/run_file.h"
#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PL_RUN_FOLDER_FILE        "run.yaml"
#define PL_RUN_FOLDER_LOG         "run.jsonl"
#define PL_RUN_FOLDER_WEIGHTS     "weights"
#define PL_RUN_FOLDER_CHECKPOINTS "checkpoints"

/* Add the name of the folder: GIVEN (an option; NULL: none), else the run file's `output`, else
 * "runs/STEM" with STEM the name of the run file without folders and ending. Errors: PL_BAD_INPUT
 * for an empty name or one that is too long; PL_NO_MEMORY. */
pl_status pl_run_folder_name(pl_text *name, const pl_run *run, const char *given);

/* What may be in the folder of a run that is about to begin. */
typedef enum pl_run_folder_use {
    PL_RUN_FOLDER_NEW,     /* nothing */
    PL_RUN_FOLDER_REPLACE, /* a run, which is replaced */
    PL_RUN_FOLDER_RESUME   /* a run, which goes on */
} pl_run_folder_use;

/* Whether FOLDER can take a run: it is not there yet, or is an empty folder, or USE says that a run
 * may be in it. Nothing is written. Errors: PL_BAD_INPUT when it is something else, or what it
 * would stand in is no folder, or a file to be replaced is no regular one, or another process
 * writes checkpoints there; PL_IO_FAILED when it cannot be looked into. */
pl_status pl_run_folder_check(const char *folder, pl_run_folder_use use);

/* Whether FOLDER can be replaced by a run that starts from SOURCE, a path: not when SOURCE is the
 * folder itself or among its checkpoints, which are removed. Errors: PL_BAD_INPUT naming both;
 * PL_NO_MEMORY. */
pl_status pl_run_folder_check_source(const char *folder, const char *source);

/* Make FOLDER with those above it. Errors: PL_IO_FAILED; PL_NO_MEMORY. */
pl_status pl_run_folder_make(const char *folder);

/* Write RUN into FOLDER as resolved. With REPLACE, event files and checkpoints of the earlier run
 * are removed; earlier weights stay until new ones replace them. No other run may write
 * checkpoints there. Errors: PL_IO_FAILED; PL_NO_MEMORY. */
pl_status pl_run_folder_prepare(const char *folder, const pl_run *run, pl_run_folder_use use);

/* Add the path of FILE in FOLDER. */
void pl_run_folder_path(pl_text *path, const char *folder, const char *file);

#ifdef __cplusplus
}
#endif
#endif
