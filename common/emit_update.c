/* Entries around the layers: the batch, the loss sums, and the update that ends a step. */
#include "common/plan_builder.h"

static uint32_t one(pl_builder *builder, pl_buffer_kind kind)
{
    return pl_builder_buffer(builder, kind, 0, -1);
}

static pl_entry *open_entry(pl_builder *builder, pl_operation operation, pl_subject subject,
                            pl_stream stream)
{
    return pl_builder_open(
        builder, pl_builder_name(builder, operation, subject, -1, -1, PL_PASS_NONE), stream);
}

static int64_t group_size(const pl_builder *builder, pl_group_role role)
{
    return pl_layout_group_size(builder->facts->layout, role);
}

/* An all-reduce of one small buffer; nothing when the group is one rank. */
static void reduce_one(pl_builder *builder, pl_subject subject, pl_buffer_kind kind,
                       pl_group_role role)
{
    if (builder->status != PL_OK || group_size(builder, role) == 1) return;
    uint32_t number = one(builder, kind);
    const pl_buffer *buffer = &builder->section->buffers[number];
    pl_dtype wire = (pl_dtype)buffer->dtype;
    int64_t bytes = buffer->bytes;
    open_entry(builder, PL_OP_ALL_REDUCE, subject, PL_STREAM_COMMUNICATION);
    pl_builder_communicate(builder, role, PL_REDUCTION_SUM, wire, bytes);
    pl_builder_update(builder, number);
    pl_builder_close(builder);
}

/* --- the batch --- */

void pl_emit_load_batch(pl_builder *builder)
{
    pl_entry *entry = open_entry(builder, PL_OP_LOAD_BATCH, PL_SUBJECT_BATCH, PL_STREAM_HOST);
    entry->group = PL_GROUP_DATA; /* the index in it is the batch index */
    pl_builder_begin(builder, one(builder, PL_BUF_BATCH));
    pl_builder_close(builder);
}

/* Labels are on the host, so the count of valid ones is the first collective. */
void pl_emit_token_count(pl_builder *builder)
{
    open_entry(builder, PL_OP_COUNT_TOKENS, PL_SUBJECT_TOKENS, PL_STREAM_HOST);
    pl_builder_read(builder, one(builder, PL_BUF_BATCH));
    pl_builder_begin(builder, one(builder, PL_BUF_TOKEN_COUNT));
    pl_builder_close(builder);
    reduce_one(builder, PL_SUBJECT_TOKENS, PL_BUF_TOKEN_COUNT, PL_GROUP_STAGE);
}

void pl_emit_copy_batch(pl_builder *builder, bool labels)
{
    const pl_plan_facts *facts = builder->facts;
    for (int32_t mb = 0; mb < facts->micro_batches; ++mb) {
        bool last = builder->round == facts->rounds - 1 && mb == facts->micro_batches - 1;
        pl_builder_open(
            builder,
            pl_builder_name(builder, PL_OP_COPY, PL_SUBJECT_BATCH, -1, mb, PL_PASS_FORWARD),
            PL_STREAM_COPY);
        pl_builder_read_last(builder, one(builder, PL_BUF_BATCH), last);
        pl_builder_begin(builder, pl_builder_buffer(builder, PL_BUF_TOKENS, 0, mb));
        if (labels) pl_builder_begin(builder, pl_builder_buffer(builder, PL_BUF_LABELS, 0, mb));
        pl_builder_close(builder);
    }
}

/* Counts span all ranks of the stage, or the cp ranks for the sequence form. One reduction a
 * round carries those of every layer and micro-batch. */
