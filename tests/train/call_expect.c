#include "tests/train/call_expect.h"

#include <string.h>

#include "common/placement.h"

/* --- facts --- */

pl_status call_facts_make(call_facts *out, const pl_plan_request *request)
{
    call_facts facts;
    PL_TRY(pl_plan_build(&facts.plan, request));
    pl_status status = pl_parts_make(&facts.parts, &facts.plan.model, &facts.plan.layout,
                                     &facts.plan.settings.precision);
    if (status == PL_OK)
        *out = facts;
    else
        pl_plan_free(&facts.plan);
    return status;
}

void call_facts_free(call_facts *facts)
{
    pl_parts_free(&facts->parts);
    pl_plan_free(&facts->plan);
}

int32_t call_part(const call_facts *facts, int subject, int32_t layer)
{
    const pl_parts *parts = &facts->parts;
    if (subject == PL_SUBJECT_HEAD) return parts->head; /* the embedding's when tied */
    for (int32_t i = 0; i < parts->part_count; ++i)
        if ((int)parts->part[i].subject == subject && parts->part[i].layer == layer) return i;
    return -1;
}

static const pl_tensor *tensor_at(const call_facts *facts, int32_t part, int64_t index)
{
    return &facts->plan.model.tensors[facts->parts.part[part].first_tensor + index];
}

const pl_tensor *call_tensor(const call_facts *facts, int32_t part, const char *suffix)
{
    for (int64_t i = 0; i < facts->parts.part[part].tensor_count; ++i)
        if (strcmp(tensor_at(facts, part, i)->suffix, suffix) == 0)
            return tensor_at(facts, part, i);
    return NULL;
}

static bool is_ignored(const pl_tensor *tensor) { return tensor->class_ == PL_CLASS_IGNORED; }

static bool holds(const call_facts *facts, const pl_tensor *tensor, int64_t rank)
{
    pl_box box = pl_placement_box(&facts->plan.layout, tensor, rank);
    return is_ignored(tensor) || box.end > box.begin;
}

bool call_holds_trained(const call_facts *facts, int32_t part, bool ignored, int64_t rank)
{
    for (int64_t i = 0; i < facts->parts.part[part].tensor_count; ++i) {
        const pl_tensor *tensor = tensor_at(facts, part, i);
        if (!tensor->frozen && is_ignored(tensor) == ignored && holds(facts, tensor, rank))
            return true;
    }
    return false;
}

bool call_module_has(const call_facts *facts, pl_operation operation, int32_t part, bool ignored)
{
    for (int64_t i = 0; i < facts->parts.part[part].tensor_count; ++i) {
        const pl_tensor *tensor = tensor_at(facts, part, i);
        bool first = strncmp(tensor->suffix, "self_attn.", 10) == 0 ||
                     strcmp(tensor->suffix, "input_layernorm.weight") == 0;
        bool in_layer = facts->parts.part[part].subject == PL_SUBJECT_LAYER;
        if (is_ignored(tensor) == ignored && (!in_layer || first == (operation == PL_OP_ATTENTION)))
            return true;
    }
    return false;
}

static int32_t part_of_use(const call_facts *facts, const pl_section *section, const pl_use *use)
{
    const pl_buffer *buffer = &section->buffers[use->buffer];
    if (pl_buffer_kind_scope((pl_buffer_kind)buffer->kind) != PL_SCOPE_PART) return -1;
    return call_part(facts, buffer->subject, buffer->layer);
}

const pl_use *call_use(const call_facts *facts, const pl_section *section, const pl_entry *entry,
                       pl_buffer_kind kind, uint32_t flags, int32_t part)
{
    for (uint32_t i = 0; i < entry->use_count; ++i) {
        const pl_use *use = &section->uses[entry->use_first + i];
        if (section->buffers[use->buffer].kind != (uint8_t)kind) continue;
        if ((use->flags & flags) != flags) continue;
        if (part < 0 || part_of_use(facts, section, use) == part) return use;
    }
    return NULL;
}

/* --- an entry --- */

enum { TOUCHED_MOST = 16 };

typedef struct maker {
    call_names *names;
    const call_facts *facts;
    const pl_section *section;
    const pl_entry *entry;
    int64_t rank;
    int32_t part; /* of the entry's subject; -1: none */
    int touched_count;
    const pl_tensor *touched[TOUCHED_MOST]; /* whose gradients the entry computes */
} maker;

static void expect(maker *m, const char *name)
{
    if (m->names->count < CALLS_MOST) m->names->name[m->names->count] = name;
    ++m->names->count;
}

static void expect_times(maker *m, const char *name, int64_t times)
{
    for (int64_t i = 0; i < times; ++i) expect(m, name);
}

