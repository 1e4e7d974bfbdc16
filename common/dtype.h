/* Element types of tensors, buffers and wires. */
#ifndef PL_COMMON_DTYPE_H
#define PL_COMMON_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pl_dtype {
    PL_U8,
    PL_I32,
    PL_I64,
    PL_BF16,
    PL_FP16,
    PL_FP32,
    PL_FP64,
    PL_DTYPE_COUNT
} pl_dtype;

/* Bytes of one element. */
int pl_dtype_bytes(pl_dtype dtype);

/* "u8", "i32", "i64", "bf16", "fp16", "fp32", "fp64". Static storage. */
const char *pl_dtype_name(pl_dtype dtype);

/* The type of that name; the spellings of config.json ("bfloat16", "float32", ...) are known too.
 * False when there is none. */
bool pl_dtype_parse(pl_dtype *out, const char *name);

#ifdef __cplusplus
}
#endif
#endif
