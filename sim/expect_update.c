/* What entries around the layers must be: batch, counts, norm, update, control, start,
 * export, save, load. */
#include "sim/expect_query.h"

/* --- around the layers --- */

static bool covers(const query *q, unsigned what)
{
    const pl_expected_parts *p = q->parts;
    bool dense = p->embedding.trained + p->norm.trained + p->head.trained > 0, experts = false;
    bool whole = p->embedding.whole + p->norm.whole + p->head.whole > 0;
    for (int32_t i = 0; i < p->layers; ++i) {
        dense |= p->layer[i].trained > 0;
        experts |= p->experts[i].trained > 0;
        whole |= p->layer[i].whole > 0;
    }
    return ((what & PL_COVERS_DENSE) && dense) || ((what & PL_COVERS_EXPERTS) && experts) ||
           ((what & PL_COVERS_IGNORED) && whole);
}

static bool communicates(const query *q, pl_group_role role)
{
    return q->world->groups.size[role] > 1;
}

static void reduce_gradients(const query *q, unsigned what, pl_group_role role)
{
    if (!covers(q, what) || !communicates(q, role)) return;
    among(q, role, PL_REDUCTION_SUM, PL_FP32);
    q->out->reads_gradients = q->out->writes_gradients = what;
}

static void reduce_one(const query *q, pl_buffer_kind kind, pl_group_role role, pl_dtype wire)
{
    if (!communicates(q, role)) return;
    among(q, role, PL_REDUCTION_SUM, wire);
    reads_one(q, kind);
    writes_one(q, kind);
}

void pl_expect_all_reduce_entry(const query *q)
{
    bool in_round = q->name->round >= 0;
    bool sum = q->name->subject == PL_SUBJECT_TOKENS || q->name->subject == PL_SUBJECT_LOSS;
    if (!pass_is(q, PL_PASS_NONE) || in_round != (q->name->subject == PL_SUBJECT_BALANCE)) return;
    if (!trains(q) && !(sums_losses(q) && sum)) return;
    switch ((pl_subject)q->name->subject) {
    case PL_SUBJECT_TOKENS: reduce_one(q, PL_BUF_TOKEN_COUNT, PL_GROUP_STAGE, PL_I64); break;
    case PL_SUBJECT_BALANCE:
        if (balance_counts(q))
            reduce_one(q, PL_BUF_BALANCE,
                       q->settings->balance == PL_BALANCE_SEQUENCE ? PL_GROUP_CONTEXT
                                                                   : PL_GROUP_STAGE,
                       PL_I64);
        break;
    case PL_SUBJECT_DENSE_GRADIENTS:
        reduce_gradients(q, PL_COVERS_DENSE, PL_GROUP_DENSE_REPLICA);
        break;
    case PL_SUBJECT_EXPERT_GRADIENTS:
        reduce_gradients(q, PL_COVERS_EXPERTS, PL_GROUP_EXPERT_REPLICA);
        break;
    case PL_SUBJECT_IGNORED_GRADIENTS:
        reduce_gradients(q, PL_COVERS_IGNORED, PL_GROUP_STAGE);
        break;
    case PL_SUBJECT_DENSE_SQUARES:
        if (covers(q, PL_COVERS_DENSE))
            reduce_one(q, PL_BUF_DENSE_SQUARES, PL_GROUP_DENSE_SHARD, PL_FP64);
        break;
    case PL_SUBJECT_EXPERT_SQUARES:
        if (covers(q, PL_COVERS_EXPERTS))
            reduce_one(q, PL_BUF_EXPERT_SQUARES, PL_GROUP_EXPERT_BLOCK, PL_FP64);
        break;
    case PL_SUBJECT_LOSS: reduce_one(q, PL_BUF_LOSS_SUM, PL_GROUP_STAGE, PL_FP64); break;
    default: break;
    }
}

void pl_expect_balance_entry(const query *q)
{
    if (!balance_counts(q) || !pass_is(q, PL_PASS_NONE)) return;
    on(q, PL_STREAM_COMPUTE);
    reads_one(q, PL_BUF_BALANCE);
    reads_one(q, PL_BUF_BALANCE_SCORES);
    writes_one(q, PL_BUF_BALANCE);
    writes_one(q, PL_BUF_LOSS_SUM);
    if (q->settings->balance == PL_BALANCE_GLOBAL_BATCH) writes_one(q, PL_BUF_BALANCE_TOTAL);
}

static void expect_squares(const query *q, bool clip)
{
    on(q, PL_STREAM_COMPUTE);
    if (!clip) q->out->reads_gradients = PL_COVERS_ALL;
    for (int i = 0; i < 3; ++i) {
        static const pl_buffer_kind kinds[] = {PL_BUF_DENSE_SQUARES, PL_BUF_EXPERT_SQUARES,
                                               PL_BUF_IGNORED_SQUARES};
        if (!covers(q, 1u << i)) continue;
        if (clip)
            reads_one(q, kinds[i]);
        else
            writes_one(q, kinds[i]);
    }
    if (clip) writes_one(q, PL_BUF_CLIP);
}

