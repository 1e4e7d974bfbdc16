/* What each entry does to the values that a walk carries. */
#include <inttypes.h>
#include <string.h>

#include "sim/walk_act.h"

/* The value read of the first buffer of KIND, 0 when there is none (other proofs say so). */
static pl_value get(const act *a, pl_buffer_kind kind)
{
    for (uint32_t i = 0; i < a->entry->use_count; ++i)
        if ((a->uses[i].flags & PL_USE_READ) && buffer_of(a, i)->kind == (uint8_t)kind)
            return *value_of(a, i);
    return 0;
}

/* Write VALUE into the buffers of KIND; adds where the entry updates. */
static void put(const act *a, pl_buffer_kind kind, pl_value value)
{
    for (uint32_t i = 0; i < a->entry->use_count; ++i) {
        if (!(a->uses[i].flags & PL_USE_WRITE) || buffer_of(a, i)->kind != (uint8_t)kind) continue;
        bool adds = (a->uses[i].flags & PL_USE_READ) && !(a->uses[i].flags & PL_USE_BEGIN);
        *value_of(a, i) = adds ? pl_value_add(*value_of(a, i), value) : value;
    }
}

static void set(const act *a, pl_buffer_kind kind, pl_value value)
{
    for (uint32_t i = 0; i < a->entry->use_count; ++i)
        if ((a->uses[i].flags & PL_USE_WRITE) && buffer_of(a, i)->kind == (uint8_t)kind)
            *value_of(a, i) = value;
}

static pl_value module_value(int module) { return pl_value_random(PL_RANDOM_MODULE, module, 0, 0); }

/* Gradients of a module for the tokens of VALUE. */
static void add_gradients(const act *a, pl_value value)
{
    put(a, PL_BUF_GRADIENT_SUM, value);
    put(a, PL_BUF_GRADIENT, value);
    put(a, PL_BUF_IGNORED_GRADIENT, value);
}

static void fail(const act *a, pl_proof_id proof, const char *what, const char *name)
{
    pl_verdict_fail(&a->walk->verdicts[proof], a->rank, a->walk->program, a->r->section, a->entry,
                    "%s %s", what, name);
}

/* --- parameters --- */

/* Whatever a module reads of parameters must be whole and current. */
static void check_parameters(const act *a)
{
    for (uint32_t i = 0; i < a->entry->use_count; ++i) {
        const pl_buffer *buffer = buffer_of(a, i);
        bool full = buffer->kind == PL_BUF_FULL || buffer->kind == PL_BUF_PARAMETER;
        if (!(a->uses[i].flags & PL_USE_READ) || !full) continue;
        ++a->walk->verdicts[PL_PROOF_PARAMETERS].checked;
        if (*value_of(a, i) ==
            pl_walk_full(a->walk->expected, (pl_subject)buffer->subject, buffer->layer, a->rank))
            continue;
        pl_text name = {0};
        pl_buffer_print(&name, buffer);
        fail(a, PL_PROOF_PARAMETERS,
             "does not hold the gathered parameters:", pl_text_string(&name));
        pl_verdict_free_text(&a->walk->verdicts[PL_PROOF_PARAMETERS], &name);
    }
}

/* --- modules --- */

/* Tokens and labels must be those of the round and micro-batch that the entry is named after. */
static void check_samples(const act *a, pl_buffer_kind kind)
{
    const pl_entry_name *n = &a->entry->name;
    ++a->walk->verdicts[PL_PROOF_GRADIENTS].checked;
    if (get(a, kind) !=
        pl_walk_tokens(a->walk->world, &a->walk->probe, a->rank, n->round, n->micro_batch))
        fail(a, PL_PROOF_GRADIENTS, "computes on samples", "of another round or micro-batch");
}

static void copy_batch(const act *a)
{
    const pl_entry_name *n = &a->entry->name;
    pl_value tokens =
        pl_walk_tokens(a->walk->world, &a->walk->probe, a->rank, n->round, n->micro_batch);
    set(a, PL_BUF_TOKENS, tokens);
    set(a, PL_BUF_LABELS, tokens);
}

static void compute_loss(const act *a)
{
    check_samples(a, PL_BUF_LABELS);
    const pl_entry_name *n = &a->entry->name;
    pl_value tokens =
        pl_walk_tokens(a->walk->world, &a->walk->probe, a->rank, n->round, n->micro_batch);
    set(a, PL_BUF_D_FINAL, tokens);
    put(a, PL_BUF_LOSS_SUM, tokens);
    add_gradients(a, pl_value_multiply(tokens, module_value(PL_MODULE_VALUE_HEAD)));
}

