/* Files and folders that a person names, as a list of files in one order on every machine. */
#ifndef PL_TRAIN_FOLDER_WALK_H
#define PL_TRAIN_FOLDER_WALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PL_WALK_MOST_DEPTH = 64,     /* folders in folders */
    PL_WALK_MOST_NAMES = 4000000 /* looked at in all: links can make a small tree endless */
};

typedef struct pl_walked_file {
    char *path; /* owned */
    int64_t bytes;
    bool named; /* by the person; false: found in a folder */
} pl_walked_file;

/* Owned by the caller, freed with pl_walk_free. All zeroes is empty. */
typedef struct pl_walk {
    pl_walked_file *files;
    size_t count, capacity;
    int64_t names;   /* looked at */
    int64_t skipped; /* files of a folder that are empty or no regular files */
    pl_text notes;   /* names the first of them, a line each */
} pl_walk;

/* List the regular files of PATHS, in their order; a folder stands for all in it and in the folders
 * in it, entries sorted by name as bytes, those whose name begins with '.' left out. Symbolic
 * links are followed, to folders too. Files are not opened. Errors: PL_BAD_INPUT for what does not
 * exist, a folder that may not be read, a named file that is empty or no regular file (a FIFO, a
 * device), a link that leads nowhere, a folder that contains itself through a link, a folder
 * without any file, and more than the bounds above; PL_IO_FAILED, PL_NO_MEMORY. */
pl_status pl_walk_paths(pl_walk *out, const char *const *paths, size_t count);

void pl_walk_free(pl_walk *walk);

#ifdef __cplusplus
}
#endif
#endif
