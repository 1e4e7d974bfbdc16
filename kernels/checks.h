/* Refusals of device operations, in the words that all backends use. */
#ifndef PL_KERNELS_CHECKS_H
#define PL_KERNELS_CHECKS_H

#include <stdarg.h>

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Record "WHAT in entry gather layer.3: words", with the entry that DEVICE is called for, and
 * return CODE. */
pl_status pl_device_refuse(const pl_device *device, pl_status code, const char *what,
                           const char *format, ...) __attribute__((format(printf, 4, 5)));
pl_status pl_device_refuse_list(const pl_device *device, pl_status code, const char *what,
                                const char *format, va_list arguments)
    __attribute__((format(printf, 4, 0)));

/* PL_INTERNAL unless HOLDS: operation WHAT was given arguments that contradict its description.
 * RULE says what should be true: "rows and cols are at least 0". */
pl_status pl_device_require(const pl_device *device, const char *what, bool holds,
                            const char *rule);

/* *ELEMENTS = A * B * C, each at least 0, in a size that leaves room for eight bytes an element.
 * PL_INTERNAL otherwise. */
pl_status pl_device_elements(const pl_device *device, const char *what, int64_t *elements,
                             int64_t a, int64_t b, int64_t c);

#ifdef __cplusplus
}
#endif
#endif
