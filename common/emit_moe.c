/* Entries of a MoE layer after attention: route, exchange, experts, merge, and back.
 *
 * all-to-all: rows are put in the order of their destinations, sent to the owners of their
 * experts, computed on, sent back, and summed with the routing weights where the token lives.
 * all-gather: every owner receives all tokens of the ep group with their routes, sums the
 * weighted results of its experts, and a reduce-scatter adds the owners' sums.
 * With one owner nothing is exchanged: experts read and write the local buffers.
 */
#include "common/plan_builder.h"

typedef struct moe {
    pl_builder *builder;
    const pl_plan_facts *facts;
    const pl_layer_facts *layer_facts;
    int32_t layer, micro_batch;
    pl_pass pass;
    bool exchanges; /* more than one owner */
    bool all_to_all;
    bool trained; /* the experts have gradients */
    bool saves;   /* this pass leaves what backward needs */
} moe;

static moe start(pl_builder *builder, int32_t layer, int32_t micro_batch, pl_pass pass)
{
    const pl_plan_facts *facts = builder->facts;
    moe m = {.builder = builder, .facts = facts, .layer_facts = &facts->layer[layer]};
    m.layer = layer;
    m.micro_batch = micro_batch;
    m.pass = pass;
    m.exchanges = facts->owners > 1;
    m.all_to_all = facts->settings->policy.dispatch == PL_DISPATCH_ALL_TO_ALL;
    m.trained = pl_part_trained(&facts->parts.part[facts->parts.experts[layer]], PL_MODULE_FIRST);
    m.saves = m.layer_facts->backward && (pass == PL_PASS_RECOMPUTE || !m.layer_facts->recompute);
    return m;
}

static uint32_t buffer(const moe *m, pl_buffer_kind kind)
{
    return pl_builder_buffer(m->builder, kind, m->layer, m->micro_batch);
}

static void read(const moe *m, pl_buffer_kind kind, bool ends)
{
    pl_builder_read_last(m->builder, buffer(m, kind), ends);
}

static void begin(const moe *m, pl_buffer_kind kind)
{
    pl_builder_begin(m->builder, buffer(m, kind));
}

static pl_entry *open_entry(const moe *m, pl_operation operation, pl_pass pass, pl_stream stream)
{
    pl_subject subject = operation == PL_OP_EXPERTS ? PL_SUBJECT_EXPERTS : PL_SUBJECT_LAYER;
    return pl_builder_open(
        m->builder, pl_builder_name(m->builder, operation, subject, m->layer, m->micro_batch, pass),
        stream);
}

static void close_entry(const moe *m) { pl_builder_close(m->builder); }

/* One transfer among the owners of a layer's experts. */
static void exchange(const moe *m, pl_operation operation, pl_buffer_kind from, pl_buffer_kind to,
                     bool ends)
{
    pl_builder *builder = m->builder;
    const pl_precision *precision = &m->facts->settings->precision;
    bool reduces = !m->all_to_all && (operation == PL_OP_COMBINE) == (m->pass != PL_PASS_BACKWARD);
    int64_t hidden = m->facts->model->hidden_size, bytes = m->facts->element_bytes;
    pl_entry *entry = open_entry(m, operation, m->pass, PL_STREAM_COMMUNICATION);
    read(m, from, ends);
    if (m->all_to_all) read(m, PL_BUF_ROWS, false);
    begin(m, to);
    entry->rows = m->all_to_all ? PL_ROWS_EXCHANGED : PL_ROWS_FIXED;
    pl_builder_communicate(builder, PL_GROUP_EXPERT_OWNER,
                           reduces ? PL_REDUCTION_SUM : PL_REDUCTION_NONE, precision->compute,
                           m->all_to_all ? hidden * bytes
                                         : pl_builder_product(builder, m->facts->owners,
                                                              m->facts->tokens, hidden, bytes));
    close_entry(m);
}

/* --- forward and recompute: to the experts --- */

