/* Entries of the dense modules: embedding, attention, dense MLP, final norm, loss, logits. */
#include "common/plan_builder.h"

static uint32_t buffer(pl_builder *builder, pl_buffer_kind kind, int32_t layer, int32_t micro_batch)
{
    return pl_builder_buffer(builder, kind, layer, micro_batch);
}

static pl_entry *open_module(pl_builder *builder, pl_operation operation, int32_t part,
                             int32_t micro_batch, pl_pass pass)
{
    const pl_part *p = &builder->facts->parts.part[part];
    return pl_builder_open(
        builder, pl_builder_name(builder, operation, p->subject, p->layer, micro_batch, pass),
        PL_STREAM_COMPUTE);
}

/* Backward of inputs, of weights, or of both, by what is wanted. */
static pl_pass backward_pass(bool inputs, bool weights)
{
    if (inputs && weights) return PL_PASS_BACKWARD;
    return inputs ? PL_PASS_BACKWARD_INPUTS : PL_PASS_BACKWARD_WEIGHTS;
}

void pl_emit_embedding(pl_builder *builder, int32_t micro_batch, pl_pass pass)
{
    int32_t part = builder->facts->parts.embedding;
    bool trained = pl_part_trained(&builder->facts->parts.part[part], PL_MODULE_FIRST);
    if (pass == PL_PASS_FORWARD) {
        open_module(builder, PL_OP_EMBED, part, micro_batch, pass);
        pl_builder_read_part(builder, part);
        pl_builder_read_last(builder, buffer(builder, PL_BUF_TOKENS, 0, micro_batch), !trained);
        pl_builder_begin(builder, buffer(builder, PL_BUF_INPUT, 0, micro_batch));
    } else {
        open_module(builder, PL_OP_EMBED, part, micro_batch, PL_PASS_BACKWARD_WEIGHTS);
        pl_builder_read_last(builder, buffer(builder, PL_BUF_TOKENS, 0, micro_batch), true);
        pl_builder_read_last(builder, buffer(builder, PL_BUF_D_INPUT, 0, micro_batch), true);
        pl_builder_add_gradients(builder, part, PL_MODULE_FIRST);
    }
    pl_builder_close(builder);
}

/* Projections and, uncut by the causal mask, scores and their use: 2 a multiply-add. */
static int64_t attention_flops(pl_builder *builder, int64_t projections, int64_t products)
{
    const pl_model *model = builder->facts->model;
    int64_t query = model->num_attention_heads * model->head_dim;
    int64_t key_value = model->num_key_value_heads * model->head_dim;
    int64_t tokens = builder->facts->tokens;
    int64_t sequence = builder->facts->settings->shape.sequence;
    return pl_builder_sum(builder,
                          pl_builder_product(builder, 2 * projections * tokens, model->hidden_size,
                                             2 * query + 2 * key_value, 1),
                          pl_builder_product(builder, 2 * products * tokens, sequence, query, 1));
}

static void emit_attention_backward(pl_builder *builder, int32_t layer, int32_t micro_batch)
{
    const pl_layer_facts *facts = &builder->facts->layer[layer];
    int32_t part = builder->facts->parts.layer[layer];
    bool weights = pl_part_trained(&builder->facts->parts.part[part], PL_MODULE_FIRST);
    pl_entry *entry = open_module(builder, PL_OP_ATTENTION, part, micro_batch,
                                  backward_pass(facts->below, weights));
    entry->flops = attention_flops(builder, facts->below + weights, 4);
    pl_builder_read_part(builder, part);
    pl_builder_read_last(builder, buffer(builder, PL_BUF_INPUT, layer, micro_batch), true);
    pl_builder_read_last(builder, buffer(builder, PL_BUF_SAVE_ATTENTION, layer, micro_batch), true);
    pl_builder_read_last(builder, buffer(builder, PL_BUF_D_ATTENDED, layer, micro_batch), true);
    if (facts->below)
        pl_builder_begin(builder, buffer(builder, PL_BUF_D_INPUT, layer, micro_batch));
    pl_builder_add_gradients(builder, part, PL_MODULE_FIRST);
    pl_builder_close(builder);
}

