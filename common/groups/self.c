/* One rank: every call is complete when it is posted, and moves its data at once. */
#include "common/call_note.h"
#include "common/group_domain.h"
#include "common/memory.h"

static void move_all(pl_group_shared *group)
{
    pl_call_part part;
    while (pl_group_take_part(group, &part)) {
        pl_call_move(&part, pl_reduce_elements);
        pl_group_part_done(group);
    }
}

static pl_status self_start(pl_process_group *group, const pl_call *call, pl_request *request_out)
{
    pl_group_handle *handle = (pl_group_handle *)group;
    PL_TRY(pl_group_post(handle, call, request_out));
    pl_call_note(group, call);
    move_all(handle->shared);
    return PL_OK;
}

static pl_status self_wait(pl_process_group *group, pl_request request)
{
    pl_group_handle *handle = (pl_group_handle *)group;
    PL_TRY(pl_group_check_request(handle, request));
    return pl_group_finish(handle, request);
}

static void self_fail(pl_process_group *group, pl_status status, const char *words)
{
    pl_group_fail_rank((pl_group_handle *)group, status, words);
}

static void self_close(pl_process_group *group)
{
    pl_group_handle *handle = (pl_group_handle *)group;
    pl_group_domain *domain = handle->shared->domain;
    pl_group_leave(handle);
    if (!pl_group_drop(handle)) return;
    pl_group_domain_close(domain);
    pl_free(domain);
}

static const pl_process_group_backend backend = {.name = "self",
                                                 .start = self_start,
                                                 .wait = self_wait,
                                                 .split = pl_group_split,
                                                 .fail = self_fail,
                                                 .close = self_close};

static const pl_group_hooks hooks = {.group_bytes = sizeof(pl_group_shared)};

pl_status pl_group_self_open(pl_process_group **out)
{
    pl_group_domain *domain = NULL;
    PL_TRY(pl_allocate(&domain, 1, sizeof *domain, "a process group"));
    pl_status status = pl_group_domain_open(domain, &backend, &hooks, 1, out);
    if (status != PL_OK) pl_free(domain);
    return status;
}