static void check_counts(const act *a)
{
    pl_verdict *verdict = &a->walk->verdicts[PL_PROOF_COUNTS];
    pl_value expected = pl_walk_balance(a->walk->expected, a->entry->name.round, a->rank);
    ++verdict->checked;
    for (uint32_t i = 0; i < a->entry->use_count; ++i)
        if (buffer_of(a, i)->kind == PL_BUF_BALANCE && (a->uses[i].flags & PL_USE_READ) &&
            *value_of(a, i) != expected)
            fail(a, PL_PROOF_COUNTS, "load-balance counts do not cover",
                 "every token of the ranks that they must span, once each");
}

static void check_total(const act *a)
{
    pl_verdict *verdict = &a->walk->verdicts[PL_PROOF_COUNTS];
    ++verdict->checked;
    for (uint32_t i = 0; i < a->entry->use_count; ++i)
        if (buffer_of(a, i)->kind == PL_BUF_TOKEN_COUNT && (a->uses[i].flags & PL_USE_READ) &&
            *value_of(a, i) != a->walk->expected->tokens_total)
            fail(a, PL_PROOF_COUNTS, "T is not the count of valid labels",
                 "of all data ranks, once each");
}

static void compute_route(const act *a)
{
    const pl_entry_name *n = &a->entry->name;
    int64_t m = a->walk->world->plan->settings.shape.intra_layer;
    int64_t step = n->round * m + n->micro_batch;
    if (n->pass == PL_PASS_FORWARD) {
        put(a, PL_BUF_BALANCE, pl_value_random(PL_RANDOM_BALANCE, a->rank, n->layer, step));
        put(a, PL_BUF_BALANCE_SCORES, pl_value_random(PL_RANDOM_LOSS, a->rank, n->layer, step));
    }
    if (!is_backward(a)) return;
    check_counts(a);
    check_total(a);
    pl_value routed = pl_value_multiply(get(a, PL_BUF_D_ROUTE), module_value(PL_MODULE_VALUE_FEED));
    pl_value sent =
        pl_value_multiply(get(a, PL_BUF_D_NORMED), module_value(PL_MODULE_VALUE_EXCHANGE));
    pl_value balance = a->walk->expected->balances
                           ? pl_value_multiply(factor_of(a->entry, get(a, PL_BUF_TOKEN_COUNT)),
                                               module_value(PL_MODULE_VALUE_BALANCE))
                           : 0;
    add_gradients(a, pl_value_add(balance, pl_value_add(routed, sent)));
}

/* Forward tokens are not carried; backward ones are, from the loss down. */
static void compute_experts(const act *a)
{
    bool exchanged = a->walk->world->groups.size[PL_GROUP_EXPERT_OWNER] > 1;
    if (a->entry->name.pass == PL_PASS_BACKWARD_WEIGHTS) {
        add_gradients(a, get(a, PL_BUF_D_ACTIVATION));
        return;
    }
    if (a->entry->name.pass != PL_PASS_BACKWARD_INPUTS) return;
    pl_value gradient = exchanged ? get(a, PL_BUF_D_EXPERT_OUT)
                                  : pl_value_multiply(get(a, PL_BUF_D_RETURNED), own_factor(a));
    static const pl_buffer_kind outputs[] = {PL_BUF_D_ACTIVATION, PL_BUF_D_RECEIVED,
                                             PL_BUF_D_SEND,       PL_BUF_D_NORMED,
                                             PL_BUF_D_ROUTES_IN,  PL_BUF_D_ROUTE};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; ++i) set(a, outputs[i], gradient);
}

static void compute_backward(const act *a, pl_buffer_kind from, pl_buffer_kind to, int module)
{
    pl_value tokens = get(a, from);
    if (!is_backward(a)) return;
    set(a, to, tokens);
    add_gradients(a, pl_value_multiply(tokens, module_value(module)));
}

static void compute_merge(const act *a)
{
    pl_value tokens = get(a, PL_BUF_D_INPUT);
    if (!is_backward(a)) return;
    set(a, PL_BUF_D_RETURNED, tokens);
    set(a, PL_BUF_D_ROUTE, tokens);
    set(a, PL_BUF_D_ATTENDED, tokens);
}

/* --- casts and copies --- */

