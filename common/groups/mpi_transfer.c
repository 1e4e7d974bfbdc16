/* Moving the data of calls that all members have started.
 *
 * Each member sends its share to each other by itself; data of a few bytes came with the call.
 * Between two members and in one direction one message is on its way at a time. A reduction takes
 * the shares of all members in rounds of bounded size and adds them up in member order. A large
 * all-reduce is a reduction of as many slices as there are members, whose results go to all.
 */
#include <string.h>

#include "common/groups/mpi_domain.h"
#include "common/memory.h"

/* What all members contribute to a round of a reduction, and what each does at least. */
enum { ROUND_BYTES = 8 << 20, LEAST_SHARE = 64 << 10 };

static bool is_reduction(const pl_mpi_group *group)
{
    const pl_collective collective = group->posted[group->own].call.collective;
    return collective == PL_REDUCE_SCATTER || collective == PL_ALL_REDUCE;
}

/* Largest message of the call: that a member contributes to a round, where it is a reduction. */
static int64_t message_limit(const pl_mpi_group *group)
{
    const pl_mpi_domain *domain = pl_mpi_domain_of(group);
    int64_t share = ROUND_BYTES / group->base.size;
    if (share < LEAST_SHARE) share = LEAST_SHARE;
    if (!is_reduction(group) || group->results || share > domain->largest) return domain->largest;
    return share;
}

/* --- one message --- */

/* The pieces of CHUNK as an MPI type, their addresses being absolute. */
static pl_status make_type(const pl_mpi_chunk *chunk, bool sends, MPI_Datatype *out)
{
    int lengths[PL_MPI_PIECES];
    MPI_Aint places[PL_MPI_PIECES];
    for (int i = 0; i < chunk->count; ++i) {
        const pl_mpi_piece *piece = &chunk->piece[i];
        lengths[i] = (int)piece->bytes;
        PL_TRY(pl_mpi_check(MPI_Get_address(sends ? piece->from : piece->to, &places[i]),
                            "MPI_Get_address"));
    }
    PL_TRY(pl_mpi_check(MPI_Type_create_hindexed(chunk->count, lengths, places, MPI_BYTE, out),
                        "MPI_Type_create_hindexed"));
    return pl_mpi_check(MPI_Type_commit(out), "MPI_Type_commit");
}

/* Send or receive CHUNK as it lies in memory. */
static pl_status post_pieces(const pl_mpi_group *group, const pl_mpi_chunk *chunk, bool sends,
                             int64_t peer, pl_mpi_lane *lane)
{
    const MPI_Comm communicator = pl_mpi_domain_of(group)->communicator;
    const int rank = pl_mpi_rank_of(group, peer);
    MPI_Datatype type = MPI_BYTE;
    if (chunk->count > 1) PL_TRY(make_type(chunk, sends, &type));
    const bool whole = chunk->count == 1;
    const int count = whole ? (int)chunk->bytes : 1;
    int code = MPI_SUCCESS;
    if (sends)
        code = MPI_Isend(whole ? chunk->piece[0].from : MPI_BOTTOM, count, type, rank, lane->tag,
                         communicator, &lane->request);
    else
        code = MPI_Irecv(whole ? chunk->piece[0].to : MPI_BOTTOM, count, type, rank, lane->tag,
                         communicator, &lane->request);
    if (!whole) MPI_Type_free(&type);
    return pl_mpi_check(code, sends ? "MPI_Isend" : "MPI_Irecv");
}

/* Go on with a lane whose last message is through. */
static pl_status post_next(pl_mpi_group *group, bool sends, int64_t peer, pl_mpi_lane *lane)
{
    pl_mpi_chunk chunk;
    if (lane->stream.at == lane->stream.end) return PL_OK;
    pl_mpi_stream_take(group, &group->posted[group->own], &lane->stream, message_limit(group),
                       PL_MPI_PIECES, &chunk);
    return post_pieces(group, &chunk, sends, peer, lane);
}

/* Move a lane on; *QUIET stays true when nothing is left to be moved. */
static pl_status step_lane(pl_mpi_group *group, bool sends, int64_t peer, bool *quiet)
{
    pl_mpi_lane *lane = sends ? &group->send[peer] : &group->receive[peer];
    while (lane->request != MPI_REQUEST_NULL) {
        int through = 0;
        PL_TRY(pl_mpi_check(MPI_Test(&lane->request, &through, MPI_STATUS_IGNORE), "MPI_Test"));
        if (!through) {
            *quiet = false;
            return PL_OK;
        }
        ++group->events;
        if (!group->in_round || sends) PL_TRY(post_next(group, sends, peer, lane));
    }
    return PL_OK;
}

