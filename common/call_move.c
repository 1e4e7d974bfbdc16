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

/* The members whose buffers PART fills. */
static int64_t first_member(const pl_call_part *part) { return part->parts == 1 ? 0 : part->part; }

static int64_t end_member(const pl_call_part *part)
{
    return part->parts == 1 ? part->size : part->part + 1;
}

/* Segment SEGMENT of MEMBER. */
static inline const pl_segment *segment_of(const pl_call_part *part, int64_t member, int segment)
{
    return &part->posted[member].segments[segment];
}

static void all_gather(const pl_call_part *part, int segment)
{
    const pl_segment *own = segment_of(part, first_member(part), segment);
    const int64_t count = own->count, bytes = pl_dtype_bytes(own->dtype);
    void *first = own->recv;
    for (int64_t from = 0; from < part->size; ++from)
        copy(first, from * count, segment_of(part, from, segment)->send, 0, count, bytes);
    /* Many small pieces are put together once, then copied whole. */
    for (int64_t to = first_member(part) + 1; to < end_member(part); ++to)
        copy(segment_of(part, to, segment)->recv, 0, first, 0, part->size * count, bytes);
}

static void reduce_scatter(const pl_call_part *part, int segment, pl_reducer reduce)
{
    uint64_t block[PL_REDUCE_BLOCK];
    const pl_segment *own = segment_of(part, 0, segment);
    const int64_t count = own->count, bytes = pl_dtype_bytes(own->dtype);
    for (int64_t member = first_member(part); member < end_member(part); ++member) {
        void *recv = segment_of(part, member, segment)->recv;
        for (int64_t at = 0; at < count; at += PL_REDUCE_BLOCK) {
            int64_t n = count - at < PL_REDUCE_BLOCK ? count - at : PL_REDUCE_BLOCK;
            reduce(block, part->posted, part->size, segment, member * count + at, (int)n);
            copy(recv, at, block, 0, n, bytes);
        }
    }
}

/* Blocks FIRST .. END-1 of a segment, for all members. */
static void all_reduce_blocks(const pl_call_part *part, int segment, int64_t first, int64_t end,
                              pl_reducer reduce)
{
    uint64_t block[PL_REDUCE_BLOCK];
    const pl_segment *own = segment_of(part, 0, segment);
    int64_t count = own->count, bytes = pl_dtype_bytes(own->dtype);
    for (int64_t at = first * PL_REDUCE_BLOCK; at < count && first < end; ++first) {
        int64_t n = count - at < PL_REDUCE_BLOCK ? count - at : PL_REDUCE_BLOCK;
        reduce(block, part->posted, part->size, segment, at, (int)n);
        for (int64_t to = 0; to < part->size; ++to)
            copy(segment_of(part, to, segment)->recv, at, block, 0, n, bytes);
        at += n;
    }
}

/* Parts are equal numbers of blocks, counted through all segments, so that many small segments are
 * shared too; two parts never write one block. */
static void all_reduce(const pl_call_part *part, pl_reducer reduce)
{
    const int segments = part->posted->segment_count;
    int64_t total = 0, before = 0;
    for (int i = 0; i < segments; ++i)
        total += pl_divide_up(segment_of(part, 0, i)->count, PL_REDUCE_BLOCK);
    const int64_t slice = pl_divide_up(total, part->parts);
    const int64_t first = part->part * slice, end = first + slice;
    for (int i = 0; i < segments && before < end; ++i) {
        int64_t blocks = pl_divide_up(segment_of(part, 0, i)->count, PL_REDUCE_BLOCK);
        int64_t skipped = first > before ? first - before : 0;
        int64_t last = end - before < blocks ? end - before : blocks;
        if (skipped < last) all_reduce_blocks(part, i, skipped, last, reduce);
        before += blocks;
    }
}

static void all_to_all(const pl_call_part *part, int segment)
{
    const pl_segment *own = segment_of(part, 0, segment);
    const int64_t count = own->count, bytes = pl_dtype_bytes(own->dtype);
    for (int64_t member = first_member(part); member < end_member(part); ++member) {
        void *recv = segment_of(part, member, segment)->recv;
        for (int64_t from = 0; from < part->size; ++from)
            copy(recv, from * count, segment_of(part, from, segment)->send, member * count, count,
                 bytes);
    }
}

static int64_t bytes_of(const pl_call_part *part)
{
    return pl_dtype_bytes(part->posted->call.dtype);
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

static void broadcast(const pl_call_part *part, int segment)
{
    const pl_segment *root = segment_of(part, part->posted->call.root, segment);
    int64_t bytes = pl_dtype_bytes(root->dtype);
    for (int64_t to = first_member(part); to < end_member(part); ++to)
        copy(segment_of(part, to, segment)->recv, 0, root->recv, 0, root->count, bytes);
}

static void move_segment(const pl_call_part *part, int segment, pl_reducer reduce)
{
    switch (part->posted->call.collective) {
    case PL_ALL_GATHER: all_gather(part, segment); break;
    case PL_REDUCE_SCATTER: reduce_scatter(part, segment, reduce); break;
    case PL_ALL_TO_ALL: all_to_all(part, segment); break;
    case PL_BROADCAST: broadcast(part, segment); break;
    default: break;
    }
}

void pl_call_move(const pl_call_part *part, pl_reducer reduce)
{
    switch (part->posted->call.collective) {
    case PL_ALL_REDUCE: all_reduce(part, reduce); break;
    case PL_ALL_TO_ALL_UNEVEN:
        if (part->parts == 1)
            all_to_all_uneven_whole(part);
        else
            all_to_all_uneven(part);
        break;
    case PL_SEND_RECEIVE: send_receive(part); break;
    case PL_BARRIER: break;
    default:
        for (int i = 0; i < part->posted->segment_count; ++i) move_segment(part, i, reduce);
        break;
    }
}
