/* Bytes at places of files, read and written by pread and pwrite: any number of threads may use
 * one descriptor at once, and a file that changes meanwhile gives an error instead of a signal.
 */
#ifndef PL_COMMON_FILE_BYTES_H
#define PL_COMMON_FILE_BYTES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Most bytes that one system call is asked for; Linux moves at most 0x7ffff000. */
enum { PL_FILE_PIECE = 1 << 30 };

/* Whether CAUSE (errno of a failed open) speaks of the name that a person gave (no such file, not
 * allowed, a loop of links) rather than of the machine: PL_BAD_INPUT and not PL_IO_FAILED. */
bool pl_file_is_wrong_name(int cause);

/* Open FILE for reading and say how long it is. Only regular files, also through symbolic links.
 * The caller closes *DESCRIPTOR_OUT. Errors: PL_BAD_INPUT when there is no such file, it may not be
 * read or is none; PL_IO_FAILED. */
pl_status pl_file_open(int *descriptor_out, int64_t *bytes_out, const char *file);

/* Read BYTES bytes at OFFSET of the open FILE (named in messages) into OUT, all of them. Errors:
 * PL_IO_FAILED, with the system's words, or saying where the file ended. */
pl_status pl_file_read(int descriptor, const char *file, int64_t offset, int64_t bytes, void *out);

/* These bytes of the open file will be read soon: the system may begin to fetch them. A hint. */
void pl_file_expect(int descriptor, int64_t offset, int64_t bytes);

/* Write BYTES bytes at OFFSET, all of them. Errors: PL_IO_FAILED with how many were written, where,
 * and the system's words ("No space left on device"). */
pl_status pl_file_write(int descriptor, const char *file, int64_t offset, int64_t bytes,
                        const void *values);

#ifdef __cplusplus
}
#endif
#endif
