/* What each buffer of a plan is: name, class, element type and size, in one place. */
#include <stdio.h>
#include <string.h>

#include "common/plan_builder.h"

typedef struct buffer_kind {
    const char *stem;
    pl_buffer_scope scope;
    pl_buffer_class class_;
} buffer_kind;

static const buffer_kind kinds[PL_BUFFER_KIND_COUNT] = {
    [PL_BUF_PARAMETER] = {"param", PL_SCOPE_PART, PL_BUFFER_SHARD},
    [PL_BUF_MASTER] = {"master", PL_SCOPE_PART, PL_BUFFER_SHARD},
    [PL_BUF_ADAM_M] = {"adam_m", PL_SCOPE_PART, PL_BUFFER_SHARD},
    [PL_BUF_ADAM_V] = {"adam_v", PL_SCOPE_PART, PL_BUFFER_SHARD},
    [PL_BUF_IGNORED] = {"ignored", PL_SCOPE_PART, PL_BUFFER_SHARD},
    [PL_BUF_IGNORED_M] = {"ignored_m", PL_SCOPE_PART, PL_BUFFER_SHARD},
    [PL_BUF_IGNORED_V] = {"ignored_v", PL_SCOPE_PART, PL_BUFFER_SHARD},
    [PL_BUF_INITIAL] = {"initial", PL_SCOPE_PART, PL_BUFFER_HOST},
    [PL_BUF_INITIAL_IGNORED] = {"initial_ignored", PL_SCOPE_PART, PL_BUFFER_HOST},
    [PL_BUF_HOST_PARAMETER] = {"host_param", PL_SCOPE_PART, PL_BUFFER_HOST},
    [PL_BUF_HOST_MASTER] = {"host_master", PL_SCOPE_PART, PL_BUFFER_HOST},
    [PL_BUF_HOST_ADAM_M] = {"host_adam_m", PL_SCOPE_PART, PL_BUFFER_HOST},
    [PL_BUF_HOST_ADAM_V] = {"host_adam_v", PL_SCOPE_PART, PL_BUFFER_HOST},
    [PL_BUF_HOST_IGNORED] = {"host_ignored", PL_SCOPE_PART, PL_BUFFER_HOST},
    [PL_BUF_HOST_IGNORED_M] = {"host_ignored_m", PL_SCOPE_PART, PL_BUFFER_HOST},
    [PL_BUF_HOST_IGNORED_V] = {"host_ignored_v", PL_SCOPE_PART, PL_BUFFER_HOST},
    [PL_BUF_OUTGOING] = {"outgoing", PL_SCOPE_PART, PL_BUFFER_HOST},
    [PL_BUF_OUTGOING_IGNORED] = {"outgoing_ignored", PL_SCOPE_PART, PL_BUFFER_HOST},
    [PL_BUF_WIRE] = {"wire", PL_SCOPE_PART, PL_BUFFER_GATHERED},
    [PL_BUF_FULL] = {"full", PL_SCOPE_PART, PL_BUFFER_GATHERED},
    [PL_BUF_GRADIENT_SUM] = {"gradsum", PL_SCOPE_PART, PL_BUFFER_SUM},
    [PL_BUF_GRADIENT_WIRE] = {"gradwire", PL_SCOPE_PART, PL_BUFFER_EXCHANGE},
    [PL_BUF_GRADIENT_PIECE] = {"gradpiece", PL_SCOPE_PART, PL_BUFFER_EXCHANGE},
    [PL_BUF_GRADIENT] = {"grad", PL_SCOPE_PART, PL_BUFFER_GRADIENT},
    [PL_BUF_IGNORED_GRADIENT] = {"ignored_grad", PL_SCOPE_PART, PL_BUFFER_GRADIENT},
    [PL_BUF_INPUT] = {"x", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_ACTIVATION},
    [PL_BUF_ATTENDED] = {"h", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_ACTIVATION},
    [PL_BUF_SAVE_ATTENTION] = {"save_attention", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_ACTIVATION},
    [PL_BUF_SAVE_MLP] = {"save_mlp", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_ACTIVATION},
    [PL_BUF_SAVE_ROUTE] = {"save_route", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_ACTIVATION},
    [PL_BUF_SAVE_EXPERTS] = {"save_experts", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_ACTIVATION},
    [PL_BUF_NORMED] = {"y", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_ACTIVATION},
    [PL_BUF_ROUTE] = {"route", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_ACTIVATION},
    [PL_BUF_COUNTS] = {"counts", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_EXCHANGE},
    [PL_BUF_COUNTS_IN] = {"counts_in", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_EXCHANGE},
    [PL_BUF_ROWS] = {"rows", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_HOST},
    [PL_BUF_ROUTES_IN] = {"routes_in", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_EXCHANGE},
    [PL_BUF_SEND] = {"send", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_EXCHANGE},
    [PL_BUF_RECEIVED] = {"in", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_EXCHANGE},
    [PL_BUF_EXPERT_OUT] = {"out", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_EXCHANGE},
    [PL_BUF_RETURNED] = {"back", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_EXCHANGE},
    [PL_BUF_D_INPUT] = {"dx", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_ACTIVATION},
    [PL_BUF_D_ATTENDED] = {"dh", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_ACTIVATION},
    [PL_BUF_D_RETURNED] = {"dback", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_EXCHANGE},
    [PL_BUF_D_EXPERT_OUT] = {"dout", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_EXCHANGE},
    [PL_BUF_D_ACTIVATION] = {"dact", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_ACTIVATION},
    [PL_BUF_D_RECEIVED] = {"din", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_EXCHANGE},
    [PL_BUF_D_SEND] = {"dsend", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_EXCHANGE},
    [PL_BUF_D_NORMED] = {"dy", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_ACTIVATION},
    [PL_BUF_D_ROUTE] = {"droute", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_ACTIVATION},
    [PL_BUF_D_ROUTES_IN] = {"droutes_in", PL_SCOPE_LAYER_MICRO_BATCH, PL_BUFFER_EXCHANGE},
    [PL_BUF_TOKENS] = {"tokens", PL_SCOPE_MICRO_BATCH, PL_BUFFER_ACTIVATION},
    [PL_BUF_LABELS] = {"labels", PL_SCOPE_MICRO_BATCH, PL_BUFFER_ACTIVATION},
    [PL_BUF_FINAL] = {"z", PL_SCOPE_MICRO_BATCH, PL_BUFFER_ACTIVATION},
    [PL_BUF_D_FINAL] = {"dz", PL_SCOPE_MICRO_BATCH, PL_BUFFER_ACTIVATION},
    [PL_BUF_LOGITS] = {"logits", PL_SCOPE_MICRO_BATCH, PL_BUFFER_ACTIVATION},
    [PL_BUF_BATCH] = {"batch", PL_SCOPE_ONE, PL_BUFFER_HOST},
    [PL_BUF_TOKEN_COUNT] = {"token_count", PL_SCOPE_ONE, PL_BUFFER_WORK},
    [PL_BUF_BALANCE] = {"balance", PL_SCOPE_ONE, PL_BUFFER_WORK},
    [PL_BUF_BALANCE_TOTAL] = {"balance_total", PL_SCOPE_ONE, PL_BUFFER_WORK},
    [PL_BUF_BALANCE_SCORES] = {"balance_scores", PL_SCOPE_ONE, PL_BUFFER_WORK},
    [PL_BUF_LOSS_SUM] = {"loss_sum", PL_SCOPE_ONE, PL_BUFFER_WORK},
    [PL_BUF_DENSE_SQUARES] = {"dense_squares", PL_SCOPE_ONE, PL_BUFFER_WORK},
    [PL_BUF_EXPERT_SQUARES] = {"expert_squares", PL_SCOPE_ONE, PL_BUFFER_WORK},
    [PL_BUF_IGNORED_SQUARES] = {"ignored_squares", PL_SCOPE_ONE, PL_BUFFER_WORK},
    [PL_BUF_CLIP] = {"clip", PL_SCOPE_ONE, PL_BUFFER_WORK},
    [PL_BUF_FLAGS] = {"flags", PL_SCOPE_ONE, PL_BUFFER_WORK},
};

