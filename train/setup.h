/* Everything that is looked at before a run begins: a run that is wrong is refused here, in words,
 * and nothing has been written.
 */
#ifndef PL_TRAIN_SETUP_H
#define PL_TRAIN_SETUP_H

#include "ckpt/weights_folder.h"
#include "common/plan.h"
#include "common/run_file.h"
#include "train/resume.h"
#include "train/run_folder.h"
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
    bool overwrite, resume;
    const char *from; /* a checkpoint to go on from in a folder of its own; NULL: none */
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
    pl_store_reader *start;   /* the same as a checkpoint; NULL: none */
    pl_store_reader *resumed; /* what the run goes on from; NULL: it is a fresh one */
    pl_plan plan;             /* start or load, step, evaluate with validation data, save with
                                 checkpoints, export */
    pl_text folder;           /* of the output */
    pl_run_folder_use use;
    pl_text remark;           /* lines: why `auto` is the CPU, what a resumed run has otherwise */
    bool has_model, has_plan; /* for freeing */
} pl_setup;

/* Read the run file and look at all it names: model, layout (pp = cp = 1), types, batch, data
 * sets, tokenizer, starting weights or checkpoint, output folder, plan. Not collective; ranks that
 * are processes each do it. Errors: PL_BAD_INPUT and PL_UNSUPPORTED with the place of the wrong
 * value; PL_IO_FAILED, PL_NO_MEMORY. */
pl_status pl_setup_open(pl_setup *out, const pl_setup_request *request);

/* All zeroes are allowed. */
void pl_setup_free(pl_setup *setup);

#ifdef __cplusplus
}
#endif
#endif
