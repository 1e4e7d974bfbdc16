#include "tests/sim/harmless.h"

#include <string.h>

#include "common/memory.h"
#include "tests/sim/plan_order.h"

/* What differs between two entries that stand for one another. */
enum {
    DIFFERS_NAME = 1,
    DIFFERS_WAITS = 2,
    DIFFERS_GROUP = 4,
    DIFFERS_MORE_READS = 8,
    DIFFERS_ENDS = 16,
    DIFFERS_PLACE = 32,
    DIFFERS_ELSE = 64
};

/* Two plans that differ in one section. */
typedef struct comparison {
    pl_plan a, b;
    const pl_section *sound, *damaged;
    plan_order after; /* of damaged */
    bool meet;        /* the calls of all ranks of b meet */
    int32_t *match;   /* [entries of sound]: the entry of damaged that stands for it; owned */
    unsigned differs; /* over all entries */
} comparison;

/* --- which section differs --- */

static pl_status section_text(pl_text *text, const pl_section *section)
{
    pl_text_clear(text);
    for (size_t i = 0; i < section->buffer_count; ++i) {
        const pl_buffer *buffer = &section->buffers[i];
        pl_buffer_print(text, buffer);
        pl_text_add(text, " %d %d %d %d %lld\n", buffer->class_, buffer->dtype, buffer->per_row,
                    buffer->resident, (long long)buffer->bytes);
    }
    for (size_t i = 0; i < section->entry_count; ++i) {
        pl_entry_write(text, section, &section->entries[i]);
        pl_text_add_string(text, "\n");
    }
    return pl_text_status(text);
}

/* The texts of one section that differ; none, or more than one, leave C without. */
static pl_status find_section(comparison *c, int *differing)
{
    pl_text x = {0}, y = {0};
    pl_status status = PL_OK;
    for (size_t i = 0; i < c->a.section_count && status == PL_OK; ++i) {
        status = section_text(&x, &c->a.sections[i]);
        if (status == PL_OK) status = section_text(&y, &c->b.sections[i]);
        if (status != PL_OK || strcmp(pl_text_string(&x), pl_text_string(&y)) == 0) continue;
        ++*differing;
        c->sound = &c->a.sections[i];
        c->damaged = &c->b.sections[i];
    }
    pl_text_free(&x);
    pl_text_free(&y);
    return status;
}

/* Every rank finds in B what it finds in A, in whichever section. */
static pl_status same_for_every_rank(bool *same, const comparison *c)
{
    pl_text x = {0}, y = {0};
    pl_status status = PL_OK;
    *same = true;
    for (int program = 0; program < PL_PROGRAM_COUNT; ++program)
        for (int64_t rank = 0; *same && rank < c->a.layout.world; ++rank) {
            const pl_section *one = pl_plan_section(&c->a, (pl_program)program, rank);
            const pl_section *other = pl_plan_section(&c->b, (pl_program)program, rank);
            *same = (one != NULL) == (other != NULL);
            if (!one || !other) continue;
            status = section_text(&x, one);
            if (status == PL_OK) status = section_text(&y, other);
            *same = status == PL_OK && strcmp(pl_text_string(&x), pl_text_string(&y)) == 0;
        }
    pl_text_free(&x);
    pl_text_free(&y);
    return status;
}

/* --- which entry stands for which --- */

static int32_t find_entry(const pl_section *section, const pl_entry *like, bool by_label)
{
    int32_t found = -1;
    for (size_t i = 0; i < section->entry_count; ++i) {
        const pl_entry *entry = &section->entries[i];
        if (by_label ? entry->label != like->label
                     : !pl_entry_name_equal(&entry->name, &like->name))
            continue;
        if (found >= 0) return -1;
        found = (int32_t)i;
    }
    return found;
}

static bool match_entries(comparison *c, bool by_label)
{
    if (c->sound->entry_count != c->damaged->entry_count) return false;
    for (size_t i = 0; i < c->sound->entry_count; ++i) {
        c->match[i] = find_entry(c->damaged, &c->sound->entries[i], by_label);
        if (c->match[i] < 0) return false;
        for (size_t j = 0; j < i; ++j)
            if (c->match[j] == c->match[i]) return false;
    }
    return true;
}