void pl_emit_balance(pl_builder *builder)
{
    const pl_plan_facts *facts = builder->facts;
    pl_balance form = facts->settings->balance;
    if (!facts->balance) return;
    reduce_one(builder, PL_SUBJECT_BALANCE, PL_BUF_BALANCE,
               form == PL_BALANCE_SEQUENCE ? PL_GROUP_CONTEXT : PL_GROUP_STAGE);
    open_entry(builder, PL_OP_BALANCE, PL_SUBJECT_BALANCE, PL_STREAM_COMPUTE);
    pl_builder_update_last(builder, one(builder, PL_BUF_BALANCE), facts->balance_reader < 0);
    if (form == PL_BALANCE_GLOBAL_BATCH)
        pl_builder_add_into(builder, one(builder, PL_BUF_BALANCE_TOTAL));
    pl_builder_read_last(builder, one(builder, PL_BUF_BALANCE_SCORES), true);
    pl_builder_update(builder, one(builder, PL_BUF_LOSS_SUM));
    if (form == PL_BALANCE_GLOBAL_BATCH && builder->round == facts->rounds - 1)
        pl_builder_end(builder, one(builder, PL_BUF_BALANCE_TOTAL));
    pl_builder_close(builder);
}

/* --- gradients --- */

typedef void (*part_use)(pl_builder *builder, int32_t part);

static void each_trained(pl_builder *builder, bool ignored, pl_subject subject, part_use use)
{
    const pl_parts *parts = &builder->facts->parts;
    for (int32_t i = 0; i < parts->part_count; ++i) {
        const pl_part *part = &parts->part[i];
        bool experts = part->subject == PL_SUBJECT_EXPERTS;
        if (subject == PL_SUBJECT_DENSE_GRADIENTS && experts) continue;
        if (subject == PL_SUBJECT_EXPERT_GRADIENTS && !experts) continue;
        if ((ignored ? part->ignored_elements : part->trained_elements) > 0) use(builder, i);
    }
}

static void update_gradient(pl_builder *builder, int32_t part)
{
    pl_builder_update(builder, pl_builder_buffer(builder, PL_BUF_GRADIENT, part, -1));
}

static void update_ignored_gradient(pl_builder *builder, int32_t part)
{
    pl_builder_update(builder, pl_builder_buffer(builder, PL_BUF_IGNORED_GRADIENT, part, -1));
}

static void read_gradient(pl_builder *builder, int32_t part)
{
    pl_builder_read(builder, pl_builder_buffer(builder, PL_BUF_GRADIENT, part, -1));
}

static void read_ignored_gradient(pl_builder *builder, int32_t part)
{
    pl_builder_read(builder, pl_builder_buffer(builder, PL_BUF_IGNORED_GRADIENT, part, -1));
}

/* Padded elements of all shards of SUBJECT, or elements of all ignored parameters. */
static int64_t gradient_elements(const pl_builder *builder, bool ignored, pl_subject subject)
{
    const pl_parts *parts = &builder->facts->parts;
    int64_t sum = 0;
    for (int32_t i = 0; i < parts->part_count; ++i) {
        bool experts = parts->part[i].subject == PL_SUBJECT_EXPERTS;
        if (subject == PL_SUBJECT_DENSE_GRADIENTS && experts) continue;
        if (subject == PL_SUBJECT_EXPERT_GRADIENTS && !experts) continue;
        sum += ignored ? parts->part[i].ignored_elements : parts->part[i].trained_elements;
    }
    return sum;
}

static void reduce_replicas(pl_builder *builder, bool ignored, pl_subject subject,
                            pl_group_role role)
{
    int64_t elements = gradient_elements(builder, ignored, subject);
    if (elements == 0 || group_size(builder, role) == 1) return;
    open_entry(builder, PL_OP_ALL_REDUCE, subject, PL_STREAM_COMMUNICATION);
    pl_builder_communicate(builder, role, PL_REDUCTION_SUM, PL_FP32,
                           pl_builder_product(builder, elements, 4, 1, 1));
    each_trained(builder, ignored, subject, ignored ? update_ignored_gradient : update_gradient);
    pl_builder_close(builder);
}

/* Real elements of this rank's trained tensors: what is scaled, squared and updated. */
static int64_t local_elements(pl_builder *builder)
{
    const pl_parts *parts = &builder->facts->parts;
    int64_t sum = gradient_elements(builder, true, PL_SUBJECT_GRADIENTS);
    for (int32_t i = 0; i < parts->part_count; ++i)
        if (parts->part[i].trained_elements > 0)
            sum += pl_builder_local_elements(builder, i, false);
    return sum;
}

