/* Leveled messages for people, without global state: whoever may speak is handed a pl_log. */
#ifndef PL_COMMON_LOG_H
#define PL_COMMON_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pl_log_level {
    PL_LOG_ERROR,   /* something failed */
    PL_LOG_WARNING, /* it goes on, but a person should know */
    PL_LOG_INFO,    /* what is being done */
    PL_LOG_DEBUG,   /* why */
    PL_LOG_LEVEL_COUNT
} pl_log_level;

/* A plain value; STREAM is borrowed. Several logs (one a rank) may share a stream. */
typedef struct pl_log {
    pl_log_level level; /* the least important level that is written */
    int64_t rank;       /* named in every line; -1 where there is only one */
    FILE *stream;
} pl_log;

enum { PL_LOG_LINE = 4096 };

/* Write "[rank 3] warning: ..." when LEVEL is important enough; each line of a message of several
 * lines gets the same beginning. A message is one write and then a flush, under the stream's lock,
 * so that messages of several ranks do not mix. What is longer than PL_LOG_LINE bytes is cut and
 * ends in "...". A NULL log or stream is silent; errno is kept; failures to write are ignored. */
void pl_log_write(const pl_log *log, pl_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* "error", "warning", "info", "debug". */
const char *pl_log_level_name(pl_log_level level);
bool pl_log_level_parse(pl_log_level *out, const char *name);
const char *const *pl_log_level_names(int *count);

#ifdef __cplusplus
}
#endif
#endif
