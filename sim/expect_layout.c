/* Groups and rows by the checkers' own arithmetic, from the table of design §4. */
#include <string.h>

#include "common/memory.h"
#include "sim/expect.h"

/* A rank's coordinates, whatever the kind; those that a kind lacks are 0. */
typedef struct coordinates {
    int64_t stage, local;
    int64_t data, context;           /* batch index, sequence slice */
    int64_t replica, shard, owner;   /* of experts: R copies, shard inside an owner, owner */
    int64_t dense_shard, dense_copy; /* of dense parameters */
} coordinates;

static coordinates find(const pl_layout *l, int64_t rank)
{
    coordinates c = {0};
    int64_t n = l->world / l->pp;
    c.stage = rank / n;
    c.local = rank - c.stage * n;
    c.owner = c.local % l->ep;
    int64_t outer = c.local / l->ep; /* what is left when ep, the fastest axis, is taken off */
    int64_t shards = n / l->ep / l->replicas;
    c.shard = outer % shards;
    c.replica = outer / shards;
    if (l->kind == PL_LAYOUT_SINGLE) {
        c.context = outer % l->cp;
        c.data = outer / l->cp * l->ep + c.owner;
        c.dense_shard = c.local;
    } else {
        c.data = c.local / l->cp;
        c.context = c.local % l->cp;
        c.dense_shard = c.local % (n / l->replicas);
        c.dense_copy = c.replica;
    }
    if (l->kind == PL_LAYOUT_LEGACY) {
        /* dense parameters live on fsdp alone: every owner, and every replica, has a copy */
        c.dense_shard = c.shard;
        c.dense_copy = l->replicas > 1 ? c.replica : c.owner;
    }
    return c;
}

/* A number that all members of RANK's group share and others do not, and the index in it. */
static int64_t group_key(const pl_layout *l, pl_group_role role, const coordinates *c,
                         int64_t *index)
{
    int64_t n = l->world / l->pp, stage = c->stage * n;
    bool single = l->kind == PL_LAYOUT_SINGLE;
    int64_t shards = n / l->ep / l->replicas;
    switch (role) {
    case PL_GROUP_WORLD: *index = stage + c->local; return 0;
    case PL_GROUP_STAGE: *index = c->local; return stage;
    case PL_GROUP_PIPELINE: *index = c->stage; return c->local;
    case PL_GROUP_DATA: *index = c->data; return stage + c->context;
    case PL_GROUP_CONTEXT: *index = c->context; return stage + c->data;
    case PL_GROUP_DENSE_SHARD: *index = c->dense_shard; return stage + c->dense_copy;
    case PL_GROUP_DENSE_REPLICA:
        *index = c->dense_copy;
        return stage + (single ? c->local : c->dense_shard);
    case PL_GROUP_EXPERT_OWNER: *index = c->owner; return stage + c->replica * shards + c->shard;
    case PL_GROUP_EXPERT_SHARD: *index = c->shard; return stage + c->replica * l->ep + c->owner;
    case PL_GROUP_EXPERT_REPLICA: *index = c->replica; return stage + c->shard * l->ep + c->owner;
    case PL_GROUP_EXPERT_BLOCK: *index = c->shard * l->ep + c->owner; return stage + c->replica;
    default: *index = 0; return stage + c->local;
    }
}

static int32_t group_size(const pl_layout *l, pl_group_role role)
{
    int64_t n = l->world / l->pp, size = 1;
    bool legacy = l->kind == PL_LAYOUT_LEGACY;
    switch (role) {
    case PL_GROUP_WORLD: size = l->world; break;
    case PL_GROUP_STAGE: size = n; break;
    case PL_GROUP_PIPELINE: size = l->pp; break;
    case PL_GROUP_DATA: size = n / l->cp; break;
    case PL_GROUP_CONTEXT: size = l->cp; break;
    case PL_GROUP_DENSE_SHARD: size = legacy ? n / l->ep / l->replicas : n / l->replicas; break;
    case PL_GROUP_DENSE_REPLICA: size = legacy ? l->ep * l->replicas : l->replicas; break;
    case PL_GROUP_EXPERT_OWNER: size = l->ep; break;
    case PL_GROUP_EXPERT_SHARD: size = n / l->ep / l->replicas; break;
    case PL_GROUP_EXPERT_REPLICA: size = l->replicas; break;
    case PL_GROUP_EXPERT_BLOCK: size = n / l->replicas; break;
    default: break;
    }
    return (int32_t)size;
}

