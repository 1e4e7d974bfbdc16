/* Values of a checkpoint as numbers: whole tensors, whoever wrote them, a few MiB at a time.
 *
 * Sums are in fp64 and in the order of rows, so that they do not depend on the layout.
 */
#ifndef PL_CKPT_STORE_VALUES_H
#define PL_CKPT_STORE_VALUES_H

#include "ckpt/store_reader.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_value_statistics {
    int64_t values, zeroes, nans, infinities;
    double least, most, mean, rms; /* of finite values; NaN where there are none */
} pl_value_statistics;

/* Of all values of KIND of TENSOR, which the checkpoint keeps. Errors: those of pl_store_read. */
pl_status pl_store_statistics(pl_value_statistics *out, pl_store_reader *reader, pl_value_kind kind,
                              int64_t tensor);

/* How two checkpoints differ in one kind of one tensor. Values are compared as fp32, in which each
 * type is exact: equal bits there are equal bits in the checkpoints where the types are equal. */
typedef struct pl_value_difference {
    int64_t values, different; /* how many, and how many of them are of other bits */
    int64_t nans;              /* ... where one of the two is NaN: in no number below */
    double largest;            /* |a - b| */
    int64_t row, col;          /* where it is, in the whole tensor; -1: nowhere */
    double relative;           /* largest |a - b| / max(|a|, |b|) of finite values */
    double relative_l2;        /* of a - b, over that of a; infinite where a is zero */
} pl_value_difference;

/* Compare KIND of TENSOR, which is of the same shape in both, and kept in both. Errors: those of
 * pl_store_read. */
pl_status pl_store_compare(pl_value_difference *out, pl_store_reader *a, pl_store_reader *b,
                           pl_value_kind kind, int64_t tensor);

/* A few rows of one kind of one tensor as fp32. Made by pl_value_rows_open; freed with
 * pl_value_rows_close, also after a failure. */
typedef struct pl_value_rows {
    pl_store_reader *reader; /* borrowed */
    pl_value_kind kind;
    int64_t tensor, row_begin, row_end;
    int64_t most; /* rows there is room for */
    void *stored; /* as they are in the checkpoint */
    float *numbers;
} pl_value_rows;

/* MOST: at most so many rows are read at once; pl_value_rows_most says what is sensible for a
 * tensor. Errors: PL_NO_MEMORY. */
pl_status pl_value_rows_open(pl_value_rows *out, pl_store_reader *reader, pl_value_kind kind,
                             int64_t tensor, int64_t most);
int64_t pl_value_rows_most(const pl_tensor *tensor);

/* Read rows [ROW_BEGIN, ROW_END), at most as many as there is room for. Errors: those of
 * pl_store_read. */
pl_status pl_value_rows_read(pl_value_rows *rows, int64_t row_begin, int64_t row_end);
void pl_value_rows_close(pl_value_rows *rows);

#ifdef __cplusplus
}
#endif
#endif
