/* The single kinds of damage: what mutation.c chooses from. */
#ifndef PL_TESTS_TOOLS_MUTATION_KINDS_H
#define PL_TESTS_TOOLS_MUTATION_KINDS_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/tools/mutation_text.h"

/* A place in the text. Lines are numbered from 0. */
typedef struct mutation_site {
    mutation_lines *lines;
    long at;      /* the line to damage; afterwards where it is, or -1 */
    long section; /* the line "section ..." it belongs to, or is */
    long first;   /* first entry of that section */
    long end;     /* its line "end" */
    char *other;  /* a copy of a second line concerned, or NULL; owned */
    uint64_t *random;
} mutation_site;

/* Each returns whether it applied; ARGUMENT is a key, a direction or the like. */
typedef bool mutation_function(mutation_site *site, const char *argument);

/* A number below BELOW > 0. */
long mutation_random(mutation_site *site, long below);

/* Order and number of entries (mutation_order.c). */
mutation_function mutation_drop, mutation_double, mutation_swap, mutation_shift, mutation_relabel,
    mutation_swap_ranks;

/* Lists of waits and buffers (mutation_uses.c). ARGUMENT: the key. */
mutation_function mutation_list_drop, mutation_redirect, mutation_redirect_write,
    mutation_redirect_wait, mutation_add_wait, mutation_add_read, mutation_weaken_begin,
    mutation_move_begin, mutation_end_earlier, mutation_end_later, mutation_end_twice;

/* Words and numbers of entries (mutation_values.c). */
mutation_function mutation_change_choice, mutation_remove_choice, mutation_add_choice,
    mutation_change_number, mutation_change_name, mutation_change_suffix, mutation_change_layer,
    mutation_change_subject, mutation_change_operation, mutation_change_exchange;

/* Lines "buffer ..." (mutation_buffers.c). */
mutation_function mutation_buffer_bytes, mutation_buffer_word, mutation_buffer_rows,
    mutation_buffer_resident, mutation_buffer_drop, mutation_buffer_double, mutation_buffer_add;

/* A different number for the digits in PIECE of LINE, as a new line. */
char *mutation_other_number(mutation_site *site, const char *line, mutation_piece piece);

/* A word of the NULL-terminated LIST that is not PIECE. */
const char *mutation_other_choice(mutation_site *site, const char *const *list,
                                  mutation_piece piece);

#endif
