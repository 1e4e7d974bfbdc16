/* What entries of MoE layers must be. */
#include "sim/expect_query.h"

/* --- MoE layers --- */

void pl_expect_route_entry(const query *q)
{
    const pl_expected_part *part = &q->parts->layer[q->layer];
    bool runs_back = backward_at(q, feed_place(q->layer));
    bool inputs = backward_at(q, attention_place(q->layer));
    if (pass_forwards(q)) {
        bool forward = pass_is(q, PL_PASS_FORWARD);
        on(q, PL_STREAM_COMPUTE);
        reads_parameters(q, PL_SUBJECT_LAYER, q->layer);
        reads(q, PL_BUF_ATTENDED);
        if (!forward) reads(q, PL_BUF_ROUTE);
        writes(q, PL_BUF_NORMED);
        if (forward) writes(q, PL_BUF_ROUTE);
        if (forward && q->exchanges && q->all_to_all) writes(q, PL_BUF_COUNTS);
        if (saves(q) && runs_back) writes(q, PL_BUF_SAVE_ROUTE);
        if (forward && balance_counts(q)) {
            writes_one(q, PL_BUF_BALANCE);
            writes_one(q, PL_BUF_BALANCE_SCORES);
        }
    } else if (runs_back && backward_is(q, inputs, trains_feed(q, part))) {
        static const pl_buffer_kind needed[] = {PL_BUF_ATTENDED, PL_BUF_NORMED,   PL_BUF_SAVE_ROUTE,
                                                PL_BUF_ROUTE,    PL_BUF_D_NORMED, PL_BUF_D_ROUTE};
        on(q, PL_STREAM_COMPUTE);
        reads_parameters(q, PL_SUBJECT_LAYER, q->layer);
        for (size_t i = 0; i < sizeof needed / sizeof *needed; ++i) reads(q, needed[i]);
        if (inputs) {
            reads(q, PL_BUF_D_ATTENDED);
            writes(q, PL_BUF_D_ATTENDED);
        }
        if (balance_counts(q)) {
            reads_one(q, PL_BUF_BALANCE);
            reads_one(q, PL_BUF_TOKEN_COUNT);
            q->out->scale.denominator =
                (int32_t)(q->settings->shape.rounds * q->settings->shape.intra_layer);
            q->out->scale.tokens = 1;
        }
        writes_gradients(q, PL_SUBJECT_LAYER, q->layer, part->sharded_feed, part->whole_feed);
    }
}

void pl_expect_counts_entry(const query *q)
{
    if (!q->exchanges || !q->all_to_all || !pass_is(q, PL_PASS_FORWARD)) return;
    if (q->name->operation == PL_OP_EXCHANGE_COUNTS) {
        among(q, PL_GROUP_EXPERT_OWNER, PL_REDUCTION_NONE, PL_I64);
        reads(q, PL_BUF_COUNTS);
        writes(q, PL_BUF_COUNTS_IN);
    } else {
        on(q, PL_STREAM_HOST);
        reads(q, PL_BUF_COUNTS);
        reads(q, PL_BUF_COUNTS_IN);
        writes(q, PL_BUF_ROWS);
    }
}

void pl_expect_permute_entry(const query *q)
{
    if (!q->all_to_all) return;
    if (pass_forwards(q)) {
        on(q, PL_STREAM_COMPUTE);
        reads(q, PL_BUF_NORMED);
        reads(q, PL_BUF_ROUTE);
        writes(q, PL_BUF_SEND);
    } else if (pass_is(q, PL_PASS_BACKWARD_INPUTS) && backward_at(q, feed_place(q->layer))) {
        on(q, PL_STREAM_COMPUTE);
        reads(q, PL_BUF_D_SEND);
        reads(q, PL_BUF_ROUTE);
        writes(q, PL_BUF_D_NORMED);
    }
}

void pl_expect_share_routes_entry(const query *q)
{
    if (!q->exchanges || q->all_to_all) return;
    if (pass_is(q, PL_PASS_FORWARD)) {
        among(q, PL_GROUP_EXPERT_OWNER, PL_REDUCTION_NONE, PL_I32);
        reads(q, PL_BUF_ROUTE);
        writes(q, PL_BUF_ROUTES_IN);
    } else if (pass_is(q, PL_PASS_BACKWARD) && backward_at(q, feed_place(q->layer))) {
        among(q, PL_GROUP_EXPERT_OWNER, PL_REDUCTION_SUM, PL_FP32);
        reads(q, PL_BUF_D_ROUTES_IN);
        writes(q, PL_BUF_D_ROUTE);
    }
}

static void expect_exchange(const query *q, pl_buffer_kind from, pl_buffer_kind to, bool reduces)
{
    among(q, PL_GROUP_EXPERT_OWNER, reduces ? PL_REDUCTION_SUM : PL_REDUCTION_NONE,
          q->settings->precision.compute);
    reads(q, from);
    if (q->all_to_all) reads(q, PL_BUF_ROWS);
    writes(q, to);
}

