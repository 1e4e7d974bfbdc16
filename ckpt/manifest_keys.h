/* The keys of the JSON files of a checkpoint: one table each, from which reading and the pages
 * under docs/ follow.
 */
#ifndef PL_CKPT_MANIFEST_KEYS_H
#define PL_CKPT_MANIFEST_KEYS_H

#include "common/json.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pl_manifest_object {
    PL_KEYS_MANIFEST, /* manifest.json */
    PL_KEYS_TENSOR,   /* an element of its "tensors" */
    PL_KEYS_RANK,     /* rank-NNNNN.json */
    PL_KEYS_COUNT
} pl_manifest_object;

typedef struct pl_manifest_key {
    const char *name, *meaning;
} pl_manifest_key;

/* The keys in the order of writing, *COUNT of them. Static. */
const pl_manifest_key *pl_manifest_keys(pl_manifest_object object, int *count);

/* Whether NODE has no other key. Errors: PL_BAD_INPUT naming it. */
pl_status pl_manifest_check_keys(const pl_json_node *node, pl_manifest_object object);

#ifdef __cplusplus
}
#endif
#endif
