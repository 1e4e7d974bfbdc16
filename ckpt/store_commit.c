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

pl_status pl_checkpoint_check(const char *root, int64_t step, int64_t bytes)
{
    pl_text path = {0};
    pl_status status = pl_checkpoint_path(&path, root, step);
    if (status == PL_OK) status = check_absent(pl_text_string(&path));
    if (status == PL_OK) status = check_room(root, bytes);
    pl_text_free(&path);
    return status;
}

pl_status pl_checkpoint_begin(pl_text *folder, const char *root, int64_t step, uint64_t nonce)
{
    PL_TRY(pl_checkpoint_temporary_path(folder, root, step, nonce));
    if (mkdir(pl_text_string(folder), 0777) == 0 || errno == EEXIST) return PL_OK;
    return failed(pl_text_string(folder), "making the folder");
}

/* --- the ranks' lists --- */

/* What the manifest is to have of a rank, from its list, of which TEXT is the whole. */
static pl_status take_facts(pl_manifest_rank *facts, const pl_manifest *manifest, const char *text,
                            size_t length, const char *path)
{
    pl_rank_boxes rank;
    PL_TRY(pl_rank_boxes_parse(&rank, manifest, text, length, path));
    *facts = (pl_manifest_rank){
        .rank = rank.rank,
        .data = {rank.data_bytes, pl_hash_pair(rank.sums_hash, rank.outside_hash)},
        .boxes = {(int64_t)length, pl_hash(text, length)},
        .sums = {rank.boxes.sums * 8, rank.sums_hash}};
    pl_rank_boxes_free(&rank);
    return PL_OK;
}

static pl_status collect_rank(pl_manifest *manifest, const char *folder, int64_t rank)
{
    enum { MOST_BYTES = 1 << 30 };
    char name[PL_MANIFEST_NAME], *text = NULL;
    size_t length = 0;
    struct stat info;
    pl_text path = {0};
    pl_status status = pl_manifest_path(&path, folder, pl_manifest_rank_file(rank, ".json", name));
    const char *file = pl_text_string(&path);
    if (status == PL_OK && stat(file, &info) == 0) {
        status = pl_read_file(&text, &length, file, MOST_BYTES);
        if (status == PL_OK)
            status =
                take_facts(&manifest->ranks[manifest->rank_count], manifest, text, length, file);
        manifest->rank_count += status == PL_OK;
    }
    pl_free(text);
    pl_text_free(&path);
    return status;
}

pl_status pl_checkpoint_collect(const char *root, uint64_t nonce, pl_manifest *manifest)
{
    pl_text folder = {0};
    pl_free(manifest->ranks);
    manifest->ranks = NULL;
    manifest->rank_count = 0;
    PL_TRY(pl_allocate(&manifest->ranks, (size_t)manifest->layout.world, sizeof *manifest->ranks,
                       "files of ranks"));
    pl_status status = pl_checkpoint_temporary_path(&folder, root, manifest->progress.step, nonce);
    for (int64_t rank = 0; status == PL_OK && rank < manifest->layout.world; ++rank)
        status = collect_rank(manifest, pl_text_string(&folder), rank);
    pl_text_free(&folder);
    return status;
}

/* --- the commit --- */

static pl_status hash_file(pl_file_facts *out, const char *path)
{
    int descriptor = -1;
    PL_TRY(pl_file_open(&descriptor, &out->bytes, path));
    pl_status status = pl_store_whole_hash(&out->hash, descriptor, path, out->bytes);
    if (status == PL_OK && fsync(descriptor) != 0) status = failed(path, "fsync");
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
