#include "common/layout.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/layout_rules.h"

static const char *const kind_names[PL_LAYOUT_KIND_COUNT] = {"single", "legacy", "decoupled",
                                                             "folded"};

static const char *const grain_names[PL_GRAIN_COUNT] = {"row", "expert"};

static const char *const role_names[PL_GROUP_ROLE_COUNT] = {
    "none",         "world",        "stage",          "pipeline",
    "data",         "context",      "dense-shard",    "dense-replica",
    "expert-owner", "expert-shard", "expert-replica", "expert-block"};

/* pp is axis 0 of every mesh; the meaning of the others is the mesh's own. */
enum { PP = 1U << 0, SECOND = 1U << 1, THIRD = 1U << 2, FOURTH = 1U << 3 };

/* Returns the new mesh's number; the axes after pp are given outermost first. */
static int add_mesh(pl_layout *layout, const char *name, int axes, const pl_axis *inside)
{
    pl_mesh *mesh = &layout->mesh[layout->meshes];
    mesh->name = name;
    mesh->axes = axes + 1;
    mesh->axis[0].name = "pp";
    mesh->axis[0].size = layout->pp;
    for (int a = 0; a < axes; ++a) mesh->axis[a + 1] = inside[a];
    int64_t stride = 1;
    for (int a = axes; a >= 0; --a) {
        mesh->axis[a].stride = stride;
        stride *= mesh->axis[a].size;
    }
    return layout->meshes++;
}

static void set_role(pl_layout *layout, pl_group_role role, int mesh, unsigned axes)
{
    layout->role[role].mesh = mesh;
    layout->role[role].axes = axes;
}

static void set_data_roles(pl_layout *layout, int mesh, unsigned data, unsigned context)
{
    set_role(layout, PL_GROUP_DATA, mesh, data);
    set_role(layout, PL_GROUP_CONTEXT, mesh, context);
}

/* OWNER and SHARD are axes of the mesh that holds the experts. */
static void set_expert_roles(pl_layout *layout, int mesh, unsigned owner, unsigned shard,
                             unsigned replica)
{
    set_role(layout, PL_GROUP_EXPERT_OWNER, mesh, owner);
    set_role(layout, PL_GROUP_EXPERT_SHARD, mesh, shard);
    set_role(layout, PL_GROUP_EXPERT_REPLICA, mesh, replica);
    set_role(layout, PL_GROUP_EXPERT_BLOCK, mesh, owner | shard);
}

static void set_dense_roles(pl_layout *layout, int mesh, unsigned shard, unsigned replica)
{
    set_role(layout, PL_GROUP_DENSE_SHARD, mesh, shard);
    set_role(layout, PL_GROUP_DENSE_REPLICA, mesh, replica);
}

static void build_single(pl_layout *layout)
{
    pl_axis inside[] = {
        {"dp", layout->data_ranks / layout->ep, 0}, {"cp", layout->cp, 0}, {"ep", layout->ep, 0}};
    int root = add_mesh(layout, "root", 3, inside);
    set_data_roles(layout, root, SECOND | FOURTH, THIRD);
    set_dense_roles(layout, root, SECOND | THIRD | FOURTH, 0);
    set_expert_roles(layout, root, FOURTH, SECOND | THIRD, 0);
}

static void build_data_mesh(pl_layout *layout, const char *name)
{
    pl_axis inside[] = {{"dp", layout->data_ranks, 0}, {"cp", layout->cp, 0}};
    set_data_roles(layout, add_mesh(layout, name, 2, inside), SECOND, THIRD);
}

/* legacy and decoupled: (replicate, SHARD_NAME, ep). They differ in whether dense parameters are
 * sharded over ep too, or replicated over it. */
