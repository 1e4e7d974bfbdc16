/* Trials of a few steps on the models of tests/common/plan_cases.h. */
#ifndef PL_TESTS_TRAIN_SMALL_TRIALS_H
#define PL_TESTS_TRAIN_SMALL_TRIALS_H

#include "tests/common/plan_cases.h"
#include "tests/test.h"
#include "tests/train/trial.h"

/* CONTEXT is the model. Valid labels are more or less frequent by sample. */
static inline void small_sample(const void *context, int64_t step, int64_t number, int64_t sequence,
                                int32_t *tokens, int32_t *labels)
{
    const pl_model *model = context;
    uint32_t draw = (uint32_t)(number * 7919 + step * 104729 + 17);
    for (int64_t t = 0; t < sequence; ++t) {
        draw = draw * 1664525U + 1013904223U;
        tokens[t] = (int32_t)((draw >> 8) % (uint32_t)model->vocab_size);
        labels[t] = (draw >> 5) % 8 < (uint32_t)number % 8
                        ? -1
                        : (tokens[t] * 5 + 1) % (int32_t)model->vocab_size;
    }
}

/* Two steps of two rounds of two micro-batches of 9 tokens a data rank. */
static inline trial small_trial(const pl_model *model, const char *layout)
{
    trial t = {.model = model, .layout = layout, .sample = small_sample, .context = model};
    t.settings = trial_settings(9, 1, 2, 2);
    t.settings.balance = PL_BALANCE_MICRO_STEP;
    t.settings.balance_coefficient = 0.1;
    t.steps = 2;
    t.seed = 4;
    t.workers = 2;
    t.timeout = 30;
    t.input = (pl_program_input){
        .learning_rate = 1e-2, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8};
    return t;
}

/* Run T, which must succeed with all ranks of one mind. */
static inline trial_result small_run(const trial *t)
{
    trial_result result = trial_run(t);
    if (result.status != PL_OK) fail_msg("%s: %s", t->layout, result.words);
    assert_int_equal(result.disagreements, 0);
    assert_int_equal(result.unseen, 0);
    return result;
}

#endif
