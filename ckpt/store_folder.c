/* Names, the lock, and removing. Coming to be: store_commit.c. */
#define _DEFAULT_SOURCE /* flock */
#include "ckpt/store_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/memory.h"

static const char coming[] = ".tmp-", going[] = ".old-";

static pl_status failed(const char *path, const char *what)
{
    return PL_FAIL(PL_IO_FAILED, "%s: %s: %s", path, what, strerror(errno));
}

/* --- names --- */

static pl_status marked_path(pl_text *path, const char *root, int64_t step, const char *mark,
                             uint64_t nonce)
{
    char digits[PL_HASH_TEXT];
    PL_TRY(pl_checkpoint_path(path, root, step));
    pl_text_add(path, "%s%s", mark, pl_hash_print(nonce, digits));
    return pl_text_status(path);
}

pl_status pl_checkpoint_temporary_path(pl_text *path, const char *root, int64_t step,
                                       uint64_t nonce)
{
    return marked_path(path, root, step, coming, nonce);
}

/* A left-over: "step-20.tmp-" or "step-20.old-" and 16 digits. */
static bool is_left_over(const char *rest, uint64_t but)
{
    uint64_t nonce = 0;
    size_t mark = sizeof coming - 1;
    bool comes = strncmp(rest, coming, mark) == 0, goes = strncmp(rest, going, mark) == 0;
    return (comes || goes) && pl_hash_parse(&nonce, rest + mark) && !(comes && nonce == but);
}

/* --- lists --- */

static pl_status add_length(void *context, const char *folder, const char *name)
{
    int64_t *bytes = context;
    struct stat info;
    pl_text path = {0};
    PL_TRY(pl_manifest_path(&path, folder, name));
    if (lstat(pl_text_string(&path), &info) == 0) *bytes += info.st_size;
    pl_text_free(&path);
    return PL_OK;
}

int64_t pl_checkpoint_found(const char *root, int64_t step, uint64_t nonce)
{
    pl_text path = {0};
    struct stat info;
    int64_t bytes = 0;
    if (pl_checkpoint_temporary_path(&path, root, step, nonce) == PL_OK &&
        stat(pl_text_string(&path), &info) == 0 &&
        pl_checkpoint_each_name(pl_text_string(&path), add_length, &bytes) != PL_OK)
        bytes = 0;
    pl_text_free(&path);
    return bytes;
}

pl_status pl_checkpoint_uncommit(const char *folder)
{
    static const char *const files[] = {PL_MANIFEST_FILE, PL_MANIFEST_INDEX};
    pl_text path = {0};
    pl_status status = PL_OK;
    for (size_t i = 0; status == PL_OK && i < sizeof files / sizeof *files; ++i) {
        status = pl_manifest_path(&path, folder, files[i]);
        if (status == PL_OK && unlink(pl_text_string(&path)) != 0 && errno != ENOENT)
            status = failed(pl_text_string(&path), "removing");
    }
    pl_text_free(&path);
    return status;
}

/* --- the lock --- */

