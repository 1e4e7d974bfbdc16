/* Calls of several segments, for the bodies of conformance.c: first with values that are known,
 * then with values whose sums show the order of the additions, against plain calls one after
 * another. */
#ifndef PL_TESTS_GROUPS_SEGMENTS_H
#define PL_TESTS_GROUPS_SEGMENTS_H

#include "tests/groups/exchange.h"

typedef struct segment_run segment_run;

/* Add the cases for BACKEND and RANKS behind the first COUNT in CASES; returns their number. */
int segments_list(conformance_case *cases, int count, const conformance_backend *backend,
                  int64_t ranks);

/* Start the call with known values. NULL when something is wrong. */
segment_run *segments_start(rank_report *report, pl_process_group *group,
                            const conformance_backend *backend, const conformance_case *test);

/* Wait and compare; start the call with other values, and a plain call for each segment. */
void segments_repeat(segment_run *run);

/* Wait for all, compare the bits, and free the run. */
void segments_finish(segment_run *run);

#endif
