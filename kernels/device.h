/* Devices: memory, streams and the operations of training, behind tables of function pointers.
 *
 * A *backend* (cpu, cuda) serves a process and opens a *device* for each rank. Device memory is an
 * address that arithmetic may move and only the device may follow: the trainer never dereferences
 * it. Host memory made by the backend (pinned where that means something) both may use.
 *
 * Streams. Every operation and copy names a stream; work of one stream runs in order, and only
 * events order one stream against another (record, wait). The call returns when the work is
 * queued; arguments are copied, memory is borrowed until the stream has passed. The CPU backend
 * does everything at once, in the calling thread and the workers of its pool; record, wait and
 * synchronize then have nothing to do. A device is used by one thread at a time; the devices of
 * one backend may be used by as many threads.
 *
 * Matrices are row-major without gaps. Shapes are in brackets, types behind: [tokens, hidden] T,
 * where T is the type of activations and parameters (`dtype` of the arguments: fp32, bf16);
 * statistics, router values, losses and gradients of weights are fp32 or fp64 as said. A pointer
 * that may be NULL says so.
 *
 * Gradients of weights: `add` false means that the whole gradient is written (zeroes where nothing
 * contributes), true that it is added to what is there.
 *
 * Results depend on the arguments alone, never on the number of workers: work is split over
 * outputs, sums run in a fixed order.
 */
#ifndef PL_KERNELS_DEVICE_H
#define PL_KERNELS_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/call_log.h"
#include "common/dtype.h"
#include "common/entry.h"
#include "common/status.h"
#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_backend pl_backend;
typedef struct pl_device pl_device;

/* --- arguments of the operations --- */

/* to[0..count) = from[0..count), or to += from with `add`; conversions round to nearest even. */
typedef struct pl_cast_arguments {
    const void *from;
    void *to; /* may equal from when both types do */
    pl_dtype from_dtype, to_dtype;
    int64_t count;
    bool add;
} pl_cast_arguments;

/* to[i] = a[i] + b[i]; to may equal a or b. */
typedef struct pl_sum_arguments {
    const void *a, *b;
    void *to;
    pl_dtype dtype;
    int64_t count;
} pl_sum_arguments;

/* c[m, n] = op(a) op(b) (+ addend): op(a) is [m, k], stored [k, m] when transpose_a; op(b) is
 * [k, n], stored [n, k] when transpose_b. A linear layer y = x W^T has transpose_b. */
typedef struct pl_product_arguments {
    const void *a, *b;
    const void *addend; /* [m, n]; NULL: none; may equal c */
    void *c;
    pl_dtype dtype;   /* of a and b */
    pl_dtype c_dtype; /* of c and addend */
    int64_t m, n, k;
    bool transpose_a, transpose_b;
} pl_product_arguments;

/* Biases: x[rows, cols] += bias[cols]; and backward, to[cols] fp32 (+)= sum of the rows of x. */
typedef struct pl_bias_arguments {
    void *x;
    const void *bias;
    pl_dtype dtype;
    int64_t rows, cols;
} pl_bias_arguments;

typedef struct pl_bias_backward_arguments {
    const void *x;
    float *to;
    pl_dtype dtype;
    int64_t rows, cols;
    bool add;
} pl_bias_backward_arguments;

/* y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + epsilon), by rows. */
typedef struct pl_rms_norm_arguments {
    const void *x, *weight; /* [rows, cols], [cols] T */
    void *y;                /* [rows, cols] T */
    float *rstd;            /* [rows]; NULL: not kept */
    pl_dtype dtype;
    int64_t rows, cols;
    double epsilon;
} pl_rms_norm_arguments;

/* dx = the norm's backward of dy (+ residual); dweight (+)= sum over rows of dy * x * rstd. */
typedef struct pl_rms_norm_backward_arguments {
    const void *x, *weight, *dy;
    const float *rstd;    /* NULL: worked out again from x and epsilon */
    const void *residual; /* [rows, cols] T; NULL: none; may equal dx */
    void *dx;             /* NULL: not wanted */
    float *dweight;       /* [cols]; NULL: not wanted */
    bool add;             /* of dweight */
    pl_dtype dtype;
    int64_t rows, cols;
    double epsilon;
} pl_rms_norm_backward_arguments;

