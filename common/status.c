#include "common/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_MAX = 4096 };

static _Thread_local char error_text[TEXT_MAX];

static void append(const char *format, va_list arguments) __attribute__((format(printf, 1, 0)));

static void append(const char *format, va_list arguments)
{
    size_t used = strlen(error_text);
    vsnprintf(error_text + used, TEXT_MAX - used, format, arguments);
}

void pl_error_record(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    error_text[0] = '\0';
    append(format, arguments);
    va_end(arguments);
}

void pl_error_context(const char *format, ...)
{
    va_list arguments;
    size_t used = strlen(error_text);
    snprintf(error_text + used, TEXT_MAX - used, "\n  ");
    va_start(arguments, format);
    append(format, arguments);
    va_end(arguments);
}

void pl_error_set(const char *text) { snprintf(error_text, sizeof error_text, "%s", text); }

const char *pl_error_text(void) { return error_text; }

void pl_error_clear(void) { error_text[0] = '\0'; }

const char *pl_status_name(pl_status status)
{
    switch (status) {
    case PL_OK: return "OK";
    case PL_CHECK_FAILED: return "CHECK_FAILED";
    case PL_BAD_INPUT: return "BAD_INPUT";
    case PL_UNSUPPORTED: return "UNSUPPORTED";
    case PL_NO_MEMORY: return "NO_MEMORY";
    case PL_IO_FAILED: return "IO_FAILED";
    case PL_PEER_FAILED: return "PEER_FAILED";
    case PL_TIMED_OUT: return "TIMED_OUT";
    case PL_RUN_FAILED: return "RUN_FAILED";
    case PL_INTERNAL: return "INTERNAL";
    }
    return "UNKNOWN";
}

int pl_status_exit_code(pl_status status)
{
    switch (status) {
    case PL_OK: return 0;
    case PL_CHECK_FAILED: return 1;
    case PL_BAD_INPUT:
    case PL_UNSUPPORTED: return 2;
    case PL_NO_MEMORY:
    case PL_IO_FAILED:
    case PL_PEER_FAILED:
    case PL_TIMED_OUT:
    case PL_RUN_FAILED:
    case PL_INTERNAL: return 3;
    }
    return 3;
}
