/* What collectives do to the values that a walk carries: the vectors that go out, and what becomes
 * of those that come back. */
#include "sim/walk_act.h"

static uint32_t count_uses(const pl_entry *entry)
{
    return entry->use_count > 0 ? entry->use_count : 1;
}

size_t pl_walk_scratch(const pl_entry *entry, int64_t size)
{
    bool same_on_all =
        entry->name.operation == PL_OP_ALL_REDUCE || entry->name.operation == PL_OP_CONTROL;
    return (same_on_all ? 1 : (size_t)size) * count_uses(entry);
}

/* The values read, in the order of the uses; bound sizes are no message. */
static int64_t list_reads(const act *a, pl_value *list)
{
    int64_t count = 0;
    for (uint32_t i = 0; i < a->entry->use_count; ++i)
        if (a->uses[i].flags & PL_USE_READ && buffer_of(a, i)->kind != PL_BUF_ROWS)
            list[count++] = *value_of(a, i);
    return count;
}

/* Every reduction sums: an average is a sum divided afterwards, exactly. */
static pl_reduction reduction_of(const pl_entry *entry)
{
    return entry->reduction == PL_REDUCTION_AVERAGE ? PL_REDUCTION_SUM
                                                    : (pl_reduction)entry->reduction;
}

/* The number of a shard's slice or of an owner. */
static pl_value factor_of_member(const act *a, uint64_t family, int64_t member)
{
    const pl_walk_expected *e = a->walk->expected;
    return family == PL_RANDOM_SLICE ? e->slice[member] : e->owner[member];
}

static void fill_slices(const act *a, pl_call *call, uint64_t family, int64_t size)
{
    pl_value list[64];
    int64_t count = 0;
    for (uint32_t i = 0; i < a->entry->use_count && count < 64; ++i)
        if ((a->uses[i].flags & PL_USE_READ) && buffer_of(a, i)->kind != PL_BUF_ROWS)
            list[count++] = *value_of(a, i);
    for (int64_t member = 0; member < size; ++member)
        for (int64_t i = 0; i < count; ++i)
            a->r->send[member * count + i] =
                (int64_t)(family ? pl_value_multiply(list[i], factor_of_member(a, family, member))
                                 : list[i]);
    call->count = count;
}

/* Which exchange an entry is: rows by destination, a gather, or a reduction. */
static pl_collective collective_of(const act *a)
{
    bool all_to_all = a->walk->world->plan->settings.policy.dispatch == PL_DISPATCH_ALL_TO_ALL;
    switch ((pl_operation)a->entry->name.operation) {
    case PL_OP_GATHER: return PL_ALL_GATHER;
    case PL_OP_REDUCE: return PL_REDUCE_SCATTER;
    case PL_OP_EXCHANGE_COUNTS: return PL_ALL_TO_ALL;
    case PL_OP_DISPATCH:
    case PL_OP_COMBINE:
    case PL_OP_SHARE_ROUTES:
        if (all_to_all) return PL_ALL_TO_ALL;
        return a->entry->reduction == PL_REDUCTION_NONE ? PL_ALL_GATHER : PL_REDUCE_SCATTER;
    default: return PL_ALL_REDUCE;
    }
}

void pl_walk_fill(pl_walk *walk, int64_t rank, const pl_entry *entry, pl_call *call)
{
    act a = begin(walk, rank, entry);
    int64_t size = walk->ranks[rank].group[entry->group]->size;
    call->collective = collective_of(&a);
    call->dtype = PL_I64;
    call->reduction = PL_REDUCTION_NONE;
    call->stream = (pl_stream)entry->stream;
    call->name = &entry->name;
    call->send = a.r->send;
    call->recv = a.r->recv;
    bool to_owner = entry->name.operation == PL_OP_COMBINE && is_backward(&a);
    switch (call->collective) {
    case PL_REDUCE_SCATTER:
        fill_slices(&a, call, entry->name.operation == PL_OP_REDUCE ? PL_RANDOM_SLICE : 0, size);
        call->reduction = reduction_of(entry);
        break;
    case PL_ALL_TO_ALL: fill_slices(&a, call, to_owner ? PL_RANDOM_OWNER : 0, size); break;
    case PL_ALL_REDUCE:
        call->count = list_reads(&a, (pl_value *)a.r->send);
        call->reduction = reduction_of(entry);
        break;
    default: call->count = list_reads(&a, (pl_value *)a.r->send); break;
    }
    /* A reduction that the text left out would be refused by the group: it is a plain sum here,
     * and the proofs of work and collectives name it. */
    bool reduces = call->collective == PL_REDUCE_SCATTER || call->collective == PL_ALL_REDUCE;
    if (reduces && call->reduction == PL_REDUCTION_NONE) call->reduction = PL_REDUCTION_SUM;
}

static pl_value received(const act *a, int64_t place) { return (pl_value)a->r->recv[place]; }

/* Write the results of COUNT values in the order of the buffers written. */
static void take_results(const act *a, const pl_value *results, int64_t count)
{
    pl_value factor = factor_of(a->entry, a->walk->expected->tokens_total);
    int64_t next = 0;
    for (uint32_t i = 0; i < a->entry->use_count; ++i)
        if ((a->uses[i].flags & PL_USE_WRITE) && next < count)
            *value_of(a, i) = pl_value_multiply(results[next++], factor);
}

static int64_t count_reads(const act *a)
{
    int64_t count = 0;
    for (uint32_t i = 0; i < a->entry->use_count; ++i)
        count += (a->uses[i].flags & PL_USE_READ) && buffer_of(a, i)->kind != PL_BUF_ROWS;
    return count;
}

/* What is gathered or exchanged is summed: of parameters, each shard times its slice's number; of
 * tokens gathered for experts, times the owner's. */
static void take_sum(const act *a, int64_t size, uint64_t family, pl_value factor)
{
    pl_value results[64];
    int64_t count = count_reads(a);
    if (count > 64) count = 64;
    for (int64_t i = 0; i < count; ++i) {
        results[i] = 0;
        for (int64_t member = 0; member < size; ++member) {
            pl_value value = received(a, member * count + i);
            if (family) value = pl_value_multiply(value, factor_of_member(a, family, member));
            results[i] = pl_value_add(results[i], value);
        }
        results[i] = pl_value_multiply(results[i], factor);
    }
    take_results(a, results, count);
}

static void take_average(const act *a, int64_t size, int64_t count)
{
    if (a->entry->reduction != PL_REDUCTION_AVERAGE) return;
    pl_value inverse = pl_value_inverse((pl_value)size);
    for (int64_t i = 0; i < count; ++i)
        a->r->recv[i] = (int64_t)pl_value_multiply(received(a, i), inverse);
}

void pl_walk_take(pl_walk *walk, int64_t rank, const pl_entry *entry)
{
    act a = begin(walk, rank, entry);
    int64_t size = walk->ranks[rank].group[entry->group]->size, count = count_reads(&a);
    bool parameters = entry->name.operation == PL_OP_GATHER;
    bool to_owner = entry->name.operation == PL_OP_COMBINE && is_backward(&a);
    switch (collective_of(&a)) {
    case PL_ALL_GATHER:
        take_sum(&a, size, parameters ? PL_RANDOM_SLICE : 0, to_owner ? own_factor(&a) : 1);
        break;
    case PL_ALL_TO_ALL: take_sum(&a, size, 0, 1); break;
    default: take_average(&a, size, count); take_results(&a, (const pl_value *)a.r->recv, count);
    }
    pl_walk_check_sums(walk, rank, entry);
}
