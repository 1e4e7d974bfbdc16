/* Messages between ranks: that a call was started, a group closed, or the domain failed. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "common/groups/mpi_domain.h"
#include "common/memory.h"

/* Of messages; data that travels by itself has other tags. */
enum { MESSAGE_TAG = 0, MOST_AT_ONCE = 64 };

const char *pl_mpi_description(const pl_mpi_message *message)
{
    return (const char *)(message + 1);
}

const char *pl_mpi_data(const pl_mpi_message *message)
{
    return pl_mpi_description(message) + message->head.description_bytes;
}

void pl_mpi_name_group(pl_mpi_head *head, const pl_group_shared *group)
{
    head->role = group->family->role;
    head->members = group->family->members;
    head->generation = group->generation;
}

/* A message with BYTES of description and data behind its head. */
static pl_status make_message(int64_t bytes, pl_mpi_message **out)
{
    pl_mpi_message *message = NULL;
    if (bytes > INT_MAX - (int64_t)sizeof message->head)
        return PL_FAIL(PL_UNSUPPORTED,
                       "a call with too many segments or transfers for one message: %" PRId64
                       " bytes, at most %d",
                       bytes, INT_MAX);
    PL_TRY(pl_allocate(&message, 1, sizeof *message + (size_t)bytes, "a message between ranks"));
    message->request = MPI_REQUEST_NULL;
    message->bytes = (int64_t)sizeof message->head + bytes;
    *out = message;
    return PL_OK;
}

/* Send MESSAGE, which is the domain's from now on. */
static pl_status send_message(pl_mpi_domain *domain, pl_mpi_message *message, int rank)
{
    message->rank = rank;
    pl_status status = pl_mpi_check(MPI_Isend(&message->head, (int)message->bytes, MPI_BYTE, rank,
                                              MESSAGE_TAG, domain->communicator, &message->request),
                                    "MPI_Isend");
    if (status != PL_OK) {
        pl_free(message);
        return status;
    }
    message->next = domain->outgoing;
    domain->outgoing = message;
    return PL_OK;
}

static int64_t description_bytes(const pl_call *call, int64_t size)
{
    switch (call->collective) {
    case PL_ALL_TO_ALL_UNEVEN: return 2 * size * (int64_t)sizeof(int64_t);
    case PL_SEND_RECEIVE: return call->transfer_count * (int64_t)sizeof(pl_transfer);
    default: return call->segment_count * (int64_t)sizeof(pl_segment);
    }
}

/* Without the addresses of buffers. */
static void describe(char *to, const pl_call *call, int64_t size)
{
    const size_t counts = (size_t)size * sizeof(int64_t);
    switch (call->collective) {
    case PL_BARRIER: break;
    case PL_ALL_TO_ALL_UNEVEN:
        memcpy(to, call->send_counts, counts);
        memcpy(to + counts, call->recv_counts, counts);
        break;
    case PL_SEND_RECEIVE:
        for (int i = 0; i < call->transfer_count; ++i) {
            pl_transfer transfer = call->transfers[i];
            transfer.buffer = NULL;
            memcpy(to + (size_t)i * sizeof transfer, &transfer, sizeof transfer);
        }
        break;
    default:
        for (int i = 0; i < call->segment_count; ++i) {
            pl_segment segment = call->segments[i];
            segment.send = segment.recv = NULL;
            memcpy(to + (size_t)i * sizeof segment, &segment, sizeof segment);
        }
    }
}

/* Tell member INDEX. Few bytes for it travel with the call. */
static pl_status tell_member(pl_mpi_group *group, const pl_posted_call *call, int64_t number,
                             int64_t index, int tag)
{
    pl_mpi_domain *domain = pl_mpi_domain_of(group);
    pl_mpi_message *message = NULL;
    const int64_t description = description_bytes(&call->call, group->base.size);
    const pl_mpi_stream stream = pl_mpi_stream_of(group, call, PL_MPI_SENT, index);
    const int64_t data = stream.end <= domain->with_call ? stream.end : 0;
    PL_TRY(make_message(description + data, &message));
    pl_mpi_name_group(&message->head, &group->base);
    message->head.kind = PL_MPI_CALL;
    message->head.number = number;
    message->head.description_bytes = description;
    message->head.data_bytes = data;
    message->head.tag = tag;
    message->head.call = call->call;
    message->head.name = call->name;
    char *body = (char *)(message + 1);
    describe(body, &call->call, group->base.size);
    if (data > 0) pl_mpi_stream_read(group, call, stream, body + description);
    return send_message(domain, message, pl_mpi_rank_of(group, index));
}

void pl_mpi_keep(pl_mpi_group *group, int64_t index, pl_mpi_message *message)
{
    message->next = NULL;
    if (group->first[index])
        group->last[index]->next = message;
    else
        group->first[index] = message;
    group->last[index] = message;
}

