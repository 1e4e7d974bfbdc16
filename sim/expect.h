/* What must hold, derived afresh: the checkers' own arithmetic of groups, boxes, sizes and work.
 *
 * Nothing here calls the functions that plans and trainers use for the same questions
 * (pl_layout_group, pl_placement_box, the emitters): a fault in one of those is to be found, not
 * shared. Only the numbers of layout, model and settings are taken over.
 */
#ifndef PL_SIM_EXPECT_H
#define PL_SIM_EXPECT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- groups (expect_layout.c) --- */

/* Where a rank stands in its group of a role. */
typedef struct pl_expected_place {
    int32_t group; /* number among the groups of the role, from 0 */
    int32_t index, size;
} pl_expected_place;

/* Groups of all ranks in all roles. */
typedef struct pl_expected_groups {
    int64_t ranks;
    pl_expected_place *place[PL_GROUP_ROLE_COUNT]; /* [ranks] each, owned */
    int32_t *members[PL_GROUP_ROLE_COUNT];         /* [ranks]: group by group, in group order */
    int32_t size[PL_GROUP_ROLE_COUNT];             /* all groups of a role are equally large */
} pl_expected_groups;

pl_status pl_expected_groups_make(pl_expected_groups *out, const pl_layout *layout);
void pl_expected_groups_free(pl_expected_groups *groups);

/* The members of the group of ROLE that RANK belongs to: size[role] ranks. Borrowed. */
const int32_t *pl_expected_members(const pl_expected_groups *groups, pl_group_role role,
                                   int64_t rank);

/* Whether two roles name the same groups in the same order for every rank. */
bool pl_expected_roles_equal(const pl_expected_groups *groups, pl_group_role a, pl_group_role b);

/* Rows [begin, end) of TENSOR that RANK must hold, and the rows a buffer for it has. */
void pl_expected_rows(const pl_expected_groups *groups, const pl_layout *layout,
                      const pl_tensor *tensor, int64_t rank, int64_t *begin, int64_t *end);
int64_t pl_expected_padded_rows(const pl_expected_groups *groups, const pl_layout *layout,
                                const pl_tensor *tensor);

/* --- parameters by part (expect_parts.c) --- */

/* What the tensors of a part come to. Parts are named by subject and layer. */
typedef struct pl_expected_part {
    bool exists;
    int64_t shards;              /* size of its shard group */
    int64_t trained, frozen;     /* padded elements of one shard */
    int64_t wire_bytes;          /* of one shard */
    pl_dtype wire;               /* type it travels in; u8 when frozen and trained ones differ */
    int64_t whole, whole_frozen; /* elements held whole */
    bool cast;                   /* some tensor travels in another type than it computes in */
    bool sharded_attention, whole_attention; /* its first module has trained tensors, held so */
    bool sharded_feed, whole_feed;           /* a layer's second module has */
} pl_expected_part;

/* All parts: embedding, norm, head; layers and experts by layer.
 *
 * Modules stand in forward order: the embedding is at place 0, the attention, router or MLP, and
 * experts of layer i at 3i + 1, 3i + 2 and 3i + 3, the final norm at 3L + 1, the head after it. A
 * module needs a backward pass when its place is not below that of the first that trains. */
typedef struct pl_expected_parts {
    int32_t layers;
    bool tied;
    pl_expected_part embedding, norm, head;
    pl_expected_part *layer, *experts; /* [layers], owned */
    int32_t first_trained;             /* place of the first module that trains */
} pl_expected_parts;

pl_status pl_expected_parts_make(pl_expected_parts *out, const pl_plan *plan,
                                 const pl_expected_groups *groups);
void pl_expected_parts_free(pl_expected_parts *parts);
const pl_expected_part *pl_expected_part_of(const pl_expected_parts *parts, pl_subject subject,
                                            int32_t layer);

/* Real elements of RANK's trained tensors, and of those of one part with its frozen ones. */
int64_t pl_expected_trained_elements(const pl_plan *plan, const pl_expected_groups *groups,
                                     int64_t rank);
int64_t pl_expected_part_elements(const pl_plan *plan, const pl_expected_groups *groups,
                                  pl_subject subject, int32_t layer, bool whole, int64_t rank);
/* The same without frozen ones. */
int64_t pl_expected_part_trained(const pl_plan *plan, const pl_expected_groups *groups,
                                 pl_subject subject, int32_t layer, bool whole, int64_t rank);

