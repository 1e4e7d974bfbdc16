#include "common/file_bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool pl_file_is_wrong_name(int cause)
{
    return cause == ENOENT || cause == ENOTDIR || cause == EACCES || cause == ELOOP ||
           cause == ENAMETOOLONG || cause == ENXIO || cause == EISDIR;
}

static pl_status check_file(int64_t *bytes_out, int descriptor, const char *file)
{
    struct stat info;
    if (fstat(descriptor, &info) != 0)
        return PL_FAIL(PL_IO_FAILED, "%s: %s", file, strerror(errno));
    if (!S_ISREG(info.st_mode)) return PL_FAIL(PL_BAD_INPUT, "%s: not a regular file", file);
    *bytes_out = info.st_size;
    return PL_OK;
}

pl_status pl_file_open(int *descriptor_out, int64_t *bytes_out, const char *file)
{
    /* Without O_NONBLOCK, opening a FIFO waits for its writer. */
    int descriptor = open(file, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0)
        return PL_FAIL(pl_file_is_wrong_name(errno) ? PL_BAD_INPUT : PL_IO_FAILED, "%s: %s", file,
                       strerror(errno));
    pl_status status = check_file(bytes_out, descriptor, file);
    if (status == PL_OK)
        *descriptor_out = descriptor;
    else
        close(descriptor);
    return status;
}

static size_t piece_of(int64_t bytes)
{
    return (size_t)(bytes < PL_FILE_PIECE ? bytes : PL_FILE_PIECE);
}

pl_status pl_file_read(int descriptor, const char *file, int64_t offset, int64_t bytes, void *out)
{
    int64_t done = 0;
    while (done < bytes) {
        ssize_t moved =
            pread(descriptor, (char *)out + done, piece_of(bytes - done), (off_t)(offset + done));
        if (moved < 0 && errno == EINTR) continue;
        if (moved < 0)
            return PL_FAIL(PL_IO_FAILED, "%s: reading %" PRId64 " bytes at %" PRId64 ": %s", file,
                           bytes, offset, strerror(errno));
        if (moved == 0)
            return PL_FAIL(PL_IO_FAILED,
                           "%s: it ends at byte %" PRId64 ", and %" PRId64 " bytes at %" PRId64
                           " were to be read: it was cut short meanwhile",
                           file, offset + done, bytes, offset);
        done += moved;
    }
    return PL_OK;
}

void pl_file_expect(int descriptor, int64_t offset, int64_t bytes)
{
    (void)posix_fadvise(descriptor, (off_t)offset, (off_t)bytes, POSIX_FADV_WILLNEED);
}

pl_status pl_file_write(int descriptor, const char *file, int64_t offset, int64_t bytes,
                        const void *values)
{
    int64_t done = 0;
    while (done < bytes) {
        ssize_t moved = pwrite(descriptor, (const char *)values + done, piece_of(bytes - done),
                               (off_t)(offset + done));
        if (moved < 0 && errno == EINTR) continue;
        if (moved <= 0)
            return PL_FAIL(
                PL_IO_FAILED, "%s: %" PRId64 " of %" PRId64 " bytes written at %" PRId64 ": %s",
                file, done, bytes, offset, moved < 0 ? strerror(errno) : "the system took nothing");
        done += moved;
    }
    return PL_OK;
}
