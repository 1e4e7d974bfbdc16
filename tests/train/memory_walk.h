/* What a rank holds at most, from its plan alone: a walk over begins and ends.
 *
 * A collective lets its buffers go when it is waited for: by the first entry of another stream that
 * is ordered behind it, by one of its own stream that uses a buffer of it which either changes, or
 * by the end of the program. The walk keeps clocks of the streams for that.
 */
#ifndef PL_TESTS_TRAIN_MEMORY_WALK_H
#define PL_TESTS_TRAIN_MEMORY_WALK_H

#include "common/plan.h"

typedef struct memory_walk {
    int64_t now[PL_BUFFER_CLASS_COUNT], peak[PL_BUFFER_CLASS_COUNT];
    int64_t now_total, peak_total; /* without host memory */
} memory_walk;

/* Go on with SECTION. ROWS[entry] is R of the layer and micro-batch of that entry, where it begins
 * buffers that are multiples of it. Errors: PL_NO_MEMORY. */
pl_status memory_walk_section(memory_walk *walk, const pl_layout *layout, const pl_section *section,
                              const int64_t *rows);

#endif