void pl_emit_attention(pl_builder *builder, int32_t layer, int32_t micro_batch, pl_pass pass)
{
    const pl_layer_facts *facts = &builder->facts->layer[layer];
    int32_t part = builder->facts->parts.layer[layer];
    if (pass == PL_PASS_BACKWARD) {
        if (facts->attention_backward) emit_attention_backward(builder, layer, micro_batch);
        return;
    }
    bool last = pass == PL_PASS_FORWARD ? !facts->recompute : true;
    pl_entry *entry = open_module(builder, PL_OP_ATTENTION, part, micro_batch, pass);
    entry->flops = attention_flops(builder, 1, 2);
    pl_builder_read_part(builder, part);
    pl_builder_read_last(builder, buffer(builder, PL_BUF_INPUT, layer, micro_batch),
                         last && !facts->attention_backward);
    pl_builder_begin(builder, buffer(builder, PL_BUF_ATTENDED, layer, micro_batch));
    if (last && facts->attention_backward)
        pl_builder_begin(builder, buffer(builder, PL_BUF_SAVE_ATTENTION, layer, micro_batch));
    pl_builder_close(builder);
}

/* PRODUCTS of the three matrices with all tokens. */
static int64_t mlp_flops(pl_builder *builder, int64_t products)
{
    const pl_model *model = builder->facts->model;
    return pl_builder_product(builder, 2 * products * builder->facts->tokens, model->hidden_size,
                              model->intermediate_size, 1);
}

static void emit_mlp_backward(pl_builder *builder, int32_t layer, int32_t micro_batch)
{
    const pl_layer_facts *facts = &builder->facts->layer[layer];
    int32_t part = builder->facts->parts.layer[layer];
    bool weights = pl_part_trained(&builder->facts->parts.part[part], PL_MODULE_SECOND);
    pl_entry *entry = open_module(builder, PL_OP_MLP, part, micro_batch,
                                  backward_pass(facts->attention_backward, weights));
    entry->flops = mlp_flops(builder, INT64_C(3) * (facts->attention_backward + weights));
    pl_builder_read_part(builder, part);
    pl_builder_read_last(builder, buffer(builder, PL_BUF_ATTENDED, layer, micro_batch), true);
    pl_builder_read_last(builder, buffer(builder, PL_BUF_SAVE_MLP, layer, micro_batch), true);
    pl_builder_read_last(builder, buffer(builder, PL_BUF_D_INPUT, layer + 1, micro_batch), true);
    if (facts->attention_backward)
        pl_builder_begin(builder, buffer(builder, PL_BUF_D_ATTENDED, layer, micro_batch));
    pl_builder_add_gradients(builder, part, PL_MODULE_SECOND);
    pl_builder_close(builder);
}

void pl_emit_dense_mlp(pl_builder *builder, int32_t layer, int32_t micro_batch, pl_pass pass)
{
    const pl_layer_facts *facts = &builder->facts->layer[layer];
    int32_t part = builder->facts->parts.layer[layer];
    if (pass == PL_PASS_BACKWARD) {
        emit_mlp_backward(builder, layer, micro_batch);
        return;
    }
    bool saves = facts->backward && (pass == PL_PASS_RECOMPUTE || !facts->recompute);
    pl_entry *entry = open_module(builder, PL_OP_MLP, part, micro_batch, pass);
    /* Recompute needs no results: it stops before the last matrix. */
    entry->flops = mlp_flops(builder, pass == PL_PASS_RECOMPUTE ? 2 : 3);
    pl_builder_read_part(builder, part);
    pl_builder_read_last(builder, buffer(builder, PL_BUF_ATTENDED, layer, micro_batch), !saves);
    if (pass == PL_PASS_FORWARD)
        pl_builder_begin(builder, buffer(builder, PL_BUF_INPUT, layer + 1, micro_batch));
    if (saves) pl_builder_begin(builder, buffer(builder, PL_BUF_SAVE_MLP, layer, micro_batch));
    pl_builder_close(builder);
}

static bool norm_backward(const pl_plan_facts *facts)
{
    return facts->layer[facts->parts.layer_count - 1].backward ||
           pl_part_trained(&facts->parts.part[facts->parts.norm], PL_MODULE_FIRST);
}