static int64_t part_of(const act *a, uint32_t use)
{
    const pl_buffer *buffer = buffer_of(a, use);
    if (pl_buffer_kind_scope((pl_buffer_kind)buffer->kind) != PL_SCOPE_PART) return -1;
    if (buffer->layer >= a->walk->world->parts.layers) return -1;
    return pl_walk_part_number(a->walk->world, (pl_subject)buffer->subject, buffer->layer);
}

/* Every buffer written takes the value of the one that is only read for the same part: a cast of
 * updated masters writes parameters in place. */
static void copy_by_part(const act *a)
{
    pl_value *read = a->walk->by_part[0];
    for (uint32_t i = 0; i < a->entry->use_count; ++i)
        if (part_of(a, i) >= 0) read[part_of(a, i)] = 0;
    for (uint32_t i = 0; i < a->entry->use_count; ++i)
        if ((a->uses[i].flags & PL_USE_READ) && !(a->uses[i].flags & PL_USE_WRITE) &&
            part_of(a, i) >= 0)
            read[part_of(a, i)] = *value_of(a, i);
    for (uint32_t i = 0; i < a->entry->use_count; ++i)
        if ((a->uses[i].flags & PL_USE_WRITE) && part_of(a, i) >= 0)
            *value_of(a, i) = read[part_of(a, i)];
}

static void compute_initialize(const act *a)
{
    const pl_entry_name *n = &a->entry->name;
    pl_subject subject = (pl_subject)n->subject;
    set(a, PL_BUF_INITIAL, pl_walk_initial(a->walk->world, subject, n->layer, a->rank));
    set(a, PL_BUF_INITIAL_IGNORED, pl_walk_initial(a->walk->world, subject, n->layer, 0));
}

/* What a checkpoint keeps of the part that the entry is named after, for the buffers written. */
static void compute_read(const act *a)
{
    const pl_entry_name *n = &a->entry->name;
    for (uint32_t i = 0; i < a->entry->use_count; ++i)
        if (a->uses[i].flags & PL_USE_WRITE)
            *value_of(a, i) = pl_walk_saved(a->walk->world, (pl_buffer_kind)buffer_of(a, i)->kind,
                                            (pl_subject)n->subject, n->layer, a->rank);
}

/* What is handed out must be what the rank holds of the part that the entry is named after. */
static void check_outgoing(const act *a)
{
    const pl_entry_name *n = &a->entry->name;
    pl_subject subject = (pl_subject)n->subject;
    bool saves = a->walk->program == PL_PROGRAM_SAVE;
    for (uint32_t i = 0; i < a->entry->use_count; ++i) {
        const pl_buffer *buffer = buffer_of(a, i);
        pl_buffer_kind kind = (pl_buffer_kind)buffer->kind;
        bool whole = kind == PL_BUF_OUTGOING_IGNORED;
        bool out = saves ? pl_expect_saved_number(kind) >= 0 : whole || kind == PL_BUF_OUTGOING;
        if (!(a->uses[i].flags & PL_USE_READ) || !out) continue;
        ++a->walk->verdicts[PL_PROOF_PARAMETERS].checked;
        if (*value_of(a, i) ==
            (saves ? pl_walk_saved(a->walk->world, kind, subject, n->layer, a->rank)
                   : pl_walk_initial(a->walk->world, subject, n->layer, whole ? 0 : a->rank)))
            continue;
        pl_text name = {0};
        pl_buffer_print(&name, buffer);
        fail(a, PL_PROOF_PARAMETERS,
             saves ? "does not hold what the rank keeps:"
                   : "does not hold the parameters of the rank:",
             pl_text_string(&name));
        pl_verdict_free_text(&a->walk->verdicts[PL_PROOF_PARAMETERS], &name);
    }
}

/* --- the update --- */

static void compute_scale(const act *a)
{
    pl_value factor = factor_of(a->entry, get(a, PL_BUF_TOKEN_COUNT));
    check_total(a);
    for (uint32_t i = 0; i < a->entry->use_count; ++i)
        if (a->uses[i].flags & PL_USE_WRITE)
            *value_of(a, i) = pl_value_multiply(*value_of(a, i), factor);
}

static bool is_gradient(const pl_buffer *buffer)
{
    return buffer->kind == PL_BUF_GRADIENT || buffer->kind == PL_BUF_IGNORED_GRADIENT;
}

static bool is_whole(const pl_buffer *buffer)
{
    return buffer->kind == PL_BUF_IGNORED_GRADIENT ||
           (buffer->kind >= PL_BUF_IGNORED && buffer->kind <= PL_BUF_IGNORED_V);
}

