#include "common/value_kind.h"

#include <string.h>

static const char *const names[PL_VALUE_KIND_COUNT] = {
    [PL_VALUE_PARAMETER] = "param",
    [PL_VALUE_MASTER] = "master",
    [PL_VALUE_ADAM_M] = "adam_m",
    [PL_VALUE_ADAM_V] = "adam_v",
};

const char *pl_value_kind_name(pl_value_kind kind) { return names[kind]; }

bool pl_value_kind_parse(pl_value_kind *out, const char *name)
{
    for (int i = 0; i < PL_VALUE_KIND_COUNT; ++i) {
        if (strcmp(name, names[i]) == 0) {
            *out = (pl_value_kind)i;
            return true;
        }
    }
    return false;
}
