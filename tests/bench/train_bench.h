/* A training run for benchmarks: rank threads that step when they are told to, on made-up tokens.
 * The model of both training benchmarks: vocabulary 512, hidden 256, 4 MoE layers, 8 experts of
 * width 512, top-2.
 */
#ifndef PL_TESTS_BENCH_TRAIN_BENCH_H
#define PL_TESTS_BENCH_TRAIN_BENCH_H

#include <pthread.h>

#include "common/process_group.h"
#include "train/executor.h"

enum { TRAIN_BENCH_RANKS = 8, TRAIN_BENCH_SEQUENCE = 256 };

typedef struct train_bench train_bench;

typedef struct train_bench_rank {
    train_bench *bench;
    int64_t rank;
    pthread_t thread;
    pl_memory_use memory; /* of the time since it was opened, once it is stopped */
} train_bench_rank;

struct train_bench {
    pl_plan plan;
    pl_backend *backend;
    pl_process_group *group[TRAIN_BENCH_RANKS];
    train_bench_rank rank[TRAIN_BENCH_RANKS];
    pthread_barrier_t gate; /* ranks and the main thread */
    bool stop;
    pl_program_result last;
};

/* Make the plan of LAYOUT, with MICRO sequences a rank, fp32, AdamW, and WORKERS. */
pl_status train_bench_open(train_bench *b, const char *layout, int64_t micro, int workers);
void train_bench_close(train_bench *b);

/* Start the rank threads, which run the start program; false when a thread cannot be made. */
bool train_bench_start(train_bench *b);

/* Seconds of one step of all ranks. A rank that fails ends the benchmark with status 3. */
double train_bench_step(train_bench *b);

/* End the rank threads. */
void train_bench_stop(train_bench *b);

/* Seconds of a clock that only goes forward. */
double train_bench_now(void);

/* The middle of VALUES, which are sorted. */
double train_bench_median(double *values, int count);

/* Start the program again with the kernels that fit the processor where OpenBLAS does not know it;
 * WORDS as main got them. */
void train_bench_choose_kernels(char **words);

#endif
