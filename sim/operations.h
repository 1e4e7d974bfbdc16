/* The operations of plans in words: what each means, and the buffers it reads and writes. */
#ifndef PL_SIM_OPERATIONS_H
#define PL_SIM_OPERATIONS_H

#include <stdint.h>

#include "common/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A set of kinds of buffers: bit k is kind k. There are more of them than bits in 64. */
__extension__ typedef unsigned __int128 pl_kind_set;

typedef struct pl_operation_facts {
    const char *meaning;       /* one line; static */
    pl_stream stream;          /* where the operation runs */
    pl_kind_set reads, writes; /* kinds that some entry of it reads or writes */
} pl_operation_facts;

const pl_operation_facts *pl_operation_describe(pl_operation operation);

/* Add the table of all operations as Markdown. */
void pl_operations_print(pl_text *text);

#ifdef __cplusplus
}
#endif
#endif
