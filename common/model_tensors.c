/* The tensors that the facts of a model mean, in the order of the forward pass. */
#include <inttypes.h>

#include "common/memory.h"
#include "common/model_internal.h"

typedef struct builder {
    pl_model *model;
    size_t capacity;
    int64_t total; /* elements so far */
} builder;

static pl_status count_elements(builder *b, const pl_tensor *tensor)
{
    int64_t rows = tensor->rows, elements = 0;
    if (tensor->experts > 0) PL_TRY(pl_multiply(&rows, rows, tensor->experts, tensor->suffix));
    PL_TRY(pl_multiply(&elements, rows, tensor->cols, tensor->suffix));
    return pl_add(&b->total, b->total, elements, "parameters of the model");
}

static pl_status add(builder *b, pl_tensor tensor)
{
    pl_model *model = b->model;
    size_t count = (size_t)model->tensor_count;
    PL_TRY(count_elements(b, &tensor));
    PL_TRY(pl_grow(&model->tensors, &b->capacity, count + 1, sizeof tensor, "tensors of a model"));
    model->tensors[count] = tensor;
    ++model->tensor_count;
    return PL_OK;
}

static pl_status add_matrix(builder *b, int layer, const char *suffix, pl_tensor_role role,
                            int64_t rows, int64_t cols)
{
    return add(b, (pl_tensor){.role = role,
                              .class_ = PL_CLASS_DENSE,
                              .layer = layer,
                              .suffix = suffix,
                              .rows = rows,
                              .cols = cols,
                              .dimensions = 2});
}

static pl_status add_vector(builder *b, int layer, const char *suffix, pl_tensor_role role,
                            int64_t rows)
{
    return add(b, (pl_tensor){.role = role,
                              .class_ = PL_CLASS_DENSE,
                              .layer = layer,
                              .suffix = suffix,
                              .rows = rows,
                              .cols = 1,
                              .dimensions = 1});
}

static pl_status add_experts(builder *b, int layer, const char *suffix, int64_t rows, int64_t cols)
{
    return add(b, (pl_tensor){.role = PL_TENSOR_ROUTED,
                              .class_ = PL_CLASS_EXPERT,
                              .layer = layer,
                              .suffix = suffix,
                              .experts = b->model->num_experts,
                              .rows = rows,
                              .cols = cols,
                              .dimensions = 2});
}

/* A weight and, where the model has them, its bias. */
typedef struct projection {
    const char *weight, *bias;
    int64_t rows, cols;
} projection;

static pl_status add_projections(builder *b, int layer, pl_tensor_role role,
                                 const projection *projections, int count, bool bias)
{
    for (int i = 0; i < count; ++i) {
        const projection *p = &projections[i];
        PL_TRY(add_matrix(b, layer, p->weight, role, p->rows, p->cols));
        if (bias) PL_TRY(add_vector(b, layer, p->bias, role, p->rows));
    }
    return PL_OK;
}

static pl_status add_attention(builder *b, int layer)
{
    const pl_model *m = b->model;
    int64_t hidden = m->hidden_size, head = m->head_dim;
    int64_t query = m->num_attention_heads * head, key = m->num_key_value_heads * head;
    const projection projections[] = {
        {"self_attn.q_proj.weight", "self_attn.q_proj.bias", query, hidden},
        {"self_attn.k_proj.weight", "self_attn.k_proj.bias", key, hidden},
        {"self_attn.v_proj.weight", "self_attn.v_proj.bias", key, hidden},
        {"self_attn.o_proj.weight", "self_attn.o_proj.bias", hidden, query},
    };
    PL_TRY(add_projections(b, layer, PL_TENSOR_ATTENTION, projections, 4, m->attention_bias));
    if (m->family == PL_FAMILY_LLAMA || m->family == PL_FAMILY_MIXTRAL) return PL_OK;
    PL_TRY(add_vector(b, layer, "self_attn.q_norm.weight", PL_TENSOR_ATTENTION, head));
    return add_vector(b, layer, "self_attn.k_norm.weight", PL_TENSOR_ATTENTION, head);
}

/* A product that never has a bias. */
static pl_status add_plain(builder *b, int layer, const char *suffix, int64_t rows, int64_t cols)
{
    return add_matrix(b, layer, suffix, PL_TENSOR_ATTENTION, rows, cols);
}

static pl_status add_latent_queries(builder *b, int layer, int64_t query)
{
    const pl_model *m = b->model;
    int64_t hidden = m->hidden_size, rank = m->latent.q_lora_rank;
    const projection down = {"self_attn.q_a_proj.weight", "self_attn.q_a_proj.bias", rank, hidden};
    if (rank == 0) return add_plain(b, layer, "self_attn.q_proj.weight", query, hidden);
    PL_TRY(add_projections(b, layer, PL_TENSOR_ATTENTION, &down, 1, m->attention_bias));
    PL_TRY(add_vector(b, layer, "self_attn.q_a_layernorm.weight", PL_TENSOR_ATTENTION, rank));
    return add_plain(b, layer, "self_attn.q_b_proj.weight", query, rank);
}

