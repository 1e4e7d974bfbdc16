/* What it costs to plan the resharding of a large checkpoint: 235B parameters with masters and
 * moments in the files of 64 ranks, which are sparse and all zeroes, brought to 64, 128 and 256
 * ranks by "pleat-ckpt reshard --dry-run". Exit status 1 when a limit is exceeded.
 * bench_reshard_plan [PLEAT_CKPT]
 */
#define _DEFAULT_SOURCE /* wait4 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/manifest_rank.h"
#include "common/memory.h"

enum { RANKS = 64, REPEATS = 5 };

static const double limit_seconds = 2, limit_mib = 200, limit_growth = 1.5;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* --- the checkpoint --- */

static pl_status write_text(const char *folder, const char *name, const pl_text *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    bool good = file && fwrite(text->bytes, 1, text->length, file) == text->length;
    if (file && fclose(file) != 0) good = false;
    return good ? PL_OK : PL_FAIL(PL_IO_FAILED, "%s: cannot be written", path);
}

static pl_status write_sparse(const char *folder, const char *name, int64_t bytes)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    bool good = file >= 0 && ftruncate(file, (off_t)bytes) == 0;
    if (file >= 0) close(file);
    return good ? PL_OK : PL_FAIL(PL_IO_FAILED, "%s: cannot be made", path);
}

/* The boxes one after another behind a page, as in a file of values. */
static pl_status write_rank(pl_manifest *m, const char *folder, int64_t rank)
{
    char name[PL_MANIFEST_NAME];
    pl_text text = {0};
    pl_rank_boxes list = {.rank = rank, .data_bytes = 4096};
    PL_TRY(pl_checkpoint_boxes_of_rank(&list.boxes, &m->model, m->kept, &m->layout, rank));
    for (size_t i = 0; i < list.boxes.count; ++i) {
        list.boxes.box[i].offset = list.data_bytes;
        list.data_bytes += list.boxes.box[i].bytes;
    }
    pl_manifest_rank *facts = &m->ranks[m->rank_count++];
    facts->rank = rank;
    facts->data = (pl_file_facts){list.data_bytes, pl_hash_pair(0, 0)};
    facts->sums = (pl_file_facts){8 * list.boxes.sums, 0};
    pl_status status = pl_rank_boxes_write(&text, &list);
    if (status == PL_OK) {
        facts->boxes = (pl_file_facts){(int64_t)text.length, pl_hash(text.bytes, text.length)};
        status = write_text(folder, pl_manifest_rank_file(rank, ".json", name), &text);
    }
    if (status == PL_OK)
        status = write_sparse(folder, pl_manifest_rank_file(rank, ".h5", name), facts->data.bytes);
    if (status == PL_OK)
        status =
            write_sparse(folder, pl_manifest_rank_file(rank, ".sums", name), facts->sums.bytes);
    pl_text_free(&text);
    pl_rank_boxes_free(&list);
    return status;
}

static pl_status make_manifest(pl_manifest *m)
{
    static const pl_precision precision = {PL_BF16, PL_BF16, PL_FP32, PL_FP32};
    pl_model model;
    PL_TRY(pl_model_read(&model, "testdata/models/qwen3-235b-a22b.json"));
    pl_status status = pl_manifest_set_model(m, &model, NULL, 0, NULL, 0);
    pl_model_free(&model);
    PL_TRY(status);
    m->has_model = true;
    PL_TRY(pl_layout_parse(&m->layout, "decoupled:world=64,ep=8"));
    PL_TRY(pl_allocate(&m->kept, (size_t)m->model.tensor_count, sizeof *m->kept, "kept values"));
    pl_kept_values_of_training(m->kept, &m->model, &precision, PL_OPTIMIZER_ADAMW);
    PL_TRY(pl_allocate(&m->ranks, RANKS, sizeof *m->ranks, "ranks"));
    m->trained = true;
    m->optimizer = PL_OPTIMIZER_ADAMW;
    m->progress = (pl_manifest_progress){1, 1, 1000, 8, 1};
    m->index.bytes = 4096;
    return PL_OK;
}

