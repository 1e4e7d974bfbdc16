/* mutate_plan --kind KIND --seed N [--rank R] < PLAN > DAMAGED: damages plan text at one random
 * place and says on standard error what it did. --list names the kinds.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/tools/mutation.h"

static int usage(void)
{
    fputs("usage: mutate_plan --kind KIND --seed N [--rank R] < PLAN > DAMAGED\n"
          "       mutate_plan --list\n",
          stderr);
    return 2;
}

static int list(void)
{
    for (int i = 0; i < mutation_kinds(); ++i)
        printf("%-20s %s\n", mutation_name(i), mutation_meaning(i));
    return fflush(stdout) == 0 ? 0 : 3;
}

/* All of standard input; NULL without memory. */
static char *read_input(void)
{
    size_t length = 0, capacity = 1 << 16;
    char *text = malloc(capacity);
    while (text) {
        size_t got = fread(text + length, 1, capacity - length - 1, stdin);
        length += got;
        if (got == 0) break;
        if (capacity - length > 1) continue;
        char *grown = realloc(text, capacity * 2);
        if (!grown) free(text);
        text = grown;
        capacity *= 2;
    }
    if (text) text[length] = '\0';
    return text;
}

static int run(int kind, unsigned long long seed, long rank)
{
    mutation done = {0};
    char *text = read_input();
    mutation_result result =
        text ? mutation_make(&done, kind, seed, rank, text) : MUTATION_NO_MEMORY;
    free(text);
    if (result == MUTATION_NO_MEMORY) fputs("mutate_plan: out of memory\n", stderr);
    if (result == MUTATION_NO_PLACE)
        fprintf(stderr, "mutate_plan: no place for '%s' in this text\n", mutation_name(kind));
    if (result != MUTATION_DONE) return result == MUTATION_NO_PLACE ? 1 : 3;
    fprintf(stderr, "%s\n", done.words);
    fputs(done.text, stdout);
    mutation_free(&done);
    return fflush(stdout) == 0 ? 0 : 3;
}

static int read_number(const char *word, unsigned long long *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtoull(word, &end, 10);
    return word[0] >= '0' && word[0] <= '9' && *end == '\0' && errno == 0;
}

int main(int count, char **word)
{
    int kind = -1, seeded = 0;
    unsigned long long seed = 0, rank = 0;
    long only = MUTATION_ANY_RANK;
    if (count == 2 && strcmp(word[1], "--list") == 0) return list();
    for (int i = 1; i < count; i += 2) {
        if (i + 1 == count) return usage();
        if (strcmp(word[i], "--kind") == 0) {
            kind = mutation_find(word[i + 1]);
            if (kind < 0) fprintf(stderr, "mutate_plan: no kind '%s'; see --list\n", word[i + 1]);
            if (kind < 0) return 2;
        } else if (strcmp(word[i], "--seed") == 0) {
            if (!read_number(word[i + 1], &seed)) return usage();
            seeded = 1;
        } else if (strcmp(word[i], "--rank") == 0) {
            if (!read_number(word[i + 1], &rank) || rank > 1u << 30) return usage();
            only = (long)rank;
        } else {
            return usage();
        }
    }
    return kind >= 0 && seeded ? run(kind, seed, only) : usage();
}
