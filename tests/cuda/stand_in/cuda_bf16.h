/* The part of NVIDIA's <cuda_bf16.h> that pleat uses, for the stand-in. test_bf16 compares it with
 * the original where a CUDA toolkit is installed. */
#ifndef PL_TESTS_CUDA_STAND_IN_CUDA_BF16_H
#define PL_TESTS_CUDA_STAND_IN_CUDA_BF16_H

#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
    uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 value)
{
    uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
    float wide = 0;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

/* To nearest even; every NaN becomes the same one. */
inline __nv_bfloat16 __float2bfloat16_rn(float value)
{
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
    return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

#endif
