/* Damages the text of a plan at a random place, and says what it did.
 *
 * It knows the text form only (lines "buffer ...", "entry ..." between "section ..." and "end";
 * words; "key=value"; lists with commas) and nothing of what an entry means or of how it is
 * proved: it includes and links only the C library.
 */
#ifndef PL_TESTS_TOOLS_MUTATION_H
#define PL_TESTS_TOOLS_MUTATION_H

#include <stdint.h>

enum { MUTATION_ANY_RANK = -1 };

typedef enum mutation_result {
    MUTATION_DONE,
    MUTATION_NO_PLACE, /* the text has no place for this kind */
    MUTATION_NO_MEMORY
} mutation_result;

/* What was done. All strings are owned and freed with mutation_free; lines are without their
 * newline, "" where there is none. */
typedef struct mutation {
    char *text;    /* the damaged text */
    char *section; /* "step ranks 0-6": what stands behind "section" */
    char *before;  /* the line that was damaged, or after which one was added */
    char *after;   /* what became of it, or the line added; "" when it is gone */
    char *other;   /* a second line concerned, as it was: the one changed places with, ... */
    char *words;   /* all of this in one line for a person */
    long line;     /* number of the damaged line, from 1 */
} mutation;

/* How many kinds there are, and the name and meaning of kind NUMBER. */
int mutation_kinds(void);
const char *mutation_name(int number);
const char *mutation_meaning(int number);

/* The number of the kind NAME, or -1. */
int mutation_find(const char *name);

/* Damage TEXT by kind NUMBER at a place that SEED chooses: equal arguments do equal damage. RANK >=
 * 0: only in sections of that one rank. *OUT is set only when something was done. */
mutation_result mutation_make(mutation *out, int number, uint64_t seed, long rank,
                              const char *text);
void mutation_free(mutation *done);

#endif
