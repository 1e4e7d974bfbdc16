#include "tests/train/value_store.h"

#include <stdlib.h>
#include <string.h>

void store_open(value_store *store)
{
    memset(store, 0, sizeof *store);
    if (pthread_mutex_init(&store->lock, NULL) != 0) abort();
}

void store_close(value_store *store)
{
    for (int kind = 0; kind < PL_VALUE_KIND_COUNT; ++kind)
        for (int i = 0; i < STORE_TENSORS; ++i) {
            free(store->slot[kind][i].bytes);
            free(store->slot[kind][i].seen);
        }
    pthread_mutex_destroy(&store->lock);
}

/* The slot of rows that may be asked for; made where it is not there yet. */
static pl_status find_slot(value_store *store, pl_value_kind kind, const pl_tensor *tensor,
                           int64_t number, int64_t row_begin, int64_t row_end, pl_dtype dtype,
                           store_slot **out)
{
    int64_t rows = pl_tensor_total_rows(tensor);
    if (number < 0 || number >= STORE_TENSORS || row_begin < 0 || row_begin >= row_end ||
        row_end > rows)
        return PL_FAIL(PL_INTERNAL, "%s of %s: rows that are none", pl_value_kind_name(kind),
                       tensor->suffix);
    store_slot *slot = &store->slot[kind][number];
    if (!slot->bytes) {
        slot->bytes = calloc((size_t)(rows * tensor->cols), (size_t)pl_dtype_bytes(dtype));
        slot->seen = calloc((size_t)rows, 1);
        slot->dtype = dtype;
        if (!slot->bytes || !slot->seen) abort();
    }
    if (slot->dtype != dtype)
        return PL_FAIL(PL_INTERNAL, "%s of %s: %s, and %s before", pl_value_kind_name(kind),
                       tensor->suffix, pl_dtype_name(dtype), pl_dtype_name(slot->dtype));
    *out = slot;
    return PL_OK;
}

static pl_status put(value_store *store, pl_value_kind kind, const pl_tensor *tensor,
                     int64_t number, int64_t row_begin, int64_t row_end, pl_dtype dtype,
                     const char *values)
{
    store_slot *slot = NULL;
    PL_TRY(find_slot(store, kind, tensor, number, row_begin, row_end, dtype, &slot));
    size_t row = (size_t)(tensor->cols * pl_dtype_bytes(dtype));
    for (int64_t i = row_begin; i < row_end; ++i) {
        char *to = slot->bytes + (size_t)i * row;
        const char *from = values + (size_t)(i - row_begin) * row;
        store->disagreements += slot->seen[i] && memcmp(to, from, row) != 0;
        memcpy(to, from, row);
        slot->seen[i] = 1;
    }
    return PL_OK;
}

static pl_status take(value_store *store, pl_value_kind kind, const pl_tensor *tensor,
                      int64_t number, int64_t row_begin, int64_t row_end, pl_dtype dtype, char *out)
{
    store_slot *slot = NULL;
    PL_TRY(find_slot(store, kind, tensor, number, row_begin, row_end, dtype, &slot));
    size_t row = (size_t)(tensor->cols * pl_dtype_bytes(dtype));
    for (int64_t i = row_begin; i < row_end; ++i)
        if (!slot->seen[i])
            return PL_FAIL(PL_BAD_INPUT, "%s of %s: a row that nobody saved",
                           pl_value_kind_name(kind), tensor->suffix);
    memcpy(out, slot->bytes + (size_t)row_begin * row, (size_t)(row_end - row_begin) * row);
    return PL_OK;
}

pl_status store_put(value_store *store, pl_value_kind kind, const pl_tensor *tensor, int64_t number,
                    int64_t row_begin, int64_t row_end, pl_dtype dtype, const void *values)
{
    pthread_mutex_lock(&store->lock);
    pl_status status =
        put(store, kind, tensor, number, row_begin, row_end, dtype, (const char *)values);
    pthread_mutex_unlock(&store->lock);
    return status;
}

pl_status store_take(value_store *store, pl_value_kind kind, const pl_tensor *tensor,
                     int64_t number, int64_t row_begin, int64_t row_end, pl_dtype dtype, void *out)
{
    pthread_mutex_lock(&store->lock);
    pl_status status = take(store, kind, tensor, number, row_begin, row_end, dtype, out);
    pthread_mutex_unlock(&store->lock);
    return status;
}

int64_t store_rows(const value_store *store, pl_value_kind kind, const pl_tensor *tensor,
                   int64_t number)
{
    const store_slot *slot = &store->slot[kind][number];
    int64_t rows = 0;
    for (int64_t i = 0; slot->bytes && i < pl_tensor_total_rows(tensor); ++i) rows += slot->seen[i];
    return rows;
}