static int64_t router_flops(const moe *m, int64_t times)
{
    const pl_model *model = m->facts->model;
    return pl_builder_product(m->builder, 2 * times * m->facts->tokens, model->hidden_size,
                              model->num_experts, 1);
}

static void emit_route(const moe *m)
{
    pl_builder *builder = m->builder;
    bool forward = m->pass == PL_PASS_FORWARD;
    bool saves = m->saves && m->layer_facts->feed_backward;
    pl_entry *entry = open_entry(m, PL_OP_ROUTE, m->pass, PL_STREAM_COMPUTE);
    entry->flops = router_flops(m, forward || saves); /* recompute makes scores to save them */
    pl_builder_read_part(builder, m->facts->parts.layer[m->layer]);
    read(m, PL_BUF_ATTENDED, !forward && !m->layer_facts->feed_backward);
    if (!forward) read(m, PL_BUF_ROUTE, false);
    begin(m, PL_BUF_NORMED);
    if (forward) begin(m, PL_BUF_ROUTE);
    if (forward && m->all_to_all && m->exchanges) begin(m, PL_BUF_COUNTS);
    if (saves) begin(m, PL_BUF_SAVE_ROUTE);
    if (forward && m->facts->balance) {
        pl_builder_add_into(builder, pl_builder_buffer(builder, PL_BUF_BALANCE, 0, -1));
        pl_builder_add_into(builder, pl_builder_buffer(builder, PL_BUF_BALANCE_SCORES, 0, -1));
    }
    close_entry(m);
}

static void emit_counts(const moe *m)
{
    open_entry(m, PL_OP_EXCHANGE_COUNTS, m->pass, PL_STREAM_COMMUNICATION);
    read(m, PL_BUF_COUNTS, false);
    begin(m, PL_BUF_COUNTS_IN);
    pl_builder_communicate(m->builder, PL_GROUP_EXPERT_OWNER, PL_REDUCTION_NONE, PL_I64,
                           m->facts->model->num_experts * 8);
    close_entry(m);
    open_entry(m, PL_OP_BIND, m->pass, PL_STREAM_HOST);
    read(m, PL_BUF_COUNTS, true);
    read(m, PL_BUF_COUNTS_IN, true);
    begin(m, PL_BUF_ROWS);
    close_entry(m);
}

static void emit_permute(const moe *m, bool keeps_normed)
{
    open_entry(m, PL_OP_PERMUTE, m->pass, PL_STREAM_COMPUTE);
    read(m, PL_BUF_NORMED, !keeps_normed);
    read(m, PL_BUF_ROUTE, false);
    begin(m, PL_BUF_SEND);
    close_entry(m);
}

static void emit_share_routes(const moe *m)
{
    const pl_model *model = m->facts->model;
    open_entry(m, PL_OP_SHARE_ROUTES, m->pass, PL_STREAM_COMMUNICATION);
    read(m, PL_BUF_ROUTE, false);
    begin(m, PL_BUF_ROUTES_IN);
    pl_builder_communicate(m->builder, PL_GROUP_EXPERT_OWNER, PL_REDUCTION_NONE, PL_I32,
                           pl_builder_product(m->builder, m->facts->owners, m->facts->tokens,
                                              model->num_experts_per_tok, 8));
    close_entry(m);
}

void pl_emit_moe_send(pl_builder *builder, int32_t layer, int32_t micro_batch, pl_pass pass)
{
    moe m = start(builder, layer, micro_batch, pass);
    bool forward = pass == PL_PASS_FORWARD;
    bool keeps_normed = m.saves && m.layer_facts->feed_backward;
    emit_route(&m);
    if (m.all_to_all) {
        if (m.exchanges && forward) emit_counts(&m);
        emit_permute(&m, keeps_normed);
        if (m.exchanges) exchange(&m, PL_OP_DISPATCH, PL_BUF_SEND, PL_BUF_RECEIVED, true);
    } else if (m.exchanges) {
        if (forward) emit_share_routes(&m);
        exchange(&m, PL_OP_DISPATCH, PL_BUF_NORMED, PL_BUF_RECEIVED, !keeps_normed);
    }
}

