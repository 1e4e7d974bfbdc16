/* What a person or a pipe sees of a run: lines on standard output, a progress bar where that is a
 * terminal, JSON instead of both when asked for.
 *
 * A reader that leaves does not end a run: the first failure is kept and told at the end.
 */
#ifndef PL_TRAIN_CONSOLE_H
#define PL_TRAIN_CONSOLE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_console {
    int descriptor; /* where everything goes */
    bool terminal, colours, quiet, json;
    int width;       /* columns of the terminal; 0: not known */
    bool bar;        /* a bar stands in the last line */
    bool wrote;      /* anything at all */
    int failure;     /* errno of the first failed write; 0: none */
    pl_text scratch; /* owned */
} pl_console;

/* Standard output as it is now; nothing is owned until something is written. */
pl_console pl_console_make(bool quiet, bool json);
void pl_console_free(pl_console *console);

/* Write a line for people; its line feed is added. Not with quiet or json. */
void pl_console_say(pl_console *console, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Write TEXT for people as it stands: a plot, a sample. */
void pl_console_show(pl_console *console, const char *text);

/* Write a line of JSON, which has its line feed. With json only. */
void pl_console_object(pl_console *console, const char *line);

/* Draw the bar over the last one: PART in [0, 1] of it full, then WORDS, all cut to the width of
 * the terminal. On a terminal only, not with quiet or json. The next line wipes it away. */
void pl_console_bar(pl_console *console, double part, const char *words);

/* After the last write: PL_IO_FAILED with the reason when any write failed, or closing does, where
 * some file systems report a full disk. Standard output is closed then. */
pl_status pl_console_finish(pl_console *console);

#ifdef __cplusplus
}
#endif
#endif