/* Norm over each head (where there is a weight), then rotary embedding: element i of a head pairs
 * with i + head_dim/2. Row r has position r mod sequence. */
typedef struct pl_head_rotate_arguments {
    const void *x;       /* [rows, heads, head_dim] T, as projected */
    const void *weight;  /* [head_dim] T; NULL: no norm */
    void *y;             /* [rows, heads, head_dim] T; may equal x */
    float *rstd;         /* [rows, heads]; NULL without weight, or: not kept */
    const float *rotary; /* [sequence, head_dim]: cosines of the pairs, then sines */
    pl_dtype dtype;
    int64_t rows, heads, head_dim, sequence;
    double epsilon;
} pl_head_rotate_arguments;

typedef struct pl_head_rotate_backward_arguments {
    const void *x, *weight; /* as in forward */
    const float *rstd;      /* [rows, heads]; NULL without weight */
    const float *rotary;
    const void *dy; /* [rows, heads, head_dim] T */
    void *dx;       /* [rows, heads, head_dim] T; may equal dy */
    float *dweight; /* [head_dim]; NULL: not wanted */
    bool add;
    pl_dtype dtype;
    int64_t rows, heads, head_dim, sequence;
} pl_head_rotate_backward_arguments;

/* Causal attention of each sequence by itself, scores times `scale`; query head h uses key-value
 * head h / (heads / kv_heads). Whole score matrices are never formed. */
typedef struct pl_attention_arguments {
    const void *q;     /* [sequences * sequence, heads, head_dim] T */
    const void *k, *v; /* [sequences * sequence, kv_heads, head_dim] T */
    void *out;         /* as q */
    float *lse;        /* [sequences * sequence, heads] log of the sum of exp(scaled scores) */
    pl_dtype dtype;
    int64_t sequences, sequence, heads, kv_heads, head_dim;
    double scale;
} pl_attention_arguments;

typedef struct pl_attention_backward_arguments {
    const void *q, *k, *v, *out, *dout;
    const float *lse;
    void *dq, *dk, *dv; /* written whole */
    pl_dtype dtype;
    int64_t sequences, sequence, heads, kv_heads, head_dim;
    double scale;
} pl_attention_backward_arguments;

/* act = silu(gate) * up. */
typedef struct pl_swiglu_arguments {
    const void *gate, *up;
    void *act;
    pl_dtype dtype;
    int64_t count;
} pl_swiglu_arguments;

typedef struct pl_swiglu_backward_arguments {
    const void *gate, *up, *dact;
    void *dgate, *dup; /* may equal dact, gate or up, element by element */
    pl_dtype dtype;
    int64_t count;
} pl_swiglu_backward_arguments;

/* x[t] = table[tokens[t]]; backward: dtable[v] fp32 (+)= sum of dx[t] with tokens[t] = v, in the
 * order of t. Tokens are within the vocabulary. */
typedef struct pl_embed_arguments {
    const void *table;     /* [vocabulary, cols] T */
    const int32_t *tokens; /* [count] */
    void *x;               /* [count, cols] T */
    pl_dtype dtype;
    int64_t count, vocabulary, cols;
} pl_embed_arguments;

typedef struct pl_embed_backward_arguments {
    const void *dx;
    const int32_t *tokens;
    float *dtable; /* [vocabulary, cols] */
    bool add;
    pl_dtype dtype;
    int64_t count, vocabulary, cols;
} pl_embed_backward_arguments;

/* Where the routing of the tokens of a micro-batch stands: [tokens, chosen] each.
 *
 * choices: experts, by falling score, the lower number first among equals.
 * weights: the factor of each: its score, divided by the sum of the chosen ones when normalised.
 * (A sum below 1e-30, which only forced routing can make, gives weights and gradients of 0.)
 * slots: the row of each in the order in which rows are sent: by expert, then by token, then by
 * place among the choices. */
