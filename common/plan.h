/* The plan: what each rank does in a program, as data.
 *
 * A plan has a header (all that decides it) and sections; a section is what one class of ranks
 * does in one program: a table of buffers and the ordered list of entries. Ranks about which the
 * emitters read the same things share a section. The simulator walks plans, the trainer executes
 * them, and both speak of entries by their names (common/entry.h).
 *
 * Order and streams. Entries issue in the order of the list. An entry runs after all earlier
 * entries of its own stream and after the entries it waits for; nothing else orders two streams.
 *
 * Buffers. An entry's uses say what it reads and writes, and which buffers it brings to life
 * (`begins`, which includes writing) and lets go (`ends`). A buffer may live several times in one
 * section, never twice at once; resident ones live before, during and after a step. Sizes that
 * routing decides are multiples of R, the rows this rank receives for the layer and micro-batch;
 * an all-to-all moves C(source, destination) rows, and both sides name the same C by the entry's
 * layer, round and micro-batch.
 *
 * What the operations mean, what they read and write: docs/formats.md, whose table is printed by
 * `pleat-sim tables operations`.
 */
#ifndef PL_COMMON_PLAN_H
#define PL_COMMON_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/entry.h"
#include "common/layout.h"
#include "common/model.h"
#include "common/parts.h"
#include "common/process_group.h"
#include "common/settings.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pl_buffer_class {
    PL_BUFFER_SHARD,      /* resident: parameters, masters, moments */
    PL_BUFFER_GATHERED,   /* gathered parameters */
    PL_BUFFER_GRADIENT,   /* gradients as sharded, and whole ones of ignored parameters */
    PL_BUFFER_SUM,        /* whole gradients before they are reduced */
    PL_BUFFER_ACTIVATION, /* values and what backward needs of them */
    PL_BUFFER_EXCHANGE,   /* what is sent and received */
    PL_BUFFER_WORK,       /* scalars and counts */
    PL_BUFFER_HOST,       /* in host memory */
    PL_BUFFER_CLASS_COUNT
} pl_buffer_class;

/* What a buffer holds. Its text name is the stem, then what completes it: "full.layer.3",
 * "x.4.mb1", "clip". The stems are those of pl_buffer_kind_stem. */