/* --- forward and recompute: the experts, and back --- */

/* What the experts read, write, and learn the routes from, by exchange and dispatch. */
static pl_buffer_kind rows_in(const moe *m)
{
    if (m->exchanges) return PL_BUF_RECEIVED;
    return m->all_to_all ? PL_BUF_SEND : PL_BUF_NORMED;
}

static pl_buffer_kind rows_out(const moe *m)
{
    return m->exchanges ? PL_BUF_EXPERT_OUT : PL_BUF_RETURNED;
}

static pl_buffer_kind gradient_in(const moe *m)
{
    return m->exchanges ? PL_BUF_D_EXPERT_OUT : PL_BUF_D_RETURNED;
}

static pl_buffer_kind gradient_out(const moe *m)
{
    if (m->exchanges) return PL_BUF_D_RECEIVED;
    return m->all_to_all ? PL_BUF_D_SEND : PL_BUF_D_NORMED;
}

static pl_buffer_kind routes(const moe *m)
{
    if (!m->exchanges) return PL_BUF_ROUTE;
    return m->all_to_all ? PL_BUF_ROWS : PL_BUF_ROUTES_IN;
}

/* TIMES products of hidden x width for each row: fixed without an exchange, else a row of R. */
static void set_expert_flops(const moe *m, pl_entry *entry, int64_t times)
{
    const pl_model *model = m->facts->model;
    int64_t rows = m->exchanges ? 1 : m->facts->tokens * model->num_experts_per_tok;
    entry->rows = m->exchanges ? PL_ROWS_RECEIVED : PL_ROWS_FIXED;
    entry->flops = pl_builder_product(m->builder, 2 * times, rows, model->hidden_size,
                                      model->moe_intermediate_size);
}

/* Recompute needs the results only for the gradient of the routing weights of all-to-all. */
static bool makes_results(const moe *m)
{
    return m->pass == PL_PASS_FORWARD || (m->all_to_all && m->layer_facts->feed_backward);
}

static void emit_experts(const moe *m)
{
    bool input_stays = m->saves && m->trained;
    if (rows_in(m) == PL_BUF_NORMED) input_stays |= m->saves && m->layer_facts->feed_backward;
    pl_entry *entry = open_entry(m, PL_OP_EXPERTS, m->pass, PL_STREAM_COMPUTE);
    set_expert_flops(m, entry, makes_results(m) ? 3 : 2);
    pl_builder_read_part(m->builder, m->facts->parts.experts[m->layer]);
    read(m, rows_in(m), !input_stays);
    read(m, routes(m), routes(m) == PL_BUF_ROUTES_IN && !m->layer_facts->backward);
    if (makes_results(m)) begin(m, rows_out(m));
    if (m->saves) begin(m, PL_BUF_SAVE_EXPERTS);
    close_entry(m);
}

static void emit_merge(const moe *m)
{
    bool feed_backward = m->saves && m->layer_facts->feed_backward;
    open_entry(m, PL_OP_MERGE, m->pass, PL_STREAM_COMPUTE);
    read(m, PL_BUF_RETURNED, !(feed_backward && m->all_to_all));
    read(m, PL_BUF_ROUTE, !m->layer_facts->backward);
    read(m, PL_BUF_ATTENDED, !feed_backward);
    if (m->all_to_all && m->exchanges && !m->layer_facts->backward)
        pl_builder_end(m->builder, buffer(m, PL_BUF_ROWS));
    pl_builder_begin(m->builder,
                     pl_builder_buffer(m->builder, PL_BUF_INPUT, m->layer + 1, m->micro_batch));
    close_entry(m);
}

