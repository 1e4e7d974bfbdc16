/* The folder that an export makes, and its config.json; for store_export.c alone. */
#ifndef PL_CKPT_STORE_EXPORT_FOLDER_H
#define PL_CKPT_STORE_EXPORT_FOLDER_H

#include "ckpt/manifest.h"
#include "ckpt/weights_shards.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_export_folder {
    const char *path; /* borrowed */
    bool made;        /* it was not there before */
} pl_export_folder;

/* Replace TEXT by the path of NAME in FOLDER while it is written: with ".tmp" behind it. */
pl_status pl_export_temporary(pl_text *text, const char *folder, const char *name);

/* Make FOLDER where it is missing, and remove what a killed export left in it. Errors: PL_BAD_INPUT
 * when it is no folder, cannot be made by its name, or holds files and OVERWRITE is false;
 * PL_IO_FAILED; PL_NO_MEMORY. */
pl_status pl_export_folder_open(pl_export_folder *out, const char *folder, bool overwrite);

/* All files of SHARDS are on the disk under their temporary names: write CONFIG and the index, give
 * every file its name and remove weights that are no longer meant. Errors: PL_IO_FAILED,
 * PL_NO_MEMORY. */
pl_status pl_export_put_in_place(const pl_export_folder *folder, const pl_shards *shards,
                                 const pl_text *config);

/* Remove what stands under temporary names; where the folder was made, all that was made in it, and
 * the folder. The calling thread's failure keeps its words. */
void pl_export_folder_discard(const pl_export_folder *folder);

/* Add the config.json of what is written: tensor number i of MANIFEST's model as DTYPES[i].
 * CONVERTED: some type was asked for. Errors: PL_NO_MEMORY; PL_BAD_INPUT for a kept text that is
 * none. */
pl_status pl_export_config(pl_text *text, const pl_manifest *manifest, const pl_dtype *dtypes,
                           bool converted);

#ifdef __cplusplus
}
#endif
#endif
