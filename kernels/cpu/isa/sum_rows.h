/* Sums of a few rows that lie anywhere: what a token gets back from its experts. */
#ifndef PL_KERNELS_CPU_ISA_SUM_ROWS_H
#define PL_KERNELS_CPU_ISA_SUM_ROWS_H

#include "kernels/cpu/vector.h"

typedef struct pl_row_sum {
    const float *from;
    const int32_t *rows;  /* [count]; negative ones are left out */
    const float *weights; /* [count]; NULL: 1 each */
    const float *addend;  /* [cols]; NULL: none */
    int64_t count, cols;
} pl_row_sum;

/* PART <= PL_LANES columns from I on. */
static inline void pl_sum_columns(const pl_row_sum *s, float *to, int64_t i, int64_t part)
{
    pl_floats sum = pl_splat(0);
    for (int64_t j = 0; j < s->count; ++j) {
        if (s->rows[j] < 0) continue;
        pl_floats x = pl_load_part(s->from + s->rows[j] * s->cols + i, part);
        sum += s->weights ? pl_splat(s->weights[j]) * x : x;
    }
    if (s->addend) sum = pl_load_part(s->addend + i, part) + sum;
    pl_store_part(to + i, sum, part);
}

/* to[cols] = addend + sum over j, in that order, of weights[j] * from[rows[j]]. */
static inline void pl_sum_rows(const pl_row_sum *s, float *to)
{
    int64_t whole = s->cols - s->cols % PL_LANES;
    for (int64_t i = 0; i < whole; i += PL_LANES) pl_sum_columns(s, to, i, PL_LANES);
    if (whole < s->cols) pl_sum_columns(s, to, whole, s->cols - whole);
}

#endif
