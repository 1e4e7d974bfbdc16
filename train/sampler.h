/* Choosing the next token from logits, and showing bytes as text. */
#ifndef PL_TRAIN_SAMPLER_H
#define PL_TRAIN_SAMPLER_H

#include <stdint.h>

#include "common/status.h"
#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_sampler {
    double temperature; /* 0: the most likely token, always */
    int64_t top_k;      /* choose among so many most likely ones; 0: among all */
    uint64_t seed;
    int64_t drawn; /* tokens so far: the number of the next draw */
} pl_sampler;

/* Choose one of COUNT tokens (at least 1): softmax of LOGITS / temperature over the top_k largest
 * (the lower number first among equals), in double, then the token at which the sum, in the order
 * of numbers, passes u times the whole; u in [0, 1) is made of the Philox4x32-10 block of counter
 * (drawn, 0) under key (seed): its first word's 32 bits and the second's upper 21. The choice
 * depends on nothing else. Logits that are not numbers count as the smallest. Errors:
 * PL_NO_MEMORY. */
pl_status pl_sampler_choose(pl_sampler *sampler, const float *logits, int64_t count,
                            int64_t *token);

/* Add LENGTH bytes so that a terminal can show them: line feeds, tabs and printable UTF-8 as they
 * are, every other byte as \xNN. */
void pl_text_add_shown(pl_text *text, const char *bytes, size_t length);

#ifdef __cplusplus
}
#endif
#endif
