/* Many mutations of many plans, counted. */
#ifndef PL_TESTS_SIM_CAMPAIGN_H
#define PL_TESTS_SIM_CAMPAIGN_H

#include "tests/sim/damage.h"

enum { CAMPAIGN_KINDS = 80, CAMPAIGN_REASONS = 16 };

/* What became of the mutations of one kind. */
typedef struct campaign_row {
    int64_t tried, outcome[DAMAGE_OUTCOMES];
    int64_t first[PL_PROOF_COUNT], failed[PL_PROOF_COUNT]; /* first failing; failing at all */
    /* failing, and naming the entry; the entry or a buffer concerned; a rank of the section */
    int64_t entry[PL_PROOF_COUNT], thing[PL_PROOF_COUNT], rank[PL_PROOF_COUNT];
    /* caught, and no failing proof names the entry or a buffer; ... nor a rank */
    int64_t nothing_named, no_rank;
} campaign_row;

typedef struct campaign_reason {
    const char *words; /* static */
    int64_t count[CAMPAIGN_KINDS];
    pl_text example; /* the first one; owned */
} campaign_reason;

typedef struct campaign {
    const pair_list *list; /* borrowed */
    campaign_row row[CAMPAIGN_KINDS];
    campaign_reason reason[CAMPAIGN_REASONS];
    int reason_count;
    pl_text unexplained; /* each with how to repeat it; owned */
    pl_text unnamed;     /* caught without naming entry or buffer: the first of each kind; owned */
    pl_text disputed;    /* caught, though the texts give a reason to call it harmless; owned */
    int64_t unexplained_count, disputed_count;
} campaign;

/* Prove all plans of the list and read their text back. *PROVED_OUT of them hold and come back
 * equal; FAILURES gets the words of the others. */
pl_status campaign_prove(const pair_list *list, int64_t *proved_out, pl_text *failures);

/* One mutation of KIND at a pair and place that SEED chooses, of a whole class or of one rank. */
pl_status campaign_try(campaign *c, int kind, uint64_t seed, bool one_rank);

/* TRIES places for mutations of each kind, alternately of whole classes and of one rank. */
pl_status campaign_run(campaign *c, uint64_t seed, int64_t tries);

/* Tables of what was counted. */
void campaign_report(pl_text *text, const campaign *c);
void campaign_free(campaign *c);

#endif