typedef enum pl_buffer_kind {
    /* of a part: "param.layer.3" */
    PL_BUF_PARAMETER,        /* "param": the shard as it is gathered, frozen tensors included */
    PL_BUF_MASTER,           /* "master": fp32, absent where the wire dtype is fp32 */
    PL_BUF_ADAM_M,           /* "adam_m" */
    PL_BUF_ADAM_V,           /* "adam_v" */
    PL_BUF_IGNORED,          /* "ignored": fp32, whole */
    PL_BUF_IGNORED_M,        /* "ignored_m" */
    PL_BUF_IGNORED_V,        /* "ignored_v" */
    PL_BUF_INITIAL,          /* "initial": host, initial values of the shard */
    PL_BUF_INITIAL_IGNORED,  /* "initial_ignored" */
    PL_BUF_HOST_PARAMETER,   /* "host_param": host, what param holds, on its way to or from a
                                checkpoint; and so on for the other six, in their order */
    PL_BUF_HOST_MASTER,      /* "host_master" */
    PL_BUF_HOST_ADAM_M,      /* "host_adam_m" */
    PL_BUF_HOST_ADAM_V,      /* "host_adam_v" */
    PL_BUF_HOST_IGNORED,     /* "host_ignored" */
    PL_BUF_HOST_IGNORED_M,   /* "host_ignored_m" */
    PL_BUF_HOST_IGNORED_V,   /* "host_ignored_v" */
    PL_BUF_OUTGOING,         /* "outgoing": host, values of the shard on their way out: masters
                                where there are some, frozen tensors in their stored type */
    PL_BUF_OUTGOING_IGNORED, /* "outgoing_ignored" */
    PL_BUF_WIRE,             /* "wire": gathered, before the cast to the compute dtype */
    PL_BUF_FULL,             /* "full": gathered, as computed with */
    PL_BUF_GRADIENT_SUM,     /* "gradsum": whole, fp32 */
    PL_BUF_GRADIENT_WIRE,    /* "gradwire": whole, as it is reduced */
    PL_BUF_GRADIENT_PIECE,   /* "gradpiece": a round's reduced shard */
    PL_BUF_GRADIENT,         /* "grad": the shard's, fp32, over the rounds */
    PL_BUF_IGNORED_GRADIENT, /* "ignored_grad": whole, fp32 */
    /* of a layer and micro-batch: "h.3.mb1" */
    PL_BUF_INPUT,          /* "x": input of the layer; x of the layer after the last is the
                              final norm's input */
    PL_BUF_ATTENDED,       /* "h": after attention and residual */
    PL_BUF_SAVE_ATTENTION, /* "save_attention": q, k, v, output, log-sum-exp, norms */
    PL_BUF_SAVE_MLP,       /* "save_mlp": gate, up, norms */
    PL_BUF_SAVE_ROUTE,     /* "save_route": scores, norms */
    PL_BUF_SAVE_EXPERTS,   /* "save_experts": gate, up of the rows received */
    PL_BUF_NORMED,         /* "y": normalised input of router and experts */
    PL_BUF_ROUTE,          /* "route": choices, weights, slots; reused by recompute, backward */
    PL_BUF_COUNTS,         /* "counts": rows for each expert */
    PL_BUF_COUNTS_IN,      /* "counts_in": rows to expect from each rank */
    PL_BUF_ROWS,           /* "rows": host, the sizes that bind fixed */
    PL_BUF_ROUTES_IN,      /* "routes_in": routes of the whole ep group */
    PL_BUF_SEND,           /* "send": rows in the order of their destinations */
    PL_BUF_RECEIVED,       /* "in": rows received */
    PL_BUF_EXPERT_OUT,     /* "out": the experts' results for them */
    PL_BUF_RETURNED,       /* "back": results returned to the tokens' rank */
    PL_BUF_D_INPUT,        /* "dx": gradient of x, and so on */
    PL_BUF_D_ATTENDED,     /* "dh" */
    PL_BUF_D_RETURNED,     /* "dback" */
    PL_BUF_D_EXPERT_OUT,   /* "dout" */
    PL_BUF_D_ACTIVATION,   /* "dact": gradient of gate and up */
    PL_BUF_D_RECEIVED,     /* "din" */
    PL_BUF_D_SEND,         /* "dsend" */
    PL_BUF_D_NORMED,       /* "dy" */
    PL_BUF_D_ROUTE,        /* "droute": gradient of the routing weights */
    PL_BUF_D_ROUTES_IN,    /* "droutes_in" */
    /* of a micro-batch: "tokens.mb1" */
    PL_BUF_TOKENS,  /* "tokens": token ids */
    PL_BUF_LABELS,  /* "labels" */
    PL_BUF_FINAL,   /* "z": normalised input of the head */
    PL_BUF_D_FINAL, /* "dz" */
    PL_BUF_LOGITS,  /* "logits": fp32 [vocabulary], of one position */
    /* one of each */
    PL_BUF_BATCH,           /* "batch": host, tokens and labels of the step */
    PL_BUF_TOKEN_COUNT,     /* "token_count": T */
    PL_BUF_BALANCE,         /* "balance": tokens per expert of each MoE layer, this round */
    PL_BUF_BALANCE_TOTAL,   /* "balance_total": running over the step */
    PL_BUF_BALANCE_SCORES,  /* "balance_scores": the router's scores, summed by expert */
    PL_BUF_LOSS_SUM,        /* "loss_sum" */
    PL_BUF_DENSE_SQUARES,   /* "dense_squares" */
    PL_BUF_EXPERT_SQUARES,  /* "expert_squares" */
    PL_BUF_IGNORED_SQUARES, /* "ignored_squares" */
    PL_BUF_CLIP,            /* "clip": norm, coefficient, whether finite */
    PL_BUF_FLAGS,           /* "flags" */
    PL_BUFFER_KIND_COUNT
} pl_buffer_kind;

/* Which numbers complete a buffer's name. */
typedef enum pl_buffer_scope {
    PL_SCOPE_PART,
    PL_SCOPE_LAYER_MICRO_BATCH,
    PL_SCOPE_MICRO_BATCH,
    PL_SCOPE_ONE
} pl_buffer_scope;

typedef struct pl_buffer {
    uint8_t kind, class_, dtype; /* pl_buffer_kind, pl_buffer_class, pl_dtype */
    bool resident;
    bool per_row;        /* bytes are for one row of R */
    uint8_t subject;     /* PL_SCOPE_PART: the part's */
    int32_t layer;       /* -1 where it does not apply */
    int32_t micro_batch; /* -1 where it does not apply */
    int64_t bytes;
} pl_buffer;