/* Biases stand where the hidden state comes in and where it goes out. */
static pl_status add_latent_attention(builder *b, int layer)
{
    const pl_model *m = b->model;
    const pl_latent_attention *latent = &m->latent;
    int64_t hidden = m->hidden_size, heads = m->num_attention_heads, rank = latent->kv_lora_rank;
    const projection down = {"self_attn.kv_a_proj_with_mqa.weight",
                             "self_attn.kv_a_proj_with_mqa.bias", rank + latent->qk_rope_head_dim,
                             hidden};
    const projection out = {"self_attn.o_proj.weight", "self_attn.o_proj.bias", hidden,
                            heads * latent->v_head_dim};
    PL_TRY(add_latent_queries(b, layer, heads * m->head_dim));
    PL_TRY(add_projections(b, layer, PL_TENSOR_ATTENTION, &down, 1, m->attention_bias));
    PL_TRY(add_vector(b, layer, "self_attn.kv_a_layernorm.weight", PL_TENSOR_ATTENTION, rank));
    PL_TRY(add_plain(b, layer, "self_attn.kv_b_proj.weight",
                     heads * (latent->qk_nope_head_dim + latent->v_head_dim), rank));
    return add_projections(b, layer, PL_TENSOR_ATTENTION, &out, 1, m->attention_bias);
}

static pl_status add_mlp(builder *b, int layer)
{
    const pl_model *m = b->model;
    int64_t hidden = m->hidden_size, width = m->intermediate_size;
    const projection projections[] = {
        {"mlp.gate_proj.weight", "mlp.gate_proj.bias", width, hidden},
        {"mlp.up_proj.weight", "mlp.up_proj.bias", width, hidden},
        {"mlp.down_proj.weight", "mlp.down_proj.bias", hidden, width},
    };
    return add_projections(b, layer, PL_TENSOR_DENSE_MLP, projections, 3, m->mlp_bias);
}

static pl_status add_shared_experts(builder *b, int layer)
{
    const pl_model *m = b->model;
    int64_t hidden = m->hidden_size, width = m->n_shared_experts * m->moe_intermediate_size;
    const projection projections[] = {
        {"mlp.shared_experts.gate_proj.weight", NULL, width, hidden},
        {"mlp.shared_experts.up_proj.weight", NULL, width, hidden},
        {"mlp.shared_experts.down_proj.weight", NULL, hidden, width},
    };
    if (m->n_shared_experts == 0) return PL_OK;
    return add_projections(b, layer, PL_TENSOR_SHARED, projections, 3, false);
}

/* What the tensors of a layer with experts are called. */
typedef struct moe_names {
    const char *router, *gate, *up, *down;
} moe_names;

static const moe_names usual_names = {"mlp.gate.weight", "mlp.experts.gate_proj.weight",
                                      "mlp.experts.up_proj.weight", "mlp.experts.down_proj.weight"};
static const moe_names mixtral_names = {
    "block_sparse_moe.gate.weight", "block_sparse_moe.experts.w1.weight",
    "block_sparse_moe.experts.w3.weight", "block_sparse_moe.experts.w2.weight"};

static pl_status add_moe(builder *b, int layer)
{
    const pl_model *m = b->model;
    const moe_names *names = m->family == PL_FAMILY_MIXTRAL ? &mixtral_names : &usual_names;
    int64_t hidden = m->hidden_size, width = m->moe_intermediate_size;
    PL_TRY(add_matrix(b, layer, names->router, PL_TENSOR_ROUTER, m->num_experts, hidden));
    PL_TRY(add_shared_experts(b, layer));
    PL_TRY(add_experts(b, layer, names->gate, width, hidden));
    PL_TRY(add_experts(b, layer, names->up, width, hidden));
    return add_experts(b, layer, names->down, hidden, width);
}

static pl_status add_all(builder *b)
{
    const pl_model *m = b->model;
    int64_t hidden = m->hidden_size;
    bool latent = m->family == PL_FAMILY_DEEPSEEK_V2;
    PL_TRY(
        add_matrix(b, -1, "model.embed_tokens.weight", PL_TENSOR_EMBEDDING, m->vocab_size, hidden));
    for (int layer = 0; layer < (int)m->num_hidden_layers; ++layer) {
        PL_TRY(add_vector(b, layer, "input_layernorm.weight", PL_TENSOR_NORM, hidden));
        PL_TRY(latent ? add_latent_attention(b, layer) : add_attention(b, layer));
        PL_TRY(add_vector(b, layer, "post_attention_layernorm.weight", PL_TENSOR_NORM, hidden));
        PL_TRY(m->layer_is_moe[layer] ? add_moe(b, layer) : add_mlp(b, layer));
    }
    PL_TRY(add_vector(b, -1, "model.norm.weight", PL_TENSOR_NORM, hidden));
    if (m->tie_word_embeddings) return PL_OK;
    return add_matrix(b, -1, "lm_head.weight", PL_TENSOR_HEAD, m->vocab_size, hidden);
}

pl_status pl_model_build_tensors(pl_model *model, const char *source)
{
    /* Room for parameter, master, two moments and gradient of each element, in 63 bits. */
    const int64_t most = INT64_MAX / 32;
    builder b = {.model = model};
    pl_status status = add_all(&b);
    if (status == PL_BAD_INPUT)
        pl_error_context("%s: the sizes multiply to more than can be counted", source);
    if (status != PL_OK) return status;
    if (b.total > most)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: the sizes multiply to %" PRId64 " parameters; allowed: at most %" PRId64
                       ", so that their bytes can be counted",
                       source, b.total, most);
    return PL_OK;
}
