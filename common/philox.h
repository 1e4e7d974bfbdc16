/* Philox4x32-10: a counter-based random generator.
 *
 * Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A
 * block is a pure function of counter and key, so any element of any tensor can be made anywhere.
 */
#ifndef PL_COMMON_PHILOX_H
#define PL_COMMON_PHILOX_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_philox_block {
    uint32_t word[4];
} pl_philox_block;

/* The block of COUNTER (four words, least significant first) under KEY (two words). Pure. */
pl_philox_block pl_philox(const uint32_t counter[4], const uint32_t key[2]);

#ifdef __cplusplus
}
#endif
#endif