/* A small fraction in words, when the ratio is one. */
static void print_ratio(pl_text *text, pl_value ratio)
{
    for (pl_value denominator = 1; denominator <= 1024; ++denominator) {
        pl_value numerator = pl_value_multiply(ratio, denominator);
        if (numerator > 1024) continue;
        pl_text_add(text, "%" PRIu64, numerator);
        if (denominator > 1) pl_text_add(text, "/%" PRIu64, denominator);
        pl_text_add_string(text, " times what it must be");
        return;
    }
    pl_text_add_string(text, "not a multiple of what it must be");
}

/* Gradients as the norm and the update see them. */
static void check_gradients(const act *a)
{
    pl_verdict *verdict = &a->walk->verdicts[PL_PROOF_GRADIENTS];
    for (uint32_t i = 0; i < a->entry->use_count; ++i) {
        const pl_buffer *buffer = buffer_of(a, i);
        if (!is_gradient(buffer) || !(a->uses[i].flags & PL_USE_READ)) continue;
        pl_value must =
            pl_walk_gradient(a->walk->expected, (pl_subject)buffer->subject, buffer->layer,
                             buffer->kind == PL_BUF_IGNORED_GRADIENT, a->rank);
        ++verdict->checked;
        bool probed = a->walk->wrong_rank == a->rank && a->walk->wrong_buffer == a->uses[i].buffer;
        if (a->walk->wrong && !probed) continue;
        if (*value_of(a, i) == must && !probed) continue;
        a->walk->wrong = true;
        a->walk->wrong_rank = a->rank;
        a->walk->wrong_buffer = a->uses[i].buffer;
        a->walk->ratio = pl_value_multiply(*value_of(a, i), pl_value_inverse(must));
        if (*value_of(a, i) == must) continue;
        pl_text name = {0}, words = {0};
        pl_buffer_print(&name, buffer);
        print_ratio(&words, a->walk->ratio);
        pl_verdict_fail(verdict, a->rank, a->walk->program, a->r->section, a->entry, "%s is %s",
                        pl_text_string(&name), pl_text_string(&words));
        pl_verdict_free_text(verdict, &name);
        pl_verdict_free_text(verdict, &words);
    }
}

static void compute_norm(const act *a)
{
    pl_value sum[3] = {0, 0, 0};
    check_gradients(a);
    for (uint32_t i = 0; i < a->entry->use_count; ++i) {
        const pl_buffer *buffer = buffer_of(a, i);
        if (!is_gradient(buffer) || !(a->uses[i].flags & PL_USE_READ)) continue;
        bool whole = buffer->kind == PL_BUF_IGNORED_GRADIENT;
        int class_ = whole ? 2 : buffer->subject == PL_SUBJECT_EXPERTS ? 1 : 0;
        sum[class_] =
            pl_value_add(sum[class_], pl_walk_squares(a->walk->world, (pl_subject)buffer->subject,
                                                      buffer->layer, whole, a->rank));
    }
    for (int i = 0; i < 3; ++i) {
        ++a->walk->verdicts[PL_PROOF_NORM].checked;
        set(a, (pl_buffer_kind)(PL_BUF_DENSE_SQUARES + i), sum[i]);
    }
}

static void check_squares(const act *a)
{
    static const char *const names[] = {"of dense parameters", "of routed experts",
                                        "of ignored parameters"};
    for (uint32_t i = 0; i < a->entry->use_count; ++i) {
        int class_ = buffer_of(a, i)->kind - PL_BUF_DENSE_SQUARES;
        if (class_ < 0 || class_ > 2) continue;
        ++a->walk->verdicts[PL_PROOF_NORM].checked;
        if (*value_of(a, i) != a->walk->expected->squares[class_])
            fail(a, PL_PROOF_NORM,
                 "the sum of squares does not count every element once:", names[class_]);
    }
}

/* The clip entry must see every sum that there is. */
static void compute_clip(const act *a)
{
    for (int i = 0; i < 3; ++i)
        if (get(a, (pl_buffer_kind)(PL_BUF_DENSE_SQUARES + i)) == 0 &&
            a->walk->expected->squares[i] != 0)
            fail(a, PL_PROOF_NORM, "does not see", "every sum of squares");
    check_squares(a);
    set(a, PL_BUF_CLIP, 1);
}

