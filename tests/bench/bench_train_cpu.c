#define _GNU_SOURCE /* sched_setaffinity */
/* What training costs on a CPU: whole AdamW steps in fp32 of one model, alternating in one run with
 * OpenBLAS's own 1024^3 product on as many threads. The model rate credits the same products to
 * every program: 6 x active parameters without the embedding a token, and attention uncut by the
 * mask; 28.25 GFLOP for 4 x 256 tokens. Exit status 1 when a ratio is below its limit.
 *
 * Where OpenBLAS does not know the processor, both sides get the kernels that pleat-train would
 * choose (kernels/cpu/blas.h); OPENBLAS_CORETYPE overrides that. With one worker everything stays
 * on one processor: others may be slowed by other programs more or less than it is.
 *
 * bench_train_cpu [profile]: with the word, one worker trains for some seconds and nothing else,
 * for perf.
 */
#include <cblas.h>
#include <inttypes.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/train_bench.h"

enum { SIDE = 1024, CHUNKS = 24 };

static const double gflop_of_1024_tokens = 28.25;

static float *product_array(float value)
{
    float *array = malloc(sizeof(float) * SIDE * SIDE);
    for (int i = 0; array && i < SIDE * SIDE; ++i) array[i] = value + (float)(i % 7) * 0.01F;
    return array;
}

/* Products of 2^30 multiply-adds for at least SECONDS, in GFLOP/s. */
static double product_rate(int threads, double seconds, const float *a, const float *b, float *c)
{
    double begin = train_bench_now(), took = 0;
    int done = 0;
    openblas_set_num_threads(threads);
    while (took < seconds) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, SIDE, SIDE, SIDE, 1, a, SIDE, b,
                    SIDE, 0, c, SIDE);
        took = train_bench_now() - begin;
        ++done;
    }
    openblas_set_num_threads(1);
    return 2.0 * SIDE * SIDE * SIDE * done / took * 1e-9;
}

typedef struct bench_case {
    const char *what, *layout;
    int64_t micro;
    int workers;
    double limit;
} bench_case;

/* Threads made from now on, and this one, run on the last processor that they may use, or on all
 * of ALLOWED again. */
static void stay_on_one(const cpu_set_t *allowed, bool one)
{
    cpu_set_t set = *allowed;
    for (size_t i = 0, left = (size_t)CPU_COUNT(&set); one && left > 1; ++i) {
        if (!CPU_ISSET(i, &set)) continue;
        CPU_CLR(i, &set);
        --left;
    }
    (void)sched_setaffinity(0, sizeof set, &set);
}

/* Steps and products in turns; false when the ratio is below its limit. */
static bool measure(train_bench *b, const bench_case *c)
{
    double step[CHUNKS], product[CHUNKS], ratios[CHUNKS];
    double tokens = (double)(b->plan.layout.world * c->micro * TRAIN_BENCH_SEQUENCE);
    double gflop = gflop_of_1024_tokens * tokens / 1024;
    float *x = product_array(0.5F), *y = product_array(0.25F), *z = product_array(0);
    if (!x || !y || !z || !train_bench_start(b)) return false;
    for (int i = 0; i < 3; ++i) train_bench_step(b);
    /* Each chunk has a ratio of its own. The products take as long as a step, for what slows the
     * machine for a while to have the same chance with both. */
    for (int i = 0; i < CHUNKS; ++i) {
        step[i] = train_bench_step(b);
        product[i] = product_rate(c->workers, step[i], x, y, z);
        ratios[i] = gflop / step[i] / product[i];
    }
    train_bench_stop(b);
    double seconds = train_bench_median(step, CHUNKS);
    double rate = train_bench_median(product, CHUNKS), ratio = train_bench_median(ratios, CHUNKS);
    printf(
        "train_cpu %s: step %.1f ms, %.0f tokens/s, %.1f GFLOP/s; OpenBLAS %s 1024^3 on %d: %.1f "
        "GFLOP/s; ratio %.3f, limit %.2f%s\n",
        c->what, seconds * 1e3, tokens / seconds, gflop / seconds, openblas_get_corename(),
        c->workers, rate, ratio, c->limit, ratio < c->limit ? ": BELOW" : "");
    fflush(stdout);
    free(x);
    free(y);
    free(z);
    return ratio >= c->limit;
}

static bool profile(train_bench *b)
{
    if (!train_bench_start(b)) return false;
    double begin = train_bench_now(), least = 1e30;
    while (train_bench_now() - begin < 8) {
        double took = train_bench_step(b);
        least = took < least ? took : least;
    }
    train_bench_stop(b);
    printf("best step %.1f ms, loss %.4f\n", least * 1e3,
           b->last.loss_sum / (double)b->last.tokens);
    return true;
}

int main(int count, char **words)
{
    static const bench_case cases[] = {
        {"1 rank, 1 worker, 4 x 256", "single:world=1", 4, 1, 0.75},
        {"1 rank, 2 workers, 4 x 256", "single:world=1", 4, 2, 0.68},
        {"8 thread ranks legacy ep 4, 2 workers, 8 x 256", "legacy:world=8,ep=4", 1, 2, 0.5},
    };
    cpu_set_t allowed;
    train_bench_choose_kernels(words);
    (void)sched_getaffinity(0, sizeof allowed, &allowed);
    bool good = true, profiling = count > 1 && strcmp(words[1], "profile") == 0;
    for (size_t i = 0; i < (profiling ? 1 : sizeof cases / sizeof *cases); ++i) {
        train_bench b;
        stay_on_one(&allowed, cases[i].workers == 1);
        if (train_bench_open(&b, cases[i].layout, cases[i].micro, cases[i].workers) != PL_OK) {
            fprintf(stderr, "%s\n", pl_error_text());
            return 3;
        }
        good &= profiling ? profile(&b) : measure(&b, &cases[i]);
        train_bench_close(&b);
    }
    return good ? 0 : 1;
}
