#include "common/group_domain.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/memory.h"

static pl_group_family *find_family(const pl_group_domain *domain, pl_group_role role,
                                    const pl_rank_set *members, size_t bucket)
{
    for (pl_group_family *family = domain->buckets[bucket]; family; family = family->next)
        if (family->role == role && pl_rank_set_equal(&family->members, members)) return family;
    return NULL;
}

/* FNV-1a over whole numbers: members of one role differ in the base most of all. */
static size_t bucket_of(pl_group_role role, const pl_rank_set *members, size_t buckets)
{
    uint64_t hash = 14695981039346656037u;
    hash = (hash ^ (uint64_t)role) * 1099511628211u;
    hash = (hash ^ (uint64_t)members->base) * 1099511628211u;
    for (int i = 0; i < members->axes; ++i) {
        hash = (hash ^ (uint64_t)members->axis[i].count) * 1099511628211u;
        hash = (hash ^ (uint64_t)members->axis[i].stride) * 1099511628211u;
    }
    return (size_t)(hash ^ (hash >> 32)) & (buckets - 1);
}

static pl_status grow_buckets(pl_group_domain *domain)
{
    size_t count = domain->bucket_count ? 2 * domain->bucket_count : 16;
    pl_group_family **buckets = NULL;
    PL_TRY(pl_allocate(&buckets, count, sizeof(pl_group_family *), "process groups"));
    for (size_t i = 0; i < domain->bucket_count; ++i) {
        for (pl_group_family *family = domain->buckets[i], *next = NULL; family; family = next) {
            size_t bucket = bucket_of(family->role, &family->members, count);
            next = family->next;
            family->next = buckets[bucket];
            buckets[bucket] = family;
        }
    }
    pl_free(domain->buckets);
    domain->buckets = buckets;
    domain->bucket_count = count;
    return PL_OK;
}

static pl_status get_family(pl_group_domain *domain, pl_group_role role, const pl_rank_set *members,
                            pl_group_family **out)
{
    if (domain->families >= domain->bucket_count) PL_TRY(grow_buckets(domain));
    size_t bucket = bucket_of(role, members, domain->bucket_count);
    pl_group_family *family = find_family(domain, role, members, bucket);
    if (!family) {
        size_t size = (size_t)pl_rank_set_size(members);
        int64_t *closed = NULL;
        PL_TRY(pl_allocate(&closed, size, sizeof *closed, "a process group"));
        pl_status status = pl_allocate(&family, 1, sizeof *family, "a process group");
        if (status != PL_OK) {
            pl_free(closed);
            return status;
        }
        family->role = role;
        family->members = *members;
        family->closed = closed;
        family->next = domain->buckets[bucket];
        domain->buckets[bucket] = family;
        ++domain->families;
    }
    *out = family;
    return PL_OK;
}

static void free_slot(pl_group_slot *slot)
{
    pl_free(slot->posted);
    pl_free(slot);
}

static void free_group_memory(pl_group_shared *group)
{
    for (int64_t number = group->base; number < group->end; ++number)
        free_slot(group->slots[number & (group->capacity - 1)]);
    for (pl_group_slot *slot = group->free_slots, *next = NULL; slot; slot = next) {
        next = slot->next_free;
        free_slot(slot);
    }
    pl_free(group->slots);
    pl_free(group->member);
    pl_free(group->offsets);
    pl_free(group);
}

static void free_group(pl_group_shared *group)
{
    const pl_group_hooks *hooks = group->domain->hooks;
    pl_group_shared **link = &group->family->live;
    while (*link != group) link = &(*link)->next;
    *link = group->next;
    if (group->domain->world == group) group->domain->world = NULL;
    if (hooks->close) hooks->close(group);
    free_group_memory(group);
}