static bool writes(const maker *m, pl_buffer_kind kind)
{
    return call_use(m->facts, m->section, m->entry, kind, PL_USE_WRITE, -1) != NULL;
}

static bool reads(const maker *m, pl_buffer_kind kind)
{
    return call_use(m->facts, m->section, m->entry, kind, PL_USE_READ, -1) != NULL;
}

static bool is_backward(const maker *m)
{
    return m->entry->name.pass != PL_PASS_FORWARD && m->entry->name.pass != PL_PASS_RECOMPUTE;
}

static bool has(const maker *m, const char *suffix)
{
    return call_tensor(m->facts, m->part, suffix) != NULL;
}

static bool all_to_all(const maker *m)
{
    return m->facts->plan.settings.policy.dispatch == PL_DISPATCH_ALL_TO_ALL;
}

/* --- gradients --- */

static pl_buffer_kind gradient_kind(const maker *m, int32_t part, const pl_tensor *tensor)
{
    const pl_parts *parts = &m->facts->parts;
    if (is_ignored(tensor)) return PL_BUF_IGNORED_GRADIENT;
    return parts->unit[parts->part[part].unit].shards > 1 ? PL_BUF_GRADIENT_SUM : PL_BUF_GRADIENT;
}

/* Rows behind the real ones in a whole gradient: of the tensor, or of an owner's experts. */
static int64_t padding(const maker *m, int32_t part, const pl_tensor *tensor)
{
    const pl_layout *layout = &m->facts->plan.layout;
    const pl_parts *parts = &m->facts->parts;
    int64_t shards = parts->unit[parts->part[part].unit].shards;
    int64_t rows = pl_tensor_total_rows(tensor);
    if (is_ignored(tensor)) return 0;
    if (tensor->class_ == PL_CLASS_EXPERT)
        rows /= pl_layout_group_size(layout, PL_GROUP_EXPERT_OWNER);
    return shards * pl_placement_padded_rows(layout, tensor) - rows;
}

/* The entry computes the gradient of SUFFIX. Whoever begins the buffer zeroes padding first. */
static bool wanted(maker *m, const char *suffix)
{
    const pl_tensor *tensor = call_tensor(m->facts, m->part, suffix);
    if (!tensor || tensor->frozen) return false;
    const pl_use *use = call_use(m->facts, m->section, m->entry, gradient_kind(m, m->part, tensor),
                                 PL_USE_WRITE, m->part);
    if (!use) return false;
    if ((use->flags & PL_USE_BEGIN) && padding(m, m->part, tensor) > 0) expect(m, "fill");
    if (m->touched_count < TOUCHED_MOST) m->touched[m->touched_count++] = tensor;
    return true;
}

static bool is_touched(const maker *m, const pl_tensor *tensor)
{
    for (int i = 0; i < m->touched_count; ++i)
        if (m->touched[i] == tensor) return true;
    return false;
}

/* A gradient buffer that an entry begins holds zeroes for what the entry does not compute. */
static void expect_rest_zeroed(maker *m)
{
    for (uint32_t i = 0; i < m->entry->use_count; ++i) {
        const pl_use *use = &m->section->uses[m->entry->use_first + i];
        int kind = m->section->buffers[use->buffer].kind;
        int32_t part = part_of_use(m->facts, m->section, use);
        if (!(use->flags & PL_USE_BEGIN) || part < 0) continue;
        for (int64_t j = 0; j < m->facts->parts.part[part].tensor_count; ++j) {
            const pl_tensor *tensor = tensor_at(m->facts, part, j);
            if (tensor->frozen || is_touched(m, tensor)) continue;
            if ((int)gradient_kind(m, part, tensor) == kind) expect(m, "fill");
        }
    }
}

/* --- modules --- */

static void expect_projection(maker *m, const char *bias)
{
    expect(m, "product");
    if (has(m, bias)) expect(m, "bias");
}

static void expect_attention_forward(maker *m)
{
    expect(m, "rms_norm");
    expect_projection(m, "self_attn.q_proj.bias");
    expect_projection(m, "self_attn.k_proj.bias");
    expect_projection(m, "self_attn.v_proj.bias");
    expect_times(m, "head_rotate", 2);
    expect(m, "attention");
    expect_projection(m, "self_attn.o_proj.bias");
}

static void expect_weights(maker *m, bool weight, bool bias)
{
    if (weight) expect(m, "product");
    if (bias) expect(m, "bias_backward");
}

