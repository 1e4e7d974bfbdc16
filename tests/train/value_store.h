/* A checkpoint in memory: whole tensors, keyed by kind of value and tensor, that any number of
 * ranks put their rows into and take rows from. */
#ifndef PL_TESTS_TRAIN_VALUE_STORE_H
#define PL_TESTS_TRAIN_VALUE_STORE_H

#include <pthread.h>
#include <stdint.h>

#include "common/model.h"
#include "common/value_kind.h"

enum { STORE_TENSORS = 64 };

typedef struct store_slot {
    char *bytes; /* NULL: nobody put any */
    char *seen;  /* [rows] */
    pl_dtype dtype;
} store_slot;

/* All zeroes but for the lock is the empty store. */
typedef struct value_store {
    pthread_mutex_t lock;
    store_slot slot[PL_VALUE_KIND_COUNT][STORE_TENSORS];
    int64_t disagreements; /* rows that two ranks put differently */
} value_store;

void store_open(value_store *store);
void store_close(value_store *store);

/* Put and take rows of TENSOR, number NUMBER of its model. Errors: PL_INTERNAL for rows outside of
 * the tensor, no rows, or another type than before; taking, PL_BAD_INPUT for rows that nobody put.
 */
pl_status store_put(value_store *store, pl_value_kind kind, const pl_tensor *tensor, int64_t number,
                    int64_t row_begin, int64_t row_end, pl_dtype dtype, const void *values);
pl_status store_take(value_store *store, pl_value_kind kind, const pl_tensor *tensor,
                     int64_t number, int64_t row_begin, int64_t row_end, pl_dtype dtype, void *out);

/* Rows of TENSOR that somebody put. */
int64_t store_rows(const value_store *store, pl_value_kind kind, const pl_tensor *tensor,
                   int64_t number);

#endif
