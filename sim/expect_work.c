/* What each entry of a program must be, from model, layout and settings alone.
 *
 * A name is looked up: does such an entry belong here, on which stream, in which group, and what
 * must it read and write? Nothing is emitted; the order of entries is other proofs' concern.
 */
#include <string.h>

#include "sim/expect_query.h"

bool pl_expect_moe(const pl_sim_world *world, int32_t layer)
{
    return world->parts.experts[layer].exists;
}

bool pl_expect_recompute(const pl_sim_world *world, int32_t layer)
{
    query q = {.world = world, .settings = &world->plan->settings, .parts = &world->parts};
    q.program = PL_PROGRAM_STEP;
    return recomputes(&q, layer);
}

bool pl_expect_moves(pl_program program)
{
    return pl_expect_makes(program) || program == PL_PROGRAM_EXPORT || program == PL_PROGRAM_SAVE;
}

bool pl_expect_makes(pl_program program)
{
    return program == PL_PROGRAM_START || program == PL_PROGRAM_LOAD;
}

/* --- the lookup --- */

/* Which numbers an operation's name carries. */
typedef struct shape {
    pl_subject subject; /* PL_SUBJECT_COUNT: several, see expect_... */
    bool round, micro_batch, free_micro_batch;
    int ordinals;
} shape;

/* Copies of one program have ordinals behind those of the one before. */
static int copies_of(pl_program program)
{
    switch (program) {
    case PL_PROGRAM_START: return 2;
    case PL_PROGRAM_EXPORT: return 4;
    case PL_PROGRAM_LOAD: return 4 + PL_EXPECTED_SAVED;
    default: return 4 + 2 * PL_EXPECTED_SAVED;
    }
}

static shape shape_of(pl_operation operation, pl_program program)
{
    bool start = program == PL_PROGRAM_START;
    switch (operation) {
    case PL_OP_LOAD_BATCH: return (shape){PL_SUBJECT_BATCH, false, false, false, 1};
    case PL_OP_COUNT_TOKENS: return (shape){PL_SUBJECT_TOKENS, false, false, false, 1};
    case PL_OP_COPY:
        return pl_expect_moves(program)
                   ? (shape){PL_SUBJECT_COUNT, false, false, false, copies_of(program)}
                   : (shape){PL_SUBJECT_BATCH, true, true, false, 1};
    case PL_OP_WRITE:
    case PL_OP_READ: return (shape){PL_SUBJECT_COUNT, false, false, false, PL_EXPECTED_SAVED};
    case PL_OP_INITIALIZE:
    case PL_OP_ZERO: return (shape){PL_SUBJECT_COUNT, false, false, false, 2};
    case PL_OP_CAST:
        return start ? (shape){PL_SUBJECT_COUNT, false, false, false, 1}
                     : (shape){PL_SUBJECT_COUNT, true, false, true, 2};
    case PL_OP_GATHER:
    case PL_OP_RESHARD: return (shape){PL_SUBJECT_COUNT, true, false, true, 2};
    case PL_OP_REDUCE:
    case PL_OP_ACCUMULATE: return (shape){PL_SUBJECT_COUNT, true, false, false, 1};
    case PL_OP_EMBED: return (shape){PL_SUBJECT_EMBEDDING, true, true, false, 1};
    case PL_OP_EXPERTS: return (shape){PL_SUBJECT_EXPERTS, true, true, false, 1};
    case PL_OP_FINAL_NORM: return (shape){PL_SUBJECT_NORM, true, true, false, 1};
    case PL_OP_LOSS:
    case PL_OP_LOGITS:
    case PL_OP_SAMPLE: return (shape){PL_SUBJECT_HEAD, true, true, false, 1};
    case PL_OP_BALANCE: return (shape){PL_SUBJECT_BALANCE, true, false, false, 1};
    case PL_OP_ALL_REDUCE: return (shape){PL_SUBJECT_COUNT, false, false, false, 1};
    case PL_OP_SCALE:
    case PL_OP_GRADIENT_NORM:
    case PL_OP_CLIP: return (shape){PL_SUBJECT_GRADIENTS, false, false, false, 1};
    case PL_OP_STEP: return (shape){PL_SUBJECT_PARAMETERS, false, false, false, 1};
    case PL_OP_CONTROL: return (shape){PL_SUBJECT_FLAGS, false, false, false, 1};
    default: return (shape){PL_SUBJECT_LAYER, true, true, false, 1};
    }
}

