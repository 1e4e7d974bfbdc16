/* Tests of ranks that run at the same time (tests/groups/rank_runs.h): suites of backends threads
 * and mpi run them alike. */
#ifndef PL_TESTS_GROUPS_RANK_CASES_H
#define PL_TESTS_GROUPS_RANK_CASES_H

#include "tests/groups/rank_runs.h"

/* failure_cases.c */
void test_a_rank_errors(void **state);
void test_a_rank_never_comes(void **state);
void test_late_arrival(void **state);
void test_a_rank_closes_early(void **state);
void test_buffers_are_free_after_a_failure(void **state);
void test_no_memory_on_one_rank(void **state);
void test_done_stays_done(void **state);
void test_interrupted(void **state);
void test_interrupted_in_time(void **state);

/* refusal_cases.c */
void test_mismatches(void **state);
void test_bad_calls(void **state);

/* segment_cases.c */
void test_segment_mismatches(void **state);
void test_segment_bad_calls(void **state);

/* log_cases.c */
void test_log(void **state);
void test_log_of_segments(void **state);

#endif
