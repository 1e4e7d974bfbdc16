/* What the files of backend mpi share: a domain (common/group_domain.h) in each process.
 *
 * The domain holds handles of all ranks. The own rank's are given out; those of the others, the
 * mirrors, are driven by messages: when rank 3 starts a call it puts it into its own domain and
 * tells the members of the group, who put it into theirs with 3's mirror. So calls are matched,
 * counted and worded here as in one process. A call that is ready becomes a transfer, which moves
 * the data (mpi_transfer.c).
 *
 * Messages from one rank are repeated in the order in which they were sent. That a member closed a
 * group counts only when its calls are done here too; what it sent later waits for that.
 */
#ifndef PL_COMMON_GROUPS_MPI_DOMAIN_H
#define PL_COMMON_GROUPS_MPI_DOMAIN_H

#include <mpi.h>

#include "common/group_domain.h"

enum { PL_MPI_PIECES = 64 };

typedef struct pl_mpi_domain pl_mpi_domain;
typedef struct pl_mpi_group pl_mpi_group;

typedef enum pl_mpi_message_kind {
    PL_MPI_CALL,   /* started call NUMBER of the group */
    PL_MPI_CLOSE,  /* closed its last handle on the group, after NUMBER calls */
    PL_MPI_FAILURE /* the domain failed; behind the head its words */
} pl_mpi_message_kind;

/* What every message begins with. Pointers in it are the sender's and mean nothing. */
typedef struct pl_mpi_head {
    pl_mpi_message_kind kind;
    pl_status status;   /* PL_MPI_FAILURE */
    pl_group_role role; /* with members and generation: the group; PL_GROUP_NONE: none */
    pl_rank_set members;
    int64_t generation;
    int64_t number;
    int64_t description_bytes; /* segments, counts or transfers of the call, behind the head */
    int64_t data_bytes;        /* what the receiver gets, behind those; 0: by itself, with tag */
    int tag;
    pl_call call;
    pl_entry_name name;
} pl_mpi_head;

typedef struct pl_mpi_message {
    struct pl_mpi_message *next;
    int rank;            /* who gets or sent it */
    MPI_Request request; /* of its sending or receiving; MPI_REQUEST_NULL: done */
    int64_t bytes;       /* of head, description and data: one behind the other */
    pl_mpi_head head;
} pl_mpi_message;

/* What goes from or to a member, as a stream of bytes that lies in pieces. */
typedef enum pl_mpi_stream_kind {
    PL_MPI_SENT,     /* what this member contributes for the peer */
    PL_MPI_RECEIVED, /* where what the peer contributes goes; of a reduction: where its result goes
                      */
    PL_MPI_RESULT    /* all-reduce: the results */
} pl_mpi_stream_kind;

typedef struct pl_mpi_stream {
    pl_mpi_stream_kind kind;
    int64_t peer;
    int64_t begin, at, end; /* a range of the stream's bytes, and the first one to be taken */
    int piece;              /* one before which nothing is left, and where it begins */
    int64_t piece_begin;
} pl_mpi_stream;

typedef struct pl_mpi_piece {
    const char *from; /* to be sent */
    char *to;         /* to be written */
    int64_t bytes;
    pl_dtype dtype;
} pl_mpi_piece;

/* Pieces that travel as one message. */
typedef struct pl_mpi_chunk {
    int64_t bytes;
    int count;
    pl_mpi_piece piece[PL_MPI_PIECES];
} pl_mpi_chunk;

/* One direction between this member and another: one message at a time. */
typedef struct pl_mpi_lane {
    pl_mpi_stream stream;
    MPI_Request request;
    int tag;
} pl_mpi_lane;

struct pl_mpi_group {
    pl_group_shared base;
    pl_mpi_group *next;
    int64_t own;                    /* index of this rank */
    int64_t events;                 /* grows when something of the group arrives */
    pl_process_group **mirror;      /* [size]; NULL: the own one, and those not heard of */
    pl_mpi_message **first, **last; /* [size]: calls that are not done, in order */

    /* The transfer of call base.head. */
    bool active, sliced, results; /* moving it; an all-reduce in slices, whose results are moved */
    const pl_posted_call *posted; /* [size] */
    pl_mpi_lane *send, *receive;  /* [size] */
    pl_posted_call *view;         /* [size]: what a reduction reads */
    pl_mpi_stream reduced, contributed;
    pl_mpi_chunk round, own_round; /* what is being reduced, and this member's share of it */
    bool in_round;
    char *scratch; /* what the others contribute to a round */
    size_t scratch_bytes;
};

/* Where a process runs: enough to see whether it still does. */
typedef struct pl_mpi_process {
    int64_t version, head_bytes; /* of the program's messages */
    int64_t id;
    uint64_t place; /* the machine, and what process numbers count in; 0: not known */
} pl_mpi_process;

struct pl_mpi_domain {
    pl_group_domain base;
    MPI_Comm communicator;
    int rank, ranks;
    double timeout_seconds;
    int64_t largest, with_call; /* bytes of a message with data; that travel with a call */
    int tag, last_tag;
    bool opened, started_mpi, finishing;
    int64_t events;

    int64_t local_handles;
    pl_process_group **world; /* [ranks]; NULL: closed */
    pl_mpi_group *groups;
    pl_mpi_message *incoming, *outgoing; /* the former in order */
    const pl_mpi_message *reported;      /* the failure that a rank told of, in incoming */
    int64_t *blocked, pass;              /* [ranks]: in which pass a rank's messages had to wait */
    pl_mpi_process *processes;           /* [ranks] */

    bool settled; /* after a failure: MPI is left alone */
    bool told;    /* all ranks know of the failure, or were sent it */
    pl_mpi_message *failure;
    MPI_Request *failure_requests; /* [ranks] */
};

