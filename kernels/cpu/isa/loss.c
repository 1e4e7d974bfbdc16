/* Cross-entropy of logits that are never whole. Rows are taken in chunks; in each of them tiles of
 * logits are made, then rows become losses and gradients of logits in place, then tiles of both
 * gradients are made. Tiles depend on sizes alone, and each task writes its own.
 */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/operations.h"
#include "kernels/cpu/isa/split.h"
#include "kernels/cpu/vector.h"

enum {
    FLOAT = sizeof(float),
    CHUNK_BYTES = 8 << 20,     /* of logits at a time; a row is taken whatever its size */
    NEAR_BYTES = 2 << 20,      /* what a nearby cache holds: more rows than this only to reach */
    CHUNK_ROWS = 256,          /* so many, below which products are slow */
    TILE_ROWS = 256,           /* of a task's part of a result */
    TILE_COLS = 512,           /* and its columns */
    SINGLE_SUM = 64 * PL_LANES /* exponentials summed in fp32 */
};

typedef struct loss {
    const pl_loss_arguments *a;
    int64_t first, rows; /* of the chunk, in z */
    float *logits;       /* [rows, vocabulary] of the chunk */
    double *losses;      /* [rows] of the chunk */
} loss;

/* --- rows --- */

static float largest(const float *x, int64_t count)
{
    pl_floats most = pl_splat(-INFINITY);
    int64_t i = 0;
    for (; i + PL_LANES <= count; i += PL_LANES) most = pl_larger(pl_load(x + i), most);
    float result = pl_lane_max(most);
    for (; i < count; ++i) result = x[i] > result ? x[i] : result;
    return result;
}

/* x becomes exp(x - MOST), COUNT of them; their sum. */
static float exponentials(float *x, int64_t count, float most)
{
    pl_floats sum = pl_splat(0);
    int64_t i = 0;
    for (; i + PL_LANES <= count; i += PL_LANES) {
        pl_floats power = pl_exp(pl_load(x + i) - most);
        pl_store(x + i, power);
        sum += power;
    }
    float result = pl_lane_sum(sum);
    if (i == count) return result;
    float rest[PL_LANES];
    pl_store(rest, pl_exp(pl_load_part(x + i, count - i) - most));
    for (int64_t j = 0; i + j < count; ++j) {
        x[i + j] = rest[j];
        result += rest[j];
    }
    return result;
}

static void scale(float *x, int64_t count, float factor)
{
    int64_t i = 0;
    for (; i + PL_LANES <= count; i += PL_LANES) pl_store(x + i, factor * pl_load(x + i));
    for (; i < count; ++i) x[i] *= factor;
}

/* The loss of a row of logits, which become its gradient. */
static double do_row(float *logits, int64_t vocabulary, int32_t label)
{
    if (label < 0) {
        memset(logits, 0, (size_t)vocabulary * sizeof *logits);
        return 0;
    }
    double own = (double)logits[label], sum = 0;
    float most = largest(logits, vocabulary);
    for (int64_t i = 0; i < vocabulary; i += SINGLE_SUM)
        sum += (double)exponentials(
            logits + i, vocabulary - i < SINGLE_SUM ? vocabulary - i : SINGLE_SUM, most);
    scale(logits, vocabulary, (float)(1 / sum));
    logits[label] -= 1;
    return log(sum) + ((double)most - own);
}

static void do_rows(void *context, int64_t index, void *scratch)
{
    (void)scratch;
    const loss *l = context;
    const pl_loss_arguments *a = l->a;
    int64_t block = pl_row_block(a->vocabulary);
    int64_t end = index * block + pl_block_length(index, block, l->rows);
    for (int64_t i = index * block; i < end; ++i) {
        l->losses[i] =
            do_row(l->logits + i * a->vocabulary, a->vocabulary, a->labels[l->first + i]);
        if (a->row_losses) a->row_losses[l->first + i] = (float)l->losses[i];
    }
}

/* --- products: each is cut into tiles of its result --- */

typedef struct tile {
    int64_t row, col, rows, cols;
} tile;

static int64_t tile_count(int64_t rows, int64_t cols)
{
    return pl_divide_up(rows, TILE_ROWS) * pl_divide_up(cols, TILE_COLS);
}