static void emit_scale(pl_builder *builder)
{
    pl_entry *entry = open_entry(builder, PL_OP_SCALE, PL_SUBJECT_GRADIENTS, PL_STREAM_COMPUTE);
    entry->scale = (pl_scale){1, 1, -1};
    entry->elements = local_elements(builder);
    pl_builder_read(builder, one(builder, PL_BUF_TOKEN_COUNT));
    each_trained(builder, false, PL_SUBJECT_GRADIENTS, update_gradient);
    each_trained(builder, true, PL_SUBJECT_GRADIENTS, update_ignored_gradient);
    pl_builder_close(builder);
}

/* Sums of squares: each element once, so over shards and owners and never over replicas. */
static void emit_norm(pl_builder *builder)
{
    static const struct {
        pl_buffer_kind kind;
        pl_subject gradients, squares;
        bool ignored;
        pl_group_role role;
    } sums[3] = {
        {PL_BUF_DENSE_SQUARES, PL_SUBJECT_DENSE_GRADIENTS, PL_SUBJECT_DENSE_SQUARES, false,
         PL_GROUP_DENSE_SHARD},
        {PL_BUF_EXPERT_SQUARES, PL_SUBJECT_EXPERT_GRADIENTS, PL_SUBJECT_EXPERT_SQUARES, false,
         PL_GROUP_EXPERT_BLOCK},
        {PL_BUF_IGNORED_SQUARES, PL_SUBJECT_GRADIENTS, PL_SUBJECT_GRADIENTS, true, PL_GROUP_NONE},
    };
    bool wanted[3];
    for (int i = 0; i < 3; ++i)
        wanted[i] = gradient_elements(builder, sums[i].ignored, sums[i].gradients) > 0;
    pl_entry *entry =
        open_entry(builder, PL_OP_GRADIENT_NORM, PL_SUBJECT_GRADIENTS, PL_STREAM_COMPUTE);
    entry->elements = local_elements(builder);
    each_trained(builder, false, PL_SUBJECT_GRADIENTS, read_gradient);
    each_trained(builder, true, PL_SUBJECT_GRADIENTS, read_ignored_gradient);
    for (int i = 0; i < 3; ++i)
        if (wanted[i]) pl_builder_begin(builder, one(builder, sums[i].kind));
    pl_builder_close(builder);
    for (int i = 0; i < 2; ++i)
        if (wanted[i]) reduce_one(builder, sums[i].squares, sums[i].kind, sums[i].role);
    open_entry(builder, PL_OP_CLIP, PL_SUBJECT_GRADIENTS, PL_STREAM_COMPUTE);
    for (int i = 0; i < 3; ++i)
        if (wanted[i]) pl_builder_read_last(builder, one(builder, sums[i].kind), true);
    pl_builder_begin(builder, one(builder, PL_BUF_CLIP));
    pl_builder_close(builder);
}

/* --- the update --- */

static void step_part(pl_builder *builder, int32_t part)
{
    const pl_plan_facts *facts = builder->facts;
    pl_buffer_kind target = facts->masters ? PL_BUF_MASTER : PL_BUF_PARAMETER;
    pl_builder_read_last(builder, pl_builder_buffer(builder, PL_BUF_GRADIENT, part, -1), true);
    pl_builder_update(builder, pl_builder_buffer(builder, target, part, -1));
    if (facts->settings->optimizer != PL_OPTIMIZER_ADAMW) return;
    pl_builder_update(builder, pl_builder_buffer(builder, PL_BUF_ADAM_M, part, -1));
    pl_builder_update(builder, pl_builder_buffer(builder, PL_BUF_ADAM_V, part, -1));
}

