#include "ckpt/manifest_find.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/manifest.h"
#include "common/memory.h"

static const char lead[] = "step-";

static pl_status failed(const char *path, const char *what)
{
    return PL_FAIL(PL_IO_FAILED, "%s: %s: %s", path, what, strerror(errno));
}

/* --- names --- */

pl_status pl_checkpoint_path(pl_text *path, const char *root, int64_t step)
{
    char name[48];
    snprintf(name, sizeof name, "%s%" PRId64, lead, step);
    return pl_manifest_path(path, root, name);
}

bool pl_checkpoint_read_name(int64_t *step, const char **rest, const char *name)
{
    char *end = NULL;
    if (strncmp(name, lead, sizeof lead - 1) != 0) return false;
    const char *digits = name + sizeof lead - 1;
    if (*digits < '0' || *digits > '9' || (*digits == '0' && digits[1] >= '0' && digits[1] <= '9'))
        return false;
    errno = 0;
    *step = strtoll(digits, &end, 10);
    *rest = end;
    return errno == 0;
}

/* --- lists --- */

pl_status pl_checkpoint_each_name(const char *folder, pl_name_visit visit, void *context)
{
    DIR *list = opendir(folder);
    if (!list) return failed(folder, "opening");
    pl_status status = PL_OK;
    for (const struct dirent *entry = NULL; status == PL_OK;) {
        errno = 0;
        entry = readdir(list);
        if (!entry) {
            if (errno != 0) status = failed(folder, "reading");
            break;
        }
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            status = visit(context, folder, entry->d_name);
    }
    closedir(list);
    return status;
}

typedef struct step_list {
    int64_t *steps;
    size_t count, capacity;
} step_list;

static pl_status take_step(void *context, const char *root, const char *name)
{
    step_list *list = context;
    const char *rest = NULL;
    int64_t step = 0;
    struct stat info;
    pl_text path = {0};
    if (!pl_checkpoint_read_name(&step, &rest, name) || *rest) return PL_OK;
    pl_text_add(&path, "%s/%s/%s", root, name, PL_MANIFEST_FILE);
    pl_status status = pl_text_status(&path);
    bool there = status == PL_OK && stat(pl_text_string(&path), &info) == 0;
    pl_text_free(&path);
    if (!there) return status;
    PL_TRY(pl_grow(&list->steps, &list->capacity, list->count + 1, sizeof *list->steps,
                   "checkpoints"));
    list->steps[list->count++] = step;
    return PL_OK;
}

static int compare_steps(const void *a, const void *b)
{
    const int64_t *left = a, *right = b;
    return (*left > *right) - (*left < *right);
}

pl_status pl_checkpoint_steps(int64_t **steps_out, int64_t *count_out, const char *root)
{
    step_list list = {0};
    struct stat info;
    *steps_out = NULL;
    *count_out = 0;
    if (stat(root, &info) != 0 && errno == ENOENT) return PL_OK;
    pl_status status = pl_checkpoint_each_name(root, take_step, &list);
    if (status != PL_OK) {
        pl_free(list.steps);
        return status;
    }
    if (list.count > 0) qsort(list.steps, list.count, sizeof *list.steps, compare_steps);
    *steps_out = list.steps;
    *count_out = (int64_t)list.count;
    return PL_OK;
}

/* *FOUND: whether ROOT has a checkpoint; PATH is then that of the newest. */
static pl_status find_newest(pl_text *path, bool *found, const char *root)
{
    int64_t *steps = NULL, count = 0;
    *found = false;
    PL_TRY(pl_checkpoint_steps(&steps, &count, root));
    pl_status status = PL_OK;
    if (count > 0) {
        *found = true;
        status = pl_checkpoint_path(path, root, steps[count - 1]);
    }
    pl_free(steps);
    return status;
}

static pl_status find_below(pl_text *path, bool *found, const char *given)
{
    struct stat info;
    pl_text inner = {0};
    PL_TRY(find_newest(path, found, given));
    if (*found) return PL_OK;
    pl_status status = pl_manifest_path(&inner, given, "checkpoints");
    if (status == PL_OK && stat(pl_text_string(&inner), &info) == 0)
        status = find_newest(path, found, pl_text_string(&inner));
    pl_text_free(&inner);
    return status;
}

static pl_status check_folder(const char *given)
{
    struct stat info;
    if (stat(given, &info) != 0) return PL_FAIL(PL_BAD_INPUT, "%s: %s", given, strerror(errno));
    if (S_ISDIR(info.st_mode)) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT, "%s: a checkpoint is a folder, and this is none", given);
}

pl_status pl_checkpoint_find_root(pl_text *path, const char *given)
{
    struct stat info;
    bool found = false;
    PL_TRY(check_folder(given));
    PL_TRY(pl_manifest_path(path, given, PL_MANIFEST_FILE));
    if (stat(pl_text_string(path), &info) == 0)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: it is a checkpoint itself; the folder that it is in is meant", given);
    PL_TRY(find_newest(path, &found, given));
    PL_TRY(pl_manifest_path(path, given, "checkpoints"));
    if (!found && stat(pl_text_string(path), &info) == 0 && S_ISDIR(info.st_mode)) return PL_OK;
    pl_text_clear(path);
    pl_text_add_string(path, given);
    return pl_text_status(path);
}

pl_status pl_checkpoint_find(pl_text *path, const char *given)
{
    struct stat info;
    bool found = false;
    PL_TRY(check_folder(given));
    PL_TRY(pl_manifest_path(path, given, PL_MANIFEST_FILE));
    if (stat(pl_text_string(path), &info) == 0) {
        pl_text_clear(path);
        pl_text_add_string(path, given);
        return pl_text_status(path);
    }
    PL_TRY(find_below(path, &found, given));
    if (found) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT,
                   "%s: no checkpoint: neither " PL_MANIFEST_FILE
                   " nor a folder step-N with one is in it",
                   given);
}
