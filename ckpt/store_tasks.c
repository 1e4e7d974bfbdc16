#define _DEFAULT_SOURCE /* _SC_NPROCESSORS_ONLN */
#include "ckpt/store_tasks.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/memory.h"
#include "common/text.h"

enum { LOOK_NANOSECONDS = 200000000, BILLION = 1000000000 };

typedef struct work {
    const pl_store_tasks *tasks;
    int64_t next, done; /* atomic: the next task; bytes moved */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int running;      /* threads, under the lock */
    pl_status status; /* the first failure, under the lock */
    pl_text words;    /* its words */
} work;

int pl_store_threads(void)
{
    enum { MOST = 8 };
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    if (processors < 1) return 1;
    return processors < MOST ? (int)processors : MOST;
}

static pl_status do_some(work *w, char *room)
{
    const pl_store_tasks *tasks = w->tasks;
    for (;;) {
        int64_t moved = 0, number = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED);
        if (number >= tasks->count) return PL_OK;
        pl_status status = tasks->run(tasks->context, number, room, &moved);
        __atomic_fetch_add(&w->done, moved, __ATOMIC_RELAXED);
        PL_TRY(status);
    }
}

static void *run_thread(void *context)
{
    work *w = context;
    char *room = NULL;
    pl_status status = pl_allocate(&room, (size_t)w->tasks->room, 1, "room to move values");
    if (status == PL_OK) status = do_some(w, room);
    pl_free(room);
    pthread_mutex_lock(&w->lock);
    if (status != PL_OK && w->status == PL_OK) {
        w->status = status;
        pl_text_add_string(&w->words, pl_error_text());
        __atomic_store_n(&w->next, w->tasks->count, __ATOMIC_RELAXED); /* no more for the others */
    }
    --w->running;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* Signals are for the program's own thread. */
static int start(work *w, pthread_t *threads, int *started)
{
    sigset_t all, before;
    sigfillset(&all);
    int error = pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; error == 0 && i < w->tasks->threads && i < w->tasks->count; ++i) {
        pthread_mutex_lock(&w->lock);
        ++w->running;
        pthread_mutex_unlock(&w->lock);
        error = pthread_create(&threads[i], NULL, run_thread, w);
        if (error == 0) {
            ++*started;
            continue;
        }
        pthread_mutex_lock(&w->lock);
        --w->running;
        pthread_mutex_unlock(&w->lock);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static void look(work *w)
{
    const pl_store_tasks *tasks = w->tasks;
    if (tasks->progress)
        tasks->progress(tasks->progress_context,
                        tasks->done + __atomic_load_n(&w->done, __ATOMIC_RELAXED), tasks->bytes);
}

static void wait_for_all(work *w)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    pthread_mutex_lock(&w->lock);
    while (w->running > 0) {
        until.tv_nsec += LOOK_NANOSECONDS;
        until.tv_sec += until.tv_nsec / BILLION;
        until.tv_nsec %= BILLION;
        while (w->running > 0 && pthread_cond_timedwait(&w->changed, &w->lock, &until) == 0) {
        }
        pthread_mutex_unlock(&w->lock);
        look(w);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
}

static pl_status run_all(work *w)
{
    pthread_t *threads = NULL;
    int started = 0;
    PL_TRY(pl_allocate(&threads, (size_t)w->tasks->threads, sizeof *threads, "threads"));
    int error = start(w, threads, &started);
    wait_for_all(w);
    for (int i = 0; i < started; ++i) pthread_join(threads[i], NULL);
    pl_free(threads);
    if (started == 0 && w->tasks->count > 0) /* fewer than asked for will do */
        return PL_FAIL(PL_IO_FAILED, "cannot start a thread: %s", strerror(error));
    if (w->status != PL_OK) pl_error_set(pl_text_string(&w->words));
    return w->status;
}

pl_status pl_store_do_tasks(const pl_store_tasks *tasks)
{
    work w = {.tasks = tasks, .status = PL_OK};
    if (pthread_mutex_init(&w.lock, NULL) != 0) return PL_FAIL(PL_NO_MEMORY, "no lock for threads");
    pl_status status = PL_OK;
    if (pthread_cond_init(&w.changed, NULL) == 0) {
        status = run_all(&w);
        pthread_cond_destroy(&w.changed);
    } else {
        status = PL_FAIL(PL_NO_MEMORY, "no condition for threads");
    }
    pthread_mutex_destroy(&w.lock);
    pl_text_free(&w.words);
    return status;
}
