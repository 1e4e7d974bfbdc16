#include "kernels/cpu/blas.h"

#include <cblas.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

void pl_cpu_multiply(int64_t m, int64_t n, int64_t k, pl_cpu_factor a, pl_cpu_factor b, bool add,
                     float *c, int64_t c_stride)
{
    if (m == 0 || n == 0) return;
    if (k == 0) { /* the factors may be NULL then */
        for (int64_t i = 0; i < m && !add; ++i) memset(c + i * c_stride, 0, (size_t)n * sizeof *c);
        return;
    }
    cblas_sgemm(CblasRowMajor, a.transpose ? CblasTrans : CblasNoTrans,
                b.transpose ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, 1.0f,
                a.values, (blasint)a.stride, b.values, (blasint)b.stride, add ? 1.0f : 0.0f, c,
                (blasint)c_stride);
}

void pl_cpu_blas_open(void) { openblas_set_num_threads(1); }

const char *pl_cpu_blas_describe(char *buffer, int size)
{
    /* "OpenBLAS 0.3.21 NO_LAPACKE ...": the first two words. */
    const char *words = openblas_get_config();
    const char *end = strchr(words, ' ');
    end = end ? strchr(end + 1, ' ') : NULL;
    int length = end ? (int)(end - words) : (int)strlen(words);
    (void)snprintf(buffer, (size_t)size, "%.*s (%s)", length, words, openblas_get_corename());
    return buffer;
}

const char *pl_cpu_blas_better_core(void)
{
    /* Kernels of processors without AVX: what the library falls back to. */
    static const char *const slow[] = {"Prescott", "Core2", "Katmai", "Northwood", "Banias"};
    if (getenv("OPENBLAS_CORETYPE")) return NULL;
    bool is_slow = false;
    for (size_t i = 0; i < sizeof slow / sizeof *slow; ++i)
        if (strcmp(openblas_get_corename(), slow[i]) == 0) is_slow = true;
    if (!is_slow) return NULL;
    if (pl_cpu_isa_usable(PL_CPU_AVX512)) return "SkylakeX";
    return pl_cpu_isa_usable(PL_CPU_AVX2) ? "Haswell" : NULL;
}

/* --- comparison with plain loops --- */

typedef struct check_shape {
    int m, n, k;
    bool transpose_a, transpose_b, add;
} check_shape;

static float pattern(int64_t index)
{
    return (float)((index * 2654435761u >> 7) % 2001) / 1000.0f - 1.0f;
}

static double plain_value(const check_shape *s, const float *a, const float *b, int row, int col)
{
    double sum = 0;
    for (int i = 0; i < s->k; ++i) {
        double left = s->transpose_a ? a[i * s->m + row] : a[row * s->k + i];
        double right = s->transpose_b ? b[col * s->k + i] : b[i * s->n + col];
        sum += left * right;
    }
    return sum;
}

static pl_status compare(const check_shape *s, const float *a, const float *b, const float *c,
                         const float *before)
{
    for (int row = 0; row < s->m; ++row) {
        for (int col = 0; col < s->n; ++col) {
            int place = row * s->n + col;
            double right = plain_value(s, a, b, row, col) + (s->add ? (double)before[place] : 0.0);
            double bound = 1e-6 * (s->k + 10); /* no factor exceeds 1 */
            if (fabs((double)c[place] - right) <= bound) continue;
            char library[96];
            return PL_FAIL(PL_UNSUPPORTED,
                           "the BLAS library %s computes wrongly on this processor: element "
                           "(%d, %d) of a %d x %d x %d product%s%s is %.9g and should be %.9g; "
                           "another OPENBLAS_CORETYPE or another build of it may do better",
                           pl_cpu_blas_describe(library, sizeof library), row, col, s->m, s->n,
                           s->k, s->transpose_a ? ", left transposed" : "",
                           s->transpose_b ? ", right transposed" : "", (double)c[place], right);
        }
    }
    return PL_OK;
}

pl_status pl_cpu_blas_check(pl_cpu_product_function product)
{
    /* The last is beyond the million multiply-adds up to which OpenBLAS has kernels of their own
     * for small products; it is not tried with both values of `add`, to open quickly. */
    static const int sizes[][3] = {{1, 1, 1},    {3, 5, 7},    {17, 33, 65},   {64, 48, 32},
                                   {1, 130, 70}, {130, 1, 70}, {101, 103, 100}};
    enum { SIZES = sizeof sizes / sizeof *sizes, MOST = 103 * 101, CASES = 8 * SIZES - 4 };
    float *room = NULL;
    PL_TRY(pl_allocate(&room, (size_t)4 * MOST, sizeof *room, "a check of the BLAS library"));
    float *a = room, *b = a + MOST, *before = b + MOST, *c = before + MOST;
    for (int64_t i = 0; i < c - room; ++i) room[i] = pattern(i);
    pl_status status = PL_OK;
    for (int i = 0; i < CASES && status == PL_OK; ++i) {
        const int *size = sizes[i / 8];
        check_shape s = {size[0], size[1], size[2], i & 1, i & 2, i & 4};
        memcpy(c, before, MOST * sizeof *c);
        product(s.m, s.n, s.k, pl_cpu_factor_of(a, s.transpose_a ? s.m : s.k, s.transpose_a),
                pl_cpu_factor_of(b, s.transpose_b ? s.k : s.n, s.transpose_b), s.add, c, s.n);
        status = compare(&s, a, b, c, before);
    }
    pl_free(room);
    return status;
}