static const char *const class_names[PL_BUFFER_CLASS_COUNT] = {
    "shard", "gathered", "gradient", "sum", "activation", "exchange", "work", "host"};

const char *pl_buffer_kind_stem(pl_buffer_kind kind) { return kinds[kind].stem; }

pl_buffer_scope pl_buffer_kind_scope(pl_buffer_kind kind) { return kinds[kind].scope; }

pl_buffer_class pl_buffer_kind_class(pl_buffer_kind kind) { return kinds[kind].class_; }

pl_buffer_kind pl_buffer_kind_held(pl_buffer_kind kind)
{
    bool host = kind >= PL_BUF_HOST_PARAMETER && kind <= PL_BUF_HOST_IGNORED_V;
    return host ? (pl_buffer_kind)(kind - PL_BUF_HOST_PARAMETER + PL_BUF_PARAMETER) : kind;
}

const char *pl_buffer_class_name(pl_buffer_class class_) { return class_names[class_]; }

bool pl_buffer_class_parse(pl_buffer_class *out, const char *name)
{
    for (int i = 0; i < PL_BUFFER_CLASS_COUNT; ++i) {
        if (strcmp(class_names[i], name) != 0) continue;
        *out = (pl_buffer_class)i;
        return true;
    }
    return false;
}

void pl_buffer_print(pl_text *text, const pl_buffer *buffer)
{
    const buffer_kind *kind = &kinds[buffer->kind];
    pl_text_add_string(text, kind->stem);
    if (kind->scope == PL_SCOPE_PART) {
        pl_text_add_string(text, ".");
        pl_subject_print(text, (pl_subject)buffer->subject, buffer->layer);
    }
    if (kind->scope == PL_SCOPE_LAYER_MICRO_BATCH) {
        pl_text_add_string(text, ".");
        pl_text_add_number(text, buffer->layer);
    }
    if (kind->scope == PL_SCOPE_LAYER_MICRO_BATCH || kind->scope == PL_SCOPE_MICRO_BATCH) {
        pl_text_add_string(text, ".mb");
        pl_text_add_number(text, buffer->micro_batch);
    }
}

