#include "tests/bench/train_bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "common/initial_values.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/cpu.h"

static const char config[] =
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 512, \"hidden_size\": 256, "
    "\"num_hidden_layers\": 4, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, "
    "\"head_dim\": 32, \"intermediate_size\": 512, \"moe_intermediate_size\": 512, "
    "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"norm_topk_prob\": true, "
    "\"decoder_sparse_step\": 1, \"mlp_only_layers\": [], \"tie_word_embeddings\": false, "
    "\"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, "
    "\"initializer_range\": 0.02, \"router_aux_loss_coef\": 0.001, \"hidden_act\": \"silu\", "
    "\"attention_bias\": false, \"torch_dtype\": \"float32\"}";

double train_bench_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double train_bench_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

void train_bench_choose_kernels(char **words)
{
    const char *core = pl_cpu_blas_better_core();
    if (core && setenv("OPENBLAS_CORETYPE", core, 0) == 0) execv("/proc/self/exe", words);
}

/* --- ranks --- */

static pl_status load_batch(void *context, const pl_shape *shape, int64_t data_index,
                            int64_t data_ranks, int32_t *batch)
{
    (void)context;
    (void)data_ranks;
    int64_t tokens = shape->micro_batch * shape->sequence;
    uint32_t draw = (uint32_t)data_index * 7919U + 1;
    for (int64_t t = 0; t < tokens; ++t) {
        draw = draw * 1664525U + 1013904223U;
        batch[t] = (int32_t)(draw >> 23);
        batch[tokens + t] = (int32_t)((draw >> 12) % 512U);
    }
    return PL_OK;
}

static pl_status initial_values(void *context, const pl_tensor *tensor, int64_t row_begin,
                                int64_t row_end, pl_dtype dtype, void *out)
{
    (void)context;
    (void)dtype;
    return pl_initial_values(out, 1, tensor, 0.02, row_begin, row_end);
}

static pl_status train(train_bench_rank *rank, pl_device *device, pl_executor **executor)
{
    train_bench *b = rank->bench;
    pl_program_input input = {
        .learning_rate = 1e-3, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8};
    pl_program_result result;
    pl_executor_options options = {
        .plan = &b->plan, .world = b->group[rank->rank], .device = device};
    options.outside.load_batch = load_batch;
    options.outside.initial_values = initial_values;
    PL_TRY(pl_executor_open(executor, &options));
    PL_TRY(pl_executor_run(*executor, PL_PROGRAM_START, &input, &result));
    pthread_barrier_wait(&b->gate);
    for (pthread_barrier_wait(&b->gate); !b->stop; pthread_barrier_wait(&b->gate)) {
        ++input.update;
        PL_TRY(pl_executor_run(*executor, PL_PROGRAM_STEP, &input, &result));
        if (rank->rank == 0) b->last = result;
        pthread_barrier_wait(&b->gate);
    }
    rank->memory = pl_executor_memory(*executor);
    return PL_OK;
}

static void *rank_main(void *argument)
{
    train_bench_rank *rank = argument;
    pl_device *device = NULL;
    pl_executor *executor = NULL;
    pl_backend *backend = rank->bench->backend;
    if (backend->functions->open_device(backend, &device, rank->rank, rank->rank) != PL_OK ||
        train(rank, device, &executor) != PL_OK) {
        fprintf(stderr, "rank %" PRId64 ": %s\n", rank->rank, pl_error_text());
        exit(3);
    }
    pl_executor_close(executor);
    device->functions->close(device);
    return NULL;
}

bool train_bench_start(train_bench *b)
{
    int64_t world = b->plan.layout.world;
    if (pthread_barrier_init(&b->gate, NULL, (unsigned)world + 1) != 0) return false;
    for (int64_t r = 0; r < world; ++r) {
        b->rank[r] = (train_bench_rank){.bench = b, .rank = r};
        if (pthread_create(&b->rank[r].thread, NULL, rank_main, &b->rank[r]) != 0) return false;
    }
    pthread_barrier_wait(&b->gate);
    return true;
}

double train_bench_step(train_bench *b)
{
    double begin = train_bench_now();
    pthread_barrier_wait(&b->gate);
    pthread_barrier_wait(&b->gate);
    return train_bench_now() - begin;
}

void train_bench_stop(train_bench *b)
{
    b->stop = true;
    pthread_barrier_wait(&b->gate);
    for (int64_t r = 0; r < b->plan.layout.world; ++r) pthread_join(b->rank[r].thread, NULL);
    pthread_barrier_destroy(&b->gate);
}

/* --- the whole --- */

pl_status train_bench_open(train_bench *b, const char *layout, int64_t micro, int workers)
{
    pl_model model;
    pl_plan_request request = {.settings = pl_settings_default()};
    *b = (train_bench){0};
    PL_TRY(pl_model_parse(&model, config, "bench", "bench"));
    PL_TRY(pl_layout_parse(&request.layout, layout));
    request.model = &model;
    request.settings.precision = (pl_precision){PL_FP32, PL_FP32, PL_FP32, PL_FP32};
    request.settings.shape = (pl_shape){TRAIN_BENCH_SEQUENCE, micro, 1, 1};
    request.settings.balance_coefficient = model.router_aux_loss_coef;
    PL_TRY(pl_plan_build(&b->plan, &request));
    pl_model_free(&model);
    PL_TRY(pl_backend_cpu_open(&b->backend, workers));
    if (request.layout.world == 1) return pl_group_self_open(&b->group[0]);
    return pl_group_threads_open(b->group, request.layout.world, 600);
}

void train_bench_close(train_bench *b)
{
    for (int64_t r = 0; r < b->plan.layout.world; ++r) pl_process_group_close(b->group[r]);
    b->backend->functions->close(b->backend);
    pl_plan_free(&b->plan);
}