/* --- programs (expect_work.c) --- */

/* Whether PROGRAM only moves values between host and device; and whether it makes the resident
 * buffers, which live before and after all others. */
bool pl_expect_moves(pl_program program);
bool pl_expect_makes(pl_program program);

/* --- what a checkpoint keeps (expect_update.c) --- */

/* A kind of buffer that save hands out and load brings in; entries that write and read it have its
 * number here as their ordinal. */
typedef struct pl_expected_saved {
    pl_buffer_kind held, host;
    bool whole;   /* of tensors that are held whole */
    bool trained; /* of trained ones alone */
} pl_expected_saved;

enum { PL_EXPECTED_SAVED = 7 };

/* NUMBER is 0 to PL_EXPECTED_SAVED - 1. Static storage. */
const pl_expected_saved *pl_expect_saved(int32_t number);

/* The number of what buffers of KIND hold or bring to the host; -1 for other kinds. */
int32_t pl_expect_saved_number(pl_buffer_kind kind);

/* --- what entries must be (expect_work.c) --- */

enum { PL_EXPECTED_USES = 12 };

/* A buffer by kind, with the numbers that complete its name. */
typedef struct pl_expected_use {
    uint8_t kind, subject;
    int32_t layer, micro_batch;
} pl_expected_use;

/* Which trained parts an entry about gradients covers. */
enum { PL_COVERS_DENSE = 1, PL_COVERS_EXPERTS = 2, PL_COVERS_IGNORED = 4, PL_COVERS_ALL = 7 };

/* What an entry of a given name must be. */
typedef struct pl_expected_entry {
    bool wanted; /* such an entry belongs in the program */
    bool free;   /* whether and how often it occurs is a matter of policy (gathers, reshards) */
    pl_stream stream;
    pl_group_role group; /* PL_GROUP_NONE: it does not communicate */
    pl_reduction reduction;
    pl_dtype wire;
    pl_predicate predicate;
    pl_scale scale;
    int reads, writes; /* used entries below; reads may be more, writes are exactly these */
    pl_expected_use read[PL_EXPECTED_USES], write[PL_EXPECTED_USES];
    unsigned reads_gradients, writes_gradients; /* PL_COVERS_... */
    bool writes_state;      /* masters (or parameters) and moments of all trained parts */
    bool writes_parameters; /* parameters of all trained parts, from their masters */
} pl_expected_entry;

typedef struct pl_sim_world pl_sim_world;

/* What the entry NAME of PROGRAM must be; wanted = false when it does not belong there. */
void pl_expect_entry(pl_expected_entry *out, const pl_sim_world *world, pl_program program,
                     const pl_entry_name *name);

/* Call VISIT with every name that might belong to PROGRAM, wanted or not, until it says false. */
void pl_expect_names(const pl_sim_world *world, pl_program program,
                     bool (*visit)(void *context, const pl_entry_name *name), void *context);

/* Whether a layer of the model has routed experts. */
bool pl_expect_moe(const pl_sim_world *world, int32_t layer);

/* Whether PASS of an exchange or module of LAYER runs: a recompute only where the policy asks,
 * a backward only where something at or below trains. */
bool pl_expect_recompute(const pl_sim_world *world, int32_t layer);

/* --- sizes (expect_sizes.c) --- */

/* Whether all sizes below fit 63 bits, by an estimate from above. A plan that was built has such
 * sizes; a header read from text may claim any. The functions below are for those that fit. */
bool pl_expect_countable(const pl_sim_world *world);

/* What a buffer must be. */
typedef struct pl_expected_buffer {
    int64_t bytes; /* of a row of R when PER_ROW */
    bool per_row;
    pl_dtype dtype;
    pl_buffer_class class_;
} pl_expected_buffer;

/* What BUFFER, of its kind and numbers, must be in PROGRAM. False for buffers that the plan must
 * not have; the class is set in any case. */
bool pl_expect_buffer(pl_expected_buffer *out, const pl_sim_world *world, pl_program program,
                      const pl_buffer *buffer);

/* FLOPs that an entry of PROGRAM must have; *PER_ROW as above. */
int64_t pl_expect_flops(const pl_sim_world *world, pl_program program, const pl_entry_name *name,
                        bool *per_row);

#ifdef __cplusplus
}
#endif
#endif
