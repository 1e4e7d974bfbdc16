/* Sizes that buffers and products must have, from the model's numbers. */
#include "sim/proof.h"

/* The model's numbers by the letters of the formulas below. */
typedef struct numbers {
    int64_t tokens, hidden, query, key_value, heads, kv_heads, experts, top_k, wide, dense_wide;
    int64_t vocabulary, owners, element, sequence, sequences, rounds, micro_batches, layers;
    bool all_to_all, head_norms;
    pl_dtype compute, wire, gradient;
} numbers;

static numbers of_plan(const pl_sim_world *world, pl_program program)
{
    const pl_model *m = &world->plan->model;
    const pl_settings *s = &world->plan->settings;
    numbers n = {.tokens = s->shape.sequence * s->shape.micro_batch, .hidden = m->hidden_size};
    n.heads = m->num_attention_heads;
    n.kv_heads = m->num_key_value_heads;
    n.query = n.heads * m->head_dim;
    n.key_value = n.kv_heads * m->head_dim;
    n.experts = m->num_experts;
    n.top_k = m->num_experts_per_tok;
    n.wide = m->moe_intermediate_size;
    n.dense_wide = m->intermediate_size;
    n.vocabulary = m->vocab_size;
    n.owners = world->groups.size[PL_GROUP_EXPERT_OWNER];
    n.sequence = s->shape.sequence;
    n.sequences = s->shape.micro_batch;
    n.rounds = program == PL_PROGRAM_STEP ? s->shape.rounds : 1;
    n.micro_batches = s->shape.intra_layer;
    n.layers = m->num_hidden_layers;
    n.all_to_all = s->policy.dispatch == PL_DISPATCH_ALL_TO_ALL;
    n.head_norms = m->family != PL_FAMILY_LLAMA;
    n.compute = s->precision.compute;
    n.wire = s->precision.gather;
    n.gradient = s->precision.gradient;
    n.element = pl_dtype_bytes(n.compute);
    return n;
}

static double larger(double a, double b) { return a > b ? a : b; }

/* Rows of the widest tensor times its columns, for every token and the owners' copies, eight bytes
 * each and eight times over: no formula below comes to more. */
bool pl_expect_countable(const pl_sim_world *world)
{
    const pl_model *m = &world->plan->model;
    numbers n = of_plan(world, PL_PROGRAM_STEP);
    double wide = larger((double)n.wide, (double)n.dense_wide);
    wide = larger(wide, larger((double)n.vocabulary, (double)n.experts));
    wide = larger(wide, (double)(n.heads + n.kv_heads) * (double)m->head_dim);
    double rows = (double)n.tokens * (double)n.owners * (double)(n.top_k + 1);
    double products = larger((double)n.hidden, (double)n.sequence) * wide;
    double counts = (double)n.rounds * (double)n.micro_batches * (double)n.layers *
                    (double)(n.experts + 1) * (double)n.sequences;
    return 64 * rows * products < 0x1p63 &&
           64 * rows * (double)n.rounds * (double)n.micro_batches < 0x1p63 && 64 * counts < 0x1p63;
}

/* --- buffers of parts --- */