static bool number_fits(int32_t number, bool has, int64_t below)
{
    return has ? number >= 0 && number < below : number == -1;
}

static int64_t rounds_of(const pl_settings *settings, pl_program program)
{
    return program == PL_PROGRAM_STEP ? settings->shape.rounds : 1;
}

static bool name_fits(const query *q)
{
    const pl_entry_name *n = q->name;
    const pl_shape *sizes = &q->settings->shape;
    shape s = shape_of((pl_operation)n->operation, q->program);
    bool layered = n->subject == PL_SUBJECT_LAYER || n->subject == PL_SUBJECT_EXPERTS;
    /* The end of a step belongs to no round: updated masters, reductions of sums. */
    bool after = n->subject == PL_SUBJECT_PARAMETERS && n->operation == PL_OP_CAST;
    bool in_round = s.round && !after;
    if (n->operation == PL_OP_ALL_REDUCE) in_round = n->subject == PL_SUBJECT_BALANCE;
    if (s.subject != PL_SUBJECT_COUNT && n->subject != (uint8_t)s.subject) return false;
    if (!number_fits(n->layer, layered, q->parts->layers)) return false;
    if (n->chunk != -1 || n->ordinal < 0 || n->ordinal >= s.ordinals) return false;
    if (!number_fits(n->round, in_round, rounds_of(q->settings, q->program))) return false;
    if (s.free_micro_batch && n->micro_batch != -1) {
        /* one for each micro-batch, where the policy calls units so */
        return q->settings->policy.reshard == PL_RESHARD_PER_CALL && n->micro_batch >= 0 &&
               n->micro_batch < sizes->intra_layer && in_round;
    }
    return number_fits(n->micro_batch, s.micro_batch, sizes->intra_layer);
}

/* Entries of a step alone: what becomes of gradients and counts. */
static void look_up_update(const query *q)
{
    if (!trains(q)) return;
    switch ((pl_operation)q->name->operation) {
    case PL_OP_REDUCE: pl_expect_reduce_entry(q); return;
    case PL_OP_ACCUMULATE: pl_expect_accumulate_entry(q); return;
    case PL_OP_BALANCE: pl_expect_balance_entry(q); return;
    case PL_OP_SCALE:
    case PL_OP_GRADIENT_NORM:
    case PL_OP_CLIP:
    case PL_OP_STEP: pl_expect_update_entry(q); return;
    default: return;
    }
}

static void look_up_moe(const query *q)
{
    bool inside = q->layer >= 0 && q->layer < q->parts->layers;
    if (!inside || !pl_expect_moe(q->world, q->layer)) return;
    switch ((pl_operation)q->name->operation) {
    case PL_OP_ROUTE: pl_expect_route_entry(q); return;
    case PL_OP_EXCHANGE_COUNTS:
    case PL_OP_BIND: pl_expect_counts_entry(q); return;
    case PL_OP_PERMUTE: pl_expect_permute_entry(q); return;
    case PL_OP_SHARE_ROUTES: pl_expect_share_routes_entry(q); return;
    case PL_OP_DISPATCH: pl_expect_dispatch_entry(q); return;
    case PL_OP_EXPERTS: pl_expect_experts_entry(q); return;
    case PL_OP_COMBINE: pl_expect_combine_entry(q); return;
    case PL_OP_MERGE: pl_expect_merge_entry(q); return;
    default: return;
    }
}

/* Programs that compute. */
static void look_up_compute(const query *q)
{
    switch ((pl_operation)q->name->operation) {
    case PL_OP_LOAD_BATCH:
    case PL_OP_COUNT_TOKENS:
    case PL_OP_COPY: pl_expect_batch_entry(q); return;
    case PL_OP_CAST: pl_expect_cast_entry(q); return;
    case PL_OP_GATHER: pl_expect_gather_entry(q); return;
    case PL_OP_RESHARD: pl_expect_reshard_entry(q); return;
    case PL_OP_EMBED: pl_expect_embed_entry(q); return;
    case PL_OP_ATTENTION: pl_expect_attention_entry(q); return;
    case PL_OP_MLP: pl_expect_mlp_entry(q); return;
    case PL_OP_FINAL_NORM: pl_expect_final_norm_entry(q); return;
    case PL_OP_LOSS: pl_expect_loss_entry(q); return;
    case PL_OP_LOGITS:
    case PL_OP_SAMPLE: pl_expect_logits_entry(q); return;
    case PL_OP_ALL_REDUCE: pl_expect_all_reduce_entry(q); return;
    default: look_up_moe(q); look_up_update(q);
    }
}

