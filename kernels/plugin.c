#include "kernels/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/text.h"

/* Folders where the file is looked for, from that of the running program. */
static const char *const folders[] = {"", "../lib/pleat/"};

enum { FOLDERS = sizeof folders / sizeof *folders, PATH_BYTES = 4096, WORDS_BYTES = 2048 };

/* Enter the plugin in LIBRARY, which was read from FILE. */
static pl_status enter(pl_backend **out, void *library, const char *file)
{
    pl_plugin_open_function open_backend = NULL;
    pl_backend *backend = NULL;
    void *entry = dlsym(library, PL_PLUGIN_ENTRY);
    if (!entry) {
        (void)dlclose(library);
        return PL_FAIL(PL_UNSUPPORTED, "'%s' is no plugin of pleat: it exports no %s", file,
                       PL_PLUGIN_ENTRY);
    }
    memcpy(&open_backend, &entry, sizeof open_backend); /* ISO C has no cast for it */
    pl_error_clear();
    pl_status status = open_backend(&backend, PL_DEVICE_INTERFACE);
    if (status != PL_OK) {
        char words[WORDS_BYTES];
        (void)snprintf(words, sizeof words, "%s", pl_error_text());
        return PL_FAIL(status, "the plugin '%s' cannot be used: %s", file,
                       *words ? words : "it does not say why");
    }
    if (!backend)
        return PL_FAIL(PL_UNSUPPORTED, "the plugin '%s' succeeded without a backend", file);
    *out = backend;
    return PL_OK;
}

static pl_status load(pl_backend **out, const char *file)
{
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library) return enter(out, library, file);
    const char *words = dlerror();
    return PL_FAIL(PL_UNSUPPORTED, "the plugin '%s' cannot be loaded: %s", file,
                   words ? words : "the loader does not say why");
}

/* A file that somebody named. The loader would look for a plain name in the system's folders. */
static pl_status load_named(pl_backend **out, const char *file, const char *who)
{
    if (access(file, R_OK) != 0)
        return PL_FAIL(PL_UNSUPPORTED, "the plugin '%s'%s cannot be read: %s", file, who,
                       strerror(errno));
    if (strchr(file, '/')) return load(out, file);
    pl_text path = {0};
    pl_text_add(&path, "./%s", file);
    pl_status status = pl_text_status(&path);
    if (status == PL_OK) status = load(out, pl_text_string(&path));
    pl_text_free(&path);
    return status;
}

/* Put the folder of the running program, with a slash behind, into FOLDER of PATH_BYTES. */
static pl_status find_folder(char *folder)
{
    ssize_t length = readlink("/proc/self/exe", folder, PATH_BYTES);
    if (length <= 0 || length >= PATH_BYTES)
        return PL_FAIL(PL_UNSUPPORTED,
                       "no CUDA plugin: /proc/self/exe does not say where the program is; "
                       "%s can name the file",
                       PL_PLUGIN_VARIABLE);
    folder[length] = '\0';
    strrchr(folder, '/')[1] = '\0';
    return PL_OK;
}

static pl_status load_found(pl_backend **out)
{
    char folder[PATH_BYTES];
    pl_text path = {0};
    bool found = false;
    PL_TRY(find_folder(folder));
    for (int i = 0; i < FOLDERS && !found; ++i) {
        pl_text_clear(&path);
        pl_text_add(&path, "%s%s%s", folder, folders[i], PL_PLUGIN_FILE);
        found = pl_text_status(&path) != PL_OK || access(pl_text_string(&path), F_OK) == 0;
    }
    pl_status status = pl_text_status(&path);
    if (status == PL_OK && found)
        status = load(out, pl_text_string(&path));
    else if (status == PL_OK)
        status = PL_FAIL(PL_UNSUPPORTED,
                         "no CUDA plugin: there is no %s in %s or %s%s; it is built where CMake "
                         "finds nvcc, and %s can name another place",
                         PL_PLUGIN_FILE, folder, folder, folders[1], PL_PLUGIN_VARIABLE);
    pl_text_free(&path);
    return status;
}

pl_status pl_plugin_open(pl_backend **out, const char *file)
{
    if (file) return load_named(out, file, "");
    const char *named = getenv(PL_PLUGIN_VARIABLE);
    if (named && *named) return load_named(out, named, ", named by " PL_PLUGIN_VARIABLE ",");
    return load_found(out);
}
