#include <inttypes.h>

#include "common/memory.h"
#include "train/executor_state.h"

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* The largest activation is a row for each token, choice and owner, no wider than the widest
 * matrices together, of 8 bytes: when that can be counted, so can all others. */
static pl_status check_countable(const pl_sizes *s)
{
    static const char *const what = "bytes of activations";
    int64_t widest = 0, product = 0, round = 0;
    PL_TRY(pl_add(&widest, s->hidden, s->query, what));
    PL_TRY(pl_add(&widest, widest, s->width, what));
    PL_TRY(pl_add(&widest, widest, s->expert_width, what));
    PL_TRY(pl_add(&widest, widest, s->experts, what));
    PL_TRY(pl_add(&widest, widest, s->vocabulary, what));
    PL_TRY(pl_multiply(&product, s->tokens, widest, what));
    PL_TRY(pl_multiply(&product, product, larger(s->chosen, 1), what));
    PL_TRY(pl_multiply(&product, product, s->owners, what));
    PL_TRY(pl_multiply(&product, product, 64, what));
    PL_TRY(pl_multiply(&round, s->tokens, s->micro_batches, "tokens of a step"));
    PL_TRY(pl_multiply(&round, round, s->rounds, "tokens of a step"));
    PL_TRY(pl_multiply(&round, round, s->stage_ranks, "tokens of a step"));
    PL_TRY(pl_multiply(&round, round, 8, "tokens of a step"));
    PL_TRY(pl_multiply(&product, s->experts, larger(s->moe_layers, 1), "counts of experts"));
    PL_TRY(pl_multiply(&product, product, s->micro_batches, "counts of experts"));
    return pl_multiply(&product, product, 8 * s->sets, "counts of experts");
}

pl_status pl_sizes_make(pl_sizes *out, const pl_plan *plan, int64_t rank)
{
    const pl_model *model = &plan->model;
    const pl_layout *layout = &plan->layout;
    const pl_shape *shape = &plan->settings.shape;
    if (layout->pp > 1 || layout->cp > 1)
        return PL_FAIL(PL_UNSUPPORTED,
                       "pp=%" PRId64 ", cp=%" PRId64 ": plans are carried out for pp=1, cp=1 only",
                       layout->pp, layout->cp);
    pl_sizes s = {.dtype = plan->settings.precision.compute};
    s.element = pl_dtype_bytes(s.dtype);
    s.sequence = shape->sequence;
    s.sequences = shape->micro_batch;
    s.micro_batches = shape->intra_layer;
    s.rounds = shape->rounds;
    PL_TRY(pl_multiply(&s.tokens, s.sequence, s.sequences, "tokens of a micro-batch"));
    s.hidden = model->hidden_size;
    s.heads = model->num_attention_heads;
    s.kv_heads = model->num_key_value_heads;
    s.head_dim = model->head_dim;
    PL_TRY(pl_multiply(&s.query, s.heads, s.head_dim, "width of attention"));
    PL_TRY(pl_multiply(&s.key_value, s.kv_heads, s.head_dim, "width of attention"));
    s.width = model->intermediate_size;
    s.vocabulary = model->vocab_size;
    s.experts = model->num_experts;
    s.chosen = model->num_experts_per_tok;
    s.expert_width = model->moe_intermediate_size;
    s.owners = pl_layout_group_size(layout, PL_GROUP_EXPERT_OWNER);
    s.owner = pl_layout_group_index(layout, PL_GROUP_EXPERT_OWNER, rank);
    s.own = s.experts / s.owners;
    s.sets = plan->settings.balance == PL_BALANCE_SEQUENCE ? s.sequences : 1;
    s.stage_ranks = layout->stage_ranks;
    for (int64_t i = 0; i < model->num_hidden_layers; ++i) s.moe_layers += model->layer_is_moe[i];
    PL_TRY(check_countable(&s));
    *out = s;
    return PL_OK;
}
