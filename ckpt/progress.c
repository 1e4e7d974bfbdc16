#include "ckpt/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "common/text.h"

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

pl_progress pl_progress_begin(void)
{
    pl_progress progress = {.began = now()};
    const char *terminal = getenv("TERM");
    struct winsize size;
    progress.terminal = isatty(STDERR_FILENO) && terminal && strcmp(terminal, "dumb") != 0;
    if (progress.terminal && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0)
        progress.width = size.ws_col;
    return progress;
}

double pl_progress_seconds(const pl_progress *progress) { return now() - progress->began; }

void pl_progress_show(pl_progress *progress, int64_t done, int64_t bytes)
{
    enum { CELLS = 24 };
    char cells[CELLS + 1], rate[32], all[32], words[128];
    double passed = pl_progress_seconds(progress);
    if (!progress->terminal || passed < 2 || done <= 0) return;
    double part = (double)done / (double)bytes;
    int full = part >= 1 ? CELLS : (int)(part * CELLS);
    int room = progress->width > CELLS + 4 ? progress->width - CELLS - 4 : 52;
    memset(cells, ' ', CELLS);
    memset(cells, '=', (size_t)full);
    if (full < CELLS) cells[full] = '>';
    cells[CELLS] = '\0';
    snprintf(words, sizeof words, "%.0f%% of %s, %s/s, %.0f s left", 100 * part,
             pl_format_bytes(all, bytes), pl_format_bytes(rate, (int64_t)((double)done / passed)),
             passed / part - passed);
    fprintf(stderr, "\r[%s] %.*s\033[K", cells, room, words);
    progress->drawn = true;
}

void pl_progress_end(pl_progress *progress)
{
    if (progress->drawn) fputs("\r\033[K", stderr);
    progress->drawn = false;
}
