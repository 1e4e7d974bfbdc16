/* The operations of plans in words: what each means, and the buffers it reads and writes. */
#ifndef PL_SIM_OPERATIONS_H
#define PL_SIM_OPERATIONS_H

#include <stdint.h>

#include "common/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_operation_facts {
    const char *meaning;    /* one line; static */
    pl_stream stream;       /* where the operation runs */
    uint64_t reads, writes; /* bit k: some entry of it reads or writes buffers of kind k */
} pl_operation_facts;

const pl_operation_facts *pl_operation_describe(pl_operation operation);

/* Add the table of all operations as Markdown. */
void pl_operations_print(pl_text *text);

#ifdef __cplusplus
}
#endif
#endif
