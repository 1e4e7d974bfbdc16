#include "common/philox.h"

enum { ROUNDS = 10 };

/* Multipliers and key increments of the paper's table 2 and section 4. */
static const uint32_t multiplier[2] = {0xD2511F53, 0xCD9E8D57};
static const uint32_t increment[2] = {0x9E3779B9, 0xBB67AE85};

pl_philox_block pl_philox(const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t x0 = counter[0], x1 = counter[1], x2 = counter[2], x3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < ROUNDS; ++round) {
        uint64_t a = (uint64_t)multiplier[0] * x0;
        uint64_t b = (uint64_t)multiplier[1] * x2;
        x0 = (uint32_t)(b >> 32) ^ x1 ^ k0;
        x1 = (uint32_t)b;
        x2 = (uint32_t)(a >> 32) ^ x3 ^ k1;
        x3 = (uint32_t)a;
        k0 += increment[0];
        k1 += increment[1];
    }
    return (pl_philox_block){{x0, x1, x2, x3}};
}
