/* Compiled once for each cuda_bf16.h: with BF16_NVIDIA for NVIDIA's, without for the stand-in. */
#include "tests/cuda/bf16.h"

#include <cstring>
#include <cuda_bf16.h>

#ifdef BF16_NVIDIA
#define BF16_OF(name) nvidia_##name
#else
#define BF16_OF(name) stand_in_##name
#endif

uint16_t BF16_OF(to_bf16)(float value)
{
    __nv_bfloat16 half = __float2bfloat16_rn(value);
    uint16_t bits = 0;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}

float BF16_OF(from_bf16)(uint16_t bits)
{
    __nv_bfloat16 half;
    memcpy(&half, &bits, sizeof bits);
    return __bfloat162float(half);
}