static void expect_attention_backward(maker *m)
{
    static const char *const weights[3] = {"self_attn.q_proj.weight", "self_attn.k_proj.weight",
                                           "self_attn.v_proj.weight"};
    static const char *const biases[3] = {"self_attn.q_proj.bias", "self_attn.k_proj.bias",
                                          "self_attn.v_proj.bias"};
    bool weight[3], bias[3], any = false;
    bool norm = wanted(m, "input_layernorm.weight");
    for (int i = 0; i < 3; ++i) any |= weight[i] = wanted(m, weights[i]);
    for (int i = 0; i < 3; ++i) any |= bias[i] = wanted(m, biases[i]);
    bool q_norm = wanted(m, "self_attn.q_norm.weight"),
         k_norm = wanted(m, "self_attn.k_norm.weight");
    bool input = norm || writes(m, PL_BUF_D_INPUT);
    bool out = wanted(m, "self_attn.o_proj.weight"), out_bias = wanted(m, "self_attn.o_proj.bias");
    expect_weights(m, out, out_bias);
    if (!input && !any && !q_norm && !k_norm) return;
    expect(m, "product"); /* through the output projection */
    expect_times(m, "head_rotate", 2);
    expect(m, "attention_backward");
    expect_times(m, "head_rotate_backward", 2);
    if (any) expect(m, "rms_norm"); /* the projections' input, again */
    for (int i = 0; i < 3; ++i) expect_weights(m, weight[i], bias[i]);
    if (!input) return;
    expect_times(m, "product", 3);
    expect(m, "rms_norm_backward");
}

static void expect_mlp_forward(maker *m)
{
    expect(m, "rms_norm");
    expect_projection(m, "mlp.gate_proj.bias");
    expect_projection(m, "mlp.up_proj.bias");
    if (m->entry->name.pass == PL_PASS_RECOMPUTE) return; /* enough for backward */
    expect(m, "swiglu");
    expect_projection(m, "mlp.down_proj.bias");
}

static void expect_mlp_backward(maker *m)
{
    expect(m, "swiglu"); /* the last projection's input, again */
    bool down = wanted(m, "mlp.down_proj.weight"), down_bias = wanted(m, "mlp.down_proj.bias");
    expect_weights(m, down, down_bias);
    expect(m, "product");
    expect(m, "swiglu_backward");
    expect(m, "rms_norm");
    bool gate = wanted(m, "mlp.gate_proj.weight"), gate_bias = wanted(m, "mlp.gate_proj.bias");
    expect_weights(m, gate, gate_bias);
    bool up = wanted(m, "mlp.up_proj.weight"), up_bias = wanted(m, "mlp.up_proj.bias");
    expect_weights(m, up, up_bias);
    bool norm = wanted(m, "post_attention_layernorm.weight");
    if (!norm && !writes(m, PL_BUF_D_ATTENDED)) return;
    expect_times(m, "product", 2);
    expect(m, "rms_norm_backward");
}

/* Whoever begins the counts of the balance loss zeroes them for all layers. */
static void expect_route_forward(maker *m)
{
    static const pl_buffer_kind counts[2] = {PL_BUF_BALANCE, PL_BUF_BALANCE_SCORES};
    expect(m, "rms_norm");
    if (m->entry->name.pass == PL_PASS_RECOMPUTE && !writes(m, PL_BUF_SAVE_ROUTE)) return;
    for (int i = 0; i < 2; ++i)
        if (call_use(m->facts, m->section, m->entry, counts[i], PL_USE_BEGIN, -1))
            expect(m, "fill");
    expect(m, "product");
    expect(m, "route");
}

static void expect_route_backward(maker *m)
{
    expect(m, "route_backward");
    bool router = wanted(m, "mlp.gate.weight");
    if (router) expect(m, "product");
    bool norm = wanted(m, "post_attention_layernorm.weight");
    if (!norm && !writes(m, PL_BUF_D_ATTENDED)) return;
    expect(m, "product");
    expect(m, "rms_norm_backward");
}

static void expect_experts(maker *m)
{
    switch ((pl_pass)m->entry->name.pass) {
    case PL_PASS_BACKWARD_INPUTS: expect(m, "experts_inputs"); return;
    case PL_PASS_BACKWARD_WEIGHTS:
        wanted(m, "mlp.experts.gate_proj.weight");
        wanted(m, "mlp.experts.up_proj.weight");
        wanted(m, "mlp.experts.down_proj.weight");
        expect(m, "experts_weights");
        return;
    default: expect(m, "experts");
    }
}

static void expect_merge(maker *m)
{
    if (!is_backward(m)) {
        expect(m, all_to_all(m) ? "merge" : "sum"); /* all-gather: the owners weighted the rows */
        return;
    }
    expect(m, all_to_all(m) ? "merge_backward" : "copy");
    if (writes(m, PL_BUF_D_ATTENDED)) expect(m, "copy"); /* the residual */
}