static uint32_t flags_of(const pl_section *section, const pl_entry *entry, uint32_t buffer)
{
    for (uint32_t i = 0; i < entry->use_count; ++i)
        if (section->uses[entry->use_first + i].buffer == buffer)
            return section->uses[entry->use_first + i].flags;
    return 0;
}

/* Buffers stand for one another by number: the tables are compared before. */
static unsigned compare_uses(const comparison *c, const pl_entry *x, const pl_entry *y)
{
    unsigned differs = 0;
    for (uint32_t buffer = 0; buffer < c->sound->buffer_count; ++buffer) {
        uint32_t own = flags_of(c->sound, x, buffer), other = flags_of(c->damaged, y, buffer);
        uint32_t changed = own ^ other;
        if (changed & PL_USE_END) differs |= DIFFERS_ENDS;
        if (changed & PL_USE_READ)
            differs |= other & PL_USE_READ ? DIFFERS_MORE_READS : DIFFERS_ELSE;
        if (changed & (PL_USE_WRITE | PL_USE_BEGIN)) differs |= DIFFERS_ELSE;
    }
    return differs;
}

static bool same_waits(const comparison *c, const pl_entry *x, const pl_entry *y)
{
    if (x->wait_count != y->wait_count) return false;
    for (uint32_t i = 0; i < x->wait_count; ++i) {
        int32_t wait = c->sound->waits[x->wait_first + i];
        bool found = false;
        for (uint32_t j = 0; j < y->wait_count; ++j)
            found |= wait >= 0 && c->damaged->waits[y->wait_first + j] == c->match[wait];
        if (!found) return false;
    }
    return true;
}

static unsigned compare_entries(const comparison *c, size_t i)
{
    const pl_entry *x = &c->sound->entries[i], *y = &c->damaged->entries[c->match[i]];
    unsigned differs = compare_uses(c, x, y);
    if (!pl_entry_name_equal(&x->name, &y->name)) differs |= DIFFERS_NAME;
    if (!same_waits(c, x, y)) differs |= DIFFERS_WAITS;
    if (x->group != y->group) differs |= DIFFERS_GROUP;
    if (c->match[i] != (int32_t)i) differs |= DIFFERS_PLACE;
    if (x->stream != y->stream || x->reduction != y->reduction || x->wire != y->wire ||
        x->rows != y->rows || x->predicate != y->predicate || x->bytes != y->bytes ||
        x->flops != y->flops || x->elements != y->elements ||
        memcmp(&x->scale, &y->scale, sizeof x->scale) != 0)
        differs |= DIFFERS_ELSE;
    return differs;
}

static bool same_buffer(const pl_buffer *x, const pl_buffer *y)
{
    return x->kind == y->kind && x->class_ == y->class_ && x->dtype == y->dtype &&
           x->resident == y->resident && x->per_row == y->per_row && x->subject == y->subject &&
           x->layer == y->layer && x->micro_batch == y->micro_batch && x->bytes == y->bytes;
}

static bool same_buffers(const comparison *c)
{
    if (c->sound->buffer_count != c->damaged->buffer_count) return false;
    for (size_t i = 0; i < c->sound->buffer_count; ++i)
        if (!same_buffer(&c->sound->buffers[i], &c->damaged->buffers[i])) return false;
    return true;
}

/* --- reasons --- */

static const char says_the_same[] =
    "the texts say the same of every rank, under other labels or with a default written out";

/* Roles A and B name the same ranks in the same order for RANK, and, where ENTRY communicates, all
 * of them run the section: on the others the old role would stand, which is another communicator.
 */
static bool same_group(const comparison *c, const pl_entry *entry, pl_group_role b, int64_t rank)
{
    pl_group_role a = (pl_group_role)entry->group;
    pl_rank_set of_a = pl_layout_group(&c->a.layout, a, rank);
    pl_rank_set of_b = pl_layout_group(&c->a.layout, b, rank);
    if (!pl_rank_set_equal(&of_a, &of_b)) return false;
    for (int64_t i = 0; plan_order_communicates(entry) && i < pl_rank_set_size(&of_a); ++i)
        if (!pl_section_has_rank(c->damaged, pl_rank_set_member(&of_a, i))) return false;
    return true;
}

