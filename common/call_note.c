#include "common/call_note.h"

#include "common/call_match.h"

/* Add a range to RECORD: to the end of one that it continues, else as one of its own. */
static void touch(pl_call_record *record, const void *start, int64_t bytes, bool read, bool written)
{
    if (bytes == 0) return;
    const int kept = record->touch_count < PL_CALL_TOUCHES ? record->touch_count : PL_CALL_TOUCHES;
    for (int i = 0; i < kept; ++i) {
        pl_touch *other = &record->touch[i];
        if (other->read != read || other->written != written ||
            (const char *)other->start + other->bytes != (const char *)start)
            continue;
        other->bytes += bytes;
        return;
    }
    if (record->touch_count < PL_CALL_TOUCHES)
        record->touch[record->touch_count] = (pl_touch){start, bytes, read, written};
    ++record->touch_count;
}

/* Sums stay at INT64_MAX: several segments or transfers may send one buffer. */
static void add_bytes(pl_call_record *record, int64_t bytes)
{
    if (__builtin_add_overflow(record->bytes, bytes, &record->bytes)) record->bytes = INT64_MAX;
}

static void note_segment(pl_call_record *record, const pl_process_group *group, const pl_call *call,
                         const pl_segment *segment)
{
    const int64_t bytes = segment->count * pl_dtype_bytes(segment->dtype);
    int64_t sent = bytes, received = bytes;
    switch (call->collective) {
    case PL_BROADCAST:
        touch(record, segment->recv, bytes, group->index == call->root, group->index != call->root);
        break;
    case PL_ALL_REDUCE:
        if (segment->send == segment->recv) {
            touch(record, segment->recv, bytes, true, true);
            break;
        }
        touch(record, segment->send, bytes, true, false);
        touch(record, segment->recv, bytes, false, true);
        break;
    default:
        if (call->collective != PL_REDUCE_SCATTER) received *= group->size;
        if (call->collective != PL_ALL_GATHER) sent *= group->size;
        touch(record, segment->send, sent, true, false);
        touch(record, segment->recv, received, false, true);
    }
    add_bytes(record, sent > received ? sent : received);
}

static void note_uneven(pl_call_record *record, const pl_process_group *group, const pl_call *call)
{
    int64_t sent = 0, received = 0;
    for (int64_t i = 0; i < group->size; ++i) {
        sent += call->send_counts[i];
        received += call->recv_counts[i];
    }
    sent *= pl_dtype_bytes(call->dtype);
    received *= pl_dtype_bytes(call->dtype);
    touch(record, call->send, sent, true, false);
    touch(record, call->recv, received, false, true);
    add_bytes(record, sent);
}

static void note_transfers(pl_call_record *record, const pl_call *call)
{
    for (int i = 0; i < call->transfer_count; ++i) {
        const pl_transfer *transfer = &call->transfers[i];
        int64_t bytes = transfer->count * pl_dtype_bytes(call->dtype);
        touch(record, transfer->buffer, bytes, transfer->is_send, !transfer->is_send);
        if (transfer->is_send) add_bytes(record, bytes);
    }
}

void pl_call_note(const pl_process_group *group, const pl_call *call)
{
    if (!group->log) return;
    pl_segment plain;
    const pl_segment *segments = NULL;
    const int count = pl_call_segments(call, &plain, &segments);
    pl_call_record record = {.what = pl_collective_name(call->collective),
                             .entry = *call->name,
                             .stream = call->stream,
                             .collective = true,
                             .reduction = (uint8_t)call->reduction,
                             .dtype = (uint8_t)segments[0].dtype,
                             .one_dtype = true,
                             .members = &group->members};
    for (int i = 1; i < count; ++i)
        record.one_dtype = record.one_dtype && segments[i].dtype == segments[0].dtype;
    switch (call->collective) {
    case PL_ALL_TO_ALL_UNEVEN: note_uneven(&record, group, call); break;
    case PL_SEND_RECEIVE: note_transfers(&record, call); break;
    case PL_BARRIER: break;
    default:
        for (int i = 0; i < count; ++i) note_segment(&record, group, call, &segments[i]);
    }
    group->log->record(group->log->context, &record);
}