static inline pl_mpi_domain *pl_mpi_domain_of(const pl_mpi_group *group)
{
    return (pl_mpi_domain *)group->base.domain;
}

static inline int pl_mpi_rank_of(const pl_mpi_group *group, int64_t index)
{
    return (int)pl_rank_set_member(&group->base.family->members, index);
}

/* --- mpi.c --- */

extern const pl_process_group_backend pl_mpi_backend;
extern const pl_group_hooks pl_mpi_hooks;

/* Take in, repeat and move what there is. Whether something happened. Never waits. */
bool pl_mpi_progress(pl_mpi_domain *domain);

/* Free DOMAIN, whose local handles are closed. */
void pl_mpi_free_domain(pl_mpi_domain *domain);

/* PL_OK for MPI_SUCCESS; else PL_PEER_FAILED with what MPI says. WHAT is the function called. */
pl_status pl_mpi_check(int code, const char *what);

/* --- mpi_job.c --- */

/* pl_group_mpi_open of the processes of COMMUNICATOR, MPI having been started. */
pl_status pl_mpi_open_on(pl_process_group **out, MPI_Comm communicator, double timeout_seconds);

/* --- mpi_wait.c --- */

/* Until REQUEST is done or the domain has failed, which waiting for too long does. */
void pl_mpi_wait_for(pl_group_handle *handle, pl_request request);

/* Seconds on a clock that only goes forward. */
double pl_mpi_now(void);

/* Sleep a little, longer each time; *RESTS counts and is 0 at first. */
void pl_mpi_rest(int *rests);

/* --- mpi_process.c --- */

pl_mpi_process pl_mpi_process_own(void);

/* Whether all processes run the same program. PL_UNSUPPORTED, naming one that does not. */
pl_status pl_mpi_process_match(const pl_mpi_domain *domain);

typedef enum pl_mpi_life { PL_MPI_UNKNOWN, PL_MPI_ALIVE, PL_MPI_GONE } pl_mpi_life;

/* Whether the process of RANK still runs; unknown for those of other machines. */
pl_mpi_life pl_mpi_process_life(const pl_mpi_domain *domain, int rank);

/* --- mpi_stream.c --- */

/* The whole stream of KIND from or to PEER for the call being moved. CALL is the own one. */
pl_mpi_stream pl_mpi_stream_of(const pl_mpi_group *group, const pl_posted_call *call,
                               pl_mpi_stream_kind kind, int64_t peer);

/* All-reduce: cut STREAM down to the elements that member INDEX adds up. */
void pl_mpi_stream_slice(const pl_mpi_group *group, const pl_posted_call *call,
                         pl_mpi_stream *stream, int64_t index);

/* Take the next bytes, at most LIMIT (at least 64) of them in at most PIECES pieces, whole
 * elements. Streams of the same kind of data on both sides are cut alike. */
void pl_mpi_stream_take(const pl_mpi_group *group, const pl_posted_call *call,
                        pl_mpi_stream *stream, int64_t limit, int pieces, pl_mpi_chunk *out);

/* Copy all of STREAM to memory, from memory, to another stream with equal pieces. */
void pl_mpi_stream_read(const pl_mpi_group *group, const pl_posted_call *call, pl_mpi_stream stream,
                        char *to);
void pl_mpi_stream_write(const pl_mpi_group *group, const pl_posted_call *call,
                         pl_mpi_stream stream, const char *from);
void pl_mpi_stream_copy(const pl_mpi_group *group, const pl_posted_call *call, pl_mpi_stream from,
                        pl_mpi_stream to);

/* --- mpi_message.c --- */

/* Tell the other members of GROUP that this one started CALL, its number NUMBER. */
pl_status pl_mpi_tell_call(pl_mpi_group *group, const pl_call *call, int64_t number);

/* Tell them that this one closed its last handle, on the group that HEAD names. */
pl_status pl_mpi_tell_close(pl_mpi_domain *domain, const pl_mpi_head *head);

/* Tell all ranks of the domain's failure, without allocating. */
void pl_mpi_tell_failure(pl_mpi_domain *domain);

/* Make room to tell of a failure. */
pl_status pl_mpi_prepare_failure(pl_mpi_domain *domain);

/* Take in what has arrived. */
pl_status pl_mpi_receive(pl_mpi_domain *domain);

/* Free what has been sent. */
void pl_mpi_reclaim(pl_mpi_domain *domain);

/* Put MESSAGE, the group's from now on, behind the calls of member INDEX. */
void pl_mpi_keep(pl_mpi_group *group, int64_t index, pl_mpi_message *message);

/* Write into HEAD which group it is about. */
void pl_mpi_name_group(pl_mpi_head *head, const pl_group_shared *group);

/* What follows the head: what describes the call, and data. */
const char *pl_mpi_description(const pl_mpi_message *message);
const char *pl_mpi_data(const pl_mpi_message *message);

/* --- mpi_mirror.c --- */

/* Repeat here what messages say that other ranks did. */
pl_status pl_mpi_repeat(pl_mpi_domain *domain);

/* The domain fails as another rank said, if one did. */
void pl_mpi_take_report(pl_mpi_domain *domain);

/* --- mpi_transfer.c --- */

/* Move data of GROUP's calls as far as it goes. */
pl_status pl_mpi_advance(pl_mpi_group *group);

/* Whether data from or to member INDEX is on its way. */
bool pl_mpi_expects(const pl_mpi_group *group, int64_t index);

/* Take back what has not been matched; then whether nothing is received into buffers any more. */
void pl_mpi_cancel(pl_mpi_group *group);
bool pl_mpi_is_quiet(pl_mpi_group *group);

#endif