static bool same_groups(const comparison *c)
{
    for (size_t i = 0; i < c->sound->entry_count; ++i) {
        const pl_entry *x = &c->sound->entries[i], *y = &c->damaged->entries[c->match[i]];
        if (x->group == y->group) continue;
        if (x->group == PL_GROUP_NONE || y->group == PL_GROUP_NONE) return false;
        for (int64_t rank = 0; rank < c->a.layout.world; ++rank)
            if (pl_section_has_rank(c->damaged, rank) &&
                !same_group(c, x, (pl_group_role)y->group, rank))
                return false;
    }
    return true;
}

/* An entry that adds its share to a sum. */
static bool adds(const pl_entry *entry)
{
    return entry->name.operation == PL_OP_ACCUMULATE || entry->name.operation == PL_OP_BALANCE ||
           (entry->name.operation >= PL_OP_EMBED && entry->name.operation <= PL_OP_LOSS);
}

static bool is_sum(pl_buffer_kind kind)
{
    return kind == PL_BUF_GRADIENT_SUM || kind == PL_BUF_GRADIENT ||
           kind == PL_BUF_IGNORED_GRADIENT || kind == PL_BUF_BALANCE || kind == PL_BUF_LOSS_SUM ||
           kind == PL_BUF_BALANCE_TOTAL || kind == PL_BUF_BALANCE_SCORES;
}

enum { ORDER_KEPT = 0, ORDER_SUMS = 1, ORDER_SCALED = 2, ORDER_GATHERED = 4, ORDER_BROKEN = 8 };

/* How entries I and J, which both use BUFFER with these flags, now stand to one another. */
static unsigned flipped(const comparison *c, size_t i, size_t j, uint32_t buffer, uint32_t flags)
{
    const pl_entry *x = &c->sound->entries[i], *y = &c->sound->entries[j];
    pl_buffer_kind kind = (pl_buffer_kind)c->sound->buffers[buffer].kind;
    size_t at_x = (size_t)c->match[i], at_y = (size_t)c->match[j];
    if (plan_order_before(&c->after, at_x, at_y)) return ORDER_KEPT;
    if (!plan_order_before(&c->after, at_y, at_x)) return ORDER_BROKEN;
    if (kind == PL_BUF_FULL && plan_order_buffer_sound(&c->after, c->damaged, buffer))
        return ORDER_GATHERED;
    if (flags & (PL_USE_BEGIN | PL_USE_END)) return ORDER_BROKEN;
    if (is_sum(kind) && adds(x) && adds(y)) return ORDER_SUMS;
    bool scaled = x->name.operation == PL_OP_SCALE || y->name.operation == PL_OP_SCALE;
    bool summed = x->reduction == PL_REDUCTION_SUM || y->reduction == PL_REDUCTION_SUM;
    return scaled && summed ? ORDER_SCALED : ORDER_BROKEN;
}

/* Of all pairs of entries that share a buffer, one of them changing it. */
static unsigned compare_orders(const comparison *c)
{
    const uint32_t changes = PL_USE_WRITE | PL_USE_BEGIN | PL_USE_END;
    unsigned result = ORDER_KEPT;
    for (size_t j = 0; j < c->sound->entry_count; ++j) {
        const pl_entry *y = &c->sound->entries[j];
        for (uint32_t k = 0; k < y->use_count; ++k) {
            pl_use use = c->sound->uses[y->use_first + k];
            for (size_t i = 0; i < j; ++i) {
                uint32_t other = flags_of(c->sound, &c->sound->entries[i], use.buffer);
                if (other && ((other | use.flags) & changes))
                    result |= flipped(c, i, j, use.buffer, other | use.flags);
            }
        }
    }
    return result;
}

static const char *order_reason(const comparison *c)
{
    size_t count = c->sound->entry_count;
    bool ends = count == 0 || c->match[count - 1] == (int32_t)count - 1; /* control stays last */
    if (!c->after.sound || !c->meet || !ends) return NULL;
    unsigned orders = compare_orders(c);
    if (orders & ORDER_BROKEN) return NULL;
    if (orders & ORDER_SCALED)
        return "scaling and summing changed places: the sum of scaled addends is the scaled sum";
    if (orders & ORDER_GATHERED)
        return "computes with the parameters of another gather of the step, which are equal";
    if (orders & ORDER_SUMS) return "two additions to one sum changed places";
    return "every two entries that share a buffer, one of them changing it, are ordered as before";
}