static pl_status make_group(pl_group_domain *domain, pl_group_family *family, int64_t generation,
                            pl_group_shared **out)
{
    pl_group_shared *group = NULL;
    pl_status status = PL_OK;
    size_t size = (size_t)pl_rank_set_size(&family->members);
    PL_TRY(pl_allocate(&group, 1, domain->hooks->group_bytes, "a process group"));
    group->domain = domain;
    group->family = family;
    group->generation = generation;
    group->serial = domain->serials++;
    group->size = (int64_t)size;
    PL_TRY_TO(status, failed,
              pl_allocate(&group->member, size, sizeof *group->member, "a process group"));
    PL_TRY_TO(status, failed,
              pl_allocate(&group->offsets, size, sizeof *group->offsets, "a process group"));
    if (domain->hooks->open) PL_TRY_TO(status, failed, domain->hooks->open(group));
    group->next = family->live;
    family->live = group;
    *out = group;
    return PL_OK;
failed:
    free_group_memory(group);
    return status;
}

static pl_status make_handle(pl_group_shared *group, int64_t index, pl_process_group **out)
{
    pl_group_handle *handle = NULL;
    PL_TRY(pl_allocate(&handle, 1, sizeof *handle, "a process group's handle"));
    handle->base.backend = group->domain->backend;
    handle->base.role = group->family->role;
    handle->base.members = group->family->members;
    handle->base.rank = pl_rank_set_member(&group->family->members, index);
    handle->base.index = index;
    handle->base.size = group->size;
    handle->shared = group;
    ++group->member[index].handles;
    ++group->domain->handles;
    *out = &handle->base;
    return PL_OK;
}

pl_status pl_group_split(pl_process_group *world, pl_group_role role, const pl_rank_set *members,
                         pl_process_group **out)
{
    pl_group_domain *domain = ((pl_group_handle *)world)->shared->domain;
    pl_group_family *family = NULL;
    int64_t index = pl_rank_set_index(members, world->rank);
    PL_TRY(get_family(domain, role, members, &family));
    pl_group_shared *group = family->live;
    while (group && group->generation != family->closed[index]) group = group->next;
    bool made = !group;
    if (made) PL_TRY(make_group(domain, family, family->closed[index], &group));
    pl_status status = make_handle(group, index, out);
    if (status != PL_OK && made) free_group(group);
    return status;
}

static pl_status open_world(pl_group_domain *domain, pl_process_group **out)
{
    pl_group_family *family = NULL;
    pl_rank_set members = pl_rank_set_single(0);
    pl_rank_set_nest(&members, domain->ranks, 1);
    PL_TRY(pl_allocate(&domain->left, (size_t)domain->ranks, sizeof *domain->left, "ranks"));
    PL_TRY(get_family(domain, PL_GROUP_WORLD, &members, &family));
    PL_TRY(make_group(domain, family, 0, &domain->world));
    for (int64_t rank = 0; rank < domain->ranks; ++rank) {
        pl_status status = make_handle(domain->world, rank, &out[rank]);
        if (status == PL_OK) continue;
        while (rank-- > 0) pl_free(out[rank]);
        return status;
    }
    return PL_OK;
}

pl_status pl_group_domain_open(pl_group_domain *domain, const pl_process_group_backend *backend,
                               const pl_group_hooks *hooks, int64_t ranks, pl_process_group **out)
{
    if (ranks < 1 || ranks > INT32_MAX)
        return PL_FAIL(PL_BAD_INPUT,
                       "backend %s: %" PRId64 " ranks asked for; 1 to %" PRId32 " are possible",
                       backend->name, ranks, INT32_MAX);
    domain->backend = backend;
    domain->hooks = hooks;
    domain->ranks = ranks;
    pl_process_group **handles = NULL;
    PL_TRY(pl_allocate(&handles, (size_t)ranks, sizeof(pl_process_group *), "handles of ranks"));
    pl_status status = open_world(domain, handles);
    if (status == PL_OK)
        memcpy(out, handles, (size_t)ranks * sizeof(pl_process_group *));
    else
        pl_group_domain_close(domain);
    pl_free(handles);
    return status;
}