static bool part_size(const pl_sim_world *world, const numbers *n, const pl_buffer *buffer,
                      int64_t *bytes, pl_dtype *dtype)
{
    const pl_expected_part *p =
        pl_expected_part_of(&world->parts, (pl_subject)buffer->subject, buffer->layer);
    pl_dtype stored = world->plan->model.stored_dtype;
    int64_t gradient = pl_dtype_bytes(n->gradient);
    if (!p->exists) return false;
    *dtype = PL_FP32;
    switch ((pl_buffer_kind)buffer->kind) {
    case PL_BUF_PARAMETER:
    case PL_BUF_HOST_PARAMETER:
        *dtype = p->wire;
        *bytes = p->wire_bytes;
        break;
    case PL_BUF_WIRE:
        *dtype = p->wire;
        *bytes = p->wire_bytes * p->shards;
        break;
    case PL_BUF_FULL:
        *dtype = n->compute;
        *bytes = (p->trained + p->frozen) * p->shards * n->element;
        break;
    case PL_BUF_MASTER:
    case PL_BUF_ADAM_M:
    case PL_BUF_ADAM_V:
    case PL_BUF_HOST_MASTER:
    case PL_BUF_HOST_ADAM_M:
    case PL_BUF_HOST_ADAM_V:
    case PL_BUF_GRADIENT: *bytes = p->trained * 4; break;
    case PL_BUF_INITIAL:
    case PL_BUF_OUTGOING:
        *bytes = p->trained * 4 + p->frozen * pl_dtype_bytes(stored);
        if (p->frozen > 0 && stored != PL_FP32) *dtype = p->trained > 0 ? PL_U8 : stored;
        break;
    case PL_BUF_GRADIENT_SUM: *bytes = p->trained * p->shards * 4; break;
    case PL_BUF_GRADIENT_WIRE:
        *dtype = n->gradient;
        *bytes = p->trained * p->shards * gradient;
        break;
    case PL_BUF_GRADIENT_PIECE:
        *dtype = n->gradient;
        *bytes = p->trained * gradient;
        break;
    case PL_BUF_IGNORED:
    case PL_BUF_INITIAL_IGNORED:
    case PL_BUF_HOST_IGNORED:
    case PL_BUF_OUTGOING_IGNORED: *bytes = (p->whole + p->whole_frozen) * 4; break;
    case PL_BUF_IGNORED_M:
    case PL_BUF_IGNORED_V:
    case PL_BUF_HOST_IGNORED_M:
    case PL_BUF_HOST_IGNORED_V:
    case PL_BUF_IGNORED_GRADIENT: *bytes = p->whole * 4; break;
    default: return false;
    }
    return true;
}

/* --- buffers of layers and micro-batches --- */

/* Rows of experts: R where an exchange decides, else what the dispatch can bring at most. */
static int64_t expert_rows(const numbers *n, bool *per_row)
{
    int64_t own = n->experts / n->owners, most = n->top_k < own ? n->top_k : own;
    *per_row = n->owners > 1 && n->all_to_all;
    return *per_row ? 1 : n->tokens * n->owners * most;
}

static int64_t activation_size(const numbers *n, const pl_buffer *buffer, bool *per_row,
                               pl_dtype *dtype)
{
    int64_t token = n->hidden * n->element;
    *dtype = n->compute;
    switch ((pl_buffer_kind)buffer->kind) {
    case PL_BUF_SAVE_ATTENTION:
        /* q, k, v, output; log-sum-exp by head; 1/rms of the input, of q and k by head */
        *dtype = PL_U8;
        return n->tokens * ((2 * n->query + 2 * n->key_value) * n->element + 4 * n->heads + 4 +
                            (n->head_norms ? 4 * (n->heads + n->kv_heads) : 0));
    case PL_BUF_SAVE_MLP: *dtype = PL_U8; return n->tokens * (2 * n->dense_wide * n->element + 4);
    case PL_BUF_SAVE_ROUTE: *dtype = PL_FP32; return n->tokens * (n->experts + 1) * 4;
    case PL_BUF_SAVE_EXPERTS:
    case PL_BUF_D_ACTIVATION: return expert_rows(n, per_row) * 2 * n->wide * n->element;
    case PL_BUF_ROUTE: *dtype = PL_I32; return n->tokens * n->top_k * 3 * 4;
    case PL_BUF_D_ROUTE: *dtype = PL_FP32; return n->tokens * n->top_k * 4;
    case PL_BUF_ROUTES_IN: *dtype = PL_I32; return n->owners * n->tokens * n->top_k * 2 * 4;
    case PL_BUF_D_ROUTES_IN: *dtype = PL_FP32; return n->owners * n->tokens * n->top_k * 4;
    case PL_BUF_COUNTS:
    case PL_BUF_COUNTS_IN:
    case PL_BUF_ROWS: *dtype = PL_I64; return n->experts * 8;
    case PL_BUF_SEND:
    case PL_BUF_RETURNED:
    case PL_BUF_D_RETURNED:
    case PL_BUF_D_SEND: return n->tokens * (n->all_to_all ? n->top_k : 1) * token;
    case PL_BUF_RECEIVED:
    case PL_BUF_EXPERT_OUT:
    case PL_BUF_D_EXPERT_OUT:
    case PL_BUF_D_RECEIVED:
        *per_row = n->all_to_all;
        return n->all_to_all ? token : n->owners * n->tokens * token;
    default: return n->tokens * token;
    }
}

