/* Initial weights: the same bits on every machine, whatever the layout (design §7).
 *
 * Norms are 1, biases 0. Every other element is
 *
 *     initializer_range * sqrt(1.5) * (sum over i = 0..7 of (h_i + 1/2) / 2^16  -  4)
 *
 * where h_0..h_7 are the sixteen-bit halves of one Philox4x32-10 block. The sum of eight uniform
 * numbers less its mean 4 has variance 8/12, and sqrt(1.5) makes that initializer_range^2. The
 * values are bell-shaped and never beyond 4.9 initializer_range.
 *
 *   key      the two words, low first, of XXH3-64 of the tensor's Hugging Face name (stacked form
 *            for routed experts, without a final NUL) with the run's seed as the hash's seed
 *   counter  the two words, low first, of the element's index row * cols + col in the whole
 *            (stacked) tensor; the other two words are 0
 *
 * Arithmetic: the bracket is exact in double; initializer_range * sqrt(1.5), its product with the
 * bracket, and the conversion to float round once each, to nearest. No libm, no contraction.
 */
#ifndef PL_COMMON_INITIAL_VALUES_H
#define PL_COMMON_INITIAL_VALUES_H

#include "common/model.h"
#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fill OUT with rows [ROW_BEGIN, ROW_END) of the whole (stacked) TENSOR: (ROW_END - ROW_BEGIN) *
 * cols values, row-major. The same bits as cutting those rows from the whole. Not collective.
 * Errors: PL_NO_MEMORY; PL_INTERNAL when the rows are not rows of TENSOR. */
pl_status pl_initial_values(float *out, int64_t seed, const pl_tensor *tensor,
                            double initializer_range, int64_t row_begin, int64_t row_end);

#ifdef __cplusplus
}
#endif
#endif