typedef struct pl_routes {
    int32_t *choices;
    float *weights;
    int32_t *slots;
    int64_t tokens, experts, chosen;
    bool normalise;
} pl_routes;

/* Softmax and choice. `balanced`: token t, slot j goes to expert (t + j * experts/chosen) mod
 * experts instead (chosen divides experts, or the step is experts/chosen rounded down); weights
 * are still made of the scores of those. */
typedef struct pl_route_arguments {
    const float *logits; /* [tokens, experts] */
    float *scores;       /* [tokens, experts] softmax; may equal logits */
    pl_routes routes;    /* written */
    bool balanced;
    int64_t *counts; /* [experts] rows for each, written; NULL: not wanted */
    /* For the balance loss, added to (`balance_begins`: written): counts of choices and sums of
     * scores by set and expert, [sets, experts]; the tokens are divided evenly into `sets`
     * consecutive sets. NULL: not wanted. */
    int64_t *balance_counts;
    float *balance_scores;
    bool balance_begins;
    int64_t sets;
} pl_route_arguments;

/* dlogits from the gradients of the weights and of the balance loss. The loss of a set is
 * experts / chosen * sum over experts of f_i p_i, f_i = balance_counts[i] / balance_count_tokens
 * (no gradient through f), p_i = sum of scores / balance_score_tokens; it enters times
 * balance_factor * (token_count or 1). */
typedef struct pl_route_backward_arguments {
    const float *scores;
    pl_routes routes;              /* read; slots may be NULL */
    const float *dweights;         /* [tokens, chosen] */
    float *dlogits;                /* [tokens, experts] */
    const int64_t *balance_counts; /* [sets, experts] as reduced; NULL: no balance loss */
    const int64_t *token_count;    /* T on the device; NULL: 1 */
    double balance_factor;
    double balance_count_tokens, balance_score_tokens;
    int64_t sets;
} pl_route_backward_arguments;

/* loss_sums[1] += factor * sum over layers, micro-batches and sets of
 *   experts / chosen * sum_i (counts_i / count_tokens) (scores_i / tokens).
 * counts [layers, micro_batches, sets, experts] as reduced, scores those of this rank.
 * Without `running`, count_tokens is tokens. With it (the global-batch form; sets is 1), running
 * [layers, experts] holds the totals of the rounds before (`running_begins`: none): micro-batch by
 * micro-batch the counts are added to it and replaced by it, and count_tokens of micro-batch m is
 * running_tokens + (m + 1) tokens. */
typedef struct pl_balance_arguments {
    int64_t *counts;
    const float *scores;
    int64_t *running;
    bool running_begins;
    double *loss_sums; /* [2] */
    int64_t layers, micro_batches, sets, experts, chosen;
    double tokens, running_tokens, factor;
} pl_balance_arguments;

/* send[slots[t, j]] = y[t]; backward: dy[t] = sum over j of dsend[slots[t, j]]. */
typedef struct pl_permute_arguments {
    const void *from;     /* y [tokens, cols], or dsend [tokens * chosen, cols] */
    const int32_t *slots; /* [tokens, chosen] */
    void *to;
    pl_dtype dtype;
    int64_t tokens, chosen, cols;
} pl_permute_arguments;

/* x[t] = h[t] + sum over j of weights[t, j] * back[slots[t, j]]. */
typedef struct pl_merge_arguments {
    const void *h, *back;
    const float *weights;
    const int32_t *slots;
    void *x;
    pl_dtype dtype;
    int64_t tokens, chosen, cols;
} pl_merge_arguments;

/* dback[slots[t, j]] = weights[t, j] * dx[t]; dweights[t, j] = dx[t] . back[slots[t, j]]. */
typedef struct pl_merge_backward_arguments {
    const void *dx;
    const void *back; /* NULL when dweights is */
    const float *weights;
    const int32_t *slots;
    void *dback;
    float *dweights; /* NULL: not wanted */
    pl_dtype dtype;
    int64_t tokens, chosen, cols;
} pl_merge_backward_arguments;

/* Which rows belong to which of the experts that a rank hosts (`experts` of them, from global
 * number `first`). */