static int64_t other_size(const pl_sim_world *world, const numbers *n, const pl_buffer *buffer,
                          pl_dtype *dtype)
{
    int64_t moe = 0;
    for (int32_t i = 0; i < world->parts.layers; ++i) moe += pl_expect_moe(world, i);
    bool by_sequence = world->plan->settings.balance == PL_BALANCE_SEQUENCE;
    int64_t numbers_each = moe * n->experts * (by_sequence ? n->sequences : 1);
    int64_t counts = numbers_each * 8;
    *dtype = PL_I64;
    switch ((pl_buffer_kind)buffer->kind) {
    case PL_BUF_TOKENS:
    case PL_BUF_LABELS: *dtype = PL_I32; return n->tokens * 4;
    case PL_BUF_FINAL:
    case PL_BUF_D_FINAL: *dtype = n->compute; return n->tokens * n->hidden * n->element;
    case PL_BUF_LOGITS: *dtype = PL_FP32; return n->vocabulary * 4;
    case PL_BUF_BATCH: *dtype = PL_I32; return n->rounds * n->micro_batches * n->tokens * 2 * 4;
    case PL_BUF_TOKEN_COUNT: return 8;
    case PL_BUF_FLAGS: return INT64_C(4) * 8;
    case PL_BUF_BALANCE: return counts * n->micro_batches;
    case PL_BUF_BALANCE_TOTAL: return counts;
    case PL_BUF_BALANCE_SCORES: *dtype = PL_FP32; return numbers_each * 4 * n->micro_batches;
    case PL_BUF_LOSS_SUM: *dtype = PL_FP64; return INT64_C(2) * 8;
    case PL_BUF_CLIP: *dtype = PL_FP64; return INT64_C(3) * 8;
    default: *dtype = PL_FP64; return 8;
    }
}

static bool in_range(const numbers *n, const pl_buffer *buffer)
{
    pl_buffer_scope scope = pl_buffer_kind_scope((pl_buffer_kind)buffer->kind);
    bool last = buffer->kind == PL_BUF_INPUT || buffer->kind == PL_BUF_D_INPUT;
    if (scope == PL_SCOPE_LAYER_MICRO_BATCH &&
        (buffer->layer < 0 || buffer->layer >= n->layers + last))
        return false;
    if (scope == PL_SCOPE_LAYER_MICRO_BATCH || scope == PL_SCOPE_MICRO_BATCH)
        return buffer->micro_batch >= 0 && buffer->micro_batch < n->micro_batches;
    return true;
}

static pl_buffer_class class_of(pl_buffer_kind kind)
{
    if (kind <= PL_BUF_IGNORED_V) return PL_BUFFER_SHARD;
    switch (kind) {
    case PL_BUF_INITIAL:
    case PL_BUF_INITIAL_IGNORED:
    case PL_BUF_HOST_PARAMETER:
    case PL_BUF_HOST_MASTER:
    case PL_BUF_HOST_ADAM_M:
    case PL_BUF_HOST_ADAM_V:
    case PL_BUF_HOST_IGNORED:
    case PL_BUF_HOST_IGNORED_M:
    case PL_BUF_HOST_IGNORED_V:
    case PL_BUF_OUTGOING:
    case PL_BUF_OUTGOING_IGNORED:
    case PL_BUF_ROWS:
    case PL_BUF_BATCH: return PL_BUFFER_HOST;
    case PL_BUF_WIRE:
    case PL_BUF_FULL: return PL_BUFFER_GATHERED;
    case PL_BUF_GRADIENT_SUM: return PL_BUFFER_SUM;
    case PL_BUF_GRADIENT:
    case PL_BUF_IGNORED_GRADIENT: return PL_BUFFER_GRADIENT;
    case PL_BUF_GRADIENT_WIRE:
    case PL_BUF_GRADIENT_PIECE:
    case PL_BUF_COUNTS:
    case PL_BUF_COUNTS_IN:
    case PL_BUF_ROUTES_IN:
    case PL_BUF_SEND:
    case PL_BUF_RECEIVED:
    case PL_BUF_EXPERT_OUT:
    case PL_BUF_RETURNED:
    case PL_BUF_D_RETURNED:
    case PL_BUF_D_EXPERT_OUT:
    case PL_BUF_D_RECEIVED:
    case PL_BUF_D_SEND:
    case PL_BUF_D_ROUTES_IN: return PL_BUFFER_EXCHANGE;
    default: return kind < PL_BUF_TOKEN_COUNT ? PL_BUFFER_ACTIVATION : PL_BUFFER_WORK;
    }
}

