/* Collectives of entries: the group of the entry's role, started here, waited for elsewhere. */
#include <inttypes.h>
#include <string.h>

#include "common/memory.h"
#include "train/executor_work.h"

int64_t pl_work_group_size(const pl_work *work)
{
    return pl_layout_group_size(&work->executor->plan->layout, (pl_group_role)work->entry->group);
}

int64_t pl_work_group_index(const pl_work *work)
{
    return pl_layout_group_index(&work->executor->plan->layout, (pl_group_role)work->entry->group,
                                 work->executor->rank);
}

pl_status pl_work_require_group(const pl_work *work, int64_t size)
{
    int64_t members = pl_work_group_size(work);
    if (members == size) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT,
                   "group %s has %" PRId64 " ranks, the buffers of this entry are for %" PRId64,
                   pl_group_role_name((pl_group_role)work->entry->group), members, size);
}

/* Start CALL, which borrows KEPT; that is the executor's from here on. */
static pl_status start(pl_work *work, const pl_call *call, void *kept)
{
    pl_executor *executor = work->executor;
    pl_process_group *group = executor->group[work->entry->group];
    const pl_use *uses = work->section->uses + work->entry->use_first;
    pl_pending pending = {.entry = work->index, .group = group, .kept = kept};
    pl_status status = pl_grow(&executor->pending, &executor->pending_capacity,
                               executor->pending_count + 1, sizeof pending, "collectives");
    if (status == PL_OK && !group)
        status = PL_FAIL(PL_INTERNAL, "group %s was not opened",
                         pl_group_role_name((pl_group_role)work->entry->group));
    if (status == PL_OK) status = pl_process_group_start(group, call, &pending.request);
    if (status != PL_OK) {
        pl_free(kept);
        return status;
    }
    executor->pending[executor->pending_count++] = pending;
    for (uint32_t i = 0; i < work->entry->use_count; ++i)
        ++executor->running->live[uses[i].buffer]->in_flight;
    return PL_OK;
}

/* In a group of one, results are what was sent. */
static pl_status copy_segments(const pl_work *work, const pl_segment *segments, int count)
{
    for (int i = 0; i < count; ++i)
        if (segments[i].recv != segments[i].send)
            PL_TRY(pl_work_copy(work, segments[i].recv, segments[i].send,
                                segments[i].count * pl_dtype_bytes(segments[i].dtype),
                                PL_COPY_WITHIN_DEVICE));
    return PL_OK;
}

static pl_status check_reduction(const pl_work *work, pl_collective collective,
                                 const pl_segment *segments, int count)
{
    bool reduces = collective == PL_REDUCE_SCATTER || collective == PL_ALL_REDUCE;
    pl_reduction reduction = (pl_reduction)work->entry->reduction;
    if (reduces != (reduction != PL_REDUCTION_NONE))
        return PL_FAIL(PL_BAD_INPUT, "reduction=%s, and %s takes %s", pl_reduction_name(reduction),
                       pl_collective_name(collective), reduces ? "sum, average or max" : "none");
    for (int i = 0; i < count && reduction == PL_REDUCTION_AVERAGE; ++i)
        if (segments[i].dtype == PL_I64 || segments[i].dtype == PL_I32)
            return PL_FAIL(PL_BAD_INPUT, "reduction=average of whole numbers; allowed: sum, max");
    return PL_OK;
}

pl_status pl_work_collective(pl_work *work, pl_collective collective, const pl_segment *segments,
                             int count)
{
    pl_segment *kept = NULL;
    PL_TRY(check_reduction(work, collective, segments, count));
    if (pl_work_group_size(work) == 1) return copy_segments(work, segments, count);
    pl_call call = {.collective = collective,
                    .reduction = (pl_reduction)work->entry->reduction,
                    .stream = work->stream,
                    .name = &work->entry->name};
    if (count == 1) {
        call.send = segments[0].send;
        call.recv = segments[0].recv;
        call.count = segments[0].count;
        call.dtype = segments[0].dtype;
    } else {
        PL_TRY(pl_allocate(&kept, (size_t)count, sizeof *kept, "segments of a collective"));
        memcpy(kept, segments, (size_t)count * sizeof *kept);
        call.segments = kept;
        call.segment_count = count;
    }
    return start(work, &call, kept);
}

pl_status pl_work_exchange(pl_work *work, const void *send, const int64_t *sent, void *recv,
                           const int64_t *received, int64_t row)
{
    int64_t size = work->sizes->owners;
    int64_t *kept = NULL;
    PL_TRY(pl_work_require_group(work, size));
    PL_TRY(check_reduction(work, PL_ALL_TO_ALL_UNEVEN, NULL, 0));
    if (size == 1)
        return pl_work_copy(work, recv, send, sent[0] * row * work->sizes->element,
                            PL_COPY_WITHIN_DEVICE);
    PL_TRY(pl_allocate(&kept, 2 * (size_t)size, sizeof *kept, "counts of an exchange"));
    for (int64_t i = 0; i < size; ++i) {
        kept[i] = sent[i] * row;
        kept[size + i] = received[i] * row;
    }
    pl_call call = {.collective = PL_ALL_TO_ALL_UNEVEN,
                    .dtype = work->sizes->dtype,
                    .stream = work->stream,
                    .name = &work->entry->name,
                    .send = send,
                    .recv = recv,
                    .send_counts = kept,
                    .recv_counts = kept + size};
    return start(work, &call, kept);
}
