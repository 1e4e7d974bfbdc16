/* The executor: one rank's driver of a plan.
 *
 * It walks the section of its rank: makes room for a buffer where an entry begins it and lets it
 * go where one ends it, orders streams by the entry's waits, and hands the entry to the function
 * of its operation (train/entries.h), which makes the backend and group calls for that entry and
 * nothing besides. The text of a plan decides everything: an edited plan is carried out as it
 * stands, as far as it makes sense at all.
 *
 * Device memory is never followed here. Collective entries are started when they are met and
 * waited for when something needs them. One executor belongs to one thread at a time.
 */
#ifndef PL_TRAIN_EXECUTOR_H
#define PL_TRAIN_EXECUTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "common/plan.h"
#include "common/process_group.h"
#include "common/value_kind.h"
#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_executor pl_executor;

/* What entries on stream host ask of the outside. Every function may be NULL when no program that
 * is run needs it. Values are of whole rows [row_begin, row_end) of the whole (stacked) tensor. */
typedef struct pl_executor_outside {
    void *context;
    /* load-batch: BATCH is [rounds][micro_batches][2][micro_batch * sequence]: tokens, then labels
     * (negative: not valid), of the batch index DATA_INDEX among DATA_RANKS. */
    pl_status (*load_batch)(void *context, const pl_shape *shape, int64_t data_index,
                            int64_t data_ranks, int32_t *batch);
    /* initialize: OUT gets values of type DTYPE (fp32, or the stored type of a frozen tensor). */
    pl_status (*initial_values)(void *context, const pl_tensor *tensor, int64_t row_begin,
                                int64_t row_end, pl_dtype dtype, void *out);
    /* write, in export: parameters as trained, of type DTYPE. */
    pl_status (*write_values)(void *context, const pl_tensor *tensor, int64_t row_begin,
                              int64_t row_end, pl_dtype dtype, const void *values);
    /* write, in save: what this rank holds of KIND, of type DTYPE, bit for bit; VALUES is gone
     * when this returns, unless keeps_saved says otherwise. Called once for each tensor and kind of
     * which the rank has rows; the rank's rows are real ones, never padding. */
    pl_status (*save_values)(void *context, pl_value_kind kind, const pl_tensor *tensor,
                             int64_t row_begin, int64_t row_end, pl_dtype dtype,
                             const void *values);
    /* read, in load: OUT gets what save_values was given for these rows, of type DTYPE. */
    pl_status (*load_values)(void *context, pl_value_kind kind, const pl_tensor *tensor,
                             int64_t row_begin, int64_t row_end, pl_dtype dtype, void *out);
    /* loss, when not NULL: the COUNT losses of a micro-batch's tokens, 0 where a label is not
     * valid. For tests and tools: it makes the host wait. */
    pl_status (*row_losses)(void *context, int64_t round, int64_t micro_batch, const float *losses,
                            int64_t count);
    /* sample: logits [vocabulary] of the position asked for (pl_program_input.position). */
    pl_status (*sample)(void *context, const float *logits, int64_t vocabulary);
    /* control: called before it tells the other ranks that this one has done all of PROGRAM. */
    pl_status (*before_control)(void *context, pl_program program);
    /* Tests and tools: called before each entry is carried out, everything before it that it waits
     * for being done; INDEX is its place in the section. */
    pl_status (*before_entry)(void *context, pl_executor *executor, const pl_section *section,
                              int64_t index);
} pl_executor_outside;

typedef enum pl_order {
    PL_ORDER_PLAN,  /* entries as the plan lists them */
    PL_ORDER_RANDOM /* any order that streams and waits allow, drawn from order_seed; memory is
                       filled with NaN when it is made and when it is let go */
} pl_order;

typedef struct pl_executor_options {
    const pl_plan *plan;     /* borrowed */
    pl_process_group *world; /* borrowed: the group of the world; split as roles are needed */
    pl_device *device;       /* borrowed */
    pl_executor_outside outside;
    pl_order order;
    uint64_t order_seed;
    bool keeps_saved; /* what save_values was given stays until pl_executor_release_saved */
} pl_executor_options;