void pl_emit_final_norm(pl_builder *builder, int32_t micro_batch, pl_pass pass)
{
    const pl_plan_facts *facts = builder->facts;
    int32_t part = facts->parts.norm, layers = facts->parts.layer_count;
    uint32_t input = buffer(builder, PL_BUF_INPUT, layers, micro_batch);
    if (pass == PL_PASS_FORWARD) {
        open_module(builder, PL_OP_FINAL_NORM, part, micro_batch, pass);
        pl_builder_read_part(builder, part);
        pl_builder_read_last(builder, input, !norm_backward(facts));
        pl_builder_begin(builder, buffer(builder, PL_BUF_FINAL, 0, micro_batch));
    } else {
        bool inputs = facts->layer[layers - 1].backward;
        bool weights = pl_part_trained(&facts->parts.part[part], PL_MODULE_FIRST);
        open_module(builder, PL_OP_FINAL_NORM, part, micro_batch, backward_pass(inputs, weights));
        pl_builder_read_part(builder, part);
        pl_builder_read_last(builder, input, true);
        pl_builder_read_last(builder, buffer(builder, PL_BUF_D_FINAL, 0, micro_batch), true);
        if (inputs) pl_builder_begin(builder, buffer(builder, PL_BUF_D_INPUT, layers, micro_batch));
        pl_builder_add_gradients(builder, part, PL_MODULE_FIRST);
    }
    pl_builder_close(builder);
}

/* The head's parameters are the embedding's when tied; the entry is the head's in any case. */
static pl_entry *open_head(pl_builder *builder, pl_operation operation, int32_t micro_batch,
                           pl_stream stream)
{
    return pl_builder_open(
        builder,
        pl_builder_name(builder, operation, PL_SUBJECT_HEAD, -1, micro_batch, PL_PASS_FORWARD),
        stream);
}

/* Logits are never whole: product, cross-entropy and both gradients go together, in pieces. */
void pl_emit_loss(pl_builder *builder, int32_t micro_batch)
{
    const pl_plan_facts *facts = builder->facts;
    int32_t part = facts->parts.head;
    bool weights = pl_part_trained(&facts->parts.part[part], PL_MODULE_FIRST);
    bool inputs = norm_backward(facts);
    pl_entry *entry = open_head(builder, PL_OP_LOSS, micro_batch, PL_STREAM_COMPUTE);
    entry->flops = pl_builder_product(builder, INT64_C(2) * (1 + inputs + weights) * facts->tokens,
                                      facts->model->hidden_size, facts->model->vocab_size, 1);
    pl_builder_read_part(builder, part);
    pl_builder_read_last(builder, buffer(builder, PL_BUF_FINAL, 0, micro_batch), true);
    pl_builder_read_last(builder, buffer(builder, PL_BUF_LABELS, 0, micro_batch), true);
    if (inputs) pl_builder_begin(builder, buffer(builder, PL_BUF_D_FINAL, 0, micro_batch));
    pl_builder_add_gradients(builder, part, PL_MODULE_FIRST);
    pl_builder_add_into(builder, buffer(builder, PL_BUF_LOSS_SUM, 0, -1));
    pl_builder_close(builder);
}

/* The head on one position, which the caller names when the program is run, and a token drawn. */
void pl_emit_logits(pl_builder *builder, int32_t micro_batch)
{
    const pl_model *model = builder->facts->model;
    uint32_t logits = buffer(builder, PL_BUF_LOGITS, 0, micro_batch);
    pl_entry *entry = open_head(builder, PL_OP_LOGITS, micro_batch, PL_STREAM_COMPUTE);
    entry->flops = pl_builder_product(builder, 2, model->hidden_size, model->vocab_size, 1);
    pl_builder_read_part(builder, builder->facts->parts.head);
    pl_builder_read_last(builder, buffer(builder, PL_BUF_FINAL, 0, micro_batch), true);
    pl_builder_begin(builder, logits);
    pl_builder_close(builder);
    open_head(builder, PL_OP_SAMPLE, micro_batch, PL_STREAM_HOST);
    pl_builder_read_last(builder, logits, true);
    pl_builder_close(builder);
}
