#include "common/process_group.h"

#include <inttypes.h>
#include <string.h>

#include "common/call_check.h"
#include "common/call_match.h"

static const char *const collective_names[PL_COLLECTIVE_COUNT] = {
    "all-gather",        "reduce-scatter", "all-reduce", "all-to-all",
    "all-to-all-uneven", "send-receive",   "broadcast",  "barrier"};

static const char *const reduction_names[PL_REDUCTION_COUNT] = {"-", "sum", "average", "max"};

const char *pl_collective_name(pl_collective collective) { return collective_names[collective]; }

const char *pl_reduction_name(pl_reduction reduction) { return reduction_names[reduction]; }

bool pl_reduction_parse(pl_reduction *out, const char *name)
{
    for (int i = 0; i < PL_REDUCTION_COUNT; ++i) {
        if (strcmp(name, reduction_names[i]) != 0) continue;
        *out = (pl_reduction)i;
        return true;
    }
    return false;
}

pl_status pl_process_group_start(pl_process_group *group, const pl_call *call,
                                 pl_request *request_out)
{
    pl_status status = pl_call_check(group, call);
    if (status == PL_OK) status = group->backend->start(group, call, request_out);
    /* The others must not wait for a call that this rank could not make. */
    if (status != PL_OK) group->backend->fail(group, status, pl_error_text());
    return status;
}

pl_status pl_process_group_wait(pl_process_group *group, pl_request request)
{
    return group->backend->wait(group, request);
}

pl_status pl_process_group_do(pl_process_group *group, const pl_call *call)
{
    pl_request request = 0;
    PL_TRY(pl_process_group_start(group, call, &request));
    return pl_process_group_wait(group, request);
}

static pl_status refuse_members(const pl_process_group *world, pl_group_role role,
                                const pl_rank_set *members, const char *why)
{
    pl_text text = {0};
    pl_text_add(&text, "rank %" PRId64 " of %" PRId64 " asks for the group ", world->rank,
                world->size);
    pl_group_print(&text, role, members);
    pl_text_add(&text, ": %s", why);
    return pl_fail_with_text(PL_INTERNAL, &text);
}

/* Whether strides nest, in member order; then the last member is the largest rank, *SPAN_OUT
 * above the first. */
static bool nests(const pl_rank_set *members, int64_t *span_out)
{
    if (members->axes < 0 || members->axes > PL_RANK_SET_AXES) return false;
    int64_t span = 0;
    for (int axis = members->axes - 1; axis >= 0; --axis) {
        int64_t count = members->axis[axis].count, stride = members->axis[axis].stride, reach = 0;
        if (count < 2 || stride <= span) return false;
        if (__builtin_mul_overflow(count - 1, stride, &reach) ||
            __builtin_add_overflow(span, reach, &span))
            return false;
    }
    *span_out = span;
    return true;
}

pl_status pl_process_group_split(pl_process_group *world, pl_group_role role,
                                 const pl_rank_set *members, pl_process_group **out)
{
    int64_t span = 0;
    if ((unsigned)role >= PL_GROUP_ROLE_COUNT)
        return PL_FAIL(PL_INTERNAL, "rank %" PRId64 " asks for a group of role %d, which is none",
                       world->rank, (int)role);
    if (!nests(members, &span))
        return PL_FAIL(PL_INTERNAL,
                       "rank %" PRId64 " asks for a group of role %s whose strides do not nest",
                       world->rank, pl_group_role_name(role));
    if (world->role != PL_GROUP_WORLD)
        return refuse_members(world, role, members, "groups are made from the world's group only");
    if (members->base < 0 || members->base >= world->size || span >= world->size - members->base)
        return PL_FAIL(PL_INTERNAL,
                       "rank %" PRId64 " asks for a group of role %s from rank %" PRId64
                       ", %" PRId64 " wide; ranks of the world are 0 to %" PRId64,
                       world->rank, pl_group_role_name(role), members->base, span, world->size - 1);
    if (pl_rank_set_index(members, world->rank) < 0)
        return refuse_members(world, role, members, "the asking rank is not a member");
    PL_TRY(world->backend->split(world, role, members, out));
    (*out)->log = world->log;
    (*out)->interrupted = world->interrupted;
    (*out)->grace_seconds = world->grace_seconds;
    return PL_OK;
}

void pl_process_group_set_log(pl_process_group *group, const pl_call_log *log) { group->log = log; }

void pl_process_group_set_interrupt(pl_process_group *group, const volatile sig_atomic_t *flag,
                                    double grace_seconds)
{
    group->interrupted = flag;
    group->grace_seconds = grace_seconds;
}

void pl_process_group_fail(pl_process_group *group, pl_status status, const char *words)
{
    group->backend->fail(group, status, words);
}

void pl_process_group_close(pl_process_group *group)
{
    if (group) group->backend->close(group);
}
