/* The table of rotary embedding: cosines and sines of every position. */
#ifndef PL_TRAIN_ROTARY_H
#define PL_TRAIN_ROTARY_H

#include "common/model.h"
#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fill TABLE[SEQUENCE][head_dim]: for each position the cosines of the head_dim/2 pairs, then
 * their sines. Pair i turns by position * f_i, f_i = rope_theta^(-2i/head_dim); under Llama 3.1's
 * scaling f_i is divided by `factor` where its wavelength exceeds original_max_position_embeddings
 * / low_freq_factor, kept where it is below original_max / high_freq_factor, and mixed linearly in
 * original_max / wavelength between (source: Hugging Face transformers, modeling_rope_utils,
 * default and llama3). Angles, cosines and sines in double, rounded to float once. */
void pl_rotary_table(float *table, const pl_model *model, int64_t sequence);

/* f_i of pair PAIR. */
double pl_rotary_frequency(const pl_model *model, int64_t pair);

#ifdef __cplusplus
}
#endif
#endif
