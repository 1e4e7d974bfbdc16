/* The end of a step: gradients summed over replicas, scaled, normed, applied; numbers to the
 * host. */
#include <inttypes.h>
#include <string.h>

#include "common/memory.h"
#include "train/entries.h"

static const pl_use *uses_of(const pl_work *work)
{
    return work->section->uses + work->entry->use_first;
}

static pl_buffer_kind kind_of(const pl_work *work, const pl_use *use)
{
    return (pl_buffer_kind)work->section->buffers[use->buffer].kind;
}

static bool is_shard_gradient(pl_buffer_kind kind)
{
    return kind == PL_BUF_GRADIENT || kind == PL_BUF_IGNORED_GRADIENT;
}

/* --- all-reduce --- */

/* Type and bytes of what an all-reduce may sum. False for other kinds of buffers. */
static bool reducible(const pl_work *work, const pl_use *use, pl_dtype *dtype, int64_t *bytes)
{
    const pl_sizes *s = work->sizes;
    pl_buffer_kind kind = kind_of(work, use);
    int32_t part = pl_work_buffer_part(work, use);
    *dtype = PL_FP64;
    *bytes = 8;
    switch (kind) {
    case PL_BUF_GRADIENT:
    case PL_BUF_IGNORED_GRADIENT:
        *dtype = PL_FP32;
        *bytes = part < 0 ? -1 : pl_part_map_bytes(&work->executor->map, kind, part);
        return part >= 0;
    case PL_BUF_TOKEN_COUNT: *dtype = PL_I64; return true;
    case PL_BUF_BALANCE:
        *dtype = PL_I64;
        *bytes = 8 * s->moe_layers * s->micro_batches * s->sets * s->experts;
        return true;
    case PL_BUF_LOSS_SUM: *bytes = 16; return true;
    case PL_BUF_DENSE_SQUARES:
    case PL_BUF_EXPERT_SQUARES:
    case PL_BUF_IGNORED_SQUARES: return true;
    default: return false;
    }
}

pl_status pl_do_all_reduce(pl_work *work)
{
    const uint32_t flags = PL_USE_READ | PL_USE_WRITE;
    const pl_use *uses = uses_of(work);
    pl_segment *segments = NULL;
    int count = 0;
    pl_status status = pl_allocate(&segments, work->entry->use_count, sizeof *segments,
                                   "segments of a collective");
    for (uint32_t i = 0; i < work->entry->use_count && status == PL_OK; ++i) {
        pl_dtype dtype = PL_FP32;
        int64_t bytes = 0;
        void *memory = NULL;
        if ((uses[i].flags & flags) != flags || !reducible(work, &uses[i], &dtype, &bytes))
            continue;
        status = pl_work_use(work, &uses[i], bytes, &memory);
        segments[count++] = (pl_segment){memory, memory, bytes / pl_dtype_bytes(dtype), dtype};
    }
    if (status == PL_OK && count == 0)
        status = PL_FAIL(PL_BAD_INPUT, "the entry reads and writes nothing that can be summed");
    if (status == PL_OK) status = pl_work_collective(work, PL_ALL_REDUCE, segments, count);
    pl_free(segments);
    return status;
}

/* --- gradients as sharded --- */

/* The real elements of one tensor in a gradient buffer. */
typedef struct gradient_tensor {
    const pl_map_item *item;
    float *values;
    int64_t count;
} gradient_tensor;

typedef pl_status (*gradient_function)(pl_work *work, const gradient_tensor *gradient,
                                       void *context);

static pl_status each_gradient(pl_work *work, const pl_use *use, gradient_function function,
                               void *context)
{
    const pl_part_map *map = &work->executor->map;
    pl_buffer_kind kind = kind_of(work, use);
    int32_t number = pl_work_buffer_part(work, use);
    void *memory = NULL;
    if (number < 0)
        return pl_buffer_refuse(work->executor, use->buffer, "is of a part that the model lacks");
    const pl_part *part = &map->parts.part[number];
    PL_TRY(pl_work_use(work, use, pl_part_map_bytes(map, kind, number), &memory));
    for (int64_t i = part->first_tensor; i < part->first_tensor + part->tensor_count; ++i) {
        pl_map_place place;
        if (!pl_part_map_place(map, kind, i, &place) || place.begin == place.end) continue;
        const gradient_tensor gradient = {.item = &map->items[i],
                                          .values = (void *)((char *)memory + place.offset),
                                          .count = (place.end - place.begin) * place.cols};
        PL_TRY(function(work, &gradient, context));
    }
    return PL_OK;
}

static pl_status scale_tensor(pl_work *work, const gradient_tensor *gradient, void *context)
{
    const pl_scale *scale = &work->entry->scale;
    return PL_DO(work, scale, .x = gradient->values, .count = gradient->count,
                 .numerator = scale->numerator, .denominator = scale->denominator,
                 .tokens = scale->tokens, .token_count = context);
}

