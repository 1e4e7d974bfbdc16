/* What it costs to prove a plan: all proofs of the plan of a 30B model with four micro-batches
 * together, on 64 ranks and on 8. Exit status 1 when a limit is exceeded or a proof fails.
 */
#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

#include "sim/proof.h"

enum { REPEATS = 5 };

static const double limit_ms = 500;

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

/* The yardstick: the entries and uses of every rank looked at once. */
static int64_t look_at_all(const pl_plan *plan)
{
    int64_t sum = 0;
    for (int program = 0; program < PL_PROGRAM_COUNT; ++program) {
        for (int64_t rank = 0; rank < plan->layout.world; ++rank) {
            const pl_section *section = pl_plan_section(plan, (pl_program)program, rank);
            for (size_t i = 0; section && i < section->entry_count; ++i) {
                const pl_entry *entry = &section->entries[i];
                sum += entry->bytes + entry->label;
                for (uint32_t u = 0; u < entry->use_count; ++u)
                    sum += section->buffers[section->uses[entry->use_first + u].buffer].bytes & 1;
            }
        }
    }
    return sum;
}

static pl_status check(const pl_plan *plan, double *ms, int64_t *entries)
{
    *ms = 1e30;
    for (int i = 0; i < REPEATS; ++i) {
        pl_check check;
        double start = now_ms();
        PL_TRY(pl_check_plan(&check, plan));
        *ms = smaller(*ms, now_ms() - start);
        *entries = check.entries;
        bool proved = pl_check_proved(&check);
        pl_check_free(&check);
        if (!proved) return PL_FAIL(PL_CHECK_FAILED, "the plan is not proved");
    }
    return PL_OK;
}

static pl_status measure(const pl_model *model, const char *notation, double *ms)
{
    pl_plan plan;
    int64_t entries = 0, sum = 0;
    double yardstick = 1e30;
    pl_plan_request request = {.model = model, .settings = pl_settings_default()};
    request.settings.shape.intra_layer = 4;
    request.programs = PL_PROGRAMS_START | PL_PROGRAMS_STEP | PL_PROGRAMS_EVALUATE |
                       PL_PROGRAMS_EXPORT; /* what 'pleat-sim check' proves */
    PL_TRY(pl_layout_parse(&request.layout, notation));
    PL_TRY(pl_plan_build(&plan, &request));
    pl_status status = check(&plan, ms, &entries);
    for (int i = 0; i < REPEATS && status == PL_OK; ++i) {
        double start = now_ms();
        sum += look_at_all(&plan);
        yardstick = smaller(yardstick, now_ms() - start);
    }
    if (status == PL_OK) {
        printf("all proofs of %s, %s, 4 micro-batches: %" PRId64 " entries of all ranks, %zu "
               "sections in %.0f ms, limit %.0f ms\n",
               model->name, notation, entries, plan.section_count, *ms, limit_ms);
        printf("  yardstick, all entries and uses of all ranks looked at once: %.1f ms; ratio %.1f "
               "(check sum %" PRId64 "); peak memory %.0f MiB\n",
               yardstick, *ms / yardstick, sum, peak_mib());
    }
    pl_plan_free(&plan);
    return status;
}

int main(void)
{
    static const char *const layouts[] = {"decoupled:world=8,ep=8", "decoupled:world=64,ep=8"};
    pl_model model;
    bool over = false;
    pl_status status = pl_model_open(&model, "qwen3-30b-a3b");
    for (size_t i = 0; i < 2 && status == PL_OK; ++i) {
        double ms = 0;
        status = measure(&model, layouts[i], &ms);
        over |= ms > limit_ms;
    }
    if (status != PL_OK) {
        fprintf(stderr, "bench_check: %s\n", pl_error_text());
        return pl_status_exit_code(status);
    }
    pl_model_free(&model);
    if (!over) return 0;
    fprintf(stderr, "bench_check: over the limit\n");
    return 1;
}
