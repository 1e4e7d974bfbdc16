/* Element types of safetensors. */
#include "ckpt/safetensors.h"

enum { NONE = PL_DTYPE_COUNT };

static const struct {
    const char *name;
    int bits;
    int dtype; /* pl_dtype, or NONE */
} types[PL_SAFETENSORS_TYPE_COUNT] = {
    [PL_SAFETENSORS_BOOL] = {"BOOL", 8, NONE},
    [PL_SAFETENSORS_F4] = {"F4", 4, NONE},
    [PL_SAFETENSORS_F6_E2M3] = {"F6_E2M3", 6, NONE},
    [PL_SAFETENSORS_F6_E3M2] = {"F6_E3M2", 6, NONE},
    [PL_SAFETENSORS_U8] = {"U8", 8, PL_U8},
    [PL_SAFETENSORS_I8] = {"I8", 8, NONE},
    [PL_SAFETENSORS_F8_E5M2] = {"F8_E5M2", 8, NONE},
    [PL_SAFETENSORS_F8_E4M3] = {"F8_E4M3", 8, NONE},
    [PL_SAFETENSORS_F8_E8M0] = {"F8_E8M0", 8, NONE},
    [PL_SAFETENSORS_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8, NONE},
    [PL_SAFETENSORS_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8, NONE},
    [PL_SAFETENSORS_I16] = {"I16", 16, NONE},
    [PL_SAFETENSORS_U16] = {"U16", 16, NONE},
    [PL_SAFETENSORS_F16] = {"F16", 16, PL_FP16},
    [PL_SAFETENSORS_BF16] = {"BF16", 16, PL_BF16},
    [PL_SAFETENSORS_I32] = {"I32", 32, PL_I32},
    [PL_SAFETENSORS_U32] = {"U32", 32, NONE},
    [PL_SAFETENSORS_F32] = {"F32", 32, PL_FP32},
    [PL_SAFETENSORS_C64] = {"C64", 64, NONE},
    [PL_SAFETENSORS_F64] = {"F64", 64, PL_FP64},
    [PL_SAFETENSORS_I64] = {"I64", 64, PL_I64},
    [PL_SAFETENSORS_U64] = {"U64", 64, NONE},
};

const char *pl_safetensors_type_name(pl_safetensors_type type) { return types[type].name; }

int pl_safetensors_type_bits(pl_safetensors_type type) { return types[type].bits; }

bool pl_safetensors_type_dtype(pl_dtype *out, pl_safetensors_type type)
{
    if (types[type].dtype == NONE) return false;
    *out = (pl_dtype)types[type].dtype;
    return true;
}

pl_safetensors_type pl_safetensors_type_of(pl_dtype dtype)
{
    int type = 0;
    while (type < PL_SAFETENSORS_TYPE_COUNT - 1 && types[type].dtype != (int)dtype) ++type;
    return (pl_safetensors_type)type;
}
