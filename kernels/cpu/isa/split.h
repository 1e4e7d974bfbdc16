/* How the operations split their work. Blocks depend on sizes alone, never on the number of
 * workers, so that results do not either. Everything here is static.
 */
#ifndef PL_KERNELS_CPU_ISA_SPLIT_H
#define PL_KERNELS_CPU_ISA_SPLIT_H

#include <stdint.h>

#include "common/memory.h"

/* Elements of a block of elementwise work, and of columns where columns are split. */
enum { PL_BLOCK = 32768, PL_COLUMN_BLOCK = 64 };

/* How many elements block INDEX of COUNT elements has. */
static inline int64_t pl_block_length(int64_t index, int64_t block, int64_t count)
{
    int64_t left = count - index * block;
    return left < block ? left : block;
}

/* Rows of a block of rows of COLS elements each. */
static inline int64_t pl_row_block(int64_t cols)
{
    int64_t rows = cols > 0 ? PL_BLOCK / cols : PL_BLOCK;
    return rows > 0 ? rows : 1;
}

/* Rows of a block whose sum over rows is a partial one: no more than 256 blocks in all. */
static inline int64_t pl_sum_block(int64_t rows, int64_t cols)
{
    int64_t block = pl_row_block(cols), least = pl_divide_up(rows, 256);
    return block > least ? block : least;
}

#endif
