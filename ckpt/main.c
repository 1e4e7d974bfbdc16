/* pleat-ckpt: the commands by name, and what every one of them ends in. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/command.h"
#include "common/json.h"
#include "pleat_commit.h" /* made by cmake/commit.cmake */

#ifndef PLEAT_VERSION
#define PLEAT_VERSION "of an unknown version"
#endif

typedef struct command {
    const char *name;
    pl_status (*run)(pl_output *output, int count, char **arguments);
    const char *line;
} command;

static const command commands[] = {
    {"inspect", pl_command_inspect, "say what a checkpoint holds and how it came about"},
    {"verify", pl_command_verify, "read every byte of a checkpoint and list all damage"},
    {"reshard", pl_command_reshard, "write a checkpoint again in another layout"},
    {"diff", pl_command_diff, "compare two checkpoints, whatever their layouts"},
    {"prune", pl_command_prune, "remove old checkpoints of a run"},
    {"pin", pl_command_pin, "keep a checkpoint from being removed"},
    {"unpin", pl_command_unpin, "let it be removed again"},
    {"import", pl_command_import, "make a checkpoint of a Hugging Face folder"},
    {"export", pl_command_export, "write a checkpoint as a Hugging Face folder"},
    {"tables", pl_command_tables, "print what the pages under docs/ quote"},
};

enum { COMMANDS = sizeof commands / sizeof *commands };

static void add_help(pl_text *text)
{
    pl_text_add_string(text, "Usage: pleat-ckpt COMMAND [ARGUMENT...]\n\n"
                             "Looks at checkpoints of training runs, finds damage, compares, and\n"
                             "removes old ones.\n\nCommands:\n");
    for (int i = 0; i < COMMANDS; ++i)
        pl_text_add(text, "  %-8s  %s\n", commands[i].name, commands[i].line);
    pl_text_add_string(
        text,
        "\npleat-ckpt COMMAND --help says more; --version prints the version.\n\n"
        "Examples:\n"
        "  pleat-ckpt inspect runs/licenses\n"
        "  pleat-ckpt verify runs/licenses/checkpoints/step-200\n\n"
        "Exit status: 0 fine, 1 damage was found or checkpoints differ, 2 bad usage or input,\n"
        "3 the program could not do its work (memory, disk).\n");
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
        pl_error_context("see 'pleat-ckpt --help'");
    }
    pl_text_free(&text);
    return status;
}

static pl_status run(pl_output *output, int count, char **arguments)
{
    const char *name = count > 1 ? arguments[1] : NULL;
    if (!name) return PL_FAIL(PL_BAD_INPUT, "no command; see 'pleat-ckpt --help'");
    for (int i = 0; i < COMMANDS; ++i)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run(output, count - 1, arguments + 1);
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        add_help(&output->text);
    } else if (strcmp(name, "--version") == 0) {
        pl_text_add_string(&output->text, "pleat-ckpt " PLEAT_VERSION);
        if (*PLEAT_COMMIT) pl_text_add_string(&output->text, " (" PLEAT_COMMIT ")");
        pl_text_add_string(&output->text, "\n");
    } else {
        return refuse_command(name);
    }
    return PL_OK;
}

static pl_status write_all(const pl_text *text)
{
    for (size_t done = 0; done < text->length;) {
        ssize_t wrote = write(STDOUT_FILENO, text->bytes + done, text->length - done);
        if (wrote > 0) done += (size_t)wrote;
        if (wrote == 0 || (wrote < 0 && errno != EINTR))
            return PL_FAIL(PL_IO_FAILED, "standard output: %s",
                           strerror(wrote == 0 ? ENOSPC : errno));
    }
    /* Some file systems report a full disk only here. */
    if (text->length > 0 && close(STDOUT_FILENO) != 0)
        return PL_FAIL(PL_IO_FAILED, "standard output: %s", strerror(errno));
    return PL_OK;
}

static int complain(pl_status status)
{
    fprintf(stderr, "pleat-ckpt: %s\n", pl_error_text());
    return pl_status_exit_code(status);
}

int main(int count, char **arguments)
{
    const char *terminal = getenv("TERM");
    pl_output output = {.version = PLEAT_VERSION,
                        .commit = PLEAT_COMMIT,
                        .colours = isatty(STDOUT_FILENO) && !getenv("NO_COLOR") && terminal &&
                                   strcmp(terminal, "dumb") != 0};
    pl_json_check_memory();
    signal(SIGPIPE, SIG_IGN); /* a reader that left is a failed write, in words */
    pl_status status = run(&output, count, arguments);
    if (status == PL_OK || status == PL_CHECK_FAILED) {
        pl_status written = pl_text_status(&output.text);
        if (written == PL_OK) written = write_all(&output.text);
        if (written != PL_OK) status = written;
    }
    int code = pl_status_exit_code(status);
    if (status != PL_OK && status != PL_CHECK_FAILED) code = complain(status);
    pl_text_free(&output.text);
    return code;
}