void pl_expect_update_entry(const query *q)
{
    if (!pass_is(q, PL_PASS_NONE)) return;
    switch ((pl_operation)q->name->operation) {
    case PL_OP_SCALE:
        on(q, PL_STREAM_COMPUTE);
        q->out->scale.tokens = -1;
        reads_one(q, PL_BUF_TOKEN_COUNT);
        q->out->reads_gradients = q->out->writes_gradients = PL_COVERS_ALL;
        break;
    case PL_OP_GRADIENT_NORM: expect_squares(q, false); break;
    case PL_OP_CLIP: expect_squares(q, true); break;
    case PL_OP_STEP:
        on(q, PL_STREAM_COMPUTE);
        q->out->predicate = PL_IF_UPDATE;
        reads_one(q, PL_BUF_CLIP);
        reads_one(q, PL_BUF_TOKEN_COUNT);
        q->out->reads_gradients = PL_COVERS_ALL;
        q->out->writes_state = true;
        break;
    default: break;
    }
}

void pl_expect_control_entry(const query *q)
{
    if (!pass_is(q, PL_PASS_NONE)) return;
    if (communicates(q, PL_GROUP_WORLD))
        among(q, PL_GROUP_WORLD, PL_REDUCTION_MAX, PL_I64);
    else
        on(q, PL_STREAM_HOST);
    if (trains(q)) reads_one(q, PL_BUF_CLIP);
    if (sums_losses(q)) {
        reads_one(q, PL_BUF_LOSS_SUM);
        reads_one(q, PL_BUF_TOKEN_COUNT);
    }
    writes_one(q, PL_BUF_FLAGS);
}

void pl_expect_batch_entry(const query *q)
{
    switch ((pl_operation)q->name->operation) {
    case PL_OP_LOAD_BATCH:
        if (!pass_is(q, PL_PASS_NONE)) return;
        on(q, PL_STREAM_HOST);
        q->out->group = PL_GROUP_DATA;
        writes_one(q, PL_BUF_BATCH);
        break;
    case PL_OP_COUNT_TOKENS:
        if (!sums_losses(q) || !pass_is(q, PL_PASS_NONE)) return;
        on(q, PL_STREAM_HOST);
        reads_one(q, PL_BUF_BATCH);
        writes_one(q, PL_BUF_TOKEN_COUNT);
        break;
    default:
        if (!pass_is(q, PL_PASS_FORWARD)) return;
        on(q, PL_STREAM_COPY);
        reads_one(q, PL_BUF_BATCH);
        add(q->out->write, &q->out->writes, PL_BUF_TOKENS, PL_NO_PART, -1, q->mb);
        if (sums_losses(q))
            add(q->out->write, &q->out->writes, PL_BUF_LABELS, PL_NO_PART, -1, q->mb);
    }
}

/* --- start and export --- */

/* The tensors of a part that an entry is about: those held in shards, or those held whole. */
typedef struct held {
    pl_subject subject;
    int32_t layer;
    bool whole, trained, frozen;
} held;

/* False when the name is about nothing that is held. ORDINAL is that of whole tensors. */
static bool find_held(held *out, const query *q, int32_t ordinal)
{
    pl_subject subject = (pl_subject)q->name->subject;
    const pl_expected_part *part = pl_expected_part_of(q->parts, subject, q->name->layer);
    bool whole = q->name->ordinal == ordinal;
    if (!whole && q->name->ordinal != ordinal - 1) return false;
    *out = (held){subject, q->name->layer, whole, (whole ? part->whole : part->trained) > 0,
                  (whole ? part->whole_frozen : part->frozen) > 0};
    return is_part(q) && pass_is(q, PL_PASS_NONE) && (out->trained || out->frozen);
}

/* Where values live on the device: masters where there are some, else the parameters. */
static bool in_master(const query *q, const held *h)
{
    return !h->whole && h->trained && q->settings->precision.gather != PL_FP32;
}

static bool in_parameters(const query *q, const held *h)
{
    return !h->whole && (h->frozen || q->settings->precision.gather == PL_FP32);
}