/* --- rounds of a reduction --- */

static pl_status begin_round(pl_mpi_group *group)
{
    pl_mpi_domain *domain = pl_mpi_domain_of(group);
    const pl_posted_call *own = &group->posted[group->own];
    const int64_t offset = group->reduced.at - group->reduced.begin, limit = message_limit(group);
    pl_mpi_stream_take(group, own, &group->reduced, limit, PL_MPI_PIECES, &group->round);
    pl_mpi_stream_take(group, own, &group->contributed, limit, PL_MPI_PIECES, &group->own_round);
    group->in_round = true;
    const int64_t bytes = group->round.bytes;
    for (int64_t peer = 0; peer < group->base.size; ++peer) {
        pl_posted_call *view = &group->view[peer];
        const pl_mpi_message *message = group->first[peer];
        view->call.reduction = own->call.reduction;
        view->segments = &view->plain;
        if (peer == group->own) continue;
        if (message->head.data_bytes > 0) {
            view->plain.send = pl_mpi_data(message) + offset;
            continue;
        }
        PL_TRY(pl_grow(&group->scratch, &group->scratch_bytes, (size_t)(bytes * group->base.size),
                       1, "the data of a reduction"));
        char *share = group->scratch + peer * bytes;
        view->plain.send = share;
        PL_TRY(pl_mpi_check(MPI_Irecv(share, (int)bytes, MPI_BYTE, pl_mpi_rank_of(group, peer),
                                      message->head.tag, domain->communicator,
                                      &group->receive[peer].request),
                            "MPI_Irecv"));
    }
    return PL_OK;
}

/* Piece by piece: where the others' shares lie one behind the other, the own one and the results
 * are in pieces. */
static void reduce_round(pl_mpi_group *group)
{
    uint64_t block[PL_REDUCE_BLOCK];
    pl_posted_call *view = group->view;
    for (int i = 0; i < group->round.count; ++i) {
        const pl_mpi_piece *piece = &group->round.piece[i];
        const int64_t element = pl_dtype_bytes(piece->dtype), count = piece->bytes / element;
        view[group->own].plain.send = group->own_round.piece[i].from;
        view[0].plain.dtype = piece->dtype;
        for (int64_t at = 0; at < count; at += PL_REDUCE_BLOCK) {
            int n = (int)(count - at < PL_REDUCE_BLOCK ? count - at : PL_REDUCE_BLOCK);
            pl_reduce_elements(block, view, group->base.size, 0, at, n);
            memcpy(piece->to + at * element, block, (size_t)(n * element));
        }
        for (int64_t peer = 0; peer < group->base.size; ++peer)
            if (peer != group->own)
                view[peer].plain.send = (const char *)view[peer].plain.send + piece->bytes;
    }
    group->in_round = false;
    ++group->events;
}

/* --- the transfer --- */

/* What this member gets from PEER, and gives it, in the first phase. */
static pl_status begin_lanes(pl_mpi_group *group, int64_t peer)
{
    const pl_posted_call *own = &group->posted[group->own];
    const pl_mpi_message *message = group->first[peer];
    pl_mpi_lane *send = &group->send[peer], *receive = &group->receive[peer];
    send->stream = pl_mpi_stream_of(group, own, PL_MPI_SENT, peer);
    receive->stream = pl_mpi_stream_of(group, own, PL_MPI_RECEIVED, peer);
    if (message->head.data_bytes > 0 && message->head.data_bytes != receive->stream.end)
        return PL_FAIL(PL_INTERNAL, "rank %d sent other data with its call than is expected",
                       message->rank);
    if (send->stream.end <= pl_mpi_domain_of(group)->with_call)
        send->stream.at = send->stream.end;
    else if (group->sliced)
        pl_mpi_stream_slice(group, own, &send->stream, peer);
    if (message->head.data_bytes > 0 && !is_reduction(group))
        pl_mpi_stream_write(group, own, receive->stream, pl_mpi_data(message));
    if (message->head.data_bytes > 0 || is_reduction(group))
        receive->stream.at = receive->stream.end;
    send->tag = group->first[group->own]->head.tag;
    receive->tag = message->head.tag;
    PL_TRY(post_next(group, false, peer, receive));
    return post_next(group, true, peer, send);
}

