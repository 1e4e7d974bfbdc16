/* Floats by the vector: compiler vectors of the width that the instruction set has. PL_LANES is 4,
 * 8 or 16: wider ones than the machine's are slow with GCC. For files compiled through
 * kernels/cpu/isa.h; everything here is static. Sums inside a vector run in one fixed order.
 */
#ifndef PL_KERNELS_CPU_VECTOR_H
#define PL_KERNELS_CPU_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined __SSE2__
#include <immintrin.h>
#endif

#if defined __AVX512F__
#define PL_VECTOR_BYTES 64
#elif defined __AVX__
#define PL_VECTOR_BYTES 32
#else
#define PL_VECTOR_BYTES 16
#endif

enum { PL_LANES = PL_VECTOR_BYTES / 4 };

typedef float pl_floats __attribute__((vector_size(PL_VECTOR_BYTES)));
typedef int32_t pl_integers __attribute__((vector_size(PL_VECTOR_BYTES)));
typedef double pl_doubles __attribute__((vector_size(PL_VECTOR_BYTES))); /* half as many lanes */

static inline pl_floats pl_splat(float x) { return x - (pl_floats){0}; }

static inline pl_floats pl_load(const float *from)
{
    pl_floats v;
    memcpy(&v, from, sizeof v);
    return v;
}

static inline void pl_store(float *to, pl_floats v) { memcpy(to, &v, sizeof v); }

#if defined __AVX__ && !defined __AVX512F__
static inline __m256i pl_part_mask(int64_t count)
{
    const pl_integers lane = {0, 1, 2, 3, 4, 5, 6, 7};
    return (__m256i)(lane < (int32_t)count);
}
#endif

/* The first COUNT <= PL_LANES floats, the other lanes 0; and only those back. */
static inline pl_floats pl_load_part(const float *from, int64_t count)
{
#if defined __AVX512F__
    return (pl_floats)_mm512_maskz_loadu_ps((__mmask16)((1U << count) - 1), from);
#elif defined __AVX__
    return (pl_floats)_mm256_maskload_ps(from, pl_part_mask(count));
#else
    pl_floats v = pl_splat(0);
    memcpy(&v, from, (size_t)count * sizeof *from);
    return v;
#endif
}

static inline void pl_store_part(float *to, pl_floats v, int64_t count)
{
#if defined __AVX512F__
    _mm512_mask_storeu_ps(to, (__mmask16)((1U << count) - 1), (__m512)v);
#elif defined __AVX__
    _mm256_maskstore_ps(to, pl_part_mask(count), (__m256)v);
#else
    memcpy(to, &v, (size_t)count * sizeof *to);
#endif
}

/* Lanes by halves: of eight ((0+4)+(2+6)) + ((1+5)+(3+7)). */
static inline float pl_lane_sum(pl_floats v)
{
#if defined __SSE2__
#if defined __AVX512F__
    __m256 eight =
        _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
#elif defined __AVX__
    __m256 eight = (__m256)v;
#endif
#if defined __AVX__
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
#else
    __m128 four = (__m128)v;
#endif
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
    float a[PL_LANES];
    memcpy(a, &v, sizeof a);
    for (int width = PL_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) a[i] += a[i + width];
    return a[0];
#endif
}

/* Of equal ones and NaN as pl_larger has it. */
static inline float pl_lane_max(pl_floats v)
{
#if defined __SSE2__
#if defined __AVX512F__
    __m256 eight =
        _mm256_max_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
#elif defined __AVX__
    __m256 eight = (__m256)v;
#endif
#if defined __AVX__
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
#else
    __m128 four = (__m128)v;
#endif
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
    float a[PL_LANES];
    memcpy(a, &v, sizeof a);
    for (int width = PL_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) a[i] = a[i] > a[i + width] ? a[i] : a[i + width];
    return a[0];
#endif
}

/* By lanes: MASK is all ones or zeroes a lane, as comparisons give it. */
static inline pl_floats pl_choose(pl_integers mask, pl_floats yes, pl_floats no)
{
    pl_integers y, n;
    pl_floats v;
    memcpy(&y, &yes, sizeof y);
    memcpy(&n, &no, sizeof n);
    y = (y & mask) | (n & ~mask);
    memcpy(&v, &y, sizeof v);
    return v;
}

/* By lanes: a > b ? a : b, so b where one is NaN. */
static inline pl_floats pl_larger(pl_floats a, pl_floats b)
{
#if defined __AVX512F__
    return (pl_floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined __AVX__
    return (pl_floats)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined __SSE2__
    return (pl_floats)_mm_max_ps((__m128)a, (__m128)b);
#else
    return pl_choose(a > b, a, b);
#endif
}

/* By lanes: a < b ? a : b, so b where one is NaN. */
static inline pl_floats pl_smaller(pl_floats a, pl_floats b)
{
#if defined __AVX512F__
    return (pl_floats)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined __AVX__
    return (pl_floats)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined __SSE2__
    return (pl_floats)_mm_min_ps((__m128)a, (__m128)b);
#else
    return pl_choose(a < b, a, b);
#endif
}

/* exp(x), within two units in the last place for normal results; 0 below -87.7, infinite above
 * 88.4, NaN for NaN. x = n ln 2 + r; 2^n is put together from its bits, and its exponent runs out
 * to 0 or infinity by itself one step beyond the ends. The polynomial in r was fitted by exchange
 * of extrema to the relative error, with the first two coefficients held at 1. */
static inline pl_floats pl_exp(pl_floats x)
{
    typedef uint32_t bits __attribute__((vector_size(PL_VECTOR_BYTES)));
    const pl_floats shift = pl_splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    pl_floats bounded = pl_smaller(pl_splat(88.7f), pl_larger(pl_splat(-88.0f), x));
    pl_floats shifted = bounded * pl_splat(1.44269504f) + shift;
    pl_floats n = shifted - shift;
    pl_floats r = bounded - n * pl_splat(0.693359375f) + n * pl_splat(2.12194440e-4f);
    pl_floats p = pl_splat(1.3814568520e-3f);
    p = p * r + pl_splat(8.3687305450e-3f);
    p = p * r + pl_splat(4.1668388993e-2f);
    p = p * r + pl_splat(1.6666521132e-1f);
    p = p * r + pl_splat(4.9999994040e-1f);
    p = p * r + pl_splat(1.0f);
    p = p * r + pl_splat(1.0f);
    bits exponent;
    memcpy(&exponent, &shifted, sizeof exponent);
    exponent = (exponent << 23) + (127U << 23);
    pl_floats power;
    memcpy(&power, &exponent, sizeof power);
    return p * power;
}

/* 1 / (1 + exp(-x)). */
static inline pl_floats pl_sigmoid(pl_floats x)
{
    pl_floats y = pl_splat(1.0f) + pl_exp(-x);
#if defined __AVX512F__
    /* Long vectors divide slowly: an estimate (0 of infinity) and one step of Newton's. */
    pl_floats r = (pl_floats)_mm512_rcp14_ps((__m512)y);
    return r * (pl_splat(2.0f) - pl_smaller(pl_splat(3.4028235e38f), y) * r);
#else
    return pl_splat(1.0f) / y;
#endif
}

#endif
