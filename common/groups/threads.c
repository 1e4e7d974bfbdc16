/* Ranks are threads of one process.
 *
 * One lock guards the bookkeeping of a domain (common/group_domain.h); data moves outside it. The
 * last member to arrive does a small call at once. A large one is cut into as many parts as there
 * are members, and whoever waits takes parts, for others too: a rank that computes while its
 * request is in flight holds nobody up. Each group has a condition variable for its waiters;
 * deadlines are on the monotonic clock.
 *
 * After a failure no part is handed out, and a wait or close returns only when no part of its
 * group is being done any more: then nobody touches the member's buffers.
 */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "common/call_note.h"
#include "common/group_domain.h"
#include "common/memory.h"

/* Below this many bytes written, waking others costs more than their help is worth. */
enum { SPLIT_BYTES = 64 * 1024 };

/* How often a wait looks whether it is interrupted. */
static const double LOOK_SECONDS = 0.05;

typedef struct thread_domain {
    pl_group_domain base;
    pthread_mutex_t lock;
    double timeout_seconds;
} thread_domain;

typedef struct thread_group {
    pl_group_shared base;
    pthread_cond_t changed;
} thread_group;

static thread_domain *domain_of(const pl_group_handle *handle)
{
    return (thread_domain *)handle->shared->domain;
}

static pl_status open_group(pl_group_shared *group)
{
    pthread_condattr_t attributes;
    int error = pthread_condattr_init(&attributes);
    if (error == 0) {
        error = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        if (error == 0) error = pthread_cond_init(&((thread_group *)group)->changed, &attributes);
        pthread_condattr_destroy(&attributes);
    }
    if (error != 0) return PL_FAIL(PL_NO_MEMORY, "no condition variable: error %d", error);
    return PL_OK;
}

static void wake(pl_group_shared *group)
{
    pthread_cond_broadcast(&((thread_group *)group)->changed);
}

static void close_group(pl_group_shared *group)
{
    pthread_cond_destroy(&((thread_group *)group)->changed);
}

/* The point in time SECONDS from now. */
static struct timespec deadline_after(double seconds)
{
    enum { BILLION = 1000000000 };
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += (time_t)seconds;
    deadline.tv_nsec += (long)((seconds - (double)(time_t)seconds) * BILLION);
    if (deadline.tv_nsec >= BILLION) {
        deadline.tv_nsec -= BILLION;
        ++deadline.tv_sec;
    }
    return deadline;
}

/* With the lock held: do PART without it. */
static void do_part(thread_domain *domain, pl_group_shared *group, const pl_call_part *part)
{
    pthread_mutex_unlock(&domain->lock);
    pl_call_move(part, pl_reduce_elements);
    pthread_mutex_lock(&domain->lock);
    pl_group_part_done(group);
}

static void do_small_calls(thread_domain *domain, pl_group_shared *group)
{
    pl_call_part part;
    while (pl_group_head_ready(group) && pl_group_head_small(group) &&
           pl_group_take_part(group, &part))
        do_part(domain, group, &part);
}

static pl_status threads_start(pl_process_group *group, const pl_call *call,
                               pl_request *request_out)
{
    pl_group_handle *handle = (pl_group_handle *)group;
    thread_domain *domain = domain_of(handle);
    pthread_mutex_lock(&domain->lock);
    pl_status status = pl_group_post(handle, call, request_out);
    if (status == PL_OK && pl_group_head_ready(handle->shared)) {
        if (pl_group_head_small(handle->shared))
            do_small_calls(domain, handle->shared);
        else
            wake(handle->shared);
    }
    pthread_mutex_unlock(&domain->lock);
    if (status == PL_OK) pl_call_note(group, call);
    return status;
}

/* With the lock held: until nobody reads or writes buffers of the group's members. */
static void wait_until_idle(thread_domain *domain, pl_group_shared *group)
{
    while (group->working > 0) pthread_cond_wait(&((thread_group *)group)->changed, &domain->lock);
}

static bool is_before(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec < b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec < b->tv_nsec);
}

static bool is_over(const struct timespec *deadline)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return !is_before(&now, deadline);
}

/* When a wait is to end. */
typedef struct wait_limits {
    struct timespec deadline, grace_end;
    bool interrupted; /* found so: grace_end is set */
} wait_limits;

/* With the lock held: sleep until something changes, and give REQUEST up when its time is over. A
 * wait that looks at a flag wakes now and then, since a signal handler wakes nobody. */
