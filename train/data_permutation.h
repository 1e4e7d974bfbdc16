/* The order of samples: a permutation of 0 .. count-1 for every seed and epoch, of which any place
 * can be asked without the others and nothing is kept.
 *
 * A balanced Feistel network over the smallest power of 4 that is at least count: a number is two
 * halves L, R of h bits each, and a round makes them R, L xor F(R). F is the first word, cut to h
 * bits, of the Philox4x32-10 block of
 *
 *     counter  R; the number of the round, from 0; the epoch's two words, low first
 *     key      the seed's two words, low first
 *
 * Twelve rounds; a result that is not below count goes through the network again until it is
 * (cycle walking), four times at most on average. Each step can be undone, so no two numbers have
 * the same result.
 *
 * Sources: Luby and Rackoff, "How to construct pseudorandom permutations from pseudorandom
 * functions", 1988 (the network); Black and Rogaway, "Ciphers with arbitrary finite domains", 2002
 * (cycle walking).
 */
#ifndef PL_TRAIN_DATA_PERMUTATION_H
#define PL_TRAIN_DATA_PERMUTATION_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A plain value; nothing to free. */
typedef struct pl_permutation {
    uint64_t count;
    uint64_t seed, epoch;
    int half_bits; /* h */
} pl_permutation;

/* The permutation of 0 .. COUNT-1, 1 <= COUNT <= 2^62, that SEED gives for EPOCH. */
pl_permutation pl_permutation_make(int64_t count, uint64_t seed, uint64_t epoch);

/* Where INDEX, 0 <= INDEX < count, goes. Pure. */
int64_t pl_permutation_at(const pl_permutation *permutation, int64_t index);

#ifdef __cplusplus
}
#endif
#endif