static void step_ignored(pl_builder *builder, int32_t part)
{
    pl_builder_read_last(builder, pl_builder_buffer(builder, PL_BUF_IGNORED_GRADIENT, part, -1),
                         true);
    pl_builder_update(builder, pl_builder_buffer(builder, PL_BUF_IGNORED, part, -1));
    if (builder->facts->settings->optimizer != PL_OPTIMIZER_ADAMW) return;
    pl_builder_update(builder, pl_builder_buffer(builder, PL_BUF_IGNORED_M, part, -1));
    pl_builder_update(builder, pl_builder_buffer(builder, PL_BUF_IGNORED_V, part, -1));
}

static void cast_part(pl_builder *builder, int32_t part)
{
    pl_builder_read(builder, pl_builder_buffer(builder, PL_BUF_MASTER, part, -1));
    pl_builder_update(builder, pl_builder_buffer(builder, PL_BUF_PARAMETER, part, -1));
}

static void emit_optimizer(pl_builder *builder)
{
    pl_entry *entry = open_entry(builder, PL_OP_STEP, PL_SUBJECT_PARAMETERS, PL_STREAM_COMPUTE);
    entry->predicate = PL_IF_UPDATE;
    entry->elements = local_elements(builder);
    pl_builder_read(builder, one(builder, PL_BUF_CLIP));
    pl_builder_read(builder, one(builder, PL_BUF_TOKEN_COUNT));
    each_trained(builder, false, PL_SUBJECT_GRADIENTS, step_part);
    each_trained(builder, true, PL_SUBJECT_GRADIENTS, step_ignored);
    pl_builder_close(builder);
    if (!builder->facts->masters || gradient_elements(builder, false, PL_SUBJECT_GRADIENTS) == 0)
        return;
    entry = open_entry(builder, PL_OP_CAST, PL_SUBJECT_PARAMETERS, PL_STREAM_COMPUTE);
    entry->predicate = PL_IF_UPDATE;
    each_trained(builder, false, PL_SUBJECT_GRADIENTS, cast_part);
    pl_builder_close(builder);
}

void pl_emit_update(pl_builder *builder)
{
    reduce_replicas(builder, false, PL_SUBJECT_DENSE_GRADIENTS, PL_GROUP_DENSE_REPLICA);
    reduce_replicas(builder, false, PL_SUBJECT_EXPERT_GRADIENTS, PL_GROUP_EXPERT_REPLICA);
    reduce_replicas(builder, true, PL_SUBJECT_IGNORED_GRADIENTS, PL_GROUP_STAGE);
    emit_scale(builder);
    emit_norm(builder);
    emit_optimizer(builder);
}

void pl_emit_loss_sum(pl_builder *builder)
{
    reduce_one(builder, PL_SUBJECT_LOSS, PL_BUF_LOSS_SUM, PL_GROUP_STAGE);
}

/* Every program ends here: four flags agree on all ranks of the world, each the largest of all
 * ranks': stop, save, failed, and a save that is not finished. With them the host learns the
 * numbers of the program: loss and T, norm and clip coefficient. */
void pl_emit_control(pl_builder *builder)
{
    bool step = builder->section->program == PL_PROGRAM_STEP;
    bool losses = step || builder->section->program == PL_PROGRAM_EVALUATE;
    bool alone = group_size(builder, PL_GROUP_WORLD) == 1;
    open_entry(builder, PL_OP_CONTROL, PL_SUBJECT_FLAGS,
               alone ? PL_STREAM_HOST : PL_STREAM_COMMUNICATION);
    if (!alone)
        pl_builder_communicate(builder, PL_GROUP_WORLD, PL_REDUCTION_MAX, PL_I64, INT64_C(4) * 8);
    if (step) pl_builder_read_last(builder, one(builder, PL_BUF_CLIP), true);
    if (losses) {
        pl_builder_read_last(builder, one(builder, PL_BUF_LOSS_SUM), true);
        pl_builder_read_last(builder, one(builder, PL_BUF_TOKEN_COUNT), true);
    }
    pl_builder_begin(builder, one(builder, PL_BUF_FLAGS));
    pl_builder_end(builder, one(builder, PL_BUF_FLAGS));
    pl_builder_close(builder);
}
