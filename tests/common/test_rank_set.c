/* Sets of ranks in closed form, against lists written out by nested loops. */
#include "tests/test.h"

#include <stdbool.h>

#include "common/memory.h"
#include "common/rank_set.h"

static pl_rank_set make_set(int64_t base, int axes, const int64_t (*axis)[2])
{
    pl_rank_set set = pl_rank_set_single(base);
    for (int a = 0; a < axes; ++a) pl_rank_set_nest(&set, axis[a][0], axis[a][1]);
    return set;
}

/* Members of up to three nested axes, slowest first. Returns how many. */
static int64_t list_members(int64_t *list, int64_t base, const int64_t (*axis)[2])
{
    int64_t count = 0;
    for (int64_t i = 0; i < axis[0][0]; ++i)
        for (int64_t j = 0; j < axis[1][0]; ++j)
            for (int64_t k = 0; k < axis[2][0]; ++k)
                list[count++] = base + i * axis[0][1] + j * axis[1][1] + k * axis[2][1];
    return count;
}

/* How often SET disagrees with the list of BASE and AXIS: size, members, index of every rank. */
static int count_faults(const pl_rank_set *set, int64_t base, const int64_t (*axis)[2])
{
    int64_t list[1024];
    int64_t count = list_members(list, base, axis);
    int faults = pl_rank_set_size(set) != count;
    for (int64_t i = 0; i < count; ++i) {
        faults += pl_rank_set_member(set, i) != list[i];
        faults += pl_rank_set_index(set, list[i]) != i;
    }
    for (int64_t rank = -5; rank <= list[count - 1] + 5; ++rank) {
        bool member = false;
        for (int64_t i = 0; i < count; ++i) member |= list[i] == rank;
        if (!member) faults += pl_rank_set_index(set, rank) != -1;
    }
    return faults;
}

static const int64_t shapes[][3][2] = {
    {{1, 1}, {1, 1}, {1, 1}},    {{8, 1}, {1, 1}, {1, 1}},  {{4, 8}, {1, 1}, {1, 1}},
    {{3, 20}, {2, 5}, {1, 1}},   {{2, 32}, {4, 4}, {4, 1}}, {{5, 100}, {3, 10}, {7, 1}},
    {{1, 100}, {3, 10}, {1, 1}}, {{2, 12}, {3, 4}, {2, 1}}, {{2, 7}, {1, 3}, {5, 1}},
};

static void test_members_and_indices(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; ++s) {
        for (int64_t base = 0; base < 40; base += 13) {
            pl_rank_set set = make_set(base, 3, shapes[s]);
            assert_int_equal(count_faults(&set, base, shapes[s]), 0);
        }
    }
}

static void test_faults_are_seen(void **state)
{
    (void)state;
    static const int64_t right[3][2] = {{2, 32}, {4, 4}, {2, 1}};
    static const int64_t swapped[3][2] = {{4, 4}, {2, 32}, {2, 1}};
    static const int64_t wide[3][2] = {{2, 32}, {4, 5}, {2, 1}};
    pl_rank_set set = make_set(3, 3, right);
    assert_int_equal(count_faults(&set, 3, right), 0);
    assert_true(count_faults(&set, 4, right) > 0);
    set = make_set(3, 3, swapped);
    assert_true(count_faults(&set, 3, right) > 0);
    set = make_set(3, 3, wide);
    assert_true(count_faults(&set, 3, right) > 0);
    set = make_set(3, 2, right);
    assert_true(count_faults(&set, 3, right) > 0);
}

static void test_equal_sets_have_one_form(void **state)
{
    (void)state;
    static const int64_t run[][2] = {{24, 1}};
    static const int64_t pieces[][2] = {{1, 99}, {2, 12}, {3, 4}, {1, 77}, {4, 1}};
    static const int64_t gaps[][2] = {{2, 16}, {3, 4}, {4, 1}};
    pl_rank_set whole = make_set(5, 1, run), merged = make_set(5, 5, pieces);
    pl_rank_set other = make_set(5, 3, gaps), moved = make_set(6, 1, run);
    assert_int_equal(merged.axes, 1);
    assert_int_equal(other.axes, 2);
    assert_true(pl_rank_set_equal(&whole, &merged));
    assert_false(pl_rank_set_equal(&whole, &other));
    assert_false(pl_rank_set_equal(&whole, &moved));
    static const int64_t shorter[][2] = {{23, 1}};
    static const int64_t strided[][2] = {{24, 2}};
    pl_rank_set set = make_set(5, 1, shorter);
    assert_false(pl_rank_set_equal(&whole, &set));
    set = make_set(5, 1, strided);
    assert_false(pl_rank_set_equal(&whole, &set));
}

static void test_large_sets_cost_nothing(void **state)
{
    (void)state;
    static const int64_t axes[][2] = {{1 << 20, 1 << 11}, {1 << 10, 1}};
    pl_rank_set set = make_set(0, 2, axes);
    assert_int_equal(pl_rank_set_size(&set), 1 << 30);
    int64_t last = pl_rank_set_member(&set, (1 << 30) - 1);
    assert_int_equal(last, (INT64_C(1) << 31) - 1025);
    assert_int_equal(pl_rank_set_index(&set, last), (1 << 30) - 1);
    assert_int_equal(pl_rank_set_index(&set, last + 1), -1);
}

static void test_printing(void **state)
{
    (void)state;
    static const struct {
        int64_t base;
        int axes;
        int64_t axis[3][2];
        const char *text;
    } cases[] = {
        {7, 0, {{0}}, "{7}"},
        {0, 1, {{8, 1}}, "{0..7}"},
        {1, 1, {{2, 4}}, "{1,5}"},
        {1, 1, {{3, 4}}, "{1,5,9}"},
        {1, 1, {{16, 4}}, "{1..61:4}"},
        {2, 2, {{2, 8}, {2, 1}}, "{2,3,10,11}"},
        {0, 2, {{2, 16}, {4, 2}}, "{0,2,4,6,16,18,20,22}"},
        {0, 2, {{8, 16}, {4, 1}}, "{0,1,2,3,16,17,18,19,... 32 ranks}"},
    };
    pl_text text = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        pl_rank_set set = make_set(cases[i].base, cases[i].axes, cases[i].axis);
        pl_text_clear(&text);
        pl_rank_set_print(&text, &set);
        assert_string_equal(pl_text_string(&text), cases[i].text);
    }
    pl_text_free(&text);
}

/* Print with allocation number N failing. Returns whether that happened. */
static int print_without_memory(const pl_rank_set *set, int64_t n)
{
    pl_text text = {0};
    pl_allocation_fail_after(n);
    pl_rank_set_print(&text, set);
    pl_status status = pl_text_status(&text);
    int failed = pl_allocation_failed();
    pl_allocation_fail_after(-1);
    pl_text_free(&text);
    assert_int_equal(status, failed ? PL_NO_MEMORY : PL_OK);
    return failed;
}

static void test_printing_without_memory(void **state)
{
    (void)state;
    static const int64_t axes[][2] = {{8, 16}, {4, 1}};
    pl_rank_set set = make_set(0, 2, axes);
    int64_t n = 0;
    while (print_without_memory(&set, n)) ++n;
    assert_true(n > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_members_and_indices),
        cmocka_unit_test(test_faults_are_seen),
        cmocka_unit_test(test_equal_sets_have_one_form),
        cmocka_unit_test(test_large_sets_cost_nothing),
        cmocka_unit_test(test_printing),
        cmocka_unit_test(test_printing_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