void pl_emit_moe_compute(pl_builder *builder, int32_t layer, int32_t micro_batch, pl_pass pass)
{
    moe m = start(builder, layer, micro_batch, pass);
    emit_experts(&m);
    if (m.exchanges && makes_results(&m))
        exchange(&m, PL_OP_COMBINE, PL_BUF_EXPERT_OUT, PL_BUF_RETURNED, true);
    if (pass == PL_PASS_FORWARD) emit_merge(&m);
}

/* --- backward --- */

void pl_emit_moe_merge_backward(pl_builder *builder, int32_t layer, int32_t micro_batch)
{
    moe m = start(builder, layer, micro_batch, PL_PASS_BACKWARD);
    bool feed_backward = m.layer_facts->feed_backward;
    open_entry(&m, PL_OP_MERGE, PL_PASS_BACKWARD_INPUTS, PL_STREAM_COMPUTE);
    pl_builder_read_last(builder,
                         pl_builder_buffer(builder, PL_BUF_D_INPUT, layer + 1, micro_batch), true);
    if (m.all_to_all) {
        if (feed_backward) read(&m, PL_BUF_RETURNED, true);
        read(&m, PL_BUF_ROUTE, !feed_backward && m.exchanges);
    } else if (!feed_backward && m.exchanges) {
        pl_builder_end(builder, buffer(&m, PL_BUF_ROUTE));
    }
    begin(&m, PL_BUF_D_RETURNED);
    if (m.all_to_all && feed_backward) begin(&m, PL_BUF_D_ROUTE);
    if (m.layer_facts->attention_backward) begin(&m, PL_BUF_D_ATTENDED);
    close_entry(&m);
    if (m.exchanges) exchange(&m, PL_OP_COMBINE, PL_BUF_D_RETURNED, PL_BUF_D_EXPERT_OUT, true);
}

static void emit_share_routes_backward(const moe *m)
{
    const pl_model *model = m->facts->model;
    open_entry(m, PL_OP_SHARE_ROUTES, m->pass, PL_STREAM_COMMUNICATION);
    read(m, PL_BUF_D_ROUTES_IN, true);
    begin(m, PL_BUF_D_ROUTE);
    pl_builder_communicate(m->builder, PL_GROUP_EXPERT_OWNER, PL_REDUCTION_SUM, PL_FP32,
                           pl_builder_product(m->builder, m->facts->owners, m->facts->tokens,
                                              model->num_experts_per_tok, 4));
    close_entry(m);
}

static void emit_experts_inputs(const moe *m)
{
    bool inputs = m->layer_facts->feed_backward, last = !m->trained;
    pl_entry *entry = open_entry(m, PL_OP_EXPERTS, PL_PASS_BACKWARD_INPUTS, PL_STREAM_COMPUTE);
    set_expert_flops(m, entry, inputs ? 3 : 1);
    pl_builder_read_part(m->builder, m->facts->parts.experts[m->layer]);
    read(m, gradient_in(m), last);
    read(m, PL_BUF_SAVE_EXPERTS, last);
    read(m, routes(m), last && routes(m) == PL_BUF_ROUTES_IN);
    if (m->trained) begin(m, PL_BUF_D_ACTIVATION);
    if (inputs) begin(m, gradient_out(m));
    if (inputs && !m->all_to_all) begin(m, m->exchanges ? PL_BUF_D_ROUTES_IN : PL_BUF_D_ROUTE);
    close_entry(m);
}

void pl_emit_moe_experts_backward(pl_builder *builder, int32_t layer, int32_t micro_batch)
{
    moe m = start(builder, layer, micro_batch, PL_PASS_BACKWARD);
    emit_experts_inputs(&m);
    if (!m.exchanges || !m.layer_facts->feed_backward) return;
    exchange(&m, PL_OP_DISPATCH, PL_BUF_D_RECEIVED, m.all_to_all ? PL_BUF_D_SEND : PL_BUF_D_NORMED,
             true);
    if (!m.all_to_all) emit_share_routes_backward(&m);
}

