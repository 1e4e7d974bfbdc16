/* Which rows belong to which hosted expert, in the one order of `saved` and `dact`, and how they
 * are split into tasks.
 *
 * Position: the place of a row when rows stand by expert, within an expert by row of `in` (the
 * order in which sources, or tokens, come). An expert's block of `saved` (or `dact`) starts at
 * its first position times twice the width: gates [width, rows of the expert], then ups likewise.
 * So a row of `in` is a column there, which is what the products of all passes like.
 */
#ifndef PL_KERNELS_CPU_ISA_EXPERT_ROWS_H
#define PL_KERNELS_CPU_ISA_EXPERT_ROWS_H

#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"

/* Rows of one task at most, where a task goes over rows. */
enum { PL_EXPERT_TILE_ROWS = 384 };

/* Positions of one expert: one task. */
typedef struct pl_expert_tile {
    int64_t expert, begin, end;
} pl_expert_tile;

/* Lives in the device's workspace: until the next operation. */
typedef struct pl_expert_positions {
    const pl_expert_rows *given;
    int64_t count;                 /* positions: rows really computed */
    const int64_t *begin;          /* [experts + 1] */
    const int32_t *row;            /* [count] row of each position; NULL: the position itself */
    const int32_t *choice;         /* CHOSEN: [count] which of [tokens, chosen] it is for */
    const int32_t *of_choice;      /* CHOSEN: [tokens, chosen] positions; -1: not hosted here */
    const pl_expert_tile *tile;    /* the largest first, so that workers end together */
    int64_t tile_count, tile_rows; /* and rows of the largest */
    float *results;                /* CHOSEN: [count, result_cols] */
} pl_expert_positions;

/* Fill OUT for operation WHAT, whose shape has been checked; results get RESULT_COLS numbers a
 * position. Errors: PL_INTERNAL for rows that contradict each other, PL_NO_MEMORY. */
pl_status PL_ISA(pl_cpu_expert_positions)(pl_device *device, const char *what,
                                          const pl_expert_rows *given, int64_t result_cols,
                                          pl_expert_positions *out);

/* CHOSEN: out[t] = sum over its hosted choices j, in that order, of results; times weights[t, j]
 * with WEIGHTED. */
pl_status PL_ISA(pl_cpu_combine_results)(pl_device *device, const pl_expert_positions *p,
                                         bool weighted, float *out, int64_t cols);

/* Positions [begin, end) of FROM [rows, cols] as one block: where they stand, or copied to
 * SCRATCH. */
static inline const float *pl_gather_positions(const pl_expert_positions *p, const float *from,
                                               int64_t cols, int64_t begin, int64_t end,
                                               float *scratch)
{
    if (!p->row) return from + begin * cols;
    for (int64_t i = begin; i < end; ++i)
        memcpy(scratch + (i - begin) * cols, from + p->row[i] * cols, (size_t)cols * sizeof *from);
    return scratch;
}

/* Positions from BEGIN on from one block to their places in TO. */
static inline void pl_scatter_positions(const pl_expert_positions *p, int64_t begin, int64_t end,
                                        const float *block, float *to, int64_t cols)
{
    for (int64_t i = begin; i < end; ++i)
        memcpy(to + p->row[i] * cols, block + (i - begin) * cols, (size_t)cols * sizeof *to);
}

static inline int64_t pl_rows_of(const pl_expert_positions *p, int64_t expert)
{
    return p->begin[expert + 1] - p->begin[expert];
}

/* Gate W of the position POSITION of EXPERT, in `saved` or `dact`: the next position's is the next
 * number, gate W + 1 is pl_rows_of() further, and ups are that times WIDTH behind gates. */
static inline int64_t pl_gate_offset(const pl_expert_positions *p, int64_t expert, int64_t position,
                                     int64_t w, int64_t width)
{
    int64_t first = p->begin[expert];
    return 2 * first * width + w * pl_rows_of(p, expert) + (position - first);
}

/* What all operations on experts are given. */
typedef struct pl_expert_shape {
    const pl_expert_rows *rows;
    pl_dtype dtype;
    int64_t hidden, width;
} pl_expert_shape;

/* Check types and sizes of operation WHAT. Errors: PL_UNSUPPORTED, PL_INTERNAL. */
pl_status PL_ISA(pl_cpu_check_experts)(const pl_device *device, const char *what,
                                       const pl_expert_shape *shape);

enum { PL_EXPERT_TOUCHES = 3 };

/* What reading the routes touches: PL_EXPERT_TOUCHES entries of TOUCHES. */
void PL_ISA(pl_cpu_touch_expert_rows)(const pl_expert_rows *rows, bool weights, pl_touch *touches);

#endif