static bool parse_index(int32_t *out, const char *word, const char *prefix)
{
    size_t length = strlen(prefix);
    int64_t number = -1;
    if (strncmp(word, prefix, length) != 0 || !pl_parse_integer(&number, word + length))
        return false;
    if (number < 0 || number > INT32_MAX || (word[length] == '0' && word[length + 1])) return false;
    *out = (int32_t)number;
    return true;
}

static bool parse_scope(pl_buffer *buffer, pl_buffer_scope scope, const char *rest)
{
    pl_subject subject = PL_SUBJECT_COUNT;
    char layer[16];
    const char *dot = strchr(rest, '.');
    switch (scope) {
    case PL_SCOPE_ONE: return *rest == '\0';
    case PL_SCOPE_MICRO_BATCH: return parse_index(&buffer->micro_batch, rest, "mb");
    case PL_SCOPE_PART:
        if (!pl_subject_parse(&subject, &buffer->layer, rest) || subject > PL_SUBJECT_HEAD)
            return false;
        buffer->subject = (uint8_t)subject;
        return true;
    case PL_SCOPE_LAYER_MICRO_BATCH:
        if (!dot || (size_t)(dot - rest) >= sizeof layer) return false;
        snprintf(layer, sizeof layer, "%.*s", (int)(dot - rest), rest);
        return parse_index(&buffer->layer, layer, "") &&
               parse_index(&buffer->micro_batch, dot + 1, "mb");
    }
    return false;
}

