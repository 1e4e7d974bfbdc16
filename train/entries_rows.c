/* Rows on their way to the experts and back: counted, bound, permuted, exchanged, merged. */
#include <inttypes.h>
#include <string.h>

#include "common/memory.h"
#include "train/entries_moe.h"

static int64_t token_bytes(const pl_sizes *s) { return s->tokens * s->hidden * s->element; }
/* Rows as a rank sends them, and back: one for each choice. */
static int64_t sent_bytes(const pl_sizes *s) { return s->chosen * token_bytes(s); }

bool pl_moe_all_to_all(const pl_work *work)
{
    return work->executor->plan->settings.policy.dispatch == PL_DISPATCH_ALL_TO_ALL;
}

bool pl_moe_backward(const pl_work *work)
{
    pl_pass pass = (pl_pass)work->entry->name.pass;
    return pass != PL_PASS_FORWARD && pass != PL_PASS_RECOMPUTE;
}

/* --- counts --- */

pl_status pl_do_exchange_counts(pl_work *work)
{
    const pl_sizes *s = work->sizes;
    const void *counts = NULL;
    void *counts_in = NULL;
    PL_TRY(pl_moe_check(work));
    PL_TRY(pl_work_require_group(work, s->owners));
    PL_TRY(pl_work_read(work, PL_BUF_COUNTS, 8 * s->experts, &counts));
    PL_TRY(pl_work_write(work, PL_BUF_COUNTS_IN, 8 * s->experts, &counts_in));
    return pl_work_collective(work, PL_ALL_TO_ALL, &(pl_segment){counts, counts_in, s->own, PL_I64},
                              1);
}

/* Sums by member of counts [owners][own]. Counts that no routing makes are refused: they came from
 * a plan that exchanged something else. */
static pl_status sum_members(const pl_sizes *s, const int64_t *counts, int64_t most, int64_t *sums,
                             int64_t *total)
{
    *total = 0;
    for (int64_t i = 0; i < s->owners; ++i) {
        sums[i] = 0;
        for (int64_t j = 0; j < s->own; ++j) {
            int64_t count = counts[i * s->own + j];
            if (count < 0 || count > most)
                return PL_FAIL(PL_BAD_INPUT,
                               "%" PRId64 " rows for expert %" PRId64 " of member %" PRId64
                               ": a rank routes at most %" PRId64,
                               count, j, i, most);
            sums[i] += count;
        }
        if (sums[i] > most)
            return PL_FAIL(PL_BAD_INPUT,
                           "%" PRId64 " rows to or from member %" PRId64
                           ": a rank routes at most %" PRId64,
                           sums[i], i, most);
        *total += sums[i];
    }
    return PL_OK;
}

/* What COUNTS of rows sent and received, [owners][own] each, come to. */
static pl_status make_binding(const pl_sizes *s, const int64_t *sent, const int64_t *received,
                              pl_binding **out)
{
    pl_binding *binding = NULL;
    int64_t routed = s->tokens * s->chosen, total = 0;
    PL_TRY(pl_allocate(&binding, 1, sizeof *binding, "bound sizes"));
    pl_status status =
        pl_allocate(&binding->sent, 2 * (size_t)s->owners, sizeof(int64_t), "bound sizes");
    PL_TRY_TO(status, failed, status);
    binding->received = binding->sent + s->owners;
    PL_TRY_TO(status, failed, sum_members(s, sent, routed, binding->sent, &total));
    if (total != routed) {
        status = PL_FAIL(PL_BAD_INPUT,
                         "counts of %" PRId64 " rows to send; tokens times choices are %" PRId64,
                         total, routed);
        goto failed;
    }
    PL_TRY_TO(status, failed, sum_members(s, received, routed, binding->received, &binding->rows));
    *out = binding;
    return PL_OK;
failed:
    pl_binding_free(binding);
    return status;
}

/* The host waits for the counts: the only time that routing makes it wait. `rows` holds the counts
 * as received; what hangs on it says what they come to. */
pl_status pl_do_bind(pl_work *work)
{
    const pl_sizes *s = work->sizes;
    const int64_t bytes = 8 * s->experts;
    const void *counts = NULL, *counts_in = NULL;
    void *rows = NULL;
    int64_t *sent = NULL;
    pl_binding *binding = NULL;
    PL_TRY(pl_moe_check(work));
    PL_TRY(pl_work_read(work, PL_BUF_COUNTS, bytes, &counts));
    PL_TRY(pl_work_read(work, PL_BUF_COUNTS_IN, bytes, &counts_in));
    PL_TRY(pl_work_write(work, PL_BUF_ROWS, bytes, &rows));
    PL_TRY(pl_work_host_space(work, bytes, &sent));
    PL_TRY(pl_work_copy(work, sent, counts, bytes, PL_COPY_TO_HOST));
    PL_TRY(pl_work_copy(work, rows, counts_in, bytes, PL_COPY_TO_HOST));
    PL_TRY(work->device->functions->synchronize(work->device, work->stream));
    PL_TRY(make_binding(s, sent, rows, &binding));
    const pl_use *use = pl_work_find(work, PL_BUF_ROWS, PL_USE_WRITE, PL_ANY_PART);
    pl_live *live = work->executor->running->live[use->buffer];
    pl_binding_free(live->binding);
    live->binding = binding;
    return PL_OK;
}

