#include "ckpt/store_export_folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/store_folder.h"
#include "ckpt/store_writer.h"
#include "common/file_bytes.h"

static const char config_name[] = "config.json", ending[] = ".tmp";

static pl_status failed(const char *path, const char *what)
{
    return PL_FAIL(PL_IO_FAILED, "%s: %s: %s", path, what, strerror(errno));
}

pl_status pl_export_temporary(pl_text *text, const char *folder, const char *name)
{
    PL_TRY(pl_manifest_path(text, folder, name));
    pl_text_add_string(text, ending);
    return pl_text_status(text);
}

/* --- what is in it --- */

/* Whether NAME is that of a file that an export writes, with ENDING behind it. */
static bool is_ours(const char *name, const char *tail)
{
    char bare[2 * PL_WEIGHTS_SHARD_NAME];
    size_t length = strlen(name), behind = strlen(tail);
    if (length < behind || length - behind >= sizeof bare ||
        strcmp(name + length - behind, tail) != 0)
        return false;
    snprintf(bare, sizeof bare, "%.*s", (int)(length - behind), name);
    return strcmp(bare, config_name) == 0 || pl_shards_owns(bare);
}

typedef pl_status (*visitor)(void *context, const char *folder, const char *name);

static pl_status each_name(const char *folder, visitor visit, void *context)
{
    DIR *list = opendir(folder);
    if (!list) return failed(folder, "opening");
    pl_status status = PL_OK;
    while (status == PL_OK) {
        errno = 0;
        const struct dirent *entry = readdir(list);
        if (!entry && errno != 0) status = failed(folder, "reading");
        if (!entry) break;
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            status = visit(context, folder, entry->d_name);
    }
    closedir(list);
    return status;
}

static pl_status remove_file(const char *folder, const char *name)
{
    pl_text path = {0};
    pl_status status = pl_manifest_path(&path, folder, name);
    if (status == PL_OK && unlink(pl_text_string(&path)) != 0 && errno != ENOENT)
        status = failed(pl_text_string(&path), "removing");
    pl_text_free(&path);
    return status;
}

static pl_status remove_temporary(void *context, const char *folder, const char *name)
{
    (void)context;
    return is_ours(name, ending) ? remove_file(folder, name) : PL_OK;
}

static pl_status refuse_file(void *context, const char *folder, const char *name)
{
    (void)context;
    if (is_ours(name, ending)) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT,
                   "%s: the folder holds files (%s): name another one, or replace the weights in "
                   "it with --overwrite",
                   folder, name);
}

static pl_status make_folder(pl_export_folder *out)
{
    struct stat info;
    if (mkdir(out->path, 0777) == 0) {
        out->made = true;
        return PL_OK;
    }
    int cause = errno;
    if (cause != EEXIST || stat(out->path, &info) != 0)
        return PL_FAIL(pl_file_is_wrong_name(cause) ? PL_BAD_INPUT : PL_IO_FAILED,
                       "%s: the folder for the weights cannot be made: %s", out->path,
                       strerror(cause));
    if (S_ISDIR(info.st_mode)) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT, "%s: not a folder; the weights need one", out->path);
}

pl_status pl_export_folder_open(pl_export_folder *out, const char *folder, bool overwrite)
{
    pl_export_folder made = {.path = folder};
    if (!*folder) return PL_FAIL(PL_BAD_INPUT, "the name of the folder for the weights is empty");
    PL_TRY(make_folder(&made));
    pl_status status = overwrite ? PL_OK : each_name(folder, refuse_file, NULL);
    if (status == PL_OK) status = each_name(folder, remove_temporary, NULL);
    if (status == PL_OK)
        *out = made;
    else if (made.made)
        (void)rmdir(folder);
    return status;
}

static pl_status remove_own(void *context, const char *folder, const char *name)
{
    PL_TRY(remove_temporary(context, folder, name));
    return is_ours(name, "") ? remove_file(folder, name) : PL_OK;
}

/* The words stay those of the failure that led here. */
void pl_export_folder_discard(const pl_export_folder *folder)
{
    pl_text words = {0};
    pl_text_add_string(&words, pl_error_text());
    pl_status status = each_name(folder->path, folder->made ? remove_own : remove_temporary, NULL);
    if (status == PL_OK && folder->made) (void)rmdir(folder->path);
    if (status != PL_OK) pl_error_set(pl_text_string(&words));
    pl_text_free(&words);
}

/* --- names for the files --- */

static pl_status write_temporary(const char *folder, const char *name, const pl_text *text)
{
    pl_text path = {0};
    pl_status status = pl_export_temporary(&path, folder, name);
    if (status == PL_OK)
        status = pl_store_new_file(pl_text_string(&path), text->bytes, text->length);
    pl_text_free(&path);
    return status;
}

static pl_status give_name(const char *folder, const char *name)
{
    pl_text from = {0}, to = {0};
    pl_status status = pl_export_temporary(&from, folder, name);
    if (status == PL_OK) status = pl_manifest_path(&to, folder, name);
    if (status == PL_OK && rename(pl_text_string(&from), pl_text_string(&to)) != 0)
        status = failed(pl_text_string(&to), "giving the file its name");
    pl_text_free(&from);
    pl_text_free(&to);
    return status;
}

/* Remove a file of earlier weights that is none of the new ones. */
static pl_status remove_former(void *context, const char *folder, const char *name)
{
    const pl_shards *shards = context;
    if (!pl_shards_owns(name)) return PL_OK;
    if (shards->shard_count > 1 && strcmp(name, PL_WEIGHTS_INDEX) == 0) return PL_OK;
    for (int64_t f = 0; f < shards->shard_count; ++f)
        if (strcmp(name, shards->shards[f].name) == 0) return PL_OK;
    return remove_file(folder, name);
}

/* A reader in between finds no set at all, never one of old and new files: an old index goes
 * first, and of one file and an index only one is there. */
static pl_status give_names(const char *folder, const pl_shards *shards)
{
    bool indexed = shards->shard_count > 1;
    PL_TRY(remove_file(folder, PL_WEIGHTS_INDEX));
    if (indexed) PL_TRY(remove_file(folder, PL_WEIGHTS_SINGLE));
    PL_TRY(pl_store_sync_folder(folder));
    PL_TRY(give_name(folder, config_name));
    for (int64_t f = 0; f < shards->shard_count; ++f)
        PL_TRY(give_name(folder, shards->shards[f].name));
    if (indexed) {
        PL_TRY(pl_store_sync_folder(folder));
        PL_TRY(give_name(folder, PL_WEIGHTS_INDEX));
    }
    PL_TRY(each_name(folder, remove_former, (void *)(uintptr_t)shards));
    return pl_store_sync_folder(folder);
}

pl_status pl_export_put_in_place(const pl_export_folder *folder, const pl_shards *shards,
                                 const pl_text *config)
{
    PL_TRY(write_temporary(folder->path, config_name, config));
    if (shards->shard_count > 1)
        PL_TRY(write_temporary(folder->path, PL_WEIGHTS_INDEX, &shards->index));
    PL_TRY(pl_store_sync_folder(folder->path));
    pl_text parent = {0};
    pl_status status = pl_manifest_path(&parent, folder->path, "..");
    if (status == PL_OK) status = give_names(folder->path, shards);
    if (status == PL_OK && folder->made) status = pl_store_sync_folder(pl_text_string(&parent));
    pl_text_free(&parent);
    return status;
}
