/* What the function of an operation works with: the entry, the buffers it names, weights and
 * gradients of its part, memory for its own time, device operations and collectives.
 *
 * A plan may come from edited text. So nothing is used before it has been looked for here: the
 * entry must name a buffer of the kind for reading or writing, and it must have the size that the
 * operation needs. Everything fails with PL_BAD_INPUT, naming the buffer, when it is not so.
 */
#ifndef PL_TRAIN_EXECUTOR_WORK_H
#define PL_TRAIN_EXECUTOR_WORK_H

#include "train/executor_state.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PL_WORK_GRANTS = 24, PL_ANY_PART = -1 };

typedef struct pl_work {
    pl_executor *executor;
    const pl_section *section;
    const pl_entry *entry;
    const pl_sizes *sizes;
    pl_device *device;
    pl_stream stream;
    int32_t index;
    int grant_count;
    struct {
        void *memory;
        int64_t bytes;
        int32_t block;
        bool host;
    } grant[PL_WORK_GRANTS];
} pl_work;

/* Device operation NAME with the arguments given as for a structure. */
#define PL_DO(work, name, ...) PL_DO_AS(work, name, pl_##name##_arguments, __VA_ARGS__)
#define PL_DO_AS(work, name, arguments, ...)                                                       \
    ((work)->device->operations->name                                                              \
         ? (work)->device->operations->name((work)->device, (work)->stream,                        \
                                            &(arguments){__VA_ARGS__})                             \
         : pl_work_lacks(#name))
pl_status pl_work_lacks(const char *name);

/* --- buffers --- */

/* The entry's use of a buffer of KIND that has all of FLAGS (PL_USE_...), of PART unless that is
 * PL_ANY_PART; NULL when there is none. */
const pl_use *pl_work_find(const pl_work *work, pl_buffer_kind kind, uint32_t flags, int32_t part);

/* *OUT is the memory of the buffer that the entry reads (writes, reads and writes), which has BYTES
 * bytes. */
pl_status pl_work_read(const pl_work *work, pl_buffer_kind kind, int64_t bytes, const void **out);
pl_status pl_work_write(const pl_work *work, pl_buffer_kind kind, int64_t bytes, void **out);
pl_status pl_work_update(const pl_work *work, pl_buffer_kind kind, int64_t bytes, void **out);

/* The same for a buffer of PART, whose size follows. */
pl_status pl_work_read_part(const pl_work *work, pl_buffer_kind kind, int32_t part,
                            const void **out);
pl_status pl_work_write_part(const pl_work *work, pl_buffer_kind kind, int32_t part, void **out);

/* The same, given the use. */
pl_status pl_work_use(const pl_work *work, const pl_use *use, int64_t bytes, void **out);

/* The part of the entry's subject, and of a buffer. */
pl_status pl_work_part(const pl_work *work, int32_t *out);
int32_t pl_work_buffer_part(const pl_work *work, const pl_use *use);

/* Memory until the entry is over; on the device, or on the host. */
pl_status pl_work_space(pl_work *work, int64_t bytes, void *out);
pl_status pl_work_host_space(pl_work *work, int64_t bytes, void *out);
void pl_work_end_space(pl_work *work);

/* --- weights and their gradients --- */

/* The whole of the tensor called SUFFIX in PART, in the compute type. */
pl_status pl_work_weight(pl_work *work, int32_t part, const char *suffix, const void **out);
/* NULL when the model has no such tensor. */
pl_status pl_work_weight_if(pl_work *work, int32_t part, const char *suffix, const void **out);

typedef struct pl_gradient {
    float *data; /* NULL: not wanted */
    bool add;    /* to what is there; else it is to be written whole */
} pl_gradient;

/* Where the gradient of that tensor goes: nowhere if it is frozen, absent, or the entry has no
 * gradients to write. What is asked for must be written. */
pl_status pl_work_gradient(pl_work *work, int32_t part, const char *suffix, pl_gradient *out);

/* Zero what the entry began as a gradient and did not write. */
pl_status pl_work_finish_gradients(pl_work *work);

/* The gradient buffer of USE is written whole by this entry. */
void pl_work_wrote_gradients(const pl_work *work, const pl_use *use);

/* --- linear layers: y[rows, out] = x[rows, in] W^T, W[out, in] --- */

typedef struct pl_linear {
    int64_t rows, in, out;
} pl_linear;

/* y = x W^T (+ bias) (+ ADDEND of the shape of y). BIAS and ADDEND may be NULL. */
pl_status pl_work_linear(pl_work *work, pl_linear shape, const void *x, const void *weight,
                         const void *bias, const void *addend, void *y);
/* dx = dy W (+ ADDEND, NULL or of the shape of dx, may be dx). */
pl_status pl_work_linear_inputs(pl_work *work, pl_linear shape, const void *dy, const void *weight,
                                const void *addend, void *dx);
/* Of weight and bias, each where wanted. */
pl_status pl_work_linear_weights(pl_work *work, pl_linear shape, const void *dy, const void *x,
                                 pl_gradient weight, pl_gradient bias);

/* --- collectives --- */

/* Ranks in the entry's group, and this rank's number among them. */
int64_t pl_work_group_size(const pl_work *work);
int64_t pl_work_group_index(const pl_work *work);

/* Start COLLECTIVE over COUNT segments (copied) in the entry's group; it is under way when this
 * returns. In a group of one the segments are copied. */
pl_status pl_work_collective(pl_work *work, pl_collective collective, const pl_segment *segments,
                             int count);

/* PL_BAD_INPUT unless the entry's group has SIZE ranks. */
pl_status pl_work_require_group(const pl_work *work, int64_t size);

/* An uneven all-to-all of rows of ROW elements, counts of rows for each member as copied. */
pl_status pl_work_exchange(pl_work *work, const void *send, const int64_t *sent, void *recv,
                           const int64_t *received, int64_t row);

/* --- small copies --- */

pl_status pl_work_copy(const pl_work *work, void *to, const void *from, int64_t bytes,
                       pl_copy_kind kind);

#ifdef __cplusplus
}
#endif
#endif
