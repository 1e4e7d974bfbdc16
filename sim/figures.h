/* What a plan comes to: what ranks hold, gather and move. */
#ifndef PL_SIM_FIGURES_H
#define PL_SIM_FIGURES_H

#include "common/plan.h"
#include "sim/proof.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Smallest and largest over the ranks. */
typedef struct pl_span {
    int64_t least, most;
} pl_span;

typedef struct pl_figures {
    int64_t ranks, classes; /* classes: sections of the step */
    pl_span elements;       /* of all parameters that a rank holds, without padding */
    pl_span bytes;          /* resident: parameters, masters, moments, with padding */
    int64_t gathered_most;  /* bytes of gathered parameters alive at once, on the worst rank */
    pl_counts counts;       /* of the rank that communicates the most bytes */
} pl_figures;

/* A sum or product of numbers of at least 0; the largest number where it does not fit 63 bits. */
int64_t pl_bounded_sum(int64_t a, int64_t b);
int64_t pl_bounded_product(int64_t a, int64_t b);

/* Zeroes for a plan without a step. Sums are bounded. */
pl_figures pl_figures_make(const pl_plan *plan);

/* Parameters that RANK holds, without padding; bytes of the resident buffers of a section. */
int64_t pl_held_elements(const pl_plan *plan, int64_t rank);
int64_t pl_resident_bytes(const pl_section *section);

#ifdef __cplusplus
}
#endif
#endif
