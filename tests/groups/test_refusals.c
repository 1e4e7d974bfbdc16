/* Calls and groups that are refused. */
#include "tests/groups/rank_cases.h"

static pl_status split_of(pl_process_group *world, pl_group_role role, int64_t base, int64_t count,
                          int64_t stride)
{
    pl_process_group *out = NULL;
    pl_rank_set members = pl_rank_set_single(base);
    pl_rank_set_nest(&members, count, stride);
    pl_status status = pl_process_group_split(world, role, &members, &out);
    pl_process_group_close(out);
    return status;
}

static void test_bad_splits(void **state)
{
    (void)state;
    pl_process_group *ranks[4], *part = NULL;
    assert_ok(pl_group_threads_open(ranks, 4, LONG_LIMIT));
    assert_fails(PL_INTERNAL, split_of(ranks[1], PL_GROUP_DATA, 0, 2, 2), "rank 1 of 4",
                 "data {0,2}", "not a member");
    assert_fails(PL_INTERNAL, split_of(ranks[1], PL_GROUP_DATA, 1, 4, 1), "from rank 1, 3 wide",
                 "0 to 3");
    assert_fails(PL_INTERNAL, split_of(ranks[1], PL_GROUP_DATA, -1, 2, 2), "from rank -1");
    assert_fails(PL_INTERNAL, split_of(ranks[1], PL_GROUP_DATA, 1, 3, INT64_MAX / 2 + 2), "nest");
    assert_fails(PL_INTERNAL, split_of(ranks[1], PL_GROUP_DATA, 1, 2, -1), "strides do not nest");
    assert_fails(PL_INTERNAL, split_of(ranks[1], PL_GROUP_ROLE_COUNT, 1, 2, 1), "which is none");
    pl_rank_set members = pl_rank_set_single(1);
    assert_ok(pl_process_group_split(ranks[1], PL_GROUP_DATA, &members, &part));
    assert_fails(PL_INTERNAL, split_of(part, PL_GROUP_DATA, 1, 1, 1), "world's group only");
    pl_process_group_close(part);
    for (int i = 0; i < 4; ++i) pl_process_group_close(ranks[i]);
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(pl_collective_name(PL_ALL_TO_ALL_UNEVEN), "all-to-all-uneven");
    assert_string_equal(pl_collective_name(PL_BARRIER), "barrier");
    for (int i = 0; i < PL_REDUCTION_COUNT; ++i) {
        pl_reduction reduction = PL_REDUCTION_COUNT;
        assert_true(pl_reduction_parse(&reduction, pl_reduction_name((pl_reduction)i)));
        assert_int_equal(reduction, i);
    }
    pl_reduction untouched = PL_REDUCTION_MAX;
    assert_false(pl_reduction_parse(&untouched, "mean"));
    assert_int_equal(untouched, PL_REDUCTION_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mismatches), cmocka_unit_test(test_bad_calls),
        cmocka_unit_test(test_bad_splits), cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
