/* Initial values for pl_executor_outside.initial_values: those of common/initial_values.h. */
#ifndef PL_TRAIN_VALUE_SOURCE_H
#define PL_TRAIN_VALUE_SOURCE_H

#include "common/model.h"
#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The context of pl_value_source_initial. A plain value that any number of ranks may share. */
typedef struct pl_value_source {
    int64_t seed;
    double initializer_range;
} pl_value_source;

/* Rows [ROW_BEGIN, ROW_END) of the whole (stacked) TENSOR as DTYPE (fp32, bf16 or fp16, rounded
 * to nearest even). CONTEXT is a const pl_value_source. Errors: PL_NO_MEMORY; PL_UNSUPPORTED for
 * other types. */
pl_status pl_value_source_initial(void *context, const pl_tensor *tensor, int64_t row_begin,
                                  int64_t row_end, pl_dtype dtype, void *out);

#ifdef __cplusplus
}
#endif
#endif
