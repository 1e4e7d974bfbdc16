#include "train/plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LABEL = 9, COLUMNS = PL_PLOT_WIDTH - LABEL - 1, ROWS = PL_PLOT_HEIGHT };

/* The window that is drawn; y after taking logarithms, if so. */
typedef struct frame {
    double left, right, bottom, top;
    bool logarithmic;
    char cell[ROWS][COLUMNS + 1];
} frame;

static bool is_drawn(const pl_plot_point *point)
{
    return isfinite(point->x) && isfinite(point->y);
}

static bool find_ends(frame *f, const pl_plot_series *series, int count)
{
    bool any = false;
    for (int s = 0; s < count; ++s)
        for (int64_t i = 0; i < series[s].count; ++i) {
            const pl_plot_point *p = &series[s].points[i];
            if (!is_drawn(p)) continue;
            f->left = any ? fmin(f->left, p->x) : p->x;
            f->right = any ? fmax(f->right, p->x) : p->x;
            f->bottom = any ? fmin(f->bottom, p->y) : p->y;
            f->top = any ? fmax(f->top, p->y) : p->y;
            any = true;
        }
    f->logarithmic = f->bottom > 0 && f->top > 20 * f->bottom;
    return any;
}

static double height(const frame *f, double y) { return f->logarithmic ? log(y) : y; }

static int column_of(const frame *f, double x)
{
    double span = f->right - f->left;
    return span > 0 ? (int)((x - f->left) / span * (COLUMNS - 1) + 0.5) : 0;
}

/* Row 0 is the top one. */
static int row_of(const frame *f, double y)
{
    double span = height(f, f->top) - height(f, f->bottom);
    double down = span > 0 ? (height(f, f->top) - height(f, y)) / span : 0.5;
    return (int)(down * (ROWS - 1) + 0.5);
}

/* Columns between two that have a value are filled by the straight line. */
static void join(double *value)
{
    int last = -1;
    for (int c = 0; c < COLUMNS; ++c) {
        if (isnan(value[c])) continue;
        for (int between = last + 1; last >= 0 && between < c; ++between)
            value[between] = value[last] + (value[c] - value[last]) * (between - last) / (c - last);
        last = c;
    }
}

static void draw_series(frame *f, const pl_plot_series *series)
{
    double sum[COLUMNS] = {0}, value[COLUMNS];
    int64_t points[COLUMNS] = {0};
    for (int64_t i = 0; i < series->count; ++i) {
        const pl_plot_point *p = &series->points[i];
        if (!is_drawn(p)) continue;
        int column = column_of(f, p->x);
        sum[column] += p->y;
        ++points[column];
    }
    for (int c = 0; c < COLUMNS; ++c) value[c] = points[c] ? sum[c] / (double)points[c] : NAN;
    if (series->joined) join(value);
    for (int c = 0; c < COLUMNS; ++c)
        if (!isnan(value[c])) f->cell[row_of(f, value[c])][c] = series->mark;
}

/* The value that row R stands for. */
static double value_of(const frame *f, int row)
{
    double top = height(f, f->top), bottom = height(f, f->bottom);
    double y = top - (top - bottom) * row / (ROWS - 1);
    return f->logarithmic ? exp(y) : y;
}

static void add_axis(pl_text *text, const frame *f, const char *x_name)
{
    char line[COLUMNS + 1], left[32], right[96];
    memset(line, '-', COLUMNS);
    line[COLUMNS] = '\0';
    pl_text_add(text, "%*s+%s\n", LABEL, "", line);
    snprintf(left, sizeof left, "%.6g", f->left);
    snprintf(right, sizeof right, "%s%.6g", x_name, f->right);
    int gap = COLUMNS - (int)strlen(left) - (int)strlen(right);
    pl_text_add(text, "%*s%s%*s%s\n", LABEL + 1, "", left, gap > 1 ? gap : 1, "", right);
}

static void add_legend(pl_text *text, const frame *f, const pl_plot_series *series, int count)
{
    pl_text_add(text, "%*s", LABEL + 1, "");
    for (int s = 0; s < count; ++s)
        pl_text_add(text, "%s%c %s", s ? "   " : "", series[s].mark, series[s].name);
    pl_text_add_string(text, f->logarithmic ? "   (logarithmic)\n" : "\n");
}

void pl_plot_draw(pl_text *text, const pl_plot_series *series, int count, const char *x_name)
{
    frame f;
    memset(&f, 0, sizeof f);
    if (!find_ends(&f, series, count)) return;
    for (int r = 0; r < ROWS; ++r) memset(f.cell[r], ' ', COLUMNS);
    for (int s = 0; s < count; ++s) draw_series(&f, &series[s]);
    bool flat = !(f.top > f.bottom);
    for (int r = 0; r < ROWS; ++r) {
        int length = COLUMNS;
        while (length > 0 && f.cell[r][length - 1] == ' ') --length;
        char label[32] = "";
        bool labelled = flat ? r == row_of(&f, f.top) : r % 3 == 0 || r == ROWS - 1;
        if (labelled) snprintf(label, sizeof label, "%.4g", flat ? f.top : value_of(&f, r));
        pl_text_add(text, "%*s |%.*s\n", LABEL - 1, label, length, f.cell[r]);
    }
    add_axis(text, &f, x_name);
    add_legend(text, &f, series, count);
}