typedef enum pl_expert_order {
    /* Rows come from `sources` ranks one after another, each rank's by expert:
     * counts[sources][experts], in host memory, known. */
    PL_EXPERTS_COUNTED,
    /* Rows are in the order of `slots`: by expert. Only the choices are known, on the device. */
    PL_EXPERTS_SORTED,
    /* Rows are tokens; choices and weights [tokens, chosen] on the device say which experts a row
     * goes to. A token's result is the weighted sum over the experts hosted here; zero if none. */
    PL_EXPERTS_CHOSEN
} pl_expert_order;

typedef struct pl_expert_rows {
    pl_expert_order order;
    int64_t experts, first;
    int64_t rows;           /* rows in `in`: all of them */
    int64_t sources;        /* COUNTED */
    const int64_t *counts;  /* COUNTED; host */
    const int32_t *choices; /* SORTED, CHOSEN: [tokens, chosen] */
    const float *weights;   /* CHOSEN */
    int64_t tokens, chosen; /* SORTED: tokens * chosen is rows; CHOSEN: tokens is rows */
    int64_t room; /* rows that saved and dact have room for: COUNTED and SORTED: rows; CHOSEN:
                     tokens * min(chosen, experts) */
} pl_expert_rows;

/* out = down(silu(gate(in)) * up(in)), by expert. `saved` and `dact` hold two values of `width` a
 * row, in an order that is the backend's own, equal in all passes of the same rows. */
typedef struct pl_experts_arguments {
    pl_expert_rows rows;
    const void *in;               /* [rows, hidden] T */
    const void *gate, *up, *down; /* [experts, width, hidden] twice, [experts, hidden, width] T */
    void *saved;                  /* [room, 2 width] T; NULL: not kept */
    void *out;                    /* [rows, hidden] T; NULL: not wanted */
    pl_dtype dtype;
    int64_t hidden, width;
} pl_experts_arguments;

/* Gradients of activations. CHOSEN: dout is of the weighted sum; dweights [tokens, chosen] gets
 * the gradient of the weights of experts hosted here, zero elsewhere; and dact includes them. */
typedef struct pl_experts_inputs_arguments {
    pl_expert_rows rows;
    const void *dout; /* [rows, hidden] T */
    const void *gate, *up, *down;
    const void *saved;
    void *dact;      /* [room, 2 width] T; NULL: not wanted */
    void *din;       /* [rows, hidden] T; NULL: not wanted */
    float *dweights; /* CHOSEN; NULL: not wanted */
    pl_dtype dtype;
    int64_t hidden, width;
} pl_experts_inputs_arguments;

/* Gradients of the weights, from what the forward pass and the backward of inputs left. */
typedef struct pl_experts_weights_arguments {
    pl_expert_rows rows;
    const void *in, *dout, *saved, *dact;
    float *dgate, *dup, *ddown; /* as the weights, fp32; NULL: not wanted (frozen) */
    bool add_gate, add_up, add_down;
    pl_dtype dtype;
    int64_t hidden, width;
} pl_experts_weights_arguments;

/* Logits z W^T, never whole: in pieces of rows. loss_sums[0] += sum over valid rows of
 * logsumexp - logit of the label (`loss_begins`: both of loss_sums are set to 0 first); a negative
 * label is not valid. dz and dweight are of that sum, unscaled. */
typedef struct pl_loss_arguments {
    const void *z;         /* [rows, hidden] T */
    const void *weight;    /* [vocabulary, hidden] T */
    const int32_t *labels; /* [rows] */
    void *dz;              /* [rows, hidden] T; NULL: not wanted */
    float *dweight;        /* [vocabulary, hidden]; NULL: not wanted */
    bool add;              /* of dweight */
    double *loss_sums;     /* [2] */
    bool loss_begins;
    float *row_losses; /* [rows], 0 where not valid; NULL: not wanted */
    pl_dtype dtype;
    int64_t rows, hidden, vocabulary;
} pl_loss_arguments;

