/* What is done before what in a section, by streams and waits: the tests' own arithmetic. */
#ifndef PL_TESTS_SIM_PLAN_ORDER_H
#define PL_TESTS_SIM_PLAN_ORDER_H

#include "common/plan.h"

typedef struct plan_order {
    size_t count, words; /* entries; words of a row */
    uint64_t *done;      /* row i, bit j: entry j is done before entry i begins; owned */
    bool sound;          /* every wait is for an earlier entry */
} plan_order;

pl_status plan_order_make(plan_order *out, const pl_section *section);
void plan_order_free(plan_order *order);

/* Whether entry A is done before entry B begins. */
bool plan_order_before(const plan_order *order, size_t a, size_t b);

/* Whether the lives of buffer number BUFFER are in order: begun before it is used, not used after
 * it ends, every two uses ordered of which one writes, begins or ends it. */
bool plan_order_buffer_sound(const plan_order *order, const pl_section *section, uint32_t buffer);

/* Whether the calls of all ranks meet, each rank issuing its own in the order of its list and
 * going on when a call is through: members at the same entry name, issue orders without a cycle. */
pl_status plan_order_calls_meet(bool *meet, const pl_plan *plan, pl_program program);

/* Whether ENTRY calls its group. */
bool plan_order_communicates(const pl_entry *entry);

#endif
