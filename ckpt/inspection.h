/* What pleat-ckpt inspect knows of a checkpoint, and how it says it. */
#ifndef PL_CKPT_INSPECTION_H
#define PL_CKPT_INSPECTION_H

#include "ckpt/command.h"
#include "ckpt/store_values.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_inspection_request {
    const char *folder; /* of the checkpoint */
    bool tensors, statistics;
    const char *pattern; /* of tensors; NULL: all */
} pl_inspection_request;

/* What is kept of one kind of value, over all tensors. */
typedef struct pl_kind_total {
    int64_t tensors, values, bytes;
    bool dtype[PL_DTYPE_COUNT];
} pl_kind_total;

/* Owned by the caller, freed with pl_inspection_free. */
typedef struct pl_inspection {
    const char *folder;      /* borrowed */
    const pl_manifest *m;    /* of the reader, or the one below */
    pl_store_reader *reader; /* owned; NULL where no tensors were asked for */
    pl_manifest manifest;    /* owned where there is no reader */
    bool pinned, has_tensors;
    int64_t manifest_bytes, bytes; /* bytes: of all files */
    pl_kind_total kinds[PL_VALUE_KIND_COUNT];
    int64_t *chosen, chosen_count;   /* numbers of the tensors to list, owned */
    pl_value_statistics *statistics; /* [chosen][kinds], owned; NULL: not asked for */
} pl_inspection;

/* Look at a checkpoint. Values are read where statistics are asked for, the lists of the ranks
 * where tensors are. Errors: PL_BAD_INPUT for damage and for a pattern that matches nothing; those
 * of reading. */
pl_status pl_inspection_make(pl_inspection *out, const pl_inspection_request *request);
void pl_inspection_free(pl_inspection *inspection);

/* Add it as text, and as JSON. Errors: PL_NO_MEMORY. */
pl_status pl_inspection_print(pl_output *output, const pl_inspection *inspection);
pl_status pl_inspection_json(pl_text *text, const pl_inspection *inspection);

/* Bytes of the three files of a rank. */
int64_t pl_inspection_rank_bytes(const pl_manifest_rank *rank);

/* How many pieces KIND of TENSOR is in. There are tensors. */
int64_t pl_inspection_pieces(const pl_inspection *inspection, pl_value_kind kind, int64_t tensor);

/* Bytes of KIND of TENSOR, 0 where it is not kept. */
int64_t pl_inspection_tensor_bytes(const pl_inspection *inspection, pl_value_kind kind,
                                   int64_t tensor);

#ifdef __cplusplus
}
#endif
#endif
