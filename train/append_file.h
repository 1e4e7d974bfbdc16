/* A file that grows by whole records: lines of a log, records of an event file.
 *
 * Each record is handed to the system in one call, so that a killed process leaves whole records;
 * one that the disk does not take whole is cut off again.
 */
#ifndef PL_TRAIN_APPEND_FILE_H
#define PL_TRAIN_APPEND_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_append_file {
    int descriptor; /* -1: not open */
    char *name;     /* owned */
    int64_t length; /* bytes of whole records */
} pl_append_file;

/* Make FILE anew, empty. Errors: PL_IO_FAILED with file and reason; PL_NO_MEMORY. */
pl_status pl_append_file_open(pl_append_file *out, const char *file);

/* Go on with FILE, which is there and ends with a whole record. Errors as above. */
pl_status pl_append_file_continue(pl_append_file *out, const char *file);

/* Add a record. Errors: PL_IO_FAILED; the file then ends with the record before. */
pl_status pl_append_file_add(pl_append_file *file, const void *bytes, size_t length);

/* Some file systems report a full disk only here. All zeroes, and closing twice, are allowed.
 * Errors: PL_IO_FAILED. */
pl_status pl_append_file_close(pl_append_file *file);

/* Make FILE of LENGTH bytes, or replace it, so that it is there whole or not at all: a temporary
 * beside it is written, synced and renamed. Errors: PL_IO_FAILED; PL_NO_MEMORY. */
pl_status pl_write_whole_file(const char *file, const void *bytes, size_t length);

#ifdef __cplusplus
}
#endif
#endif