enum { PL_USE_READ = 1, PL_USE_WRITE = 2, PL_USE_BEGIN = 4, PL_USE_END = 8 };

typedef struct pl_use {
    uint32_t buffer; /* index in the section's table */
    uint32_t flags;  /* PL_USE_BEGIN comes with PL_USE_WRITE */
} pl_use;

/* What an entry's bytes and FLOPs count: as they stand, a row of R, or a row of C. */
typedef enum pl_rows { PL_ROWS_FIXED, PL_ROWS_RECEIVED, PL_ROWS_EXCHANGED, PL_ROWS_COUNT } pl_rows;

/* Condition under which an entry acts. */
typedef enum pl_predicate {
    PL_IF_ALWAYS,
    PL_IF_UPDATE, /* the reduced norm is finite and T > 0 */
    PL_PREDICATE_COUNT
} pl_predicate;

/* An exact factor: numerator / denominator * T^tokens. */
typedef struct pl_scale {
    int32_t numerator, denominator;
    int32_t tokens; /* -1, 0 or 1 */
} pl_scale;

enum { PL_WAIT_MISSING = -1 }; /* plan text waited for a label that no entry has */

typedef struct pl_entry {
    pl_entry_name name;
    uint8_t stream;    /* pl_stream */
    uint8_t group;     /* pl_group_role; PL_GROUP_NONE for entries that stay on the rank */
    uint8_t reduction; /* pl_reduction */
    uint8_t wire;      /* pl_dtype of what is communicated */
    uint8_t rows;      /* pl_rows */
    uint8_t predicate; /* pl_predicate */
    pl_scale scale;
    int32_t peer;   /* index in the group that it sends to or receives from; -1: no such one */
    uint32_t label; /* number in the text form; the entry's place in a fresh plan */
    uint32_t use_first, wait_first; /* in the section's pools */
    uint32_t use_count;
    uint32_t wait_count;
    int64_t bytes;    /* communicated: the whole of what all members contribute or receive */
    int64_t flops;    /* of products; additions and multiplications count two */
    int64_t elements; /* real elements made, moved, scaled, squared or updated: no padding */
} pl_entry;

typedef enum pl_program {
    PL_PROGRAM_START,    /* initial values, moments */
    PL_PROGRAM_STEP,     /* one optimizer step */
    PL_PROGRAM_EVALUATE, /* the loss of one round, nothing else */
    PL_PROGRAM_GENERATE, /* logits of one position of one micro-batch, and a token drawn */
    PL_PROGRAM_EXPORT,   /* parameters out through the host */
    PL_PROGRAM_SAVE,     /* all that a rank holds out through the host, as it is */
    PL_PROGRAM_LOAD,     /* the same in again, in the place of start */
    PL_PROGRAM_COUNT
} pl_program;

/* Sets of programs. */
enum {
    PL_PROGRAMS_START = 1 << PL_PROGRAM_START,
    PL_PROGRAMS_STEP = 1 << PL_PROGRAM_STEP,
    PL_PROGRAMS_EVALUATE = 1 << PL_PROGRAM_EVALUATE,
    PL_PROGRAMS_GENERATE = 1 << PL_PROGRAM_GENERATE,
    PL_PROGRAMS_EXPORT = 1 << PL_PROGRAM_EXPORT,
    PL_PROGRAMS_SAVE = 1 << PL_PROGRAM_SAVE,
    PL_PROGRAMS_LOAD = 1 << PL_PROGRAM_LOAD
};

/* Ranks first, first + stride, ..., last. */
typedef struct pl_rank_run {
    int64_t first, last, stride;
} pl_rank_run;

typedef struct pl_section {
    pl_program program;
    pl_rank_run *runs; /* the ranks that share it */
    size_t run_count, run_capacity;
    pl_buffer *buffers;
    size_t buffer_count, buffer_capacity;
    pl_entry *entries;
    size_t entry_count, entry_capacity;
    pl_use *uses;
    size_t use_count, use_capacity;
    int32_t *waits; /* places of entries, or PL_WAIT_MISSING */
    size_t wait_count, wait_capacity;
} pl_section;

typedef struct pl_plan {
    pl_model model; /* owned copy, patterns applied */
    pl_layout layout;
    pl_settings settings;
    char **keep_fp32, **frozen; /* owned patterns */
    int keep_fp32_count, frozen_count;
    pl_section *sections;
    size_t section_count, section_capacity;
} pl_plan;

