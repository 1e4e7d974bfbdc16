#define _XOPEN_SOURCE 700 /* realpath */

#include "train/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/store_folder.h"
#include "common/memory.h"
#include "train/append_file.h"

/* --- its name --- */

/* "runs/quick" of "some/where/quick.yaml". */
static void add_default(pl_text *name, const char *source)
{
    const char *slash = strrchr(source, '/');
    const char *stem = slash ? slash + 1 : source;
    const char *dot = strrchr(stem, '.');
    size_t length = dot && dot > stem ? (size_t)(dot - stem) : strlen(stem);
    pl_text_add_string(name, "runs/");
    pl_text_add_bytes(name, length ? stem : "run", length ? length : 3);
}

pl_status pl_run_folder_name(pl_text *name, const pl_run *run, const char *given)
{
    enum { ROOM = 64 }; /* for the names of the files in it */
    const char *chosen = given ? given : run->output;
    if (chosen && !*chosen)
        return PL_FAIL(PL_BAD_INPUT, "%s: the name of a folder is empty",
                       given ? "--output" : "output");
    if (chosen)
        pl_text_add_string(name, chosen);
    else
        add_default(name, run->source ? run->source : "run.yaml");
    PL_TRY(pl_text_status(name));
    if (name->length + ROOM > PATH_MAX)
        return PL_FAIL(PL_BAD_INPUT, "the name of the output folder has %zu bytes; at most %d",
                       name->length, PATH_MAX - ROOM);
    return PL_OK;
}

void pl_run_folder_path(pl_text *path, const char *folder, const char *file)
{
    size_t length = strlen(folder);
    const char *between = length > 0 && folder[length - 1] == '/' ? "" : "/";
    pl_text_add(path, "%s%s%s", folder, between, file);
}

/* --- looking --- */

static pl_status fail_on(const char *name, const char *what)
{
    int error = errno;
    return PL_FAIL(PL_IO_FAILED, "output folder %s: %s: %s", name, what, strerror(error));
}

static pl_status refuse_full(const char *folder, const char *entry)
{
    return PL_FAIL(PL_BAD_INPUT,
                   "output folder %s: it is not empty (it has '%.60s'); --resume goes on with the "
                   "run in it, --overwrite replaces it, --output names another folder",
                   folder, entry);
}

static pl_status check_empty(const char *folder)
{
    DIR *stream = opendir(folder);
    pl_status status = PL_OK;
    if (!stream) return fail_on(folder, "cannot be looked into");
    errno = 0;
    for (struct dirent *entry = readdir(stream); entry; entry = readdir(stream)) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        status = refuse_full(folder, entry->d_name);
        break;
    }
    if (status == PL_OK && errno != 0) status = fail_on(folder, "cannot be looked into");
    closedir(stream);
    return status;
}

/* The nearest thing above FOLDER that is there must be a folder. */
static pl_status check_above(const char *folder)
{
    char *path = NULL;
    struct stat facts;
    PL_TRY(pl_duplicate(&path, folder, "a folder's name"));
    pl_status status = PL_OK;
    for (char *slash = strrchr(path, '/'); slash && slash > path; slash = strrchr(path, '/')) {
        *slash = '\0';
        if (stat(path, &facts) == 0) {
            if (!S_ISDIR(facts.st_mode))
                status = PL_FAIL(PL_BAD_INPUT, "output folder %s: %s is no folder", folder, path);
            break;
        }
        if (errno != ENOENT && errno != ENOTDIR) {
            status =
                PL_FAIL(PL_BAD_INPUT, "output folder %s: %s: %s", folder, path, strerror(errno));
            break;
        }
    }
    pl_free(path);
    return status;
}

/* What is to be replaced is what a run leaves: no links, which lead elsewhere, and nothing whose
 * opening waits. */
static pl_status check_member(const char *folder, const char *name)
{
    struct stat facts;
    pl_text path = {0};
    bool is_folder =
        strcmp(name, PL_RUN_FOLDER_WEIGHTS) == 0 || strcmp(name, PL_RUN_FOLDER_CHECKPOINTS) == 0;
    pl_run_folder_path(&path, folder, name);
    pl_status status = pl_text_status(&path);
    if (status == PL_OK && lstat(pl_text_string(&path), &facts) == 0 &&
        !(is_folder ? S_ISDIR(facts.st_mode) : S_ISREG(facts.st_mode)))
        status = PL_FAIL(PL_BAD_INPUT,
                         "output folder %s: %s in it is no %s, so it is not replaced: --output "
                         "names another folder",
                         folder, name, is_folder ? "folder" : "regular file");
    pl_text_free(&path);
    return status;
}

