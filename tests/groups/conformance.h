/* What every backend of common/process_group.h must do, whoever drives its ranks.
 *
 * A case is a body in phases; each rank runs phase 0, then 1, then 2. Backends that block are
 * driven by a thread per rank, backend fake by a loop over the ranks for each phase. Bodies record
 * the first thing that is wrong; the drivers return it, and tests assert.
 */
#ifndef PL_TESTS_GROUPS_CONFORMANCE_H
#define PL_TESTS_GROUPS_CONFORMANCE_H

#include <stdatomic.h>

#include "common/process_group.h"

enum { CONFORMANCE_RANKS = 16, CONFORMANCE_CASES = 1024, CONFORMANCE_WORDS = 1024 };

typedef struct conformance_backend {
    const char *name;
    const pl_dtype *dtypes; /* that it carries */
    int dtype_count;
    pl_status (*open)(pl_process_group **out, int64_t ranks);
} conformance_backend;

typedef enum conformance_body {
    BODY_EXCHANGE,  /* one call, every value compared */
    BODY_IN_FLIGHT, /* several calls at once, waited for out of order */
    BODY_SUBGROUPS, /* calls of several groups at once, groups closed and asked for again */
    BODY_SEGMENTS,  /* one call of several buffers, against known values and plain calls */
    BODY_ORDER,     /* sums whose bits show order and precision of the additions */
    BODY_BARRIER    /* nobody leaves before all have come */
} conformance_body;

typedef struct conformance_case {
    conformance_body body;
    pl_collective collective;
    pl_dtype dtype;
    pl_reduction reduction;
    int64_t count;
    bool in_place;
    int segments; /* BODY_SEGMENTS */
} conformance_case;

/* The cases for BACKEND and RANKS, in CASES[CONFORMANCE_CASES]; returns their number. */
int conformance_list(conformance_case *cases, const conformance_backend *backend, int64_t ranks);

/* Whether a byte of some receive buffer is written. */
bool conformance_has_output(const conformance_case *test, int64_t ranks);

/* Run CASES[COUNT] one after the other in one world. 0, or the number of ranks for which
 * something was wrong, and the first of it in WORDS[CONFORMANCE_WORDS]. */
int conformance_run_threads(const conformance_backend *backend, int64_t ranks,
                            const conformance_case *cases, int count, char *words);
int conformance_run_loop(const conformance_backend *backend, int64_t ranks,
                         const conformance_case *cases, int count, char *words);

/* Run the cases as one rank of WORLD, which is closed in the end; the others run elsewhere, at the
 * same time. *AT_BARRIER is 0 at first and the same memory for all. Whether something was wrong for
 * this rank, and the first of it in WORDS. */
bool conformance_run_rank(const conformance_backend *backend, pl_process_group *world,
                          atomic_llong *at_barrier, const conformance_case *cases, int count,
                          char *words);

/* Call USE with its first, second, third ... allocation failing until none does. The number of
 * failures, or -1 and WORDS[CONFORMANCE_WORDS] when one did not end in PL_NO_MEMORY. */
int conformance_fail_allocations(pl_status (*use)(void), char *words);

#endif
