/* Products of small matrices that lie in larger ones, and transposes, for one worker.
 *
 * c[m, n] (+)= a[m, k] b[k, n] is made in tiles that stay in registers: for each step of k a few
 * vectors of b are loaded and multiplied with single elements of a. So b and c have whole rows,
 * while a may be walked by any strides: the product with a transposed matrix costs no copy of it.
 * Each element of c is one sum in the order of k, whatever the tile that it falls into.
 */
#ifndef PL_KERNELS_CPU_ISA_SMALL_PRODUCT_H
#define PL_KERNELS_CPU_ISA_SMALL_PRODUCT_H

#include <stdbool.h>

#include "kernels/cpu/vector.h"

#define PL_ALWAYS_INLINE static inline __attribute__((always_inline))

/* Sizes of tiles, in rows and vectors; the sums, the vectors of b and one element of a fit into the
 * registers. Width 0 stands for a part of a vector. */
#if PL_VECTOR_BYTES == 64
enum { PL_TILE_VECTORS = 3 };
#define PL_TILE_HEIGHTS(X)        X(8) X(4) X(2) X(1)
#define PL_TILE_WIDTHS(X, height) X(height, 0) X(height, 1) X(height, 2) X(height, 3)
#else
enum { PL_TILE_VECTORS = 2 };
#if PL_VECTOR_BYTES == 32
#define PL_TILE_HEIGHTS(X) X(6) X(4) X(2) X(1)
#else
#define PL_TILE_HEIGHTS(X) X(4) X(2) X(1)
#endif
#define PL_TILE_WIDTHS(X, height) X(height, 0) X(height, 1) X(height, 2)
#endif

/* Strides are counted in floats: a[i, p] is a[i * a_row + p * a_step]. */
typedef struct pl_small_product {
    const float *a, *b;
    float *c;
    int64_t a_row, a_step, b_row, c_row;
    int64_t m, n, k;
    bool add;
} pl_small_product;

#define PL_UNROLLED _Pragma("GCC unroll 8")

/* HEIGHT rows and WIDTH vectors of c, or a part of one vector, from row I and column J. A macro,
 * because clang 14 optimises a function before it inlines it, and then keeps the sums in memory. */
#define PL_PRODUCT_TILE(height, width)                                                             \
    static void pl_product_tile_##height##_##width(const pl_small_product *s, int64_t i,           \
                                                   int64_t j)                                      \
    {                                                                                              \
        enum { rows = (height), vectors = (width) > 0 ? (width) : 1 };                             \
        const float *a = s->a + i * s->a_row, *b = s->b + j;                                       \
        const int64_t a_row = s->a_row, a_step = s->a_step, b_row = s->b_row, k = s->k;            \
        const int64_t part = s->n - j;                                                             \
        pl_floats sum[rows][vectors];                                                              \
        PL_UNROLLED for (int64_t r = 0; r < rows; ++r)                                             \
        {                                                                                          \
            PL_UNROLLED for (int64_t v = 0; v < vectors; ++v) sum[r][v] = pl_splat(0);             \
        }                                                                                          \
        for (int64_t p = 0; p < k; ++p, a += a_step, b += b_row) {                                 \
            pl_floats row[vectors];                                                                \
            PL_UNROLLED for (int64_t v = 0; v < vectors; ++v)                                      \
            {                                                                                      \
                row[v] = (width) > 0 ? pl_load(b + v * PL_LANES) : pl_load_part(b, part);          \
            }                                                                                      \
            PL_UNROLLED for (int64_t r = 0; r < rows; ++r)                                         \
            {                                                                                      \
                pl_floats x = pl_splat(a[r * a_row]);                                              \
                PL_UNROLLED for (int64_t v = 0; v < vectors; ++v) sum[r][v] += x * row[v];         \
            }                                                                                      \
        }                                                                                          \
        float *c = s->c + i * s->c_row + j;                                                        \
        const int64_t c_row = s->c_row;                                                            \
        const bool add = s->add;                                                                   \
        PL_UNROLLED for (int64_t r = 0; r < rows; ++r, c += c_row)                                 \
        {                                                                                          \
            PL_UNROLLED for (int64_t v = 0; v < vectors; ++v)                                      \
            {                                                                                      \
                if ((width) > 0)                                                                   \
                    pl_put(c + v * PL_LANES, sum[r][v], add);                                      \
                else                                                                               \
                    pl_put_part(c, sum[r][v], add, part);                                          \
            }                                                                                      \
        }                                                                                          \
    }

PL_ALWAYS_INLINE void pl_put(float *to, pl_floats sum, bool add)
{
    pl_store(to, add ? pl_load(to) + sum : sum);
}

PL_ALWAYS_INLINE void pl_put_part(float *to, pl_floats sum, bool add, int64_t count)
{
    pl_store_part(to, add ? pl_load_part(to, count) + sum : sum, count);
}

