/* What a call moves between this member and another, as bytes one behind the other. */
#include <string.h>

#include "common/groups/mpi_domain.h"
#include "common/memory.h"

/* What ends a stream that has fewer pieces than a call has segments or transfers. */
static int piece_count(const pl_posted_call *call)
{
    if (call->call.collective == PL_SEND_RECEIVE) return call->call.transfer_count;
    return call->call.collective == PL_BARRIER ? 0 : call->segment_count;
}

static pl_mpi_piece piece_at(const void *from, void *to, int64_t offset, int64_t bytes,
                             pl_dtype dtype)
{
    if (bytes == 0) return (pl_mpi_piece){NULL, NULL, 0, dtype};
    return (pl_mpi_piece){from ? (const char *)from + offset : NULL,
                          to ? (char *)to + offset : NULL, bytes, dtype};
}

static pl_mpi_piece uneven_piece(const pl_call *call, const pl_mpi_stream *stream)
{
    const bool sent = stream->kind == PL_MPI_SENT;
    const int64_t *counts = sent ? call->send_counts : call->recv_counts;
    const int64_t bytes = pl_dtype_bytes(call->dtype);
    int64_t before = 0;
    for (int64_t i = 0; i < stream->peer; ++i) before += counts[i];
    return piece_at(sent ? call->send : NULL, sent ? NULL : call->recv, before * bytes,
                    counts[stream->peer] * bytes, call->dtype);
}

/* Transfers of other peers and the other direction are empty pieces. */
static pl_mpi_piece transfer_piece(const pl_call *call, const pl_mpi_stream *stream, int index)
{
    const pl_transfer *transfer = &call->transfers[index];
    const bool sent = stream->kind == PL_MPI_SENT;
    if (transfer->peer != stream->peer || !transfer->is_send == sent)
        return piece_at(NULL, NULL, 0, 0, call->dtype);
    return piece_at(sent ? transfer->buffer : NULL, sent ? NULL : transfer->buffer, 0,
                    transfer->count * pl_dtype_bytes(call->dtype), call->dtype);
}

static pl_mpi_piece broadcast_piece(const pl_mpi_group *group, const pl_call *call,
                                    const pl_mpi_stream *stream, const pl_segment *segment)
{
    const bool sent = stream->kind == PL_MPI_SENT;
    const int64_t sender = sent ? group->own : stream->peer;
    int64_t bytes = segment->count * pl_dtype_bytes(segment->dtype);
    if (sender != call->root || stream->peer == group->own) bytes = 0;
    return piece_at(sent ? segment->recv : NULL, sent ? NULL : segment->recv, 0, bytes,
                    segment->dtype);
}

/* Piece INDEX of STREAM, whole. */
static pl_mpi_piece piece_of(const pl_mpi_group *group, const pl_posted_call *posted,
                             const pl_mpi_stream *stream, int index)
{
    const pl_call *call = &posted->call;
    const bool sent = stream->kind == PL_MPI_SENT;
    if (call->collective == PL_ALL_TO_ALL_UNEVEN) return uneven_piece(call, stream);
    if (call->collective == PL_SEND_RECEIVE) return transfer_piece(call, stream, index);
    const pl_segment *segment = &posted->segments[index];
    if (call->collective == PL_BROADCAST) return broadcast_piece(group, call, stream, segment);
    const int64_t bytes = segment->count * pl_dtype_bytes(segment->dtype);
    const int64_t at_peer = stream->peer * bytes;
    switch (call->collective) {
    case PL_ALL_GATHER:
        if (sent) return piece_at(segment->send, NULL, 0, bytes, segment->dtype);
        return piece_at(NULL, segment->recv, at_peer, bytes, segment->dtype);
    case PL_REDUCE_SCATTER:
        if (sent) return piece_at(segment->send, NULL, at_peer, bytes, segment->dtype);
        return piece_at(NULL, segment->recv, 0, bytes, segment->dtype);
    case PL_ALL_REDUCE:
        if (sent) return piece_at(segment->send, NULL, 0, bytes, segment->dtype);
        return piece_at(segment->recv, segment->recv, 0, bytes, segment->dtype);
    default: /* PL_ALL_TO_ALL */
        return piece_at(sent ? segment->send : NULL, sent ? NULL : segment->recv, at_peer, bytes,
                        segment->dtype);
    }
}

