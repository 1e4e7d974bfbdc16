#include "tests/train/edits.h"

#include <stdlib.h>
#include <string.h>

/* Whether the LENGTH bytes at LINE contain WORD; where, in *AT. */
static int contains(const char *line, size_t length, const char *word, size_t *at)
{
    size_t size = strlen(word);
    for (size_t i = 0; i + size <= length; ++i) {
        if (memcmp(line + i, word, size) != 0) continue;
        *at = i;
        return 1;
    }
    return 0;
}

char *edit_drop(const char *text, const char *word)
{
    char *out = malloc(strlen(text) + 1), *end = out;
    size_t at = 0;
    while (out && *text) {
        size_t length = strcspn(text, "\n");
        length += text[length] == '\n';
        if (!contains(text, length, word, &at)) {
            memcpy(end, text, length);
            end += length;
        }
        text += length;
    }
    if (out) *end = '\0';
    return out;
}

char *edit_replace(const char *text, const char *word, const char *from, const char *to)
{
    size_t size = strlen(to), at = 0;
    size_t lines = 1;
    for (const char *c = text; *c; ++c) lines += *c == '\n';
    char *out = malloc(strlen(text) + 1 + lines * size), *end = out;
    while (out && *text) {
        size_t length = strcspn(text, "\n");
        length += text[length] == '\n';
        if (contains(text, length, word, &at) && contains(text, length, from, &at)) {
            memcpy(end, text, at);
            memcpy(end + at, to, size);
            end += at + size;
            text += at + strlen(from);
            length -= at + strlen(from);
        }
        memcpy(end, text, length);
        end += length;
        text += length;
    }
    if (out) *end = '\0';
    return out;
}