static pl_status check_members(const char *folder)
{
    static const char *const names[] = {PL_RUN_FOLDER_FILE,
                                        PL_RUN_FOLDER_LOG,
                                        PL_RUN_FOLDER_CHECKPOINTS,
                                        PL_RUN_FOLDER_WEIGHTS,
                                        PL_RUN_FOLDER_WEIGHTS "/config.json",
                                        PL_RUN_FOLDER_WEIGHTS "/config.json.tmp",
                                        PL_RUN_FOLDER_WEIGHTS "/model.safetensors",
                                        PL_RUN_FOLDER_WEIGHTS "/model.safetensors.tmp"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
        PL_TRY(check_member(folder, names[i]));
    return PL_OK;
}

static bool is_within(const char *path, const char *folder)
{
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

pl_status pl_run_folder_check_source(const char *folder, const char *source)
{
    char real_folder[PATH_MAX], real_source[PATH_MAX];
    pl_text checkpoints = {0};
    pl_run_folder_path(&checkpoints, folder, PL_RUN_FOLDER_CHECKPOINTS);
    pl_status status = pl_text_status(&checkpoints);
    if (status == PL_OK && realpath(pl_text_string(&checkpoints), real_folder) &&
        realpath(source, real_source) &&
        (is_within(real_source, real_folder) || is_within(real_folder, real_source)))
        status = PL_FAIL(PL_BAD_INPUT,
                         "output folder %s: --overwrite would remove its checkpoints, and the run "
                         "starts from %s; --output names another folder",
                         folder, source);
    pl_text_free(&checkpoints);
    return status;
}

/* Whether another process writes checkpoints there now. */
static pl_status check_writer(const char *folder)
{
    pl_text root = {0};
    struct stat facts;
    int lock = -1;
    pl_run_folder_path(&root, folder, PL_RUN_FOLDER_CHECKPOINTS);
    pl_status status = pl_text_status(&root);
    if (status == PL_OK && lstat(pl_text_string(&root), &facts) == 0)
        status = pl_checkpoint_lock(&lock, pl_text_string(&root));
    pl_checkpoint_unlock(lock);
    pl_text_free(&root);
    return status;
}

pl_status pl_run_folder_check(const char *folder, pl_run_folder_use use)
{
    struct stat facts;
    if (lstat(folder, &facts) != 0) {
        if (errno == ENOENT || errno == ENOTDIR) return check_above(folder);
        return PL_FAIL(PL_BAD_INPUT, "output folder %s: %s", folder, strerror(errno));
    }
    if (stat(folder, &facts) != 0) /* a link that leads nowhere */
        return PL_FAIL(PL_BAD_INPUT, "output folder %s: %s", folder, strerror(errno));
    if (!S_ISDIR(facts.st_mode))
        return PL_FAIL(PL_BAD_INPUT, "output folder %s: it is there and is no folder", folder);
    if (use == PL_RUN_FOLDER_NEW) return check_empty(folder);
    PL_TRY(check_members(folder));
    return check_writer(folder);
}

/* --- preparing --- */

pl_status pl_run_folder_make(const char *folder)
{
    char *path = NULL;
    PL_TRY(pl_duplicate(&path, folder, "a folder's name"));
    pl_status status = PL_OK;
    for (char *slash = path + 1; status == PL_OK && *slash; ++slash) {
        if (*slash != '/') continue;
        *slash = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST) status = fail_on(path, "cannot be made");
        *slash = '/';
    }
    if (status == PL_OK && mkdir(path, 0777) != 0 && errno != EEXIST)
        status = fail_on(path, "cannot be made");
    pl_free(path);
    return status;
}

static bool is_event_file(const char *name)
{
    static const char start[] = "events.out.tfevents.", end[] = ".pleat";
    size_t length = strlen(name);
    return length > sizeof start + sizeof end - 2 && strncmp(name, start, sizeof start - 1) == 0 &&
           strcmp(name + length - (sizeof end - 1), end) == 0;
}

static pl_status remove_event_files(const char *folder)
{
    DIR *stream = opendir(folder);
    pl_status status = PL_OK;
    if (!stream) return fail_on(folder, "cannot be looked into");
    for (struct dirent *entry = readdir(stream); status == PL_OK && entry; entry = readdir(stream))
        if (is_event_file(entry->d_name) && unlinkat(dirfd(stream), entry->d_name, 0) != 0)
            status = fail_on(folder, "an event file of an earlier run cannot be removed");
    closedir(stream);
    return status;
}

static pl_status write_run_file(const char *folder, const pl_run *run)
{
    pl_text path = {0}, text = {0};
    pl_run_folder_path(&path, folder, PL_RUN_FOLDER_FILE);
    pl_status status = pl_text_status(&path);
    if (status == PL_OK) status = pl_run_write(&text, run);
    if (status == PL_OK) status = pl_text_status(&text);
    if (status == PL_OK)
        status = pl_write_whole_file(pl_text_string(&path), pl_text_string(&text), text.length);
    pl_text_free(&path);
    pl_text_free(&text);
    return status;
}

/* Those of the run that is replaced. */
static pl_status remove_checkpoints(const char *folder)
{
    pl_text root = {0};
    int64_t *steps = NULL, count = 0;
    pl_run_folder_path(&root, folder, PL_RUN_FOLDER_CHECKPOINTS);
    pl_status status = pl_text_status(&root);
    if (status == PL_OK) status = pl_checkpoint_steps(&steps, &count, pl_text_string(&root));
    for (int64_t i = 0; status == PL_OK && i < count; ++i)
        status = pl_checkpoint_remove(pl_text_string(&root), steps[i]);
    pl_free(steps);
    pl_text_free(&root);
    return status;
}

pl_status pl_run_folder_prepare(const char *folder, const pl_run *run, pl_run_folder_use use)
{
    if (use == PL_RUN_FOLDER_REPLACE) PL_TRY(remove_event_files(folder));
    if (use == PL_RUN_FOLDER_REPLACE) PL_TRY(remove_checkpoints(folder));
    return write_run_file(folder, run);
}
