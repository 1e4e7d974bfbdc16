/* The log of a run, run.jsonl: one JSON object a line. "kind" says what a line is; the first is of
 * kind run. pl_run_log_fields lists all fields.
 *
 * Numbers that are not finite are null. The functions add a line with its line feed to a text.
 * Errors of all: PL_NO_MEMORY.
 */
#ifndef PL_TRAIN_RUN_LOG_H
#define PL_TRAIN_RUN_LOG_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/plan.h"
#include "common/run_file.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which program speaks. Strings are static. */
typedef struct pl_program_facts {
    const char *name, *version;
    const char *commit; /* "": not known */
    /* From this call on SIGINT and SIGTERM only set *signal to their number: the first of them. A
     * second one ends the process at once with status 3. */
    void (*watch_signals)(void);
    const volatile sig_atomic_t *signal;
    int argument_count; /* as main got them */
    char **arguments;
} pl_program_facts;

/* All borrowed. */
typedef struct pl_run_facts {
    const pl_program_facts *program;
    const pl_run *run;
    const pl_model *model;
    const pl_layout *layout;
    const pl_shape *shape;
    const char *backend; /* in words */
    const char *ranks;   /* "threads", "processes" */
    const char *order;   /* "plan", "random" */
    double entropy;      /* nats */
    int64_t started;     /* seconds since 1970 */
    int64_t resumed;     /* steps that were done before; -1: none, a fresh run */
    const char *from;    /* the checkpoint that it goes on from; NULL: a fresh run */
} pl_run_facts;

typedef struct pl_step_record {
    int64_t step, tokens;
    double loss, balance_loss, norm, clip, lr, seconds, tokens_per_second;
    bool updated;
} pl_step_record;

typedef struct pl_evaluation_record {
    int64_t step, tokens, windows;
    double loss, seconds;
} pl_evaluation_record;

typedef struct pl_end_record {
    const char *reason; /* "complete", "signal" */
    int64_t step, updates;
    double loss, validation_loss; /* the last ones; NaN: none */
    double seconds, tokens_per_second;
    const char *weights; /* the folder; NULL: none */
} pl_end_record;

typedef struct pl_log_field {
    const char *kind, *name, *meaning;
} pl_log_field;

/* The fields of lines, but for "kind", in the order in which they stand; those of a kind lie
 * together. Static. */
const pl_log_field *pl_run_log_fields(int *count);

/* For manifests of checkpoints, as JSON objects freed with pl_json_free: every key of the run file;
 * and which program made it, how and when. */
struct json_t;
pl_status pl_run_log_settings(struct json_t **out, const pl_run *run);
pl_status pl_run_log_provenance(struct json_t **out, const pl_run_facts *facts);

pl_status pl_run_log_begin(pl_text *text, const pl_run_facts *facts);
pl_status pl_run_log_step(pl_text *text, const pl_step_record *record);
pl_status pl_run_log_evaluation(pl_text *text, const pl_evaluation_record *record);
pl_status pl_run_log_note(pl_text *text, int64_t step, const char *words);
pl_status pl_run_log_sample(pl_text *text, const char *sample);
pl_status pl_run_log_end(pl_text *text, const pl_end_record *record);

#ifdef __cplusplus
}
#endif
#endif
