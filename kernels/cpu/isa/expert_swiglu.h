/* SwiGLU on numbers that are in the cache. */
#ifndef PL_KERNELS_CPU_ISA_EXPERT_SWIGLU_H
#define PL_KERNELS_CPU_ISA_EXPERT_SWIGLU_H

#include "kernels/cpu/vector.h"

/* Columns of gates and ups are rows of the experts: each has its factor (NULL: 1). */
static inline pl_floats pl_factor_part(const float *factors, int64_t part)
{
    return factors ? pl_load_part(factors, part) : pl_splat(1);
}

static inline void pl_activate_part(const float *gate, const float *up, const float *factors,
                                    float *act, int64_t part)
{
    pl_floats g = pl_load_part(gate, part), u = pl_load_part(up, part);
    pl_store_part(act, g * pl_sigmoid(g) * (u * pl_factor_part(factors, part)), part);
}

/* act = factor * silu(gate) * up. */
static inline void pl_activate(const float *gate, const float *up, const float *factors, float *act,
                               int64_t count)
{
    int64_t i = 0;
    for (; i + PL_LANES <= count; i += PL_LANES)
        pl_activate_part(gate + i, up + i, factors ? factors + i : NULL, act + i, PL_LANES);
    if (i < count)
        pl_activate_part(gate + i, up + i, factors ? factors + i : NULL, act + i, count - i);
}

/* What pl_differentiate reads and writes, columns of one row. */
typedef struct pl_swiglu_row {
    const float *gate, *up;
    const float *factors;         /* NULL: 1 each */
    float *products;              /* += dact * act; NULL: not wanted */
    float *dgate, *dup;           /* dgate holds dact and is replaced */
    float *dgate_copy, *dup_copy; /* NULL: none */
} pl_swiglu_row;

/* With d = factor * dact, silu(g) = g s and s = sigmoid(g), the gradients are d u (s + g s (1 - s))
 * and d g s. */
static inline void pl_differentiate_part(const pl_swiglu_row *r, int64_t i, int64_t part)
{
    pl_floats g = pl_load_part(r->gate + i, part), u = pl_load_part(r->up + i, part);
    pl_floats dact = pl_load_part(r->dgate + i, part), d = dact;
    if (r->factors) d *= pl_load_part(r->factors + i, part);
    pl_floats s = pl_sigmoid(g), silu = g * s;
    pl_floats dgate = d * u * (s + silu * (pl_splat(1) - s)), dup = d * silu;
    pl_store_part(r->dgate + i, dgate, part);
    pl_store_part(r->dup + i, dup, part);
    if (r->dgate_copy) pl_store_part(r->dgate_copy + i, dgate, part);
    if (r->dup_copy) pl_store_part(r->dup_copy + i, dup, part);
    if (!r->products) return;
    pl_floats sum = pl_load_part(r->products + i, part) + dact * silu * u;
    pl_store_part(r->products + i, sum, part);
}

static inline void pl_differentiate(const pl_swiglu_row *r, int64_t count)
{
    int64_t i = 0;
    for (; i + PL_LANES <= count; i += PL_LANES) pl_differentiate_part(r, i, PL_LANES);
    if (i < count) pl_differentiate_part(r, i, count - i);
}

#endif
