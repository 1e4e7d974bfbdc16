#include "kernels/checks.h"

#include "common/text.h"

pl_status pl_device_refuse_list(const pl_device *device, pl_status code, const char *what,
                                const char *format, va_list arguments)
{
    pl_text words = {0}, name = {0};
    pl_text_add_list(&words, format, arguments);
    pl_entry_name_print(&name, &device->entry);
    pl_error_record("%s in entry %s: %s", what, pl_text_string(&name), pl_text_string(&words));
    pl_text_free(&words);
    pl_text_free(&name);
    return code;
}

pl_status pl_device_refuse(const pl_device *device, pl_status code, const char *what,
                           const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    pl_status status = pl_device_refuse_list(device, code, what, format, arguments);
    va_end(arguments);
    return status;
}

pl_status pl_device_require(const pl_device *device, const char *what, bool holds, const char *rule)
{
    if (holds) return PL_OK;
    return pl_device_refuse(device, PL_INTERNAL, what, "%s: this does not hold", rule);
}

pl_status pl_device_elements(const pl_device *device, const char *what, int64_t *elements,
                             int64_t a, int64_t b, int64_t c)
{
    int64_t product = 0, bytes = 0;
    bool fits = a >= 0 && b >= 0 && c >= 0 && !__builtin_mul_overflow(a, b, &product) &&
                !__builtin_mul_overflow(product, c, &product) &&
                !__builtin_mul_overflow(product, (int64_t)8, &bytes);
    PL_TRY(pl_device_require(device, what, fits, "sizes are at least 0 and fit 63 bits in bytes"));
    *elements = product;
    return PL_OK;
}