bool pl_buffer_parse(pl_buffer *out, const char *name)
{
    size_t stem = strcspn(name, ".");
    for (int i = 0; i < PL_BUFFER_KIND_COUNT; ++i) {
        if (strlen(kinds[i].stem) != stem || strncmp(kinds[i].stem, name, stem) != 0) continue;
        pl_buffer buffer = {.kind = (uint8_t)i, .layer = -1, .micro_batch = -1};
        buffer.class_ = (uint8_t)kinds[i].class_;
        if (!parse_scope(&buffer, kinds[i].scope, name + stem + (name[stem] == '.'))) return false;
        *out = buffer;
        return true;
    }
    return false;
}

/* --- sizes --- */

static void describe_part_buffer(pl_builder *builder, pl_buffer *buffer, const pl_part *part)
{
    const pl_plan_facts *facts = builder->facts;
    const pl_precision *precision = &facts->settings->precision;
    int64_t shards = facts->parts.unit[part->unit].shards;
    int64_t elements = part->trained_elements, copies = 1;
    pl_dtype stored = facts->model->stored_dtype;
    pl_dtype dtype = PL_FP32;
    int64_t bytes = -1; /* elements of dtype, unless set */
    switch (pl_buffer_kind_held((pl_buffer_kind)buffer->kind)) {
    case PL_BUF_PARAMETER:
        dtype = part->wire;
        bytes = part->wire_bytes;
        break;
    case PL_BUF_WIRE:
        dtype = part->wire;
        bytes = pl_builder_product(builder, part->wire_bytes, shards, 1, 1);
        break;
    case PL_BUF_FULL:
        dtype = precision->compute;
        elements = part->trained_elements + part->frozen_elements;
        copies = shards;
        break;
    case PL_BUF_INITIAL:
    case PL_BUF_OUTGOING: /* fp32 for what is trained, the stored type for what is frozen */
        dtype = part->frozen_elements == 0    ? PL_FP32
                : part->trained_elements == 0 ? stored
                : stored == PL_FP32           ? PL_FP32
                                              : PL_U8;
        bytes = pl_builder_sum(
            builder, pl_builder_product(builder, part->trained_elements, 4, 1, 1),
            pl_builder_product(builder, part->frozen_elements, pl_dtype_bytes(stored), 1, 1));
        break;
    case PL_BUF_GRADIENT_SUM: copies = shards; break;
    case PL_BUF_GRADIENT_WIRE:
        dtype = precision->gradient;
        copies = shards;
        break;
    case PL_BUF_GRADIENT_PIECE: dtype = precision->gradient; break;
    case PL_BUF_IGNORED:
    case PL_BUF_INITIAL_IGNORED:
    case PL_BUF_OUTGOING_IGNORED:
        elements = part->ignored_elements + part->ignored_frozen_elements;
        break;
    case PL_BUF_IGNORED_M:
    case PL_BUF_IGNORED_V:
    case PL_BUF_IGNORED_GRADIENT: elements = part->ignored_elements; break;
    default: break;
    }
    buffer->dtype = (uint8_t)dtype;
    buffer->bytes = bytes >= 0
                        ? bytes
                        : pl_builder_product(builder, elements, copies, pl_dtype_bytes(dtype), 1);
}

/* Bytes a token needs: q, k, v and the output in the compute dtype; log-sum-exp of each head and
 * the reciprocal norms (of the input, and of q and k by head where the model has them) in fp32. */
static int64_t attention_bytes_per_token(const pl_plan_facts *facts)
{
    const pl_model *model = facts->model;
    int64_t heads = model->num_attention_heads, kv_heads = model->num_key_value_heads;
    int64_t norms = model->family == PL_FAMILY_LLAMA ? 1 : 1 + heads + kv_heads;
    return (2 * heads + 2 * kv_heads) * model->head_dim * facts->element_bytes +
           (heads + norms) * 4;
}

/* Rows that a rank computes experts on: k of its tokens without an exchange, R with one, and with
 * all-gather dispatch at most min(k, experts of one owner) of the group's tokens. */