/* x[i] *= numerator / denominator * T^tokens, T in device memory; nothing when T is 0. */
typedef struct pl_scale_arguments {
    float *x;
    int64_t count;
    int32_t numerator, denominator, tokens;
    const int64_t *token_count; /* NULL when tokens is 0 */
} pl_scale_arguments;

/* *to (+)= sum of x[i]^2, in fp64, in a fixed order. */
typedef struct pl_squares_arguments {
    const float *x;
    int64_t count;
    double *to;
    bool add;
} pl_squares_arguments;

/* clip[0] = norm = sqrt of the sum of those given; clip[1] = min(1, limit / (norm + 1e-6)), 1
 * when limit is 0; clip[2] = 1 if the norm is finite, else 0. */
typedef struct pl_clip_arguments {
    const double *squares[3]; /* NULL: none */
    double limit;
    double *clip; /* [3] */
} pl_clip_arguments;

/* One tensor's update; nothing happens when clip[2] is 0 or *token_count is 0. Gradients enter
 * times clip[1].
 * adamw: p *= 1 - lr decay; m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
 *        p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + epsilon).
 * sgd (m NULL): p *= 1 - lr decay; p -= lr g. */
typedef struct pl_update_arguments {
    float *p;
    float *m, *v; /* NULL: sgd */
    const float *g;
    int64_t count;
    double lr, decay, beta1, beta2, epsilon;
    int64_t t; /* number of this update, from 1 */
    const double *clip;
    const int64_t *token_count;
} pl_update_arguments;

/* --- tables --- */

/* Operations. A backend that lacks one leaves NULL; pl_backend_lacks names them. */
#define PL_DEVICE_OPERATIONS(X)                                                                    \
    X(cast, pl_cast_arguments)                                                                     \
    X(sum, pl_sum_arguments)                                                                       \
    X(product, pl_product_arguments)                                                               \
    X(bias, pl_bias_arguments)                                                                     \
    X(bias_backward, pl_bias_backward_arguments)                                                   \
    X(rms_norm, pl_rms_norm_arguments)                                                             \
    X(rms_norm_backward, pl_rms_norm_backward_arguments)                                           \
    X(head_rotate, pl_head_rotate_arguments)                                                       \
    X(head_rotate_backward, pl_head_rotate_backward_arguments)                                     \
    X(attention, pl_attention_arguments)                                                           \
    X(attention_backward, pl_attention_backward_arguments)                                         \
    X(swiglu, pl_swiglu_arguments)                                                                 \
    X(swiglu_backward, pl_swiglu_backward_arguments)                                               \
    X(embed, pl_embed_arguments)                                                                   \
    X(embed_backward, pl_embed_backward_arguments)                                                 \
    X(route, pl_route_arguments)                                                                   \
    X(route_backward, pl_route_backward_arguments)                                                 \
    X(balance, pl_balance_arguments)                                                               \
    X(permute, pl_permute_arguments)                                                               \
    X(permute_backward, pl_permute_arguments)                                                      \
    X(merge, pl_merge_arguments)                                                                   \
    X(merge_backward, pl_merge_backward_arguments)                                                 \
    X(experts, pl_experts_arguments)                                                               \
    X(experts_inputs, pl_experts_inputs_arguments)                                                 \
    X(experts_weights, pl_experts_weights_arguments)                                               \
    X(loss, pl_loss_arguments)                                                                     \
    X(scale, pl_scale_arguments)                                                                   \
    X(squares, pl_squares_arguments)                                                               \
    X(clip, pl_clip_arguments)                                                                     \
    X(update, pl_update_arguments)

/* Each fails with PL_UNSUPPORTED for element types the backend does not do, PL_NO_MEMORY, or
 * PL_INTERNAL for arguments that contradict the description. Counts of 0 are allowed. */
typedef struct pl_operations {
#define PL_OPERATION(name, arguments)                                                              \
    pl_status (*name)(pl_device * device, pl_stream stream, const arguments *a);
    PL_DEVICE_OPERATIONS(PL_OPERATION)
#undef PL_OPERATION
} pl_operations;

