/* clang-format off */
/* Layouts: who is where in which mesh, and who forms a group with whom.
 *
 * W ranks, pp stages (outermost), N = W/pp ranks a stage, l = rank mod N. R = replicas (HSDP).
 *
 *   kind       meshes of a stage                            l =                     data / cp index
 *   single     root (dp, cp, ep), dp = N/(cp ep)            (d cp + c) ep + e       d ep + e, c
 *   legacy     root (replicate, fsdp, ep); data (dp, cp)    (r fsdp + f) ep + e     l/cp, l mod cp
 *   decoupled  root (replicate, efsdp, ep); data (dp, cp)   (r efsdp + x) ep + e    l/cp, l mod cp
 *   folded     attention (dp, cp);                          d cp + c                d, c
 *              experts (replicate, eshard, ep);             (r eshard + x) ep + e
 *              dense (replicate, shard)
 *
 * Every mesh has pp as its outermost axis. Groups follow from meshes: a role names the axes along
 * which its members differ (design §4; reference/layouts-and-fsdp, fixtures/placements).
 * All functions but parsing are pure, O(1) in the world, and cannot fail.
 */
/* clang-format on */
#ifndef PL_COMMON_LAYOUT_H
#define PL_COMMON_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/rank_set.h"
#include "common/status.h"
#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pl_layout_kind {
    PL_LAYOUT_SINGLE,
    PL_LAYOUT_LEGACY,
    PL_LAYOUT_DECOUPLED,
    PL_LAYOUT_FOLDED,
    PL_LAYOUT_KIND_COUNT
} pl_layout_kind;

/* How the rows of a stacked expert tensor may be cut: anywhere, or between whole experts only. */
typedef enum pl_grain { PL_GRAIN_ROW, PL_GRAIN_EXPERT, PL_GRAIN_COUNT } pl_grain;

/* What a group is for. The members of a group differ in the axes of its role and in nothing else.
 * The text form is the lower-case name with '-' ("dense-shard"). */
typedef enum pl_group_role {
    PL_GROUP_NONE,           /* no group: not a communicating entry */
    PL_GROUP_WORLD,          /* all ranks */
    PL_GROUP_STAGE,          /* the N ranks of one pipeline stage: all data x cp ranks */
    PL_GROUP_PIPELINE,       /* one rank of each stage */
    PL_GROUP_DATA,           /* the index is the batch index */
    PL_GROUP_CONTEXT,        /* the index is the sequence slice */
    PL_GROUP_DENSE_SHARD,    /* dense parameters are sharded over these */
    PL_GROUP_DENSE_REPLICA,  /* ... and replicated over these */
    PL_GROUP_EXPERT_OWNER,   /* the ep group: the index is the owner of a block of experts */
    PL_GROUP_EXPERT_SHARD,   /* the owner's experts are sharded over these */
    PL_GROUP_EXPERT_REPLICA, /* ... and replicated over these */
    PL_GROUP_EXPERT_BLOCK,   /* owner x shard: together they hold every routed expert once */
    PL_GROUP_ROLE_COUNT
} pl_group_role;

enum { PL_MESH_AXES = 6, PL_LAYOUT_MESHES = 3, PL_LAYOUT_TEXT = 160 };

typedef struct pl_axis {
    const char *name; /* static */
    int64_t size, stride;
} pl_axis;

/* Axes outermost first, sizes of 1 included; strides are those of a row-major numbering. */
typedef struct pl_mesh {
    const char *name; /* "root", "data", "attention", "experts", "dense"; static */
    int axes;
    pl_axis axis[PL_MESH_AXES];
} pl_mesh;

/* A plain value: copy it freely. Made by pl_layout_parse or pl_layout_make only. */
typedef struct pl_layout {
    pl_layout_kind kind;
    pl_grain grain;
    int64_t world, pp, cp, ep, replicas; /* as given */
    int64_t stage_ranks;                 /* N */
    int64_t data_ranks;                  /* size of the data group: N/cp */
    int64_t dense_shards, dense_replicas, expert_shards, expert_replicas; /* group sizes */
    int meshes;
    pl_mesh mesh[PL_LAYOUT_MESHES];
    struct {
        int mesh;      /* which mesh the role's axes belong to */
        unsigned axes; /* bit a: mesh axis a is one along which members differ */
    } role[PL_GROUP_ROLE_COUNT];
} pl_layout;

/* Read the one notation: "KIND:world=8,pp=1,cp=1,ep=4,replicas=1,grain=row", axes left out are 1,
 * white space around words allowed. Derived axes (dp, fsdp, dp_shard, efsdp, edp) may be given
 * and are checked against what follows from the others. Errors: PL_BAD_INPUT, naming the column,
 * the two numbers of a division that is not exact and what would fit, the nearest word to an
 * unknown one, or today's spelling of a foreign key (expert_model_parallel_size, ep_size,
 * hsdp_sharding_size, sharding_strategy, ...). */
pl_status pl_layout_parse(pl_layout *out, const char *notation);

/* The same from numbers. Errors as above. */
pl_status pl_layout_make(pl_layout *out, pl_layout_kind kind, int64_t world, int64_t pp, int64_t cp,
                         int64_t ep, int64_t replicas, pl_grain grain);

/* The canonical notation (order world, pp, cp, ep, replicas, grain; defaults omitted) in BUFFER
 * of PL_LAYOUT_TEXT bytes. Returns BUFFER. pl_layout_parse reads it back to an equal layout. */
const char *pl_layout_format(const pl_layout *layout, char *buffer);

/* Layouts are equal when kind, grain and the five numbers are. */
bool pl_layout_equal(const pl_layout *a, const pl_layout *b);

/* The group of ROLE that RANK belongs to, 0 <= RANK < world. PL_GROUP_NONE gives {RANK}. */
pl_rank_set pl_layout_group(const pl_layout *layout, pl_group_role role, int64_t rank);

/* Size of the groups of ROLE (all are equally large), and RANK's index in its own. */
int64_t pl_layout_group_size(const pl_layout *layout, pl_group_role role);
int64_t pl_layout_group_index(const pl_layout *layout, pl_group_role role, int64_t rank);

/* Coordinate of RANK along axis AXIS of mesh number MESH. */
int64_t pl_layout_coordinate(const pl_layout *layout, int mesh, int axis, int64_t rank);

const char *pl_layout_kind_name(pl_layout_kind kind);
bool pl_layout_kind_parse(pl_layout_kind *out, const char *name);
const char *pl_grain_name(pl_grain grain);
const char *pl_group_role_name(pl_group_role role);
bool pl_group_role_parse(pl_group_role *out, const char *name);

#ifdef __cplusplus
}
#endif
#endif
