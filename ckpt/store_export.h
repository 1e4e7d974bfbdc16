/* A checkpoint of any layout, trained or imported, as a Hugging Face folder: config.json, and
 * model.safetensors or shards with an index, experts by their own names.
 */
#ifndef PL_CKPT_STORE_EXPORT_H
#define PL_CKPT_STORE_EXPORT_H

#include "ckpt/store_tasks.h"
#include "common/dtype.h"
#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PL_EXPORT_SHARD_BYTES INT64_C(5000000000) /* Hugging Face's 5GB */

typedef struct pl_export_request {
    const char *checkpoint;     /* its folder, "step-N" */
    const char *folder;         /* to be made, or one that is there and empty */
    pl_dtype dtype;             /* fp32, bf16, fp16; PL_DTYPE_COUNT: as stored */
    int64_t shard_bytes;        /* most bytes of tensors in a file */
    bool masters;               /* fp32 masters where the checkpoint has them, not parameters */
    bool overwrite;             /* weights that are in FOLDER are replaced; other files stay */
    int threads;                /* 1 to PL_STORE_THREADS_MOST */
    pl_store_progress progress; /* NULL: none */
    void *progress_context;
} pl_export_request;

typedef struct pl_export_report {
    int64_t files;   /* of tensors */
    int64_t tensors; /* in them: experts count one by one */
    int64_t bytes;   /* of the tensors */
    int64_t masters; /* tensors of the model that are written from masters */
} pl_export_report;

/* Write the folder. Values move in pieces, a few MiB for each thread, and each block that is read
 * is checked. Files stand under other names ("*.tmp") until all are on the disk; then weights that
 * are replaced lose their index, the new files get their names, the index last. After a failure
 * before that, nothing in FOLDER has changed. The config.json is the text that an import kept, with
 * another "torch_dtype" where values were converted, else the facts of the model. Not collective.
 * Errors: PL_BAD_INPUT for a checkpoint that is none or damaged, and for a FOLDER with files where
 * OVERWRITE does not allow it; PL_UNSUPPORTED; PL_IO_FAILED; PL_NO_MEMORY. */
pl_status pl_store_export(pl_export_report *out, const pl_export_request *request);

#ifdef __cplusplus
}
#endif
#endif
