/* What training costs on a CPU: whole AdamW steps in fp32 of one model, alternating in one run with
 * OpenBLAS's own 1024^3 product on as many threads. The model rate credits the same products to
 * every program: 6 x active parameters without the embedding a token, and attention uncut by the
 * mask; 28.25 GFLOP for 4 x 256 tokens. Exit status 1 when a ratio is below its limit.
 *
 * Where OpenBLAS does not know the processor, both sides get the kernels that pleat-train would
 * choose (kernels/cpu/blas.h); OPENBLAS_CORETYPE overrides that.
 *
 * bench_train_cpu [profile]: with the word, one worker trains for some seconds and nothing else,
 * for perf.
 */
#include <cblas.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/initial_values.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/cpu.h"
#include "train/executor.h"

enum { SEQUENCE = 256, SIDE = 1024, CHUNKS = 12, RANKS = 8 };

static const char config[] =
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 512, \"hidden_size\": 256, "
    "\"num_hidden_layers\": 4, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, "
    "\"head_dim\": 32, \"intermediate_size\": 512, \"moe_intermediate_size\": 512, "
    "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"norm_topk_prob\": true, "
    "\"decoder_sparse_step\": 1, \"mlp_only_layers\": [], \"tie_word_embeddings\": false, "
    "\"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, "
    "\"initializer_range\": 0.02, \"router_aux_loss_coef\": 0.001, \"hidden_act\": \"silu\", "
    "\"attention_bias\": false, \"torch_dtype\": \"float32\"}";

typedef struct bench {
    pl_plan plan;
    pl_backend *backend;
    pl_process_group *group[RANKS];
    pthread_barrier_t gate; /* ranks and the main thread */
    bool stop;
    pl_program_result last;
} bench;

typedef struct rank_thread {
    bench *b;
    int64_t rank;
    pl_status status;
    char words[512];
} rank_thread;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

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

static pl_status train(rank_thread *thread, pl_device *device, pl_executor **executor)
{
    bench *b = thread->b;
    pl_program_input input = {
        .learning_rate = 1e-3, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8};
    pl_program_result result;
    pl_executor_options options = {
        .plan = &b->plan, .world = b->group[thread->rank], .device = device};
    options.outside.load_batch = load_batch;
    options.outside.initial_values = initial_values;
    PL_TRY(pl_executor_open(executor, &options));
    PL_TRY(pl_executor_run(*executor, PL_PROGRAM_START, &input, &result));
    pthread_barrier_wait(&b->gate);
    for (pthread_barrier_wait(&b->gate); !b->stop; pthread_barrier_wait(&b->gate)) {
        ++input.update;
        if (thread->status == PL_OK) {
            thread->status = pl_executor_run(*executor, PL_PROGRAM_STEP, &input, &result);
            if (thread->status != PL_OK)
                snprintf(thread->words, sizeof thread->words, "%s", pl_error_text());
        }
        if (thread->rank == 0) b->last = result;
        pthread_barrier_wait(&b->gate);
    }
    return thread->status;
}

static void *thread_main(void *argument)
{
    rank_thread *thread = argument;
    pl_device *device = NULL;
    pl_executor *executor = NULL;
    pl_backend *backend = thread->b->backend;
    if (backend->functions->open_device(backend, &device, thread->rank, thread->rank) != PL_OK ||
        train(thread, device, &executor) != PL_OK) {
        fprintf(stderr, "rank %" PRId64 ": %s%s\n", thread->rank, thread->words, pl_error_text());
        exit(3);
    }
    pl_executor_close(executor);
    device->functions->close(device);
    return NULL;
}

/* Seconds of one step of all ranks. */
static double one_step(bench *b)
{
    double begin = now();
    pthread_barrier_wait(&b->gate);
    pthread_barrier_wait(&b->gate);
    return now() - begin;
}

static float *product_array(float value)
{
    float *array = malloc(sizeof(float) * SIDE * SIDE);
    for (int i = 0; array && i < SIDE * SIDE; ++i) array[i] = value + (float)(i % 7) * 0.01F;
    return array;
}

/* Products of 2^30 multiply-adds a second, in GFLOP/s: the best of some. */
static double product_rate(int threads, const float *a, const float *b, float *c)
{
    double best = 1e30;
    openblas_set_num_threads(threads);
    for (int i = 0; i < 4; ++i) {
        double begin = now();
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, SIDE, SIDE, SIDE, 1, a, SIDE, b,
                    SIDE, 0, c, SIDE);
        double took = now() - begin;
        best = took < best ? took : best;
    }
    openblas_set_num_threads(1);
    return 2.0 * SIDE * SIDE * SIDE / best * 1e-9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

