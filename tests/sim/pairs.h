/* Many small plans that differ in model, layout, policy, precision, shape and what trains. */
#ifndef PL_TESTS_SIM_PAIRS_H
#define PL_TESTS_SIM_PAIRS_H

#include <stdint.h>

#include "common/plan.h"

enum { PAIRS_NO_SPLIT = -1, PAIRS_MODELS = 5 };

/* One way to make a plan. */
typedef struct pair {
    int model; /* index in the list's models */
    pl_layout layout;
    pl_settings settings;
    uint32_t programs;              /* PL_PROGRAMS_... that the plan has */
    const char *keep_fp32, *frozen; /* a pattern each, or NULL; static */
} pair;

typedef struct pair_list {
    pl_model models[PAIRS_MODELS]; /* owned */
    int model_count;
    pair *pairs; /* owned */
    size_t count, capacity;
    uint64_t *headers; /* [count] hashes of the plans' headers, all different */
    size_t header_capacity;
    uint64_t *plans; /* [plan_count] hashes of their sections' text, all different */
    size_t plan_count, plan_capacity;
    size_t refused; /* choices that the builder refused: a layout that cannot hold the model */
} pair_list;

/* WANTED pairs whose headers differ, chosen by SEED. The caller frees with pairs_free. */
pl_status pairs_make(pair_list *out, uint64_t seed, size_t wanted);
void pairs_free(pair_list *list);

/* The plan of PAIR, with a section of its own for rank SPLIT unless that is PAIRS_NO_SPLIT; and
 * the text of such a plan, added to TEXT. */
pl_status pair_plan(pl_plan *out, const pair_list *list, const pair *chosen, int64_t split);
pl_status pair_text(pl_text *text, const pair_list *list, const pair *chosen, int64_t split);

/* A number below BELOW > 0; *STATE goes on. */
uint64_t pairs_random(uint64_t *state, uint64_t below);

#endif
