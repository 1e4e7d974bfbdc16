#include "train/append_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/memory.h"
#include "common/text.h"

static pl_status fail_on(const char *file, const char *what)
{
    int error = errno;
    return PL_FAIL(PL_IO_FAILED, "%s: %s: %s", file, what, strerror(error));
}

static pl_status open_new(int *descriptor, const char *file)
{
    *descriptor = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0666);
    return *descriptor < 0 ? fail_on(file, "cannot be made") : PL_OK;
}

/* A call that takes only a part is followed by another for the rest, which has the reason. */
static pl_status write_bytes(int descriptor, const char *file, const char *bytes, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t wrote = write(descriptor, bytes + done, length - done);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote == 0) errno = ENOSPC;
        if (wrote <= 0) return fail_on(file, "cannot be written");
        done += (size_t)wrote;
    }
    return PL_OK;
}

static pl_status open_end(int *descriptor, int64_t *length, const char *file)
{
    *descriptor = open(file, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (*descriptor < 0) return fail_on(file, "cannot be opened");
    *length = lseek(*descriptor, 0, SEEK_END);
    if (*length >= 0) return PL_OK;
    pl_status status = fail_on(file, "its end cannot be found");
    close(*descriptor);
    return status;
}

static pl_status open_file(pl_append_file *out, const char *file, bool is_new)
{
    char *name = NULL;
    int descriptor = -1;
    int64_t length = 0;
    PL_TRY(pl_duplicate(&name, file, "a file name"));
    pl_status status = is_new ? open_new(&descriptor, file) : open_end(&descriptor, &length, file);
    if (status != PL_OK) {
        pl_free(name);
        return status;
    }
    *out = (pl_append_file){.descriptor = descriptor, .name = name, .length = length};
    return PL_OK;
}

pl_status pl_append_file_open(pl_append_file *out, const char *file)
{
    return open_file(out, file, true);
}

pl_status pl_append_file_continue(pl_append_file *out, const char *file)
{
    return open_file(out, file, false);
}

pl_status pl_append_file_add(pl_append_file *file, const void *bytes, size_t length)
{
    pl_status status = write_bytes(file->descriptor, file->name, bytes, length);
    if (status == PL_OK) {
        file->length += (int64_t)length;
    } else if (ftruncate(file->descriptor, (off_t)file->length) != 0 ||
               lseek(file->descriptor, 0, SEEK_END) < 0) {
        pl_error_context("and its last record, which is not whole, cannot be cut off: %s",
                         strerror(errno));
    }
    return status;
}

pl_status pl_append_file_close(pl_append_file *file)
{
    pl_status status = PL_OK;
    if (file->name && file->descriptor >= 0 && close(file->descriptor) != 0)
        status = fail_on(file->name, "cannot be closed");
    pl_free(file->name);
    *file = (pl_append_file){.descriptor = -1};
    return status;
}

static pl_status write_and_sync(const char *file, const void *bytes, size_t length)
{
    int descriptor = -1;
    PL_TRY(open_new(&descriptor, file));
    pl_status status = write_bytes(descriptor, file, bytes, length);
    if (status == PL_OK && fsync(descriptor) != 0) status = fail_on(file, "cannot be synced");
    if (close(descriptor) != 0 && status == PL_OK) status = fail_on(file, "cannot be closed");
    return status;
}

pl_status pl_write_whole_file(const char *file, const void *bytes, size_t length)
{
    pl_text temporary = {0};
    pl_text_add(&temporary, "%s.tmp", file);
    pl_status status = pl_text_status(&temporary);
    if (status != PL_OK) return status;
    const char *name = pl_text_string(&temporary);
    status = write_and_sync(name, bytes, length);
    if (status == PL_OK && rename(name, file) != 0) status = fail_on(file, "cannot be replaced");
    if (status != PL_OK) unlink(name);
    pl_text_free(&temporary);
    return status;
}
