/* Plan text as lines, words and lists, for damaging it. C library only. */
#ifndef PL_TESTS_TOOLS_MUTATION_TEXT_H
#define PL_TESTS_TOOLS_MUTATION_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Lines without newlines. Whatever fails for want of memory sets `failed` and does nothing. */
typedef struct mutation_lines {
    char **line; /* owned, each of them too */
    long count, capacity;
    bool failed;
} mutation_lines;

void mutation_cut(mutation_lines *lines, const char *text);
char *mutation_join(mutation_lines *lines); /* owned by the caller */
void mutation_lines_free(mutation_lines *lines);

/* LINE is taken over (freed on failure); NULL counts as a failed allocation. */
void mutation_insert(mutation_lines *lines, long at, char *line);
void mutation_replace(mutation_lines *lines, long at, char *line);
void mutation_remove(mutation_lines *lines, long at);
void mutation_move(mutation_lines *lines, long from, long to);

/* A piece of a line. */
typedef struct mutation_piece {
    const char *start; /* NULL: not there */
    size_t length;
} mutation_piece;

bool mutation_starts(const char *line, const char *prefix);
bool mutation_piece_is(mutation_piece piece, const char *word);
char *mutation_piece_copy(mutation_piece piece);

/* Word number N of LINE, from 0; and the value behind "KEY=". */
mutation_piece mutation_word(const char *line, int n);
mutation_piece mutation_value(const char *line, const char *key);

/* New lines, owned by the caller: PIECE of LINE replaced; "KEY=VALUE" set or added, or removed
 * with VALUE NULL. NULL without memory. */
char *mutation_with_piece(const char *line, mutation_piece piece, const char *with);
char *mutation_with_value(const char *line, const char *key, const char *value);

/* Lists "a,b,c" behind "KEY=". */
long mutation_list_count(const char *line, const char *key);
mutation_piece mutation_list_item(const char *line, const char *key, long n);
bool mutation_list_has(const char *line, const char *key, mutation_piece item);
char *mutation_list_without(const char *line, const char *key, long n);
char *mutation_list_with(const char *line, const char *key, const char *item);

#endif