pl_status pl_checkpoint_lock(int *lock_out, const char *root)
{
    pl_text path = {0};
    if (mkdir(root, 0777) != 0 && errno != EEXIST) return failed(root, "making the folder");
    pl_status status = pl_manifest_path(&path, root, ".lock");
    int lock =
        status == PL_OK ? open(pl_text_string(&path), O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (status == PL_OK && lock < 0) status = failed(pl_text_string(&path), "opening");
    if (status == PL_OK && flock(lock, LOCK_EX | LOCK_NB) != 0) {
        status = failed(pl_text_string(&path), "locking");
        if (errno == EWOULDBLOCK)
            status =
                PL_FAIL(PL_BAD_INPUT,
                        "%s: another process writes checkpoints there; one at a time may", root);
    }
    if (status == PL_OK)
        *lock_out = lock;
    else if (lock >= 0)
        close(lock);
    pl_text_free(&path);
    return status;
}

void pl_checkpoint_unlock(int lock)
{
    if (lock >= 0) close(lock);
}

/* --- removing --- */

pl_status pl_store_sync_folder(const char *folder)
{
    int descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return failed(folder, "opening");
    pl_status status = fsync(descriptor) == 0 ? PL_OK : failed(folder, "fsync");
    close(descriptor);
    return status;
}

static pl_status remove_file(void *context, const char *folder, const char *name)
{
    pl_text path = {0};
    (void)context;
    pl_status status = pl_manifest_path(&path, folder, name);
    if (status == PL_OK && unlink(pl_text_string(&path)) != 0)
        status = failed(pl_text_string(&path), "removing");
    pl_text_free(&path);
    return status;
}

/* FOLDER and the files in it. */
static pl_status remove_folder(const char *folder)
{
    PL_TRY(pl_checkpoint_each_name(folder, remove_file, NULL));
    return rmdir(folder) == 0 ? PL_OK : failed(folder, "removing");
}

typedef struct cleaning {
    uint64_t but;
    int64_t removed;
} cleaning;

static pl_status remove_left_over(void *context, const char *root, const char *name)
{
    cleaning *c = context;
    int64_t step = 0;
    const char *rest = NULL;
    pl_text path = {0};
    if (!pl_checkpoint_read_name(&step, &rest, name) || !is_left_over(rest, c->but)) return PL_OK;
    pl_status status = pl_manifest_path(&path, root, name);
    if (status == PL_OK) status = remove_folder(pl_text_string(&path));
    pl_text_free(&path);
    c->removed += status == PL_OK;
    return status;
}

pl_status pl_checkpoint_clean(const char *root, uint64_t but, int64_t *removed_out)
{
    cleaning c = {.but = but};
    PL_TRY(pl_checkpoint_each_name(root, remove_left_over, &c));
    if (removed_out) *removed_out = c.removed;
    return PL_OK;
}

static pl_status add_left_over(void *context, const char *root, const char *name)
{
    pl_text *names = context;
    int64_t step = 0;
    const char *rest = NULL;
    (void)root;
    if (pl_checkpoint_read_name(&step, &rest, name) && is_left_over(rest, 0))
        pl_text_add(names, "%s\n", name);
    return pl_text_status(names);
}

pl_status pl_checkpoint_left_overs(pl_text *names, const char *root)
{
    return pl_checkpoint_each_name(root, add_left_over, names);
}

void pl_checkpoint_discard(const char *root, int64_t step, uint64_t nonce)
{
    pl_text path = {0};
    if (pl_checkpoint_temporary_path(&path, root, step, nonce) == PL_OK)
        (void)!(remove_folder(pl_text_string(&path)) == PL_OK);
    pl_text_free(&path);
}

pl_status pl_checkpoint_remove(const char *root, int64_t step)
{
    pl_text path = {0}, old = {0};
    uint64_t nonce = 0;
    pl_status status = pl_checkpoint_draw_nonce(&nonce);
    if (status == PL_OK) status = pl_checkpoint_path(&path, root, step);
    if (status == PL_OK) status = marked_path(&old, root, step, going, nonce);
    if (status == PL_OK && rename(pl_text_string(&path), pl_text_string(&old)) != 0)
        status = failed(pl_text_string(&path), "renaming, to be removed");
    if (status == PL_OK) status = pl_store_sync_folder(root);
    if (status == PL_OK) status = remove_folder(pl_text_string(&old));
    pl_text_free(&path);
    pl_text_free(&old);
    return status;
}

/* Pinned, too, where that cannot be found out. */
static pl_status look_for_pin(bool *pinned, const char *root, int64_t step)
{
    pl_text path = {0};
    struct stat info;
    pl_status status = pl_checkpoint_path(&path, root, step);
    if (status == PL_OK) {
        pl_text_add_string(&path, "/" PL_CHECKPOINT_PIN);
        status = pl_text_status(&path);
    }
    if (status == PL_OK) *pinned = lstat(pl_text_string(&path), &info) == 0 || errno != ENOENT;
    pl_text_free(&path);
    return status;
}

static pl_status judge(pl_prune_step *step, const char *root, bool newest, int64_t keep_every)
{
    bool pinned = false;
    PL_TRY(look_for_pin(&pinned, root, step->step));
    step->verdict = newest                                           ? PL_PRUNE_KEEP_NEWEST
                    : keep_every > 0 && step->step % keep_every == 0 ? PL_PRUNE_KEEP_MULTIPLE
                    : pinned                                         ? PL_PRUNE_KEEP_PINNED
                                                                     : PL_PRUNE_REMOVE;
    return PL_OK;
}

pl_status pl_checkpoint_prune_plan(pl_prune_step **steps_out, int64_t *count_out, const char *root,
                                   int64_t keep, int64_t keep_every)
{
    int64_t *steps = NULL, count = 0;
    PL_TRY(pl_checkpoint_steps(&steps, &count, root));
    pl_prune_step *plan = NULL;
    pl_status status = pl_allocate(&plan, (size_t)count, sizeof *plan, "checkpoints");
    for (int64_t i = 0; status == PL_OK && i < count; ++i) {
        plan[i].step = steps[i];
        status = judge(&plan[i], root, i >= count - keep, keep_every);
    }
    pl_free(steps);
    if (status != PL_OK) {
        pl_free(plan);
        return status;
    }
    *steps_out = plan;
    *count_out = count;
    return PL_OK;
}

pl_status pl_checkpoint_prune(const char *root, int64_t keep, int64_t keep_every,
                              int64_t *removed_out)
{
    pl_prune_step *steps = NULL;
    int64_t count = 0, removed = 0;
    PL_TRY(pl_checkpoint_prune_plan(&steps, &count, root, keep, keep_every));
    pl_status status = PL_OK;
    for (int64_t i = 0; status == PL_OK && i < count; ++i) {
        if (steps[i].verdict != PL_PRUNE_REMOVE) continue;
        status = pl_checkpoint_remove(root, steps[i].step);
        removed += status == PL_OK;
    }
    pl_free(steps);
    if (removed_out) *removed_out = removed;
    return status;
}

pl_status pl_checkpoint_pin(const char *folder, bool pinned)
{
    pl_text path = {0};
    pl_status status = pl_manifest_path(&path, folder, PL_CHECKPOINT_PIN);
    const char *file = pl_text_string(&path);
    if (status == PL_OK && pinned) {
        int descriptor = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        if (descriptor < 0 || close(descriptor) != 0) status = failed(file, "making the file");
    } else if (status == PL_OK && unlink(file) != 0 && errno != ENOENT) {
        status = failed(file, "removing");
    }
    if (status == PL_OK) status = pl_store_sync_folder(folder);
    pl_text_free(&path);
    return status;
}
