#include "common/call_move.h"

#include <string.h>

#include "common/memory.h"

/* Copy COUNT elements of BYTES each from element FROM_AT of FROM to element TO_AT of TO. */
static inline void copy(void *to, int64_t to_at, const void *from, int64_t from_at, int64_t count,
                        int64_t bytes)
{
    if (count == 0) return;
    char *target = (char *)to + to_at * bytes;
    const char *source = (const char *)from + from_at * bytes;
    if (target == source) return;
    /* The simulator moves many single integers: those need no call. */
    if (count * bytes == 8)
        memcpy(target, source, 8);
    else
        memcpy(target, source, (size_t)(count * bytes));
}

static int64_t bytes_of(const pl_call_part *part)
{
    return pl_dtype_bytes(part->posted->call.dtype);
}

/* The members whose buffers PART fills. */
static int64_t first_member(const pl_call_part *part) { return part->parts == 1 ? 0 : part->part; }

static int64_t end_member(const pl_call_part *part)
{
    return part->parts == 1 ? part->size : part->part + 1;
}

static void all_gather(const pl_call_part *part)
{
    const pl_posted_call *posted = part->posted;
    int64_t count = posted->call.count, bytes = bytes_of(part), first = first_member(part);
    for (int64_t from = 0; from < part->size; ++from)
        copy(posted[first].call.recv, from * count, posted[from].call.send, 0, count, bytes);
    /* Many small pieces are put together once, then copied whole. */
    for (int64_t to = first + 1; to < end_member(part); ++to)
        copy(posted[to].call.recv, 0, posted[first].call.recv, 0, part->size * count, bytes);
}

static void reduce_scatter(const pl_call_part *part, pl_reducer reduce)
{
    uint64_t block[PL_REDUCE_BLOCK];
    const pl_posted_call *posted = part->posted;
    int64_t count = posted->call.count, bytes = bytes_of(part);
    for (int64_t to = first_member(part); to < end_member(part); ++to) {
        for (int64_t at = 0; at < count; at += PL_REDUCE_BLOCK) {
            int64_t n = count - at < PL_REDUCE_BLOCK ? count - at : PL_REDUCE_BLOCK;
            reduce(block, posted, part->size, to * count + at, (int)n);
            copy(posted[to].call.recv, at, block, 0, n, bytes);
        }
    }
}

static void all_reduce(const pl_call_part *part, pl_reducer reduce)
{
    uint64_t block[PL_REDUCE_BLOCK];
    const pl_posted_call *posted = part->posted;
    int64_t count = posted->call.count, bytes = bytes_of(part);
    /* Slices of whole blocks: two parts never write one cache line. */
    int64_t blocks = pl_divide_up(count, PL_REDUCE_BLOCK);
    int64_t slice = pl_divide_up(blocks, part->parts) * PL_REDUCE_BLOCK;
    int64_t end = count - part->part * slice < slice ? count : (part->part + 1) * slice;
    for (int64_t at = part->part * slice; at < end; at += PL_REDUCE_BLOCK) {
        int64_t n = end - at < PL_REDUCE_BLOCK ? end - at : PL_REDUCE_BLOCK;
        reduce(block, posted, part->size, at, (int)n);
        for (int64_t to = 0; to < part->size; ++to)
            copy(posted[to].call.recv, at, block, 0, n, bytes);
    }
}

static void all_to_all(const pl_call_part *part)
{
    const pl_posted_call *posted = part->posted;
    int64_t count = posted->call.count, bytes = bytes_of(part);
    for (int64_t to = first_member(part); to < end_member(part); ++to)
        for (int64_t from = 0; from < part->size; ++from)
            copy(posted[to].call.recv, from * count, posted[from].call.send, to * count, count,
                 bytes);
}

/* All pairs, with both offsets carried along: O(size^2), where pair by pair is O(size^3). */
static void all_to_all_uneven_whole(const pl_call_part *part)
{
    const pl_posted_call *posted = part->posted;
    int64_t bytes = bytes_of(part);
    memset(part->offsets, 0, (size_t)part->size * sizeof *part->offsets);
    for (int64_t from = 0; from < part->size; ++from) {
        int64_t sent = 0;
        for (int64_t to = 0; to < part->size; ++to) {
            int64_t count = posted[from].call.send_counts[to];
            copy(posted[to].call.recv, part->offsets[to], posted[from].call.send, sent, count,
                 bytes);
            part->offsets[to] += count;
            sent += count;
        }
    }
}

static void all_to_all_uneven(const pl_call_part *part)
{
    const pl_posted_call *posted = part->posted;
    int64_t to = part->part, received = 0;
    for (int64_t from = 0; from < part->size; ++from) {
        const int64_t *counts = posted[from].call.send_counts;
        int64_t offset = 0;
        for (int64_t before = 0; before < to; ++before) offset += counts[before];
        copy(posted[to].call.recv, received, posted[from].call.send, offset, counts[to],
             bytes_of(part));
        received += counts[to];
    }
}

static void send_receive(const pl_call_part *part)
{
    for (int64_t to = first_member(part); to < end_member(part); ++to) {
        const pl_call *call = &part->posted[to].call;
        for (int i = 0; i < call->transfer_count; ++i) {
            const pl_transfer *transfer = &call->transfers[i];
            if (transfer->is_send) continue;
            const pl_transfer *partner = pl_transfer_partner(part->posted, to, i);
            if (partner)
                copy(transfer->buffer, 0, partner->buffer, 0, transfer->count, bytes_of(part));
        }
    }
}

static void broadcast(const pl_call_part *part)
{
    const pl_posted_call *posted = part->posted;
    const pl_call *call = &posted->call;
    for (int64_t to = first_member(part); to < end_member(part); ++to)
        copy(posted[to].call.recv, 0, posted[call->root].call.recv, 0, call->count, bytes_of(part));
}

void pl_call_move(const pl_call_part *part, pl_reducer reduce)
{
    switch (part->posted->call.collective) {
    case PL_ALL_GATHER: all_gather(part); break;
    case PL_REDUCE_SCATTER: reduce_scatter(part, reduce); break;
    case PL_ALL_REDUCE: all_reduce(part, reduce); break;
    case PL_ALL_TO_ALL: all_to_all(part); break;
    case PL_ALL_TO_ALL_UNEVEN:
        if (part->parts == 1)
            all_to_all_uneven_whole(part);
        else
            all_to_all_uneven(part);
        break;
    case PL_SEND_RECEIVE: send_receive(part); break;
    case PL_BROADCAST: broadcast(part); break;
    case PL_BARRIER:
    case PL_COLLECTIVE_COUNT: break;
    }
}