void pl_emit_moe_experts_weights(pl_builder *builder, int32_t layer, int32_t micro_batch)
{
    moe m = start(builder, layer, micro_batch, PL_PASS_BACKWARD);
    bool feed_backward = m.layer_facts->feed_backward;
    bool input_stays = rows_in(&m) == PL_BUF_NORMED && feed_backward;
    bool routes_stay = routes(&m) == PL_BUF_ROUTE && feed_backward;
    if (!m.trained) return;
    pl_entry *entry = open_entry(&m, PL_OP_EXPERTS, PL_PASS_BACKWARD_WEIGHTS, PL_STREAM_COMPUTE);
    set_expert_flops(&m, entry, 3);
    read(&m, rows_in(&m), !input_stays);
    read(&m, PL_BUF_SAVE_EXPERTS, true);
    read(&m, gradient_in(&m), true);
    read(&m, PL_BUF_D_ACTIVATION, true);
    read(&m, routes(&m), !routes_stay);
    pl_builder_add_gradients(builder, m.facts->parts.experts[layer], PL_MODULE_FIRST);
    close_entry(&m);
}

/* The loss that balances the load enters here: coefficient * T / micro-steps, so that the one
 * last 1/T leaves the coefficient over the number of micro-steps. */
static void read_balance(const moe *m, pl_entry *entry)
{
    pl_builder *builder = m->builder;
    bool last =
        m->layer == m->facts->balance_reader && m->micro_batch == m->facts->micro_batches - 1;
    if (!m->facts->balance) return;
    pl_builder_read_last(builder, pl_builder_buffer(builder, PL_BUF_BALANCE, 0, -1), last);
    pl_builder_read(builder, pl_builder_buffer(builder, PL_BUF_TOKEN_COUNT, 0, -1));
    entry->scale = (pl_scale){1, m->facts->rounds * m->facts->micro_batches, 1};
}

void pl_emit_moe_route_backward(pl_builder *builder, int32_t layer, int32_t micro_batch)
{
    moe m = start(builder, layer, micro_batch, PL_PASS_BACKWARD);
    int32_t part = m.facts->parts.layer[layer];
    bool weights = pl_part_trained(&m.facts->parts.part[part], PL_MODULE_SECOND);
    bool inputs = m.layer_facts->attention_backward;
    /* Without trained experts nothing after the last exchange would let the bound sizes go. */
    bool ends_rows = m.all_to_all && m.exchanges && !m.trained;
    if (!m.layer_facts->feed_backward) return;
    if (m.all_to_all) {
        open_entry(&m, PL_OP_PERMUTE, PL_PASS_BACKWARD_INPUTS, PL_STREAM_COMPUTE);
        read(&m, PL_BUF_D_SEND, true);
        read(&m, PL_BUF_ROUTE, false);
        if (ends_rows) pl_builder_end(builder, buffer(&m, PL_BUF_ROWS));
        begin(&m, PL_BUF_D_NORMED);
        close_entry(&m);
    }
    pl_pass pass =
        inputs ? weights ? PL_PASS_BACKWARD : PL_PASS_BACKWARD_INPUTS : PL_PASS_BACKWARD_WEIGHTS;
    pl_entry *entry = open_entry(&m, PL_OP_ROUTE, pass, PL_STREAM_COMPUTE);
    entry->flops = router_flops(&m, inputs + weights);
    pl_builder_read_part(builder, part);
    read(&m, PL_BUF_ATTENDED, true);
    read(&m, PL_BUF_NORMED, true);
    read(&m, PL_BUF_SAVE_ROUTE, true);
    read(&m, PL_BUF_ROUTE, true);
    read(&m, PL_BUF_D_NORMED, true);
    read(&m, PL_BUF_D_ROUTE, true);
    read_balance(&m, entry);
    if (inputs) pl_builder_update(builder, buffer(&m, PL_BUF_D_ATTENDED));
    pl_builder_add_gradients(builder, part, PL_MODULE_SECOND);
    close_entry(&m);
}
