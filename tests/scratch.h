/* A folder for the files of one test, and files in it. */
#ifndef PL_TESTS_SCRATCH_H
#define PL_TESTS_SCRATCH_H

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/test.h"

enum { SCRATCH_PATH = 1024 };

typedef struct scratch {
    char folder[64];
} scratch;

static inline scratch make_scratch(void)
{
    scratch s = {"/tmp/pleat-test-XXXXXX"};
    assert_non_null(mkdtemp(s.folder));
    return s;
}

/* The path of NAME in the folder: in static room for four, so that a few can be used at once. */
static inline const char *in_scratch(const scratch *s, const char *name)
{
    static char paths[4][SCRATCH_PATH];
    static int next;
    char *path = paths[next++ % 4];
    int length = snprintf(path, SCRATCH_PATH, "%s/%s", s->folder, name);
    assert_in_range(length, 1, SCRATCH_PATH - 1);
    return path;
}

static inline void write_bytes(const scratch *s, const char *name, const void *bytes, size_t count)
{
    FILE *file = fopen(in_scratch(s, name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static inline void write_words(const scratch *s, const char *name, const char *words)
{
    write_bytes(s, name, words, strlen(words));
}

static inline void make_folder(const scratch *s, const char *name)
{
    assert_int_equal(mkdir(in_scratch(s, name), 0755), 0);
}

static inline void make_link(const scratch *s, const char *name, const char *target)
{
    assert_int_equal(symlink(target, in_scratch(s, name)), 0);
}

/* All bytes of a file; the caller frees. */
static inline char *read_bytes(const char *path, size_t *count_out)
{
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s cannot be opened", path);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    size_t count = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(count + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, count, file), count);
    bytes[count] = '\0';
    fclose(file);
    *count_out = count;
    return bytes;
}

static inline int is_there(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

static inline size_t file_bytes(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return (size_t)info.st_size;
}

static inline void remove_tree(const char *path)
{
    struct stat info;
    if (lstat(path, &info) != 0) return;
    if (S_ISDIR(info.st_mode)) {
        DIR *listing = opendir(path);
        assert_non_null(listing);
        for (struct dirent *entry = readdir(listing); entry; entry = readdir(listing)) {
            char inner[SCRATCH_PATH];
            if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
            int length = snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
            assert_in_range(length, 1, (int)sizeof inner - 1);
            remove_tree(inner);
        }
        closedir(listing);
    }
    assert_int_equal(remove(path), 0);
}

static inline void remove_scratch(const scratch *s) { remove_tree(s->folder); }

#endif