typedef enum pl_copy_kind {
    PL_COPY_TO_DEVICE, /* from host memory */
    PL_COPY_TO_HOST,   /* from device memory */
    PL_COPY_WITHIN_DEVICE
} pl_copy_kind;

/* Memory, copies, streams and events. */
typedef struct pl_device_functions {
    /* Device memory, 256-byte aligned, contents undefined. BYTES 0 gives NULL. */
    pl_status (*allocate)(pl_device *device, void **out, int64_t bytes, const char *what);
    void (*release)(pl_device *device, void *memory);
    /* Host memory that copies reach without a detour; the trainer may follow it. */
    pl_status (*allocate_host)(pl_device *device, void **out, int64_t bytes, const char *what);
    void (*release_host)(pl_device *device, void *memory);
    pl_status (*copy)(pl_device *device, pl_stream stream, void *to, const void *from,
                      int64_t bytes, pl_copy_kind kind);
    pl_status (*fill)(pl_device *device, pl_stream stream, void *to, int byte, int64_t bytes);
    /* Events 0 .. PL_DEVICE_EVENTS-1, free for the caller; recording one again moves it. */
    pl_status (*record)(pl_device *device, pl_stream stream, int32_t event);
    pl_status (*wait)(pl_device *device, pl_stream stream, int32_t event);
    /* The host waits until STREAM has passed. */
    pl_status (*synchronize)(pl_device *device, pl_stream stream);
    void (*close)(pl_device *device);
} pl_device_functions;

enum { PL_DEVICE_EVENTS = 4096 };

/* The head of every backend's own structure. */
struct pl_device {
    const pl_device_functions *functions;
    const pl_operations *operations;
    pl_backend *backend;
    int64_t rank;
    pl_entry_name entry;    /* for which calls are made: set by the caller, used in records and
                               messages */
    const pl_call_log *log; /* NULL: none; set by the caller, borrowed */
};

typedef struct pl_backend_functions {
    const char *name; /* "cpu", "cuda" */
    /* A device for RANK; LOCAL_INDEX is its number among the ranks of this process. */
    pl_status (*open_device)(pl_backend *backend, pl_device **out, int64_t rank,
                             int64_t local_index);
    /* Words for people: "Xeon, AVX-512, OpenBLAS 0.3.21, 2 workers". Borrowed from the backend. */
    const char *(*describe)(const pl_backend *backend);
    void (*close)(pl_backend *backend); /* after all its devices */
} pl_backend_functions;

struct pl_backend {
    const pl_backend_functions *functions;
    const pl_operations *operations; /* those of its devices */
};

/* Add the names of the operations that BACKEND lacks to NAMES, separated by ", ". Returns how many
 * these are. */
int pl_backend_lacks(const pl_backend *backend, pl_text *names);

/* A plugin exports this function under the name PL_PLUGIN_ENTRY (kernels/plugin.h opens it).
 * INTERFACE is PL_DEVICE_INTERFACE of the caller; a plugin of another one refuses in words.
 * Errors: PL_UNSUPPORTED when no device can be used, saying why (no driver, driver too old, no
 * device). */
enum { PL_DEVICE_INTERFACE = 1 };
#define PL_PLUGIN_ENTRY "pl_plugin_open_backend"
typedef pl_status (*pl_plugin_open_function)(pl_backend **out, int32_t interface);

/* Add a record of one call to the device's log, if it has one. Ranges of no bytes and NULL starts
 * are left out. */
void pl_device_note(pl_device *device, pl_stream stream, const char *what, int64_t flops,
                    const pl_touch *touches, int count);

/* Ranges for it. */
static inline pl_touch pl_touch_read(const void *start, int64_t bytes)
{
    pl_touch touch = {start, bytes, true, false};
    return touch;
}

static inline pl_touch pl_touch_write(const void *start, int64_t bytes)
{
    pl_touch touch = {start, bytes, false, true};
    return touch;
}

static inline pl_touch pl_touch_update(const void *start, int64_t bytes)
{
    pl_touch touch = {start, bytes, true, true};
    return touch;
}

#ifdef __cplusplus
}
#endif
#endif
