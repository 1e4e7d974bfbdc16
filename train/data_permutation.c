#include "train/data_permutation.h"

#include "common/philox.h"

enum { ROUNDS = 12 };

pl_permutation pl_permutation_make(int64_t count, uint64_t seed, uint64_t epoch)
{
    pl_permutation made = {.count = (uint64_t)count, .seed = seed, .epoch = epoch};
    while (made.half_bits < 31 && UINT64_C(1) << (2 * made.half_bits) < made.count)
        ++made.half_bits;
    return made;
}

/* Once through the network. */
static uint64_t pass(const pl_permutation *p, uint64_t number)
{
    const uint32_t key[2] = {(uint32_t)p->seed, (uint32_t)(p->seed >> 32)};
    const uint32_t mask = (UINT32_C(1) << p->half_bits) - 1;
    uint32_t left = (uint32_t)(number >> p->half_bits) & mask, right = (uint32_t)number & mask;
    for (uint32_t round = 0; round < ROUNDS; ++round) {
        const uint32_t counter[4] = {right, round, (uint32_t)p->epoch, (uint32_t)(p->epoch >> 32)};
        uint32_t mixed = left ^ (pl_philox(counter, key).word[0] & mask);
        left = right;
        right = mixed;
    }
    return (uint64_t)left << p->half_bits | right;
}

int64_t pl_permutation_at(const pl_permutation *permutation, int64_t index)
{
    uint64_t number = (uint64_t)index;
    do number = pass(permutation, number);
    while (number >= permutation->count);
    return (int64_t)number;
}
