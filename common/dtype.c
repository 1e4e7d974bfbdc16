#include "common/dtype.h"

#include <stddef.h>
#include <string.h>

static const struct {
    const char *name, *long_name;
    int bytes;
} dtypes[PL_DTYPE_COUNT] = {
    [PL_U8] = {"u8", "uint8", 1},       [PL_I32] = {"i32", "int32", 4},
    [PL_I64] = {"i64", "int64", 8},     [PL_BF16] = {"bf16", "bfloat16", 2},
    [PL_FP16] = {"fp16", "float16", 2}, [PL_FP32] = {"fp32", "float32", 4},
    [PL_FP64] = {"fp64", "float64", 8},
};

int pl_dtype_bytes(pl_dtype dtype) { return dtypes[dtype].bytes; }

const char *pl_dtype_name(pl_dtype dtype) { return dtypes[dtype].name; }

bool pl_dtype_parse(pl_dtype *out, const char *name)
{
    for (int i = 0; i < PL_DTYPE_COUNT; ++i) {
        if (strcmp(name, dtypes[i].name) == 0 || strcmp(name, dtypes[i].long_name) == 0) {
            *out = (pl_dtype)i;
            return true;
        }
    }
    return false;
}
