/* Text from weights: the generate plan, again and again, a token each time.
 */
#ifndef PL_TRAIN_GENERATE_H
#define PL_TRAIN_GENERATE_H

#include "ckpt/weights_folder.h"
#include "common/layout.h"
#include "kernels/device.h"
#include "train/sampler.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Called on rank 0 after each token, DONE of COUNT; NULL: not wanted. */
typedef void (*pl_generate_progress)(void *context, int64_t done, int64_t count);

typedef struct pl_generate_request {
    const pl_model *model; /* borrowed, as the rest; patterns not applied */
    const pl_weights *weights;
    const pl_layout *layout; /* its ranks are threads; pp = cp = 1 */
    pl_backend *backend;
    const char *prompt; /* bytes; none: the end of a document stands in front */
    size_t prompt_bytes;
    int64_t count;   /* tokens to draw at most: fewer when a document ends */
    int64_t context; /* tokens that are looked at, the latest ones */
    pl_sampler sampler;
    double seconds; /* no more tokens after so long; 0: no limit */
    double timeout; /* longest wait for another rank */
    pl_generate_progress progress;
    void *progress_context;
} pl_generate_request;

/* Add the bytes that are drawn to TEXT. Rank 0 draws; all ranks compute the same sequence. The
 * model's vocabulary has at least PL_BYTE_TOKENS tokens, of which only those are drawn. Errors:
 * those of pl_plan_build, pl_memory_require, groups, backend; PL_BAD_INPUT for weights whose logits
 * are not numbers; PL_NO_MEMORY. */
pl_status pl_generate(pl_text *text, const pl_generate_request *request);

#ifdef __cplusplus
}
#endif
#endif