pl_status pl_moe_binding(const pl_work *work, const pl_binding **out)
{
    const pl_use *use = pl_work_find(work, PL_BUF_ROWS, PL_USE_READ, PL_ANY_PART);
    *out = use ? work->executor->running->live[use->buffer]->binding : NULL;
    if (*out) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT, "the entry must read a buffer 'rows' that bind has filled");
}

/* --- permute and merge --- */

pl_status pl_do_permute(pl_work *work)
{
    const pl_sizes *s = work->sizes;
    bool backward = pl_moe_backward(work);
    const void *from = NULL, *route = NULL;
    void *to = NULL;
    PL_TRY(pl_moe_check(work));
    PL_TRY(pl_work_read(work, PL_BUF_ROUTE, pl_moe_route_bytes(s), &route));
    const pl_routes routes = pl_moe_routes(work, route);
    PL_TRY(pl_work_read(work, backward ? PL_BUF_D_SEND : PL_BUF_NORMED,
                        backward ? sent_bytes(s) : token_bytes(s), &from));
    PL_TRY(pl_work_write(work, backward ? PL_BUF_D_NORMED : PL_BUF_SEND,
                         backward ? token_bytes(s) : sent_bytes(s), &to));
    if (backward)
        return PL_DO_AS(work, permute_backward, pl_permute_arguments, .from = from,
                        .slots = routes.slots, .to = to, .dtype = s->dtype, .tokens = s->tokens,
                        .chosen = s->chosen, .cols = s->hidden);
    return PL_DO(work, permute, .from = from, .slots = routes.slots, .to = to, .dtype = s->dtype,
                 .tokens = s->tokens, .chosen = s->chosen, .cols = s->hidden);
}

/* x = h + what came back: weighted rows, or sums that the owners weighted. */
static pl_status merge_forward(pl_work *work)
{
    const pl_sizes *s = work->sizes;
    const void *h = NULL, *back = NULL, *route = NULL;
    void *x = NULL;
    bool all_to_all = pl_moe_all_to_all(work);
    PL_TRY(pl_work_read(work, PL_BUF_ATTENDED, token_bytes(s), &h));
    PL_TRY(pl_work_read(work, PL_BUF_RETURNED, all_to_all ? sent_bytes(s) : token_bytes(s), &back));
    PL_TRY(pl_work_write(work, PL_BUF_INPUT, token_bytes(s), &x));
    if (!all_to_all)
        return PL_DO(work, sum, .a = h, .b = back, .to = x, .dtype = s->dtype,
                     .count = s->tokens * s->hidden);
    PL_TRY(pl_work_read(work, PL_BUF_ROUTE, pl_moe_route_bytes(s), &route));
    const pl_routes routes = pl_moe_routes(work, route);
    return PL_DO(work, merge, .h = h, .back = back, .weights = routes.weights,
                 .slots = routes.slots, .x = x, .dtype = s->dtype, .tokens = s->tokens,
                 .chosen = s->chosen, .cols = s->hidden);
}

static pl_status merge_rows_backward(pl_work *work, const void *dx)
{
    const pl_sizes *s = work->sizes;
    const void *route = NULL, *back = NULL;
    void *dback = NULL, *dweights = NULL;
    PL_TRY(pl_work_read(work, PL_BUF_ROUTE, pl_moe_route_bytes(s), &route));
    const pl_routes routes = pl_moe_routes(work, route);
    PL_TRY(pl_work_write(work, PL_BUF_D_RETURNED, sent_bytes(s), &dback));
    if (pl_work_find(work, PL_BUF_D_ROUTE, PL_USE_WRITE, PL_ANY_PART)) {
        PL_TRY(pl_work_write(work, PL_BUF_D_ROUTE, 4 * s->tokens * s->chosen, &dweights));
        PL_TRY(pl_work_read(work, PL_BUF_RETURNED, sent_bytes(s), &back));
    }
    return PL_DO(work, merge_backward, .dx = dx, .back = back, .weights = routes.weights,
                 .slots = routes.slots, .dback = dback, .dweights = dweights, .dtype = s->dtype,
                 .tokens = s->tokens, .chosen = s->chosen, .cols = s->hidden);
}

static pl_status merge_backward(pl_work *work)
{
    const pl_sizes *s = work->sizes;
    const void *dx = NULL;
    void *dback = NULL, *dh = NULL;
    PL_TRY(pl_work_read(work, PL_BUF_D_INPUT, token_bytes(s), &dx));
    if (pl_moe_all_to_all(work)) {
        PL_TRY(merge_rows_backward(work, dx));
    } else {
        PL_TRY(pl_work_write(work, PL_BUF_D_RETURNED, token_bytes(s), &dback));
        PL_TRY(pl_work_copy(work, dback, dx, token_bytes(s), PL_COPY_WITHIN_DEVICE));
    }
    if (!pl_work_find(work, PL_BUF_D_ATTENDED, PL_USE_WRITE, PL_ANY_PART)) return PL_OK;
    PL_TRY(pl_work_write(work, PL_BUF_D_ATTENDED, token_bytes(s), &dh));
    return pl_work_copy(work, dh, dx, token_bytes(s), PL_COPY_WITHIN_DEVICE);
}