static pl_status make_checkpoint(const char *folder)
{
    pl_manifest m = {0};
    pl_text text = {0};
    pl_status status = make_manifest(&m);
    for (int64_t rank = 0; status == PL_OK && rank < RANKS; ++rank)
        status = write_rank(&m, folder, rank);
    if (status == PL_OK) status = pl_manifest_write(&text, &m);
    if (status == PL_OK) status = write_text(folder, PL_MANIFEST_FILE, &text);
    if (status == PL_OK) status = write_sparse(folder, PL_MANIFEST_INDEX, m.index.bytes);
    pl_text_free(&text);
    pl_manifest_free(&m);
    return status;
}

/* --- the command --- */

typedef struct cost {
    double seconds, mib;
    double reads; /* pieces */
} cost;

/* "reads": 123456 of the command's JSON. */
static double reads_in(const char *path)
{
    char words[4096] = "";
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    size_t length = fread(words, 1, sizeof words - 1, file);
    fclose(file);
    words[length] = '\0';
    const char *found = strstr(words, "\"reads\": ");
    return found ? strtod(found + 9, NULL) : 0;
}

static bool run(cost *out, const char *program, const char *folder, const char *layout)
{
    char root[512], output[512];
    struct rusage usage;
    int status = 1;
    snprintf(root, sizeof root, "%s/new", folder);
    snprintf(output, sizeof output, "%s/output", folder);
    double start = now();
    pid_t child = fork();
    if (child == 0) {
        int file = open(output, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        dup2(file, STDOUT_FILENO);
        execl(program, program, "reshard", folder, root, "--to", layout, "--dry-run", "--json",
              (char *)NULL);
        _exit(127);
    }
    if (child < 0 || wait4(child, &status, 0, &usage) != child || status != 0) return false;
    *out = (cost){now() - start, (double)usage.ru_maxrss / 1024, reads_in(output)};
    return out->reads > 0;
}

/* The best of some runs; the memory of the worst. */
static bool measure(cost *out, const char *program, const char *folder, const char *layout)
{
    *out = (cost){1e30, 0, 0};
    for (int i = 0; i < REPEATS; ++i) {
        cost one;
        if (!run(&one, program, folder, layout)) return false;
        if (one.seconds < out->seconds) out->seconds = one.seconds;
        if (one.mib > out->mib) out->mib = one.mib;
        out->reads = one.reads;
    }
    return true;
}

static int compare(const char *program, const char *folder)
{
    static const char *const layouts[] = {"folded:world=64,ep=64", "folded:world=128,ep=64",
                                          "folded:world=256,ep=64"};
    cost costs[3];
    int failed = 0;
    for (int i = 0; i < 3; ++i) {
        if (!measure(&costs[i], program, folder, layouts[i])) {
            fprintf(stderr, "bench_reshard_plan: the command fails for %s\n", layouts[i]);
            return 3;
        }
        failed |= costs[i].seconds > limit_seconds || costs[i].mib > limit_mib;
        printf("plan of 235B parameters, 64 ranks to %s: %.0f pieces, %.3f s (limit %.0f), "
               "%.1f MiB (limit %.0f)\n",
               layouts[i], costs[i].reads, costs[i].seconds, limit_seconds, costs[i].mib,
               limit_mib);
    }
    double first = costs[0].seconds / costs[0].reads, last = costs[2].seconds / costs[2].reads;
    failed |= last / first > limit_growth;
    printf("time a piece: %.2f us at 64 ranks, %.2f us at 256: ratio %.2f (limit %.1f)\n",
           first * 1e6, last * 1e6, last / first, limit_growth);
    return failed;
}

int main(int count, char **words)
{
    char folder[] = "/tmp/pleat-bench-XXXXXX", command[600];
    const char *program = count > 1 ? words[1] : "build/release/pleat-ckpt";
    if (!mkdtemp(folder)) {
        perror("bench_reshard_plan");
        return 3;
    }
    pl_status status = make_checkpoint(folder);
    if (status != PL_OK) fprintf(stderr, "bench_reshard_plan: %s\n", pl_error_text());
    int result = status == PL_OK ? compare(program, folder) : 3;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) == 0 ? result : 3;
}