/* Programs that move parameters. */
static void look_up_transfer(const query *q)
{
    if (q->program == PL_PROGRAM_EXPORT) {
        bool own = q->name->operation == PL_OP_COPY || q->name->operation == PL_OP_WRITE;
        if (own) pl_expect_export_entry(q);
    } else if (q->program == PL_PROGRAM_SAVE || q->program == PL_PROGRAM_LOAD) {
        pl_expect_saved_entry(q);
    } else if (q->name->operation == PL_OP_CAST) {
        pl_expect_cast_entry(q);
    } else {
        pl_expect_start_entry(q);
    }
}

void pl_expect_entry(pl_expected_entry *out, const pl_sim_world *world, pl_program program,
                     const pl_entry_name *name)
{
    const pl_settings *settings = &world->plan->settings;
    query q = {world,
               program,
               settings,
               &world->parts,
               name,
               out,
               name->layer,
               name->micro_batch,
               world->groups.size[PL_GROUP_EXPERT_OWNER] > 1,
               settings->policy.dispatch == PL_DISPATCH_ALL_TO_ALL};
    memset(out, 0, sizeof *out);
    out->group = PL_GROUP_NONE;
    out->scale = (pl_scale){1, 1, 0};
    out->wire = PL_U8;
    if (!name_fits(&q)) return;
    if (name->operation == PL_OP_CONTROL)
        pl_expect_control_entry(&q);
    else if (computes(&q))
        look_up_compute(&q);
    else
        look_up_transfer(&q);
}

/* --- all names that might be wanted --- */

typedef struct walk {
    const pl_sim_world *world;
    pl_program program;
    bool (*visit)(void *context, const pl_entry_name *name);
    void *context;
} walk;

static bool visit_passes(const walk *w, pl_entry_name *name, int ordinals)
{
    for (int ordinal = 0; ordinal < ordinals; ++ordinal) {
        for (int pass = 0; pass < PL_PASS_COUNT; ++pass) {
            name->ordinal = ordinal;
            name->pass = (uint8_t)pass;
            if (!w->visit(w->context, name)) return false;
        }
    }
    return true;
}

static bool visit_numbers(const walk *w, pl_entry_name *name, const shape *s, bool in_round)
{
    const pl_shape *sizes = &w->world->plan->settings.shape;
    int64_t rounds = in_round ? rounds_of(&w->world->plan->settings, w->program) : 1;
    int64_t micro_batches = s->micro_batch ? sizes->intra_layer : 1;
    for (int64_t round = 0; round < rounds; ++round) {
        for (int64_t mb = 0; mb < micro_batches; ++mb) {
            name->round = in_round ? (int32_t)round : -1;
            name->micro_batch = s->micro_batch ? (int32_t)mb : -1;
            if (!visit_passes(w, name, s->ordinals)) return false;
        }
    }
    return true;
}

static bool visit_subject(const walk *w, pl_operation operation, pl_subject subject)
{
    shape s = shape_of(operation, w->program);
    bool layered = subject == PL_SUBJECT_LAYER || subject == PL_SUBJECT_EXPERTS;
    bool computes = !pl_expect_moves(w->program);
    bool in_round = computes && s.round && subject != PL_SUBJECT_PARAMETERS;
    int32_t layers = layered ? w->world->parts.layers : 1;
    if (operation == PL_OP_ALL_REDUCE) in_round = computes && subject == PL_SUBJECT_BALANCE;
    s.micro_batch = s.micro_batch && computes;
    for (int32_t layer = 0; layer < layers; ++layer) {
        pl_entry_name name = pl_entry_name_make(operation, subject);
        name.layer = layered ? layer : -1;
        if (!visit_numbers(w, &name, &s, in_round)) return false;
    }
    return true;
}

void pl_expect_names(const pl_sim_world *world, pl_program program,
                     bool (*visit)(void *context, const pl_entry_name *name), void *context)
{
    walk w = {world, program, visit, context};
    for (int operation = 0; operation < PL_OPERATION_COUNT; ++operation) {
        shape s = shape_of((pl_operation)operation, program);
        bool any = s.subject == PL_SUBJECT_COUNT;
        int first = any ? 0 : (int)s.subject, last = any ? PL_SUBJECT_COUNT - 1 : first;
        for (int subject = first; subject <= last; ++subject)
            if (!visit_subject(&w, (pl_operation)operation, (pl_subject)subject)) return;
    }
}
