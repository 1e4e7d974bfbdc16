/* What it costs to make plans: the step of 64 ranks of a 30B model with four micro-batches
 * together, each rank's made by itself as if none could share. Exit status 1 when a limit is
 * exceeded.
 */
#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

#include "common/memory.h"
#include "common/plan.h"

enum { REPEATS = 5 };

static const double limit_ms = 100;

static double now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec * 1e-6;
}

static double smaller(double a, double b) { return a < b ? a : b; }

static double peak_mib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

/* The best of REPEATS builds; the last plan stays in OUT. */
static pl_status build(pl_plan *out, const pl_plan_request *request, double *ms)
{
    *ms = 1e30;
    for (int i = 0; i < REPEATS; ++i) {
        double start = now_ms();
        PL_TRY(pl_plan_build(out, request));
        *ms = smaller(*ms, now_ms() - start);
        if (i < REPEATS - 1) pl_plan_free(out);
    }
    return PL_OK;
}

static int64_t count_entries(const pl_plan *plan)
{
    int64_t entries = 0;
    for (size_t i = 0; i < plan->section_count; ++i)
        entries += (int64_t)plan->sections[i].entry_count;
    return entries;
}

/* The entries of a section. */
typedef struct filled {
    pl_entry *entries;
} filled;

/* One array of entries for each section, filled with a pattern: the least that making them costs.
 * SUM keeps the stores from being left out. */
static pl_status fill(const pl_plan *plan, filled *arrays, uint64_t *sum)
{
    for (size_t i = 0; i < plan->section_count; ++i) {
        size_t count = plan->sections[i].entry_count;
        PL_TRY(pl_allocate(&arrays[i].entries, count, sizeof(pl_entry), "entries"));
        for (size_t j = 0; j < count; ++j)
            arrays[i].entries[j] =
                (pl_entry){.label = (uint32_t)j, .bytes = (int64_t)i, .scale = {1, 1, 0}};
        *sum += arrays[i].entries[count / 2].label;
    }
    return PL_OK;
}

static pl_status measure_fill(const pl_plan *plan, double *ms, uint64_t *sum)
{
    filled *arrays = NULL;
    pl_status status = pl_allocate(&arrays, plan->section_count, sizeof *arrays, "entries");
    *ms = 1e30;
    for (int i = 0; i < REPEATS && status == PL_OK; ++i) {
        double start = now_ms();
        status = fill(plan, arrays, sum);
        *ms = smaller(*ms, now_ms() - start);
        for (size_t j = 0; j < plan->section_count; ++j) {
            pl_free(arrays[j].entries);
            arrays[j].entries = NULL;
        }
    }
    pl_free(arrays);
    return status;
}

static pl_status measure(double *ms)
{
    pl_model model;
    pl_plan plan;
    double yardstick = 0;
    uint64_t sum = 0;
    pl_plan_request request = {.model = &model, .settings = pl_settings_default()};
    request.settings.shape.intra_layer = 4;
    request.separate_ranks = true;
    request.programs = PL_PROGRAMS_STEP;
    PL_TRY(pl_layout_parse(&request.layout, "decoupled:world=64,ep=8"));
    PL_TRY(pl_model_open(&model, "qwen3-30b-a3b"));
    pl_status status = build(&plan, &request, ms);
    if (status == PL_OK) {
        status = measure_fill(&plan, &yardstick, &sum);
        printf("plans of 64 ranks of %s, decoupled:world=64,ep=8, 4 micro-batches, none shared: "
               "%" PRId64 " entries of %zu bytes in %zu sections in %.1f ms, limit %.0f ms\n",
               model.name, count_entries(&plan), sizeof(pl_entry), plan.section_count, *ms,
               limit_ms);
        printf("  yardstick, as many entries filled with a pattern: %.1f ms; ratio %.1f "
               "(check sum %" PRIu64 "); peak memory %.0f MiB\n",
               yardstick, *ms / yardstick, sum, peak_mib());
        pl_plan_free(&plan);
    }
    pl_model_free(&model);
    return status;
}

int main(void)
{
    double ms = 0;
    pl_status status = measure(&ms);
    if (status != PL_OK) {
        fprintf(stderr, "bench_plan: %s\n", pl_error_text());
        return pl_status_exit_code(status);
    }
    if (ms <= limit_ms) return 0;
    fprintf(stderr, "bench_plan: over the limit\n");
    return 1;
}