/* Rows to the owners or back; SENDS: the direction in which all-gather dispatch gathers. */
static void expect_rows(maker *m, bool sends)
{
    expect(m, all_to_all(m) ? "all-to-all-uneven" : sends ? "all-gather" : "reduce-scatter");
}

static void expect_embed(maker *m)
{
    if (is_backward(m)) wanted(m, "model.embed_tokens.weight");
    expect(m, is_backward(m) ? "embed_backward" : "embed");
}

static void expect_final_norm(maker *m)
{
    if (is_backward(m)) wanted(m, "model.norm.weight");
    expect(m, is_backward(m) ? "rms_norm_backward" : "rms_norm");
}

static void expect_loss(maker *m)
{
    bool tied = m->facts->plan.model.tie_word_embeddings;
    wanted(m, tied ? "model.embed_tokens.weight" : "lm_head.weight");
    expect(m, "loss");
}

static bool expect_module(maker *m)
{
    switch ((pl_operation)m->entry->name.operation) {
    case PL_OP_EMBED: expect_embed(m); break;
    case PL_OP_ATTENTION:
        if (is_backward(m))
            expect_attention_backward(m);
        else
            expect_attention_forward(m);
        break;
    case PL_OP_MLP:
        if (is_backward(m))
            expect_mlp_backward(m);
        else
            expect_mlp_forward(m);
        break;
    case PL_OP_ROUTE:
        if (is_backward(m))
            expect_route_backward(m);
        else
            expect_route_forward(m);
        break;
    case PL_OP_EXPERTS: expect_experts(m); break;
    case PL_OP_FINAL_NORM: expect_final_norm(m); break;
    case PL_OP_LOSS: expect_loss(m); break;
    default: return false;
    }
    expect_rest_zeroed(m);
    return true;
}

/* --- copies and casts: one call for tensors that stand together on both sides --- */

/* Tensors of PART that are moved in one run after another: those that are trained, if TRAINED, and
 * frozen, if FROZEN; another between them ends a run where BROKEN, another type always. */
static int64_t runs_of(const maker *m, int32_t part, bool trained, bool frozen, bool broken)
{
    const pl_model *model = &m->facts->plan.model;
    const pl_precision *precision = &m->facts->plan.settings.precision;
    int64_t runs = 0;
    int last = -1;
    for (int64_t i = 0; i < m->facts->parts.part[part].tensor_count; ++i) {
        const pl_tensor *tensor = tensor_at(m->facts, part, i);
        int type = (int)pl_parts_wire_dtype(model, precision, tensor);
        if (is_ignored(tensor)) continue;
        if (tensor->frozen ? frozen : trained) {
            runs += last != type;
            last = type;
        } else if (broken) {
            last = -1;
        }
    }
    return runs;
}

static void expect_copy(maker *m)
{
    if (m->entry->name.subject == PL_SUBJECT_BATCH) {
        expect_times(m, "copy", writes(m, PL_BUF_TOKENS) + writes(m, PL_BUF_LABELS));
        return;
    }
    bool masters = m->facts->plan.settings.precision.gather != PL_FP32;
    if (writes(m, PL_BUF_IGNORED)) expect(m, "copy");
    if (writes(m, PL_BUF_MASTER)) expect_times(m, "copy", runs_of(m, m->part, true, false, true));
    if (!writes(m, PL_BUF_PARAMETER)) return;
    if (masters)
        expect_times(m, "copy", runs_of(m, m->part, false, true, true));
    else
        expect(m, "copy");
}

static void expect_casts(maker *m)
{
    for (uint32_t i = 0; i < m->entry->use_count; ++i) {
        const pl_use *use = &m->section->uses[m->entry->use_first + i];
        int32_t part = part_of_use(m->facts, m->section, use);
        if (!(use->flags & PL_USE_WRITE) || part < 0) continue;
        switch ((pl_buffer_kind)m->section->buffers[use->buffer].kind) {
        case PL_BUF_FULL: expect_times(m, "cast", runs_of(m, part, true, true, false)); break;
        case PL_BUF_PARAMETER: expect_times(m, "cast", runs_of(m, part, true, false, true)); break;
        case PL_BUF_GRADIENT_WIRE:
        case PL_BUF_GRADIENT: expect(m, "cast"); break;
        default: break;
        }
    }
}

/* --- the end of a step --- */

/* A call of NAME for each trained tensor that the rank holds rows of, in buffers used with FLAGS;
 * *SUMS gets a bit for each class of gradients among them: dense, experts, ignored. */
