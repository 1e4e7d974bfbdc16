#include <stdarg.h>

#include "kernels/checks.h"
#include "kernels/cpu/cpu.h"

pl_status pl_cpu_refuse(const pl_device *device, pl_status code, const char *what,
                        const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    pl_status status = pl_device_refuse_list(device, code, what, format, arguments);
    va_end(arguments);
    return status;
}

pl_status pl_cpu_require_fp32(const pl_device *device, const char *what, pl_dtype dtype)
{
    if (dtype == PL_FP32) return PL_OK;
    return pl_cpu_refuse(device, PL_UNSUPPORTED, what,
                         "the CPU backend computes in fp32, not in %s", pl_dtype_name(dtype));
}

pl_status pl_cpu_require(const pl_device *device, const char *what, bool holds, const char *rule)
{
    return pl_device_require(device, what, holds, rule);
}

pl_status pl_cpu_elements(const pl_device *device, const char *what, int64_t *elements, int64_t a,
                          int64_t b, int64_t c)
{
    return pl_device_elements(device, what, elements, a, b, c);
}