pl_status pl_do_scale(pl_work *work)
{
    const pl_use *uses = uses_of(work);
    const void *token_count = NULL;
    if (work->entry->scale.tokens != 0)
        PL_TRY(pl_work_read(work, PL_BUF_TOKEN_COUNT, 8, &token_count));
    for (uint32_t i = 0; i < work->entry->use_count; ++i)
        if ((uses[i].flags & PL_USE_WRITE) && is_shard_gradient(kind_of(work, &uses[i])))
            PL_TRY(each_gradient(work, &uses[i], scale_tensor, (void *)(uintptr_t)token_count));
    return PL_OK;
}

/* --- norm --- */

typedef struct square_sum {
    double *to; /* NULL: not wanted */
    bool add;
} square_sum;

static pl_status square_tensor(pl_work *work, const gradient_tensor *gradient, void *context)
{
    square_sum *sum = context;
    bool add = sum->add;
    sum->add = true;
    return PL_DO(work, squares, .x = gradient->values, .count = gradient->count, .to = sum->to,
                 .add = add);
}

/* Which of the three sums a gradient belongs to: dense, experts, ignored. */
static int sum_of(const pl_work *work, const pl_use *use)
{
    if (kind_of(work, use) == PL_BUF_IGNORED_GRADIENT) return 2;
    return work->section->buffers[use->buffer].subject == PL_SUBJECT_EXPERTS ? 1 : 0;
}

static const pl_buffer_kind square_kinds[3] = {PL_BUF_DENSE_SQUARES, PL_BUF_EXPERT_SQUARES,
                                               PL_BUF_IGNORED_SQUARES};

pl_status pl_do_gradient_norm(pl_work *work)
{
    const pl_use *uses = uses_of(work);
    square_sum sums[3] = {{0}};
    for (int i = 0; i < 3; ++i) {
        void *memory = NULL;
        if (!pl_work_find(work, square_kinds[i], PL_USE_WRITE, PL_ANY_PART)) continue;
        PL_TRY(pl_work_write(work, square_kinds[i], 8, &memory));
        sums[i].to = memory;
    }
    for (uint32_t i = 0; i < work->entry->use_count; ++i) {
        if (!(uses[i].flags & PL_USE_READ) || !is_shard_gradient(kind_of(work, &uses[i]))) continue;
        square_sum *sum = &sums[sum_of(work, &uses[i])];
        if (sum->to) PL_TRY(each_gradient(work, &uses[i], square_tensor, sum));
    }
    /* A rank that holds no row of anything adds 0. */
    for (int i = 0; i < 3; ++i)
        if (sums[i].to && !sums[i].add)
            PL_TRY(work->device->functions->fill(work->device, work->stream, sums[i].to, 0, 8));
    return PL_OK;
}

pl_status pl_do_clip(pl_work *work)
{
    pl_clip_arguments a = {.limit = work->executor->plan->settings.clip};
    void *clip = NULL;
    for (int i = 0; i < 3; ++i) {
        const void *squares = NULL;
        if (!pl_work_find(work, square_kinds[i], PL_USE_READ, PL_ANY_PART)) continue;
        PL_TRY(pl_work_read(work, square_kinds[i], 8, &squares));
        a.squares[i] = squares;
    }
    PL_TRY(pl_work_write(work, PL_BUF_CLIP, 24, &clip));
    a.clip = clip;
    if (!work->device->operations->clip) return pl_work_lacks("clip");
    return work->device->operations->clip(work->device, work->stream, &a);
}

/* --- the update --- */

/* Buffers that are updated by the gradients of one part; m and v are NULL for sgd. */
typedef struct target {
    pl_buffer_kind kind, m_kind, v_kind;
    char *values, *m, *v;
    const double *clip;
    const int64_t *token_count;
} target;

static float *at(const pl_work *work, pl_buffer_kind kind, char *buffer, int64_t tensor)
{
    pl_map_place place;
    if (!buffer || !pl_part_map_place(&work->executor->map, kind, tensor, &place)) return NULL;
    return (float *)(void *)(buffer + place.offset);
}

/* Weight decay is for matrices (and the embedding), not for norms and biases. */
static pl_status update_tensor(pl_work *work, const gradient_tensor *gradient, void *context)
{
    const target *t = context;
    const pl_program_input *input = &work->executor->input;
    int64_t tensor = gradient->item - work->executor->map.items;
    float *values = at(work, t->kind, t->values, tensor);
    if (!values)
        return PL_FAIL(PL_INTERNAL, "no place for the update of %s",
                       gradient->item->tensor->suffix);
    return PL_DO(work, update, .p = values, .m = at(work, t->m_kind, t->m, tensor),
                 .v = at(work, t->v_kind, t->v, tensor), .g = gradient->values,
                 .count = gradient->count, .lr = input->learning_rate,
                 .decay = gradient->item->tensor->dimensions >= 2 ? input->weight_decay : 0,
                 .beta1 = input->beta1, .beta2 = input->beta2, .epsilon = input->epsilon,
                 .t = input->update, .clip = t->clip, .token_count = t->token_count);
}