/* All buffers whose uses changed still live in order. */
static bool lives_sound(const comparison *c, uint32_t changed)
{
    if (!c->after.sound) return false;
    for (uint32_t buffer = 0; buffer < c->sound->buffer_count; ++buffer) {
        bool touched = false;
        for (size_t i = 0; i < c->sound->entry_count; ++i) {
            uint32_t own = flags_of(c->sound, &c->sound->entries[i], buffer);
            uint32_t other = flags_of(c->damaged, &c->damaged->entries[c->match[i]], buffer);
            touched |= ((own ^ other) & changed) != 0;
        }
        if (touched && !plan_order_buffer_sound(&c->after, c->damaged, buffer)) return false;
    }
    return true;
}

/* Reshards and casts of gathered copies repeat as policy has it; round, micro-batch, pass and
 * ordinal only tell them apart. What they do, operation, subject and buffers say. */
static bool only_told_apart(const comparison *c)
{
    for (size_t i = 0; i < c->sound->entry_count; ++i) {
        const pl_entry *x = &c->sound->entries[i], *y = &c->damaged->entries[c->match[i]];
        pl_entry_name own = x->name, other = y->name;
        if (pl_entry_name_equal(&own, &other)) continue;
        bool free = own.operation == PL_OP_RESHARD ||
                    (own.operation == PL_OP_CAST && own.subject <= PL_SUBJECT_HEAD &&
                     own.pass != PL_PASS_BACKWARD_WEIGHTS);
        own.round = other.round;
        own.micro_batch = other.micro_batch;
        own.pass = other.pass;
        own.ordinal = other.ordinal;
        if (!free || !pl_entry_name_equal(&own, &other)) return false;
        if (find_entry(c->damaged, y, false) < 0) return false; /* the name stands twice */
    }
    return true;
}

static const char *reason_of(comparison *c)
{
    if (!same_buffers(c)) return NULL;
    if (!match_entries(c, true) && !match_entries(c, false)) return NULL;
    for (size_t i = 0; i < c->sound->entry_count; ++i) c->differs |= compare_entries(c, i);
    if (c->differs == 0) return says_the_same;
    if (c->differs == DIFFERS_NAME && only_told_apart(c))
        return "only the round, micro-batch, pass or ordinal in the name of a reshard, or of a "
               "cast of a gathered copy";
    if (c->differs == DIFFERS_GROUP && same_groups(c))
        return "the two roles name the same ranks in this layout";
    if ((c->differs & ~(unsigned)(DIFFERS_WAITS | DIFFERS_PLACE)) == 0) return order_reason(c);
    if (c->differs == DIFFERS_MORE_READS && lives_sound(c, PL_USE_READ))
        return "one more read, of a buffer that is alive and ordered; reads may be more than "
               "needed";
    if (c->differs == DIFFERS_ENDS && lives_sound(c, PL_USE_END))
        return "the buffer ends elsewhere, behind all its uses and before its next life";
    return NULL;
}

static pl_status compare(comparison *c, const char **reason)
{
    int differing = 0;
    bool same = false;
    if (c->a.section_count != c->b.section_count) return PL_OK;
    PL_TRY(find_section(c, &differing));
    if (differing == 0) {
        PL_TRY(same_for_every_rank(&same, c));
        if (same) *reason = says_the_same;
    }
    if (differing != 1) return PL_OK;
    PL_TRY(plan_order_make(&c->after, c->damaged));
    PL_TRY(pl_allocate(&c->match, c->sound->entry_count, sizeof *c->match, "entries"));
    PL_TRY(plan_order_calls_meet(&c->meet, &c->b, c->damaged->program));
    *reason = reason_of(c);
    return PL_OK;
}

pl_status harmless_reason(const char **reason, const char *before, const char *after)
{
    comparison c = {0};
    *reason = NULL;
    pl_status status = pl_plan_read(&c.a, before, "sound");
    if (status == PL_OK) status = pl_plan_read(&c.b, after, "damaged");
    if (status == PL_OK) status = compare(&c, reason);
    plan_order_free(&c.after);
    pl_free(c.match);
    pl_plan_free(&c.a);
    pl_plan_free(&c.b);
    return status;
}
