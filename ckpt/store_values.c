#include "ckpt/store_values.h"

#include <math.h>

#include "ckpt/weights_folder_values.h"
#include "common/dtype_convert.h"
#include "common/memory.h"

/* --- rows --- */

int64_t pl_value_rows_most(const pl_tensor *tensor)
{
    enum { MOST_VALUES = 1 << 22 }; /* much longer than a block: those at the ends are read twice */
    int64_t rows = MOST_VALUES / tensor->cols, all = pl_tensor_total_rows(tensor);
    if (rows > all) rows = all;
    return rows > 0 ? rows : 1;
}

pl_status pl_value_rows_open(pl_value_rows *out, pl_store_reader *reader, pl_value_kind kind,
                             int64_t tensor, int64_t most)
{
    const pl_manifest *m = pl_store_reader_manifest(reader);
    const pl_tensor *facts = &m->model.tensors[tensor];
    *out = (pl_value_rows){.reader = reader, .kind = kind, .tensor = tensor, .most = most};
    PL_TRY(pl_allocate(&out->numbers, (size_t)(most * facts->cols), sizeof *out->numbers,
                       "values of a tensor"));
    if (m->kept[tensor].dtype[kind] == PL_FP32) return PL_OK;
    return pl_allocate(&out->stored, (size_t)most,
                       (size_t)pl_kept_kind_row_bytes(facts, &m->kept[tensor], kind),
                       "values of a tensor");
}

pl_status pl_value_rows_read(pl_value_rows *rows, int64_t row_begin, int64_t row_end)
{
    const pl_manifest *m = pl_store_reader_manifest(rows->reader);
    void *to = rows->stored ? rows->stored : rows->numbers;
    PL_TRY(pl_store_read(rows->reader, rows->kind, rows->tensor, row_begin, row_end, to));
    rows->row_begin = row_begin;
    rows->row_end = row_end;
    if (rows->stored)
        pl_weights_convert(rows->numbers, PL_FP32, rows->stored,
                           m->kept[rows->tensor].dtype[rows->kind],
                           (row_end - row_begin) * m->model.tensors[rows->tensor].cols);
    return PL_OK;
}

void pl_value_rows_close(pl_value_rows *rows)
{
    pl_free(rows->stored);
    pl_free(rows->numbers);
    rows->stored = NULL;
    rows->numbers = NULL;
}

/* --- statistics --- */

typedef struct sums {
    pl_value_statistics s;
    double sum, squares;
} sums;

static void add(sums *to, const float *values, int64_t count)
{
    pl_value_statistics *s = &to->s;
    s->values += count;
    for (int64_t i = 0; i < count; ++i) {
        double value = (double)values[i];
        s->zeroes += value == 0.0;
        if (!isfinite(value)) {
            s->nans += isnan(value) != 0;
            s->infinities += isinf(value) != 0;
            continue;
        }
        to->sum += value;
        to->squares += value * value;
        if (!(value >= s->least)) s->least = value; /* the first one too: NaN is no bound */
        if (!(value <= s->most)) s->most = value;
    }
}

static pl_status add_rows(sums *to, pl_value_rows *rows, const pl_tensor *tensor)
{
    int64_t all = pl_tensor_total_rows(tensor);
    for (int64_t row = 0; row < all; row += rows->most) {
        int64_t end = all - row < rows->most ? all : row + rows->most;
        PL_TRY(pl_value_rows_read(rows, row, end));
        add(to, rows->numbers, (end - row) * tensor->cols);
    }
    return PL_OK;
}

pl_status pl_store_statistics(pl_value_statistics *out, pl_store_reader *reader, pl_value_kind kind,
                              int64_t tensor)
{
    const pl_tensor *facts = &pl_store_reader_manifest(reader)->model.tensors[tensor];
    sums all = {.s = {.least = NAN, .most = NAN}};
    pl_value_rows rows;
    pl_status status = pl_value_rows_open(&rows, reader, kind, tensor, pl_value_rows_most(facts));
    if (status == PL_OK) status = add_rows(&all, &rows, facts);
    pl_value_rows_close(&rows);
    PL_TRY(status);
    int64_t finite = all.s.values - all.s.nans - all.s.infinities;
    all.s.mean = finite > 0 ? all.sum / (double)finite : NAN;
    all.s.rms = finite > 0 ? sqrt(all.squares / (double)finite) : NAN;
    *out = all.s;
    return PL_OK;
}

/* --- differences --- */

typedef struct comparison {
    pl_value_difference d;
    double squares, squares_apart;
    int64_t cols;
} comparison;

static void compare_value(comparison *c, float x, float y, int64_t row, int64_t col)
{
    pl_value_difference *d = &c->d;
    double a = (double)x, b = (double)y, apart = fabs(a - b);
    double larger = fabs(a) > fabs(b) ? fabs(a) : fabs(b);
    ++d->different;
    if (isnan(a) || isnan(b)) {
        ++d->nans;
        return;
    }
    c->squares_apart += apart * apart;
    if (apart > d->largest || d->row < 0) {
        d->largest = apart;
        d->row = row;
        d->col = col;
    }
    if (larger > 0 && isfinite(larger) && apart / larger > d->relative)
        d->relative = apart / larger;
}

static void compare_rows(comparison *c, const pl_value_rows *a, const pl_value_rows *b)
{
    const float *x = a->numbers, *y = b->numbers;
    int64_t count = (a->row_end - a->row_begin) * c->cols;
    for (int64_t i = 0; i < count; ++i) {
        if (isfinite(x[i])) c->squares += (double)x[i] * (double)x[i];
        if (pl_float_to_bits(x[i]) != pl_float_to_bits(y[i]))
            compare_value(c, x[i], y[i], a->row_begin + i / c->cols, i % c->cols);
    }
    c->d.values += count;
}

static pl_status compare_all(comparison *c, pl_value_rows *a, pl_value_rows *b, int64_t rows)
{
    for (int64_t row = 0; row < rows; row += a->most) {
        int64_t end = rows - row < a->most ? rows : row + a->most;
        PL_TRY(pl_value_rows_read(a, row, end));
        PL_TRY(pl_value_rows_read(b, row, end));
        compare_rows(c, a, b);
    }
    return PL_OK;
}

pl_status pl_store_compare(pl_value_difference *out, pl_store_reader *a, pl_store_reader *b,
                           pl_value_kind kind, int64_t tensor)
{
    const pl_tensor *facts = &pl_store_reader_manifest(a)->model.tensors[tensor];
    int64_t most = pl_value_rows_most(facts);
    comparison c = {.d = {.row = -1, .col = -1}, .cols = facts->cols};
    pl_value_rows of_a, of_b = {.reader = NULL};
    pl_status status = pl_value_rows_open(&of_a, a, kind, tensor, most);
    if (status == PL_OK) status = pl_value_rows_open(&of_b, b, kind, tensor, most);
    if (status == PL_OK) status = compare_all(&c, &of_a, &of_b, pl_tensor_total_rows(facts));
    pl_value_rows_close(&of_a);
    pl_value_rows_close(&of_b);
    PL_TRY(status);
    if (c.squares_apart > 0) c.d.relative_l2 = sqrt(c.squares_apart) / sqrt(c.squares);
    *out = c.d;
    return PL_OK;
}
