/* Walking the plans of all ranks over the fake process group, values carried in every buffer.
 *
 * A value is one element of the field of integers modulo the prime 2^61 - 1, so that sums wrap
 * nowhere, averages and 1/T are exact, and two different histories of a buffer agree only by an
 * accident of 2^-61. Tokens are random elements h(rank, round, micro-batch); a module's gradient
 * is a fixed multiple of the tokens it was computed for; a shard's slice of a sum is a random
 * multiple that names the slice. What must come out is worked out apart (walk_expected.c).
 */
#ifndef PL_SIM_WALK_H
#define PL_SIM_WALK_H

#include "sim/fake_group.h"
#include "sim/proof.h"

typedef uint64_t pl_value; /* 0 <= value < PL_FAKE_PRIME */

/* --- the field (walk_expected.c) --- */

pl_value pl_value_add(pl_value a, pl_value b);
pl_value pl_value_multiply(pl_value a, pl_value b);
pl_value pl_value_inverse(pl_value a);

/* A fixed random element for each tuple of numbers. */
pl_value pl_value_random(uint64_t what, int64_t a, int64_t b, int64_t c);

/* Names of the random families. */
enum {
    PL_RANDOM_TOKENS = 1, /* (rank, round, micro-batch): the tokens of a micro-batch */
    PL_RANDOM_COUNT,      /* (rank): how many valid labels a rank has */
    PL_RANDOM_MASTER,     /* (part, owner, shard): initial master values */
    PL_RANDOM_SLICE,      /* (index): a shard's slice of a sum */
    PL_RANDOM_OWNER,      /* (index): what goes to, or is computed by, an owner of experts */
    PL_RANDOM_SQUARES,    /* (part, owner, shard): sums of squares */
    PL_RANDOM_BALANCE,    /* (rank, layer, round and micro-batch): expert counts */
    PL_RANDOM_LOSS,       /* the same: the scores that the load-balance loss is made of */
    PL_RANDOM_MODULE,     /* (module): multiples by which modules' gradients differ */
    PL_RANDOM_SAVED       /* (part and kind, owner, shard): what a checkpoint keeps */
};

enum {
    PL_MODULE_VALUE_ATTENTION,
    PL_MODULE_VALUE_FEED,
    PL_MODULE_VALUE_EXCHANGE,
    PL_MODULE_VALUE_BALANCE, /* what the load-balance loss adds to a route's gradient */
    PL_MODULE_VALUE_HEAD,
    PL_MODULE_VALUE_OTHER
};

/* --- a walk --- */

/* Where a rank stands. */
typedef struct pl_walk_rank {
    const pl_section *section;
    pl_value *value;                              /* [buffers] */
    bool *done;                                   /* [entries] */
    int32_t next[PL_STREAM_COUNT];                /* place in the section's list of a stream */
    pl_process_group *group[PL_GROUP_ROLE_COUNT]; /* handles, opened on first use */
    pl_request request;                           /* of the collective in flight */
    bool posted;
    int32_t in_flight;    /* the entry that posted it */
    int64_t *send, *recv; /* scratch of the collective in flight */
    size_t scratch;       /* elements of each */
} pl_walk_rank;

/* The entries of a section, stream by stream. */
typedef struct pl_walk_lists {
    const pl_section *section;
    int32_t *entry[PL_STREAM_COUNT];
    int32_t count[PL_STREAM_COUNT];
} pl_walk_lists;

/* Only these tokens count, for finding out which are missing: those of ranks first_rank to
 * last_rank in micro-steps (round * M + micro-batch) first_step to last_step. */
typedef struct pl_walk_probe {
    bool on; /* off: all tokens count */
    int64_t first_rank, last_rank, first_step, last_step;
} pl_walk_probe;

typedef struct pl_walk {
    const pl_sim_world *world;
    pl_program program;
    pl_verdict *verdicts; /* of a check */
    pl_walk_probe probe;
    pl_walk_rank *ranks;
    pl_walk_lists *lists;       /* [sections of the plan] */
    pl_process_group **handles; /* [ranks] the world's groups */
    const struct pl_walk_expected *expected;
    pl_value *by_part[2]; /* scratch: a value for each part, sharded and whole */
    size_t parts;
    /* where a gradient first came out wrong, and its ratio to what it must be */
    bool wrong;
    int64_t wrong_rank;
    uint32_t wrong_buffer;
    pl_value ratio;
} pl_walk;

