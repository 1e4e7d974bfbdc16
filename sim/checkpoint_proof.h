/* Proofs about a checkpoint, from its manifest and the lists of its ranks: no values are read.
 */
#ifndef PL_SIM_CHECKPOINT_PROOF_H
#define PL_SIM_CHECKPOINT_PROOF_H

#include "ckpt/manifest_map.h"
#include "sim/proof.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One proof; words are owned. */
typedef struct pl_checkpoint_verdict {
    bool failed;
    int64_t checked; /* files, pieces or rows' places looked at */
    pl_text words;   /* what is wrong, the first few faults, a line each */
} pl_checkpoint_verdict;

/* What the ranks of a layout read. */
typedef struct pl_checkpoint_load {
    pl_checkpoint_verdict verdict;
    int64_t reads;      /* pieces, counted once for each rank that reads of them */
    int64_t bytes;      /* of values, over all ranks; replicas each read theirs */
    int64_t most_bytes; /* of one rank */
    int64_t own_bytes;  /* that a rank finds in the file of the rank of its number */
} pl_checkpoint_load;

/* A checkpoint that is looked at. Owned by the caller, freed with pl_checkpoint_subject_free; all
 * zeroes may be freed. */
typedef struct pl_checkpoint_subject {
    pl_text folder;
    pl_manifest manifest;
    bool has_manifest;
    pl_checkpoint_map map;
} pl_checkpoint_subject;

/* Read manifest and lists of the checkpoint that GIVEN means (pl_checkpoint_find), whether or not
 * they fit together. Errors: PL_BAD_INPUT when there is none, or one of them is damaged;
 * PL_IO_FAILED; PL_NO_MEMORY. */
pl_status pl_checkpoint_subject_open(pl_checkpoint_subject *out, const char *given);
void pl_checkpoint_subject_free(pl_checkpoint_subject *subject);

/* Whether all files that the manifest names are there and as long as it says. The caller frees the
 * words of OUT, here and below. Errors: PL_NO_MEMORY. */
pl_status pl_checkpoint_prove_files(pl_checkpoint_verdict *out,
                                    const pl_checkpoint_subject *subject);

/* Whether every row of every value that is kept stands in exactly one rank's file. Errors:
 * PL_NO_MEMORY. */
pl_status pl_checkpoint_prove_tiles(pl_checkpoint_verdict *out,
                                    const pl_checkpoint_subject *subject);

/* Whether each rank of LAYOUT finds every row that it holds, of each value, in exactly one place.
 * Errors: those of pl_reshard_check when the layout cannot hold the model; PL_NO_MEMORY. */
pl_status pl_checkpoint_prove_load(pl_checkpoint_load *out, const pl_checkpoint_subject *subject,
                                   const pl_layout *layout);

#ifdef __cplusplus
}
#endif
#endif
