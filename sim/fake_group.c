#include "sim/fake_group.h"

#include <inttypes.h>
#include <string.h>

#include "common/group_domain.h"
#include "common/memory.h"

typedef struct fake_domain {
    pl_group_domain base;
    pl_reducer reduce;
} fake_domain;

/* VALUE modulo the prime, 0 or more: 2^61 is 1, so the digits above are added to those below. */
static uint64_t residue(int64_t value)
{
    if (value < 0) return (uint64_t)(value % PL_FAKE_PRIME + PL_FAKE_PRIME) % PL_FAKE_PRIME;
    uint64_t sum = ((uint64_t)value & PL_FAKE_PRIME) + ((uint64_t)value >> 61);
    return sum >= (uint64_t)PL_FAKE_PRIME ? sum - (uint64_t)PL_FAKE_PRIME : sum;
}

/* A pl_reducer: like pl_reduce_elements but for sums of PL_I64. */
static void reduce_modulo(void *result, const pl_posted_call *posted, int64_t size, int segment,
                          int64_t offset, int count)
{
    uint64_t total[PL_REDUCE_BLOCK];
    const size_t bytes = (size_t)count * sizeof *total;
    if (posted->segments[segment].dtype != PL_I64 || posted->call.reduction != PL_REDUCTION_SUM) {
        pl_reduce_elements(result, posted, size, segment, offset, count);
        return;
    }
    memset(total, 0, bytes);
    for (int64_t member = 0; member < size; ++member) {
        const char *sent = posted[member].segments[segment].send;
        for (int i = 0; i < count; ++i) {
            int64_t element; /* one by one: most calls have a single one */
            memcpy(&element, sent + (size_t)(offset + i) * sizeof element, sizeof element);
            total[i] += residue(element);
            if (total[i] >= (uint64_t)PL_FAKE_PRIME) total[i] -= (uint64_t)PL_FAKE_PRIME;
        }
    }
    memcpy(result, total, bytes);
}

static bool is_integer(pl_dtype dtype)
{
    return dtype == PL_I64 || dtype == PL_I32 || dtype == PL_U8;
}

/* The first segment that is not of integers, or -1. */
static int find_other(const pl_call *call)
{
    pl_segment plain;
    const pl_segment *segments = NULL;
    int count = pl_call_segments(call, &plain, &segments);
    for (int i = 0; i < count; ++i)
        if (!is_integer(segments[i].dtype)) return i;
    return -1;
}

static pl_status refuse_dtype(const pl_process_group *group, const pl_call *call, int segment)
{
    pl_text text = {0};
    pl_text_add(&text, "rank %" PRId64 " started ", group->rank);
    pl_call_print(&text, call);
    pl_text_add_string(&text, " in ");
    pl_group_print(&text, group->role, &group->members);
    if (call->segment_count > 0)
        pl_text_add(&text, ", segment %d of %s", segment,
                    pl_dtype_name(call->segments[segment].dtype));
    pl_text_add_string(&text, ": backend fake carries integers only: i64, i32, u8");
    return pl_fail_with_text(PL_UNSUPPORTED, &text);
}

static pl_status fake_start(pl_process_group *group, const pl_call *call, pl_request *request_out)
{
    pl_group_handle *handle = (pl_group_handle *)group;
    pl_group_shared *shared = handle->shared;
    int other = call->collective == PL_BARRIER ? -1 : find_other(call);
    if (other >= 0) return refuse_dtype(group, call, other);
    PL_TRY(pl_group_post(handle, call, request_out));
    pl_call_part part;
    while (pl_group_take_part(shared, &part)) {
        pl_call_move(&part, ((fake_domain *)shared->domain)->reduce);
        pl_group_part_done(shared);
    }
    return PL_OK;
}

static pl_status fake_wait(pl_process_group *group, pl_request request)
{
    pl_group_handle *handle = (pl_group_handle *)group;
    pl_group_shared *shared = handle->shared;
    PL_TRY(pl_group_check_request(handle, request));
    if (pl_group_is_done(shared, request) || shared->domain->failure != PL_OK)
        return pl_group_finish(handle, request);
    pl_text text = {0};
    pl_text_add(&text, "rank %" PRId64 " waits for ", group->rank);
    pl_group_print_missing(&text, handle, request);
    return pl_fail_with_text(PL_TIMED_OUT, &text);
}

static void fake_fail(pl_process_group *group, pl_status status, const char *words)
{
    pl_group_fail_rank((pl_group_handle *)group, status, words);
}

static void fake_close(pl_process_group *group)
{
    pl_group_handle *handle = (pl_group_handle *)group;
    pl_group_domain *domain = handle->shared->domain;
    pl_group_leave(handle);
    if (!pl_group_drop(handle)) return;
    pl_group_domain_close(domain);
    pl_free(domain);
}

static const pl_process_group_backend backend = {.name = "fake",
                                                 .start = fake_start,
                                                 .wait = fake_wait,
                                                 .split = pl_group_split,
                                                 .fail = fake_fail,
                                                 .close = fake_close};

static const pl_group_hooks hooks = {.group_bytes = sizeof(pl_group_shared)};

pl_status pl_group_fake_open(pl_process_group **out, int64_t ranks, pl_fake_sums sums)
{
    fake_domain *domain = NULL;
    PL_TRY(pl_allocate(&domain, 1, sizeof *domain, "fake process groups"));
    domain->reduce = sums == PL_FAKE_SUMS_MODULO ? reduce_modulo : pl_reduce_elements;
    pl_status status = pl_group_domain_open(&domain->base, &backend, &hooks, ranks, out);
    if (status != PL_OK) pl_free(domain);
    return status;
}

bool pl_group_fake_is_done(const pl_process_group *group, pl_request request)
{
    return pl_group_is_done(((const pl_group_handle *)group)->shared, request);
}