void pl_group_domain_close(pl_group_domain *domain)
{
    for (size_t i = 0; i < domain->bucket_count; ++i) {
        for (pl_group_family *family = domain->buckets[i], *next = NULL; family; family = next) {
            next = family->next;
            while (family->live) free_group(family->live);
            pl_free(family->closed);
            pl_free(family);
        }
    }
    pl_free(domain->buckets);
    pl_free(domain->left);
}

/* Call VISIT for every group there is. */
static void for_each_group(pl_group_domain *domain, void (*visit)(pl_group_shared *, int64_t),
                           int64_t argument)
{
    for (size_t i = 0; i < domain->bucket_count; ++i)
        for (pl_group_family *family = domain->buckets[i]; family; family = family->next)
            for (pl_group_shared *group = family->live; group; group = group->next)
                visit(group, argument);
}

static void tell(pl_group_shared *group, int64_t argument)
{
    (void)argument;
    if (group->domain->hooks->changed) group->domain->hooks->changed(group);
}

void pl_group_domain_fail(pl_group_domain *domain, pl_status status, int64_t serial,
                          const char *words)
{
    if (domain->failure != PL_OK) return;
    domain->failure = status == PL_OK ? PL_INTERNAL : status;
    domain->failure_serial = serial;
    snprintf(domain->failure_words, sizeof domain->failure_words, "%s", words);
    for_each_group(domain, tell, 0);
}

void pl_group_fail_rank(pl_group_handle *handle, pl_status status, const char *words)
{
    pl_group_domain *domain = handle->shared->domain;
    if (domain->failure != PL_OK) return;
    char text[sizeof domain->failure_words];
    snprintf(text, sizeof text, "rank %" PRId64 " failed (%s): %s", handle->base.rank,
             pl_status_name(status), words ? words : "it gave no reason");
    pl_group_domain_fail(domain, PL_PEER_FAILED, -1, text);
}

/* INDEX of GROUP left. Its own calls that are not done never will be, nor will those that others
 * have posted and it has not. */
static void fail_unfinished(pl_group_shared *group, int64_t index)
{
    int64_t posted = group->member[index].posted;
    if (group->domain->failure != PL_OK || (posted <= group->head && group->end <= posted)) return;
    const pl_group_slot *slot = group->slots[group->head & (group->capacity - 1)];
    pl_text text = {0};
    pl_text_add(&text, "rank %" PRId64 " closed its handle before the end of ",
                pl_rank_set_member(&group->family->members, index));
    pl_call_print(&text, &slot->posted[slot->first].call);
    pl_text_add_string(&text, " in ");
    pl_group_print(&text, group->family->role, &group->family->members);
    pl_group_domain_fail(group->domain, PL_PEER_FAILED, group->serial, pl_text_string(&text));
    pl_text_free(&text);
}

static void fail_unfinished_of_rank(pl_group_shared *group, int64_t rank)
{
    int64_t index = pl_rank_set_index(&group->family->members, rank);
    if (index >= 0) fail_unfinished(group, index);
}

void pl_group_leave(pl_group_handle *handle)
{
    pl_group_shared *group = handle->shared;
    pl_group_domain *domain = group->domain;
    pl_group_member *member = &group->member[handle->base.index];
    if (--member->handles > 0) return;
    handle->last = member->gone = true;
    ++group->gone;
    fail_unfinished(group, handle->base.index);
    if (group != domain->world) return;
    domain->left[handle->base.rank] = true;
    ++domain->left_count;
    for_each_group(domain, fail_unfinished_of_rank, handle->base.rank);
}

bool pl_group_drop(pl_group_handle *handle)
{
    pl_group_shared *group = handle->shared;
    pl_group_domain *domain = group->domain;
    if (handle->last) {
        ++group->family->closed[handle->base.index];
        if (++group->dropped == group->size) free_group(group);
    }
    pl_free(handle);
    return --domain->handles == 0;
}