static tile tile_at(int64_t index, int64_t rows, int64_t cols)
{
    int64_t across = pl_divide_up(cols, TILE_COLS);
    int64_t down = index / across, right = index % across;
    return (tile){.row = down * TILE_ROWS,
                  .col = right * TILE_COLS,
                  .rows = pl_block_length(down, TILE_ROWS, rows),
                  .cols = pl_block_length(right, TILE_COLS, cols)};
}

static pl_cpu_factor rows_of(const void *matrix, int64_t cols, int64_t row)
{
    /* without columns there may be no matrix */
    return pl_cpu_factor_of(cols > 0 ? (const float *)matrix + row * cols : NULL, cols, false);
}

/* logits = z W^T */
static void do_logits(void *context, int64_t index, void *scratch)
{
    (void)scratch;
    const loss *l = context;
    const pl_loss_arguments *a = l->a;
    tile t = tile_at(index, l->rows, a->vocabulary);
    pl_cpu_factor z = rows_of(a->z, a->hidden, l->first + t.row);
    pl_cpu_factor weight = rows_of(a->weight, a->hidden, t.col);
    weight.transpose = true;
    pl_cpu_multiply(t.rows, t.cols, a->hidden, z, weight, false,
                    l->logits + t.row * a->vocabulary + t.col, a->vocabulary);
}

/* dz = dlogits W */
static void do_dz(const loss *l, int64_t index)
{
    const pl_loss_arguments *a = l->a;
    tile t = tile_at(index, l->rows, a->hidden);
    pl_cpu_factor dlogits = rows_of(l->logits, a->vocabulary, t.row);
    pl_cpu_factor weight = rows_of(a->weight, a->hidden, 0);
    weight.values += t.col;
    pl_cpu_multiply(t.rows, t.cols, a->vocabulary, dlogits, weight, false,
                    (float *)a->dz + (l->first + t.row) * a->hidden + t.col, a->hidden);
}

/* dW (+)= dlogits^T z */
static void do_dweight(const loss *l, int64_t index)
{
    const pl_loss_arguments *a = l->a;
    tile t = tile_at(index, a->vocabulary, a->hidden);
    pl_cpu_factor dlogits = pl_cpu_factor_of(l->logits + t.row, a->vocabulary, true);
    pl_cpu_factor z = rows_of(a->z, a->hidden, l->first);
    z.values += t.col;
    pl_cpu_multiply(t.rows, t.cols, l->rows, dlogits, z, a->add || l->first > 0,
                    a->dweight + t.row * a->hidden + t.col, a->hidden);
}

static int64_t dz_tiles(const loss *l) { return l->a->dz ? tile_count(l->rows, l->a->hidden) : 0; }

static void do_gradients(void *context, int64_t index, void *scratch)
{
    (void)scratch;
    const loss *l = context;
    int64_t dz = dz_tiles(l);
    if (index < dz)
        do_dz(l, index);
    else
        do_dweight(l, index - dz);
}

/* --- the operation --- */

static pl_status check(const pl_device *device, const pl_loss_arguments *a)
{
    int64_t z = 0, weight = 0, logits = 0, work = 0;
    PL_TRY(pl_cpu_require_fp32(device, "loss", a->dtype));
    PL_TRY(pl_cpu_elements(device, "loss", &z, a->rows, a->hidden, 1));
    PL_TRY(pl_cpu_elements(device, "loss", &weight, a->vocabulary, a->hidden, 1));
    PL_TRY(pl_cpu_elements(device, "loss", &logits, a->rows, a->vocabulary, 1));
    PL_TRY(pl_cpu_elements(device, "loss", &work, logits, a->hidden, 1));
    PL_TRY(pl_cpu_require(device, "loss",
                          a->loss_sums && (z == 0 || a->z) && (weight == 0 || a->weight) &&
                              (a->rows == 0 || a->labels),
                          "z, weight, labels and loss_sums are given"));
    if (a->vocabulary > INT32_MAX || a->hidden > INT32_MAX)
        return pl_cpu_refuse(device, PL_UNSUPPORTED, "loss",
                             "the BLAS library counts in 32 bits; vocabulary=%lld, hidden=%lld",
                             (long long)a->vocabulary, (long long)a->hidden);
    for (int64_t i = 0; i < a->rows; ++i)
        if (a->labels[i] >= a->vocabulary)
            return pl_cpu_refuse(device, PL_BAD_INPUT, "loss",
                                 "the label of row %lld is %ld; the vocabulary has %lld entries",
                                 (long long)i, (long)a->labels[i], (long long)a->vocabulary);
    return PL_OK;
}