bool pl_expect_buffer(pl_expected_buffer *out, const pl_sim_world *world, pl_program program,
                      const pl_buffer *buffer)
{
    numbers n = of_plan(world, program);
    pl_buffer_scope scope = pl_buffer_kind_scope((pl_buffer_kind)buffer->kind);
    *out = (pl_expected_buffer){0, false, PL_U8, class_of((pl_buffer_kind)buffer->kind)};
    if (scope == PL_SCOPE_PART) return part_size(world, &n, buffer, &out->bytes, &out->dtype);
    if (!in_range(&n, buffer)) return false;
    out->bytes = scope == PL_SCOPE_LAYER_MICRO_BATCH
                     ? activation_size(&n, buffer, &out->per_row, &out->dtype)
                     : other_size(world, &n, buffer, &out->dtype);
    return true;
}

/* --- FLOPs: 2 a multiply-add --- */

/* How many of forward's amounts a backward pass comes to: one for inputs, one for weights. */
static int64_t shares(const pl_entry_name *name) { return name->pass == PL_PASS_BACKWARD ? 2 : 1; }

static int64_t attention_flops(const numbers *n, const pl_entry_name *name)
{
    bool back = name->pass >= PL_PASS_BACKWARD_INPUTS;
    int64_t projections = 2 * n->tokens * n->hidden * (2 * n->query + 2 * n->key_value);
    int64_t products = 2 * n->tokens * n->sequence * n->query;
    return projections * shares(name) + products * (back ? 4 : 2);
}

static int64_t mlp_flops(const numbers *n, const pl_entry_name *name)
{
    /* recompute makes no results, so it leaves the last of three matrices out */
    int64_t matrices = name->pass == PL_PASS_RECOMPUTE ? 2 : 3 * shares(name);
    return 2 * n->tokens * n->hidden * n->dense_wide * matrices;
}

/* Whether the router of LAYER, or anything before it, trains. */
static bool router_trains(const pl_sim_world *world, int32_t layer)
{
    return world->parts.first_trained <= 3 * layer + 2;
}

/* Recompute makes scores for the router's backward pass alone. */
static int64_t route_flops(const pl_sim_world *world, const numbers *n, const pl_entry_name *name)
{
    if (name->pass == PL_PASS_RECOMPUTE && !router_trains(world, name->layer)) return 0;
    return 2 * n->tokens * n->hidden * n->experts * shares(name);
}

/* Three matrices. Backward without a gradient of the input needs the last one's alone; recompute
 * leaves that one out but where the gradient of the weights needs the results. */
static int64_t expert_flops(const pl_sim_world *world, const numbers *n, const pl_entry_name *name,
                            bool *per_row)
{
    bool trains = router_trains(world, name->layer);
    bool weighted_there =
        world->plan->settings.policy.dispatch == PL_DISPATCH_ALL_GATHER; /* by the owner */
    int64_t rows = n->owners > 1 ? 1 : n->tokens * n->top_k, matrices = 3;
    if (name->pass == PL_PASS_BACKWARD_INPUTS && !trains) matrices = 1;
    if (name->pass == PL_PASS_RECOMPUTE && (weighted_there || !trains)) matrices = 2;
    *per_row = n->owners > 1;
    return 2 * rows * n->hidden * n->wide * matrices;
}

/* Logits, and in a step the gradients of the head and of its input. */
static int64_t loss_flops(const pl_sim_world *world, const numbers *n, bool trains)
{
    const pl_expected_part *head = world->parts.tied ? &world->parts.embedding : &world->parts.head;
    bool weights = trains && (head->sharded_attention || head->whole_attention);
    bool inputs = trains && world->parts.first_trained <= 3 * world->parts.layers + 1;
    return 2 * n->tokens * n->hidden * n->vocabulary * (1 + weights + inputs);
}

int64_t pl_expect_flops(const pl_sim_world *world, pl_program program, const pl_entry_name *name,
                        bool *per_row)
{
    numbers n = of_plan(world, program);
    *per_row = false;
    switch ((pl_operation)name->operation) {
    case PL_OP_ATTENTION: return attention_flops(&n, name);
    case PL_OP_MLP: return mlp_flops(&n, name);
    case PL_OP_ROUTE: return route_flops(world, &n, name);
    case PL_OP_EXPERTS: return expert_flops(world, &n, name, per_row);
    case PL_OP_LOSS: return loss_flops(world, &n, program == PL_PROGRAM_STEP);
    case PL_OP_LOGITS: return 2 * n.hidden * n.vocabulary; /* one position */
    default: return 0;
    }
}
