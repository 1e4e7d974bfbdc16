#include "tests/tools/mutation_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- lines --- */

static char *copy_bytes(const char *start, size_t length)
{
    char *copy = malloc(length + 1);
    if (!copy) return NULL;
    memcpy(copy, start, length);
    copy[length] = '\0';
    return copy;
}

void mutation_insert(mutation_lines *lines, long at, char *line)
{
    if (!line) lines->failed = true;
    if (!lines->failed && lines->count == lines->capacity) {
        long capacity = lines->capacity ? lines->capacity * 2 : 512;
        char **grown = realloc(lines->line, (size_t)capacity * sizeof *grown);
        if (grown) {
            lines->line = grown;
            lines->capacity = capacity;
        }
        lines->failed |= !grown;
    }
    if (lines->failed) {
        free(line);
        return;
    }
    memmove(lines->line + at + 1, lines->line + at,
            (size_t)(lines->count - at) * sizeof *lines->line);
    lines->line[at] = line;
    ++lines->count;
}

void mutation_cut(mutation_lines *lines, const char *text)
{
    while (*text && !lines->failed) {
        size_t length = strcspn(text, "\n");
        mutation_insert(lines, lines->count, copy_bytes(text, length));
        text += length + (text[length] == '\n');
    }
}

char *mutation_join(mutation_lines *lines)
{
    size_t length = 0;
    for (long i = 0; i < lines->count; ++i) length += strlen(lines->line[i]) + 1;
    char *text = lines->failed ? NULL : malloc(length + 1), *end = text;
    if (!text) return NULL;
    for (long i = 0; i < lines->count; ++i) {
        size_t part = strlen(lines->line[i]);
        memcpy(end, lines->line[i], part);
        end += part;
        *end++ = '\n';
    }
    *end = '\0';
    return text;
}

void mutation_lines_free(mutation_lines *lines)
{
    for (long i = 0; i < lines->count; ++i) free(lines->line[i]);
    free(lines->line);
    *lines = (mutation_lines){0};
}

void mutation_replace(mutation_lines *lines, long at, char *line)
{
    if (!line) {
        lines->failed = true;
        return;
    }
    free(lines->line[at]);
    lines->line[at] = line;
}

void mutation_remove(mutation_lines *lines, long at)
{
    free(lines->line[at]);
    --lines->count;
    memmove(lines->line + at, lines->line + at + 1,
            (size_t)(lines->count - at) * sizeof *lines->line);
}

void mutation_move(mutation_lines *lines, long from, long to)
{
    char *line = lines->line[from];
    for (; from < to; ++from) lines->line[from] = lines->line[from + 1];
    for (; from > to; --from) lines->line[from] = lines->line[from - 1];
    lines->line[to] = line;
}

/* --- words --- */

bool mutation_starts(const char *line, const char *prefix)
{
    return strncmp(line, prefix, strlen(prefix)) == 0;
}

bool mutation_piece_is(mutation_piece piece, const char *word)
{
    return piece.start && strlen(word) == piece.length &&
           memcmp(piece.start, word, piece.length) == 0;
}

char *mutation_piece_copy(mutation_piece piece)
{
    return piece.start ? copy_bytes(piece.start, piece.length) : copy_bytes("", 0);
}

mutation_piece mutation_word(const char *line, int n)
{
    for (; n > 0 && *line; --n) {
        line += strcspn(line, " ");
        if (*line) ++line;
    }
    mutation_piece piece = {*line ? line : NULL, strcspn(line, " ")};
    return piece;
}

mutation_piece mutation_value(const char *line, const char *key)
{
    size_t length = strlen(key);
    for (const char *at = strchr(line, ' '); at; at = strchr(at + 1, ' '))
        if (strncmp(at + 1, key, length) == 0 && at[1 + length] == '=') {
            mutation_piece piece = {at + 2 + length, strcspn(at + 2 + length, " ")};
            return piece;
        }
    return (mutation_piece){NULL, 0};
}

char *mutation_with_piece(const char *line, mutation_piece piece, const char *with)
{
    size_t size = strlen(line) - piece.length + strlen(with) + 1;
    char *changed = malloc(size);
    if (changed)
        snprintf(changed, size, "%.*s%s%s", (int)(piece.start - line), line, with,
                 piece.start + piece.length);
    return changed;
}

static char *appended(const char *line, const char *key, const char *value)
{
    size_t size = strlen(line) + strlen(key) + strlen(value) + 3;
    char *changed = malloc(size);
    if (changed) snprintf(changed, size, "%s %s=%s", line, key, value);
    return changed;
}

char *mutation_with_value(const char *line, const char *key, const char *value)
{
    mutation_piece piece = mutation_value(line, key);
    if (!piece.start) return value ? appended(line, key, value) : copy_bytes(line, strlen(line));
    if (value) return mutation_with_piece(line, piece, value);
    size_t before = strlen(key) + 2; /* " KEY=" */
    piece.start -= before;
    piece.length += before;
    return mutation_with_piece(line, piece, "");
}

/* --- lists --- */

long mutation_list_count(const char *line, const char *key)
{
    mutation_piece list = mutation_value(line, key);
    if (!list.start || list.length == 0) return 0;
    long count = 1;
    for (size_t i = 0; i < list.length; ++i) count += list.start[i] == ',';
    return count;
}

mutation_piece mutation_list_item(const char *line, const char *key, long n)
{
    mutation_piece list = mutation_value(line, key);
    mutation_piece item = {list.start, 0};
    if (!list.start) return item;
    const char *end = list.start + list.length, *at = list.start;
    for (; n > 0; --n) {
        while (*at != ',') ++at;
        ++at;
    }
    item.start = at;
    while (at + item.length < end && at[item.length] != ',') ++item.length;
    return item;
}

bool mutation_list_has(const char *line, const char *key, mutation_piece item)
{
    long count = mutation_list_count(line, key);
    for (long i = 0; i < count; ++i) {
        mutation_piece other = mutation_list_item(line, key, i);
        if (other.length == item.length && memcmp(other.start, item.start, item.length) == 0)
            return true;
    }
    return false;
}

char *mutation_list_without(const char *line, const char *key, long n)
{
    mutation_piece item = mutation_list_item(line, key, n);
    if (mutation_list_count(line, key) == 1) return mutation_with_value(line, key, NULL);
    if (n > 0) --item.start; /* the comma before it, or the one behind it */
    ++item.length;
    return mutation_with_piece(line, item, "");
}

char *mutation_list_with(const char *line, const char *key, const char *item)
{
    mutation_piece list = mutation_value(line, key);
    if (!list.start) return mutation_with_value(line, key, item);
    size_t size = list.length + strlen(item) + 2;
    char *longer = malloc(size);
    if (!longer) return NULL;
    snprintf(longer, size, "%.*s,%s", (int)list.length, list.start, item);
    char *changed = mutation_with_value(line, key, longer);
    free(longer);
    return changed;
}