static pl_status begin(pl_mpi_group *group)
{
    const pl_posted_call *own = &group->posted[group->own];
    group->active = true;
    group->results = group->in_round = false;
    group->contributed = pl_mpi_stream_of(group, own, PL_MPI_SENT, group->own);
    group->sliced = own->call.collective == PL_ALL_REDUCE &&
                    group->contributed.end > pl_mpi_domain_of(group)->with_call;
    group->reduced = pl_mpi_stream_of(group, own, PL_MPI_RECEIVED, group->own);
    if (!is_reduction(group)) {
        pl_mpi_stream_copy(group, own, group->contributed, group->reduced);
        group->reduced.at = group->reduced.end;
    } else if (group->sliced) {
        pl_mpi_stream_slice(group, own, &group->contributed, group->own);
        pl_mpi_stream_slice(group, own, &group->reduced, group->own);
    }
    for (int64_t peer = 0; peer < group->base.size; ++peer)
        if (peer != group->own) PL_TRY(begin_lanes(group, peer));
    return PL_OK;
}

/* The slices are reduced: the own one goes to all, theirs come. */
static pl_status begin_results(pl_mpi_group *group)
{
    const pl_posted_call *own = &group->posted[group->own];
    group->results = true;
    for (int64_t peer = 0; peer < group->base.size; ++peer) {
        pl_mpi_lane *send = &group->send[peer], *receive = &group->receive[peer];
        if (peer == group->own) continue;
        send->stream = receive->stream = pl_mpi_stream_of(group, own, PL_MPI_RESULT, peer);
        pl_mpi_stream_slice(group, own, &send->stream, group->own);
        pl_mpi_stream_slice(group, own, &receive->stream, peer);
        PL_TRY(post_next(group, false, peer, receive));
        PL_TRY(post_next(group, true, peer, send));
    }
    return PL_OK;
}

/* The call is done: what the others sent with it is not needed any more. */
static pl_status end(pl_mpi_group *group)
{
    const pl_request request = group->base.head;
    group->active = false;
    pl_group_part_done(&group->base);
    for (int64_t i = 0; i < group->base.size; ++i) {
        pl_mpi_message *message = group->first[i];
        if (i != group->own) PL_TRY(pl_group_finish((pl_group_handle *)group->mirror[i], request));
        group->first[i] = message->next;
        pl_free(message);
    }
    ++group->events;
    return PL_OK;
}

/* Move all lanes and rounds on; *QUIET says whether nothing of the phase is left. */
static pl_status step(pl_mpi_group *group, bool *quiet)
{
    for (;;) {
        bool arrived = true;
        *quiet = true;
        if (!group->in_round && group->reduced.at < group->reduced.end) PL_TRY(begin_round(group));
        for (int64_t peer = 0; peer < group->base.size; ++peer) {
            PL_TRY(step_lane(group, false, peer, &arrived));
            PL_TRY(step_lane(group, true, peer, quiet));
        }
        *quiet = *quiet && arrived;
        if (!arrived || !group->in_round) return PL_OK;
        reduce_round(group);
    }
}

pl_status pl_mpi_advance(pl_mpi_group *group)
{
    pl_call_part part;
    while (group->active || pl_group_take_part(&group->base, &part)) {
        bool quiet = false;
        if (!group->active) {
            group->posted = part.posted;
            PL_TRY(begin(group));
        }
        PL_TRY(step(group, &quiet));
        if (!quiet) return PL_OK;
        if (group->sliced && !group->results)
            PL_TRY(begin_results(group));
        else
            PL_TRY(end(group));
    }
    return PL_OK;
}

bool pl_mpi_expects(const pl_mpi_group *group, int64_t index)
{
    return group->active && (group->send[index].request != MPI_REQUEST_NULL ||
                             group->receive[index].request != MPI_REQUEST_NULL);
}

void pl_mpi_cancel(pl_mpi_group *group)
{
    for (int64_t i = 0; i < group->base.size; ++i)
        if (group->receive[i].request != MPI_REQUEST_NULL) MPI_Cancel(&group->receive[i].request);
}

bool pl_mpi_is_quiet(pl_mpi_group *group)
{
    bool quiet = true;
    for (int64_t i = 0; i < group->base.size; ++i) {
        int through = 1;
        MPI_Request *request = &group->receive[i].request;
        if (*request == MPI_REQUEST_NULL) continue;
        if (MPI_Test(request, &through, MPI_STATUS_IGNORE) != MPI_SUCCESS || !through)
            quiet = false;
    }
    return quiet;
}
