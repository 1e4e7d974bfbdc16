/* What an executor is made of: for the files train/executor_*.c alone.
 *
 * Time. Every entry that is issued gets a tick, 1, 2, ... within a run of a program. A vector of
 * ticks says how far each stream had come: clock[s] is what stream s is ordered after, an entry's
 * `after` is that of its stream once it was issued. Ordering stream u after an entry means: if
 * clock[u] does not cover it, let the device order the streams, and take over the entry's vector.
 *
 * Collectives are under way ("pending") from start until something needs them; then they are
 * waited for and their entry retires: what it ends is let go. Other entries retire at once.
 */
#ifndef PL_TRAIN_EXECUTOR_STATE_H
#define PL_TRAIN_EXECUTOR_STATE_H

#include "train/arena.h"
#include "train/executor.h"
#include "train/part_map.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers of model, shape and layout that entries need, once for all. Every product of a few of
 * them that is the size of a buffer fits 63 bits. */
typedef struct pl_sizes {
    pl_dtype dtype;  /* of compute */
    int64_t element; /* its bytes */
    int64_t tokens;  /* of a micro-batch on a rank: sequences * sequence */
    int64_t sequence, sequences, micro_batches, rounds;
    int64_t hidden, heads, kv_heads, head_dim, query, key_value, width, vocabulary;
    int64_t experts, chosen, expert_width; /* 0 where the model has none */
    int64_t owners, owner, own;            /* of experts; this rank's number; experts of each */
    int64_t sets;                          /* of the balance loss in a micro-batch */
    int64_t moe_layers, stage_ranks;
} pl_sizes;

/* What bind fixed for a layer and micro-batch. */
typedef struct pl_binding {
    int64_t rows;             /* R: rows this rank receives */
    int64_t *sent, *received; /* [owners] rows to and from each; owned, one after the other */
} pl_binding;

/* What a tensor's place in a gradient buffer holds. */
enum { PL_GRADIENT_UNDEFINED, PL_GRADIENT_ZERO, PL_GRADIENT_WRITTEN };

/* A buffer: where it is while it lives. */
typedef struct pl_live {
    bool alive, host;
    void *memory;
    int64_t bytes;
    int32_t block;       /* of the arena */
    int32_t in_flight;   /* pending collectives that use it */
    uint8_t *gradients;  /* gradient buffers: of each tensor of the part, PL_GRADIENT_... */
    pl_binding *binding; /* PL_BUF_ROWS, once bound */
} pl_live;

/* A resident buffer, shared by the programs. */
typedef struct pl_resident {
    pl_buffer buffer;
    pl_live live;
} pl_resident;

typedef struct pl_entry_state {
    pl_ticks after;
    int64_t tick;  /* 0: not issued */
    int64_t event; /* number of the event recorded behind it, from 0; see PL_DEVICE_EVENTS */
} pl_entry_state;

/* A program of this rank. */
typedef struct pl_section_state {
    const pl_section *section; /* NULL: the plan has no such program */
    pl_live **live;            /* [buffers] */
    pl_live *own;              /* [buffers] those that are not resident */
    int32_t *rows_of;          /* [buffers] the buffer of kind rows that gives R; -1: none */
    pl_entry_state *entry;     /* [entries] */
    int32_t *issued;           /* [entries] in the order of their ticks */
} pl_section_state;

/* A host buffer that has ended and stays. */
typedef struct pl_saved {
    int32_t block; /* of the arena */
    int64_t bytes;
} pl_saved;

/* A collective under way. */
typedef struct pl_pending {
    int32_t entry;
    pl_process_group *group;
    pl_request request;
    void *kept; /* segments or counts that the group borrows; owned */
} pl_pending;

struct pl_executor {
    const pl_plan *plan;
    pl_process_group *world;
    pl_device *device;
    pl_executor_outside outside;
    pl_order order;
    uint64_t order_seed;
    int64_t rank;
    pl_sizes sizes;
    pl_part_map map;
    pl_process_group *group[PL_GROUP_ROLE_COUNT]; /* NULL for groups of one, and unused ones */
    pl_section_state program[PL_PROGRAM_COUNT];
    pl_resident *residents;
    size_t resident_count;
    pl_arena memory, host;
    float *rotary; /* on the device: [sequence, head_dim] */
    char *staging; /* host memory of PL_STAGING bytes for small numbers */