static pl_status update_part(pl_work *work, const pl_use *gradient, target *t)
{
    bool ignored = kind_of(work, gradient) == PL_BUF_IGNORED_GRADIENT;
    bool moments = work->executor->plan->settings.optimizer == PL_OPTIMIZER_ADAMW;
    const pl_precision *precision = &work->executor->plan->settings.precision;
    int32_t part = pl_work_buffer_part(work, gradient);
    void *values = NULL, *m = NULL, *v = NULL;
    if (part < 0)
        return pl_buffer_refuse(work->executor, gradient->buffer,
                                "is of a part that the model lacks");
    t->kind = ignored                                  ? PL_BUF_IGNORED
              : precision->gather != precision->master ? PL_BUF_MASTER
                                                       : PL_BUF_PARAMETER;
    t->m_kind = ignored ? PL_BUF_IGNORED_M : PL_BUF_ADAM_M;
    t->v_kind = ignored ? PL_BUF_IGNORED_V : PL_BUF_ADAM_V;
    PL_TRY(pl_work_write_part(work, t->kind, part, &values));
    if (moments) PL_TRY(pl_work_write_part(work, t->m_kind, part, &m));
    if (moments) PL_TRY(pl_work_write_part(work, t->v_kind, part, &v));
    t->values = values;
    t->m = m;
    t->v = v;
    return each_gradient(work, gradient, update_tensor, t);
}

pl_status pl_do_step(pl_work *work)
{
    const pl_use *uses = uses_of(work);
    const void *clip = NULL, *token_count = NULL;
    target t = {0};
    PL_TRY(pl_work_read(work, PL_BUF_CLIP, 24, &clip));
    PL_TRY(pl_work_read(work, PL_BUF_TOKEN_COUNT, 8, &token_count));
    t.clip = clip;
    t.token_count = token_count;
    for (uint32_t i = 0; i < work->entry->use_count; ++i)
        if ((uses[i].flags & PL_USE_READ) && is_shard_gradient(kind_of(work, &uses[i])))
            PL_TRY(update_part(work, &uses[i], &t));
    return PL_OK;
}

/* --- control --- */

/* Where numbers stand in the staging memory, in bytes. */
enum { AT_FLAGS = 0, FLAG_BYTES = 32, AT_LOSS = 32, AT_TOKENS = 48, AT_CLIP = 56 };

pl_status pl_do_control(pl_work *work)
{
    char *staging = work->executor->staging;
    void *flags = NULL;
    PL_TRY(pl_work_write(work, PL_BUF_FLAGS, FLAG_BYTES, &flags));
    memcpy(staging + AT_FLAGS, work->executor->input.flags, FLAG_BYTES);
    PL_TRY(pl_work_copy(work, flags, staging + AT_FLAGS, FLAG_BYTES, PL_COPY_TO_DEVICE));
    if (pl_work_group_size(work) == 1) return PL_OK;
    return pl_work_collective(work, PL_ALL_REDUCE, &(pl_segment){flags, flags, 4, PL_I64}, 1);
}

static pl_status bring(pl_work *work, pl_buffer_kind kind, int64_t bytes, int place, bool *has)
{
    const void *from = NULL;
    *has = pl_work_find(work, kind, PL_USE_READ, PL_ANY_PART) != NULL;
    if (!*has) return PL_OK;
    PL_TRY(pl_work_read(work, kind, bytes, &from));
    return pl_work_copy(work, work->executor->staging + place, from, bytes, PL_COPY_TO_HOST);
}

pl_status pl_do_control_finish(pl_work *work)
{
    pl_program_result *result = &work->executor->result;
    const char *staging = work->executor->staging;
    bool loss = false, tokens = false, clip = false;
    double sums[2], norm[3];
    void *flags = NULL;
    work->device->entry = work->entry->name;
    PL_TRY(pl_work_write(work, PL_BUF_FLAGS, FLAG_BYTES, &flags));
    PL_TRY(
        pl_work_copy(work, work->executor->staging + AT_FLAGS, flags, FLAG_BYTES, PL_COPY_TO_HOST));
    PL_TRY(bring(work, PL_BUF_LOSS_SUM, sizeof sums, AT_LOSS, &loss));
    PL_TRY(bring(work, PL_BUF_TOKEN_COUNT, 8, AT_TOKENS, &tokens));
    PL_TRY(bring(work, PL_BUF_CLIP, sizeof norm, AT_CLIP, &clip));
    PL_TRY(work->device->functions->synchronize(work->device, work->stream));
    memcpy(result->flags, staging + AT_FLAGS, FLAG_BYTES);
    if (tokens) memcpy(&result->tokens, staging + AT_TOKENS, 8);
    if (loss) {
        memcpy(sums, staging + AT_LOSS, sizeof sums);
        result->loss_sum = sums[0];
        result->balance_loss = sums[1];
    }
    if (!clip) return PL_OK;
    memcpy(norm, staging + AT_CLIP, sizeof norm);
    result->norm = norm[0];
    result->clip = norm[1];
    result->updated = norm[2] != 0 && result->tokens > 0;
    return PL_OK;
}
