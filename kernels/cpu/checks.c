#include <stdarg.h>

#include "common/text.h"
#include "kernels/cpu/cpu.h"

pl_status pl_cpu_refuse(const pl_device *device, pl_status code, const char *what,
                        const char *format, ...)
{
    pl_text words = {0}, name = {0};
    va_list arguments;
    va_start(arguments, format);
    pl_text_add_list(&words, format, arguments);
    va_end(arguments);
    pl_entry_name_print(&name, &device->entry);
    pl_error_record("%s in entry %s: %s", what, pl_text_string(&name), pl_text_string(&words));
    pl_text_free(&words);
    pl_text_free(&name);
    return code;
}

pl_status pl_cpu_require_fp32(const pl_device *device, const char *what, pl_dtype dtype)
{
    if (dtype == PL_FP32) return PL_OK;
    return pl_cpu_refuse(device, PL_UNSUPPORTED, what,
                         "the CPU backend computes in fp32, not in %s", pl_dtype_name(dtype));
}

pl_status pl_cpu_require(const pl_device *device, const char *what, bool holds, const char *rule)
{
    if (holds) return PL_OK;
    return pl_cpu_refuse(device, PL_INTERNAL, what, "%s: this does not hold", rule);
}

pl_status pl_cpu_elements(const pl_device *device, const char *what, int64_t *elements, int64_t a,
                          int64_t b, int64_t c)
{
    int64_t product = 0, bytes = 0;
    bool fits = a >= 0 && b >= 0 && c >= 0 && !__builtin_mul_overflow(a, b, &product) &&
                !__builtin_mul_overflow(product, c, &product) &&
                !__builtin_mul_overflow(product, (int64_t)8, &bytes);
    PL_TRY(pl_cpu_require(device, what, fits, "sizes are at least 0 and fit 63 bits in bytes"));
    *elements = product;
    return PL_OK;
}
