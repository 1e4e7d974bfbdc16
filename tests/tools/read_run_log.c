/* Reads a run.jsonl by Jansson alone: every line is a whole JSON object, the first one of kind
 * "run", steps count from 1, or go on behind a checkpoint's, without a gap or a repeat, further
 * lines of kind "run" go on from the step before them, an end comes once and after all. Says what
 * is there in one line, or what is wrong with status 1. "--settled FILE" prints the lines without
 * what differs from run to run: times, and the first line. */
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct log_state {
    long lines, runs, steps, evaluations, notes, samples, ends;
    long last; /* number of the last step */
    char reason[32];
} log_state;

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static bool has_number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) || json_is_null(value);
}

static const char *take_step(log_state *state, const json_t *object)
{
    static const char *const numbers[] = {"loss", "balance_loss", "norm",   "clip",
                                          "lr",   "seconds",      "tokens", "tokens_per_second"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i)
        if (!has_number(object, numbers[i])) return "a step lacks a number";
    if (!json_is_boolean(json_object_get(object, "updated"))) return "a step lacks 'updated'";
    if (state->ends > 0) return "a step behind the end";
    ++state->steps;
    if (json_integer_value(json_object_get(object, "step")) != ++state->last)
        return "steps are not in order, each once";
    return NULL;
}

static const char *take_end(log_state *state, const json_t *object)
{
    if (++state->ends > 1) return "a second end";
    if (json_integer_value(json_object_get(object, "step")) != state->last)
        return "the end names another step than the last one";
    snprintf(state->reason, sizeof state->reason, "%s", text_of(object, "reason"));
    return NULL;
}

static const char *take_run(log_state *state, const json_t *object)
{
    const json_t *resumed = json_object_get(object, "resumed");
    if (++state->runs == 1) {
        state->last = (long)json_integer_value(resumed); /* 0 of null */
        return NULL;
    }
    if (!json_is_integer(resumed)) return "a second run that did not go on from anything";
    return json_integer_value(resumed) == state->last ? NULL : "a run goes on behind another step";
}

/* What is wrong with the next line, or NULL. */
static const char *take(log_state *state, const json_t *object)
{
    const char *kind = text_of(object, "kind");
    ++state->lines;
    if (strcmp(kind, "run") == 0) return take_run(state, object);
    if (state->lines == 1) return "the first line is not of kind run";
    if (strcmp(kind, "step") == 0) return take_step(state, object);
    if (strcmp(kind, "end") == 0) return take_end(state, object);
    if (strcmp(kind, "evaluation") == 0)
        ++state->evaluations;
    else if (strcmp(kind, "note") == 0)
        ++state->notes;
    else if (strcmp(kind, "sample") == 0)
        ++state->samples;
    else
        return "a kind that is not known";
    return NULL;
}

static void print_settled(json_t *object)
{
    static const char *const varying[] = {"seconds", "tokens_per_second", "weights"};
    if (strcmp(text_of(object, "kind"), "run") == 0) return;
    for (size_t i = 0; i < sizeof varying / sizeof *varying; ++i)
        json_object_del(object, varying[i]);
    json_dumpf(object, stdout, JSON_SORT_KEYS | JSON_COMPACT);
    putchar('\n');
}

static int read_log(FILE *file, const char *name, bool settled)
{
    enum { LINE = 1 << 20 };
    static char line[LINE];
    log_state state = {0};
    while (fgets(line, LINE, file)) {
        json_error_t error;
        size_t length = strlen(line);
        const char *wrong = length > 0 && line[length - 1] == '\n' ? NULL : "a line is not whole";
        json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, &error);
        if (!wrong) wrong = json_is_object(object) ? take(&state, object) : "not a JSON object";
        if (!wrong && settled) print_settled(object);
        json_decref(object);
        if (!wrong) continue;
        fprintf(stderr, "%s: line %ld: %s: %.200s\n", name, state.lines, wrong, line);
        return 1;
    }
    if (!settled)
        printf("%ld steps, %ld evaluations, %ld notes, %ld samples, end: %s, runs: %ld\n",
               state.steps, state.evaluations, state.notes, state.samples,
               *state.reason ? state.reason : "none", state.runs);
    return 0;
}

int main(int count, char **arguments)
{
    bool settled = count == 3 && strcmp(arguments[1], "--settled") == 0;
    const char *name = count > 1 ? arguments[count - 1] : "";
    FILE *file = count == 2 || settled ? fopen(name, "r") : NULL;
    if (!file) {
        fprintf(stderr, "read_run_log [--settled] FILE: cannot read '%s'\n", name);
        return 2;
    }
    int status = read_log(file, name, settled);
    fclose(file);
    return status;
}
