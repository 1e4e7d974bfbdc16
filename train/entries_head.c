/* The head: loss in training and evaluation, logits of one position in generation. */
#include <inttypes.h>

#include "train/entries.h"

static int64_t activation_bytes(const pl_sizes *s) { return s->tokens * s->hidden * s->element; }

/* A tied head is the embedding's tensor. */
static const char *head_name(const pl_work *work)
{
    return work->executor->plan->model.tie_word_embeddings ? "model.embed_tokens.weight"
                                                           : "lm_head.weight";
}

static pl_status hand_out_losses(pl_work *work, const float *row_losses)
{
    const pl_executor_outside *outside = &work->executor->outside;
    int64_t rows = work->sizes->tokens;
    float *losses = NULL;
    PL_TRY(pl_work_host_space(work, 4 * rows, &losses));
    PL_TRY(pl_work_copy(work, losses, row_losses, 4 * rows, PL_COPY_TO_HOST));
    PL_TRY(work->device->functions->synchronize(work->device, work->stream));
    return outside->row_losses(outside->context, work->entry->name.round,
                               work->entry->name.micro_batch, losses, rows);
}

pl_status pl_do_loss(pl_work *work)
{
    const pl_sizes *s = work->sizes;
    const void *z = NULL, *labels = NULL, *weight = NULL;
    void *dz = NULL, *sums = NULL, *row_losses = NULL;
    pl_gradient gradient;
    int32_t part = -1;
    PL_TRY(pl_work_part(work, &part));
    PL_TRY(pl_work_weight(work, part, head_name(work), &weight));
    PL_TRY(pl_work_gradient(work, part, head_name(work), &gradient));
    PL_TRY(pl_work_read(work, PL_BUF_FINAL, activation_bytes(s), &z));
    PL_TRY(pl_work_read(work, PL_BUF_LABELS, 4 * s->tokens, &labels));
    PL_TRY(pl_work_write(work, PL_BUF_LOSS_SUM, 16, &sums));
    if (pl_work_find(work, PL_BUF_D_FINAL, PL_USE_WRITE, PL_ANY_PART))
        PL_TRY(pl_work_write(work, PL_BUF_D_FINAL, activation_bytes(s), &dz));
    if (work->executor->outside.row_losses) PL_TRY(pl_work_space(work, 4 * s->tokens, &row_losses));
    const pl_use *sum = pl_work_find(work, PL_BUF_LOSS_SUM, PL_USE_WRITE, PL_ANY_PART);
    PL_TRY(PL_DO(work, loss, .z = z, .weight = weight, .labels = labels, .dz = dz,
                 .dweight = gradient.data, .add = gradient.add, .loss_sums = sums,
                 .loss_begins = sum && (sum->flags & PL_USE_BEGIN), .row_losses = row_losses,
                 .dtype = s->dtype, .rows = s->tokens, .hidden = s->hidden,
                 .vocabulary = s->vocabulary));
    return row_losses ? hand_out_losses(work, row_losses) : PL_OK;
}

pl_status pl_do_logits(pl_work *work)
{
    const pl_sizes *s = work->sizes;
    int64_t position = work->executor->input.position;
    const void *z = NULL, *weight = NULL;
    void *logits = NULL;
    int32_t part = -1;
    if (position < 0 || position >= s->tokens)
        return PL_FAIL(PL_BAD_INPUT,
                       "logits of position %" PRId64 " are wanted; positions are 0 to %" PRId64,
                       position, s->tokens - 1);
    PL_TRY(pl_work_part(work, &part));
    PL_TRY(pl_work_weight(work, part, head_name(work), &weight));
    PL_TRY(pl_work_read(work, PL_BUF_FINAL, activation_bytes(s), &z));
    PL_TRY(pl_work_write(work, PL_BUF_LOGITS, 4 * s->vocabulary, &logits));
    return PL_DO(work, product, .a = (const char *)z + position * s->hidden * s->element,
                 .b = weight, .c = logits, .dtype = s->dtype, .c_dtype = PL_FP32, .m = 1,
                 .n = s->vocabulary, .k = s->hidden, .transpose_b = true);
}

pl_status pl_do_sample(pl_work *work)
{
    const pl_executor_outside *outside = &work->executor->outside;
    int64_t vocabulary = work->sizes->vocabulary;
    const void *logits = NULL;
    float *values = NULL;
    PL_TRY(pl_work_read(work, PL_BUF_LOGITS, 4 * vocabulary, &logits));
    if (!outside->sample) return PL_FAIL(PL_INTERNAL, "nobody was named who draws tokens");
    PL_TRY(pl_work_host_space(work, 4 * vocabulary, &values));
    PL_TRY(pl_work_copy(work, values, logits, 4 * vocabulary, PL_COPY_TO_HOST));
    PL_TRY(work->device->functions->synchronize(work->device, work->stream));
    return outside->sample(outside->context, values, vocabulary);
}