static void sleep_or_give_up(thread_domain *domain, pl_group_handle *handle, pl_request request,
                             wait_limits *limits)
{
    const struct timespec look = deadline_after(LOOK_SECONDS);
    struct timespec until = limits->deadline;
    if (handle->base.interrupted && is_before(&look, &until)) until = look;
    pthread_cond_timedwait(&((thread_group *)handle->shared)->changed, &domain->lock, &until);
    if (pl_group_is_done(handle->shared, request) || pl_group_head_ready(handle->shared)) return;
    if (!limits->interrupted && pl_group_interrupted(handle)) {
        limits->interrupted = true;
        limits->grace_end = deadline_after(handle->base.grace_seconds);
    }
    if (is_over(&limits->deadline))
        pl_group_time_out(handle, request, domain->timeout_seconds);
    else if (limits->interrupted && is_over(&limits->grace_end))
        pl_group_interrupt(handle, request);
}

/* With the lock held: help until REQUEST is done or the domain has failed. */
static void wait_for(thread_domain *domain, pl_group_handle *handle, pl_request request)
{
    pl_group_shared *group = handle->shared;
    wait_limits limits = {.deadline = deadline_after(domain->timeout_seconds)};
    while (!pl_group_is_done(group, request) && domain->base.failure == PL_OK) {
        pl_call_part part;
        if (pl_group_take_part(group, &part))
            do_part(domain, group, &part);
        else if (pl_group_head_ready(group)) /* others are doing the last parts */
            pthread_cond_wait(&((thread_group *)group)->changed, &domain->lock);
        else
            sleep_or_give_up(domain, handle, request, &limits);
    }
}

static pl_status threads_wait(pl_process_group *group, pl_request request)
{
    pl_group_handle *handle = (pl_group_handle *)group;
    thread_domain *domain = domain_of(handle);
    pthread_mutex_lock(&domain->lock);
    pl_status status = pl_group_check_request(handle, request);
    if (status == PL_OK) {
        wait_for(domain, handle, request);
        if (!pl_group_is_done(handle->shared, request)) wait_until_idle(domain, handle->shared);
        status = pl_group_finish(handle, request);
    }
    pthread_mutex_unlock(&domain->lock);
    return status;
}

static pl_status threads_split(pl_process_group *world, pl_group_role role,
                               const pl_rank_set *members, pl_process_group **out)
{
    thread_domain *domain = domain_of((pl_group_handle *)world);
    pthread_mutex_lock(&domain->lock);
    pl_status status = pl_group_split(world, role, members, out);
    pthread_mutex_unlock(&domain->lock);
    return status;
}

static void threads_fail(pl_process_group *group, pl_status status, const char *words)
{
    pl_group_handle *handle = (pl_group_handle *)group;
    thread_domain *domain = domain_of(handle);
    pthread_mutex_lock(&domain->lock);
    pl_group_fail_rank(handle, status, words);
    pthread_mutex_unlock(&domain->lock);
}

static void free_domain(thread_domain *domain)
{
    pl_group_domain_close(&domain->base);
    pthread_mutex_destroy(&domain->lock);
    pl_free(domain);
}

static void threads_close(pl_process_group *group)
{
    pl_group_handle *handle = (pl_group_handle *)group;
    thread_domain *domain = domain_of(handle);
    pthread_mutex_lock(&domain->lock);
    pl_group_leave(handle);
    if (domain->base.failure != PL_OK) wait_until_idle(domain, handle->shared);
    bool last = pl_group_drop(handle);
    pthread_mutex_unlock(&domain->lock);
    if (last) free_domain(domain);
}

static const pl_process_group_backend backend = {.name = "threads",
                                                 .start = threads_start,
                                                 .wait = threads_wait,
                                                 .split = threads_split,
                                                 .fail = threads_fail,
                                                 .close = threads_close};

static const pl_group_hooks hooks = {
    .group_bytes = sizeof(thread_group), .open = open_group, .changed = wake, .close = close_group};

pl_status pl_group_threads_open(pl_process_group **out, int64_t ranks, double timeout_seconds)
{
    thread_domain *domain = NULL;
    if (!(timeout_seconds > 0 && timeout_seconds <= 1e9))
        return PL_FAIL(
            PL_BAD_INPUT,
            "a time limit of %g s for process groups; it must be above 0 and at most 1e9",
            timeout_seconds);
    PL_TRY(pl_allocate(&domain, 1, sizeof *domain, "process groups of threads"));
    domain->timeout_seconds = timeout_seconds;
    domain->base.split_bytes = SPLIT_BYTES;
    int error = pthread_mutex_init(&domain->lock, NULL);
    if (error != 0) {
        pl_free(domain);
        return PL_FAIL(PL_NO_MEMORY, "no mutex for process groups: error %d", error);
    }
    pl_status status = pl_group_domain_open(&domain->base, &backend, &hooks, ranks, out);
    if (status == PL_OK) return PL_OK;
    pthread_mutex_destroy(&domain->lock);
    pl_free(domain);
    return status;
}
