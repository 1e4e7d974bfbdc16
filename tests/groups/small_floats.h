/* bf16 and fp16 by arithmetic on doubles, not on bits: what the tests compare conversions with. */
#ifndef PL_TESTS_GROUPS_SMALL_FLOATS_H
#define PL_TESTS_GROUPS_SMALL_FLOATS_H

#include <math.h>
#include <stdint.h>

enum { BF16_FRACTION = 7, BF16_EXPONENT = 8, FP16_FRACTION = 10, FP16_EXPONENT = 5 };

/* VALUE, not NaN, rounded to nearest even in a format of that many bits. */
static inline uint16_t encode_small_float(double value, int fraction_bits, int exponent_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1;
    unsigned sign = signbit(value) ? 0x8000u : 0, infinity = (unsigned)(2 * bias + 1);
    double size = fabs(value);
    if (size == 0) return (uint16_t)sign;
    if (isinf(size)) return (uint16_t)(sign | infinity << fraction_bits);
    int exponent = ilogb(size) < 1 - bias ? 1 - bias : ilogb(size);
    unsigned units = (unsigned)rint(ldexp(size, fraction_bits - exponent));
    if (units >> (fraction_bits + 1)) {
        units >>= 1;
        ++exponent;
    }
    if (exponent > bias) return (uint16_t)(sign | infinity << fraction_bits);
    if (units >> fraction_bits == 0) return (uint16_t)(sign | units);
    unsigned below = units - (1u << fraction_bits);
    return (uint16_t)(sign | (unsigned)(exponent + bias) << fraction_bits | below);
}

/* The value of BITS; NAN for any NaN. */
static inline double decode_small_float(uint16_t bits, int fraction_bits, int exponent_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    int fraction = bits & ((1 << fraction_bits) - 1);
    double size = 0;
    if (exponent == 2 * bias + 1)
        size = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        size = ldexp(fraction, 1 - bias - fraction_bits);
    else
        size = ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
    return bits & 0x8000 ? -size : size;
}

#endif
