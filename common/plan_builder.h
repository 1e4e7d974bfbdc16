/* How emitters write entries: the private side of common/plan.h.
 *
 * An emitter opens an entry, says what it uses, and closes it; the builder keeps the table of
 * buffers, works out the waits that the uses demand, and records what was asked about the rank.
 * The first failure sticks: emitters go on without checking and the caller asks once at the end.
 */
#ifndef PL_COMMON_PLAN_BUILDER_H
#define PL_COMMON_PLAN_BUILDER_H

#include "common/plan.h"

/* What emitters may read about the rank they write for; everything else they use is equal on all
 * ranks. Ranks with equal answers share a section. Stages and slices will add kinds. */
typedef enum pl_question_kind {
    PL_ASKS_TRAINED_ELEMENTS, /* real elements of a part's trained sharded tensors */
    PL_ASKS_FROZEN_ELEMENTS   /* ... of its frozen ones */
} pl_question_kind;

typedef struct pl_rank_question {
    pl_question_kind kind;
    int32_t part;
    int64_t answer;
} pl_rank_question;

/* When a unit is needed: the list of all such calls of a round, in order. */
typedef struct pl_unit_call {
    int32_t unit, micro_batch; /* -1: for all micro-batches */
    pl_pass pass;              /* forward or backward */
    int32_t ordinal;           /* 1 for the head's calls of a tied embedding, else 0 */
} pl_unit_call;

bool pl_unit_call_equal(const pl_unit_call *a, const pl_unit_call *b);

/* What the layers of a model need of backward, worked out once. */
typedef struct pl_layer_facts {
    bool moe;
    bool backward;           /* some gradient of this layer or below it is wanted */
    bool below;              /* ... strictly below */
    bool attention_backward; /* the attention module's backward is run */
    bool feed_backward;      /* the norm and router (or MLP) need theirs */
    bool recompute;
} pl_layer_facts;

/* All that is equal for every rank of a plan. */
typedef struct pl_plan_facts {
    const pl_model *model;
    const pl_layout *layout;
    const pl_settings *settings;
    pl_parts parts;        /* when nothing is trained, no module of them has anything to train */
    pl_layer_facts *layer; /* [layers] */
    pl_unit_call *calls;   /* of one round */
    int32_t call_count;
    int32_t *last_call; /* [units] place of a unit's last call; -1 */
    int32_t micro_batches, rounds;
    int64_t tokens;        /* of one micro-batch on one rank */
    int64_t element_bytes; /* of the compute dtype */
    int64_t owners;        /* size of the ep group */
    int32_t moe_layers;
    bool trains;            /* false: forward only, in one round */
    bool masters;           /* masters apart from parameters */
    bool balance;           /* the load-balance loss takes part */
    int32_t balance_reader; /* the lowest MoE layer whose backward reads the counts; -1 */
} pl_plan_facts;

/* TRAINS: for programs that only move parameters too. */
pl_status pl_plan_facts_make(pl_plan_facts *out, const pl_model *model, const pl_layout *layout,
                             const pl_settings *settings, bool trains);
void pl_plan_facts_free(pl_plan_facts *facts);

/* The one place that answers questions about a rank. */
int64_t pl_rank_answer(const pl_plan_facts *facts, pl_question_kind kind, int32_t part,
                       int64_t rank);

/* What is known of a live buffer: entries that its next user may have to wait for. */
typedef struct pl_buffer_state {
    int32_t writer;                  /* last entry that wrote, began or ended it; -1 */
    int32_t reader[PL_STREAM_COUNT]; /* last readers since then; -1 */
    bool alive;
} pl_buffer_state;

typedef struct pl_clock {
    int32_t seen[PL_STREAM_COUNT]; /* last entry of each stream known to be done; -1 */
} pl_clock;

