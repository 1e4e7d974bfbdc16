/* Run files: everything a person decides about a run, as YAML (design §10).
 *
 *     model: testdata/models/tiny-moe.json
 *     layout: legacy:world=8,ep=4
 *     data: {train: [corpus], sequence: 128}
 *     batch: {global: 64}
 *     steps: 200
 *
 * The keys, their types, defaults and ranges are the table of common/schema.c; pl_run_describe_keys
 * prints it. Paths are relative to the working directory. Every message about a value begins with
 * the place where it was given: "run.yaml:7:11: policy.reshard: ..." or "--set: policy.reshard:
 * ...".
 */
#ifndef PL_COMMON_RUN_FILE_H
#define PL_COMMON_RUN_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/layout.h"
#include "common/model.h"
#include "common/settings.h"
#include "common/status.h"
#include "common/text.h"
#include "common/yaml.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pl_backend_choice {
    PL_BACKEND_CPU,
    PL_BACKEND_CUDA,
    PL_BACKEND_AUTO,
    PL_BACKEND_COUNT
} pl_backend_choice;

/* Plain text, each byte a token. */
typedef enum pl_tokenizer { PL_TOKENIZER_BYTES, PL_TOKENIZER_COUNT } pl_tokenizer;

typedef enum pl_schedule {
    PL_SCHEDULE_WSD,      /* warm-up, stable, decay */
    PL_SCHEDULE_COSINE,   /* warm-up, then one half cosine */
    PL_SCHEDULE_CONSTANT, /* warm-up, then constant */
    PL_SCHEDULE_COUNT
} pl_schedule;

/* Whether steps wait while a checkpoint is written. */
typedef enum pl_checkpoint_write {
    PL_CHECKPOINT_WAIT,
    PL_CHECKPOINT_BEHIND, /* values are copied, and written beside the next steps */
    PL_CHECKPOINT_WRITE_COUNT
} pl_checkpoint_write;

typedef struct pl_word_list {
    char **words; /* owned */
    size_t count, capacity;
} pl_word_list;

enum { PL_RUN_KEYS = 56 }; /* room for the keys of the schema */

typedef struct pl_run {
    char *model, *layout; /* owned; NULL when not given */
    pl_backend_choice backend;
    int64_t workers; /* threads that compute, of one process; 0: one a processor */
    struct {
        pl_word_list train, validate; /* files and folders */
        pl_tokenizer tokenizer;
        int64_t sequence;
    } data;
    struct {
        int64_t global; /* 0: not given, one round */
        int64_t micro, intra_layer;
    } batch;
    pl_policy policy;
    pl_precision precision;
    struct {
        pl_balance kind;
        double coefficient; /* -1: not given, the model's router_aux_loss_coef */
    } balance;
    struct {
        pl_optimizer kind;
        double lr, weight_decay, beta1, beta2, epsilon;
        double clip; /* 0 switches clipping off */
        struct {
            pl_schedule kind;
            double warmup, decay; /* parts of all steps */
            double start, final;  /* parts of lr */
        } schedule;
    } optimizer;
    int64_t steps; /* 0: not given */
    int64_t seed;
    struct {
        int64_t every;   /* steps; 0: only at the end */
        int64_t windows; /* read each time */
    } evaluate;
    struct {
        int64_t every;      /* steps; 0: not given, no checkpoints */
        int64_t keep;       /* latest; 0: all */
        int64_t keep_every; /* steps; 0: none for good */
        pl_checkpoint_write write;
    } checkpoint;
    char *init_from;                /* a folder with weights; owned; NULL when not given */
    char *output;                   /* a folder; owned; NULL when not given */
    pl_word_list keep_fp32, frozen; /* patterns of tensor names */
    double timeout;                 /* seconds */

    char *source;                /* the file's name; owned; NULL without a file */
    pl_place given[PL_RUN_KEYS]; /* by index of the schema's key; source NULL: not given */
} pl_run;

/* What pleat-sim starts from without a file: the defaults of the schema with backend auto, so
 * bf16, bf16, fp32, fp32; no model, no layout; one round. Owns nothing until something is set. */
void pl_run_default(pl_run *out);

/* Read the run file FILE, or TEXT with SOURCE standing for the file in messages. Keys that are
 * left out have their defaults: backend cpu, and precision fp32 throughout when the backend is
 * cpu, else bf16, bf16, fp32, fp32. Whether model and layout are there is asked by pl_run_open, so
 * that options can still give them. The caller frees with pl_run_free. Errors: PL_BAD_INPUT with
 * file, line, column, key, what was given and what is allowed; PL_IO_FAILED; PL_NO_MEMORY. */
pl_status pl_run_read(pl_run *out, const char *file);
pl_status pl_run_parse(pl_run *out, const char *text, const char *source);

/* Set one key: ASSIGNMENT is "policy.reshard=never", the words of messages begin with "--set". A
 * value that begins with '[' is a YAML list; any other is taken as it stands, as a list of one
 * where a list is meant. Later settings win. Same checks as for files; RUN is unchanged on
 * failure. */
pl_status pl_run_set(pl_run *run, const char *assignment);

/* The same from KEY and VALUE. OPTION ("--layout") begins messages and must outlive RUN. */
pl_status pl_run_set_key(pl_run *run, const char *key, const char *value, const char *option);

void pl_run_free(pl_run *run);

/* Whether all is there that training needs besides what pl_run_open asks for: data.train,
 * batch.global and steps. Errors: PL_BAD_INPUT naming what is missing. */
pl_status pl_run_require_training(const pl_run *run);

/* Open the model, apply keep_fp32 and frozen to it, parse the layout and check that it can hold
 * the model. The caller frees MODEL with pl_model_free. Errors: PL_BAD_INPUT when model or layout
 * is missing or keys contradict each other; those of pl_model_open, pl_model_apply_patterns,
 * pl_layout_parse and pl_placement_check, with the place of the key in front. */
pl_status pl_run_open(const pl_run *run, pl_model *model, pl_layout *layout);

/* What the plan needs. rounds = batch.global / (micro * intra_layer * data ranks), 1 without a
 * batch.global; the balance coefficient is the model's where none was given, and there is no
 * balance loss in a dense model. Errors: PL_BAD_INPUT when the division is not exact (the nearest
 * global batches that fit are named), when 2 cp does not divide the sequence (cp > 1), or when a
 * balance loss is asked of a dense model. */
pl_status pl_run_settings(pl_settings *out, const pl_run *run, const pl_model *model,
                          const pl_layout *layout);

/* Add the run as a YAML file with every value written out, which pl_run_parse reads back to an
 * equal run; what has no value (no global batch, the model's own coefficient) is left out.
 * Errors: PL_NO_MEMORY. */
pl_status pl_run_write(pl_text *text, const pl_run *run);

/* Runs are equal when all values are, wherever they were given. */
bool pl_run_equal(const pl_run *a, const pl_run *b);

/* Add the table of all keys, for --help or as Markdown. */
void pl_run_describe_keys(pl_text *text, bool markdown);

/* Put the place of KEY (a name of the schema) and its name in front of the calling thread's
 * latest failure, and return STATUS: for those who find out later that a value was wrong. */
pl_status pl_run_blame(const pl_run *run, const char *key, pl_status status);

/* Whether KEY (a name of the schema) was given, in the file or by an option. */
bool pl_run_is_given(const pl_run *run, const char *key);

const char *const *pl_backend_names(int *count);
const char *const *pl_tokenizer_names(int *count);
const char *const *pl_schedule_names(int *count);
const char *const *pl_checkpoint_write_names(int *count);

#ifdef __cplusplus
}
#endif
#endif
