/* What entries of the dense modules must be: embedding, attention, MLP, final norm, loss,
 * logits. */
#include "sim/expect_query.h"

void pl_expect_embed_entry(const query *q)
{
    if (pass_is(q, PL_PASS_FORWARD)) {
        on(q, PL_STREAM_COMPUTE);
        reads_parameters(q, PL_SUBJECT_EMBEDDING, -1);
        add(q->out->read, &q->out->reads, PL_BUF_TOKENS, PL_NO_PART, -1, q->mb);
        add(q->out->write, &q->out->writes, PL_BUF_INPUT, PL_NO_PART, 0, q->mb);
    } else if (pass_is(q, PL_PASS_BACKWARD_WEIGHTS) && trains_first(q, &q->parts->embedding)) {
        on(q, PL_STREAM_COMPUTE);
        add(q->out->read, &q->out->reads, PL_BUF_TOKENS, PL_NO_PART, -1, q->mb);
        reads_input_of(q, PL_BUF_D_INPUT, 0);
        writes_gradients(q, PL_SUBJECT_EMBEDDING, -1, q->parts->embedding.sharded_attention,
                         q->parts->embedding.whole_attention);
    }
}

void pl_expect_attention_entry(const query *q)
{
    const pl_expected_part *part = &q->parts->layer[q->layer];
    bool runs_back = backward_at(q, attention_place(q->layer));
    bool below = backward_at(q, experts_place(q->layer - 1));
    if (pass_forwards(q)) {
        on(q, PL_STREAM_COMPUTE);
        reads_parameters(q, PL_SUBJECT_LAYER, q->layer);
        reads(q, PL_BUF_INPUT);
        writes(q, PL_BUF_ATTENDED);
        if (saves(q) && runs_back) writes(q, PL_BUF_SAVE_ATTENTION);
    } else if (runs_back && backward_is(q, below, trains_first(q, part))) {
        on(q, PL_STREAM_COMPUTE);
        reads_parameters(q, PL_SUBJECT_LAYER, q->layer);
        reads(q, PL_BUF_INPUT);
        reads(q, PL_BUF_SAVE_ATTENTION);
        reads(q, PL_BUF_D_ATTENDED);
        if (below) writes(q, PL_BUF_D_INPUT);
        writes_gradients(q, PL_SUBJECT_LAYER, q->layer, part->sharded_attention,
                         part->whole_attention);
    }
}

void pl_expect_mlp_entry(const query *q)
{
    const pl_expected_part *part = &q->parts->layer[q->layer];
    bool inputs = backward_at(q, attention_place(q->layer));
    if (pl_expect_moe(q->world, q->layer)) return;
    if (pass_forwards(q)) {
        on(q, PL_STREAM_COMPUTE);
        reads_parameters(q, PL_SUBJECT_LAYER, q->layer);
        reads(q, PL_BUF_ATTENDED);
        if (pass_is(q, PL_PASS_FORWARD))
            add(q->out->write, &q->out->writes, PL_BUF_INPUT, PL_NO_PART, q->layer + 1, q->mb);
        if (saves(q)) writes(q, PL_BUF_SAVE_MLP);
    } else if (layer_backward(q, q->layer) && backward_is(q, inputs, trains_feed(q, part))) {
        on(q, PL_STREAM_COMPUTE);
        reads_parameters(q, PL_SUBJECT_LAYER, q->layer);
        reads(q, PL_BUF_ATTENDED);
        reads(q, PL_BUF_SAVE_MLP);
        reads_input_of(q, PL_BUF_D_INPUT, q->layer + 1);
        if (inputs) writes(q, PL_BUF_D_ATTENDED);
        writes_gradients(q, PL_SUBJECT_LAYER, q->layer, part->sharded_feed, part->whole_feed);
    }
}

void pl_expect_final_norm_entry(const query *q)
{
    const pl_expected_part *part = &q->parts->norm;
    bool inputs = backward_at(q, norm_place(q) - 1);
    if (pass_is(q, PL_PASS_FORWARD)) {
        on(q, PL_STREAM_COMPUTE);
        reads_parameters(q, PL_SUBJECT_NORM, -1);
        reads_input_of(q, PL_BUF_INPUT, q->parts->layers);
        add(q->out->write, &q->out->writes, PL_BUF_FINAL, PL_NO_PART, -1, q->mb);
    } else if (backward_is(q, inputs, trains_first(q, part))) {
        on(q, PL_STREAM_COMPUTE);
        reads_parameters(q, PL_SUBJECT_NORM, -1);
        reads_input_of(q, PL_BUF_INPUT, q->parts->layers);
        add(q->out->read, &q->out->reads, PL_BUF_D_FINAL, PL_NO_PART, -1, q->mb);
        if (inputs)
            add(q->out->write, &q->out->writes, PL_BUF_D_INPUT, PL_NO_PART, q->parts->layers,
                q->mb);
        writes_gradients(q, PL_SUBJECT_NORM, -1, part->sharded_attention, part->whole_attention);
    }
}

static pl_subject part_of_head(const query *q)
{
    return q->parts->tied ? PL_SUBJECT_EMBEDDING : PL_SUBJECT_HEAD;
}

void pl_expect_loss_entry(const query *q)
{
    pl_subject subject = part_of_head(q);
    const pl_expected_part *part = pl_expected_part_of(q->parts, subject, -1);
    if (!sums_losses(q) || !pass_is(q, PL_PASS_FORWARD)) return;
    on(q, PL_STREAM_COMPUTE);
    reads_parameters(q, subject, -1);
    add(q->out->read, &q->out->reads, PL_BUF_FINAL, PL_NO_PART, -1, q->mb);
    add(q->out->read, &q->out->reads, PL_BUF_LABELS, PL_NO_PART, -1, q->mb);
    if (backward_at(q, norm_place(q)))
        add(q->out->write, &q->out->writes, PL_BUF_D_FINAL, PL_NO_PART, -1, q->mb);
    writes_gradients(q, subject, -1, part->sharded_attention, part->whole_attention);
    writes_one(q, PL_BUF_LOSS_SUM);
}

/* The head on one position, and the token drawn on the host. */
void pl_expect_logits_entry(const query *q)
{
    if (q->program != PL_PROGRAM_GENERATE || !pass_is(q, PL_PASS_FORWARD)) return;
    if (q->name->operation == PL_OP_LOGITS) {
        on(q, PL_STREAM_COMPUTE);
        reads_parameters(q, part_of_head(q), -1);
        add(q->out->read, &q->out->reads, PL_BUF_FINAL, PL_NO_PART, -1, q->mb);
        add(q->out->write, &q->out->writes, PL_BUF_LOGITS, PL_NO_PART, -1, q->mb);
    } else {
        on(q, PL_STREAM_HOST);
        add(q->out->read, &q->out->reads, PL_BUF_LOGITS, PL_NO_PART, -1, q->mb);
    }
}
