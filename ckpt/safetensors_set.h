/* A set of safetensors files that together hold a model's tensors: a folder with model.safetensors,
 * or with model.safetensors.index.json and the shards it names; or one file by itself.
 *
 * The index is {"weight_map": {TENSOR: FILE, ...}, "metadata": {...}}. Every tensor stands in the
 * file that the map names for it and in no other, and no file holds one that the map does not
 * name. File names stay in the folder: they may not hold '/' or '\'; links are followed.
 */
#ifndef PL_CKPT_SAFETENSORS_SET_H
#define PL_CKPT_SAFETENSORS_SET_H

#include <stdint.h>

#include "ckpt/safetensors.h"
#include "common/status.h"
#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where a tensor stands. */
typedef struct pl_safetensors_place {
    const pl_safetensors *file;
    const pl_safetensors_tensor *tensor;
} pl_safetensors_place;

/* Any number of threads may read from one. */
typedef struct pl_safetensors_set {
    pl_safetensors *files; /* sorted by name */
    int64_t file_count;
    pl_safetensors_place *places; /* of all tensors, sorted by their names */
    int64_t place_count;
    pl_text notes; /* lines for the person: what is odd and was let pass */
} pl_safetensors_set;

/* Open the set at PATH, a folder or a file named *.safetensors. The caller lets it go with
 * pl_safetensors_set_close. Errors: PL_BAD_INPUT in words for a folder with neither or both, an
 * index that breaks the rules above, and all that pl_safetensors_open refuses; PL_IO_FAILED;
 * PL_NO_MEMORY. Let pass with a note: a total_size that is not the sum of the tensors, and
 * *.safetensors files beside the shards that the index does not name. */
pl_status pl_safetensors_set_open(pl_safetensors_set *out, const char *path);

/* All zeroes is allowed. */
void pl_safetensors_set_close(pl_safetensors_set *set);

/* The place of the tensor of that name, or NULL. */
const pl_safetensors_place *pl_safetensors_set_find(const pl_safetensors_set *set,
                                                    const char *name);

#ifdef __cplusplus
}
#endif
#endif
