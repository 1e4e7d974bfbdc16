/* What the entries of a MoE layer share: for the files train/entries_*.c alone. */
#ifndef PL_TRAIN_ENTRIES_MOE_H
#define PL_TRAIN_ENTRIES_MOE_H

#include "train/entries.h"

#ifdef __cplusplus
extern "C" {
#endif

/* PL_BAD_INPUT unless the entry's layer has experts. */
pl_status pl_moe_check(const pl_work *work);

/* What stands in buffer `route` at ROUTE, and its bytes. */
pl_routes pl_moe_routes(const pl_work *work, const void *route);
int64_t pl_moe_route_bytes(const pl_sizes *s);

/* What bind fixed, of the buffer `rows` that the entry reads. PL_BAD_INPUT when it was not yet. */
pl_status pl_moe_binding(const pl_work *work, const pl_binding **out);

/* Dispatch all-to-all; else all-gather. */
bool pl_moe_all_to_all(const pl_work *work);

/* Whether the pass computes gradients. */
bool pl_moe_backward(const pl_work *work);

#ifdef __cplusplus
}
#endif
#endif
