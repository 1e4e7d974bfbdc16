#include "train/console.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

pl_console pl_console_make(bool quiet, bool json)
{
    pl_console console = {.descriptor = STDOUT_FILENO, .quiet = quiet, .json = json};
    const char *terminal = getenv("TERM");
    struct winsize size;
    console.terminal = isatty(STDOUT_FILENO) && terminal && strcmp(terminal, "dumb") != 0;
    console.colours = console.terminal && !getenv("NO_COLOR");
    if (console.terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0)
        console.width = size.ws_col;
    return console;
}

void pl_console_free(pl_console *console) { pl_text_free(&console->scratch); }

static void write_scratch(pl_console *console)
{
    pl_text *text = &console->scratch;
    console->wrote = true;
    if (text->out_of_memory && !console->failure) console->failure = ENOMEM;
    for (size_t done = 0; !console->failure && done < text->length;) {
        ssize_t wrote = write(console->descriptor, text->bytes + done, text->length - done);
        if (wrote > 0) done += (size_t)wrote;
        if (wrote == 0 || (wrote < 0 && errno != EINTR)) console->failure = wrote ? errno : ENOSPC;
    }
    pl_text_clear(text);
}

static void wipe_bar(pl_console *console)
{
    if (console->bar) pl_text_add_string(&console->scratch, "\r\033[K");
    console->bar = false;
}

void pl_console_say(pl_console *console, const char *format, ...)
{
    va_list arguments;
    if (console->quiet || console->json) return;
    wipe_bar(console);
    va_start(arguments, format);
    pl_text_add_list(&console->scratch, format, arguments);
    va_end(arguments);
    pl_text_add_string(&console->scratch, "\n");
    write_scratch(console);
}

void pl_console_show(pl_console *console, const char *text)
{
    if (console->quiet || console->json) return;
    wipe_bar(console);
    pl_text_add_string(&console->scratch, text);
    write_scratch(console);
}

void pl_console_object(pl_console *console, const char *line)
{
    if (!console->json) return;
    pl_text_add_string(&console->scratch, line);
    write_scratch(console);
}

void pl_console_bar(pl_console *console, double part, const char *words)
{
    enum { CELLS = 24 };
    if (!console->terminal || console->quiet || console->json) return;
    int full = part <= 0 ? 0 : part >= 1 ? CELLS : (int)(part * CELLS);
    size_t room = console->width > CELLS + 4 ? (size_t)console->width - CELLS - 4 : 52;
    char cells[CELLS + 1];
    memset(cells, ' ', CELLS);
    memset(cells, '=', (size_t)full);
    if (full < CELLS) cells[full] = '>';
    cells[CELLS] = '\0';
    pl_text_add(&console->scratch, "\r[%s] %.*s\033[K", cells, (int)room, words);
    console->bar = true;
    write_scratch(console);
}

pl_status pl_console_finish(pl_console *console)
{
    if (console->wrote && close(console->descriptor) != 0 && !console->failure)
        console->failure = errno;
    console->wrote = false;
    if (!console->failure) return PL_OK;
    if (console->failure == ENOMEM) return PL_FAIL(PL_NO_MEMORY, "out of memory for output");
    return PL_FAIL(PL_IO_FAILED, "standard output: %s", strerror(console->failure));
}
