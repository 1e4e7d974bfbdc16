/* Saving beside the steps: whole runs of pleat-train with the model of checkpoint_rates_save.c, one
 * that saves after each step with checkpoint.write=behind, one that never does. A step is made long
 * enough that the bytes of a checkpoint need half of it at the rate of the raw write. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/checkpoint_rates.h"

enum { STEPS = 6, DATA_RANKS = RATES_RANKS };

static const double limit = 1.3;

static const char run_file[] = "model: %s/model.json\n"
                               "layout: legacy:world=8,ep=4\n"
                               "data: {train: [%s/text], tokenizer: bytes, sequence: 64}\n"
                               "batch: {global: %d, micro: 1}\n"
                               "optimizer: {kind: adamw, lr: 1e-3}\n"
                               "%s"
                               "steps: %d\n";

static bool prepare(const rates *r, int rounds, bool saves, int steps)
{
    char text[2048];
    snprintf(text, sizeof text, run_file, r->folder, r->folder, rounds * DATA_RANKS,
             saves ? "checkpoint: {every: 1, keep: 1, write: behind}\n" : "", steps);
    return rates_write_file(r->folder, "beside.yaml", text);
}

/* "seconds" of the last line of kind "end" in a run's log, by its steps. */
static double seconds_a_step(const char *log, int steps)
{
    static char line[1 << 16];
    double seconds = -1;
    FILE *file = fopen(log, "r");
    if (!file) return perror(log), -1;
    while (fgets(line, sizeof line, file)) {
        const char *found = strstr(line, "\"seconds\":");
        if (found && strstr(line, "\"end\"")) seconds = strtod(found + 10, NULL) / steps;
    }
    fclose(file);
    return seconds;
}

/* Seconds of a step, from the first one's beginning to the end of the run, weights written. */
static double run_steps(const rates *r, int rounds, bool saves, int steps)
{
    char file[RAW_PATH], output[RAW_PATH], log[RAW_PATH + 20];
    double seconds = 0, mib = 0;
    snprintf(file, sizeof file, "%s/beside.yaml", r->folder);
    snprintf(output, sizeof output, "%s/beside", r->folder);
    snprintf(log, sizeof log, "%s/run.jsonl", output);
    const char *const words[] = {"run", file, "--output", output, "--overwrite", "--quiet", NULL};
    if (!prepare(r, rounds, saves, steps) ||
        !rates_command(r, &seconds, &mib, "pleat-train", words))
        return -1;
    return seconds_a_step(log, steps);
}

/* Seconds that a checkpoint's files need by the raw write, the median of the rounds. */
static double raw_seconds(const rates *r, double *bytes)
{
    char raw[RAW_PATH], folder[RAW_PATH];
    double seconds[RATES_ROUNDS_MOST];
    raw_files files;
    snprintf(raw, sizeof raw, "%s/raw", r->folder);
    snprintf(folder, sizeof folder, "%s/beside/checkpoints/step-1", r->folder);
    if (!raw_list(&files, folder, ".h5")) return -1;
    *bytes = (double)files.bytes;
    for (int i = 0; i < r->rounds; ++i) {
        seconds[i] = raw_write(&files, raw, files.count);
        if (seconds[i] < 0 || !raw_remove(raw)) return -1;
    }
    return rates_median(seconds, r->rounds);
}

static bool measure(rates *r, int rounds, double raw, double bytes)
{
    double none[RATES_ROUNDS_MOST], beside[RATES_ROUNDS_MOST], ratio[RATES_ROUNDS_MOST];
    for (int i = 0; i < r->rounds; ++i) {
        for (int turn = 0; turn < 2; ++turn) {
            bool saves = (turn + i) % 2 == 0;
            double seconds = run_steps(r, rounds, saves, STEPS);
            if (seconds < 0) return false;
            (saves ? beside : none)[i] = seconds;
        }
        ratio[i] = beside[i] / none[i];
    }
    double step = rates_median(none, r->rounds), found = rates_median(ratio, r->rounds);
    bool fits = raw <= step / 2;
    if (found > limit) r->exceeded = true;
    printf("steps that are saved beside the next: %.3f s against %.3f s without: ratio %.2f "
           "(limit %.1f)\n"
           "    each of %d steps saved, the last one waited for; %.0f MiB, raw write %.3f s, %.2f "
           "of a step%s\n",
           rates_median(beside, r->rounds), step, found, limit, STEPS, bytes / (1 << 20), raw,
           raw / step, fits ? "" : ": more than half");
    return true;
}

bool rates_beside(rates *r)
{
    double bytes = 0;
    double step = run_steps(r, 1, true, 1) > 0 ? run_steps(r, 2, false, 2) / 2 : -1;
    if (step <= 0 || run_steps(r, 1, true, 1) < 0) return false;
    double raw = raw_seconds(r, &bytes);
    if (raw < 0) return false;
    int rounds = (int)ceil(2.2 * raw / step);
    return measure(r, rounds < 1 ? 1 : rounds, raw, bytes);
}
