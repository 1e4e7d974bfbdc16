#include "common/text.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file_bytes.h"
#include "common/memory.h"

static bool make_room(pl_text *text, size_t more)
{
    if (text->out_of_memory) return false;
    if (pl_grow(&text->bytes, &text->capacity, text->length + more + 1, 1, "text") != PL_OK)
        text->out_of_memory = true;
    return !text->out_of_memory;
}

void pl_text_add_list(pl_text *text, const char *format, va_list arguments)
{
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    if (length >= 0 && make_room(text, (size_t)length)) {
        vsnprintf(text->bytes + text->length, (size_t)length + 1, format, again);
        text->length += (size_t)length;
    }
    va_end(again);
}

void pl_text_add(pl_text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    pl_text_add_list(text, format, arguments);
    va_end(arguments);
}

void pl_text_add_bytes(pl_text *text, const char *bytes, size_t length)
{
    if (!make_room(text, length)) return;
    memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = '\0';
}

void pl_text_add_string(pl_text *text, const char *string)
{
    pl_text_add_bytes(text, string, strlen(string));
}

void pl_text_add_number(pl_text *text, int64_t number)
{
    char digits[24];
    char *first = digits + sizeof digits;
    uint64_t magnitude = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do {
        *--first = (char)('0' + magnitude % 10);
        magnitude /= 10;
    } while (magnitude);
    if (number < 0) *--first = '-';
    pl_text_add_bytes(text, first, (size_t)(digits + sizeof digits - first));
}

void pl_text_add_quoted(pl_text *text, const char *word)
{
    enum { SHOWN = 60 };
    size_t length = strlen(word);
    if (length > SHOWN)
        for (length = SHOWN; length > 0 && ((unsigned char)word[length] & 0xC0) == 0x80;) --length;
    pl_text_add_string(text, "'");
    pl_text_add_bytes(text, word, length);
    pl_text_add_string(text, word[length] ? "...'" : "'");
}

const char *pl_text_string(const pl_text *text) { return text->bytes ? text->bytes : ""; }

pl_status pl_text_status(const pl_text *text)
{
    if (text->out_of_memory) return PL_FAIL(PL_NO_MEMORY, "out of memory while writing text");
    return PL_OK;
}

void pl_text_clear(pl_text *text)
{
    text->length = 0;
    if (text->bytes) text->bytes[0] = '\0';
}

void pl_text_free(pl_text *text)
{
    pl_free(text->bytes);
    memset(text, 0, sizeof *text);
}

static int fold(char letter) { return letter == '-' ? '_' : tolower((unsigned char)letter); }

bool pl_same_word(const char *a, const char *b)
{
    while (*a && *b && fold(*a) == fold(*b)) {
        ++a;
        ++b;
    }
    return *a == *b;
}

/* Edit distance with neighbouring letters swapped counting one; words over the bound are far. */
enum { WORD_MAX = 48, FAR = 1000 };

static int smaller(int a, int b) { return a < b ? a : b; }

static int edit_distance(const char *a, const char *b)
{
    int row[3][WORD_MAX + 1];
    size_t length_a = strlen(a), length_b = strlen(b);
    if (length_a > WORD_MAX || length_b > WORD_MAX) return FAR;
    for (size_t j = 0; j <= length_b; ++j) row[0][j] = (int)j;
    for (size_t i = 1; i <= length_a; ++i) {
        int *now = row[i % 3], *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];
        now[0] = (int)i;
        for (size_t j = 1; j <= length_b; ++j) {
            int same = fold(a[i - 1]) == fold(b[j - 1]);
            now[j] = smaller(smaller(last[j], now[j - 1]) + 1, last[j - 1] + !same);
            if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) &&
                fold(a[i - 2]) == fold(b[j - 1]))
                now[j] = smaller(now[j], before[j - 2] + 1);
        }
    }
    return row[length_a % 3][length_b];
}

static bool is_prefix(const char *prefix, const char *word)
{
    while (*prefix && fold(*prefix) == fold(*word)) {
        ++prefix;
        ++word;
    }
    return !*prefix;
}

/* "after-fwd" for "after-forward": some letters left out, the first one kept. */
static bool is_abbreviation(const char *given, const char *word)
{
    if (fold(*given) != fold(*word)) return false;
    for (; *given && *word; ++word)
        if (fold(*given) == fold(*word)) ++given;
    return !*given;
}