static void size_expert_rows(pl_builder *builder, pl_buffer *buffer, int64_t bytes_per_row)
{
    const pl_plan_facts *facts = builder->facts;
    int64_t top_k = facts->model->num_experts_per_tok;
    int64_t own = facts->model->num_experts / facts->owners;
    if (facts->owners > 1 && facts->settings->policy.dispatch == PL_DISPATCH_ALL_TO_ALL) {
        buffer->per_row = true;
        buffer->bytes = bytes_per_row;
    } else {
        buffer->bytes = pl_builder_product(builder, facts->tokens, facts->owners,
                                           top_k < own ? top_k : own, bytes_per_row);
    }
}

static void size_exchange(pl_builder *builder, pl_buffer *buffer, bool received)
{
    const pl_plan_facts *facts = builder->facts;
    int64_t hidden = facts->model->hidden_size, bytes = facts->element_bytes;
    int64_t top_k = facts->model->num_experts_per_tok;
    bool all_to_all = facts->settings->policy.dispatch == PL_DISPATCH_ALL_TO_ALL;
    if (all_to_all && received && facts->owners > 1) {
        buffer->per_row = true;
        buffer->bytes = pl_builder_product(builder, hidden, bytes, 1, 1);
    } else {
        int64_t rows = all_to_all ? top_k : received ? facts->owners : 1;
        buffer->bytes = pl_builder_product(builder, facts->tokens, rows, hidden, bytes);
    }
}

static void describe_layer_buffer(pl_builder *builder, pl_buffer *buffer)
{
    const pl_plan_facts *facts = builder->facts;
    const pl_model *model = facts->model;
    int64_t tokens = facts->tokens, bytes = facts->element_bytes;
    int64_t top_k = model->num_experts_per_tok, wide = 2 * model->moe_intermediate_size * bytes;
    buffer->dtype = (uint8_t)facts->settings->precision.compute;
    switch ((pl_buffer_kind)buffer->kind) {
    case PL_BUF_SAVE_ATTENTION:
        buffer->dtype = PL_U8;
        buffer->bytes = pl_builder_product(builder, tokens, attention_bytes_per_token(facts), 1, 1);
        break;
    case PL_BUF_SAVE_MLP:
        buffer->dtype = PL_U8;
        buffer->bytes =
            pl_builder_product(builder, tokens, 2 * model->intermediate_size * bytes + 4, 1, 1);
        break;
    case PL_BUF_SAVE_ROUTE:
        buffer->dtype = PL_FP32;
        buffer->bytes = pl_builder_product(builder, tokens, model->num_experts + 1, 4, 1);
        break;
    case PL_BUF_SAVE_EXPERTS:
    case PL_BUF_D_ACTIVATION: size_expert_rows(builder, buffer, wide); break;
    case PL_BUF_ROUTE:
        buffer->dtype = PL_I32;
        buffer->bytes = pl_builder_product(builder, tokens, top_k, 12, 1);
        break;
    case PL_BUF_D_ROUTE:
        buffer->dtype = PL_FP32;
        buffer->bytes = pl_builder_product(builder, tokens, top_k, 4, 1);
        break;
    case PL_BUF_ROUTES_IN:
        buffer->dtype = PL_I32;
        buffer->bytes = pl_builder_product(builder, tokens, top_k, 8, facts->owners);
        break;
    case PL_BUF_D_ROUTES_IN:
        buffer->dtype = PL_FP32;
        buffer->bytes = pl_builder_product(builder, tokens, top_k, 4, facts->owners);
        break;
    case PL_BUF_COUNTS:
    case PL_BUF_COUNTS_IN:
    case PL_BUF_ROWS:
        buffer->dtype = PL_I64;
        buffer->bytes = pl_builder_product(builder, model->num_experts, 8, 1, 1);
        break;
    case PL_BUF_SEND:
    case PL_BUF_RETURNED:
    case PL_BUF_D_RETURNED:
    case PL_BUF_D_SEND: size_exchange(builder, buffer, false); break;
    case PL_BUF_RECEIVED:
    case PL_BUF_EXPERT_OUT:
    case PL_BUF_D_EXPERT_OUT:
    case PL_BUF_D_RECEIVED: size_exchange(builder, buffer, true); break;
    default: buffer->bytes = pl_builder_product(builder, tokens, model->hidden_size, bytes, 1);
    }
}

