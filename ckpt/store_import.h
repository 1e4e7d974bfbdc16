/* Weights of a Hugging Face folder as a checkpoint, in the files that the ranks of any layout would
 * write.
 *
 * The checkpoint holds parameters alone and has no place in training ("trained": false). Each
 * tensor keeps the type that it has in the files, bit for bit, unless another is asked for. The
 * text of the config.json stands in the manifest's provenance under "config", so that it can come
 * out as it went in.
 */
#ifndef PL_CKPT_STORE_IMPORT_H
#define PL_CKPT_STORE_IMPORT_H

#include "ckpt/store_tasks.h"
#include "common/dtype.h"
#include "common/layout.h"
#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

struct json_t;

/* Keys of the provenance of an imported checkpoint. */
#define PL_IMPORT_CONFIG "config" /* the text of the config.json */
#define PL_IMPORT_DTYPE  "dtype"  /* the type that all values were rounded to; absent: none */
#define PL_IMPORT_FROM   "from"   /* the folder, as it was given */

typedef struct pl_import_request {
    const char *folder;         /* Hugging Face's, or one file of tensors */
    const char *model;          /* a config.json, its folder or a built-in name; NULL: FOLDER's */
    const char *checkpoint;     /* "ROOT/step-N"; other names mean NAME/step-0 */
    pl_layout layout;           /* whose ranks' files are written */
    pl_dtype dtype;             /* fp32, bf16, fp16; PL_DTYPE_COUNT: as stored */
    int threads;                /* 1 to PL_STORE_THREADS_MOST */
    struct json_t *provenance;  /* borrowed: an object, to which the keys above are added */
    pl_store_progress progress; /* NULL: none */
    void *progress_context;
} pl_import_request;

/* Owned by the caller, freed with pl_import_report_free. */
typedef struct pl_import_report {
    pl_text checkpoint;            /* its path */
    pl_text notes;                 /* what was odd about the files and let pass, a line each */
    int64_t tensors, ranks, bytes; /* tensors: stacked ones count once; bytes: of values */
} pl_import_report;

/* Make the checkpoint. Values move in pieces, a few MiB for each thread. What is made stands in a
 * temporary folder until it is whole, and goes again after a failure, with the folders around it
 * that were made; REQUEST's checkpoint must not be there yet. Not collective. Errors: PL_BAD_INPUT
 * for a model, weights or a layout that do not fit (those of pl_model_open, pl_weights_open and
 * pl_placement_check), for a checkpoint that is there, and when another process writes beside it;
 * PL_UNSUPPORTED for pp above 1, and experts of one layer in several types; PL_IO_FAILED;
 * PL_NO_MEMORY. */
pl_status pl_store_import(pl_import_report *out, const pl_import_request *request);

void pl_import_report_free(pl_import_report *report);

#ifdef __cplusplus
}
#endif
#endif
