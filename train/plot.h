/* Curves drawn in plain characters. */
#ifndef PL_TRAIN_PLOT_H
#define PL_TRAIN_PLOT_H

#include <stdint.h>

#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_plot_point {
    double x, y;
} pl_plot_point;

typedef struct pl_plot_series {
    const pl_plot_point *points; /* by rising x; what is not finite is left out */
    int64_t count;
    char mark;   /* what a point is drawn as */
    bool joined; /* columns without a point of their own are filled in between */
    const char *name;
} pl_plot_series;

enum { PL_PLOT_WIDTH = 72, PL_PLOT_HEIGHT = 12 };

/* Add lines of at most PL_PLOT_WIDTH characters: PL_PLOT_HEIGHT rows between the smallest and the
 * largest value, the x axis, its ends and X_NAME. A column shows the mean of the points that fall
 * into it; later series cover earlier ones. The y axis is logarithmic when the largest value is
 * above 20 times the smallest and that is above 0, as is then said. Nothing is added when no point
 * is finite. */
void pl_plot_draw(pl_text *text, const pl_plot_series *series, int count, const char *x_name);

#ifdef __cplusplus
}
#endif
#endif
