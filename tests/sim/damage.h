/* One mutation of one plan: what was done, what the proofs say of it, and whether their words
 * lead to it. */
#ifndef PL_TESTS_SIM_DAMAGE_H
#define PL_TESTS_SIM_DAMAGE_H

#include "sim/proof.h"
#include "tests/sim/pairs.h"
#include "tests/tools/mutation.h"

typedef enum damage_outcome {
    DAMAGE_CAUGHT,      /* a proof fails */
    DAMAGE_REFUSED,     /* the text cannot be read any more */
    DAMAGE_HARMLESS,    /* every proof holds, and the texts show why it may */
    DAMAGE_UNEXPLAINED, /* every proof holds, and nothing shows why */
    DAMAGE_SAME_TEXT,   /* the text is as it was */
    DAMAGE_NO_PLACE,    /* the plan has no place for this kind */
    DAMAGE_OUTCOMES
} damage_outcome;

/* Bits of proofs: 1 << pl_proof_id. */
typedef struct damage {
    damage_outcome outcome;
    const pair *chosen; /* borrowed from the list */
    mutation done;      /* owned */
    int64_t rank;       /* the one rank whose section was damaged; -1: a whole class */
    unsigned failed;    /* proofs that fail */
    /* ... and whose words name the entry (with its label, and its name before or after), a buffer
     * that the mutation concerns, a rank of the damaged section */
    unsigned names_entry, names_buffer, names_rank;
    pl_text words;      /* the failing proofs' words, a line each, or the refusal; owned */
    const char *reason; /* why it is harmless, or NULL; static. DAMAGE_CAUGHT with a reason: either
                           the proof asks for too much or the reason is none */
} damage;

/* Damage by KIND a plan of LIST that has a place for it; SEED chooses plan and place; ONE_RANK: in
 * a section of one rank. The caller frees with damage_free. Errors: of building and checking. */
pl_status damage_try(damage *out, const pair_list *list, int kind, uint64_t seed, bool one_rank);
void damage_free(damage *tried);

/* The first failing proof, or PL_PROOF_COUNT. */
pl_proof_id damage_first(const damage *tried);

#endif