pl_status pl_mpi_tell_call(pl_mpi_group *group, const pl_call *call, int64_t number)
{
    pl_mpi_domain *domain = pl_mpi_domain_of(group);
    pl_posted_call posted;
    pl_mpi_message *own = NULL; /* has the tag, until the data is sent */
    const int tag = domain->tag;
    domain->tag = tag == domain->last_tag ? MESSAGE_TAG + 1 : tag + 1;
    pl_call_put(&posted, call);
    PL_TRY(make_message(0, &own));
    own->head.tag = tag;
    pl_mpi_keep(group, group->own, own);
    for (int64_t i = 0; i < group->base.size; ++i)
        if (i != group->own) PL_TRY(tell_member(group, &posted, number, i, tag));
    return PL_OK;
}

pl_status pl_mpi_tell_close(pl_mpi_domain *domain, const pl_mpi_head *head)
{
    const int64_t size = pl_rank_set_size(&head->members);
    for (int64_t i = 0; i < size; ++i) {
        int rank = (int)pl_rank_set_member(&head->members, i);
        pl_mpi_message *message = NULL;
        if (rank == domain->rank) continue;
        PL_TRY(make_message(0, &message));
        message->head = *head;
        PL_TRY(send_message(domain, message, rank));
    }
    return PL_OK;
}

pl_status pl_mpi_prepare_failure(pl_mpi_domain *domain)
{
    PL_TRY(pl_allocate(&domain->failure_requests, (size_t)domain->ranks, sizeof(MPI_Request),
                       "messages about failures"));
    for (int i = 0; i < domain->ranks; ++i) domain->failure_requests[i] = MPI_REQUEST_NULL;
    return make_message((int64_t)sizeof domain->base.failure_words, &domain->failure);
}

void pl_mpi_tell_failure(pl_mpi_domain *domain)
{
    pl_mpi_head *head = &domain->failure->head;
    head->kind = PL_MPI_FAILURE;
    head->status = domain->base.failure;
    head->role = PL_GROUP_NONE;
    head->data_bytes = (int64_t)sizeof domain->base.failure_words;
    for (const pl_mpi_group *group = domain->groups; group; group = group->next)
        if (group->base.serial == domain->base.failure_serial)
            pl_mpi_name_group(head, &group->base);
    memcpy((char *)(domain->failure + 1), domain->base.failure_words,
           sizeof domain->base.failure_words);
    for (int rank = 0; rank < domain->ranks; ++rank) {
        if (rank == domain->rank) continue;
        /* Who cannot be told finds out when its time is over. */
        MPI_Isend(head, (int)domain->failure->bytes, MPI_BYTE, rank, MESSAGE_TAG,
                  domain->communicator, &domain->failure_requests[rank]);
    }
}

/* Begin to take in the message that MATCHED stands for. */
static pl_status begin_receiving(MPI_Message *matched, const MPI_Status *about,
                                 pl_mpi_message **out)
{
    int bytes = 0;
    pl_mpi_message *message = NULL;
    PL_TRY(pl_mpi_check(MPI_Get_count(about, MPI_BYTE, &bytes), "MPI_Get_count"));
    const int64_t body = bytes - (int64_t)sizeof message->head;
    if (body < 0)
        return PL_FAIL(PL_INTERNAL, "rank %d sent a message of %d bytes, which is none",
                       about->MPI_SOURCE, bytes);
    PL_TRY(make_message(body, &message));
    message->rank = about->MPI_SOURCE;
    pl_status status = pl_mpi_check(
        MPI_Imrecv(&message->head, bytes, MPI_BYTE, matched, &message->request), "MPI_Imrecv");
    if (status != PL_OK) {
        pl_free(message);
        return status;
    }
    *out = message;
    return PL_OK;
}

pl_status pl_mpi_receive(pl_mpi_domain *domain)
{
    pl_mpi_message **end = &domain->incoming;
    while (*end) end = &(*end)->next;
    for (int i = 0; i < MOST_AT_ONCE; ++i) {
        int found = 0;
        MPI_Message matched = MPI_MESSAGE_NULL;
        MPI_Status about;
        PL_TRY(pl_mpi_check(MPI_Improbe(MPI_ANY_SOURCE, MESSAGE_TAG, domain->communicator, &found,
                                        &matched, &about),
                            "MPI_Improbe"));
        if (!found) break;
        PL_TRY(begin_receiving(&matched, &about, end));
        end = &(*end)->next;
    }
    return PL_OK;
}

void pl_mpi_reclaim(pl_mpi_domain *domain)
{
    pl_mpi_message **link = &domain->outgoing;
    while (*link) {
        pl_mpi_message *message = *link;
        int sent = 0;
        if (MPI_Test(&message->request, &sent, MPI_STATUS_IGNORE) != MPI_SUCCESS || !sent) {
            link = &message->next;
            continue;
        }
        *link = message->next;
        pl_free(message);
    }
}
