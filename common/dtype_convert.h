/* bf16 and fp16 to fp32 and back, for CPU code: IEEE 754-2019 §3.3 and §4.3.1 (round to nearest,
 * ties to even), bit arithmetic only, so that every machine and compiler gives the same bits.
 * Going up is exact. Going down, what is too large becomes an infinity, NaN stays NaN (quiet).
 */
#ifndef PL_COMMON_DTYPE_CONVERT_H
#define PL_COMMON_DTYPE_CONVERT_H

#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline float pl_float_from_bits(uint32_t bits)
{
    float value = 0;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t pl_float_to_bits(float value)
{
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float pl_bf16_to_float(uint16_t half)
{
    return pl_float_from_bits((uint32_t)half << 16);
}

static inline uint16_t pl_float_to_bf16(float value)
{
    uint32_t bits = pl_float_to_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

static inline float pl_fp16_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 31u, fraction = half & 1023u;
    if (exponent == 0) /* zero or subnormal: fraction * 2^-24, exactly */
        return pl_float_from_bits(sign | pl_float_to_bits((float)fraction * 0x1p-24f));
    if (exponent == 31) return pl_float_from_bits(sign | 0x7f800000u | (fraction << 13));
    return pl_float_from_bits(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

static inline uint16_t pl_float_to_fp16(float value)
{
    uint32_t bits = pl_float_to_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((size >> 13) & 0x1ffu));
    if (size >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and up round to infinity */
    if (size >= 0x38800000u) {                                  /* 2^-14 and up: normal */
        uint32_t rebased = size - 0x38000000u;
        return (uint16_t)(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13));
    }
    if (size < 0x33000000u) return (uint16_t)sign; /* below 2^-25: nearer to zero */
    uint32_t shift = 126u - (size >> 23), fraction = (size & 0x7fffffu) | 0x800000u;
    uint32_t kept = fraction >> shift, rest = fraction & ((1u << shift) - 1u);
    uint32_t tie = 1u << (shift - 1u);
    if (rest > tie || (rest == tie && (kept & 1u))) ++kept;
    return (uint16_t)(sign | kept);
}

#ifdef __cplusplus
}
#endif
#endif
