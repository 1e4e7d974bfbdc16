/* Process groups: one rank's handle on a group of ranks that communicate.
 *
 * Backends: self (one rank), threads (ranks are threads of this process), mpi (ranks are processes,
 * common/groups_mpi.h), fake (the simulator's: all ranks in one thread, integers only); nccl and
 * local come later. All pass tests/groups/conformance.c.
 *
 * A call is started and later waited for:
 *
 *     PL_TRY(pl_process_group_start(group, &call, &request));
 *     ... other work ...
 *     PL_TRY(pl_process_group_wait(group, request));
 *
 * Every member starts the same calls in the same order with equal operation, element type,
 * reduction and (where the operation needs it) count; the group checks this and fails every
 * member, naming both calls, when it is not so. Buffers are borrowed from start until wait
 * returns, and must stay alive until then on failure too: a failed wait returns only when no other
 * member can touch them any more. send == recv is allowed for all_reduce and broadcast. Requests of
 * one group complete in the order of their start; waiting for a later one first is allowed.
 *
 * wait returns when the results may be used by what the caller does next: CPU backends wait in the
 * calling thread; backends with device streams only order the call's stream (and a watcher keeps
 * the deadline), so that the host is not held up.
 *
 * One call may move several buffers together, as segments: each as a call of its own would, with
 * its own element type and count, but matched, waited for and failing as one. Members agree in the
 * number of segments and in each one's count and element type; a mismatch names the segment. The
 * plain form is no call of one segment: a member that uses one does not match a member that uses
 * the other.
 *
 * Reductions add in the order of the members, in fp32 for bf16 and fp16, in the element type
 * otherwise: all members get the same bits, in every run. Integer sums wrap.
 *
 * Failure: a call that fails on one member, a member that reports failure (pl_process_group_fail)
 * or one that does not come within the time limit poisons every group made from the same domain:
 * all waiters return PL_PEER_FAILED (the late group's members PL_TIMED_OUT) with the first cause,
 * the entry, the group's role and members, and the members that have not arrived. Later calls
 * fail at once. Nothing hangs.
 */
#ifndef PL_COMMON_PROCESS_GROUP_H
#define PL_COMMON_PROCESS_GROUP_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/call_log.h"
#include "common/dtype.h"
#include "common/entry.h"
#include "common/layout.h"
#include "common/rank_set.h"
#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pl_collective {
    PL_ALL_GATHER,        /* send[count] of every member -> recv[size*count], in member order */
    PL_REDUCE_SCATTER,    /* send[size*count] -> recv[count]: the sum of slice "my index" */
    PL_ALL_REDUCE,        /* send[count] -> recv[count] */
    PL_ALL_TO_ALL,        /* even: send[size*count] -> recv[size*count], slice by member */
    PL_ALL_TO_ALL_UNEVEN, /* send_counts[size], recv_counts[size]; slices packed in member order */
    PL_SEND_RECEIVE,      /* a list of transfers, all in flight together */
    PL_BROADCAST,         /* recv[count] of member `root` -> recv[count] of all */
    PL_BARRIER,
    PL_COLLECTIVE_COUNT
} pl_collective;

typedef enum pl_reduction {
    PL_REDUCTION_NONE,
    PL_REDUCTION_SUM,
    PL_REDUCTION_AVERAGE, /* the sum divided by the size of the group; not for integers */
    PL_REDUCTION_MAX,
    PL_REDUCTION_COUNT
} pl_reduction;

/* One send or receive. Transfers between the same two members match in the order listed. */
typedef struct pl_transfer {
    int peer; /* index in the group; may be oneself */
    int is_send;
    void *buffer; /* read when is_send, else written; borrowed */
    int64_t count;
} pl_transfer;

/* One buffer of a call that moves several: send, recv, count and dtype mean what they mean in a
 * plain call of the same collective, each segment with slices of its own. Empty ones are allowed.
 * No recv may overlap another segment's send or recv; several segments may send the same. */
typedef struct pl_segment {
    const void *send;
    void *recv;
    int64_t count;
    pl_dtype dtype;
} pl_segment;

