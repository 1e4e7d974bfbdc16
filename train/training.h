/* A run: what its ranks do from the first values to the weights on the disk.
 */
#ifndef PL_TRAIN_TRAINING_H
#define PL_TRAIN_TRAINING_H

#include "train/executor.h"
#include "train/ranks.h"
#include "train/recorder.h"
#include "train/setup.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_training pl_training;

/* All borrowed. */
typedef struct pl_training_request {
    const pl_setup *setup;
    pl_backend *backend;
    pl_console *console;
    const pl_program_facts *program;
    const char *ranks; /* "threads", "processes" */
    pl_order order;
    uint64_t order_seed;
} pl_training_request;

/* How a run ended. */
typedef struct pl_training_result {
    int64_t steps, updates;
    int64_t not_finite;     /* steps without an update because of the gradients' norm */
    const char *stopped_by; /* "SIGINT"; NULL: it went to its end */
} pl_training_result;

/* What the ranks of this process share. The caller frees. Errors: PL_NO_MEMORY. */
pl_status pl_training_open(pl_training **out, const pl_training_request *request);

/* The whole run of one rank: a pl_rank_body whose context is the pl_training. Rank 0 makes the
 * output folder and keeps the records; all write weights. Collective over WORLD. Errors: those of
 * executor, data and disk. */
pl_status pl_training_rank(void *context, int64_t rank, int64_t local, pl_process_group *world);

/* Whether the ranks of this process came so far that they hold their first values: nothing was
 * written before. */
bool pl_training_begun(const pl_training *training);

/* After the ranks: how it ended, and on the process of rank 0 its records (NULL elsewhere, and when
 * rank 0 did not come so far). Borrowed. */
pl_training_result pl_training_end(const pl_training *training);
pl_recorder *pl_training_recorder(pl_training *training);

/* Close what is open. NULL is allowed. Errors: PL_IO_FAILED when a record could not be closed. */
pl_status pl_training_free(pl_training *training);

#ifdef __cplusplus
}
#endif
#endif
