#define _DEFAULT_SOURCE
#include "tests/bench/raw_rates.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

double raw_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* --- folders --- */

static bool ends_with(const char *name, const char *ending)
{
    size_t length = strlen(name), end = strlen(ending);
    return length >= end && strcmp(name + length - end, ending) == 0;
}

static int by_name(const void *a, const void *b)
{
    const raw_file *left = a, *right = b;
    return strcmp(left->name, right->name);
}

bool raw_list(raw_files *out, const char *folder, const char *ending)
{
    DIR *list = opendir(folder);
    if (!list) return perror(folder), false;
    *out = (raw_files){.count = 0};
    snprintf(out->folder, sizeof out->folder, "%s", folder);
    for (struct dirent *entry; (entry = readdir(list));) {
        char path[RAW_PATH + 300];
        struct stat info;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (!ends_with(entry->d_name, ending) || stat(path, &info) != 0 || !S_ISREG(info.st_mode) ||
            out->count == RAW_FILES_MOST)
            continue;
        raw_file *file = &out->file[out->count++];
        snprintf(file->name, sizeof file->name, "%.63s", entry->d_name);
        file->bytes = info.st_size;
        out->bytes += info.st_size;
    }
    closedir(list);
    qsort(out->file, (size_t)out->count, sizeof *out->file, by_name);
    return out->count > 0;
}

static int open_file(const char *folder, const raw_file *file, int flags)
{
    char path[RAW_PATH + 80];
    snprintf(path, sizeof path, "%s/%s", folder, file->name);
    int descriptor = open(path, flags, 0644);
    if (descriptor < 0) perror(path);
    return descriptor;
}

bool raw_make_cold(const char *folder)
{
    raw_files files;
    if (!raw_list(&files, folder, "")) return false;
    for (int i = 0; i < files.count; ++i) {
        int descriptor = open_file(folder, &files.file[i], O_RDONLY);
        if (descriptor < 0) return false;
        bool done =
            fsync(descriptor) == 0 && posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED) == 0;
        close(descriptor);
        if (!done) return perror(folder), false;
    }
    return true;
}

bool raw_remove(const char *folder)
{
    char command[RAW_PATH + 20];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) == 0;
}

/* --- threads --- */

typedef struct job {
    const raw_files *files;
    const char *to; /* NULL: nothing is written */
    bool reads;
    int from_descriptor[RAW_FILES_MOST], to_descriptor[RAW_FILES_MOST];
    int64_t left[RAW_FILES_MOST];      /* atomic: pieces that are not written */
    int64_t first[RAW_FILES_MOST + 1]; /* the number of a file's first piece */
    int64_t next;                      /* atomic: the next piece, or the next file */
    bool failed;                       /* atomic */
} job;

static bool read_all(int descriptor, char *room, int64_t bytes, int64_t at)
{
    for (int64_t done = 0; done < bytes;) {
        ssize_t moved = pread(descriptor, room + done, (size_t)(bytes - done), at + done);
        if (moved <= 0) return perror("pread"), false;
        done += moved;
    }
    return true;
}

static bool write_all(int descriptor, const char *room, int64_t bytes, int64_t at)
{
    for (int64_t done = 0; done < bytes;) {
        ssize_t moved = pwrite(descriptor, room + done, (size_t)(bytes - done), at + done);
        if (moved <= 0) return perror("pwrite"), false;
        done += moved;
    }
    return true;
}

static bool move_piece(job *j, int file, int64_t piece, char *room)
{
    int64_t at = piece * RAW_PIECE, left = j->files->file[file].bytes - at;
    int64_t bytes = left < RAW_PIECE ? left : RAW_PIECE;
    if (j->reads && !read_all(j->from_descriptor[file], room, bytes, at)) return false;
    if (!j->to) return true;
    if (!write_all(j->to_descriptor[file], room, bytes, at)) return false;
    if (__atomic_sub_fetch(&j->left[file], 1, __ATOMIC_ACQ_REL) > 0) return true;
    return fsync(j->to_descriptor[file]) == 0 || (perror("fsync"), false);
}

static bool move_pieces(job *j, char *room)
{
    int file = 0;
    for (;;) {
        int64_t number = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED);
        if (number >= j->first[j->files->count]) return true;
        while (number >= j->first[file + 1]) ++file;
        if (!move_piece(j, file, number - j->first[file], room)) return false;
    }
}

/* Each thread its own files. */
static bool write_files(job *j, char *room)
{
    for (;;) {
        int64_t file = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED);
        if (file >= j->files->count) return true;
        int64_t pieces = j->first[file + 1] - j->first[file];
        for (int64_t i = 0; i < pieces; ++i)
            if (!move_piece(j, (int)file, i, room)) return false;
    }
}

/* Bytes that no disk can leave out. */
static void fill(char *room, uint64_t x)
{
    for (int i = 0; i < RAW_PIECE; i += 8) {
        x = x * 6364136223846793005U + 1442695040888963407U;
        memcpy(room + i, &x, 8);
    }
}

static void *work(void *context)
{
    job *j = context;
    char *room = malloc(RAW_PIECE);
    bool done = room != NULL;
    if (done && !j->reads) fill(room, (uint64_t)(uintptr_t)room);
    if (done) done = j->reads ? move_pieces(j, room) : write_files(j, room);
    if (!done) __atomic_store_n(&j->failed, true, __ATOMIC_RELAXED);
    free(room);
    return NULL;
}

static bool open_all(job *j)
{
    const raw_files *files = j->files;
    if (j->to && mkdir(j->to, 0755) != 0) return perror(j->to), false;
    for (int i = 0; i < files->count; ++i) {
        int64_t pieces = (files->file[i].bytes + RAW_PIECE - 1) / RAW_PIECE;
        j->left[i] = pieces;
        j->first[i + 1] = j->first[i] + pieces;
        j->from_descriptor[i] = j->reads ? open_file(files->folder, &files->file[i], O_RDONLY) : -1;
        j->to_descriptor[i] =
            j->to ? open_file(j->to, &files->file[i], O_WRONLY | O_CREAT | O_EXCL) : -1;
        if ((j->reads && j->from_descriptor[i] < 0) || (j->to && j->to_descriptor[i] < 0))
            return false;
    }
    return true;
}

static void close_all(const job *j)
{
    for (int i = 0; i < j->files->count; ++i) {
        if (j->from_descriptor[i] >= 0) close(j->from_descriptor[i]);
        if (j->to_descriptor[i] >= 0) close(j->to_descriptor[i]);
    }
}

static double run(job *j, int threads)
{
    pthread_t thread[RAW_THREADS_MOST];
    int started = 0;
    for (int i = 0; i < RAW_FILES_MOST; ++i) j->from_descriptor[i] = j->to_descriptor[i] = -1;
    double began = raw_now();
    if (!open_all(j)) j->failed = true;
    while (!j->failed && started < threads && started < RAW_THREADS_MOST &&
           pthread_create(&thread[started], NULL, work, j) == 0)
        ++started;
    for (int i = 0; i < started; ++i) pthread_join(thread[i], NULL);
    close_all(j);
    return j->failed || started == 0 ? -1 : raw_now() - began;
}

double raw_read(const raw_files *files, int threads)
{
    job j = {.files = files, .reads = true};
    return run(&j, threads);
}

double raw_copy(const raw_files *files, const char *to, int threads)
{
    job j = {.files = files, .to = to, .reads = true};
    return run(&j, threads);
}

double raw_write(const raw_files *files, const char *to, int threads)
{
    job j = {.files = files, .to = to};
    return run(&j, threads);
}
