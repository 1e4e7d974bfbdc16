/* What backends that run on CPUs have in common: which groups there are, which calls their members
 * posted, who left, what failed first. Bookkeeping only: nothing here blocks, locks or moves data.
 * Backend threads holds its lock around every function; self and fake run in one thread. Backend
 * mpi has a domain in each process, in which what other ranks did is repeated when it hears of it.
 *
 * A domain is a world of ranks with all groups split from it. A group is found by its role and
 * members, and by a generation: a member that closed its last handle and asks again gets the
 * next group of that name, whatever the others have reached by then.
 *
 * Each group has a queue of calls. Member m's n-th call goes to slot n; the call is ready when
 * all members have posted it, and calls are done in order, in parts (common/call_move.h) that any
 * thread may take. The first failure is kept in the domain; from then on no part is handed out.
 */
#ifndef PL_COMMON_GROUP_DOMAIN_H
#define PL_COMMON_GROUP_DOMAIN_H

#include "common/call_match.h"
#include "common/call_move.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_group_domain pl_group_domain;
typedef struct pl_group_shared pl_group_shared;

/* What a backend adds to a group. All but the size may be NULL. */
typedef struct pl_group_hooks {
    size_t group_bytes; /* of the backend's structure that begins with a pl_group_shared */
    pl_status (*open)(pl_group_shared *group);
    void (*changed)(pl_group_shared *group); /* calls got ready or done, or the domain failed */
    void (*close)(pl_group_shared *group);
} pl_group_hooks;

/* One call of all members; slots are reused. */
typedef struct pl_group_slot {
    pl_posted_call *posted; /* [size]; stays where it is while the queue grows */
    int64_t arrived, waited;
    int64_t first;      /* the member that came first: others are compared with it */
    int64_t work_bytes; /* written, no more exact than whether to split it needs */
    struct pl_group_slot *next_free;
} pl_group_slot;

typedef struct pl_group_member {
    int64_t posted; /* calls so far: the number of its next one */
    int handles;
    bool gone; /* closed its last handle */
} pl_group_member;

/* All groups of one role and set of members. */
typedef struct pl_group_family {
    pl_group_role role;
    pl_rank_set members;
    int64_t *closed; /* [size]: how often each member closed its last handle */
    pl_group_shared *live;
    struct pl_group_family *next;
} pl_group_family;

struct pl_group_shared {
    pl_group_domain *domain;
    pl_group_family *family;
    pl_group_shared *next; /* live group of the same family */
    int64_t generation;
    int64_t serial; /* unlike a pointer, never used twice in a domain */
    int64_t size;
    pl_group_member *member; /* [size] */
    int64_t gone, dropped;   /* members that left; ... and whose handles are freed */

    /* Calls base .. end-1 have a slot, at number modulo capacity (a power of two); those below
     * head are done. */
    pl_group_slot **slots;
    int64_t capacity, base, head, end;
    pl_group_slot *free_slots;
    int64_t parts, taken, done; /* of call head; parts is 0 until it is ready */
    int64_t working;            /* parts being done right now */
    int64_t *offsets;           /* [size], scratch of pl_call_part */
};

struct pl_group_domain {
    const pl_process_group_backend *backend;
    const pl_group_hooks *hooks;
    int64_t split_bytes; /* calls that write more are done in parts; 0: never */
    int64_t ranks, serials;
    int64_t handles;        /* open in all groups */
    pl_group_shared *world; /* NULL once all have left it */
    bool *left;             /* [ranks]: closed its handle on the world */
    int64_t left_count;

    pl_group_family **buckets;
    size_t bucket_count, families;

    /* The handle on the world of the one rank that is at home here, when the others are elsewhere
     * and only repeated; else NULL. It is to blame for memory that runs out. */
    struct pl_group_handle *local;

    pl_status failure;      /* PL_OK until the first one */
    int64_t failure_serial; /* the group it happened in; -1: of one rank alone */
    char failure_words[2048];
};