/* Masters, or parameters where there are none apart, and moments take the gradient in. */
static void compute_step(const act *a)
{
    check_gradients(a);
    check_total(a);
    if (get(a, PL_BUF_CLIP) != 1) fail(a, PL_PROOF_UPDATE, "updates before", "the norm is reduced");
    for (int whole = 0; whole < 2; ++whole)
        memset(a->walk->by_part[whole], 0, a->walk->parts * sizeof(pl_value));
    for (uint32_t i = 0; i < a->entry->use_count; ++i)
        if (is_gradient(buffer_of(a, i)) && part_of(a, i) >= 0)
            a->walk->by_part[is_whole(buffer_of(a, i))][part_of(a, i)] = *value_of(a, i);
    for (uint32_t i = 0; i < a->entry->use_count; ++i) {
        const pl_buffer *buffer = buffer_of(a, i);
        if (!(a->uses[i].flags & PL_USE_WRITE) || is_gradient(buffer) || part_of(a, i) < 0)
            continue;
        *value_of(a, i) =
            pl_value_add(*value_of(a, i), a->walk->by_part[is_whole(buffer)][part_of(a, i)]);
    }
}

static void compute_balance(const act *a)
{
    bool running = a->walk->world->plan->settings.balance == PL_BALANCE_GLOBAL_BATCH;
    put(a, PL_BUF_BALANCE_TOTAL, get(a, PL_BUF_BALANCE));
    for (uint32_t i = 0; i < a->entry->use_count && running; ++i)
        if (buffer_of(a, i)->kind == PL_BUF_BALANCE_TOTAL) set(a, PL_BUF_BALANCE, *value_of(a, i));
    check_counts(a);
    put(a, PL_BUF_LOSS_SUM, get(a, PL_BUF_BALANCE_SCORES));
}

static void check_loss(const act *a)
{
    ++a->walk->verdicts[PL_PROOF_COUNTS].checked;
    if (get(a, PL_BUF_LOSS_SUM) != pl_walk_loss(a->walk->expected, a->rank))
        fail(a, PL_PROOF_COUNTS, "the loss sums do not cover", "every rank of the stage once");
}

/* The host learns the sums and T with the flags. */
static void compute_control(const act *a)
{
    if (a->walk->program != PL_PROGRAM_STEP && a->walk->program != PL_PROGRAM_EVALUATE) return;
    check_loss(a);
    check_total(a);
}

/* A reduction is where a sum first covers the wrong ranks: name it there. */
static void check_reduced(const act *a)
{
    switch ((pl_subject)a->entry->name.subject) {
    case PL_SUBJECT_TOKENS: check_total(a); break;
    case PL_SUBJECT_LOSS: check_loss(a); break;
    case PL_SUBJECT_DENSE_SQUARES:
    case PL_SUBJECT_EXPERT_SQUARES: check_squares(a); break;
    default: break;
    }
}

void pl_walk_check_sums(pl_walk *walk, int64_t rank, const pl_entry *entry)
{
    act a = begin(walk, rank, entry);
    if (entry->name.operation == PL_OP_CONTROL) compute_control(&a);
    if (entry->name.operation == PL_OP_ALL_REDUCE) check_reduced(&a);
}

/* --- local entries --- */