typedef struct pl_call {
    pl_collective collective;
    pl_dtype dtype;
    pl_reduction reduction;
    pl_stream stream;          /* the queue it belongs to; backends with real streams order by it */
    const pl_entry_name *name; /* the plan entry, for matching, logs and messages; never NULL */
    const void *send;
    void *recv;
    int64_t count;                            /* elements, as said at pl_collective; may be 0 */
    const int64_t *send_counts, *recv_counts; /* PL_ALL_TO_ALL_UNEVEN: [size] each */
    int root;                                 /* PL_BROADCAST: index in the group */
    int transfer_count;
    int segment_count;
    union {                           /* one call has one of them */
        const pl_transfer *transfers; /* PL_SEND_RECEIVE */
        /* PL_ALL_GATHER, PL_REDUCE_SCATTER, PL_ALL_REDUCE, PL_ALL_TO_ALL, PL_BROADCAST: when
         * segment_count is above 0, these are moved, all with the call's reduction and root, and
         * send, recv, count and dtype above are NULL and 0. With 0, the plain form, they are not
         * looked at. Borrowed like the buffers, the array too. */
        const pl_segment *segments;
    };
} pl_call;

typedef struct pl_process_group pl_process_group;
typedef int64_t pl_request; /* number of the call in its group, from 0 */

/* What a backend fills in; callers use the functions below. */
typedef struct pl_process_group_backend {
    const char *name; /* "self", "threads", "mpi", "fake" */
    pl_status (*start)(pl_process_group *group, const pl_call *call, pl_request *request_out);
    pl_status (*wait)(pl_process_group *group, pl_request request);
    pl_status (*split)(pl_process_group *group, pl_group_role role, const pl_rank_set *members,
                       pl_process_group **out);
    void (*fail)(pl_process_group *group, pl_status status, const char *words);
    void (*close)(pl_process_group *group);
} pl_process_group_backend;

/* The head of every backend's own structure. */
struct pl_process_group {
    const pl_process_group_backend *backend;
    pl_group_role role;
    pl_rank_set members; /* ranks of the world, in group order */
    int64_t rank;        /* own rank in the world */
    int64_t index, size; /* own place in the group */
    /* set by the owner of the handle, by the functions below; borrowed */
    const pl_call_log *log;
    const volatile sig_atomic_t *interrupted;
    double grace_seconds;
};

/* Start CALL. Not blocking, except that a backend may do all the work at once. Checks the
 * arguments that can be checked alone: PL_INTERNAL for counts below 0, missing buffers, buffers
 * that overlap, a reduction where none belongs, an average of integers (in any segment), segments
 * where none belong or beside buffers of the call's own. The call structure is copied, what it
 * points to is borrowed until wait returns. */
pl_status pl_process_group_start(pl_process_group *group, const pl_call *call,
                                 pl_request *request_out);

/* Wait for a started request; each is waited for exactly once. */
pl_status pl_process_group_wait(pl_process_group *group, pl_request request);

/* Start and wait. */
pl_status pl_process_group_do(pl_process_group *group, const pl_call *call);

/* A handle on the group of MEMBERS (which include the own rank) with ROLE, made from the group of
 * the world. Collective over MEMBERS in the sense that each must ask for it, but nothing is
 * communicated: asking never blocks. The caller closes it before the world's group. */
pl_status pl_process_group_split(pl_process_group *world, pl_group_role role,
                                 const pl_rank_set *members, pl_process_group **out);

/* Write a record of each call that is started from now on by GROUP, and by handles split from it
 * from now on, to LOG (borrowed; NULL: none). Backend fake keeps none. */
void pl_process_group_set_log(pl_process_group *group, const pl_call_log *log);

/* Let the waits of GROUP, and of handles split from it from now on, look at *FLAG, which a signal
 * handler sets (borrowed; NULL: they do not look). A wait that finds it set and has to go on for
 * GRACE_SECONDS more ends as after the time limit, PL_TIMED_OUT, with words like "was interrupted
 * while waiting for ... not arrived: 3". So a rank that is asked to stop goes on with its step as
 * long as the others come, and leaves in words when they do not. Backends self and fake never
 * wait. */
void pl_process_group_set_interrupt(pl_process_group *group, const volatile sig_atomic_t *flag,
                                    double grace_seconds);

/* Tell every rank of the domain that this one failed, with words for their messages. */
void pl_process_group_fail(pl_process_group *group, pl_status status, const char *words);

/* Not collective. NULL is allowed. */
void pl_process_group_close(pl_process_group *group);

const char *pl_collective_name(pl_collective collective);
const char *pl_reduction_name(pl_reduction reduction); /* "-", "sum", "average", "max" */
bool pl_reduction_parse(pl_reduction *out, const char *name);

/* Backend self: the world's group of one rank. */
pl_status pl_group_self_open(pl_process_group **out);

/* Backend threads: the world's group of RANKS ranks, one handle a rank in OUT[RANKS], each to be
 * used by one thread at a time. TIMEOUT_SECONDS bounds every wait. The caller closes each handle;
 * shared state goes with the last. */
pl_status pl_group_threads_open(pl_process_group **out, int64_t ranks, double timeout_seconds);

#ifdef __cplusplus
}
#endif
#endif