/* One rank's handle. */
typedef struct pl_group_handle {
    pl_process_group base;
    pl_group_shared *shared;
    bool last; /* being closed, and the member's last on this group */
} pl_group_handle;

/* Fill the zeroed DOMAIN with a world of RANKS ranks and store their handles in OUT[RANKS]. The
 * domain's own memory is the backend's. Errors: PL_BAD_INPUT for ranks below 1, PL_NO_MEMORY, or
 * what hooks->open says; the domain is then closed. */
pl_status pl_group_domain_open(pl_group_domain *domain, const pl_process_group_backend *backend,
                               const pl_group_hooks *hooks, int64_t ranks, pl_process_group **out);

/* Free all that is left. When no handle is open. */
void pl_group_domain_close(pl_group_domain *domain);

/* pl_process_group_split: O(1) but for groups that do not exist yet. */
pl_status pl_group_split(pl_process_group *world, pl_group_role role, const pl_rank_set *members,
                         pl_process_group **out);

/* Keep STATUS and WORDS, unless something failed before, and tell all groups. */
void pl_group_domain_fail(pl_group_domain *domain, pl_status status, int64_t serial,
                          const char *words);

/* pl_process_group_fail: "rank 3 failed: WORDS". */
void pl_group_fail_rank(pl_group_handle *handle, pl_status status, const char *words);

/* First half of closing: the member goes, and what waits for it or was left unfinished by it
 * fails. Its buffers are free once the domain is whole or group->working is 0. */
void pl_group_leave(pl_group_handle *handle);

/* Second half: free the handle, and the group with its last member. True when it was the
 * domain's last handle. */
bool pl_group_drop(pl_group_handle *handle);

/* Put CALL at the end of the member's queue, compare it with what the others posted, and give its
 * number. Errors: PL_INTERNAL for calls that do not match, PL_NO_MEMORY, the domain's failure, or
 * PL_PEER_FAILED when a member that has left can never come; each poisons the domain. */
pl_status pl_group_post(pl_group_handle *handle, const pl_call *call, pl_request *request_out);

/* Whether the group's next call has arrived whole. */
bool pl_group_head_ready(const pl_group_shared *group);

/* Take a part of the next call, to be done without the lock. False when there is none. */
bool pl_group_take_part(pl_group_shared *group, pl_call_part *out);
void pl_group_part_done(pl_group_shared *group);

/* Whether the next call is too small to be done by more than one. */
bool pl_group_head_small(const pl_group_shared *group);

/* PL_INTERNAL unless REQUEST was started by this member and not waited for yet. */
pl_status pl_group_check_request(const pl_group_handle *handle, pl_request request);

static inline bool pl_group_is_done(const pl_group_shared *group, pl_request request)
{
    return request < group->head;
}

/* End the wait for REQUEST: PL_OK when it is done, else the domain's failure. */
pl_status pl_group_finish(pl_group_handle *handle, pl_request request);

/* Add "CALL in GROUP; not arrived: RANKS" for the first call up to REQUEST that is not done. */
void pl_group_print_missing(pl_text *text, const pl_group_handle *handle, pl_request request);

/* The member waited for REQUEST and will no longer: the failure STATUS of the domain, "rank 3 DID
 * CALL in GROUP; not arrived: RANKS" and MORE behind it. */
void pl_group_give_up(pl_group_handle *handle, pl_request request, pl_status status,
                      const char *did, const char *more);

/* Give up after SECONDS; because of a signal: both PL_TIMED_OUT. */
void pl_group_time_out(pl_group_handle *handle, pl_request request, double seconds);
void pl_group_interrupt(pl_group_handle *handle, pl_request request);

/* Whether the flag that HANDLE's waits look at is set. */
static inline bool pl_group_interrupted(const pl_group_handle *handle)
{
    return handle->base.interrupted && __atomic_load_n(handle->base.interrupted, __ATOMIC_RELAXED);
}

#ifdef __cplusplus
}
#endif
#endif