void pl_walk_compute(pl_walk *walk, int64_t rank, const pl_entry *entry)
{
    act a = begin(walk, rank, entry);
    switch ((pl_operation)entry->name.operation) {
    case PL_OP_COUNT_TOKENS:
        set(&a, PL_BUF_TOKEN_COUNT, pl_value_random(PL_RANDOM_COUNT, rank, 0, 0));
        return;
    case PL_OP_INITIALIZE: compute_initialize(&a); return;
    case PL_OP_COPY:
        if (pl_expect_moves(walk->program))
            copy_by_part(&a);
        else
            copy_batch(&a);
        return;
    case PL_OP_WRITE: check_outgoing(&a); return;
    case PL_OP_READ: compute_read(&a); return;
    case PL_OP_ZERO:
        for (uint32_t i = 0; i < entry->use_count; ++i)
            if (a.uses[i].flags & PL_USE_WRITE) *value_of(&a, i) = 0;
        return;
    case PL_OP_CAST: copy_by_part(&a); return;
    case PL_OP_ACCUMULATE: put(&a, PL_BUF_GRADIENT, get(&a, PL_BUF_GRADIENT_PIECE)); return;
    case PL_OP_LOSS: compute_loss(&a); break;
    case PL_OP_LOGITS: break;
    case PL_OP_FINAL_NORM:
        compute_backward(&a, PL_BUF_D_FINAL, PL_BUF_D_INPUT, PL_MODULE_VALUE_OTHER);
        break;
    case PL_OP_MLP:
        compute_backward(&a, PL_BUF_D_INPUT, PL_BUF_D_ATTENDED, PL_MODULE_VALUE_FEED);
        break;
    case PL_OP_ATTENTION:
        compute_backward(&a, PL_BUF_D_ATTENDED, PL_BUF_D_INPUT, PL_MODULE_VALUE_ATTENTION);
        break;
    case PL_OP_EMBED:
        check_samples(&a, PL_BUF_TOKENS);
        compute_backward(&a, PL_BUF_D_INPUT, PL_BUF_FLAGS, PL_MODULE_VALUE_OTHER);
        break;
    case PL_OP_ROUTE: compute_route(&a); break;
    case PL_OP_EXPERTS: compute_experts(&a); break;
    case PL_OP_MERGE: compute_merge(&a); return;
    case PL_OP_PERMUTE: set(&a, PL_BUF_D_NORMED, get(&a, PL_BUF_D_SEND)); return;
    case PL_OP_BALANCE: compute_balance(&a); return;
    case PL_OP_SCALE: compute_scale(&a); return;
    case PL_OP_GRADIENT_NORM: compute_norm(&a); return;
    case PL_OP_CLIP: compute_clip(&a); return;
    case PL_OP_STEP: compute_step(&a); return;
    case PL_OP_CONTROL: compute_control(&a); return;
    default: return;
    }
    check_parameters(&a);
}

/* --- the end --- */

static bool is_trained(const pl_walk *walk, const pl_buffer *buffer)
{
    const pl_expected_part *part =
        pl_expected_part_of(&walk->world->parts, (pl_subject)buffer->subject, buffer->layer);
    return is_whole(buffer) ? part->whole > 0 : part->trained > 0;
}

/* What BUFFER must hold at the end. */
static pl_value state_after(const pl_walk *walk, const pl_buffer *buffer, int64_t rank)
{
    pl_subject subject = (pl_subject)buffer->subject;
    bool whole = is_whole(buffer);
    bool moment = buffer->kind == PL_BUF_ADAM_M || buffer->kind == PL_BUF_ADAM_V ||
                  buffer->kind == PL_BUF_IGNORED_M || buffer->kind == PL_BUF_IGNORED_V;
    if (walk->program == PL_PROGRAM_SAVE || walk->program == PL_PROGRAM_LOAD)
        return pl_walk_saved(walk->world, (pl_buffer_kind)buffer->kind, subject, buffer->layer,
                             rank);
    pl_value must =
        moment ? 0 : pl_walk_initial(walk->world, subject, buffer->layer, whole ? 0 : rank);
    if (!is_trained(walk, buffer) || walk->program != PL_PROGRAM_STEP) return must;
    return pl_value_add(must,
                        pl_walk_gradient(walk->expected, subject, buffer->layer, whole, rank));
}

static void check_state(pl_walk *walk, int64_t rank, uint32_t number)
{
    const pl_walk_rank *r = &walk->ranks[rank];
    const pl_buffer *buffer = &r->section->buffers[number];
    pl_value must = state_after(walk, buffer, rank);
    ++walk->verdicts[PL_PROOF_UPDATE].checked;
    if (r->value[number] == must) return;
    pl_text name = {0};
    pl_buffer_print(&name, buffer);
    pl_verdict_fail(&walk->verdicts[PL_PROOF_UPDATE], rank, walk->program, r->section, NULL,
                    "%s does not end as it must: %s", pl_text_string(&name),
                    walk->program == PL_PROGRAM_START  ? "initial values"
                    : walk->program == PL_PROGRAM_LOAD ? "what was saved of it"
                    : walk->program != PL_PROGRAM_STEP ? "what it was"
                    : is_trained(walk, buffer)         ? "what it was, updated once"
                                                       : "what it was, since it is frozen");
    pl_verdict_free_text(&walk->verdicts[PL_PROOF_UPDATE], &name);
}

void pl_walk_end(pl_walk *walk, int64_t rank)
{
    const pl_section *section = walk->ranks[rank].section;
    for (uint32_t i = 0; i < (uint32_t)section->buffer_count; ++i)
        if (section->buffers[i].resident &&
            pl_buffer_kind_scope((pl_buffer_kind)section->buffers[i].kind) == PL_SCOPE_PART)
            check_state(walk, rank, i);
}
