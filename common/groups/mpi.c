/* Ranks are processes: backend mpi. common/groups/mpi_domain.h says how it works. */
#include "common/call_note.h"
#include "common/groups/mpi_domain.h"
#include "common/memory.h"

/* How long to go on after a failure, so that the others learn of it and no more data comes; and
 * how long to let messages go that were sent last. */
static const double SETTLE_SECONDS = 0.3;

static pl_mpi_domain *domain_of(const pl_process_group *group)
{
    return pl_mpi_domain_of((const pl_mpi_group *)((const pl_group_handle *)group)->shared);
}

pl_status pl_mpi_check(int code, const char *what)
{
    char words[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;
    if (code == MPI_SUCCESS) return PL_OK;
    if (MPI_Error_string(code, words, &length) != MPI_SUCCESS) length = 0;
    words[length] = '\0';
    return PL_FAIL(PL_PEER_FAILED, "%s: error %d: %s", what, code, words);
}

/* --- going on, and stopping --- */

/* Take in, repeat, move and free once. */
static pl_status go_on(pl_mpi_domain *domain)
{
    PL_TRY(pl_mpi_receive(domain));
    PL_TRY(pl_mpi_repeat(domain));
    for (pl_mpi_group *group = domain->groups; group; group = group->next) {
        const int64_t before = group->events;
        PL_TRY(pl_mpi_advance(group));
        domain->events += group->events - before;
    }
    if (domain->outgoing) pl_mpi_reclaim(domain);
    return PL_OK;
}

bool pl_mpi_progress(pl_mpi_domain *domain)
{
    const int64_t before = domain->events;
    if (domain->base.failure != PL_OK) return false;
    const pl_status status = go_on(domain);
    if (status != PL_OK) pl_group_fail_rank(domain->base.local, status, pl_error_text());
    pl_mpi_take_report(domain);
    return domain->events != before;
}

/* Whether the words of a failure are on their way to all, and nothing is written to buffers. */
static bool is_settled(pl_mpi_domain *domain)
{
    int told = 1;
    if (MPI_Testall(domain->ranks, domain->failure_requests, &told, MPI_STATUSES_IGNORE) !=
        MPI_SUCCESS)
        told = 1;
    for (pl_mpi_group *group = domain->groups; group; group = group->next)
        if (!pl_mpi_is_quiet(group)) told = 0;
    pl_mpi_reclaim(domain);
    return told;
}

/* After anything that may fail: tell the others once, and take receives back, so that buffers are
 * free when the caller hears of it. From then on no MPI function is called. */
static void settle(pl_mpi_domain *domain)
{
    int rests = 0;
    if (domain->base.failure == PL_OK || domain->settled) return;
    domain->settled = true;
    if (!domain->told) pl_mpi_tell_failure(domain);
    domain->told = true;
    for (pl_mpi_group *group = domain->groups; group; group = group->next) pl_mpi_cancel(group);
    const double end = pl_mpi_now() + SETTLE_SECONDS;
    while (!is_settled(domain) && pl_mpi_now() < end) pl_mpi_rest(&rests);
}

/* --- the backend --- */

/* Take in what has arrived. MPI finds a message only after it was called a few times. */
static void catch_up(pl_mpi_domain *domain)
{
    enum { QUIET_CALLS = 4 };
    for (int quiet = 0; quiet < QUIET_CALLS && domain->base.failure == PL_OK;)
        quiet = pl_mpi_progress(domain) ? 0 : quiet + 1;
}

static pl_status mpi_start(pl_process_group *group, const pl_call *call, pl_request *request_out)
{
    pl_group_handle *handle = (pl_group_handle *)group;
    pl_mpi_domain *domain = domain_of(group);
    pl_request request = -1;
    catch_up(domain);
    pl_status status = pl_group_post(handle, call, &request);
    if (status == PL_OK) {
        status = pl_mpi_tell_call((pl_mpi_group *)handle->shared, call, request);
        if (status != PL_OK) pl_group_fail_rank(handle, status, pl_error_text());
    }
    if (status == PL_OK) {
        pl_call_note(group, call);
        pl_mpi_progress(domain);
        *request_out = request;
    }
    settle(domain);
    return status;
}

static pl_status mpi_wait(pl_process_group *group, pl_request request)
{
    pl_group_handle *handle = (pl_group_handle *)group;
    PL_TRY(pl_group_check_request(handle, request));
    if (!pl_group_is_done(handle->shared, request)) pl_mpi_wait_for(handle, request);
    settle(domain_of(group));
    return pl_group_finish(handle, request);
}

static pl_status mpi_split(pl_process_group *world, pl_group_role role, const pl_rank_set *members,
                           pl_process_group **out)
{
    PL_TRY(pl_group_split(world, role, members, out));
    ++domain_of(world)->local_handles;
    return PL_OK;
}

static void mpi_fail(pl_process_group *group, pl_status status, const char *words)
{
    pl_group_fail_rank((pl_group_handle *)group, status, words);
    settle(domain_of(group));
}

static void free_messages(pl_mpi_message *message)
{
    for (pl_mpi_message *next = NULL; message; message = next) {
        next = message->next;
        /* What MPI may still look at stays: the process is about to end. */
        if (message->request == MPI_REQUEST_NULL) pl_free(message);
    }
}

void pl_mpi_free_domain(pl_mpi_domain *domain)
{
    for (const pl_mpi_group *group = domain->groups; group; group = group->next)
        for (int64_t i = 0; group->base.family->role != PL_GROUP_WORLD && i < group->base.size; ++i)
            if (group->mirror[i]) pl_group_drop((pl_group_handle *)group->mirror[i]);
    for (int i = 0; domain->opened && i < domain->ranks; ++i)
        if (domain->world[i]) pl_group_drop((pl_group_handle *)domain->world[i]);
    if (domain->opened) pl_group_domain_close(&domain->base);
    free_messages(domain->incoming);
    free_messages(domain->outgoing);
    bool told = true;
    for (int i = 0; domain->failure_requests && i < domain->ranks; ++i)
        told = told && domain->failure_requests[i] == MPI_REQUEST_NULL;
    if (told) pl_free(domain->failure);
    pl_free(domain->failure_requests);
    pl_free(domain->world);
    pl_free(domain->blocked);
    pl_free(domain->processes);
    pl_free(domain);
}

/* Let what was sent last go, as far as the others take it. */
static void flush_messages(pl_mpi_domain *domain)
{
    int rests = 0;
    const double end = pl_mpi_now() + SETTLE_SECONDS;
    pl_mpi_reclaim(domain);
    while (domain->outgoing && pl_mpi_now() < end) {
        pl_mpi_rest(&rests);
        pl_mpi_reclaim(domain);
    }
}

static void mpi_close(pl_process_group *group)
{
    pl_group_handle *handle = (pl_group_handle *)group;
    pl_mpi_domain *domain = domain_of(group);
    const pl_group_member *member = &handle->shared->member[group->index];
    pl_mpi_head head = {.kind = PL_MPI_CLOSE, .number = member->posted};
    const bool last = member->handles == 1;
    pl_mpi_name_group(&head, handle->shared);
    pl_group_leave(handle);
    if (last && domain->base.failure == PL_OK && !domain->finishing) {
        const pl_status status = pl_mpi_tell_close(domain, &head);
        if (status != PL_OK) pl_group_fail_rank(handle, status, pl_error_text());
    }
    settle(domain);
    pl_group_drop(handle);
    if (--domain->local_handles > 0) return;
    domain->world[domain->rank] = NULL;
    if (!domain->settled) flush_messages(domain);
    if (!domain->finishing) pl_mpi_free_domain(domain);
}

const pl_process_group_backend pl_mpi_backend = {.name = "mpi",
                                                 .start = mpi_start,
                                                 .wait = mpi_wait,
                                                 .split = mpi_split,
                                                 .fail = mpi_fail,
                                                 .close = mpi_close};

static void close_group(pl_group_shared *shared)
{
    pl_mpi_group *group = (pl_mpi_group *)shared;
    pl_mpi_group **link = &pl_mpi_domain_of(group)->groups;
    bool quiet = true;
    while (*link && *link != group) link = &(*link)->next;
    if (*link) *link = group->next;
    for (int64_t i = 0; i < shared->size; ++i) {
        for (pl_mpi_message *message = group->first ? group->first[i] : NULL, *next = NULL; message;
             message = next) {
            next = message->next;
            pl_free(message);
        }
        if (group->receive) quiet = quiet && group->receive[i].request == MPI_REQUEST_NULL;
    }
    if (quiet) pl_free(group->scratch); /* else MPI may still write to it */
    pl_free(group->mirror);
    pl_free(group->first);
    pl_free(group->last);
    pl_free(group->send);
    pl_free(group->receive);
    pl_free(group->view);
}

static pl_status allocate_group(pl_mpi_group *group)
{
    const size_t size = (size_t)group->base.size;
    const char *what = "a process group";
    PL_TRY(pl_allocate(&group->mirror, size, sizeof(pl_process_group *), what));
    PL_TRY(pl_allocate(&group->first, size, sizeof(pl_mpi_message *), what));
    PL_TRY(pl_allocate(&group->last, size, sizeof(pl_mpi_message *), what));
    PL_TRY(pl_allocate(&group->receive, size, sizeof *group->receive, what));
    for (size_t i = 0; i < size; ++i) group->receive[i].request = MPI_REQUEST_NULL;
    PL_TRY(pl_allocate(&group->send, size, sizeof *group->send, what));
    for (size_t i = 0; i < size; ++i) group->send[i].request = MPI_REQUEST_NULL;
    return pl_allocate(&group->view, size, sizeof *group->view, what);
}

static pl_status open_group(pl_group_shared *shared)
{
    pl_mpi_group *group = (pl_mpi_group *)shared;
    pl_mpi_domain *domain = pl_mpi_domain_of(group);
    pl_status status = allocate_group(group);
    group->own = pl_rank_set_index(&shared->family->members, domain->rank);
    if (status != PL_OK) {
        close_group(shared);
        return status;
    }
    group->next = domain->groups;
    domain->groups = group;
    return PL_OK;
}

const pl_group_hooks pl_mpi_hooks = {
    .group_bytes = sizeof(pl_mpi_group), .open = open_group, .close = close_group};
