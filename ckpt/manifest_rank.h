/* The JSON file of a rank: which boxes its HDF5 file holds, and where. */
#ifndef PL_CKPT_MANIFEST_RANK_H
#define PL_CKPT_MANIFEST_RANK_H

#include "ckpt/manifest.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Owned by the caller, freed with pl_manifest_boxes_free. */
typedef struct pl_rank_boxes {
    int64_t rank;
    int64_t data_bytes;        /* of the HDF5 file */
    uint64_t outside_hash;     /* of its bytes outside boxes */
    uint64_t sums_hash;        /* of the sums file, whose size is eight bytes a block */
    pl_checkpoint_boxes boxes; /* by kind, then by tensor */
} pl_rank_boxes;

/* Replace TEXT by the whole text of the file. Errors: PL_NO_MEMORY. */
pl_status pl_rank_boxes_write(pl_text *text, const pl_rank_boxes *rank);

/* Read it from LENGTH bytes of TEXT, and check that its boxes are pieces of MANIFEST's tensors, in
 * order, of the right types, inside the file and apart from each other. SOURCE stands for the file
 * in messages. Errors: PL_BAD_INPUT naming the key or the box's tensor; PL_NO_MEMORY. */
pl_status pl_rank_boxes_parse(pl_rank_boxes *out, const pl_manifest *manifest, const char *text,
                              size_t length, const char *source);

/* Read the file of the rank at place INDEX of MANIFEST's list from FOLDER, and check it against the
 * manifest: its hash, and the sizes and hashes of the rank's other files as the manifest has them
 * (those files are not touched). Errors as above, and PL_IO_FAILED. */
pl_status pl_rank_boxes_read(pl_rank_boxes *out, const pl_manifest *manifest, const char *folder,
                             int64_t index);

void pl_rank_boxes_free(pl_rank_boxes *rank);

#ifdef __cplusplus
}
#endif
#endif
