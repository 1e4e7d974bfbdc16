/* What a step is to do beyond model and layout: policies, precision, shape, losses, optimizer.
 * Plain values with names; the run file (common/run_file.h) and the plan's header spell them.
 */
#ifndef PL_COMMON_SETTINGS_H
#define PL_COMMON_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* When a unit's gathered copy is let go (design §5). */
typedef enum pl_reshard {
    PL_RESHARD_AFTER_FORWARD, /* after each pass; kept from forward to backward: last layer, head */
    PL_RESHARD_NEVER,         /* gathered once a step, let go before the update */
    PL_RESHARD_PER_CALL,      /* gathered and let go for every micro-batch by itself */
    PL_RESHARD_COUNT
} pl_reshard;

typedef enum pl_prefetch {
    PL_PREFETCH_NONE,      /* a gather is issued where its unit is first needed */
    PL_PREFETCH_NEXT_UNIT, /* ... where the unit before it is first needed */
    PL_PREFETCH_COUNT
} pl_prefetch;

typedef enum pl_recompute {
    PL_RECOMPUTE_NONE,
    PL_RECOMPUTE_FULL, /* every layer but the last keeps only its input (and its routes) */
    PL_RECOMPUTE_COUNT
} pl_recompute;

/* Where gradients of several rounds are added up. */
typedef enum pl_accumulate {
    PL_ACCUMULATE_SHARDED,   /* reduced every round, added into the shard */
    PL_ACCUMULATE_UNSHARDED, /* whole gradients kept over the rounds, reduced once a step */
    PL_ACCUMULATE_COUNT
} pl_accumulate;

typedef enum pl_dispatch {
    PL_DISPATCH_ALL_TO_ALL,
    PL_DISPATCH_ALL_GATHER,
    PL_DISPATCH_COUNT
} pl_dispatch;

typedef enum pl_routing {
    PL_ROUTING_ROUTER,   /* by the router's scores */
    PL_ROUTING_BALANCED, /* forced: token t, slot j -> expert (t + j E/k) mod E */
    PL_ROUTING_COUNT
} pl_routing;

typedef enum pl_balance {
    PL_BALANCE_NONE,
    PL_BALANCE_MICRO_STEP,   /* expert counts of one micro-step, over all ranks of the stage */
    PL_BALANCE_SEQUENCE,     /* of one sequence, over the cp ranks */
    PL_BALANCE_GLOBAL_BATCH, /* running over the micro-steps of the step, over all ranks */
    PL_BALANCE_COUNT
} pl_balance;

typedef enum pl_optimizer { PL_OPTIMIZER_ADAMW, PL_OPTIMIZER_SGD, PL_OPTIMIZER_COUNT } pl_optimizer;

typedef struct pl_policy {
    pl_reshard reshard;
    pl_prefetch prefetch;
    pl_recompute recompute;
    pl_accumulate accumulate;
    pl_dispatch dispatch;
    pl_routing routing;
} pl_policy;

/* Element types: of compute and activations, of parameters on the wire, of gradients on the
 * wire, of masters and optimizer state (fp32 always). Default bf16, bf16, fp32, fp32. */
typedef struct pl_precision {
    pl_dtype compute, gather, gradient, master;
} pl_precision;

/* Tokens of one sequence; sequences of one micro-batch of one data rank; micro-batches carried
 * through a layer together (M); rounds of gradient accumulation (A). */
typedef struct pl_shape {
    int64_t sequence, micro_batch, intra_layer, rounds;
} pl_shape;

/* All that decides a plan besides model and layout. */
typedef struct pl_settings {
    pl_policy policy;
    pl_precision precision;
    pl_shape shape;
    pl_balance balance;
    double balance_coefficient; /* of the load-balance loss; 0 switches it off */
    pl_optimizer optimizer;
    double clip; /* largest gradient norm; 0 switches clipping off */
} pl_settings;

/* The shape in which tokens are generated: one sequence at a time, as long as in SHAPE. */
pl_shape pl_generate_shape(pl_shape shape);

/* after-forward, none, none, sharded, all-to-all, router; bf16, bf16, fp32, fp32; 4096, 1, 1, 1;
 * micro-step with the model's own coefficient (here 0); adamw; 1.0. */
pl_settings pl_settings_default(void);

/* The names of each enumeration in value order, for parsing, printing and help; *COUNT of them. */
const char *const *pl_reshard_names(int *count);
const char *const *pl_prefetch_names(int *count);
const char *const *pl_recompute_names(int *count);
const char *const *pl_accumulate_names(int *count);
const char *const *pl_dispatch_names(int *count);
const char *const *pl_routing_names(int *count);
const char *const *pl_balance_names(int *count);
const char *const *pl_optimizer_names(int *count);

#ifdef __cplusplus
}
#endif
#endif
