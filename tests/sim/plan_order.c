#include "tests/sim/plan_order.h"

#include <string.h>

#include "common/memory.h"

static void include(plan_order *order, size_t entry, size_t done)
{
    uint64_t *row = order->done + entry * order->words;
    const uint64_t *from = order->done + done * order->words;
    for (size_t i = 0; i < order->words; ++i) row[i] |= from[i];
    row[done / 64] |= (uint64_t)1 << done % 64;
}

pl_status plan_order_make(plan_order *out, const pl_section *section)
{
    plan_order order = {.count = section->entry_count, .sound = true};
    size_t last[PL_STREAM_COUNT];
    bool any[PL_STREAM_COUNT] = {false};
    order.words = order.count / 64 + 1;
    PL_TRY(pl_allocate(&order.done, order.count * order.words, sizeof *order.done, "orders"));
    for (size_t i = 0; i < order.count; ++i) {
        const pl_entry *entry = &section->entries[i];
        if (any[entry->stream]) include(&order, i, last[entry->stream]);
        for (uint32_t j = 0; j < entry->wait_count; ++j) {
            int32_t wait = section->waits[entry->wait_first + j];
            if (wait >= 0 && (size_t)wait < i)
                include(&order, i, (size_t)wait);
            else
                order.sound = false;
        }
        last[entry->stream] = i;
        any[entry->stream] = true;
    }
    *out = order;
    return PL_OK;
}

void plan_order_free(plan_order *order)
{
    pl_free(order->done);
    memset(order, 0, sizeof *order);
}

bool plan_order_before(const plan_order *order, size_t a, size_t b)
{
    return order->done[b * order->words + a / 64] >> a % 64 & 1;
}

static uint32_t flags_of(const pl_section *section, size_t entry, uint32_t buffer)
{
    const pl_entry *e = &section->entries[entry];
    for (uint32_t i = 0; i < e->use_count; ++i)
        if (section->uses[e->use_first + i].buffer == buffer)
            return section->uses[e->use_first + i].flags;
    return 0;
}

bool plan_order_buffer_sound(const plan_order *order, const pl_section *section, uint32_t buffer)
{
    const uint32_t changes = PL_USE_WRITE | PL_USE_BEGIN | PL_USE_END;
    bool resident = section->buffers[buffer].resident;
    bool alive =
        resident && section->program != PL_PROGRAM_START && section->program != PL_PROGRAM_LOAD;
    for (size_t i = 0; i < section->entry_count; ++i) {
        uint32_t flags = flags_of(section, i, buffer);
        if (flags == 0) continue;
        if ((flags & PL_USE_BEGIN) && (alive || (flags & PL_USE_READ))) return false;
        if (flags & PL_USE_BEGIN) alive = true;
        if (!alive) return false;
        if (flags & PL_USE_END) alive = false;
        for (size_t j = 0; j < i; ++j) {
            uint32_t other = flags_of(section, j, buffer);
            if (other && ((flags | other) & changes) && !plan_order_before(order, j, i))
                return false;
        }
    }
    return alive == resident;
}

/* --- calls --- */

bool plan_order_communicates(const pl_entry *entry)
{
    return entry->group != PL_GROUP_NONE && entry->bytes != 0;
}

/* The call that RANK is at, or NULL behind its last one. */
static const pl_entry *head(const pl_section *section, size_t *at)
{
    while (*at < section->entry_count && !plan_order_communicates(&section->entries[*at])) ++*at;
    return *at < section->entry_count ? &section->entries[*at] : NULL;
}

/* Let the call that RANK is at go through, if all its members are at it. */
static bool advance(const pl_plan *plan, pl_program program, size_t *at, int64_t rank)
{
    const pl_entry *own = head(pl_plan_section(plan, program, rank), &at[rank]);
    if (!own) return false;
    pl_rank_set group = pl_layout_group(&plan->layout, (pl_group_role)own->group, rank);
    int64_t size = pl_rank_set_size(&group);
    for (int64_t i = 0; i < size; ++i) {
        int64_t member = pl_rank_set_member(&group, i);
        const pl_entry *other = head(pl_plan_section(plan, program, member), &at[member]);
        if (!other || other->group != own->group || !pl_entry_name_equal(&other->name, &own->name))
            return false;
    }
    for (int64_t i = 0; i < size; ++i) ++at[pl_rank_set_member(&group, i)];
    return true;
}

pl_status plan_order_calls_meet(bool *meet, const pl_plan *plan, pl_program program)
{
    size_t *at = NULL;
    bool moved = true;
    PL_TRY(pl_allocate(&at, (size_t)plan->layout.world, sizeof *at, "ranks"));
    while (moved) {
        moved = false;
        for (int64_t rank = 0; rank < plan->layout.world; ++rank)
            while (advance(plan, program, at, rank)) moved = true;
    }
    *meet = true;
    for (int64_t rank = 0; rank < plan->layout.world; ++rank)
        if (head(pl_plan_section(plan, program, rank), &at[rank])) *meet = false;
    pl_free(at);
    return PL_OK;
}
