/* How a checkpoint comes to be. */
#define _GNU_SOURCE /* renameat2 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "ckpt/store_folder.h"
#include "ckpt/store_layout.h"
#include "ckpt/store_writer.h"
#include "common/file_bytes.h"
#include "common/memory.h"

static pl_status failed(const char *path, const char *what)
{
    return PL_FAIL(PL_IO_FAILED, "%s: %s: %s", path, what, strerror(errno));
}

pl_status pl_checkpoint_draw_nonce(uint64_t *out)
{
    uint64_t nonce = 0;
    if (getrandom(&nonce, sizeof nonce, 0) != (ssize_t)sizeof nonce)
        return PL_FAIL(PL_IO_FAILED, "the system gives no random number: %s", strerror(errno));
    *out = nonce >> 1 | 1; /* a positive int64_t, for flags that ranks compare */
    return PL_OK;
}

static pl_status check_room(const char *root, int64_t bytes)
{
    char needed[32], there[32];
    struct statvfs info;
    if (statvfs(root, &info) != 0) return failed(root, "asking for free space");
    uint64_t available = (uint64_t)info.f_bavail * info.f_frsize;
    if ((uint64_t)bytes <= available) return PL_OK;
    return PL_FAIL(PL_IO_FAILED,
                   "%s: a checkpoint needs %s, and %s are free there: make room, or keep fewer "
                   "checkpoints",
                   root, pl_format_bytes(needed, bytes),
                   pl_format_bytes(there, (int64_t)(available & INT64_MAX)));
}

static pl_status check_absent(const char *path)
{
    struct stat info;
    if (lstat(path, &info) != 0 && errno == ENOENT) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT, "%s: it is there already, and a checkpoint is never written over",
                   path);
}

pl_status pl_checkpoint_begin(const char *root, int64_t step, uint64_t nonce, int64_t bytes)
{
    pl_text path = {0};
    pl_status status = pl_checkpoint_path(&path, root, step);
    if (status == PL_OK) status = check_absent(pl_text_string(&path));
    if (status == PL_OK) status = check_room(root, bytes);
    if (status == PL_OK) status = pl_checkpoint_temporary_path(&path, root, step, nonce);
    if (status == PL_OK && mkdir(pl_text_string(&path), 0777) != 0)
        status = failed(pl_text_string(&path), "making the folder");
    pl_text_free(&path);
    return status;
}

pl_status pl_checkpoint_join(const char *root, int64_t step, uint64_t nonce)
{
    pl_text path = {0};
    struct stat info;
    pl_status status = pl_checkpoint_temporary_path(&path, root, step, nonce);
    if (status == PL_OK && stat(pl_text_string(&path), &info) != 0)
        status = PL_FAIL(PL_IO_FAILED,
                         "%s: %s: rank 0 has made this folder, so this process does not see the "
                         "same disk; checkpoints need one that all share",
                         pl_text_string(&path), strerror(errno));
    pl_text_free(&path);
    return status;
}

/* --- the commit --- */

static pl_status hash_file(pl_file_facts *out, const char *path)
{
    enum { PIECE = 1 << 20 };
    int descriptor = -1;
    char *room = NULL;
    PL_TRY(pl_file_open(&descriptor, &out->bytes, path));
    pl_hash_stream *stream = pl_hash_begin();
    pl_status status = stream ? pl_allocate(&room, PIECE, 1, "a piece of a file") : PL_NO_MEMORY;
    for (int64_t at = 0; status == PL_OK && at < out->bytes; at += PIECE) {
        int64_t some = out->bytes - at < PIECE ? out->bytes - at : PIECE;
        status = pl_file_read(descriptor, path, at, some, room);
        if (status == PL_OK) pl_hash_add(stream, room, (size_t)some);
    }
    if (status == PL_OK) out->hash = pl_hash_so_far(stream);
    if (status == PL_OK && fsync(descriptor) != 0) status = failed(path, "fsync");
    pl_free(room);
    pl_hash_end(stream);
    close(descriptor);
    return status;
}

static pl_status write_index(const char *folder, pl_manifest *manifest)
{
    pl_checkpoint_map map;
    pl_text path = {0};
    PL_TRY(pl_checkpoint_map_read(&map, manifest, folder));
    pl_status status = pl_manifest_path(&path, folder, PL_MANIFEST_INDEX);
    if (status == PL_OK) status = pl_store_write_index(pl_text_string(&path), manifest, &map);
    if (status == PL_OK) status = hash_file(&manifest->index, pl_text_string(&path));
    pl_checkpoint_map_free(&map);
    pl_text_free(&path);
    return status;
}

static pl_status write_manifest(const char *folder, const pl_manifest *manifest)
{
    pl_text path = {0}, text = {0};
    pl_status status = pl_manifest_write(&text, manifest);
    if (status == PL_OK) status = pl_manifest_path(&path, folder, PL_MANIFEST_FILE);
    if (status == PL_OK) status = pl_store_new_file(pl_text_string(&path), text.bytes, text.length);
    pl_text_free(&path);
    pl_text_free(&text);
    return status;
}

/* Where the file system cannot rename without replacing, a look has to do. */
static pl_status put_in_place(const char *from, const char *to)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return PL_OK;
    if (errno != EINVAL && errno != ENOSYS) return failed(to, "giving the checkpoint its name");
    PL_TRY(check_absent(to));
    return rename(from, to) == 0 ? PL_OK : failed(to, "giving the checkpoint its name");
}

pl_status pl_checkpoint_commit(const char *root, uint64_t nonce, pl_manifest *manifest)
{
    pl_text from = {0}, to = {0};
    int64_t step = manifest->progress.step;
    pl_status status = pl_checkpoint_temporary_path(&from, root, step, nonce);
    const char *folder = pl_text_string(&from);
    if (status == PL_OK) status = pl_checkpoint_path(&to, root, step);
    if (status == PL_OK) status = write_index(folder, manifest);
    if (status == PL_OK) status = write_manifest(folder, manifest);
    if (status == PL_OK) status = pl_store_sync_folder(folder);
    if (status == PL_OK) status = put_in_place(folder, pl_text_string(&to));
    if (status == PL_OK) status = pl_store_sync_folder(root);
    pl_text_free(&from);
    pl_text_free(&to);
    return status;
}
