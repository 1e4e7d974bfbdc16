/* The kinds of value that a checkpoint keeps of a tensor. */
#ifndef PL_COMMON_VALUE_KIND_H
#define PL_COMMON_VALUE_KIND_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pl_value_kind {
    PL_VALUE_PARAMETER, /* as trained: in the wire type, frozen tensors in their stored one */
    PL_VALUE_MASTER,    /* fp32, where it stands apart from the parameter */
    PL_VALUE_ADAM_M,    /* first moment */
    PL_VALUE_ADAM_V,    /* second moment */
    PL_VALUE_KIND_COUNT
} pl_value_kind;

/* "param", "master", "adam_m", "adam_v". Static storage. */
const char *pl_value_kind_name(pl_value_kind kind);

/* The kind of that name, spelt exactly so. False, and *OUT as it was, when there is none. */
bool pl_value_kind_parse(pl_value_kind *out, const char *name);

#ifdef __cplusplus
}
#endif
#endif