#define PL_TILE_ROW(height) PL_TILE_WIDTHS(PL_PRODUCT_TILE, height)
PL_TILE_HEIGHTS(PL_TILE_ROW)
#undef PL_TILE_ROW

typedef struct pl_tile_size {
    int64_t height;
    void (*make[PL_TILE_VECTORS + 1])(const pl_small_product *s, int64_t i, int64_t j);
} pl_tile_size;

static void pl_product_small(const pl_small_product *s)
{
#define PL_TILE_NAME(height, width) pl_product_tile_##height##_##width,
#define PL_TILE_ROW(height)         {height, {PL_TILE_WIDTHS(PL_TILE_NAME, height)}},
    static const pl_tile_size sizes[] = {PL_TILE_HEIGHTS(PL_TILE_ROW)};
#undef PL_TILE_NAME
#undef PL_TILE_ROW
    for (int64_t j = 0; j < s->n;) {
        int64_t width = (s->n - j) / PL_LANES;
        if (width == 4) width = 2; /* two and two, not three and one */
        if (width > PL_TILE_VECTORS) width = PL_TILE_VECTORS;
        const pl_tile_size *size = sizes;
        for (int64_t i = 0; i < s->m; i += size->height) {
            while (size->height > s->m - i) ++size;
            size->make[width](s, i, j);
        }
        j += width > 0 ? width * PL_LANES : PL_LANES;
    }
}

#if PL_VECTOR_BYTES == 64
#define PL_FIRST_PAIRS   0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define PL_SECOND_PAIRS  2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#define PL_FIRST_HALVES  0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define PL_SECOND_HALVES 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#elif PL_VECTOR_BYTES == 32
#define PL_FIRST_PAIRS   0, 8, 1, 9, 4, 12, 5, 13
#define PL_SECOND_PAIRS  2, 10, 3, 11, 6, 14, 7, 15
#define PL_FIRST_HALVES  0, 1, 8, 9, 4, 5, 12, 13
#define PL_SECOND_HALVES 2, 3, 10, 11, 6, 7, 14, 15
#else
#define PL_FIRST_PAIRS   0, 4, 1, 5
#define PL_SECOND_PAIRS  2, 6, 3, 7
#define PL_FIRST_HALVES  0, 1, 4, 5
#define PL_SECOND_HALVES 2, 3, 6, 7
#endif

/* Four floats of every fourth row, one after another. */
PL_ALWAYS_INLINE pl_floats pl_load_fours(const float *from, int64_t row)
{
#if PL_VECTOR_BYTES == 16
    (void)row;
    return pl_load(from);
#else
    __m256 low = _mm256_loadu2_m128(from + 4 * row, from);
#if PL_VECTOR_BYTES == 32
    return (pl_floats)low;
#else
    __m256 high = _mm256_loadu2_m128(from + 12 * row, from + 8 * row);
    return (pl_floats)_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
#endif
#endif
}

/* column[c] = the floats c of PL_LANES rows, for four of them: rows that are four apart are put
 * side by side, then each four by four is transposed in its part of the vectors. */
PL_ALWAYS_INLINE void pl_load_columns(const float *from, int64_t row, pl_floats column[4])
{
    pl_floats a = pl_load_fours(from, row), b = pl_load_fours(from + row, row);
    pl_floats c = pl_load_fours(from + 2 * row, row), d = pl_load_fours(from + 3 * row, row);
    pl_floats ab = __builtin_shufflevector(a, b, PL_FIRST_PAIRS);
    pl_floats cd = __builtin_shufflevector(c, d, PL_FIRST_PAIRS);
    column[0] = __builtin_shufflevector(ab, cd, PL_FIRST_HALVES);
    column[1] = __builtin_shufflevector(ab, cd, PL_SECOND_HALVES);
    ab = __builtin_shufflevector(a, b, PL_SECOND_PAIRS);
    cd = __builtin_shufflevector(c, d, PL_SECOND_PAIRS);
    column[2] = __builtin_shufflevector(ab, cd, PL_FIRST_HALVES);
    column[3] = __builtin_shufflevector(ab, cd, PL_SECOND_HALVES);
}

/* to[j, i] = factor * from[i, j] for ROWS x COLS of from. */
static void pl_transpose(const float *from, int64_t from_row, int64_t rows, int64_t cols,
                         float factor, float *to, int64_t to_row)
{
    int64_t whole_rows = rows - rows % PL_LANES, whole_cols = cols - cols % 4;
    for (int64_t i = 0; i < whole_rows; i += PL_LANES) {
        for (int64_t j = 0; j < whole_cols; j += 4) {
            pl_floats column[4];
            pl_load_columns(from + i * from_row + j, from_row, column);
#pragma GCC unroll 4
            for (int64_t c = 0; c < 4; ++c) pl_store(to + (j + c) * to_row + i, factor * column[c]);
        }
    }
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = i < whole_rows ? whole_cols : 0; j < cols; ++j)
            to[j * to_row + i] = factor * from[i * from_row + j];
}

#endif
