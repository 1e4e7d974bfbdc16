/* SwiGLU on tiles that are in the cache. */
#ifndef PL_KERNELS_CPU_ISA_EXPERT_SWIGLU_H
#define PL_KERNELS_CPU_ISA_EXPERT_SWIGLU_H

#include "kernels/cpu/vector.h"

static inline void pl_activate_columns(const float *gate, const float *up, float factor, float *act,
                                       int64_t part)
{
    pl_floats g = pl_load_part(gate, part), u = pl_load_part(up, part);
    pl_store_part(act, g * pl_sigmoid(g) * (u * pl_splat(factor)), part);
}

/* act = factor * silu(gate) * up; act may be gate. */
static inline void pl_activate(const float *gate, const float *up, float factor, float *act,
                               int64_t count)
{
    int64_t whole = count - count % PL_LANES, i = 0;
    for (; i < whole; i += PL_LANES)
        pl_activate_columns(gate + i, up + i, factor, act + i, PL_LANES);
    if (i < count) pl_activate_columns(gate + i, up + i, factor, act + i, count - i);
}

/* Gradients through it: with d = factor * dact, silu(g) = g s and s = sigmoid(g), those are
 * d u (s + g s (1 - s)) and d g s. Returns dact * silu(gate) * up. */
static inline pl_floats pl_differentiate_columns(const float *gate, const float *up, float factor,
                                                 float *dgate, float *dup, int64_t part)
{
    pl_floats g = pl_load_part(gate, part), u = pl_load_part(up, part);
    pl_floats dact = pl_load_part(dgate, part), d = dact * pl_splat(factor);
    pl_floats s = pl_sigmoid(g), silu = g * s;
    pl_store_part(dgate, d * u * (s + silu * (pl_splat(1) - s)), part);
    pl_store_part(dup, d * silu, part);
    return dact * silu * u;
}

/* DGATE holds dact and is replaced. Returns the sum of dact * silu(gate) * up. */
static inline float pl_differentiate(const float *gate, const float *up, float factor, float *dgate,
                                     float *dup, int64_t count)
{
    int64_t whole = count - count % PL_LANES, i = 0;
    pl_floats sum = pl_splat(0);
    for (; i < whole; i += PL_LANES)
        sum += pl_differentiate_columns(gate + i, up + i, factor, dgate + i, dup + i, PL_LANES);
    if (i < count)
        sum += pl_differentiate_columns(gate + i, up + i, factor, dgate + i, dup + i, count - i);
    return pl_lane_sum(sum);
}

#endif