const char *pl_nearest(const char *given, const char *const *choices, int count)
{
    const char *best = NULL;
    int best_distance = FAR;
    int length = (int)strlen(given);
    for (int i = 0; i < count; ++i) {
        int distance = edit_distance(given, choices[i]);
        if (length >= 2 && is_prefix(given, choices[i])) distance = smaller(distance, 1);
        if (length >= 4 && is_abbreviation(given, choices[i])) distance = smaller(distance, 2);
        if (distance < best_distance) {
            best_distance = distance;
            best = choices[i];
        }
    }
    return best_distance <= (length < 3 ? 1 : (length + 2) / 3) ? best : NULL;
}

void pl_text_add_choices(pl_text *text, const char *given, const char *const *choices, int count)
{
    const char *near = pl_nearest(given, choices, count);
    if (near) pl_text_add(text, "; did you mean '%s'?", near);
    if (near && count > 12) return;
    pl_text_add(text, "%s", near ? " Allowed: " : "; allowed: ");
    for (int i = 0; i < count; ++i) pl_text_add(text, "%s%s", i ? ", " : "", choices[i]);
}

bool pl_parse_integer(int64_t *out, const char *string)
{
    const char *digits = string + (*string == '-');
    if (!isdigit((unsigned char)*digits)) return false;
    char *end = NULL;
    errno = 0;
    long long value = strtoll(string, &end, 10);
    if (errno || *end) return false;
    *out = value;
    return true;
}

bool pl_parse_number(double *out, const char *string)
{
    const char *first = string + (*string == '-' || *string == '+');
    if (!isdigit((unsigned char)*first) && *first != '.') return false;
    if (strchr(string, 'x') || strchr(string, 'X')) return false;
    char *end = NULL;
    double value = strtod(string, &end);
    if (end == string || *end || !isfinite(value)) return false;
    *out = value;
    return true;
}

const char *pl_format_thousands(char *buffer, int64_t number)
{
    char digits[24];
    uint64_t magnitude = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    snprintf(digits, sizeof digits, "%" PRIu64, magnitude);
    size_t length = strlen(digits);
    char *to = buffer;
    if (number < 0) *to++ = '-';
    for (size_t i = 0; i < length; ++i) {
        if (i && (length - i) % 3 == 0) *to++ = ',';
        *to++ = digits[i];
    }
    *to = '\0';
    return buffer;
}

const char *pl_format_bytes(char *buffer, int64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    int unit = 0;
    while (fabs(value) >= 1024 && unit < 5) {
        value /= 1024;
        ++unit;
    }
    snprintf(buffer, 32, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
    return buffer;
}

static pl_status read_open_file(char **bytes_out, size_t *length_out, FILE *stream,
                                const char *file, size_t max_bytes)
{
    struct stat info;
    if (fstat(fileno(stream), &info) != 0)
        return PL_FAIL(PL_IO_FAILED, "%s: %s", file, strerror(errno));
    if (!S_ISREG(info.st_mode)) return PL_FAIL(PL_BAD_INPUT, "%s: not a regular file", file);
    if ((uint64_t)info.st_size > max_bytes)
        return PL_FAIL(PL_BAD_INPUT, "%s: %lld bytes; at most %zu are read", file,
                       (long long)info.st_size, max_bytes);
    char *bytes = NULL;
    size_t length = (size_t)info.st_size;
    PL_TRY(pl_allocate(&bytes, length + 1, 1, file));
    length = fread(bytes, 1, length, stream);
    if (ferror(stream)) {
        int cause = errno;
        pl_free(bytes);
        return PL_FAIL(PL_IO_FAILED, "%s: %s", file, strerror(cause));
    }
    bytes[length] = '\0';
    *bytes_out = bytes;
    *length_out = length;
    return PL_OK;
}

pl_status pl_read_file(char **bytes_out, size_t *length_out, const char *file, size_t max_bytes)
{
    if (!*file) return PL_FAIL(PL_BAD_INPUT, "the name of a file is empty");
    /* Without O_NONBLOCK, opening a FIFO waits for its writer. */
    int descriptor = open(file, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    FILE *stream = descriptor < 0 ? NULL : fdopen(descriptor, "rb");
    if (!stream) {
        int cause = errno;
        if (descriptor >= 0) close(descriptor);
        if (cause == ENOMEM) return PL_FAIL(PL_NO_MEMORY, "%s: %s", file, strerror(cause));
        return PL_FAIL(pl_file_is_wrong_name(cause) ? PL_BAD_INPUT : PL_IO_FAILED, "%s: %s", file,
                       strerror(cause));
    }
    pl_status status = read_open_file(bytes_out, length_out, stream, file, max_bytes);
    fclose(stream);
    return status;
}
