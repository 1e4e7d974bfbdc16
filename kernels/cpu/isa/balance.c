/* The load-balance loss from reduced counts: small, and done in the calling thread. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/operations.h"

/* Sum over the experts of one set of count times sum of scores. */
static double weigh_counts(const pl_balance_arguments *a, int64_t set)
{
    double sum = 0;
    for (int64_t i = set * a->experts; i < (set + 1) * a->experts; ++i)
        sum += (double)a->counts[i] * (double)a->scores[i];
    return sum;
}

/* The counts of a micro-batch become those of all micro-batches up to it. */
static void run_on(int64_t *counts, int64_t *running, bool begins, int64_t experts)
{
    for (int64_t e = 0; e < experts; ++e) {
        running[e] = (begins ? 0 : running[e]) + counts[e];
        counts[e] = running[e];
    }
}

static pl_status check(const pl_device *device, const pl_balance_arguments *a, int64_t *numbers)
{
    int64_t sets = 0;
    PL_TRY(pl_cpu_elements(device, "balance", &sets, a->layers, a->micro_batches, a->sets));
    PL_TRY(pl_cpu_elements(device, "balance", numbers, sets, a->experts, 1));
    PL_TRY(pl_cpu_require(device, "balance", a->chosen >= 1, "each token chooses an expert"));
    PL_TRY(pl_cpu_require(device, "balance", a->tokens > 0, "a set has tokens"));
    return pl_cpu_require(device, "balance", !a->running || a->sets == 1,
                          "running counts have one set a micro-batch");
}

pl_status PL_ISA(pl_cpu_balance)(pl_device *device, pl_stream stream, const pl_balance_arguments *a)
{
    int64_t numbers = 0;
    PL_TRY(check(device, a, &numbers));
    pl_device_note(device, stream, "balance", 0,
                   (pl_touch[]){{a->counts, numbers * 8, true, a->running != NULL},
                                {a->scores, numbers * 4, true, false},
                                {a->running, a->layers * a->experts * 8, !a->running_begins, true},
                                {a->loss_sums + 1, 8, true, true}},
                   4);
    double total = 0;
    for (int64_t unit = 0; unit < a->layers * a->micro_batches; ++unit) {
        int64_t layer = unit / a->micro_batches, micro_batch = unit % a->micro_batches;
        double count_tokens = a->tokens;
        if (a->running) {
            run_on(a->counts + unit * a->experts, a->running + layer * a->experts,
                   a->running_begins && micro_batch == 0, a->experts);
            count_tokens = a->running_tokens + (double)(micro_batch + 1) * a->tokens;
        }
        for (int64_t set = unit * a->sets; set < (unit + 1) * a->sets; ++set)
            total += weigh_counts(a, set) / count_tokens / a->tokens;
    }
    a->loss_sums[1] += a->factor * (double)a->experts / (double)a->chosen * total;
    return PL_OK;
}
