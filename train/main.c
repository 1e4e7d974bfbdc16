/* pleat-train: the commands by name, and what every one of them ends in. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/json.h"
#include "kernels/cpu/blas.h"
#include "pleat_commit.h" /* made by cmake/commit.cmake */
#include "train/command.h"

#ifndef PLEAT_VERSION
#define PLEAT_VERSION "of an unknown version"
#endif

typedef struct command {
    const char *name;
    pl_status (*run)(const pl_program_facts *program, int count, char **arguments);
    const char *line;
} command;

static const command commands[] = {
    {"run", pl_command_run, "train what a run file describes"},
    {"sample", pl_command_sample, "write text with the weights of a run"},
    {"devices", pl_command_devices, "say what can compute here, and what cannot and why"},
    {"tables", pl_command_tables, "print what the pages under docs/ quote"},
};

/* --- signals --- */

/* A handler knows nothing but this; everybody else gets a pointer to it. */
static volatile sig_atomic_t received;

static int64_t milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A second signal must end the process whatever its threads are doing. What a launcher or a
 * terminal sends twice comes within a moment, and counts as one. */
static void note_signal(int number)
{
    enum { MOMENT = 500 };
    static const char words[] = "\npleat-train: a second signal: leaving at once\n";
    static volatile int64_t first;
    if (__atomic_load_n(&received, __ATOMIC_ACQUIRE) == 0) {
        __atomic_store_n(&first, milliseconds(), __ATOMIC_RELAXED);
        __atomic_store_n(&received, number, __ATOMIC_RELEASE);
        return;
    }
    if (milliseconds() - __atomic_load_n(&first, __ATOMIC_RELAXED) < MOMENT) return;
    ssize_t ignored = write(STDERR_FILENO, words, sizeof words - 1);
    (void)ignored;
    _exit(3);
}

/* What a shell let this process ignore stays ignored. */
static void watch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) {
        struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART}, before;
        sigemptyset(&action.sa_mask);
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
    }
}

/* --- commands --- */

enum { COMMANDS = sizeof commands / sizeof *commands };

static void add_help(pl_text *text)
{
    pl_text_add_string(text,
                       "Usage: pleat-train COMMAND [ARGUMENT...]\n\n"
                       "Trains Mixture-of-Experts models under any mesh layout: on one computer\n"
                       "with ranks as threads, or on several with MPI.\n\nCommands:\n");
    for (int i = 0; i < COMMANDS; ++i)
        pl_text_add(text, "  %-8s  %s\n", commands[i].name, commands[i].line);
    pl_text_add_string(
        text, "\npleat-train COMMAND --help says more; --version prints the version.\n\n"
              "Examples:\n"
              "  pleat-train run examples/licenses.yaml\n"
              "  pleat-train sample runs/licenses\n\n"
              "Exit status: 0 fine, or stopped by a signal and left well; 2 bad usage or input;\n"
              "3 the run failed (memory, disk, a rank that is gone).\n");
}

static pl_status refuse_command(const char *name)
{
    const char *names[COMMANDS];
    pl_text text = {0};
    for (int i = 0; i < COMMANDS; ++i) names[i] = commands[i].name;
    pl_text_add_string(&text, *name == '-' ? "unknown option " : "unknown command ");
    pl_text_add_quoted(&text, name);
    pl_text_add_choices(&text, name, names, COMMANDS);
    pl_status status = pl_text_status(&text);
    if (status == PL_OK) {
        status = PL_FAIL(PL_BAD_INPUT, "%s", pl_text_string(&text));
        pl_error_context("see 'pleat-train --help'");
    }
    pl_text_free(&text);
    return status;
}

static pl_status run(int count, char **arguments)
{
    const pl_program_facts program = {.name = "pleat-train",
                                      .version = PLEAT_VERSION,
                                      .commit = PLEAT_COMMIT,
                                      .watch_signals = watch_signals,
                                      .signal = &received,
                                      .argument_count = count,
                                      .arguments = arguments};
    const char *name = count > 1 ? arguments[1] : NULL;
    pl_text text = {0};
    if (!name) return PL_FAIL(PL_BAD_INPUT, "no command; see 'pleat-train --help'");
    for (int i = 0; i < COMMANDS; ++i)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run(&program, count - 1, arguments + 1);
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        add_help(&text);
        return pl_command_print(&text);
    }
    if (strcmp(name, "--version") == 0) {
        pl_text_add_string(&text, "pleat-train " PLEAT_VERSION);
        if (*PLEAT_COMMIT) pl_text_add_string(&text, " (" PLEAT_COMMIT ")");
        pl_text_add_string(&text, "\n");
        return pl_command_print(&text);
    }
    return refuse_command(name);
}

/* OpenBLAS chooses its kernels when it is loaded, and those of a processor from before AVX where it
 * does not know the one it is on: some times slower. Begin again with a better choice. */
static void choose_products(char **arguments)
{
    const char *core = pl_cpu_blas_better_core();
    if (!core || setenv("OPENBLAS_CORETYPE", core, 0) != 0) return;
    execv("/proc/self/exe", arguments); /* or go on with what there is */
}

int main(int count, char **arguments)
{
    choose_products(arguments);
    pl_json_check_memory();
    signal(SIGPIPE, SIG_IGN); /* a reader that left is a failed write, in words */
    signal(SIGXFSZ, SIG_IGN); /* so is a file that is too long */
    pl_status status = run(count, arguments);
    if (status != PL_OK && *pl_error_text()) fprintf(stderr, "pleat-train: %s\n", pl_error_text());
    return pl_status_exit_code(status);
}