static void note(pl_device *device, pl_stream stream, const pl_loss_arguments *a)
{
    int64_t z = a->rows * a->hidden * FLOAT, weight = a->vocabulary * a->hidden * FLOAT;
    int64_t products = 1 + (a->dz != NULL) + (a->dweight != NULL);
    pl_touch touches[] = {
        pl_touch_read(a->z, z),
        pl_touch_read(a->weight, weight),
        pl_touch_read(a->labels, a->rows * (int64_t)sizeof *a->labels),
        pl_touch_write(a->dz, z),
        a->add ? pl_touch_update(a->dweight, weight) : pl_touch_write(a->dweight, weight),
        a->loss_begins ? pl_touch_write(a->loss_sums, 2 * (int64_t)sizeof(double))
                       : pl_touch_update(a->loss_sums, (int64_t)sizeof(double)),
        pl_touch_write(a->row_losses, a->rows * FLOAT),
    };
    pl_device_note(device, stream, "loss", 2 * products * a->rows * a->hidden * a->vocabulary,
                   touches, 7);
}

/* At least one row, no more than there are. */
static int64_t chunk_rows(const pl_loss_arguments *a)
{
    int64_t row_bytes = (a->vocabulary > 0 ? a->vocabulary : 1) * FLOAT;
    int64_t rows = CHUNK_BYTES / row_bytes;
    if (rows > CHUNK_ROWS) rows = CHUNK_ROWS;
    if (rows < NEAR_BYTES / row_bytes) rows = NEAR_BYTES / row_bytes;
    if (rows < 1) rows = 1;
    return rows < a->rows ? rows : a->rows;
}

static pl_status do_chunk(pl_pool *pool, loss *l)
{
    const pl_loss_arguments *a = l->a;
    int64_t row_tasks = pl_divide_up(l->rows, pl_row_block(a->vocabulary));
    int64_t gradients = dz_tiles(l) + (a->dweight ? tile_count(a->vocabulary, a->hidden) : 0);
    PL_TRY(pl_pool_run(pool, tile_count(l->rows, a->vocabulary), 0, do_logits, l));
    PL_TRY(pl_pool_run(pool, row_tasks, 0, do_rows, l));
    return pl_pool_run(pool, gradients, 0, do_gradients, l);
}

pl_status PL_ISA(pl_cpu_loss)(pl_device *device, pl_stream stream, const pl_loss_arguments *a)
{
    PL_TRY(check(device, a));
    note(device, stream, a);
    int64_t most = chunk_rows(a);
    int64_t logit_bytes = most * a->vocabulary * FLOAT;
    int64_t loss_place = pl_divide_up(logit_bytes, sizeof(double)) * (int64_t)sizeof(double);
    void *memory = NULL;
    PL_TRY(pl_cpu_workspace(device, loss_place + most * (int64_t)sizeof(double), &memory));
    loss l = {.a = a, .logits = memory, .losses = (void *)((char *)memory + loss_place)};
    if (a->dweight && !a->add && a->rows == 0)
        memset(a->dweight, 0, (size_t)(a->vocabulary * a->hidden) * sizeof *a->dweight);
    double sum = 0;
    for (; l.first < a->rows; l.first += l.rows) {
        l.rows = a->rows - l.first < most ? a->rows - l.first : most;
        PL_TRY(do_chunk(pl_cpu_pool(device), &l));
        for (int64_t i = 0; i < l.rows; ++i) sum += l.losses[i];
    }
    if (a->loss_begins) a->loss_sums[0] = a->loss_sums[1] = 0;
    a->loss_sums[0] += sum;
    return PL_OK;
}
