/* Everything that is looked at before a run begins: a run that is wrong is refused here, in words,
 * and nothing has been written.
 */
#ifndef PL_TRAIN_SETUP_H
#define PL_TRAIN_SETUP_H

#include "ckpt/weights_folder.h"
#include "common/plan.h"
#include "common/run_file.h"
#include "train/samples.h"
#include "train/schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the command line adds to a run file. Strings are borrowed. */
typedef struct pl_setup_request {
    const char *file;            /* the run file */
    const char *const *settings; /* of --set, in order */
    int setting_count;
    const char *output; /* NULL: not given */
    bool overwrite;
    const char *plan; /* plan text to run instead of the plan that is made; NULL: none */
} pl_setup_request;

/* Owned by the caller, freed with pl_setup_free. Ranks that are threads share one and only read. */
typedef struct pl_setup {
    pl_run run;
    pl_model model; /* patterns applied */
    pl_layout layout;
    pl_settings settings;
    pl_learning_rate rate;
    pl_samples *train;
    pl_samples *validate;     /* NULL: none */
    double entropy;           /* of the training labels by frequency alone, in nats */
    pl_weights *weights;      /* where the run starts from; NULL: initial values of its own */
    pl_plan plan;             /* start, step, evaluate with validation data, export */
    pl_text folder;           /* of the output */
    pl_text remark;           /* why `auto` is the CPU; "": nothing to say */
    bool has_model, has_plan; /* for freeing */
} pl_setup;

/* Read the run file and look at all it names: model, layout (pp = cp = 1), types, batch, data
 * sets, tokenizer, starting weights, output folder, plan. Not collective; ranks that are processes
 * each do it. Errors: PL_BAD_INPUT and PL_UNSUPPORTED with the place of the wrong value;
 * PL_IO_FAILED, PL_NO_MEMORY. */
pl_status pl_setup_open(pl_setup *out, const pl_setup_request *request);

/* All zeroes are allowed. */
void pl_setup_free(pl_setup *setup);

#ifdef __cplusplus
}
#endif
#endif
