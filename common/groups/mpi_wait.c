/* Waiting for a call: until it is done, its time is over, or there is nobody left to wait for. */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

#include "common/groups/mpi_domain.h"
#include "common/groups_mpi.h"

/* How often a wait looks after the processes of the members, and how long it goes on taking in
 * what a process that is gone has sent before. */
static const double LOOK_SECONDS = 0.2, LAST_WORDS_SECONDS = 0.1;

double pl_mpi_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void pl_mpi_rest(int *rests)
{
    enum { YIELDS = 200, SHORTEST = 20000, LONGEST = 1000000 }; /* ns */
    const int doublings = *rests - YIELDS;
    if (doublings < 0) {
        sched_yield();
    } else {
        const long pause = doublings >= 6 ? LONGEST : (long)SHORTEST << doublings;
        nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
    }
    if (*rests < 2 * YIELDS) ++*rests;
}

/* The state of a wait. */
typedef struct waiting {
    pl_mpi_group *group;
    pl_group_handle *handle;
    pl_request request;
    int64_t events;    /* of the group, as last seen */
    double moved;      /* when that changed, or the wait began */
    double looked;     /* when processes were last looked after */
    double flagged;    /* when the wait found itself interrupted; 0: not yet */
    double found_gone; /* when a process was found gone; 0: not yet */
} waiting;

/* Whether member INDEX keeps the group's next call from being done. */
static bool is_awaited(const waiting *wait, int64_t index)
{
    const pl_mpi_group *group = wait->group;
    if (index == group->own) return false;
    if (group->active) return pl_mpi_expects(group, index);
    return group->base.member[index].posted <= group->base.head;
}

/* The members of which data is still to come or to go, in words; none before all have come. */
static void print_expected(const waiting *wait, char *words, size_t bytes)
{
    pl_text text = {0};
    int64_t count = 0;
    for (int64_t i = 0; wait->group->active && i < wait->group->base.size; ++i)
        if (is_awaited(wait, i))
            pl_text_add(&text, "%s%d", count++ ? ", " : "; all have started it, but the data of ",
                        pl_mpi_rank_of(wait->group, i));
    if (count > 0) pl_text_add_string(&text, " is still on its way");
    snprintf(words, bytes, "%s", pl_text_string(&text));
    pl_text_free(&text);
}

static void give_up(const waiting *wait, pl_status status, const char *did, int gone)
{
    char more[1024];
    print_expected(wait, more, sizeof more - 64);
    if (gone >= 0) {
        size_t used = 0;
        while (more[used]) ++used;
        snprintf(more + used, sizeof more - used, "; the process of rank %d is gone", gone);
    }
    pl_group_give_up(wait->handle, wait->request, status, did, more);
}

/* How long an interrupted wait may go on: less where members may be dead without being seen so. */
static double grace_of(const waiting *wait)
{
    const double grace = wait->handle->base.grace_seconds;
    for (int64_t i = 0; i < wait->group->base.size; ++i)
        if (is_awaited(wait, i) &&
            pl_mpi_process_life(pl_mpi_domain_of(wait->group), pl_mpi_rank_of(wait->group, i)) ==
                PL_MPI_UNKNOWN)
            return grace < PL_GROUP_MPI_GRACE_SECONDS ? grace : PL_GROUP_MPI_GRACE_SECONDS;
    return grace;
}

/* The first awaited rank whose process is gone, or -1. */
static int find_gone(const waiting *wait)
{
    for (int64_t i = 0; i < wait->group->base.size; ++i) {
        int rank = pl_mpi_rank_of(wait->group, i);
        if (is_awaited(wait, i) &&
            pl_mpi_process_life(pl_mpi_domain_of(wait->group), rank) == PL_MPI_GONE)
            return rank;
    }
    return -1;
}

static void look_for_gone(waiting *wait, double now)
{
    const int gone = find_gone(wait);
    wait->looked = now;
    if (gone < 0)
        wait->found_gone = 0;
    else if (wait->found_gone == 0)
        wait->found_gone = now;
    else if (now - wait->found_gone >= LAST_WORDS_SECONDS)
        give_up(wait, PL_PEER_FAILED, "waited for", gone);
}

/* Nothing happened: whether to go on. */
static void judge(waiting *wait)
{
    const pl_mpi_domain *domain = pl_mpi_domain_of(wait->group);
    const double now = pl_mpi_now();
    if (now - wait->moved >= domain->timeout_seconds) {
        char did[64];
        snprintf(did, sizeof did, "waited %.1f s for", domain->timeout_seconds);
        give_up(wait, PL_TIMED_OUT, did, -1);
        return;
    }
    if (now - wait->looked >= (wait->found_gone > 0 ? LAST_WORDS_SECONDS : LOOK_SECONDS))
        look_for_gone(wait, now);
    if (!pl_group_interrupted(wait->handle)) return;
    if (wait->flagged == 0) wait->flagged = now;
    const double since = wait->flagged > wait->moved ? wait->flagged : wait->moved;
    if (now - since >= grace_of(wait))
        give_up(wait, PL_TIMED_OUT, "was interrupted while waiting for", -1);
}

void pl_mpi_wait_for(pl_group_handle *handle, pl_request request)
{
    int rests = 0;
    pl_mpi_group *group = (pl_mpi_group *)handle->shared;
    pl_mpi_domain *domain = pl_mpi_domain_of(group);
    waiting wait = {.group = group, .handle = handle, .request = request, .events = group->events};
    wait.moved = wait.looked = pl_mpi_now();
    for (;;) {
        const bool moved = pl_mpi_progress(domain);
        if (pl_group_is_done(handle->shared, request) || domain->base.failure != PL_OK) return;
        if (group->events != wait.events) {
            wait.events = group->events;
            wait.moved = pl_mpi_now();
        }
        if (moved) {
            rests = 0;
            continue;
        }
        judge(&wait);
        pl_mpi_rest(&rests);
    }
}
