/* How fast checkpoints are saved, loaded, verified and resharded, with all sums made and checked,
 * against the raw reads and writes of raw_rates.h, in turns, cold.
 *
 * checkpoint_rates FOLDER BUILD [ROUNDS [PART...]]: FOLDER is made, and removed at the end; parts
 * are load, verify, reshard, beside. Exit status 1 when a limit is exceeded, 3 when something
 * failed.
 */
#define _DEFAULT_SOURCE /* wait4 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/checkpoint_rates.h"

enum { WORDS_MOST = 16 };

static const double verify_limit = 0.9, reshard_limit = 0.8, slack_mib = 64;

/* --- what the parts share --- */

static int by_size(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

double rates_median(const double *values, int count)
{
    double sorted[RATES_ROUNDS_MOST];
    memcpy(sorted, values, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, by_size);
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

void rates_say(rates *r, const rates_series *s, const char *what, double limit)
{
    double ratio[RATES_ROUNDS_MOST];
    for (int i = 0; i < s->count; ++i)
        ratio[i] = s->bytes / s->seconds[i] / (s->yardstick_bytes / s->yardstick[i]);
    double found = rates_median(ratio, s->count);
    if (found < limit) r->exceeded = true;
    printf("%s:\n    %.0f MiB/s against %.0f MiB/s: ratio %.2f (limit %.1f); rounds", what,
           s->bytes / (1 << 20) / rates_median(s->seconds, s->count),
           s->yardstick_bytes / (1 << 20) / rates_median(s->yardstick, s->count), found, limit);
    for (int i = 0; i < s->count; ++i) printf(" %.2f", ratio[i]);
    printf("\n");
    fflush(stdout);
}

bool rates_write_file(const char *folder, const char *name, const char *text)
{
    char path[RAW_PATH + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    bool done = file && fputs(text, file) >= 0;
    if (file && fclose(file) != 0) done = false;
    return done || (perror(path), false);
}

static void become(const rates *r, const char *program, const char *const *words)
{
    char path[RAW_PATH], output[RAW_PATH], *all[WORDS_MOST];
    int count = 0;
    while (words[count] && count + 2 < WORDS_MOST) ++count;
    snprintf(path, sizeof path, "%s/%s", r->build, program);
    snprintf(output, sizeof output, "%s/output", r->folder);
    int file = open(output, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    all[0] = path;
    memcpy(all + 1, words, (size_t)count * sizeof *all); /* exec does not write to them */
    all[count + 1] = NULL;
    if (file >= 0) dup2(file, STDOUT_FILENO);
    execv(path, all);
    perror(path);
    _exit(127);
}

bool rates_command(const rates *r, double *seconds, double *mib, const char *program,
                   const char *const *words)
{
    struct rusage usage;
    int status = 1;
    fflush(stdout);
    double began = raw_now();
    pid_t child = fork();
    if (child == 0) become(r, program, words);
    if (child < 0 || wait4(child, &status, 0, &usage) != child || status != 0) {
        fprintf(stderr, "checkpoint_rates: %s %s fails\n", program, words[0]);
        return false;
    }
    *seconds = raw_now() - began;
    *mib = (double)usage.ru_maxrss / 1024;
    return true;
}

bool rates_in_child(rates *r, rates_part part, const char *checkpoint)
{
    enum { DONE = 0, EXCEEDED = 1, FAILED = 3 };
    int status = FAILED;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        bool done = part(r, checkpoint);
        fflush(stdout);
        _exit(!done ? FAILED : r->exceeded ? EXCEEDED : DONE);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return false;
    if (WEXITSTATUS(status) == EXCEEDED) r->exceeded = true;
    return WEXITSTATUS(status) == DONE || WEXITSTATUS(status) == EXCEEDED;
}

/* --- verifying --- */

static bool measure_verify(rates *r, const char *checkpoint)
{
    const char *const words[] = {"verify", checkpoint, NULL};
    raw_files files;
    rates_series s = {.count = 0};
    double mib = 0;
    if (!raw_list(&files, checkpoint, "")) return false;
    s.bytes = s.yardstick_bytes = (double)files.bytes;
    for (; s.count < r->rounds; ++s.count)
        for (int turn = 0; turn < 2; ++turn) {
            if (!raw_make_cold(checkpoint)) return false;
            if ((turn + s.count) % 2 == 0) {
                s.yardstick[s.count] = raw_read(&files, r->processors);
                if (s.yardstick[s.count] < 0) return false;
            } else if (!rates_command(r, &s.seconds[s.count], &mib, "pleat-ckpt", words)) {
                return false;
            }
        }
    rates_say(r, &s, "pleat-ckpt verify, 64 ranks, against raw cold read", verify_limit);
    return true;
}

/* --- resharding --- */

/* A reshard within MEMORY MiB; the most that it took in *PEAK. */
static bool reshard(const rates *r, const char *checkpoint, int memory, double *seconds,
                    double *peak)
{
    char to[RAW_PATH], limit[32];
    double mib = 0;
    snprintf(to, sizeof to, "%s/new", r->folder);
    snprintf(limit, sizeof limit, "%dM", memory);
    const char *const words[] = {
        "reshard", checkpoint,    to,  "--to", "folded:world=64,ep=32", "--memory",
        limit,     "--no-verify", NULL};
    if (!raw_make_cold(checkpoint) || !rates_command(r, seconds, &mib, "pleat-ckpt", words))
        return false;
    if (mib > *peak) *peak = mib;
    return raw_remove(to);
}

static void say_memory(rates *r, int memory, double peak)
{
    double most = memory + slack_mib;
    if (peak > most) r->exceeded = true;
    printf("memory of reshard, 64 ranks to 64, --memory %dM: %.0f MiB (limit %.0f)\n", memory, peak,
           most);
}

static bool measure_reshard(rates *r, const char *checkpoint)
{
    enum { MEMORY = 256, LITTLE = 16 };
    char raw[RAW_PATH];
    raw_files files;
    rates_series s = {.count = 0};
    double peak = 0, little = 0, seconds = 0;
    snprintf(raw, sizeof raw, "%s/raw", r->folder);
    if (!raw_list(&files, checkpoint, ".h5")) return false;
    s.bytes = s.yardstick_bytes = (double)files.bytes;
    for (; s.count < r->rounds; ++s.count)
        for (int turn = 0; turn < 2; ++turn) {
            if ((turn + s.count) % 2 != 0) {
                if (!reshard(r, checkpoint, MEMORY, &s.seconds[s.count], &peak)) return false;
                continue;
            }
            if (!raw_make_cold(checkpoint)) return false;
            s.yardstick[s.count] = raw_copy(&files, raw, r->processors);
            if (s.yardstick[s.count] < 0 || !raw_remove(raw)) return false;
        }
    rates_say(r, &s, "pleat-ckpt reshard, 64 ranks to 64, against raw read, write and fsync",
              reshard_limit);
    if (!reshard(r, checkpoint, LITTLE, &seconds, &little)) return false;
    say_memory(r, MEMORY, peak);
    say_memory(r, LITTLE, little);
    return true;
}

/* --- the whole --- */

/* The checkpoint of 8 ranks once more, as of 64. */
static bool spread(const rates *r, const char *checkpoint, char *out)
{
    char to[RAW_PATH];
    double seconds = 0, mib = 0;
    snprintf(to, sizeof to, "%s/spread", r->folder);
    snprintf(out, RAW_PATH, "%s", to);
    const char *const words[] = {"reshard",     checkpoint, to, "--to", "legacy:world=64,ep=8",
                                 "--no-verify", NULL};
    if (!rates_command(r, &seconds, &mib, "pleat-ckpt", words)) return false;
    size_t length = strlen(out);
    snprintf(out + length, RAW_PATH - length, "%s", strrchr(checkpoint, '/'));
    return true;
}

static bool wanted(int count, char **parts, const char *part)
{
    for (int i = 0; i < count; ++i)
        if (strcmp(parts[i], part) == 0) return true;
    return count == 0;
}

static bool measure(rates *r, int count, char **parts)
{
    char checkpoint[RAW_PATH], wide[RAW_PATH];
    snprintf(checkpoint, sizeof checkpoint, "%s/run/checkpoints/step-%d", r->folder, r->rounds + 1);
    if (!rates_in_child(r, rates_save, checkpoint)) return false;
    if (wanted(count, parts, "load") && !rates_in_child(r, rates_load, checkpoint)) return false;
    if (!spread(r, checkpoint, wide)) return false;
    if (wanted(count, parts, "verify") && !measure_verify(r, wide)) return false;
    if (wanted(count, parts, "reshard") && !measure_reshard(r, wide)) return false;
    return !wanted(count, parts, "beside") || rates_beside(r);
}

int main(int count, char **words)
{
    rates r = {.folder = count > 1 ? words[1] : NULL,
               .build = count > 2 ? words[2] : NULL,
               .rounds = count > 3 ? atoi(words[3]) : 5,
               .processors = (int)sysconf(_SC_NPROCESSORS_ONLN)};
    if (!r.build || r.rounds < 1 || r.rounds > RATES_ROUNDS_MOST) {
        fprintf(stderr, "checkpoint_rates FOLDER BUILD [ROUNDS [PART...]], at most %d rounds\n",
                RATES_ROUNDS_MOST);
        return 2;
    }
    if (r.processors > RAW_THREADS_MOST) r.processors = RAW_THREADS_MOST;
    if (mkdir(r.folder, 0755) != 0) return perror(r.folder), 2;
    printf("%d processors, %d rounds; reads are cold: files on the disk, their pages dropped by "
           "posix_fadvise\n",
           r.processors, r.rounds);
    bool done = measure(&r, count > 4 ? count - 4 : 0, words + 4);
    if (!raw_remove(r.folder) || !done) return 3;
    return r.exceeded;
}
