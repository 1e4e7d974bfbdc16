/* The name of a plan entry: what a rank does, to what, when in the step.
 *
 * (operation, subject, chunk, round, micro-batch, pass, ordinal) names an entry; no two entries of
 * one rank and program share it. Logs, error messages, proofs and traces all speak of entries by
 * this name, printed by pl_entry_name_print: "dispatch layer.1 round 0 mb 2 forward".
 */
#ifndef PL_COMMON_ENTRY_H
#define PL_COMMON_ENTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is done. common/plan.h says for each what it reads, writes and means. */
typedef enum pl_operation {
    PL_OP_LOAD_BATCH,      /* host: read the step's samples */
    PL_OP_COUNT_TOKENS,    /* host: count the valid labels of this rank */
    PL_OP_COPY,            /* between host and device */
    PL_OP_INITIALIZE,      /* host: make initial values */
    PL_OP_WRITE,           /* host: hand parameters, or what a checkpoint keeps, out */
    PL_OP_READ,            /* host: take what a checkpoint keeps in */
    PL_OP_ZERO,            /* fill with zeroes */
    PL_OP_CAST,            /* change the element type */
    PL_OP_GATHER,          /* all-gather a unit's parameters */
    PL_OP_RESHARD,         /* let a unit's gathered copy go */
    PL_OP_REDUCE,          /* reduce-scatter a unit's gradients */
    PL_OP_ACCUMULATE,      /* add a round's reduced gradients to the step's */
    PL_OP_EMBED,           /* token embedding */
    PL_OP_ATTENTION,       /* norm, attention, residual */
    PL_OP_MLP,             /* norm, dense SwiGLU, residual */
    PL_OP_ROUTE,           /* norm, router scores, top-k choice */
    PL_OP_EXCHANGE_COUNTS, /* all-to-all of rows to expect */
    PL_OP_BIND,            /* host: fix the sizes that routing decided */
    PL_OP_PERMUTE,         /* rows into the order of their destinations */
    PL_OP_SHARE_ROUTES,    /* all-gather of choices and weights (all-gather dispatch) */
    PL_OP_DISPATCH,        /* rows to the owners of their experts */
    PL_OP_EXPERTS,         /* grouped SwiGLU of the routed experts */
    PL_OP_COMBINE,         /* rows back to their tokens' ranks */
    PL_OP_MERGE,           /* weighted sum of a token's rows, residual */
    PL_OP_FINAL_NORM,      /* norm before the head */
    PL_OP_LOSS,            /* head, cross-entropy and their gradients, in pieces */
    PL_OP_LOGITS,          /* head on one position */
    PL_OP_SAMPLE,          /* host: draw a token from its logits */
    PL_OP_BALANCE,         /* load-balance loss from reduced counts */
    PL_OP_ALL_REDUCE,      /* of gradients, counts or sums; the subject says which */
    PL_OP_SCALE,           /* multiply gradients by the entry's scale */
    PL_OP_GRADIENT_NORM,   /* sums of squares of the gradients held */
    PL_OP_CLIP,            /* the clip coefficient from the reduced sums */
    PL_OP_STEP,            /* optimizer update */
    PL_OP_CONTROL,         /* all-reduce of flags that ends every program */
    PL_OPERATION_COUNT
} pl_operation;

/* What it is done to. The first five are parts of the model's parameters. */
typedef enum pl_subject {
    PL_SUBJECT_EMBEDDING,         /* "embed" */
    PL_SUBJECT_LAYER,             /* "layer.3": all of a layer but routed experts */
    PL_SUBJECT_EXPERTS,           /* "experts.3": routed experts of layer 3 */
    PL_SUBJECT_NORM,              /* "norm": the final norm */
    PL_SUBJECT_HEAD,              /* "head" */
    PL_SUBJECT_BATCH,             /* "batch": tokens and labels */
    PL_SUBJECT_TOKENS,            /* "tokens": the count of valid labels, T */
    PL_SUBJECT_BALANCE,           /* "balance": tokens per expert */
    PL_SUBJECT_DENSE_GRADIENTS,   /* "dense-gradients" */
    PL_SUBJECT_EXPERT_GRADIENTS,  /* "expert-gradients" */
    PL_SUBJECT_IGNORED_GRADIENTS, /* "ignored-gradients" */
    PL_SUBJECT_GRADIENTS,         /* "gradients": all of them */
    PL_SUBJECT_DENSE_SQUARES,     /* "dense-squares": sum of squares */
    PL_SUBJECT_EXPERT_SQUARES,    /* "expert-squares" */
    PL_SUBJECT_PARAMETERS,        /* "parameters": all trained ones */
    PL_SUBJECT_LOSS,              /* "loss": the sums to report */
    PL_SUBJECT_FLAGS,             /* "flags": stop, save, failed, save finished */
    PL_SUBJECT_COUNT
} pl_subject;

typedef enum pl_pass {
    PL_PASS_NONE,             /* "-" */
    PL_PASS_FORWARD,          /* "f" */
    PL_PASS_RECOMPUTE,        /* "r" */
    PL_PASS_BACKWARD_INPUTS,  /* "bi" */
    PL_PASS_BACKWARD_WEIGHTS, /* "bw" */
    PL_PASS_BACKWARD,         /* "b": both */
    PL_PASS_COUNT
} pl_pass;

/* In-order queues of a rank; only waits order one against another. */
typedef enum pl_stream {
    PL_STREAM_COMPUTE,
    PL_STREAM_COMMUNICATION,
    PL_STREAM_COPY,
    PL_STREAM_HOST,
    PL_STREAM_COUNT
} pl_stream;

/* -1 in a numeric field means that it does not apply. */
typedef struct pl_entry_name {
    uint8_t operation, subject, pass; /* pl_operation, pl_subject, pl_pass */
    uint8_t unused;                   /* 0: names compare as bytes */
    int32_t layer;                    /* completes PL_SUBJECT_LAYER and _EXPERTS; else -1 */
    int32_t chunk;                    /* pipeline chunk; -1 without a pipeline */
    int32_t round, micro_batch;
    int32_t ordinal; /* ring hop, piece, repeat; 0 for the first or only one */
} pl_entry_name;

/* A name with every numeric field at -1 (ordinal 0) and no pass. */
pl_entry_name pl_entry_name_make(pl_operation operation, pl_subject subject);

bool pl_entry_name_equal(const pl_entry_name *a, const pl_entry_name *b);

/* Add "gather layer.3 round 0 mb 1 backward #2"; what does not apply is left out. */
void pl_entry_name_print(pl_text *text, const pl_entry_name *name);

/* Add "layer.3", "experts.3", "head", ... */
void pl_subject_print(pl_text *text, pl_subject subject, int32_t layer);

/* Read "layer.3" and the like. False when it is none. */
bool pl_subject_parse(pl_subject *subject, int32_t *layer, const char *word);

const char *pl_operation_name(pl_operation operation); /* "exchange-counts" */
bool pl_operation_parse(pl_operation *out, const char *name);
const char *pl_pass_name(pl_pass pass); /* short: "f", "bi" */
bool pl_pass_parse(pl_pass *out, const char *name);
const char *pl_stream_name(pl_stream stream); /* "compute", "communication", "copy", "host" */
bool pl_stream_parse(pl_stream *out, const char *name);

#ifdef __cplusplus
}
#endif
#endif
