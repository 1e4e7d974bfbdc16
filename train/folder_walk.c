#include "train/folder_walk.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/file_bytes.h"
#include "common/memory.h"

enum { SHOWN_NOTES = 3 };

/* The folders around the one that is being read. */
typedef struct ring {
    const struct ring *outer;
    const char *path;
    dev_t device;
    ino_t number;
    int depth;
} ring;

typedef struct name_list {
    char **names;
    size_t count, capacity;
} name_list;

static pl_status system_failure(const char *path)
{
    int cause = errno;
    return PL_FAIL(pl_file_is_wrong_name(cause) ? PL_BAD_INPUT : PL_IO_FAILED, "%s: %s", path,
                   strerror(cause));
}

static pl_status add_file(pl_walk *walk, const char *path, int64_t bytes, bool named)
{
    char *copy = NULL;
    PL_TRY(pl_grow(&walk->files, &walk->capacity, walk->count + 1, sizeof *walk->files,
                   "list of files"));
    PL_TRY(pl_duplicate(&copy, path, "path of a file"));
    walk->files[walk->count++] = (pl_walked_file){copy, bytes, named};
    return PL_OK;
}

static void skip(pl_walk *walk, const char *path, const char *why)
{
    if (walk->skipped++ < SHOWN_NOTES) pl_text_add(&walk->notes, "%s: left out: %s\n", path, why);
}

static pl_status add_regular(pl_walk *walk, const char *path, const struct stat *info, bool named)
{
    if (info->st_size > 0) return add_file(walk, path, info->st_size, named);
    if (named) return PL_FAIL(PL_BAD_INPUT, "%s: the file is empty", path);
    skip(walk, path, "the file is empty");
    return PL_OK;
}

static int by_words(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_names(name_list *list)
{
    for (size_t i = 0; i < list->count; ++i) pl_free(list->names[i]);
    pl_free(list->names);
    *list = (name_list){0};
}

static pl_status count_name(pl_walk *walk, const char *path)
{
    if (++walk->names <= PL_WALK_MOST_NAMES) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT,
                   "%s: more than %d files and folders; do links lead to the same folders again?",
                   path, PL_WALK_MOST_NAMES);
}

/* The names in the folder that LISTING reads, unsorted. */
static pl_status read_names(pl_walk *walk, name_list *list, DIR *listing, const char *path)
{
    for (;;) {
        char *name = NULL;
        errno = 0;
        struct dirent *entry = readdir(listing);
        if (!entry) return errno == 0 ? PL_OK : system_failure(path);
        if (entry->d_name[0] == '.') continue;
        PL_TRY(count_name(walk, path));
        PL_TRY(pl_grow(&list->names, &list->capacity, list->count + 1, sizeof *list->names,
                       "names in a folder"));
        PL_TRY(pl_duplicate(&name, entry->d_name, "a name in a folder"));
        list->names[list->count++] = name;
    }
}

static pl_status list_folder(pl_walk *walk, name_list *list, const char *path)
{
    DIR *listing = opendir(path);
    if (!listing) return system_failure(path);
    pl_status status = read_names(walk, list, listing, path);
    closedir(listing);
    if (status == PL_OK && list->count > 0)
        qsort(list->names, list->count, sizeof *list->names, by_words);
    return status;
}

static pl_status add_path(pl_walk *walk, const char *path, const ring *outer);

static pl_status add_names(pl_walk *walk, const name_list *list, const ring *here)
{
    pl_text inner = {0};
    pl_status status = PL_OK;
    size_t length = strlen(here->path);
    const char *between = length > 0 && here->path[length - 1] == '/' ? "" : "/";
    for (size_t i = 0; i < list->count && status == PL_OK; ++i) {
        pl_text_clear(&inner);
        pl_text_add(&inner, "%s%s%s", here->path, between, list->names[i]);
        status = pl_text_status(&inner);
        if (status == PL_OK) status = add_path(walk, pl_text_string(&inner), here);
    }
    pl_text_free(&inner);
    return status;
}

static pl_status check_ring(const ring *here)
{
    if (here->depth > PL_WALK_MOST_DEPTH)
        return PL_FAIL(PL_BAD_INPUT, "%s: more than %d folders in each other", here->path,
                       PL_WALK_MOST_DEPTH);
    for (const ring *r = here->outer; r; r = r->outer)
        if (r->device == here->device && r->number == here->number)
            return PL_FAIL(PL_BAD_INPUT,
                           "%s: a link back to the folder %s, which it is in: a loop without end",
                           here->path, r->path);
    return PL_OK;
}

static pl_status add_folder(pl_walk *walk, const char *path, const struct stat *info,
                            const ring *outer)
{
    const ring here = {.outer = outer,
                       .path = path,
                       .device = info->st_dev,
                       .number = info->st_ino,
                       .depth = outer ? outer->depth + 1 : 1};
    name_list list = {0};
    PL_TRY(check_ring(&here));
    pl_status status = list_folder(walk, &list, path);
    if (status == PL_OK) status = add_names(walk, &list, &here);
    free_names(&list);
    return status;
}

/* OUTER: the folder it was found in; NULL: the person named it. */
static pl_status add_path(pl_walk *walk, const char *path, const ring *outer)
{
    struct stat info;
    if (stat(path, &info) != 0) return system_failure(path);
    if (S_ISDIR(info.st_mode)) return add_folder(walk, path, &info, outer);
    if (S_ISREG(info.st_mode)) return add_regular(walk, path, &info, outer == NULL);
    if (!outer) return PL_FAIL(PL_BAD_INPUT, "%s: neither a regular file nor a folder", path);
    skip(walk, path, "not a regular file");
    return PL_OK;
}

/* A person's path adds at least one file. */
static pl_status add_named(pl_walk *walk, const char *path)
{
    size_t before = walk->count;
    if (!*path) return PL_FAIL(PL_BAD_INPUT, "the name of a file or folder is empty");
    PL_TRY(add_path(walk, path, NULL));
    if (walk->count > before) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT,
                   "%s: the folder holds no file to read (empty files, special files and names "
                   "that begin with '.' are left out)",
                   path);
}

pl_status pl_walk_paths(pl_walk *out, const char *const *paths, size_t count)
{
    pl_walk walk = {0};
    pl_status status = PL_OK;
    for (size_t i = 0; i < count && status == PL_OK; ++i) status = add_named(&walk, paths[i]);
    if (status == PL_OK && walk.skipped > SHOWN_NOTES)
        pl_text_add(&walk.notes, "and %" PRId64 " more left out\n", walk.skipped - SHOWN_NOTES);
    if (status == PL_OK) status = pl_text_status(&walk.notes);
    if (status == PL_OK)
        *out = walk;
    else
        pl_walk_free(&walk);
    return status;
}

void pl_walk_free(pl_walk *walk)
{
    for (size_t i = 0; i < walk->count; ++i) pl_free(walk->files[i].path);
    pl_free(walk->files);
    pl_text_free(&walk->notes);
    *walk = (pl_walk){0};
}
