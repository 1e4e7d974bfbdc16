/* Resharding: a checkpoint is written again as the ranks of another layout would have written it.
 *
 * Values stream through bounded memory, in chunks that any number of threads take; bits are kept.
 * The temporary folder has a name that follows from the job, so that a job that was killed is gone
 * on with: ranks whose files are complete are not written again.
 */
#ifndef PL_CKPT_STORE_RESHARD_H
#define PL_CKPT_STORE_RESHARD_H

#include "ckpt/manifest_reshard.h"
#include "ckpt/store_reader.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How far it is: bytes of values. Called on any of the threads, one at a time. */
typedef void (*pl_reshard_progress)(void *context, int64_t done, int64_t bytes);

enum { PL_RESHARD_THREADS_MOST = 256, PL_RESHARD_LEAST_CHUNK = 2 << 20 };

/* All borrowed. */
typedef struct pl_reshard_request {
    pl_store_reader *from;
    const pl_layout *layout;
    const char *root;             /* the folder in which step-N is to be */
    int64_t memory;               /* bytes for values, of all threads together */
    int threads;                  /* 1 to PL_RESHARD_THREADS_MOST */
    struct json_t *provenance;    /* of the new manifest; NULL: that of the old one */
    pl_reshard_progress progress; /* NULL: none */
    void *context;
} pl_reshard_request;

typedef struct pl_reshard_result {
    int64_t ranks, reused; /* that wrote something; of them, found complete from before */
    int64_t bytes;         /* of values written now */
    int64_t bytes_read;    /* of the old files */
} pl_reshard_result;

/* Bytes of values that each thread holds at once. */
int64_t pl_reshard_chunk(int64_t memory, int threads);

/* Do it. Takes the lock of the root, which is made where it is missing, and removes left-overs of
 * other jobs. Errors: PL_BAD_INPUT for damage of the old checkpoint, a step that is there, or
 * another writer; PL_UNSUPPORTED, as pl_reshard_check; PL_IO_FAILED; PL_NO_MEMORY. What was
 * complete stays, to be gone on with. */
pl_status pl_store_reshard(pl_reshard_result *out, const pl_reshard_request *request);

#ifdef __cplusplus
}
#endif
#endif
