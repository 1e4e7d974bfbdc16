/* Loaded before a program (LD_PRELOAD), makes one of its memory allocations fail.
 *
 * Environment: PLEAT_FAIL_ALLOCATION=N lets allocation number N (1 is the first after start-up)
 * return NULL; all others succeed. PLEAT_COUNT_ALLOCATIONS=FILE gets the number of allocations,
 * written when the program ends. An allocation of OpenBLAS is let succeed: it does not look whether
 * those for small products did. glibc only: its allocator is also known by the names used here,
 * so that no look-up is needed, which would itself allocate.
 */
#define _GNU_SOURCE /* dladdr */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *pointer, size_t size);

/* The C library's names are given to the linker only: to the compiler they mean more. */
void *fail_malloc(size_t size) __asm__("malloc");
void *fail_calloc(size_t count, size_t size) __asm__("calloc");
void *fail_realloc(void *pointer, size_t size) __asm__("realloc");

static atomic_llong allocations;
static atomic_llong to_fail;
static atomic_bool counting;

static bool is_of_openblas(const void *caller)
{
    Dl_info found;
    return dladdr(caller, &found) && found.dli_fname && strstr(found.dli_fname, "libopenblas");
}

static bool fails(const void *caller)
{
    if (!atomic_load(&counting)) return false;
    if (atomic_fetch_add(&allocations, 1) + 1 != atomic_load(&to_fail)) return false;
    if (is_of_openblas(caller)) return false;
    errno = ENOMEM;
    return true;
}

void *fail_malloc(size_t size)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}

void *fail_calloc(size_t count, size_t size)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(count, size);
}

void *fail_realloc(void *pointer, size_t size)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(pointer, size);
}

__attribute__((constructor)) static void begin(void)
{
    const char *number = getenv("PLEAT_FAIL_ALLOCATION");
    if (number) atomic_store(&to_fail, strtoll(number, NULL, 10));
    atomic_store(&counting, true);
}

__attribute__((destructor)) static void end(void)
{
    atomic_store(&counting, false);
    const char *file = getenv("PLEAT_COUNT_ALLOCATIONS");
    if (!file) return;
    char digits[24];
    size_t at = sizeof digits;
    digits[--at] = '\n';
    long long rest = atomic_load(&allocations);
    do digits[--at] = (char)('0' + rest % 10);
    while (rest /= 10);
    int out = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (out < 0) return;
    if (write(out, digits + at, sizeof digits - at) < 0) _exit(70);
    close(out);
}
