/* Backend mpi when something goes wrong: the tests that backend threads passes, as far as a process
 * can go on using MPI after a failure; groups/mpi_job has the others. mpirun -np 4. */
#include "tests/groups/mpi_ranks.h"
#include "tests/groups/rank_cases.h"

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_rank_errors),
                                       cmocka_unit_test(test_a_rank_never_comes),
                                       cmocka_unit_test(test_late_arrival),
                                       cmocka_unit_test(test_a_rank_closes_early),
                                       cmocka_unit_test(test_no_memory_on_one_rank),
                                       cmocka_unit_test(test_done_stays_done),
                                       cmocka_unit_test(test_interrupted),
                                       cmocka_unit_test(test_interrupted_in_time),
                                       cmocka_unit_test(test_mismatches),
                                       cmocka_unit_test(test_bad_calls),
                                       cmocka_unit_test(test_segment_mismatches),
                                       cmocka_unit_test(test_segment_bad_calls),
                                       cmocka_unit_test(test_log),
                                       cmocka_unit_test(test_log_of_segments)};
    return mpi_run_suite("mpi_failure", tests, sizeof tests / sizeof *tests);
}
