/* Growing text, numbers in it, and the nearest valid choice to a wrong word. */
#ifndef PL_COMMON_TEXT_H
#define PL_COMMON_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A text that grows. All zeroes is the empty text. A failed allocation is remembered, further
 * additions do nothing, and pl_text_status says so once at the end. */
typedef struct pl_text {
    char *bytes; /* NUL-terminated once something was added; NULL before */
    size_t length, capacity;
    bool out_of_memory;
} pl_text;

void pl_text_add(pl_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void pl_text_add_list(pl_text *text, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));
void pl_text_add_bytes(pl_text *text, const char *bytes, size_t length);

/* Fast paths for the writers of long files: a string, a decimal number. */
void pl_text_add_string(pl_text *text, const char *string);
void pl_text_add_number(pl_text *text, int64_t number);

/* Add 'WORD', cut to its first 60 bytes and "..." when it is longer, for messages that show what a
 * person gave. */
void pl_text_add_quoted(pl_text *text, const char *word);

/* The text so far; "" when nothing was added. Borrowed. */
const char *pl_text_string(const pl_text *text);

/* PL_OK, or PL_NO_MEMORY when any addition failed. */
pl_status pl_text_status(const pl_text *text);

/* Forget the contents, keep the memory; and free everything. */
void pl_text_clear(pl_text *text);
void pl_text_free(pl_text *text);

/* Equal but for letter case and '-' against '_'. */
bool pl_same_word(const char *a, const char *b);

/* The element of CHOICES (COUNT strings) closest to GIVEN by edit distance, letter case and
 * '-' against '_' counting nothing, beginnings and abbreviations of a word counting as near;
 * NULL when none is near enough to be worth naming. */
const char *pl_nearest(const char *given, const char *const *choices, int count);

/* Add "; did you mean 'x'?" when something is near, else "; allowed: a, b, c". */
void pl_text_add_choices(pl_text *text, const char *given, const char *const *choices, int count);

/* Read the whole of STRING as a decimal int64. False when it is not one or does not fit. */
bool pl_parse_integer(int64_t *out, const char *string);

/* Read the whole of STRING as a finite decimal number. False when it is not one. */
bool pl_parse_number(double *out, const char *string);

/* NUMBER with thousands separated by commas, in a static-free way: BUFFER of at least 32 bytes.
 * Returns BUFFER. */
const char *pl_format_thousands(char *buffer, int64_t number);

/* BYTES as "12.30 MiB" in BUFFER of at least 32 bytes. Returns BUFFER. */
const char *pl_format_bytes(char *buffer, int64_t bytes);

/* Read FILE whole; the caller frees *BYTES_OUT (NUL added behind) with pl_free. MAX_BYTES bounds
 * it. Errors: PL_BAD_INPUT when it does not exist, is no regular file or is too long;
 * PL_IO_FAILED; PL_NO_MEMORY. */
pl_status pl_read_file(char **bytes_out, size_t *length_out, const char *file, size_t max_bytes);

#ifdef __cplusplus
}
#endif
#endif
