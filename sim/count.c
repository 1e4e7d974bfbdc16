/* Counting what one rank's step communicates, by walking its section. */
#include <string.h>

#include "common/memory.h"
#include "sim/proof.h"

/* A unit's gathers, by the part that leads it. */
static int part_index(const pl_entry_name *name)
{
    return name->subject <= PL_SUBJECT_HEAD ? name->subject : -1;
}

static bool is_gathered(const pl_buffer *buffer)
{
    return buffer->kind == PL_BUF_FULL || buffer->kind == PL_BUF_WIRE;
}

/* What ENTRY does to a gathered copy: computes with it, lets it go, or hands it on by a cast. */
typedef enum fate { UNTOUCHED, COMPUTED, LET_GO, HANDED_ON } fate;

static fate fate_in(const pl_section *section, const pl_entry *entry, uint32_t *buffer)
{
    uint32_t flags = 0, next = *buffer;
    for (uint32_t i = 0; i < entry->use_count; ++i) {
        const pl_use *use = &section->uses[entry->use_first + i];
        if (use->buffer == *buffer)
            flags |= use->flags;
        else if (use->flags & PL_USE_BEGIN)
            next = use->buffer;
    }
    if ((flags & PL_USE_READ) && entry->name.operation == PL_OP_CAST && next != *buffer) {
        *buffer = next;
        return HANDED_ON;
    }
    if (flags & PL_USE_READ) return COMPUTED;
    return flags & (PL_USE_END | PL_USE_BEGIN) ? LET_GO : UNTOUCHED;
}

/* Whether anything computes with what entry NUMBER gathered before it is let go. */
static bool is_used(const pl_section *section, size_t number, uint32_t buffer)
{
    for (size_t i = number + 1; i < section->entry_count; ++i) {
        fate found = fate_in(section, &section->entries[i], &buffer);
        if (found == COMPUTED || found == LET_GO) return found == COMPUTED;
    }
    return false;
}

bool pl_gather_is_used(const pl_section *section, size_t number)
{
    const pl_entry *entry = &section->entries[number];
    for (uint32_t i = 0; i < entry->use_count; ++i) {
        const pl_use *use = &section->uses[entry->use_first + i];
        if ((use->flags & PL_USE_BEGIN) && is_gathered(&section->buffers[use->buffer]) &&
            is_used(section, number, use->buffer))
            return true;
    }
    return false;
}

/* Plan text may say any size: sums stop at the largest number. */
static void add(int64_t *sum, int64_t bytes, int64_t times)
{
    int64_t product = 0;
    if (__builtin_mul_overflow(bytes, times, &product) ||
        __builtin_add_overflow(*sum, product, sum))
        *sum = INT64_MAX;
}

static void count_gather(pl_counts *counts, const pl_section *section, size_t number)
{
    const pl_entry *entry = &section->entries[number];
    int part = part_index(&entry->name);
    bool used = pl_gather_is_used(section, number);
    ++counts->gathers;
    counts->unused_gathers += !used;
    add(&counts->gather_bytes, entry->bytes, 1);
    if (part < 0) return;
    ++*(entry->name.pass == PL_PASS_FORWARD ? &counts->by_part[part].forward
                                            : &counts->by_part[part].backward);
    counts->by_part[part].unused += !used;
}

/* What a rank sends in an exchange, its own part left out: of rows that routing decides, those of
 * balanced routing; of a gather or reduction, one share for each of the others. */
static void add_exchange(int64_t *sum, const pl_plan *plan, const pl_entry *entry)
{
    int64_t ep = plan->layout.ep, rows = 0;
    if (entry->rows != PL_ROWS_EXCHANGED) {
        add(sum, entry->bytes / ep, ep - 1);
        return;
    }
    add(&rows, plan->settings.shape.sequence * plan->settings.shape.micro_batch,
        plan->model.num_experts_per_tok);
    add(sum, entry->bytes, rows / ep * (ep - 1));
}

void pl_count_section(pl_counts *out, const pl_plan *plan, const pl_section *section)
{
    pl_counts counts = {0};
    for (size_t i = 0; i < section->entry_count; ++i) {
        const pl_entry *entry = &section->entries[i];
        switch ((pl_operation)entry->name.operation) {
        case PL_OP_GATHER: count_gather(&counts, section, i); break;
        case PL_OP_REDUCE:
            ++counts.reduces;
            add(&counts.reduce_bytes, entry->bytes, 1);
            break;
        case PL_OP_ALL_REDUCE:
            ++counts.all_reduces;
            add(&counts.all_reduce_bytes, entry->bytes, 1);
            break;
        case PL_OP_DISPATCH:
        case PL_OP_COMBINE:
        case PL_OP_SHARE_ROUTES:
        case PL_OP_EXCHANGE_COUNTS:
            ++counts.exchanges;
            add_exchange(&counts.exchange_bytes, plan, entry);
            break;
        case PL_OP_CONTROL: counts.others += entry->group != PL_GROUP_NONE; break;
        case PL_OP_CAST: counts.casts += 1; break;
        default: break;
        }
    }
    *out = counts;
}