/* --- what must come out (walk_expected.c) --- */

typedef struct pl_walk_expected {
    const pl_sim_world *world;
    pl_program program;
    int64_t rounds;                       /* of the program */
    pl_value tokens_total, inverse_total; /* T and 1/T */
    pl_value sum_tokens;                  /* of all sources */
    pl_value sum_exchanged;               /* of what the exchange brings back to all sources */
    pl_value *token_sum;     /* [ranks] tokens of a rank over rounds and micro-batches */
    pl_value *full_dense;    /* [part] gathered dense parts */
    pl_value *full_experts;  /* [layers * owners] gathered expert parts */
    pl_value *balance;       /* [groups * rounds] counts that route's backward must see; a step's */
    pl_value *loss;          /* [stages] loss sums after their reduction */
    pl_value squares[3];     /* dense, experts, ignored: sums of squares of everything */
    pl_value *slice, *owner; /* [ranks] numbers of slices and owners by index */
    bool balances;           /* see pl_walk_balances */
} pl_walk_expected;

pl_status pl_walk_expected_make(pl_walk_expected *out, const pl_sim_world *world,
                                pl_program program, const pl_walk_probe *probe);
void pl_walk_expected_free(pl_walk_expected *expected);

/* Number of a part among all, for randomness and tables. */
int64_t pl_walk_part_number(const pl_sim_world *world, pl_subject subject, int32_t layer);

/* The tokens of one micro-batch, as the probe lets them count. */
pl_value pl_walk_tokens(const pl_sim_world *world, const pl_walk_probe *probe, int64_t rank,
                        int64_t round, int64_t mb);

/* A rank's shard of a part before the step. */
pl_value pl_walk_initial(const pl_sim_world *world, pl_subject subject, int32_t layer,
                         int64_t rank);
/* What a rank's buffer of KIND holds of a part while it is saved, and after it was loaded: another
 * value for each kind. 0 for kinds that no checkpoint keeps. */
pl_value pl_walk_saved(const pl_sim_world *world, pl_buffer_kind kind, pl_subject subject,
                       int32_t layer, int64_t rank);
/* The part as the rank's module must see it. */
pl_value pl_walk_full(const pl_walk_expected *expected, pl_subject subject, int32_t layer,
                      int64_t rank);
/* The gradient that the rank's shard (or whole copy, WHOLE) must have after scaling. */
pl_value pl_walk_gradient(const pl_walk_expected *expected, pl_subject subject, int32_t layer,
                          bool whole, int64_t rank);
/* Whether the load-balance loss takes part in the gradients of this walk. A probe leaves it out:
 * it belongs to no one source. */
bool pl_walk_balances(const pl_sim_world *world, const pl_walk_probe *probe);

/* A rank's own contribution to a sum of squares. */
pl_value pl_walk_squares(const pl_sim_world *world, pl_subject subject, int32_t layer, bool whole,
                         int64_t rank);
/* The counts that a route's backward must see in ROUND. */
pl_value pl_walk_balance(const pl_walk_expected *expected, int64_t round, int64_t rank);
/* The loss sums after their reduction. */
pl_value pl_walk_loss(const pl_walk_expected *expected, int64_t rank);

/* --- rules (walk_values.c, walk_calls.c) --- */

/* Do a local entry: read, compute, write values; check what must hold where it is used. */
void pl_walk_compute(pl_walk *walk, int64_t rank, const pl_entry *entry);

/* The vectors of a collective: fill the call before it starts, take the results after it. */
void pl_walk_fill(pl_walk *walk, int64_t rank, const pl_entry *entry, pl_call *call);
void pl_walk_take(pl_walk *walk, int64_t rank, const pl_entry *entry);

/* Elements of scratch that ENTRY's collective needs in a group of SIZE. */
size_t pl_walk_scratch(const pl_entry *entry, int64_t size);

/* After the last entry: what the program leaves behind. */
void pl_walk_end(pl_walk *walk, int64_t rank);

#endif