static void build_root(pl_layout *layout, const char *shard_name, bool dense_over_ep)
{
    int64_t shards = layout->stage_ranks / layout->replicas / layout->ep;
    pl_axis inside[] = {
        {"replicate", layout->replicas, 0}, {shard_name, shards, 0}, {"ep", layout->ep, 0}};
    int root = add_mesh(layout, "root", 3, inside);
    if (dense_over_ep)
        set_dense_roles(layout, root, THIRD | FOURTH, SECOND);
    else
        set_dense_roles(layout, root, THIRD, SECOND | FOURTH);
    set_expert_roles(layout, root, FOURTH, THIRD, SECOND);
    build_data_mesh(layout, "data");
}

static void build_folded(pl_layout *layout)
{
    int64_t shards = layout->stage_ranks / layout->replicas;
    pl_axis experts[] = {{"replicate", layout->replicas, 0},
                         {"eshard", shards / layout->ep, 0},
                         {"ep", layout->ep, 0}};
    pl_axis dense[] = {{"replicate", layout->replicas, 0}, {"shard", shards, 0}};
    build_data_mesh(layout, "attention");
    set_expert_roles(layout, add_mesh(layout, "experts", 3, experts), FOURTH, THIRD, SECOND);
    set_dense_roles(layout, add_mesh(layout, "dense", 2, dense), THIRD, SECOND);
}

/* Roles that mean the same in every kind: mesh 0 covers the stage. */
static void set_common_roles(pl_layout *layout)
{
    unsigned all = (1U << layout->mesh[0].axes) - 1;
    set_role(layout, PL_GROUP_NONE, 0, 0);
    set_role(layout, PL_GROUP_WORLD, 0, all);
    set_role(layout, PL_GROUP_STAGE, 0, all & ~(unsigned)PP);
    set_role(layout, PL_GROUP_PIPELINE, 0, PP);
}

pl_status pl_layout_build(pl_layout *out, const pl_layout_request *request)
{
    PL_TRY(pl_layout_check_rules(request));
    pl_layout layout;
    memset(&layout, 0, sizeof layout);
    layout.kind = request->kind;
    layout.grain = request->grain;
    layout.world = request->number[PL_KEY_WORLD];
    layout.pp = request->number[PL_KEY_PP];
    layout.cp = request->number[PL_KEY_CP];
    layout.ep = request->number[PL_KEY_EP];
    layout.replicas = request->number[PL_KEY_REPLICAS];
    layout.stage_ranks = layout.world / layout.pp;
    layout.data_ranks = layout.stage_ranks / layout.cp;
    switch (layout.kind) {
    case PL_LAYOUT_SINGLE: build_single(&layout); break;
    case PL_LAYOUT_LEGACY: build_root(&layout, "fsdp", false); break;
    case PL_LAYOUT_DECOUPLED: build_root(&layout, "efsdp", true); break;
    case PL_LAYOUT_FOLDED: build_folded(&layout); break;
    case PL_LAYOUT_KIND_COUNT: break;
    }
    set_common_roles(&layout);
    layout.dense_shards = pl_layout_group_size(&layout, PL_GROUP_DENSE_SHARD);
    layout.dense_replicas = pl_layout_group_size(&layout, PL_GROUP_DENSE_REPLICA);
    layout.expert_shards = pl_layout_group_size(&layout, PL_GROUP_EXPERT_SHARD);
    layout.expert_replicas = pl_layout_group_size(&layout, PL_GROUP_EXPERT_REPLICA);
    *out = layout;
    return PL_OK;
}

pl_status pl_layout_make(pl_layout *out, pl_layout_kind kind, int64_t world, int64_t pp, int64_t cp,
                         int64_t ep, int64_t replicas, pl_grain grain)
{
    if ((unsigned)kind >= PL_LAYOUT_KIND_COUNT)
        return PL_FAIL(PL_BAD_INPUT, "layout: there is no kind number %d", (int)kind);
    if ((unsigned)grain >= PL_GRAIN_COUNT)
        return PL_FAIL(PL_BAD_INPUT, "layout: there is no grain number %d", (int)grain);
    pl_layout_request request = {
        .kind = kind, .grain = grain, .number = {world, pp, cp, ep, replicas}};
    return pl_layout_build(out, &request);
}