pl_mpi_stream pl_mpi_stream_of(const pl_mpi_group *group, const pl_posted_call *call,
                               pl_mpi_stream_kind kind, int64_t peer)
{
    pl_mpi_stream stream = {.kind = kind, .peer = peer};
    const int pieces = piece_count(call);
    for (int i = 0; i < pieces; ++i) stream.end += piece_of(group, call, &stream, i).bytes;
    return stream;
}

void pl_mpi_stream_slice(const pl_mpi_group *group, const pl_posted_call *call,
                         pl_mpi_stream *stream, int64_t index)
{
    const int64_t share = pl_divide_up(stream->end, group->base.size);
    const int64_t wanted[2] = {index * share, (index + 1) * share};
    int64_t bounds[2] = {stream->end, stream->end}, before = 0;
    /* Both bounds move down to where an element begins. */
    for (int i = 0; i < piece_count(call); ++i) {
        const pl_mpi_piece piece = piece_of(group, call, stream, i);
        for (int side = 0; side < 2; ++side) {
            int64_t inside = wanted[side] - before;
            if (inside < 0 || inside >= piece.bytes) continue;
            bounds[side] = before + inside - inside % pl_dtype_bytes(piece.dtype);
        }
        before += piece.bytes;
    }
    stream->begin = stream->at = bounds[0];
    stream->end = bounds[1];
}

void pl_mpi_stream_take(const pl_mpi_group *group, const pl_posted_call *call,
                        pl_mpi_stream *stream, int64_t limit, int pieces, pl_mpi_chunk *out)
{
    out->bytes = 0;
    out->count = 0;
    while (stream->at < stream->end && out->bytes < limit && out->count < pieces) {
        pl_mpi_piece piece = piece_of(group, call, stream, stream->piece);
        const int64_t taken = stream->at - stream->piece_begin;
        int64_t bytes = piece.bytes - taken;
        if (bytes <= 0) {
            stream->piece_begin += piece.bytes;
            ++stream->piece;
            continue;
        }
        if (bytes > stream->end - stream->at) bytes = stream->end - stream->at;
        if (bytes > limit - out->bytes) {
            bytes = limit - out->bytes;
            bytes -= bytes % pl_dtype_bytes(piece.dtype);
            if (bytes == 0) return;
        }
        if (piece.from) piece.from += taken;
        if (piece.to) piece.to += taken;
        piece.bytes = bytes;
        out->piece[out->count++] = piece;
        out->bytes += bytes;
        stream->at += bytes;
    }
}

void pl_mpi_stream_read(const pl_mpi_group *group, const pl_posted_call *call, pl_mpi_stream stream,
                        char *to)
{
    pl_mpi_chunk chunk;
    while (stream.at < stream.end) {
        pl_mpi_stream_take(group, call, &stream, INT64_MAX, PL_MPI_PIECES, &chunk);
        for (int i = 0; i < chunk.count; ++i) {
            memcpy(to, chunk.piece[i].from, (size_t)chunk.piece[i].bytes);
            to += chunk.piece[i].bytes;
        }
    }
}

void pl_mpi_stream_write(const pl_mpi_group *group, const pl_posted_call *call,
                         pl_mpi_stream stream, const char *from)
{
    pl_mpi_chunk chunk;
    while (stream.at < stream.end) {
        pl_mpi_stream_take(group, call, &stream, INT64_MAX, PL_MPI_PIECES, &chunk);
        for (int i = 0; i < chunk.count; ++i) {
            memcpy(chunk.piece[i].to, from, (size_t)chunk.piece[i].bytes);
            from += chunk.piece[i].bytes;
        }
    }
}

void pl_mpi_stream_copy(const pl_mpi_group *group, const pl_posted_call *call, pl_mpi_stream from,
                        pl_mpi_stream to)
{
    pl_mpi_chunk source, target;
    while (from.at < from.end) {
        pl_mpi_stream_take(group, call, &from, INT64_MAX, 1, &source);
        pl_mpi_stream_take(group, call, &to, INT64_MAX, 1, &target);
        const char *sent = source.count == 1 ? source.piece[0].from : NULL;
        char *received = target.count == 1 ? target.piece[0].to : NULL;
        if (!sent || !received) return; /* cannot be: calls are matched */
        memcpy(received, sent, (size_t)source.bytes);
    }
}
