/* A whole training run in one process for tests: every rank a thread, given data, given initial
 * values, and whole (gathered) gradients and weights as the result.
 */
#ifndef PL_TESTS_TRAIN_TRIAL_H
#define PL_TESTS_TRAIN_TRIAL_H

#include <pthread.h>

#include "train/executor.h"

/* One sequence: TOKENS and LABELS [sequence], of the sample NUMBER of step STEP; numbers do not
 * depend on the layout: ((round * M + micro-batch) * data ranks + data index) * micro + place. */
typedef void (*trial_sample)(const void *context, int64_t step, int64_t number, int64_t sequence,
                             int32_t *tokens, int32_t *labels);

/* Rows [row_begin, row_end) of TENSOR into OUT, fp32. */
typedef pl_status (*trial_values)(const void *context, const pl_tensor *tensor, int64_t row_begin,
                                  int64_t row_end, float *out);

typedef struct trial {
    const pl_model *model; /* patterns not applied */
    const char *layout;
    pl_settings settings;
    const char *const *keep_fp32, *const *frozen;
    int keep_fp32_count, frozen_count;
    const char *plan_text;                 /* NULL: made from the above */
    const char *(*edit)(const char *text); /* edits the plan's text first; the result is freed
                                              with free(); NULL: none */
    trial_sample sample;
    trial_values values; /* NULL: pl_initial_values with `seed` */
    const void *context;
    int64_t steps, seed;
    pl_program_input input; /* the same each step but for `update` */
    int workers;
    pl_order order;
    uint64_t order_seed;
    double timeout;
    /* Called on every rank's thread before each entry of the step program. */
    pl_status (*watch)(void *context, int64_t rank, int64_t step, pl_executor *executor,
                       const pl_section *section, int64_t index);
    void *watch_context;
    const pl_call_log *(*log)(void *context, int64_t rank); /* of device and groups; NULL: none */
    void *log_context;
    bool watch_start; /* watch is called before each entry of the start program too */
    /* What the executor of RANK gets instead of its device, or the world's group; NULL: these.
     * Closing the device closes the one it stands for; the group is not closed. */
    pl_device *(*wrap_device)(void *context, int64_t rank, pl_device *device);
    pl_process_group *(*wrap_world)(void *context, int64_t rank, pl_process_group *world);
    void *wrap_context;
    /* On the rank's thread: before it makes its samples; when nothing of it is left but its
     * handle on the world's group. NULL: none. */
    pl_status (*before_load)(void *context, int64_t rank, int64_t step);
    void (*ended)(void *context, int64_t rank, pl_status status, const char *words);
    void *rank_context; /* of these two */
} trial;

typedef struct trial_result {
    pl_status status; /* the first rank's that failed */
    char words[4096]; /* its words */
    int64_t tensors, world;
    pl_program_result *steps; /* [steps] of rank 0; all ranks must agree */
    float **sum_gradient;     /* [tensors] before the scale entry of step 0; NULL: none */
    float **gradient;         /* ... before the step entry */
    float **weight;           /* after the last step, from masters where there are some */
    float **moment[2];        /* after the last step, Adam m and v; NaN with SGD */
    int64_t disagreements;    /* elements in which holders of the same rows differ, and ranks
                                 whose step results differ */
    int64_t unseen;           /* elements of trained tensors that no rank holds */
    pl_memory_use *memory;    /* [world] */
    double seconds;           /* of the steps */
} trial_result;

/* Run it. The result is freed with trial_free, whatever happened. */
trial_result trial_run(const trial *t);
void trial_free(trial_result *result);

/* Relative L2 distance of COUNT elements: ||a - b|| / ||b||; 0 when both are zero. */
double trial_distance(const float *a, const float *b, int64_t count);

/* Settings for training in fp32 throughout. */
pl_settings trial_settings(int64_t sequence, int64_t micro, int64_t intra_layer, int64_t rounds);

#endif