static pl_status open_bench(bench *b, const char *notation, int64_t micro, int workers)
{
    pl_model model;
    pl_plan_request request = {.settings = pl_settings_default()};
    *b = (bench){0};
    PL_TRY(pl_model_parse(&model, config, "bench", "bench"));
    PL_TRY(pl_layout_parse(&request.layout, notation));
    request.model = &model;
    request.settings.precision = (pl_precision){PL_FP32, PL_FP32, PL_FP32, PL_FP32};
    request.settings.shape = (pl_shape){SEQUENCE, micro, 1, 1};
    request.settings.balance_coefficient = model.router_aux_loss_coef;
    PL_TRY(pl_plan_build(&b->plan, &request));
    pl_model_free(&model);
    PL_TRY(pl_backend_cpu_open(&b->backend, workers));
    if (request.layout.world == 1) return pl_group_self_open(&b->group[0]);
    return pl_group_threads_open(b->group, request.layout.world, 600);
}

static void close_bench(bench *b)
{
    for (int64_t r = 0; r < b->plan.layout.world; ++r) pl_process_group_close(b->group[r]);
    b->backend->functions->close(b->backend);
    pl_plan_free(&b->plan);
}

/* Steps and products in turns; false when the ratio is below LIMIT. */
static bool measure(bench *b, const char *what, int workers, double gflop, double limit)
{
    rank_thread thread[RANKS];
    pthread_t id[RANKS];
    double step[CHUNKS * 2], product[CHUNKS];
    int64_t world = b->plan.layout.world;
    float *x = product_array(0.5F), *y = product_array(0.25F), *z = product_array(0);
    if (!x || !y || !z) return false;
    pthread_barrier_init(&b->gate, NULL, (unsigned)world + 1);
    for (int64_t r = 0; r < world; ++r) {
        thread[r] = (rank_thread){.b = b, .rank = r};
        if (pthread_create(&id[r], NULL, thread_main, &thread[r]) != 0) return false;
    }
    pthread_barrier_wait(&b->gate);
    for (int i = 0; i < 3; ++i) one_step(b);
    for (int i = 0; i < CHUNKS; ++i) {
        product[i] = product_rate(workers, x, y, z);
        step[2 * i] = one_step(b);
        step[2 * i + 1] = one_step(b);
    }
    b->stop = true;
    pthread_barrier_wait(&b->gate);
    for (int64_t r = 0; r < world; ++r) pthread_join(id[r], NULL);
    double seconds = median(step, CHUNKS * 2), rate = median(product, CHUNKS);
    double ratio = gflop / seconds / rate;
    printf(
        "train_cpu %s: step %.1f ms, %.0f tokens/s, %.1f GFLOP/s; OpenBLAS %s 1024^3 on %d: %.1f "
        "GFLOP/s; ratio %.3f, limit %.2f%s\n",
        what, seconds * 1e3, gflop / 28.25 * 1024 / seconds, gflop / seconds,
        openblas_get_corename(), workers, rate, ratio, limit, ratio < limit ? ": BELOW" : "");
    fflush(stdout);
    pthread_barrier_destroy(&b->gate);
    free(x);
    free(y);
    free(z);
    return ratio >= limit;
}

static void profile(bench *b)
{
    rank_thread thread = {.b = b};
    pthread_t id;
    pthread_barrier_init(&b->gate, NULL, 2);
    if (pthread_create(&id, NULL, thread_main, &thread) != 0) exit(3);
    pthread_barrier_wait(&b->gate);
    double begin = now(), least = 1e30;
    while (now() - begin < 8) {
        double took = one_step(b);
        least = took < least ? took : least;
    }
    b->stop = true;
    pthread_barrier_wait(&b->gate);
    pthread_join(id, NULL);
    pthread_barrier_destroy(&b->gate);
    printf("best step %.1f ms, loss %.4f\n", least * 1e3,
           b->last.loss_sum / (double)b->last.tokens);
}

int main(int count, char **words)
{
    static const struct {
        const char *what, *layout;
        int64_t micro;
        int workers;
        double gflop, limit;
    } cases[] = {
        {"1 rank, 1 worker, 4 x 256", "single:world=1", 4, 1, 28.25, 0.75},
        {"1 rank, 2 workers, 4 x 256", "single:world=1", 4, 2, 28.25, 0.68},
        {"8 thread ranks legacy ep 4, 2 workers, 8 x 256", "legacy:world=8,ep=4", 1, 2, 56.5, 0.5},
    };
    const char *core = pl_cpu_blas_better_core();
    if (core && setenv("OPENBLAS_CORETYPE", core, 0) == 0) execv("/proc/self/exe", words);
    bool good = true, profiling = count > 1 && strcmp(words[1], "profile") == 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        bench b;
        if (open_bench(&b, cases[i].layout, cases[i].micro, cases[i].workers) != PL_OK) {
            fprintf(stderr, "%s\n", pl_error_text());
            return 3;
        }
        if (profiling)
            profile(&b);
        else
            good &= measure(&b, cases[i].what, cases[i].workers, cases[i].gflop, cases[i].limit);
        close_bench(&b);
        if (profiling) return 0;
    }
    return good ? 0 : 1;
}
