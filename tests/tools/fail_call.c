/* Loaded before a program (LD_PRELOAD), stops it or fails it at one of the calls that change files.
 *
 * Environment: PLEAT_COUNT_CALLS=FILE gets the number of such calls, written when the program ends.
 * PLEAT_CALL_AT=N picks call number N (1 is the first), PLEAT_CALL_HOW says what happens to it:
 * "kill" (SIGKILL before it is made), "ENOSPC" or "EIO" (it is not made, and fails so), "short" (a
 * write takes half of its bytes; other calls are made as they are). With "ENOSPC" and "EIO" the
 * later calls that take room fail as well, as a full or broken disk does.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_llong calls, chosen;
static atomic_int error_number; /* 0: none */
static atomic_bool shortens, kills, broken;

__attribute__((constructor)) static void begin(void)
{
    const char *at = getenv("PLEAT_CALL_AT"), *how = getenv("PLEAT_CALL_HOW");
    atomic_store(&chosen, at ? atoll(at) : 0);
    if (!how) return;
    atomic_store(&kills, strcmp(how, "kill") == 0);
    atomic_store(&shortens, strcmp(how, "short") == 0);
    if (strcmp(how, "ENOSPC") == 0) atomic_store(&error_number, ENOSPC);
    if (strcmp(how, "EIO") == 0) atomic_store(&error_number, EIO);
}

__attribute__((destructor)) static void end(void)
{
    const char *file = getenv("PLEAT_COUNT_CALLS");
    char text[32];
    int length = snprintf(text, sizeof text, "%lld\n", (long long)atomic_load(&calls));
    int out =
        file ? (int)syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_TRUNC, 0666) : -1;
    if (out >= 0) (void)!syscall(SYS_write, out, text, length);
}

/* Count a call. Whether it fails; *IS_SHORT: it is the one to be shortened. */
static bool fails(bool takes_room, bool *is_short)
{
    bool is_it = atomic_fetch_add(&calls, 1) + 1 == atomic_load(&chosen);
    int error = atomic_load(&error_number);
    if (is_short) *is_short = is_it && atomic_load(&shortens);
    if (is_it && atomic_load(&kills)) kill(getpid(), SIGKILL);
    if (is_it && error) atomic_store(&broken, true);
    if (!error || (!is_it && !(takes_room && atomic_load(&broken)))) return false;
    errno = error;
    return true;
}

/* Standard output and the like are no files of checkpoints. */
static bool is_file(int descriptor)
{
    struct stat info;
    return descriptor > 2 && fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode);
}

#define NEXT(name) (__extension__(__typeof__(&name)) dlsym(RTLD_NEXT, #name))

static bool changes(int flags) { return (flags & (O_WRONLY | O_RDWR | O_CREAT)) != 0; }

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        va_list list;                                                                              \
        va_start(list, flags);                                                                     \
        mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;                                  \
        va_end(list);                                                                              \
        if (changes(flags) && fails(true, NULL)) return -1;                                        \
        return NEXT(name)(path, flags, mode);                                                      \
    }
OPEN(open)
OPEN(open64)

ssize_t write(int descriptor, const void *bytes, size_t count)
{
    bool is_short = false;
    if (is_file(descriptor) && fails(true, &is_short)) return -1;
    return NEXT(write)(descriptor, bytes, is_short && count > 1 ? count / 2 : count);
}

ssize_t pwrite(int descriptor, const void *bytes, size_t count, off_t offset)
{
    bool is_short = false;
    if (fails(true, &is_short)) return -1;
    return NEXT(pwrite)(descriptor, bytes, is_short && count > 1 ? count / 2 : count, offset);
}

ssize_t pwrite64(int descriptor, const void *bytes, size_t count, off64_t offset)
{
    bool is_short = false;
    if (fails(true, &is_short)) return -1;
    return NEXT(pwrite64)(descriptor, bytes, is_short && count > 1 ? count / 2 : count, offset);
}

#define CALL(result, name, parameters, takes_room, arguments)                                      \
    result name parameters                                                                         \
    {                                                                                              \
        if (fails(takes_room, NULL)) return -1;                                                    \
        return NEXT(name) arguments;                                                               \
    }
CALL(int, fsync, (int descriptor), true, (descriptor))
CALL(int, fdatasync, (int descriptor), true, (descriptor))
CALL(int, ftruncate, (int descriptor, off_t length), true, (descriptor, length))
CALL(int, ftruncate64, (int descriptor, off64_t length), true, (descriptor, length))
CALL(int, mkdir, (const char *path, mode_t mode), true, (path, mode))
CALL(int, rename, (const char *from, const char *to), false, (from, to))
CALL(int, renameat2, (int a, const char *from, int b, const char *to, unsigned flags), false,
     (a, from, b, to, flags))
CALL(int, unlink, (const char *path), false, (path))
CALL(int, unlinkat, (int folder, const char *path, int flags), false, (folder, path, flags))
CALL(int, rmdir, (const char *path), false, (path))
CALL(int, remove, (const char *path), false, (path))