typedef struct pl_builder {
    const pl_plan_facts *facts;
    int64_t rank;
    pl_section *section;
    pl_status status;
    int32_t *buffer_of; /* [kind][slot][micro-batch + 1] -> buffer number or -1 */
    size_t slots;
    pl_buffer_state *state;
    size_t state_capacity;
    pl_clock *clock; /* of each entry */
    size_t clock_capacity;
    int32_t stream_last[PL_STREAM_COUNT];
    pl_entry *open, discarded; /* the open entry; where to write after a failure */
    int32_t extra_wait;        /* one more entry that the open one waits for; -1 */
    pl_rank_question *questions;
    size_t question_count, question_capacity;
    /* units */
    bool *present; /* [units] gathered now */
    int32_t call;  /* place in the list of calls */
    int32_t last_reshard;
    int32_t round;
} pl_builder;

pl_status pl_builder_init(pl_builder *builder, const pl_plan_facts *facts);
void pl_builder_free(pl_builder *builder);
void pl_builder_begin_section(pl_builder *builder, pl_section *section, int64_t rank);

/* Open an entry; its fields may be set until it is closed. Never NULL. */
pl_entry *pl_builder_open(pl_builder *builder, pl_entry_name name, pl_stream stream);
void pl_builder_close(pl_builder *builder);

/* The number of a buffer, made on first mention. Slots: part number, layer, or 0. */
uint32_t pl_builder_buffer(pl_builder *builder, pl_buffer_kind kind, int32_t slot,
                           int32_t micro_batch);

/* Fill in what a buffer is: class, dtype, bytes (plan_buffers.c). */
void pl_buffer_describe(pl_builder *builder, pl_buffer *buffer, pl_buffer_kind kind, int32_t slot,
                        int32_t micro_batch);

/* Uses of the open entry. `update` reads and writes; `add_into` begins a buffer that does not
 * live yet and updates one that does. */
void pl_builder_read(pl_builder *builder, uint32_t buffer);
void pl_builder_read_last(pl_builder *builder, uint32_t buffer, bool ends);
void pl_builder_begin(pl_builder *builder, uint32_t buffer);
void pl_builder_update(pl_builder *builder, uint32_t buffer);
void pl_builder_update_last(pl_builder *builder, uint32_t buffer, bool ends);
void pl_builder_add_into(pl_builder *builder, uint32_t buffer);
void pl_builder_end(pl_builder *builder, uint32_t buffer);
bool pl_builder_alive(const pl_builder *builder, uint32_t buffer);

/* Let the open entry wait for an earlier one beyond what its uses demand. */
void pl_builder_wait(pl_builder *builder, int32_t entry);

/* Real elements of the rank in a part; recorded. */
int64_t pl_builder_local_elements(pl_builder *builder, int32_t part, bool frozen);

/* a*b*c*d (1 for what is not needed) and a+b, an overflow remembered as a failure. */
int64_t pl_builder_product(pl_builder *builder, int64_t a, int64_t b, int64_t c, int64_t d);
int64_t pl_builder_sum(pl_builder *builder, int64_t a, int64_t b);

/* Set the fields of a communicating entry. */
void pl_builder_communicate(pl_builder *builder, pl_group_role group, pl_reduction reduction,
                            pl_dtype wire, int64_t bytes);

/* --- units (plan_units.c) --- */

/* Whether a unit is gathered at all: a shard group of one rank computes with its shard as it
 * stands, unless that must be cast. */
bool pl_unit_gathers(const pl_parts *parts, int32_t unit);

/* Read the parameters of a part in the open entry, sharded and whole ones. */
void pl_builder_read_part(pl_builder *builder, int32_t part);

/* The unit of PART is needed from here on, for this pass and micro-batch (-1: all): gather it if
 * it is not there, and prefetch the next. ORDINAL is that of pl_unit_call. */
void pl_builder_need(pl_builder *builder, int32_t part, pl_pass pass, int32_t micro_batch,
                     int32_t ordinal);

/* The unit of the latest call is not needed any more in this pass; the reshard policy decides. */
void pl_builder_done(pl_builder *builder, int32_t part, pl_pass pass);