static void add_number(char *buffer, const char *key, int64_t number)
{
    size_t used = strlen(buffer);
    if (number != 1) snprintf(buffer + used, PL_LAYOUT_TEXT - used, ",%s=%" PRId64, key, number);
}

const char *pl_layout_format(const pl_layout *layout, char *buffer)
{
    snprintf(buffer, PL_LAYOUT_TEXT, "%s:world=%" PRId64, kind_names[layout->kind], layout->world);
    add_number(buffer, "pp", layout->pp);
    add_number(buffer, "cp", layout->cp);
    add_number(buffer, "ep", layout->ep);
    add_number(buffer, "replicas", layout->replicas);
    size_t used = strlen(buffer);
    if (layout->grain != PL_GRAIN_ROW)
        snprintf(buffer + used, PL_LAYOUT_TEXT - used, ",grain=%s", grain_names[layout->grain]);
    return buffer;
}

bool pl_layout_equal(const pl_layout *a, const pl_layout *b)
{
    return a->kind == b->kind && a->grain == b->grain && a->world == b->world && a->pp == b->pp &&
           a->cp == b->cp && a->ep == b->ep && a->replicas == b->replicas;
}

static int64_t coordinate(const pl_axis *axis, int64_t rank)
{
    return rank / axis->stride % axis->size;
}

pl_rank_set pl_layout_group(const pl_layout *layout, pl_group_role role, int64_t rank)
{
    const pl_mesh *mesh = &layout->mesh[layout->role[role].mesh];
    pl_rank_set set = pl_rank_set_single(rank);
    for (int a = 0; a < mesh->axes; ++a) {
        if (!(layout->role[role].axes >> a & 1U)) continue;
        set.base -= coordinate(&mesh->axis[a], rank) * mesh->axis[a].stride;
        pl_rank_set_nest(&set, mesh->axis[a].size, mesh->axis[a].stride);
    }
    return set;
}

int64_t pl_layout_group_size(const pl_layout *layout, pl_group_role role)
{
    const pl_mesh *mesh = &layout->mesh[layout->role[role].mesh];
    int64_t size = 1;
    for (int a = 0; a < mesh->axes; ++a)
        if (layout->role[role].axes >> a & 1U) size *= mesh->axis[a].size;
    return size;
}

int64_t pl_layout_group_index(const pl_layout *layout, pl_group_role role, int64_t rank)
{
    const pl_mesh *mesh = &layout->mesh[layout->role[role].mesh];
    int64_t index = 0;
    for (int a = 0; a < mesh->axes; ++a)
        if (layout->role[role].axes >> a & 1U)
            index = index * mesh->axis[a].size + coordinate(&mesh->axis[a], rank);
    return index;
}

int64_t pl_layout_coordinate(const pl_layout *layout, int mesh, int axis, int64_t rank)
{
    return coordinate(&layout->mesh[mesh].axis[axis], rank);
}

/* Number of NAME among NAMES, or -1. */
static int find_name(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; ++i)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

const char *pl_layout_kind_name(pl_layout_kind kind) { return kind_names[kind]; }
const char *pl_grain_name(pl_grain grain) { return grain_names[grain]; }
const char *pl_group_role_name(pl_group_role role) { return role_names[role]; }

bool pl_layout_kind_parse(pl_layout_kind *out, const char *name)
{
    int found = find_name(kind_names, PL_LAYOUT_KIND_COUNT, name);
    if (found >= 0) *out = (pl_layout_kind)found;
    return found >= 0;
}

bool pl_group_role_parse(pl_group_role *out, const char *name)
{
    int found = find_name(role_names, PL_GROUP_ROLE_COUNT, name);
    if (found >= 0) *out = (pl_group_role)found;
    return found >= 0;
}
