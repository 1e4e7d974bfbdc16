#include "common/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local int64_t fail_after = -1;
static _Thread_local int failed;
static _Thread_local int library_failed;
static _Thread_local struct {
    char *start;
    size_t size, used;
} reserve;

void pl_allocation_fail_after(int64_t after)
{
    fail_after = after;
    failed = 0;
}

int pl_allocation_failed(void) { return failed; }

static int failure_is_due(void)
{
    if (fail_after < 0 || fail_after-- > 0) return 0;
    failed = 1;
    return 1;
}

/* A piece of the reserve, or NULL. */
static void *from_reserve(size_t bytes)
{
    if (!reserve.start || bytes == 0 || (bytes & (bytes - 1)) != 0) return NULL;
    size_t room = bytes < sizeof(max_align_t) ? sizeof(max_align_t) : bytes;
    if (room > reserve.size - reserve.used) return NULL;
    reserve.used += room;
    return reserve.start + reserve.used - room;
}

void *pl_library_allocate(size_t bytes)
{
    void *pointer = failure_is_due() ? NULL : malloc(bytes ? bytes : 1);
    if (pointer) return pointer;
    library_failed = 1;
    return from_reserve(bytes);
}

void pl_library_free(void *pointer)
{
    uintptr_t at = (uintptr_t)pointer, start = (uintptr_t)reserve.start;
    if (!reserve.start || at < start || at - start >= reserve.size) free(pointer);
}

pl_status pl_library_hold_reserve(size_t bytes, const char *what)
{
    reserve.used = 0;
    reserve.size = bytes;
    return pl_allocate(&reserve.start, bytes, 1, what);
}

void pl_library_drop_reserve(void)
{
    pl_free(reserve.start);
    reserve.start = NULL;
}

int pl_library_failed(void) { return library_failed; }

void pl_library_forget_failure(void) { library_failed = 0; }

static pl_status out_of_memory(size_t count, size_t size, const char *what)
{
    return PL_FAIL(PL_NO_MEMORY, "out of memory: %zu x %zu bytes for %s", count, size, what);
}

pl_status pl_allocate(void *pointer_out, size_t count, size_t size, const char *what)
{
    void *pointer = NULL;
    size_t bytes = 0;
    if (!__builtin_mul_overflow(count, size, &bytes) && !failure_is_due())
        pointer = calloc(bytes ? bytes : 1, 1);
    if (!pointer) return out_of_memory(count, size, what);
    memcpy(pointer_out, &pointer, sizeof pointer);
    return PL_OK;
}

pl_status pl_grow(void *array, size_t *capacity, size_t needed, size_t size, const char *what)
{
    if (needed <= *capacity) return PL_OK;
    void *old = NULL;
    memcpy(&old, array, sizeof old);
    size_t wanted = *capacity + *capacity / 2;
    if (wanted < needed) wanted = needed;
    if (wanted < 16) wanted = 16;
    size_t bytes = 0;
    void *pointer = NULL;
    if (!__builtin_mul_overflow(wanted, size ? size : 1, &bytes) && !failure_is_due())
        pointer = realloc(old, bytes);
    if (!pointer) return out_of_memory(wanted, size, what);
    memcpy(array, &pointer, sizeof pointer);
    *capacity = wanted;
    return PL_OK;
}

pl_status pl_duplicate(char **out, const char *text, const char *what)
{
    size_t length = strlen(text) + 1;
    char *copy = NULL;
    PL_TRY(pl_allocate(&copy, length, 1, what));
    memcpy(copy, text, length);
    *out = copy;
    return PL_OK;
}

void pl_free(void *pointer) { free(pointer); }

pl_status pl_multiply(int64_t *out, int64_t a, int64_t b, const char *what)
{
    int64_t product = 0;
    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product))
        return PL_FAIL(PL_BAD_INPUT, "%s: %" PRId64 " x %" PRId64 " does not fit 63 bits", what, a,
                       b);
    *out = product;
    return PL_OK;
}

pl_status pl_add(int64_t *out, int64_t a, int64_t b, const char *what)
{
    int64_t sum = 0;
    if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &sum))
        return PL_FAIL(PL_BAD_INPUT, "%s: %" PRId64 " + %" PRId64 " does not fit 63 bits", what, a,
                       b);
    *out = sum;
    return PL_OK;
}
