/* Golden models of testdata/hf: weights as initial values, and arrays to compare with. */
#ifndef PL_TESTS_TRAIN_GOLDEN_H
#define PL_TESTS_TRAIN_GOLDEN_H

#include "ckpt/safetensors.h"
#include "common/model.h"

typedef struct golden {
    const char *folder;
    pl_model model;
    pl_safetensors weights, io;
} golden;

/* Open FOLDER ("testdata/hf/qwen3-moe-tiny"); fails the running test when it cannot. */
void golden_open(golden *g, const char *folder);
void golden_close(golden *g);

/* Rows of a (stacked) tensor from the per-expert arrays PREFIX + name of FILE, fp32. */
pl_status golden_rows(const pl_safetensors *file, const char *prefix, const pl_tensor *tensor,
                      int64_t row_begin, int64_t row_end, float *out);

/* A trial_values: CONTEXT is the golden. */
pl_status golden_values(const void *context, const pl_tensor *tensor, int64_t row_begin,
                        int64_t row_end, float *out);

/* The whole array NAME of FILE, of the type it has there (F64 as double), to be freed with free();
 * *COUNT elements. */
void *golden_array(const pl_safetensors *file, const char *name, int64_t *count);

#endif