    pl_section_state *running;
    pl_ticks clock[PL_STREAM_COUNT];
    int64_t tick, events;
    pl_pending *pending; /* in the order of their start */
    size_t pending_count, pending_capacity;
    bool keeps_saved;
    pl_saved *saved;
    size_t saved_count, saved_capacity;
    pl_memory_use use;
    int64_t now_total, now_workspace;
    pl_program_input input;
    pl_program_result result;
    bool failed;
};

enum { PL_STAGING = 256 };

/* --- executor_sizes.c --- */

/* Errors: PL_UNSUPPORTED for pp or cp above 1; PL_BAD_INPUT for sizes that cannot be counted. */
pl_status pl_sizes_make(pl_sizes *out, const pl_plan *plan, int64_t rank);

/* --- executor_sections.c --- */

/* Look at the sections of the rank: tables, resident buffers. Errors: PL_BAD_INPUT for a plan
 * without a section for the rank, or with a buffer that is of another class than its kind. */
pl_status pl_sections_open(pl_executor *executor);
void pl_sections_close(pl_executor *executor);

/* --- executor_order.c --- */

/* Order STREAM after entry INDEX, or after the entry that has TICK on stream FROM. */
pl_status pl_order_after_entry(pl_executor *executor, pl_stream stream, int32_t index);
pl_status pl_order_after_ticks(pl_executor *executor, pl_stream stream, const pl_ticks *ticks);

/* The entry INDEX has been issued: its vector, and the event behind it. */
void pl_order_tick(pl_executor *executor, int32_t index);
pl_status pl_order_record(pl_executor *executor, int32_t index);

/* Wait for the pending collective number NUMBER, and let its entry retire. */
pl_status pl_order_complete(pl_executor *executor, size_t number);
pl_status pl_order_complete_all(pl_executor *executor);

/* Everything is done: pending collectives, streams, and what free memory remembers. */
pl_status pl_order_settle(pl_executor *executor);

/* After a failure: nobody touches this rank's memory any more. Keeps the words of the failure. */
void pl_order_abandon(pl_executor *executor);

/* --- executor_buffers.c --- */

/* Begin buffer NUMBER for entry INDEX; let it go. */
pl_status pl_buffer_begin(pl_executor *executor, int32_t index, uint32_t number);
pl_status pl_buffer_end(pl_executor *executor, int32_t index, uint32_t number);

/* Free BINDING; NULL is allowed. */
void pl_binding_free(pl_binding *binding);

/* Free the memory of LIVE without regard to streams. */
void pl_live_release(pl_executor *executor, const pl_buffer *buffer, pl_live *live);

/* Memory for the time of entry INDEX. */
pl_status pl_memory_lend(pl_executor *executor, int32_t index, bool host, int64_t bytes,
                         pl_arena_grant *out);
void pl_memory_take_back(pl_executor *executor, int32_t index, bool host, void *memory,
                         int64_t bytes, int32_t block);

/* PL_BAD_INPUT about buffer BUFFER of the running program. */
pl_status pl_buffer_refuse(const pl_executor *executor, uint32_t buffer, const char *words);

/* --- executor_run.c --- */

/* Carry entry INDEX out: waits, memory, the function of its operation. */
pl_status pl_executor_issue(pl_executor *executor, int32_t index);
/* What entry INDEX ends is let go, once it is done. */
pl_status pl_executor_retire(pl_executor *executor, int32_t index);

/* --- executor_random.c --- */

/* Issue all entries in an order that streams and waits allow. */
pl_status pl_executor_run_random(pl_executor *executor);

/* --- executor.c --- */

/* Add "in entry 12: attention layer.1 round 0 mb 0 f" to the latest failure. */
void pl_entry_context(const pl_executor *executor, int32_t index);

#ifdef __cplusplus
}
#endif
#endif