static pl_status fill_role(pl_expected_groups *groups, const pl_layout *layout, pl_group_role role)
{
    int64_t ranks = groups->ranks;
    int32_t *number = NULL, count = 0;
    PL_TRY(pl_allocate(&groups->place[role], (size_t)ranks, sizeof(pl_expected_place), "groups"));
    PL_TRY(pl_allocate(&groups->members[role], (size_t)ranks, sizeof(int32_t), "groups"));
    PL_TRY(pl_allocate(&number, (size_t)ranks, sizeof *number, "groups"));
    groups->size[role] = group_size(layout, role);
    for (int64_t rank = 0; rank < ranks; ++rank) {
        coordinates c = find(layout, rank);
        int64_t index = 0, key = group_key(layout, role, &c, &index);
        if (!number[key]) number[key] = ++count;
        pl_expected_place *place = &groups->place[role][rank];
        *place = (pl_expected_place){number[key] - 1, (int32_t)index, groups->size[role]};
        groups->members[role][(int64_t)place->group * place->size + index] = (int32_t)rank;
    }
    pl_free(number);
    return PL_OK;
}

pl_status pl_expected_groups_make(pl_expected_groups *out, const pl_layout *layout)
{
    pl_expected_groups groups = {.ranks = layout->world};
    pl_status status = PL_OK;
    for (int role = 0; role < PL_GROUP_ROLE_COUNT && status == PL_OK; ++role)
        status = fill_role(&groups, layout, (pl_group_role)role);
    if (status != PL_OK)
        pl_expected_groups_free(&groups);
    else
        *out = groups;
    return status;
}

void pl_expected_groups_free(pl_expected_groups *groups)
{
    for (int role = 0; role < PL_GROUP_ROLE_COUNT; ++role) {
        pl_free(groups->place[role]);
        pl_free(groups->members[role]);
    }
    memset(groups, 0, sizeof *groups);
}

const int32_t *pl_expected_members(const pl_expected_groups *groups, pl_group_role role,
                                   int64_t rank)
{
    const pl_expected_place *place = &groups->place[role][rank];
    return groups->members[role] + (int64_t)place->group * place->size;
}

bool pl_expected_roles_equal(const pl_expected_groups *groups, pl_group_role a, pl_group_role b)
{
    if (a == b) return true;
    if (groups->size[a] != groups->size[b]) return false;
    for (int64_t rank = 0; rank < groups->ranks; ++rank) {
        if (groups->place[a][rank].index != groups->place[b][rank].index) return false;
        if (pl_expected_members(groups, a, rank)[0] != pl_expected_members(groups, b, rank)[0])
            return false;
    }
    return true;
}

/* --- rows --- */

/* Piece INDEX of COUNT when ITEMS are handed out in equal pieces, the last ones short. */
static void piece(int64_t items, int64_t count, int64_t index, int64_t *begin, int64_t *end)
{
    int64_t each = items / count + (items % count > 0);
    int64_t left = items - each * index;
    if (left < 0) left = 0;
    *begin = items - left;
    *end = *begin + (left < each ? left : each);
}

void pl_expected_rows(const pl_expected_groups *groups, const pl_layout *layout,
                      const pl_tensor *tensor, int64_t rank, int64_t *begin, int64_t *end)
{
    if (tensor->class_ == PL_CLASS_IGNORED) {
        *begin = 0;
        *end = tensor->experts > 0 ? tensor->experts * tensor->rows : tensor->rows;
    } else if (tensor->class_ == PL_CLASS_DENSE) {
        const pl_expected_place *place = &groups->place[PL_GROUP_DENSE_SHARD][rank];
        piece(tensor->rows, place->size, place->index, begin, end);
    } else {
        const pl_expected_place *place = &groups->place[PL_GROUP_EXPERT_SHARD][rank];
        int64_t own = tensor->experts / layout->ep;
        int64_t first = own * groups->place[PL_GROUP_EXPERT_OWNER][rank].index * tensor->rows;
        int64_t unit = layout->grain == PL_GRAIN_EXPERT ? tensor->rows : 1;
        piece(own * tensor->rows / unit, place->size, place->index, begin, end);
        *begin = first + *begin * unit;
        *end = first + *end * unit;
    }
}

int64_t pl_expected_padded_rows(const pl_expected_groups *groups, const pl_layout *layout,
                                const pl_tensor *tensor)
{
    /* The first member of a shard group holds a whole chunk. */
    int64_t begin = 0, end = 0;
    pl_expected_rows(groups, layout, tensor, 0, &begin, &end);
    return end - begin;
}
