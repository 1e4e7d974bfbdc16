/* Panels: how the experts' products see matrices.
 *
 * All are made of small products (small_product.h), c[m, n] (+)= a[m, k] b[k, n], whose operand b
 * is packed: its columns are split into panels of a few vectors, each contiguous, [k, stride] with
 * the columns padded to whole vectors. Operand a is read where it stands, single numbers at a
 * time, so that the experts' weights, which are read only once, need no copy: BLAS would pack both
 * operands anew in every call.
 */
#ifndef PL_KERNELS_CPU_ISA_EXPERT_PANELS_H
#define PL_KERNELS_CPU_ISA_EXPERT_PANELS_H

#include "common/memory.h"
#include "kernels/cpu/isa/expert_rows.h"
#include "kernels/cpu/isa/small_product.h"

/* Rows of c that are made between two looks at other things: a whole number of tiles. */
enum { PL_STEP_ROWS = PL_VECTOR_BYTES == 32 ? 12 : 8 };

/* Numbers of operand a that are used for all panels before the next ones. */
enum { PL_BLOCK_NUMBERS = 16384 };

typedef struct pl_panel {
    int64_t begin, count; /* columns; begin is a whole number of vectors */
    int64_t stride;       /* count, padded */
} pl_panel;

static inline int64_t pl_pad_lanes(int64_t count)
{
    return pl_divide_up(count, PL_LANES) * PL_LANES;
}

static inline int64_t pl_panel_count(int64_t columns)
{
    return pl_divide_up(columns, (int64_t)PL_TILE_VECTORS * PL_LANES);
}

/* Panel INDEX of COLUMNS columns; widths differ by one vector at most. */
static inline pl_panel pl_panel_at(int64_t columns, int64_t index)
{
    int64_t panels = pl_panel_count(columns), vectors = pl_divide_up(columns, PL_LANES);
    int64_t each = vectors / panels, more = vectors % panels;
    int64_t begin = (index * each + (index < more ? index : more)) * PL_LANES;
    int64_t stride = (each + (index < more)) * PL_LANES;
    return (pl_panel){begin, columns - begin < stride ? columns - begin : stride, stride};
}

/* Where panel P of a packed operand of K rows starts. */
static inline int64_t pl_panel_offset(pl_panel p, int64_t k) { return p.begin * k; }

/* Rows of operand a of K numbers each that make a block: whole steps. */
static inline int64_t pl_block_rows(int64_t k)
{
    int64_t steps = PL_BLOCK_NUMBERS / k / PL_STEP_ROWS;
    return (steps > 1 ? steps : 1) * PL_STEP_ROWS;
}

/* Positions of the tile's panel of FROM [rows, cols], as columns: to[cols, stride]. GATHERED has
 * room for the panel's rows, where they do not stand together. */
static inline void pl_pack_columns(const pl_expert_positions *p, pl_expert_tile tile,
                                   pl_panel panel, const float *from, int64_t cols, float *gathered,
                                   float *to)
{
    int64_t begin = tile.begin + panel.begin;
    const float *rows = pl_gather_positions(p, from, cols, begin, begin + panel.count, gathered);
    pl_transpose(rows, cols, panel.count, cols, 1, to, panel.stride);
}

/* COUNT numbers, where whole vectors of both may be touched up to PADDED. */
static inline void pl_copy_padded(float *to, const float *from, int64_t count)
{
    int64_t i = 0;
    for (; i + PL_LANES <= count; i += PL_LANES) pl_store(to + i, pl_load(from + i));
    if (i < count) pl_store(to + i, pl_load_part(from + i, count - i));
}

/* Row K_ROW of an operand of K rows, into all of its panels. */
static inline void pl_pack_row(const float *row, int64_t columns, int64_t k_row, int64_t k,
                               float *to)
{
    for (int64_t i = 0, panels = pl_panel_count(columns); i < panels; ++i) {
        pl_panel panel = pl_panel_at(columns, i);
        pl_copy_padded(to + pl_panel_offset(panel, k) + k_row * panel.stride, row + panel.begin,
                       panel.count);
    }
}

/* Bring COUNT numbers of each of ROWS rows into the second-level cache, for reading or writing
 * soon: products leave the memory idle, and what waits for it afterwards takes longer. */
static inline void pl_fetch_rows(const float *at, int64_t rows, int64_t stride, int64_t count)
{
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(at + r * stride + i, 0, 2);
}

#endif
