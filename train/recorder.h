/* What rank 0 keeps of a run: the log, the event file, the lines a person sees, the curve.
 */
#ifndef PL_TRAIN_RECORDER_H
#define PL_TRAIN_RECORDER_H

#include "train/append_file.h"
#include "train/console.h"
#include "train/event_file.h"
#include "train/plot.h"
#include "train/run_log.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_curve {
    pl_plot_point *points; /* owned */
    size_t count, capacity;
} pl_curve;

/* Make one with pl_recorder_open; one thread at a time uses it. */
typedef struct pl_recorder {
    pl_console *console; /* borrowed */
    pl_append_file log;
    pl_event_file events;
    pl_text line, words; /* scratch */
    pl_curve train, validation;
    int64_t steps;             /* of the whole run */
    int64_t resumed;           /* steps that were done before */
    double began, said, drawn; /* by pl_now: the start, the last line, the last bar */
    double step_seconds;       /* of all steps so far */
    double tokens;             /* read in them */
} pl_recorder;

typedef struct pl_recorder_tag {
    const char *name, *meaning;
} pl_recorder_tag;

/* The tags of the event file, by what they are in the log. Static. */
const pl_recorder_tag *pl_recorder_tags(int *count);

/* Seconds of a clock that only goes forward; and seconds since 1970. */
double pl_now(void);
double pl_wall_time(void);

/* Make log and event file in FOLDER, which is there, and write the log's first line from FACTS;
 * STEPS is the last step to come. Where the run goes on (facts->from), what there is of the log
 * stays up to that step. Errors: PL_IO_FAILED, PL_NO_MEMORY. */
pl_status pl_recorder_open(pl_recorder *out, pl_console *console, const char *folder,
                           const pl_run_facts *facts, int64_t steps);

/* Keep and show one step, one evaluation, a remark. TOKENS_READ of the step, valid or not, is what
 * rates are made of. Errors: PL_IO_FAILED, PL_NO_MEMORY. */
pl_status pl_recorder_step(pl_recorder *recorder, const pl_step_record *record,
                           int64_t tokens_read);
pl_status pl_recorder_evaluation(pl_recorder *recorder, const pl_evaluation_record *record);
pl_status pl_recorder_note(pl_recorder *recorder, int64_t step, const char *words);

/* The last line of the log, from RECORD with losses, times and rates filled in. */
pl_status pl_recorder_end(pl_recorder *recorder, const pl_end_record *record);

/* A sample, to the log and to whoever reads JSON. */
pl_status pl_recorder_sample(pl_recorder *recorder, const char *sample);

/* Show the curve and the final losses (the training loss also as a part of ENTROPY, that of tokens
 * by frequency alone), times and rates. */
pl_status pl_recorder_summary(pl_recorder *recorder, const char *folder, double entropy);

/* Losses of the last step and evaluation; NaN when there is none. */
double pl_recorder_loss(const pl_recorder *recorder);
double pl_recorder_validation_loss(const pl_recorder *recorder);

/* All zeroes are allowed. Errors: PL_IO_FAILED. */
pl_status pl_recorder_close(pl_recorder *recorder);

#ifdef __cplusplus
}
#endif
#endif
