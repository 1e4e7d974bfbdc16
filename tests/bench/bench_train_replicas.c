/* What HSDP buys and costs: the same eight thread ranks, batch and model with R = 1 and with R = 2
 * replicas, stepping in turns in one run. Prints seconds of a step, the most bytes a rank held, and
 * what is resident, each as a ratio of R = 2 to R = 1.
 *
 * Ranks that are threads share memory, so gathers among four cost about what they cost among
 * eight; what is shown is that shards hold twice as much and that a step does not get slower than
 * LIMIT. Exit status 1 when it does, or when shards are not between 1.9 and 2.1 times as large
 * (padded rows make them uneven).
 */
#include <inttypes.h>
#include <stdio.h>

#include "tests/bench/train_bench.h"

enum { STEPS = 24, WORKERS = 2 };

static const double slower_limit = 1.25;

typedef struct measured {
    double seconds;
    int64_t shards, gradients, peak;
} measured;

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static measured result_of(const train_bench *b, double *steps)
{
    measured m = {.seconds = train_bench_median(steps, STEPS)};
    for (int64_t r = 0; r < b->plan.layout.world; ++r) {
        const pl_memory_use *use = &b->rank[r].memory;
        m.shards = most(m.shards, use->now[PL_BUFFER_SHARD]);
        m.gradients = most(m.gradients, use->peak[PL_BUFFER_GRADIENT]);
        m.peak = most(m.peak, use->peak_total);
    }
    return m;
}

static void print_row(const char *what, double one, double two, const char *unit)
{
    printf("train_replicas %s: R=1 %.2f %s, R=2 %.2f %s, ratio %.3f\n", what, one, unit, two, unit,
           two / one);
}

/* Step A and B in turns. */
static bool measure(train_bench *a, train_bench *b)
{
    double step[2][STEPS];
    if (!train_bench_start(a) || !train_bench_start(b)) return false;
    for (int i = -3; i < STEPS; ++i) {
        double one = train_bench_step(a), two = train_bench_step(b);
        if (i < 0) continue;
        step[0][i] = one;
        step[1][i] = two;
    }
    train_bench_stop(a);
    train_bench_stop(b);
    measured one = result_of(a, step[0]), two = result_of(b, step[1]);
    const double mib = 1 << 20;
    print_row("step", one.seconds * 1e3, two.seconds * 1e3, "ms");
    print_row("resident parameters and moments, the largest rank", (double)one.shards / mib,
              (double)two.shards / mib, "MiB");
    print_row("sharded gradients, the largest rank", (double)one.gradients / mib,
              (double)two.gradients / mib, "MiB");
    print_row("peak of device memory, the largest rank", (double)one.peak / mib,
              (double)two.peak / mib, "MiB");
    double shards = (double)two.shards / (double)one.shards, slower = two.seconds / one.seconds;
    bool good = shards > 1.9 && shards < 2.1 && slower <= slower_limit;
    printf("train_replicas: shards %.3f, must be 1.9 to 2.1; step %.3f, limit %.2f%s\n", shards,
           slower, slower_limit, good ? "" : ": NOT MET");
    return good;
}

int main(int count, char **words)
{
    (void)count;
    train_bench_choose_kernels(words);
    train_bench a, b;
    if (train_bench_open(&a, "decoupled:world=8,ep=4", 1, WORKERS) != PL_OK ||
        train_bench_open(&b, "decoupled:world=8,ep=4,replicas=2", 1, WORKERS) != PL_OK) {
        fprintf(stderr, "%s\n", pl_error_text());
        return 3;
    }
    bool good = measure(&a, &b);
    train_bench_close(&a);
    train_bench_close(&b);
    return good ? 0 : 1;
}
