/* Which calls an entry is to make: written down here from operation, pass and model, without a look
 * into train/. Names are those of device operations (kernels/device.h), "copy", "fill", and of
 * collectives.
 */
#ifndef PL_TESTS_TRAIN_CALL_EXPECT_H
#define PL_TESTS_TRAIN_CALL_EXPECT_H

#include "common/plan.h"

/* A plan with what is asked of it again and again. */
typedef struct call_facts {
    pl_plan plan;
    pl_parts parts;
} call_facts;

/* Make the facts of the plan of REQUEST. The caller frees. */
pl_status call_facts_make(call_facts *out, const pl_plan_request *request);
void call_facts_free(call_facts *facts);

/* Number of the part that subject and layer name; -1: none. */
int32_t call_part(const call_facts *facts, int subject, int32_t layer);

/* The tensor SUFFIX of a part; NULL: the model has none. */
const pl_tensor *call_tensor(const call_facts *facts, int32_t part, const char *suffix);

/* Whether RANK holds rows of any trained tensor of PART (IGNORED: of those held whole). */
bool call_holds_trained(const call_facts *facts, int32_t part, bool ignored, int64_t rank);

/* Whether the module of OPERATION has tensors in PART that are sharded (IGNORED: held whole). */
bool call_module_has(const call_facts *facts, pl_operation operation, int32_t part, bool ignored);

/* The use of a buffer of KIND with all of FLAGS, of PART unless that is -1; NULL: none. */
const pl_use *call_use(const call_facts *facts, const pl_section *section, const pl_entry *entry,
                       pl_buffer_kind kind, uint32_t flags, int32_t part);

enum { CALLS_MOST = 512 };

typedef struct call_names {
    const char *name[CALLS_MOST];
    int count; /* may exceed CALLS_MOST: the rest was not kept */
} call_names;

/* The calls of ENTRY on RANK, in their order. */
void call_expect(call_names *out, const call_facts *facts, int64_t rank, const pl_section *section,
                 const pl_entry *entry);

#endif
