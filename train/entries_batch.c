/* Samples of a step: read, counted, brought to the device. */
#include <inttypes.h>

#include "common/memory.h"
#include "train/entries.h"

/* The batch of the program: its rounds follow from its size, since evaluation has but one. */
static pl_status find_batch(const pl_work *work, uint32_t flags, int32_t **out, int64_t *rounds)
{
    const pl_sizes *s = work->sizes;
    int64_t round = 8 * s->tokens * s->micro_batches;
    const pl_use *use = pl_work_find(work, PL_BUF_BATCH, flags, PL_ANY_PART);
    void *memory = NULL;
    *rounds = use ? work->executor->running->live[use->buffer]->bytes / round : 0;
    if (!use || *rounds == 0)
        return PL_FAIL(
            PL_BAD_INPUT,
            "the entry must name a buffer 'batch' of at least one round, %" PRId64 " bytes", round);
    PL_TRY(pl_work_use(work, use, *rounds * round, &memory));
    *out = memory;
    return PL_OK;
}

/* Devices look tokens up without a question. */
static pl_status check_tokens(const pl_work *work, const int32_t *batch, int64_t rounds)
{
    const pl_sizes *s = work->sizes;
    int64_t count = rounds * s->micro_batches * 2 * s->tokens;
    for (int64_t i = 0; i < count; ++i) {
        bool label = i / s->tokens % 2 == 1;
        if (batch[i] < s->vocabulary && (label || batch[i] >= 0)) continue;
        return PL_FAIL(PL_BAD_INPUT,
                       "%s %" PRId32 " at place %" PRId64 " of micro-batch %" PRId64
                       ": the vocabulary has %" PRId64,
                       label ? "label" : "token", batch[i], i % s->tokens, i / (2 * s->tokens),
                       s->vocabulary);
    }
    return PL_OK;
}

pl_status pl_do_load_batch(pl_work *work)
{
    const pl_executor_outside *outside = &work->executor->outside;
    pl_shape shape = work->executor->plan->settings.shape;
    int32_t *batch = NULL;
    PL_TRY(find_batch(work, PL_USE_WRITE, &batch, &shape.rounds));
    if (!outside->load_batch) return PL_FAIL(PL_INTERNAL, "nobody was named who reads samples");
    PL_TRY(outside->load_batch(outside->context, &shape, pl_work_group_index(work),
                               pl_work_group_size(work), batch));
    return check_tokens(work, batch, shape.rounds);
}

pl_status pl_do_count_tokens(pl_work *work)
{
    const pl_sizes *s = work->sizes;
    int32_t *batch = NULL;
    int64_t rounds = 0, *count = NULL;
    void *to = NULL;
    PL_TRY(find_batch(work, PL_USE_READ, &batch, &rounds));
    PL_TRY(pl_work_write(work, PL_BUF_TOKEN_COUNT, 8, &to));
    PL_TRY(pl_work_host_space(work, 8, &count));
    *count = 0;
    for (int64_t i = 0; i < rounds * s->micro_batches; ++i)
        for (int64_t j = 0; j < s->tokens; ++j) *count += batch[(2 * i + 1) * s->tokens + j] >= 0;
    PL_TRY(pl_work_copy(work, to, count, 8, PL_COPY_TO_DEVICE));
    return work->device->functions->synchronize(work->device, work->stream);
}

pl_status pl_do_copy_batch(pl_work *work)
{
    const pl_sizes *s = work->sizes;
    const pl_entry_name *name = &work->entry->name;
    static const pl_buffer_kind kinds[2] = {PL_BUF_TOKENS, PL_BUF_LABELS};
    int64_t rounds = 0;
    int32_t *batch = NULL;
    PL_TRY(find_batch(work, PL_USE_READ, &batch, &rounds));
    if (name->round < 0 || name->round >= rounds || name->micro_batch < 0 ||
        name->micro_batch >= s->micro_batches)
        return PL_FAIL(PL_BAD_INPUT,
                       "the batch has %" PRId64 " rounds of %" PRId64 " micro-batches", rounds,
                       s->micro_batches);
    int64_t number = name->round * s->micro_batches + name->micro_batch;
    for (int i = 0; i < 2; ++i) {
        void *to = NULL;
        if (!pl_work_find(work, kinds[i], PL_USE_WRITE, PL_ANY_PART)) continue;
        PL_TRY(pl_work_write(work, kinds[i], 4 * s->tokens, &to));
        PL_TRY(pl_work_copy(work, to, batch + (2 * number + i) * s->tokens, 4 * s->tokens,
                            PL_COPY_TO_DEVICE));
    }
    return PL_OK;
}
