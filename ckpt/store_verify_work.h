/* What store_verify.c and store_verify_work.c share; for nobody else.
 *
 * The work is cut into tasks that any thread may take: rank by rank runs of blocks and one for the
 * bytes outside boxes, and one for the index.
 */
#ifndef PL_CKPT_STORE_VERIFY_WORK_H
#define PL_CKPT_STORE_VERIFY_WORK_H

#include <pthread.h>

#include "ckpt/manifest_map.h"
#include "ckpt/store_verify.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is known of the files of one rank before the work, and what it finds. */
typedef struct pl_verify_rank {
    pl_rank_boxes boxes;
    bool has_boxes;     /* its list is right */
    int64_t data_bytes; /* length of the HDF5 file as it is; -1: not there */
    uint64_t *sums;     /* NULL: damaged */
    uint64_t *found;    /* where they are: the hash of each block */
    int unreadable;     /* atomic: some block could not be read */
    int64_t first_task;
} pl_verify_rank;

typedef struct pl_verification {
    const pl_verify_request *request;
    pl_verify_report *report; /* its damages under the lock */
    pl_verify_rank *rank;     /* [ranks of the manifest] */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool has_lock, has_index;
    int64_t index_bytes, bytes; /* bytes: to be read in all */
    int64_t longest;            /* bytes of the longest block */
    int64_t tasks, next, done;  /* next, done (bytes): atomic */
    int running;                /* threads, under the lock */
    pl_status status;           /* first failure, under the lock */
    pl_text words;              /* its words */
} pl_verification;

/* Add a damage of FILE, whose words are those of the calling thread's latest failure without the
 * path in front, or WORDS. DAMAGE may be NULL: nothing but its KIND is known. Errors: PL_NO_MEMORY,
 * also where the failure was of that kind (STATUS), or one of the program's own. */
pl_status pl_verify_tell(pl_verification *v, pl_damage_kind kind, const pl_damage *damage,
                         const char *file, const char *words);
pl_status pl_verify_tell_failure(pl_verification *v, pl_damage_kind kind, const pl_damage *damage,
                                 const char *file, pl_status status);

/* Bytes of the file with ENDING of a rank, a place in the manifest's list, will be read soon. */
void pl_verify_expect(const pl_verification *v, int64_t rank, const char *ending, int64_t offset,
                      int64_t bytes);

/* Do all the tasks with the threads that were asked for. Errors: PL_NO_MEMORY, PL_IO_FAILED when no
 * thread could be started. */
pl_status pl_verify_work(pl_verification *v);

#ifdef __cplusplus
}
#endif
#endif
