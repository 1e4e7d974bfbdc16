/* What other ranks did, repeated in the own domain with their mirrors. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/groups/mpi_domain.h"
#include "common/memory.h"

typedef enum outcome { REPEATED, LATER } outcome;

static bool is_named(const pl_mpi_head *head, const pl_group_shared *group)
{
    return head->role == group->family->role && head->generation == group->generation &&
           pl_rank_set_equal(&head->members, &group->family->members);
}

static pl_mpi_group *find_group(const pl_mpi_domain *domain, const pl_mpi_head *head)
{
    for (pl_mpi_group *group = domain->groups; group; group = group->next)
        if (is_named(head, &group->base)) return group;
    return NULL;
}

static pl_status make_no_sense(const pl_mpi_message *message, const char *why)
{
    return PL_FAIL(PL_INTERNAL, "rank %d sent a message that makes no sense: %s", message->rank,
                   why);
}

/* The handle of the sender of MESSAGE on its group; it asks for the group where it has none. */
static pl_status find_mirror(pl_mpi_domain *domain, const pl_mpi_message *message,
                             pl_group_handle **out)
{
    const pl_mpi_head *head = &message->head;
    pl_process_group *world = domain->world[message->rank], *made = NULL;
    if (!world) return make_no_sense(message, "it has closed its handle on the world");
    if (head->role == PL_GROUP_WORLD) {
        *out = (pl_group_handle *)world;
        return PL_OK;
    }
    pl_mpi_group *group = find_group(domain, head);
    const int64_t index = pl_rank_set_index(&head->members, message->rank);
    if (index < 0 || pl_rank_set_index(&head->members, domain->rank) < 0)
        return make_no_sense(message, "its group has other members");
    if (!group || !group->mirror[index]) {
        PL_TRY(pl_group_split(world, head->role, &head->members, &made));
        group = (pl_mpi_group *)((pl_group_handle *)made)->shared;
        group->mirror[index] = made;
        if (!is_named(head, &group->base))
            return make_no_sense(message, "its group is not the next of its name");
    }
    *out = (pl_group_handle *)group->mirror[index];
    return PL_OK;
}

/* Let the call of MESSAGE point to what it brought. */
static pl_status complete_call(pl_mpi_message *message, int64_t size)
{
    pl_call *call = &message->head.call;
    const char *description = pl_mpi_description(message);
    const int64_t bytes = message->head.description_bytes, data = message->head.data_bytes;
    int64_t expected = 0;
    if (bytes < 0 || data < 0 || message->bytes != (int64_t)sizeof message->head + bytes + data)
        return make_no_sense(message, "its parts are not its whole");
    call->name = &message->head.name;
    call->send = NULL;
    call->recv = NULL;
    call->send_counts = call->recv_counts = NULL;
    switch (call->collective) {
    case PL_ALL_TO_ALL_UNEVEN:
        call->send_counts = (const int64_t *)(const void *)description;
        call->recv_counts = call->send_counts + size;
        expected = 2 * size * (int64_t)sizeof(int64_t);
        break;
    case PL_SEND_RECEIVE:
        call->transfers = (const pl_transfer *)(const void *)description;
        expected = call->transfer_count * (int64_t)sizeof(pl_transfer);
        break;
    default:
        call->segments = (const pl_segment *)(const void *)description;
        expected = call->segment_count * (int64_t)sizeof(pl_segment);
    }
    return bytes == expected ? PL_OK : make_no_sense(message, "its description is not its call's");
}

/* The message becomes its group's. */
static pl_status repeat_call(pl_mpi_message *message, pl_mpi_message **link,
                             pl_group_handle *mirror)
{
    pl_mpi_group *group = (pl_mpi_group *)mirror->shared;
    pl_request request = -1;
    if (message->head.number != group->base.member[mirror->base.index].posted)
        return make_no_sense(message, "its call is not the next one");
    PL_TRY(complete_call(message, group->base.size));
    *link = message->next;
    pl_mpi_keep(group, mirror->base.index, message);
    ++group->events;
    return pl_group_post(mirror, &message->head.call, &request);
}

/* Whether all calls that RANK started in any group are done here. */
static bool is_through(const pl_mpi_domain *domain, int rank)
{
    for (const pl_mpi_group *group = domain->groups; group; group = group->next) {
        int64_t index = pl_rank_set_index(&group->base.family->members, rank);
        if (index >= 0 && group->base.member[index].posted > group->base.head) return false;
    }
    return true;
}

static outcome repeat_close(pl_mpi_domain *domain, const pl_mpi_message *message,
                            pl_group_handle *mirror)
{
    pl_mpi_group *group = (pl_mpi_group *)mirror->shared;
    const bool world = message->head.role == PL_GROUP_WORLD;
    if (world ? !is_through(domain, message->rank) : group->base.head < message->head.number)
        return LATER;
    group->mirror[mirror->base.index] = NULL;
    if (world) domain->world[message->rank] = NULL;
    pl_group_leave(mirror);
    pl_group_drop(mirror);
    return REPEATED;
}

/* Repeat MESSAGE, to which LINK points, and take it out unless it has to wait. */
static pl_status repeat(pl_mpi_domain *domain, pl_mpi_message *message, pl_mpi_message **link,
                        outcome *out)
{
    pl_group_handle *mirror = NULL;
    *out = REPEATED;
    PL_TRY(find_mirror(domain, message, &mirror));
    if (message->head.kind == PL_MPI_CALL) return repeat_call(message, link, mirror);
    *out = repeat_close(domain, message, mirror);
    if (*out == LATER) return PL_OK;
    *link = message->next;
    pl_free(message);
    return PL_OK;
}

static pl_status has_arrived(pl_mpi_message *message, bool *out)
{
    int whole = 1;
    if (message->request != MPI_REQUEST_NULL)
        PL_TRY(pl_mpi_check(MPI_Test(&message->request, &whole, MPI_STATUS_IGNORE), "MPI_Test"));
    *out = whole;
    return PL_OK;
}

pl_status pl_mpi_repeat(pl_mpi_domain *domain)
{
    const int64_t pass = ++domain->pass;
    pl_mpi_message **link = &domain->incoming;
    while (*link) {
        pl_mpi_message *message = *link;
        bool arrived = false;
        outcome done = LATER;
        PL_TRY(has_arrived(message, &arrived));
        if (arrived && message->head.kind == PL_MPI_FAILURE) {
            if (!domain->reported) domain->reported = message;
        } else if (arrived && domain->blocked[message->rank] != pass) {
            PL_TRY(repeat(domain, message, link, &done));
        }
        if (domain->base.failure != PL_OK) return PL_OK;
        if (done == REPEATED) {
            ++domain->events;
            continue;
        }
        domain->blocked[message->rank] = pass;
        link = &message->next;
    }
    return PL_OK;
}

void pl_mpi_take_report(pl_mpi_domain *domain)
{
    if (!domain->reported || domain->base.failure != PL_OK) return;
    char words[sizeof domain->base.failure_words];
    const pl_mpi_head *head = &domain->reported->head;
    const pl_mpi_group *group = head->role == PL_GROUP_NONE ? NULL : find_group(domain, head);
    snprintf(words, sizeof words, "%s", pl_mpi_data(domain->reported));
    domain->told = true; /* by that rank */
    pl_group_domain_fail(&domain->base, head->status, group ? group->base.serial : -1, words);
}
