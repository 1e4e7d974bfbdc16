#include "common/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

static const char *const names[] = {"error", "warning", "info", "debug"};
_Static_assert(sizeof names / sizeof *names == PL_LOG_LEVEL_COUNT, "a name a level");

static const char cut_mark[] = "...\n";

/* LINE of PL_LOG_LINE bytes: add BYTES while there is room for the mark of a cut behind them. */
static bool append(char *line, size_t *used, const char *bytes, size_t length)
{
    size_t room = PL_LOG_LINE - sizeof cut_mark - *used;
    size_t taken = length < room ? length : room;
    memcpy(line + *used, bytes, taken);
    *used += taken;
    return taken == length;
}

static size_t compose(char *line, const char *beginning, const char *message)
{
    size_t used = 0;
    for (;;) {
        size_t length = strcspn(message, "\n");
        if (!append(line, &used, beginning, strlen(beginning)) ||
            !append(line, &used, message, length) || !append(line, &used, "\n", 1)) {
            memcpy(line + used, cut_mark, sizeof cut_mark - 1);
            return used + sizeof cut_mark - 1;
        }
        message += length;
        if (!*message || !message[1]) return used;
        ++message;
    }
}

void pl_log_write(const pl_log *log, pl_log_level level, const char *format, ...)
{
    if (!log || !log->stream || level > log->level) return;
    int saved_errno = errno;
    char message[PL_LOG_LINE], line[PL_LOG_LINE], beginning[64];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (log->rank >= 0)
        snprintf(beginning, sizeof beginning, "[rank %" PRId64 "] %s: ", log->rank, names[level]);
    else
        snprintf(beginning, sizeof beginning, "%s: ", names[level]);
    size_t length = compose(line, beginning, message);
    flockfile(log->stream);
    fwrite(line, 1, length, log->stream);
    fflush(log->stream);
    funlockfile(log->stream);
    errno = saved_errno;
}

const char *pl_log_level_name(pl_log_level level) { return names[level]; }

const char *const *pl_log_level_names(int *count)
{
    *count = PL_LOG_LEVEL_COUNT;
    return names;
}

bool pl_log_level_parse(pl_log_level *out, const char *name)
{
    for (int i = 0; i < PL_LOG_LEVEL_COUNT; ++i) {
        if (strcmp(name, names[i]) == 0) {
            *out = (pl_log_level)i;
            return true;
        }
    }
    return false;
}