/* Add gradients of MODULE of PART in the open entry. */
void pl_builder_add_gradients(pl_builder *builder, int32_t part, pl_module module);
bool pl_part_trained(const pl_part *part, pl_module module);

/* All gradients of this round of PART's unit are there: reduce them, if it is time to. */
void pl_builder_reduce(pl_builder *builder, int32_t part);

/* The buffer that gradients of PART's sharded tensors are added into. */
uint32_t pl_builder_gradient_target(pl_builder *builder, int32_t part);

/* --- emitters, one file a module; each adds the entries of one pass of one micro-batch --- */

void pl_emit_embedding(pl_builder *builder, int32_t micro_batch, pl_pass pass);
void pl_emit_attention(pl_builder *builder, int32_t layer, int32_t micro_batch, pl_pass pass);
void pl_emit_dense_mlp(pl_builder *builder, int32_t layer, int32_t micro_batch, pl_pass pass);
/* A MoE layer after attention, in pieces that schedules may interleave over micro-batches. */
void pl_emit_moe_send(pl_builder *builder, int32_t layer, int32_t micro_batch, pl_pass pass);
void pl_emit_moe_compute(pl_builder *builder, int32_t layer, int32_t micro_batch, pl_pass pass);
void pl_emit_moe_merge_backward(pl_builder *builder, int32_t layer, int32_t micro_batch);
void pl_emit_moe_experts_backward(pl_builder *builder, int32_t layer, int32_t micro_batch);
void pl_emit_moe_experts_weights(pl_builder *builder, int32_t layer, int32_t micro_batch);
void pl_emit_moe_route_backward(pl_builder *builder, int32_t layer, int32_t micro_batch);
void pl_emit_final_norm(pl_builder *builder, int32_t micro_batch, pl_pass pass);
void pl_emit_loss(pl_builder *builder, int32_t micro_batch);
void pl_emit_logits(pl_builder *builder, int32_t micro_batch);
void pl_emit_balance(pl_builder *builder);
void pl_emit_load_batch(pl_builder *builder);
void pl_emit_token_count(pl_builder *builder);
void pl_emit_copy_batch(pl_builder *builder, bool labels);
void pl_emit_update(pl_builder *builder);
void pl_emit_loss_sum(pl_builder *builder);
void pl_emit_control(pl_builder *builder);

/* Parts of a plan under construction, shared with the reader of plan text. */
pl_status pl_plan_set_header(pl_plan *plan, const pl_plan_request *request);
/* What a plan can be for: layout, shape, precision, length; the same for one made and one read. */
pl_status pl_plan_check_header(const pl_plan *plan);
/* Whether plans of this header may have PROGRAMS (PL_PROGRAMS_...). Errors: PL_BAD_INPUT. */
pl_status pl_plan_check_programs(const pl_plan *plan, uint32_t programs);
pl_status pl_plan_add_section(pl_plan *plan, pl_section **out);
pl_status pl_section_add_run(pl_section *section, pl_rank_run run);

/* The lines before the first section. */
void pl_plan_write_header(pl_text *text, const pl_plan *plan);

/* An entry's line without its number, its waits given by name: what two plans are compared by. */
void pl_entry_write_unplaced(pl_text *text, const pl_section *section, const pl_entry *entry);

/* Whole programs: plan_programs.c, emit_parameters.c. */
void pl_emit_start(pl_builder *builder);
void pl_emit_step(pl_builder *builder);
void pl_emit_evaluate(pl_builder *builder);
void pl_emit_generate(pl_builder *builder);
void pl_emit_export(pl_builder *builder);
void pl_emit_save(pl_builder *builder);
void pl_emit_load(pl_builder *builder);

/* Name of an entry of a layer, part or one of a kind in the current round. */
pl_entry_name pl_builder_name(const pl_builder *builder, pl_operation operation, pl_subject subject,
                              int32_t layer, int32_t micro_batch, pl_pass pass);

#endif
