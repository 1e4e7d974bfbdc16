/* How tokens are split into tasks: blocks of a fixed size that never reach over the end of a set
 * (a part of the tokens that is counted by itself). The split depends on the numbers alone.
 */
#ifndef PL_KERNELS_CPU_ISA_TOKEN_BLOCKS_H
#define PL_KERNELS_CPU_ISA_TOKEN_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/memory.h"

enum { PL_BLOCK_TOKENS = 64 };

/* Chosen scores that sum up to less make no weights. */
#define PL_LEAST_SCORE_SUM 1e-30f

typedef struct pl_token_blocks {
    int64_t set_tokens; /* tokens of one set */
    int64_t of_set;     /* blocks of one set */
    int64_t count;
} pl_token_blocks;

typedef struct pl_token_range {
    int64_t begin, end;
    int64_t set;
} pl_token_range;

/* SETS >= 1 divides TOKENS. */
static inline pl_token_blocks pl_token_blocks_make(int64_t tokens, int64_t sets)
{
    pl_token_blocks blocks = {.set_tokens = tokens / sets};
    blocks.of_set = pl_divide_up(blocks.set_tokens, PL_BLOCK_TOKENS);
    blocks.count = blocks.of_set * sets;
    return blocks;
}

static inline pl_token_range pl_token_block(const pl_token_blocks *blocks, int64_t index)
{
    int64_t set = index / blocks->of_set, end = (set + 1) * blocks->set_tokens;
    int64_t begin = set * blocks->set_tokens + index % blocks->of_set * PL_BLOCK_TOKENS;
    return (pl_token_range){begin, end < begin + PL_BLOCK_TOKENS ? end : begin + PL_BLOCK_TOKENS,
                            set};
}

/* Whether the COUNT numbers are all in 0 .. LIMIT-1: what they point to is then there. */
static inline bool pl_all_below(const int32_t *numbers, int64_t count, int64_t limit)
{
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; ++i)
        largest = (uint32_t)numbers[i] > largest ? (uint32_t)numbers[i] : largest;
    return count == 0 || largest < limit;
}

#endif