/* Expert counts: one number an expert, MoE layer and micro-batch (and sequence). */
static int64_t balance_bytes(pl_builder *builder, int64_t element, bool running)
{
    const pl_plan_facts *facts = builder->facts;
    int64_t sequences =
        facts->settings->balance == PL_BALANCE_SEQUENCE ? facts->settings->shape.micro_batch : 1;
    return pl_builder_product(builder, facts->moe_layers, facts->model->num_experts * element,
                              running ? 1 : facts->micro_batches, sequences);
}

static void describe_other_buffer(pl_builder *builder, pl_buffer *buffer)
{
    const pl_plan_facts *facts = builder->facts;
    int64_t tokens = facts->tokens;
    buffer->dtype = PL_FP64;
    buffer->bytes = 8;
    switch ((pl_buffer_kind)buffer->kind) {
    case PL_BUF_TOKENS:
    case PL_BUF_LABELS:
        buffer->dtype = PL_I32;
        buffer->bytes = pl_builder_product(builder, tokens, 4, 1, 1);
        break;
    case PL_BUF_FINAL:
    case PL_BUF_D_FINAL:
        buffer->dtype = (uint8_t)facts->settings->precision.compute;
        buffer->bytes =
            pl_builder_product(builder, tokens, facts->model->hidden_size, facts->element_bytes, 1);
        break;
    case PL_BUF_LOGITS:
        buffer->dtype = PL_FP32;
        buffer->bytes = pl_builder_product(builder, facts->model->vocab_size, 4, 1, 1);
        break;
    case PL_BUF_BATCH:
        buffer->dtype = PL_I32;
        buffer->bytes = pl_builder_product(builder, tokens, 8, facts->micro_batches, facts->rounds);
        break;
    case PL_BUF_BALANCE:
    case PL_BUF_BALANCE_TOTAL:
        buffer->dtype = PL_I64;
        buffer->bytes = balance_bytes(builder, 8, buffer->kind == PL_BUF_BALANCE_TOTAL);
        break;
    case PL_BUF_BALANCE_SCORES:
        buffer->dtype = PL_FP32;
        buffer->bytes = balance_bytes(builder, 4, false);
        break;
    case PL_BUF_TOKEN_COUNT: buffer->dtype = PL_I64; break;
    case PL_BUF_FLAGS:
        buffer->dtype = PL_I64;
        buffer->bytes = INT64_C(4) * 8; /* stop, save, failed, save not finished */
        break;
    case PL_BUF_LOSS_SUM: buffer->bytes = 16; break;
    case PL_BUF_CLIP: buffer->bytes = 24; break;
    default: break;
    }
}

void pl_buffer_describe(pl_builder *builder, pl_buffer *buffer, pl_buffer_kind kind, int32_t slot,
                        int32_t micro_batch)
{
    memset(buffer, 0, sizeof *buffer);
    buffer->kind = (uint8_t)kind;
    buffer->class_ = (uint8_t)kinds[kind].class_;
    buffer->resident = buffer->class_ == PL_BUFFER_SHARD;
    buffer->layer = -1;
    buffer->micro_batch = micro_batch;
    if (kinds[kind].scope == PL_SCOPE_PART) {
        const pl_part *part = &builder->facts->parts.part[slot];
        buffer->subject = (uint8_t)part->subject;
        buffer->layer = part->layer;
        describe_part_buffer(builder, buffer, part);
    } else if (kinds[kind].scope == PL_SCOPE_LAYER_MICRO_BATCH) {
        buffer->layer = slot;
        describe_layer_buffer(builder, buffer);
    } else {
        describe_other_buffer(builder, buffer);
    }
}