void pl_expect_start_entry(const query *q)
{
    held h;
    bool adam = q->settings->optimizer == PL_OPTIMIZER_ADAMW;
    if (!find_held(&h, q, 1)) return;
    pl_buffer_kind initial = h.whole ? PL_BUF_INITIAL_IGNORED : PL_BUF_INITIAL;
    switch ((pl_operation)q->name->operation) {
    case PL_OP_INITIALIZE:
        on(q, PL_STREAM_HOST);
        writes_part(q, h.subject, h.layer, initial);
        break;
    case PL_OP_COPY:
        on(q, PL_STREAM_COPY);
        reads_part(q, h.subject, h.layer, initial);
        if (h.whole) writes_part(q, h.subject, h.layer, PL_BUF_IGNORED);
        if (in_master(q, &h)) writes_part(q, h.subject, h.layer, PL_BUF_MASTER);
        if (in_parameters(q, &h)) writes_part(q, h.subject, h.layer, PL_BUF_PARAMETER);
        break;
    case PL_OP_ZERO:
        if (!adam || !h.trained) return;
        on(q, PL_STREAM_COMPUTE);
        writes_part(q, h.subject, h.layer, h.whole ? PL_BUF_IGNORED_M : PL_BUF_ADAM_M);
        writes_part(q, h.subject, h.layer, h.whole ? PL_BUF_IGNORED_V : PL_BUF_ADAM_V);
        break;
    default: break;
    }
}

/* Copies out have ordinals of their own, 2 and 3. */
void pl_expect_export_entry(const query *q)
{
    held h;
    bool copies = q->name->operation == PL_OP_COPY;
    if (!find_held(&h, q, copies ? 3 : 1)) return;
    pl_buffer_kind outgoing = h.whole ? PL_BUF_OUTGOING_IGNORED : PL_BUF_OUTGOING;
    if (copies) {
        on(q, PL_STREAM_COPY);
        if (h.whole) reads_part(q, h.subject, h.layer, PL_BUF_IGNORED);
        if (in_master(q, &h)) reads_part(q, h.subject, h.layer, PL_BUF_MASTER);
        if (in_parameters(q, &h)) reads_part(q, h.subject, h.layer, PL_BUF_PARAMETER);
        writes_part(q, h.subject, h.layer, outgoing);
    } else {
        on(q, PL_STREAM_HOST);
        reads_part(q, h.subject, h.layer, outgoing);
    }
}

/* --- save and load --- */

static const pl_expected_saved saved[PL_EXPECTED_SAVED] = {
    {PL_BUF_PARAMETER, PL_BUF_HOST_PARAMETER, false, false},
    {PL_BUF_MASTER, PL_BUF_HOST_MASTER, false, true},
    {PL_BUF_ADAM_M, PL_BUF_HOST_ADAM_M, false, true},
    {PL_BUF_ADAM_V, PL_BUF_HOST_ADAM_V, false, true},
    {PL_BUF_IGNORED, PL_BUF_HOST_IGNORED, true, false},
    {PL_BUF_IGNORED_M, PL_BUF_HOST_IGNORED_M, true, true},
    {PL_BUF_IGNORED_V, PL_BUF_HOST_IGNORED_V, true, true},
};

const pl_expected_saved *pl_expect_saved(int32_t number) { return &saved[number]; }

int32_t pl_expect_saved_number(pl_buffer_kind kind)
{
    for (int32_t i = 0; i < PL_EXPECTED_SAVED; ++i)
        if (saved[i].held == kind || saved[i].host == kind) return i;
    return -1;
}

/* Whether the part has anything for SAVED: masters where they stand apart, moments for adamw. */
static bool is_kept(const query *q, const pl_expected_part *part, const pl_expected_saved *s)
{
    bool moment = s->trained && s->held != PL_BUF_MASTER;
    int64_t trained = s->whole ? part->whole : part->trained;
    int64_t frozen = s->whole ? part->whole_frozen : part->frozen;
    if (s->held == PL_BUF_MASTER && q->settings->precision.gather == PL_FP32) return false;
    if (moment && q->settings->optimizer != PL_OPTIMIZER_ADAMW) return false;
    return trained > 0 || (!s->trained && frozen > 0);
}

/* Copies in have ordinals from 4 on, copies out behind them. */
void pl_expect_saved_entry(const query *q)
{
    bool saves = q->program == PL_PROGRAM_SAVE, copies = q->name->operation == PL_OP_COPY;
    pl_subject subject = (pl_subject)q->name->subject;
    int32_t layer = q->name->layer;
    int32_t number = q->name->ordinal - (copies ? saves ? 4 + PL_EXPECTED_SAVED : 4 : 0);
    if (!copies && q->name->operation != (uint8_t)(saves ? PL_OP_WRITE : PL_OP_READ)) return;
    if (!is_part(q) || !pass_is(q, PL_PASS_NONE)) return;
    if (number < 0 || number >= PL_EXPECTED_SAVED) return;
    const pl_expected_saved *s = &saved[number];
    if (!is_kept(q, pl_expected_part_of(q->parts, subject, layer), s)) return;
    on(q, copies ? PL_STREAM_COPY : PL_STREAM_HOST);
    if (saves) {
        reads_part(q, subject, layer, copies ? s->held : s->host);
        if (copies) writes_part(q, subject, layer, s->host);
    } else {
        writes_part(q, subject, layer, copies ? s->held : s->host);
        if (copies) reads_part(q, subject, layer, s->host);
    }
}
