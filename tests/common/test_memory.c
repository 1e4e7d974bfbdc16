#include <stdint.h>

#include "common/memory.h"
#include "tests/test.h"

static void allocate_gives_zeroed_memory(void **state)
{
    (void)state;
    int64_t *numbers = NULL;
    assert_ok(pl_allocate(&numbers, 100, sizeof *numbers, "numbers"));
    for (int i = 0; i < 100; ++i) assert_int_equal(numbers[i], 0);
    pl_free(numbers);
    numbers = NULL;
    assert_ok(pl_allocate(&numbers, 0, sizeof *numbers, "nothing"));
    assert_non_null(numbers);
    pl_free(numbers);
    pl_free(NULL);
}

static void allocate_refuses_what_overflows(void **state)
{
    (void)state;
    char *untouched = (char *)(uintptr_t)1;
    assert_fails(PL_NO_MEMORY, pl_allocate(&untouched, SIZE_MAX / 2, 3, "giants"), "giants",
                 "out of memory", "x 3 bytes");
    assert_ptr_equal(untouched, (char *)(uintptr_t)1);
}

static void grow_keeps_contents(void **state)
{
    (void)state;
    int *numbers = NULL;
    size_t capacity = 0;
    for (int i = 0; i < 1000; ++i) {
        assert_ok(pl_grow(&numbers, &capacity, (size_t)i + 1, sizeof *numbers, "numbers"));
        assert_true(capacity > (size_t)i);
        numbers[i] = i;
    }
    for (int i = 0; i < 1000; ++i) assert_int_equal(numbers[i], i);
    size_t before = capacity;
    assert_ok(pl_grow(&numbers, &capacity, capacity + 1, sizeof *numbers, "numbers"));
    assert_true(capacity >= before + before / 2); /* geometric, so that adding is cheap */
    int *kept = numbers;
    before = capacity;
    assert_fails(PL_NO_MEMORY,
                 pl_grow(&numbers, &capacity, SIZE_MAX / 2, sizeof *numbers, "numbers"), "numbers");
    assert_ptr_equal(numbers, kept);
    assert_int_equal(capacity, before);
    pl_allocation_fail_after(0);
    assert_ok(pl_grow(&numbers, &capacity, 3, sizeof *numbers, "numbers")); /* there is room */
    assert_false(pl_allocation_failed());
    pl_allocation_fail_after(-1);
    pl_free(numbers);
}

static void grow_of_empty_elements_stays_valid(void **state)
{
    (void)state;
    char *nothing = NULL;
    size_t capacity = 0;
    for (size_t i = 1; i < 100; ++i) assert_ok(pl_grow(&nothing, &capacity, i, 0, "nothing"));
    assert_non_null(nothing);
    pl_free(nothing);
}

static void duplicate_copies(void **state)
{
    (void)state;
    char original[] = "words", *copy = NULL;
    assert_ok(pl_duplicate(&copy, original, "a copy"));
    original[0] = 'W';
    assert_string_equal(copy, "words");
    pl_free(copy);
    assert_ok(pl_duplicate(&copy, "", "a copy"));
    assert_string_equal(copy, "");
    pl_free(copy);
}

static void only_the_chosen_allocation_fails(void **state)
{
    (void)state;
    for (int64_t after = 0; after < 3; ++after) {
        char *pointers[4] = {NULL};
        pl_allocation_fail_after(after);
        for (int i = 0; i < 4; ++i) {
            assert_int_equal(pl_allocation_failed(), i > after);
            pl_status status = pl_allocate(&pointers[i], 1, 1, "a byte");
            assert_int_equal(status, i == after ? PL_NO_MEMORY : PL_OK);
        }
        pl_allocation_fail_after(-1);
        assert_false(pl_allocation_failed());
        for (int i = 0; i < 4; ++i) pl_free(pointers[i]);
    }
    char *copy = NULL;
    size_t capacity = 0;
    pl_allocation_fail_after(0);
    assert_fails(PL_NO_MEMORY, pl_duplicate(&copy, "x", "a copy"), "a copy");
    pl_allocation_fail_after(0);
    assert_fails(PL_NO_MEMORY, pl_grow(&copy, &capacity, 1, 1, "room"), "room");
    assert_null(copy);
    assert_int_equal(capacity, 0);
    pl_allocation_fail_after(-1);
}

static void sizes_are_checked(void **state)
{
    (void)state;
    int64_t out = 5;
    assert_ok(pl_multiply(&out, 3037000499, 3037000499, "area"));
    assert_true(out == 9223372030926249001);
    assert_ok(pl_multiply(&out, INT64_MAX, 0, "area"));
    assert_int_equal(out, 0);
    assert_ok(pl_add(&out, INT64_MAX - 1, 1, "length"));
    assert_true(out == INT64_MAX);
    out = 5;
    assert_fails(PL_BAD_INPUT, pl_multiply(&out, 3037000500, 3037000500, "area"), "area",
                 "3037000500 x 3037000500");
    assert_fails(PL_BAD_INPUT, pl_multiply(&out, -1, 2, "area"), "-1 x 2");
    assert_fails(PL_BAD_INPUT, pl_multiply(&out, 2, -1, "area"), "2 x -1");
    assert_fails(PL_BAD_INPUT, pl_add(&out, INT64_MAX, 1, "length"), "length", "+ 1");
    assert_fails(PL_BAD_INPUT, pl_add(&out, -1, 2, "length"), "-1 + 2");
    assert_int_equal(out, 5);
    assert_int_equal(pl_divide_up(0, 3), 0);
    assert_int_equal(pl_divide_up(1, 3), 1);
    assert_int_equal(pl_divide_up(3, 3), 1);
    assert_int_equal(pl_divide_up(4, 3), 2);
    assert_true(pl_divide_up(INT64_MAX, 2) == (int64_t)1 << 62);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocate_gives_zeroed_memory),
        cmocka_unit_test(allocate_refuses_what_overflows),
        cmocka_unit_test(grow_keeps_contents),
        cmocka_unit_test(grow_of_empty_elements_stays_valid),
        cmocka_unit_test(duplicate_copies),
        cmocka_unit_test(only_the_chosen_allocation_fails),
        cmocka_unit_test(sizes_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
