#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/operations.h"
#include "kernels/cpu/isa/split.h"

/* Tiles of the result. BLAS is fastest with large ones, since it copies both factors anew for each:
 * a single worker takes as much as its caches bear; for more, a tile is halved, along its longer
 * side, while there are fewer than two a worker and it has more than TILE_WORK multiply-adds and
 * TILE_AREA elements. Sides are whole TILE_STEPs, so that no element's sum depends on its tile.
 */
enum { TILE_SIDE = 512, TILE_STEP = 64, TILE_WORK = 24 << 20, TILE_AREA = 32 << 10 };
enum { ALONE_SIDE = 1024 };

typedef struct tiles {
    const pl_product_arguments *a;
    int64_t rows, cols; /* of a tile */
    int64_t down, across;
} tiles;

static void count_tiles(tiles *t)
{
    t->down = pl_divide_up(t->a->m, t->rows);
    t->across = pl_divide_up(t->a->n, t->cols);
}

static int64_t half(int64_t side)
{
    enum { TWO_STEPS = 2 * TILE_STEP };
    return pl_divide_up(side, TWO_STEPS) * TILE_STEP;
}

static tiles make_tiles(const pl_product_arguments *a, int workers)
{
    tiles t = {.a = a};
    int64_t side = workers == 1 ? ALONE_SIDE : TILE_SIDE, enough = workers == 1 ? 1 : 2 * workers;
    t.rows = a->m < side ? a->m : side;
    t.cols = a->n < side ? a->n : side;
    count_tiles(&t);
    while (t.down * t.across < enough && t.rows * t.cols * a->k > TILE_WORK &&
           t.rows * t.cols > TILE_AREA) {
        if (t.rows > t.cols)
            t.rows = half(t.rows);
        else
            t.cols = half(t.cols);
        count_tiles(&t);
    }
    return t;
}

static void copy_addend(const pl_product_arguments *a, int64_t row, int64_t col, int64_t rows,
                        int64_t cols)
{
    for (int64_t i = row; i < row + rows; ++i)
        memcpy((float *)a->c + i * a->n + col, (const float *)a->addend + i * a->n + col,
               (size_t)cols * sizeof(float));
}

static void product_tile(void *context, int64_t index, void *scratch)
{
    (void)scratch;
    const tiles *t = context;
    const pl_product_arguments *a = t->a;
    int64_t down = index / t->across, across = index % t->across;
    int64_t row = down * t->rows, col = across * t->cols;
    int64_t rows = pl_block_length(down, t->rows, a->m);
    int64_t cols = pl_block_length(across, t->cols, a->n);
    pl_cpu_factor left = {a->a, a->transpose_a ? a->m : a->k, a->transpose_a};
    pl_cpu_factor right = {a->b, a->transpose_b ? a->k : a->n, a->transpose_b};
    if (a->k > 0) { /* the factors may be NULL otherwise */
        left.values += a->transpose_a ? row : row * left.stride;
        right.values += a->transpose_b ? col * right.stride : col;
    }
    if (a->addend && a->addend != a->c) copy_addend(a, row, col, rows, cols);
    pl_cpu_multiply(rows, cols, a->k, left, right, a->addend, (float *)a->c + row * a->n + col,
                    a->n);
}

static pl_status check(const pl_device *device, const pl_product_arguments *a)
{
    int64_t left = 0, right = 0, result = 0, work = 0;
    PL_TRY(pl_cpu_require_fp32(device, "product", a->dtype));
    PL_TRY(pl_cpu_require_fp32(device, "product", a->c_dtype));
    PL_TRY(pl_cpu_elements(device, "product", &left, a->m, a->k, 1));
    PL_TRY(pl_cpu_elements(device, "product", &right, a->k, a->n, 1));
    PL_TRY(pl_cpu_elements(device, "product", &result, a->m, a->n, 1));
    PL_TRY(pl_cpu_elements(device, "product", &work, a->m, a->n, a->k));
    PL_TRY(pl_cpu_require(device, "product",
                          (left == 0 || a->a) && (right == 0 || a->b) && (result == 0 || a->c),
                          "a, b and c are given"));
    if (a->m <= INT32_MAX && a->n <= INT32_MAX && a->k <= INT32_MAX) return PL_OK;
    return pl_cpu_refuse(device, PL_UNSUPPORTED, "product",
                         "the BLAS library counts in 32 bits; m=%lld, n=%lld, k=%lld",
                         (long long)a->m, (long long)a->n, (long long)a->k);
}

pl_status PL_ISA(pl_cpu_product)(pl_device *device, pl_stream stream, const pl_product_arguments *a)
{
    PL_TRY(check(device, a));
    int64_t bytes = a->m * a->n * (int64_t)sizeof(float);
    pl_touch touches[] = {
        pl_touch_read(a->a, a->m * a->k * (int64_t)sizeof(float)),
        pl_touch_read(a->b, a->k * a->n * (int64_t)sizeof(float)),
        pl_touch_read(a->addend == a->c ? NULL : a->addend, bytes),
        a->addend && a->addend == a->c ? pl_touch_update(a->c, bytes) : pl_touch_write(a->c, bytes),
    };
    pl_device_note(device, stream, "product", 2 * a->m * a->n * a->k, touches, 4);
    if (a->m == 0 || a->n == 0) return PL_OK;
    tiles t = make_tiles(a, pl_pool_workers(pl_cpu_pool(device)));
    return pl_pool_run(pl_cpu_pool(device), t.down * t.across, 0, product_tile, &t);
}
