/* Curves in plain characters. */
#include <math.h>
#include <stdlib.h>

#include "common/memory.h"
#include "tests/test.h"
#include "train/plot.h"

static char *draw(const pl_plot_series *series, int count)
{
    pl_text text = {0};
    pl_plot_draw(&text, series, count, "step ");
    assert_ok(pl_text_status(&text));
    char *copy = strdup(pl_text_string(&text));
    pl_text_free(&text);
    for (const char *line = copy; *line;) {
        size_t length = strcspn(line, "\n");
        assert_in_range(length, 0, PL_PLOT_WIDTH);
        line += length + 1;
    }
    return copy;
}

static void a_falling_line_is_drawn_from_corner_to_corner(void **state)
{
    (void)state;
    pl_plot_point points[4] = {{1, 5}, {2, 4}, {3, 3}, {4, 1}};
    pl_plot_series series = {points, 4, '*', true, "loss"};
    char *text = draw(&series, 1);
    assert_memory_equal(text, "       5 |*", 11);
    assert_non_null(strstr(text, "   3.909 |"));
    assert_non_null(strstr(text, "       1 |"));
    assert_non_null(strstr(text, "\n         +----"));
    assert_non_null(strstr(text, "\n          1      "));
    assert_non_null(strstr(text, " step 4\n"));
    assert_non_null(strstr(text, "* loss\n"));
    assert_null(strstr(text, "logarithmic"));
    int rows = 0, marks = 0;
    for (const char *c = text; *c; ++c) {
        rows += *c == '\n';
        marks += *c == '*';
    }
    assert_int_equal(rows, PL_PLOT_HEIGHT + 3);
    assert_int_equal(marks, 62 + 1); /* every column, and the legend */
    free(text);
}

/* Columns show means: a value that alternates is one flat row in the middle. */
static void many_points_share_columns(void **state)
{
    (void)state;
    enum { POINTS = 6200 };
    pl_plot_point *points = malloc(POINTS * sizeof *points);
    for (int i = 0; i < POINTS; ++i) points[i] = (pl_plot_point){i, i % 2 ? 3 : 1};
    pl_plot_series series = {points, POINTS, '*', true, "loss"};
    char *text = draw(&series, 1);
    int rows = 0;
    for (const char *line = strchr(text, '|'); line; line = strchr(line + 1, '|'))
        rows += line[1] == '*' || line[1] == ' ';
    assert_in_range(rows, 1, 2);
    free(text);
    free(points);
}

static void a_second_series_stands_above_the_first(void **state)
{
    (void)state;
    pl_plot_point a[] = {{0, 2}, {10, 2}}, b[] = {{5, 2}, {10, 4}};
    pl_plot_series series[] = {{a, 2, '*', true, "loss"}, {b, 2, 'o', false, "validation"}};
    char *text = draw(series, 2);
    assert_non_null(strstr(text, "*o*"));
    assert_non_null(strstr(text, "* loss   o validation\n"));
    free(text);
}

static void wide_ranges_are_drawn_by_their_logarithms(void **state)
{
    (void)state;
    pl_plot_point points[] = {{0, 1000}, {1, 100}, {2, 10}, {3, 1}};
    pl_plot_series series = {points, 4, '*', false, "loss"};
    char *text = draw(&series, 1);
    assert_non_null(strstr(text, "(logarithmic)"));
    assert_non_null(strstr(text, "    1000 |*"));
    assert_non_null(strstr(text, "     152 |")); /* 1000^(8/11) */
    assert_non_null(strstr(text, "       1 |"));
    free(text);
    points[3].y = 0; /* no logarithm */
    text = draw(&series, 1);
    assert_null(strstr(text, "(logarithmic)"));
    free(text);
}

static void what_is_not_finite_is_left_out(void **state)
{
    (void)state;
    pl_plot_point points[] = {{1, NAN}, {2, 3}, {3, INFINITY}, {4, -INFINITY}};
    pl_plot_series series = {points, 4, '*', true, "loss"};
    char *text = draw(&series, 1);
    assert_non_null(strstr(text, "       3 |*\n"));
    free(text);
    series.count = 1;
    text = draw(&series, 1);
    assert_string_equal(text, "");
    free(text);
    series.count = 0;
    text = draw(&series, 1);
    assert_string_equal(text, "");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_falling_line_is_drawn_from_corner_to_corner),
        cmocka_unit_test(many_points_share_columns),
        cmocka_unit_test(a_second_series_stands_above_the_first),
        cmocka_unit_test(wide_ranges_are_drawn_by_their_logarithms),
        cmocka_unit_test(what_is_not_finite_is_left_out),
    };
    return cmocka_run_group_tests_name("plot", tests, NULL, NULL);
}
