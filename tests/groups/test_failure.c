/* Backend threads when something goes wrong. */
#include "tests/groups/rank_cases.h"

/* Rank 0 leaves the world without ever having asked for {0,2}, where rank 2 waits already. */
static void test_leaving_fails_what_waits(void **state)
{
    (void)state;
    pl_process_group *world[3], *pair = NULL;
    pl_request request = 0;
    pl_rank_set members = pl_rank_set_single(0);
    pl_entry_name name = pl_entry_name_make(PL_OP_CONTROL, PL_SUBJECT_FLAGS);
    pl_call call = {.collective = PL_BARRIER, .name = &name};
    pl_rank_set_nest(&members, 2, 2);
    assert_ok(pl_group_threads_open(world, 3, LONG_LIMIT));
    assert_ok(pl_process_group_split(world[2], PL_GROUP_DATA, &members, &pair));
    assert_ok(pl_process_group_start(pair, &call, &request));
    pl_process_group_close(world[0]);
    assert_fails(
        PL_PEER_FAILED, pl_process_group_wait(pair, request),
        "rank 0 closed its handle before the end of barrier (control flags) in data {0,2}");
    assert_fails(PL_PEER_FAILED, pl_process_group_do(world[1], &call), "rank 0 closed its handle",
                 "rank 1 was to start");
    pl_process_group_close(pair);
    pl_process_group_close(world[1]);
    pl_process_group_close(world[2]);
}

/* Two handles of one rank on one group share its calls; the group goes with the last of them. */
static void test_handles_are_counted(void **state)
{
    (void)state;
    pl_process_group *world[2], *first[2], *second[2];
    pl_request request = -1;
    pl_rank_set both = pl_rank_set_single(0);
    pl_entry_name name = pl_entry_name_make(PL_OP_CONTROL, PL_SUBJECT_FLAGS);
    pl_call call = {.collective = PL_BARRIER, .name = &name};
    pl_rank_set_nest(&both, 2, 1);
    assert_ok(pl_group_threads_open(world, 2, LONG_LIMIT));
    for (int i = 0; i < 2; ++i) {
        assert_ok(pl_process_group_split(world[i], PL_GROUP_DATA, &both, &first[i]));
        assert_ok(pl_process_group_split(world[i], PL_GROUP_DATA, &both, &second[i]));
    }
    assert_ok(pl_process_group_start(first[0], &call, &request));
    assert_ok(pl_process_group_do(second[1], &call));
    pl_process_group_close(first[0]);
    assert_ok(pl_process_group_wait(second[0], request));
    assert_ok(pl_process_group_start(second[0], &call, &request));
    assert_int_equal(request, 1);
    assert_ok(pl_process_group_do(first[1], &call));
    assert_ok(pl_process_group_wait(second[0], request));
    /* Rank 0 goes on to the next group of that name while rank 1 still holds the old one. */
    pl_process_group_close(second[0]);
    assert_ok(pl_process_group_split(world[0], PL_GROUP_DATA, &both, &first[0]));
    assert_ok(pl_process_group_start(first[0], &call, &request));
    assert_int_equal(request, 0);
    pl_process_group_close(first[1]);
    pl_process_group_close(second[1]);
    assert_ok(pl_process_group_split(world[1], PL_GROUP_DATA, &both, &first[1]));
    assert_ok(pl_process_group_do(first[1], &call));
    assert_ok(pl_process_group_wait(first[0], request));
    for (int i = 0; i < 2; ++i) {
        pl_process_group_close(first[i]);
        pl_process_group_close(world[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_rank_errors),
                                       cmocka_unit_test(test_a_rank_never_comes),
                                       cmocka_unit_test(test_late_arrival),
                                       cmocka_unit_test(test_a_rank_closes_early),
                                       cmocka_unit_test(test_buffers_are_free_after_a_failure),
                                       cmocka_unit_test(test_no_memory_on_one_rank),
                                       cmocka_unit_test(test_done_stays_done),
                                       cmocka_unit_test(test_interrupted),
                                       cmocka_unit_test(test_interrupted_in_time),
                                       cmocka_unit_test(test_log),
                                       cmocka_unit_test(test_log_of_segments),
                                       cmocka_unit_test(test_leaving_fails_what_waits),
                                       cmocka_unit_test(test_handles_are_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
