/* Going through everything of a checkpoint, and listing all that is wrong with it.
 *
 * Each byte is read once, in blocks, by several threads. A damaged file does not hide another:
 * where the list of one rank is damaged, the other ranks are looked at all the same. No HDF5 call
 * is made for a file before its bytes outside boxes are known to be right.
 */
#ifndef PL_CKPT_STORE_VERIFY_H
#define PL_CKPT_STORE_VERIFY_H

#include "ckpt/store_damage.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How far it is, called on the thread that verifies, a few times a second. */
typedef void (*pl_verify_progress)(void *context, int64_t done, int64_t bytes);

enum { PL_VERIFY_THREADS_MOST = 1024 };

typedef struct pl_verify_request {
    const char *folder;          /* of the checkpoint: "step-N" */
    int threads;                 /* that read and hash, 1 to PL_VERIFY_THREADS_MOST */
    pl_verify_progress progress; /* NULL: none */
    void *context;
} pl_verify_request;

/* Owned by the caller, freed with pl_verify_report_free. */
typedef struct pl_verify_report {
    pl_manifest manifest;
    bool has_manifest;                    /* false: it is damaged, and nothing else was looked at */
    pl_damages damages;                   /* in order */
    int64_t files, bytes, pieces, blocks; /* looked at; bytes: of HDF5 files and the index */
    int64_t unseen; /* ranks whose values were not looked at, since their lists are damaged */
} pl_verify_report;

/* Look at the checkpoint in a folder; damage is in the report, and PL_OK. Errors: PL_BAD_INPUT when
 * the folder has no manifest, so that it is no checkpoint; PL_UNSUPPORTED for one of a later form;
 * PL_IO_FAILED when the folder cannot be listed or no thread be started; PL_NO_MEMORY. */
pl_status pl_store_verify(pl_verify_report *out, const pl_verify_request *request);

void pl_verify_report_free(pl_verify_report *report);

#ifdef __cplusplus
}
#endif
#endif
