/* Proofs about a plan.
 *
 * Each proof looks at the plan of all ranks as it stands (made here or read from text) and comes
 * to a verdict: proved, or failed with the smallest counter-example it found, in words that name
 * rank, entry, buffer or rows. Proofs know nothing of how plans are made: what must hold they
 * take from sim/expect.h.
 */
#ifndef PL_SIM_PROOF_H
#define PL_SIM_PROOF_H

#include "common/plan.h"
#include "sim/expect.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A plan with what the proofs need of it. */
struct pl_sim_world {
    const pl_plan *plan; /* borrowed */
    uint32_t programs;   /* PL_PROGRAMS_... that it must have */
    int64_t ranks;
    pl_expected_groups groups;
    pl_expected_parts parts;
    const pl_section **section[PL_PROGRAM_COUNT]; /* [ranks], NULL without such a program */
};

pl_status pl_sim_world_make(pl_sim_world *out, const pl_plan *plan, uint32_t programs);
void pl_sim_world_free(pl_sim_world *world);

typedef enum pl_proof_id {
    PL_PROOF_TILING,
    PL_PROOF_GROUPS,
    PL_PROOF_WORK,
    PL_PROOF_SIZES,
    PL_PROOF_COLLECTIVES,
    PL_PROOF_DEADLOCK,
    PL_PROOF_ORDERING,
    PL_PROOF_LIFETIMES,
    PL_PROOF_GATHERS,
    PL_PROOF_PARAMETERS,
    PL_PROOF_GRADIENTS,
    PL_PROOF_COUNTS,
    PL_PROOF_NORM,
    PL_PROOF_UPDATE,
    PL_PROOF_COUNT
} pl_proof_id;

/* What is not shown is not proved. */
typedef enum pl_outcome { PL_UNDECIDED, PL_PROVED, PL_FAILED } pl_outcome;

typedef struct pl_verdict {
    pl_outcome outcome;
    int64_t checked; /* how many single facts were looked at */
    pl_text words;   /* the counter-example; empty when proved; owned */
} pl_verdict;

/* The verdicts of one check, all programs of the plan together. */
typedef struct pl_check {
    pl_verdict verdict[PL_PROOF_COUNT];
    int64_t ranks, sections, entries; /* entries of all ranks */
    double seconds;
} pl_check;

/* All ranks are walked one by one. */
enum { PL_CHECK_MOST_RANKS = 4096 };

/* Run every proof over all programs of PLAN, which must have PROGRAMS (PL_PROGRAMS_...; 0: start
 * and step): one that is missing fails. What is wrong with the plan is in the verdicts. Errors:
 * PL_NO_MEMORY; PL_UNSUPPORTED beyond PL_CHECK_MOST_RANKS ranks.
 * The caller frees with pl_check_free. */
pl_status pl_check_programs(pl_check *out, const pl_plan *plan, uint32_t programs);

/* The same for a plan that must have start and step. */
pl_status pl_check_plan(pl_check *out, const pl_plan *plan);
void pl_check_free(pl_check *check);

/* Whether every proof holds. */
bool pl_check_proved(const pl_check *check);

const char *pl_proof_name(pl_proof_id proof);  /* "gradients" */
const char *pl_proof_claim(pl_proof_id proof); /* what it says when it holds, one line */

/* --- for the proofs --- */

/* Note a counter-example; only the first of a proof is kept. ENTRY may be NULL; RANK < 0 leaves
 * the rank out. */
void pl_verdict_fail(pl_verdict *verdict, int64_t rank, pl_program program,
                     const pl_section *section, const pl_entry *entry, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

/* The proof is through: it holds unless a counter-example was found. */
void pl_verdict_close(pl_verdict *verdict);

/* Free a TEXT that went into a verdict; if it lacked memory, the verdict's words do too, and the
 * check fails with PL_NO_MEMORY instead of showing half a sentence. */
void pl_verdict_free_text(pl_verdict *verdict, pl_text *text);

/* Whether every step and evaluation has at least an entry for each of its micro-batches. A header
 * read from text may name any number of them: what such a step must be is not worked out, which
 * would take as long as the step. */
bool pl_sim_world_holds_shape(const pl_sim_world *world);

/* The first rank of a section. */
int64_t pl_section_first_rank(const pl_section *section);

pl_status pl_prove_tiling(const pl_sim_world *world, pl_verdict *verdict);
pl_status pl_prove_groups(const pl_sim_world *world, pl_verdict *verdict);
pl_status pl_prove_work(const pl_sim_world *world, pl_verdict *verdict);
pl_status pl_prove_sizes(const pl_sim_world *world, pl_verdict *verdict);
pl_status pl_prove_collectives(const pl_sim_world *world, pl_verdict *verdict);
pl_status pl_prove_ordering(const pl_sim_world *world, pl_verdict *verdict);
pl_status pl_prove_lifetimes(const pl_sim_world *world, pl_verdict *verdict);
pl_status pl_prove_gathers(const pl_sim_world *world, pl_verdict *verdict);

/* Walks all ranks over the fake process group and carries values through every entry: gives the
 * verdicts of deadlock, parameters, gradients, counts, norm and update (VERDICTS is the whole
 * array of a check). */
pl_status pl_prove_by_walking(const pl_sim_world *world, pl_verdict *verdicts);

/* --- counting (count.c) --- */

typedef struct pl_unit_count {
    int64_t forward, backward, unused; /* gathers that move bytes */
} pl_unit_count;

/* Collectives of one rank in one step; size-1 groups have none. */
typedef struct pl_counts {
    int64_t gathers, unused_gathers, reduces, all_reduces, exchanges, others, casts;
    pl_unit_count by_part[5]; /* embed, layer, experts, norm, head: units by their first part */
    int64_t gather_bytes, reduce_bytes, all_reduce_bytes; /* received by this rank: wire bytes */
    int64_t exchange_bytes; /* sent by this rank with balanced routing, own part left out */
} pl_counts;

void pl_count_section(pl_counts *out, const pl_plan *plan, const pl_section *section);

/* Whether anything computes with what the gather at place NUMBER brings. */
bool pl_gather_is_used(const pl_section *section, size_t number);

#ifdef __cplusplus
}
#endif
#endif
