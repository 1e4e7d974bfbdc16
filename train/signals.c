#include "train/signals.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "common/memory.h"

struct pl_signals {
    pthread_t thread;
    sigset_t before;     /* what was blocked */
    atomic_int received; /* the first signal; 0: none yet */
    atomic_bool closing;
    volatile sig_atomic_t flag;
};

/* A second signal must end the process whatever its other threads are doing. */
static void leave(void)
{
    static const char words[] = "\npleat-train: a second signal: leaving at once\n";
    ssize_t ignored = write(STDERR_FILENO, words, sizeof words - 1);
    (void)ignored;
    _exit(3);
}

static void set_watched(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
}

static void *watch(void *context)
{
    pl_signals *signals = context;
    sigset_t set;
    set_watched(&set);
    for (;;) {
        int received = 0, none = 0;
        if (sigwait(&set, &received) != 0) continue;
        if (atomic_load(&signals->closing)) return NULL;
        if (!atomic_compare_exchange_strong(&signals->received, &none, received)) leave();
        __atomic_store_n(&signals->flag, 1, __ATOMIC_RELEASE);
    }
}

pl_status pl_signals_open(pl_signals **out)
{
    pl_signals *signals = NULL;
    sigset_t set;
    PL_TRY(pl_allocate(&signals, 1, sizeof *signals, "waiting for signals"));
    set_watched(&set);
    atomic_init(&signals->received, 0);
    atomic_init(&signals->closing, false);
    pthread_sigmask(SIG_BLOCK, &set, &signals->before);
    int error = pthread_create(&signals->thread, NULL, watch, signals);
    if (error == 0) {
        *out = signals;
        return PL_OK;
    }
    pthread_sigmask(SIG_SETMASK, &signals->before, NULL);
    pl_free(signals);
    return PL_FAIL(PL_IO_FAILED, "no thread to wait for signals: %s", strerror(error));
}

const char *pl_signals_received(const pl_signals *signals)
{
    switch (atomic_load(&signals->received)) {
    case 0: return NULL;
    case SIGINT: return "SIGINT";
    default: return "SIGTERM";
    }
}

const volatile sig_atomic_t *pl_signals_flag(const pl_signals *signals) { return &signals->flag; }

void pl_signals_close(pl_signals *signals)
{
    if (!signals) return;
    atomic_store(&signals->closing, true);
    pthread_kill(signals->thread, SIGTERM);
    pthread_join(signals->thread, NULL);
    pthread_sigmask(SIG_SETMASK, &signals->before, NULL);
    pl_free(signals);
}