static void expect_each_gradient(maker *m, const char *name, uint32_t flags, unsigned *sums)
{
    *sums = 0;
    for (uint32_t i = 0; i < m->entry->use_count; ++i) {
        const pl_use *use = &m->section->uses[m->entry->use_first + i];
        const pl_buffer *buffer = &m->section->buffers[use->buffer];
        bool ignored = buffer->kind == PL_BUF_IGNORED_GRADIENT;
        int32_t part = part_of_use(m->facts, m->section, use);
        if (!(use->flags & flags) || (buffer->kind != PL_BUF_GRADIENT && !ignored)) continue;
        for (int64_t j = 0; j < m->facts->parts.part[part].tensor_count; ++j) {
            const pl_tensor *tensor = tensor_at(m->facts, part, j);
            if (tensor->frozen || is_ignored(tensor) != ignored) continue;
            if (!holds(m->facts, tensor, m->rank)) continue;
            expect(m, name);
            *sums |= ignored ? 4U : buffer->subject == PL_SUBJECT_EXPERTS ? 2U : 1U;
        }
    }
}

static void expect_norm(maker *m)
{
    static const pl_buffer_kind kinds[3] = {PL_BUF_DENSE_SQUARES, PL_BUF_EXPERT_SQUARES,
                                            PL_BUF_IGNORED_SQUARES};
    unsigned sums = 0;
    expect_each_gradient(m, "squares", PL_USE_READ, &sums);
    for (int i = 0; i < 3; ++i)
        if (writes(m, kinds[i]) && !(sums & (1U << i))) expect(m, "fill"); /* holds none: adds 0 */
}

static void expect_zero(maker *m)
{
    for (uint32_t i = 0; i < m->entry->use_count; ++i)
        if (m->section->uses[m->entry->use_first + i].flags & PL_USE_WRITE) expect(m, "fill");
}

/* Flags go in, are reduced, and come out with the numbers that the host is to learn. */
static void expect_control(maker *m)
{
    expect(m, "copy");
    if (m->facts->plan.layout.world > 1) expect(m, "all-reduce");
    expect(m, "copy");
    expect_times(m, "copy",
                 reads(m, PL_BUF_LOSS_SUM) + reads(m, PL_BUF_TOKEN_COUNT) + reads(m, PL_BUF_CLIP));
}

static void expect_plain(maker *m)
{
    unsigned sums = 0;
    switch ((pl_operation)m->entry->name.operation) {
    case PL_OP_COUNT_TOKENS: expect(m, "copy"); break;
    case PL_OP_COPY: expect_copy(m); break;
    case PL_OP_ZERO: expect_zero(m); break;
    case PL_OP_CAST:
    case PL_OP_ACCUMULATE: expect_casts(m); break;
    case PL_OP_GATHER: expect(m, "all-gather"); break;
    case PL_OP_REDUCE: expect(m, "reduce-scatter"); break;
    case PL_OP_EXCHANGE_COUNTS: expect(m, "all-to-all"); break;
    case PL_OP_BIND: expect_times(m, "copy", 2); break;
    case PL_OP_PERMUTE: expect(m, is_backward(m) ? "permute_backward" : "permute"); break;
    case PL_OP_SHARE_ROUTES: expect(m, is_backward(m) ? "reduce-scatter" : "all-gather"); break;
    case PL_OP_DISPATCH: expect_rows(m, !is_backward(m)); break;
    case PL_OP_COMBINE: expect_rows(m, is_backward(m)); break;
    case PL_OP_MERGE: expect_merge(m); break;
    case PL_OP_BALANCE: expect(m, "balance"); break;
    case PL_OP_ALL_REDUCE: expect(m, "all-reduce"); break;
    case PL_OP_SCALE: expect_each_gradient(m, "scale", PL_USE_WRITE, &sums); break;
    case PL_OP_GRADIENT_NORM: expect_norm(m); break;
    case PL_OP_CLIP: expect(m, "clip"); break;
    case PL_OP_STEP: expect_each_gradient(m, "update", PL_USE_READ, &sums); break;
    case PL_OP_CONTROL: expect_control(m); break;
    default: break; /* load-batch, initialize, write, reshard: nothing on the device */
    }
}

void call_expect(call_names *out, const call_facts *facts, int64_t rank, const pl_section *section,
                 const pl_entry *entry)
{
    maker m = {.names = out, .facts = facts, .section = section, .entry = entry, .rank = rank};
    m.part = call_part(facts, entry->name.subject, entry->name.layer);
    out->count = 0;
    if (!expect_module(&m)) expect_plain(&m);
}
