/* The course of the learning rate: warm-up, stable steps, decay. */
#ifndef PL_TRAIN_SCHEDULE_H
#define PL_TRAIN_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/run_file.h"
#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pl_decay_shape { PL_DECAY_COSINE, PL_DECAY_LINEAR } pl_decay_shape;

/* What a schedule is made of. Parts of steps and of the largest rate lie in [0, 1]. */
typedef struct pl_schedule_request {
    pl_schedule kind;
    pl_decay_shape shape; /* wsd; cosine always decays by a cosine */
    int64_t steps;
    double lr;            /* the largest rate */
    double warmup, decay; /* parts of steps; decay: wsd alone */
    double start, final;  /* parts of lr: in step 0 of a warm-up, and once the decay is over */
} pl_schedule_request;

/* A plain value: copy it freely. */
typedef struct pl_learning_rate {
    pl_decay_shape shape;
    double lr, start, final;
    int64_t warmup, stable, decay; /* steps */
} pl_learning_rate;

/* Add the formulas of schedules, lines of plain text. */
void pl_learning_rate_describe(pl_text *text);

/* The schedule of REQUEST. Pure. */
pl_learning_rate pl_learning_rate_make(const pl_schedule_request *request);

/* The rate of step STEP, counted from 0; PL_DECAY_LINEAR, which only tests ask for so far, decays
 * as lr * (1 + (final - 1) * t). Past the last step it stays as it ends. Source: PithTrain's
 * schedules, as tabulated in testdata/hf/schedules. Pure. */
double pl_learning_rate_at(const pl_learning_rate *rate, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