pl_status pl_do_merge(pl_work *work)
{
    PL_TRY(pl_moe_check(work));
    return pl_moe_backward(work) ? merge_backward(work) : merge_forward(work);
}

/* --- exchanges --- */

/* All-to-all from buffers FROM to TO: rows that this rank sends to owners, or (BACK) returns. */
static pl_status exchange(pl_work *work, pl_buffer_kind from, pl_buffer_kind to, bool back)
{
    const pl_sizes *s = work->sizes;
    const pl_binding *binding = NULL;
    const void *send = NULL;
    void *recv = NULL;
    PL_TRY(pl_moe_binding(work, &binding));
    int64_t received = binding->rows * s->hidden * s->element;
    PL_TRY(pl_work_read(work, from, back ? received : sent_bytes(s), &send));
    PL_TRY(pl_work_write(work, to, back ? sent_bytes(s) : received, &recv));
    if (back)
        return pl_work_exchange(work, send, binding->received, recv, binding->sent, s->hidden);
    return pl_work_exchange(work, send, binding->sent, recv, binding->received, s->hidden);
}

/* The tokens of all owners' ranks here, or (REDUCES) the sum of what they made of mine. */
static pl_status gather(pl_work *work, pl_buffer_kind from, pl_buffer_kind to, bool reduces)
{
    const pl_sizes *s = work->sizes;
    const void *send = NULL;
    void *recv = NULL;
    int64_t bytes = token_bytes(s), all = s->owners * bytes;
    PL_TRY(pl_work_require_group(work, s->owners));
    PL_TRY(pl_work_read(work, from, reduces ? all : bytes, &send));
    PL_TRY(pl_work_write(work, to, reduces ? bytes : all, &recv));
    return pl_work_collective(work, reduces ? PL_REDUCE_SCATTER : PL_ALL_GATHER,
                              &(pl_segment){send, recv, s->tokens * s->hidden, s->dtype}, 1);
}

pl_status pl_do_dispatch(pl_work *work)
{
    bool backward = pl_moe_backward(work);
    PL_TRY(pl_moe_check(work));
    if (!pl_moe_all_to_all(work))
        return backward ? gather(work, PL_BUF_D_RECEIVED, PL_BUF_D_NORMED, true)
                        : gather(work, PL_BUF_NORMED, PL_BUF_RECEIVED, false);
    return backward ? exchange(work, PL_BUF_D_RECEIVED, PL_BUF_D_SEND, true)
                    : exchange(work, PL_BUF_SEND, PL_BUF_RECEIVED, false);
}

pl_status pl_do_combine(pl_work *work)
{
    bool backward = pl_moe_backward(work);
    PL_TRY(pl_moe_check(work));
    if (!pl_moe_all_to_all(work))
        return backward ? gather(work, PL_BUF_D_RETURNED, PL_BUF_D_EXPERT_OUT, false)
                        : gather(work, PL_BUF_EXPERT_OUT, PL_BUF_RETURNED, true);
    return backward ? exchange(work, PL_BUF_D_RETURNED, PL_BUF_D_EXPERT_OUT, false)
                    : exchange(work, PL_BUF_EXPERT_OUT, PL_BUF_RETURNED, true);
}

/* Choices and weights of all, one after the other; backward, the sums of the weights' gradients. */
pl_status pl_do_share_routes(pl_work *work)
{
    const pl_sizes *s = work->sizes;
    int64_t count = s->tokens * s->chosen;
    const void *from = NULL;
    void *to = NULL;
    PL_TRY(pl_moe_check(work));
    PL_TRY(pl_work_require_group(work, s->owners));
    if (pl_moe_backward(work)) {
        PL_TRY(pl_work_read(work, PL_BUF_D_ROUTES_IN, 4 * count * s->owners, &from));
        PL_TRY(pl_work_write(work, PL_BUF_D_ROUTE, 4 * count, &to));
        return pl_work_collective(work, PL_REDUCE_SCATTER, &(pl_segment){from, to, count, PL_FP32},
                                  1);
    }
    PL_TRY(pl_work_read(work, PL_BUF_ROUTE, pl_moe_route_bytes(s), &from));
    PL_TRY(pl_work_write(work, PL_BUF_ROUTES_IN, 8 * count * s->owners, &to));
    const pl_routes routes = pl_moe_routes(work, from);
    const pl_segment segments[2] = {
        {routes.choices, to, count, PL_I32},
        {routes.weights, (float *)to + count * s->owners, count, PL_FP32}};
    return pl_work_collective(work, PL_ALL_GATHER, segments, 2);
}