void pl_expect_dispatch_entry(const query *q)
{
    if (!q->exchanges) return;
    if (pass_forwards(q))
        expect_exchange(q, q->all_to_all ? PL_BUF_SEND : PL_BUF_NORMED, PL_BUF_RECEIVED, false);
    else if (pass_is(q, PL_PASS_BACKWARD) && backward_at(q, feed_place(q->layer)))
        expect_exchange(q, PL_BUF_D_RECEIVED, q->all_to_all ? PL_BUF_D_SEND : PL_BUF_D_NORMED,
                        !q->all_to_all);
}

/* Recompute repeats the experts' results only where routing weights need them for gradients. */
static bool makes_results(const query *q)
{
    return pass_is(q, PL_PASS_FORWARD) || (q->all_to_all && backward_at(q, feed_place(q->layer)));
}

void pl_expect_combine_entry(const query *q)
{
    if (!q->exchanges) return;
    if (pass_forwards(q) && makes_results(q))
        expect_exchange(q, PL_BUF_EXPERT_OUT, PL_BUF_RETURNED, !q->all_to_all);
    else if (pass_is(q, PL_PASS_BACKWARD) && layer_backward(q, q->layer))
        expect_exchange(q, PL_BUF_D_RETURNED, PL_BUF_D_EXPERT_OUT, false);
}

static void reads_rows(const query *q)
{
    if (!q->exchanges)
        reads(q, q->all_to_all ? PL_BUF_SEND : PL_BUF_NORMED);
    else
        reads(q, PL_BUF_RECEIVED);
}

static void reads_routes(const query *q)
{
    if (!q->exchanges)
        reads(q, PL_BUF_ROUTE);
    else
        reads(q, q->all_to_all ? PL_BUF_ROWS : PL_BUF_ROUTES_IN);
}

static void expect_experts_backward(const query *q, bool trains)
{
    const pl_expected_part *part = &q->parts->experts[q->layer];
    bool feed = backward_at(q, feed_place(q->layer));
    if (!layer_backward(q, q->layer)) return;
    if (pass_is(q, PL_PASS_BACKWARD_INPUTS)) {
        on(q, PL_STREAM_COMPUTE);
        reads_parameters(q, PL_SUBJECT_EXPERTS, q->layer);
        if (trains) writes(q, PL_BUF_D_ACTIVATION);
        if (feed)
            writes(q, q->exchanges    ? PL_BUF_D_RECEIVED
                      : q->all_to_all ? PL_BUF_D_SEND
                                      : PL_BUF_D_NORMED);
        if (feed && !q->all_to_all) writes(q, q->exchanges ? PL_BUF_D_ROUTES_IN : PL_BUF_D_ROUTE);
    } else if (pass_is(q, PL_PASS_BACKWARD_WEIGHTS) && trains) {
        on(q, PL_STREAM_COMPUTE);
        reads_rows(q);
        reads(q, PL_BUF_D_ACTIVATION);
        writes_gradients(q, PL_SUBJECT_EXPERTS, q->layer, part->sharded_attention,
                         part->whole_attention);
    } else {
        return;
    }
    reads(q, PL_BUF_SAVE_EXPERTS);
    reads(q, q->exchanges ? PL_BUF_D_EXPERT_OUT : PL_BUF_D_RETURNED);
    reads_routes(q);
}

void pl_expect_experts_entry(const query *q)
{
    if (!pass_forwards(q)) {
        expect_experts_backward(q, trains_first(q, &q->parts->experts[q->layer]));
        return;
    }
    on(q, PL_STREAM_COMPUTE);
    reads_parameters(q, PL_SUBJECT_EXPERTS, q->layer);
    reads_rows(q);
    reads_routes(q);
    if (makes_results(q)) writes(q, q->exchanges ? PL_BUF_EXPERT_OUT : PL_BUF_RETURNED);
    if (saves(q)) writes(q, PL_BUF_SAVE_EXPERTS);
}

void pl_expect_merge_entry(const query *q)
{
    bool feed = backward_at(q, feed_place(q->layer));
    if (pass_is(q, PL_PASS_FORWARD)) {
        on(q, PL_STREAM_COMPUTE);
        reads(q, PL_BUF_RETURNED);
        if (q->all_to_all) reads(q, PL_BUF_ROUTE);
        reads(q, PL_BUF_ATTENDED);
        add(q->out->write, &q->out->writes, PL_BUF_INPUT, PL_NO_PART, q->layer + 1, q->mb);
    } else if (pass_is(q, PL_PASS_BACKWARD_INPUTS) && layer_backward(q, q->layer)) {
        on(q, PL_STREAM_COMPUTE);
        reads_input_of(q, PL_BUF_D_INPUT, q->layer + 1);
        if (q->all_to_all) reads(q, PL_BUF_ROUTE);
        if (q->all_to_all && feed) reads(q, PL_BUF_RETURNED);
        writes(q, PL_BUF_D_RETURNED);
        if (q->all_to_all && feed) writes(q, PL_BUF_D_ROUTE);
        if (backward_at(q, attention_place(q->layer))) writes(q, PL_BUF_D_ATTENDED);
    }
}