/* Numbers that change from run to run of a program. */
typedef struct pl_program_input {
    double learning_rate, weight_decay, beta1, beta2, epsilon; /* step */
    int64_t update;                                            /* number of this update, from 1 */
    int64_t position; /* generate: row of the micro-batch whose logits are wanted */
    int64_t flags[4]; /* this rank's stop, save, failed, save not finished */
} pl_program_input;

typedef struct pl_program_result {
    double loss_sum;     /* sum of the losses of all valid tokens of all ranks; 0: none */
    double balance_loss; /* sum over layers of the mean over the step's micro-steps, without the
                            coefficient; 0 where the program has none */
    int64_t tokens;      /* T */
    double norm, clip;   /* step: before clipping, and the coefficient */
    bool updated;        /* step: the norm was finite and T > 0 */
    int64_t flags[4];    /* the largest of all ranks */
} pl_program_result;

/* What memory is held and was held, by pl_buffer_class. */
typedef struct pl_memory_use {
    int64_t now[PL_BUFFER_CLASS_COUNT], peak[PL_BUFFER_CLASS_COUNT];
    int64_t peak_total; /* device memory; workspace of entries not included */
    int64_t peak_workspace;
} pl_memory_use;

/* Make an executor for the rank of options->world. Groups are split here, so all ranks must open
 * theirs. Errors: PL_BAD_INPUT when the plan has no section for the rank or no such program;
 * PL_UNSUPPORTED for pp > 1, cp > 1, or types that the device does not compute with. */
pl_status pl_executor_open(pl_executor **out, const pl_executor_options *options);

/* Resident buffers, groups and memory go. NULL is allowed. */
void pl_executor_close(pl_executor *executor);

/* Run PROGRAM once: collective over the world, as the plan says. `start` makes the resident
 * buffers, or `load` does; the others need them. On failure every rank of the world is told and the
 * executor can only be closed. Errors: those of groups, device and outside, with the entry as
 * context; PL_BAD_INPUT for a plan that cannot be carried out (a buffer read before it lives, an
 * operation without what it needs), naming entry and buffer. */
pl_status pl_executor_run(pl_executor *executor, pl_program program, const pl_program_input *input,
                          pl_program_result *result);

/* With keeps_saved: nobody reads any more what save_values was given. Between programs; before the
 * next `save`, which else holds as much again. */
void pl_executor_release_saved(pl_executor *executor);

/* Copy buffer number BUFFER of SECTION to host memory OUT of BYTES bytes (its size as it lives).
 * PL_BAD_INPUT when it does not live. For before_entry, between programs, and tests. */
pl_status pl_executor_read(pl_executor *executor, const pl_section *section, uint32_t buffer,
                           void *out, int64_t bytes);

/* Bytes that buffer BUFFER of SECTION has now; -1 when it does not live. And its address. */
int64_t pl_executor_buffer_bytes(const pl_executor *executor, const pl_section *section,
                                 uint32_t buffer);
const void *pl_executor_buffer_address(const pl_executor *executor, const pl_section *section,
                                       uint32_t buffer);

/* Where TENSOR (a number in the plan's model) stands in the buffer KIND of its part: one of
 * PARAMETER, MASTER, ADAM_M, ADAM_V, GRADIENT, IGNORED, IGNORED_GRADIENT (the rank's rows), FULL,
 * WIRE, GRADIENT_SUM (whole, or the owner's experts). False when it is not there. */
typedef struct pl_tensor_place {
    int64_t offset;             /* bytes */
    int64_t row_begin, row_end; /* of the whole (stacked) tensor: the real rows that stand there */
    pl_dtype dtype;
} pl_tensor_place;

bool pl_executor_tensor_place(const pl_executor *executor, pl_buffer_kind kind, int64_t tensor,
                              pl_tensor_place *out);

pl_memory_use pl_executor_memory(const pl_executor *executor);

#ifdef __cplusplus
}
#endif
#endif
