/* The yardstick of checkpoint_rates: files moved with nothing but pread, pwrite and fsync, in
 * pieces of 8 MiB, by threads. No checksums, no formats.
 *
 * Functions return seconds; a negative number means that something failed, which they have told.
 */
#ifndef PL_TESTS_BENCH_RAW_RATES_H
#define PL_TESTS_BENCH_RAW_RATES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RAW_PIECE = 8 << 20, RAW_PATH = 512, RAW_FILES_MOST = 128, RAW_THREADS_MOST = 64 };

typedef struct raw_file {
    char name[64];
    int64_t bytes;
} raw_file;

/* Files of one folder. */
typedef struct raw_files {
    char folder[RAW_PATH];
    raw_file file[RAW_FILES_MOST];
    int count;
    int64_t bytes;
} raw_files;

double raw_now(void);

/* The files of FOLDER whose names end with ENDING. */
bool raw_list(raw_files *out, const char *folder, const char *ending);

/* Bring every file of FOLDER to the disk and its pages out of the cache (posix_fadvise). */
bool raw_make_cold(const char *folder);

/* Threads take pieces in the order of files. */
double raw_read(const raw_files *files, int threads);

/* The same, each piece written to a file of the same name in TO, a new folder; each file is brought
 * to the disk when it is complete. */
double raw_copy(const raw_files *files, const char *to, int threads);

/* Threads write whole files of the same lengths, each its own, into TO, a new folder. */
double raw_write(const raw_files *files, const char *to, int threads);

bool raw_remove(const char *folder); /* with all that is in it */

#endif
