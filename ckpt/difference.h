/* What pleat-ckpt diff knows of two checkpoints. */
#ifndef PL_CKPT_DIFFERENCE_H
#define PL_CKPT_DIFFERENCE_H

#include "ckpt/command.h"
#include "ckpt/store_values.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A fact that is not the same in both, in JSON's spelling. Owned strings. */
typedef struct pl_fact_difference {
    char *name, *a, *b;
    bool counts; /* false: of how it was trained and laid out, not of where it stands */
} pl_fact_difference;

/* One kind of one tensor. */
typedef struct pl_tensor_difference {
    int64_t tensor;
    pl_value_kind kind;
    pl_dtype a, b;              /* PL_DTYPE_COUNT: not kept */
    pl_value_difference values; /* where both keep it */
} pl_tensor_difference;

/* Called after each tensor. */
typedef void (*pl_difference_progress)(void *context, int64_t done, int64_t bytes);

/* Owned by the caller, freed with pl_difference_free. */
typedef struct pl_difference {
    pl_store_reader *a, *b; /* borrowed */
    pl_fact_difference *facts;
    size_t fact_count, fact_capacity;
    pl_tensor_difference *tensors; /* those that differ */
    size_t tensor_count, tensor_capacity;
    int64_t compared; /* kinds of tensors that both keep */
    int64_t values;   /* in them */
    bool equal;       /* no values, no types and no fact that counts differ */
} pl_difference;

/* Compare two open checkpoints, whatever their layouts. PROGRESS may be NULL. Errors: PL_BAD_INPUT
 * when they have other tensors, so that nothing can be compared; those of reading. */
pl_status pl_difference_make(pl_difference *out, pl_store_reader *a, pl_store_reader *b,
                             pl_difference_progress progress, void *context);
void pl_difference_free(pl_difference *difference);

#ifdef __cplusplus
}
#endif
#endif