typedef struct pl_plan_request {
    const pl_model *model; /* borrowed; patterns not yet applied */
    pl_layout layout;
    pl_settings settings;
    const char *const *keep_fp32, *const *frozen; /* borrowed */
    int keep_fp32_count, frozen_count;
    uint32_t programs;   /* PL_PROGRAMS_... together; 0: start and step */
    bool separate_ranks; /* a section for every rank: for measuring */
} pl_plan_request;

/* Build the plan of all ranks. Errors: PL_BAD_INPUT for what the layout cannot hold (see
 * pl_placement_check) or a size that does not fit; PL_UNSUPPORTED for pp > 1 or cp > 1;
 * PL_NO_MEMORY. The caller frees with pl_plan_free. */
pl_status pl_plan_build(pl_plan *out, const pl_plan_request *request);
void pl_plan_free(pl_plan *plan);

/* The section of RANK in PROGRAM, or NULL when there is none. O(sections). */
const pl_section *pl_plan_section(const pl_plan *plan, pl_program program, int64_t rank);

bool pl_section_has_rank(const pl_section *section, int64_t rank);
int64_t pl_section_rank_count(const pl_section *section);

/* Give RANK a section of its own (a copy) in each program, so that it can be edited alone. */
pl_status pl_plan_split_rank(pl_plan *plan, int64_t rank);

/* The text form (docs/formats.md). Writing then reading gives an equal plan. RANK < 0 writes all
 * sections, otherwise only those of RANK. */
void pl_plan_write(pl_text *text, const pl_plan *plan, int64_t rank);

/* Read a plan from TEXT; SOURCE stands for the file in messages. What is read need not be right:
 * proving is the simulator's. Errors: PL_BAD_INPUT with file, line and column for what cannot be
 * read at all (grammar, unknown words with the nearest, ranks outside the world or in two
 * sections of one program, a rank without a section). */
pl_status pl_plan_read(pl_plan *out, const char *text, const char *source);

/* Add the differences of A and B, headers first, then entries by name: "-" what only A has, "+"
 * what only B has, "~" what both have in another order; those after the first LIMIT are only
 * counted (0: no limit). *COUNT_OUT says how many there are. Errors: PL_NO_MEMORY. */
pl_status pl_plan_diff(pl_text *text, const pl_plan *a, const pl_plan *b, int64_t limit,
                       int64_t *count_out);

/* Add one entry as a line of the text form without its newline. */
void pl_entry_write(pl_text *text, const pl_section *section, const pl_entry *entry);

/* Add one buffer as a line of the text form without its newline. */
void pl_buffer_write(pl_text *text, const pl_buffer *buffer);

/* Bytes that ENTRY reads and writes, ROWS rows being received: every used buffer once for
 * reading and once for writing. */
int64_t pl_entry_touched_bytes(const pl_section *section, const pl_entry *entry, int64_t rows);

void pl_buffer_print(pl_text *text, const pl_buffer *buffer);
/* Read a buffer's name into its kind, subject, layer and micro_batch. */
bool pl_buffer_parse(pl_buffer *out, const char *name);
const char *pl_buffer_kind_stem(pl_buffer_kind kind);
pl_buffer_scope pl_buffer_kind_scope(pl_buffer_kind kind);
pl_buffer_class pl_buffer_kind_class(pl_buffer_kind kind);

/* What KIND, PL_BUF_HOST_PARAMETER to PL_BUF_HOST_IGNORED_V, holds on the host:
 * PL_BUF_PARAMETER to PL_BUF_IGNORED_V. Any other KIND: itself. */
pl_buffer_kind pl_buffer_kind_held(pl_buffer_kind kind);
const char *pl_buffer_class_name(pl_buffer_class class_);
bool pl_buffer_class_parse(pl_buffer_class *out, const char *name);
const char *pl_program_name(pl_program program); /* "start", "step", "evaluate", ... */
bool pl_program_parse(pl_program *out, const char *name);

/* Whether PROGRAM makes the resident buffers, which live before and after all others. */
bool pl_program_makes_residents(pl_program program);

/* Add "1", "1/2", "1/T", "T*1/8". */
void pl_scale_print(pl_text *text, pl_scale scale);
bool pl_scale_parse(pl_scale *out, const char *word);

#ifdef __cplusplus
}
#endif
#endif
