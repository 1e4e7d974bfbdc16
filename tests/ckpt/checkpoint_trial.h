/* Checkpoints of made-up values, for suites: each byte follows from kind, tensor and place in the
 * whole tensor, so that any rows can be checked by themselves.
 */
#ifndef PL_TESTS_CKPT_CHECKPOINT_TRIAL_H
#define PL_TESTS_CKPT_CHECKPOINT_TRIAL_H

#include "ckpt/store_folder.h"
#include "ckpt/store_reader.h"
#include "tests/scratch.h"

/* Make the values of a box. */
typedef void (*trial_fill)(unsigned char *values, const pl_checkpoint_box *box);

typedef struct checkpoint_trial {
    pl_model model; /* patterns applied */
    pl_precision precision;
    pl_optimizer optimizer;
    const char *keep_fp32, *frozen; /* one pattern each; NULL: none */
    trial_fill fill;                /* makes the values; NULL: those of trial_byte */
} checkpoint_trial;

/* A tiny MoE model with BF16 or fp32 parameters. */
void trial_open(checkpoint_trial *t, const char *config, pl_dtype gather, pl_optimizer optimizer,
                const char *keep_fp32, const char *frozen);
void trial_close(checkpoint_trial *t);

/* The byte at PLACE (bytes from the beginning of the whole tensor) of a kind of a tensor. */
unsigned char trial_byte(pl_value_kind kind, int64_t tensor, int64_t place);

/* Write ROOT/step-STEP as the ranks of NOTATION would. */
pl_status trial_write(const checkpoint_trial *t, const char *root, int64_t step,
                      const char *notation);

/* Every rank of NOTATION reads its boxes of everything: all bytes are right. */
void trial_check(const char *folder, const char *notation);

#endif
