/* The manifest of a checkpoint: what it holds, how it came about, and which files it is made of.
 *
 * A checkpoint is a folder "step-N" (docs/formats.md has it on a page):
 *
 *   manifest.json    written last; without it the folder is no checkpoint
 *   rank-NNNNN.json  the boxes of a rank: rows, type and place of each piece (manifest_rank.h)
 *   rank-NNNNN.sums  a hash of each block of the boxes
 *   rank-NNNNN.h5    the values
 *   index.h5         every tensor whole, for other programs
 *
 * The manifest holds size and hash of every other file and its own hash. The functions here read
 * and write text; nothing here knows HDF5.
 */
#ifndef PL_CKPT_MANIFEST_H
#define PL_CKPT_MANIFEST_H

#include "ckpt/manifest_boxes.h"
#include "ckpt/manifest_hash.h"

#ifdef __cplusplus
extern "C" {
#endif

struct json_t;

#define PL_MANIFEST_FILE  "manifest.json"
#define PL_MANIFEST_INDEX "index.h5"

/* Version of the format that is written, and the only one that is read. */
enum { PL_MANIFEST_FORMAT = 1, PL_MANIFEST_NAME = 32 };

typedef struct pl_file_facts {
    int64_t bytes;
    uint64_t hash; /* of a rank's HDF5 file: pl_hash_pair of its sums' hash and that of its bytes
                      outside boxes */
} pl_file_facts;

typedef struct pl_manifest_rank {
    int64_t rank;
    pl_file_facts data, boxes, sums;
} pl_manifest_rank;

/* Where training stands. */
typedef struct pl_manifest_progress {
    int64_t step;    /* optimizer steps done */
    int64_t updates; /* those of them that moved the weights */
    int64_t tokens;  /* valid tokens seen */
    int64_t windows; /* training samples read: the place in the data */
    int64_t seed;
} pl_manifest_progress;

/* Owned by the caller, freed with pl_manifest_free. All zeroes may be freed. */
typedef struct pl_manifest {
    pl_manifest_progress progress;
    bool trained;           /* it has a place in training; false: imported weights */
    pl_optimizer optimizer; /* where trained */
    pl_model model;         /* owned, patterns applied */
    bool has_model;
    char **keep_fp32, **frozen; /* owned patterns */
    int keep_fp32_count, frozen_count;
    pl_layout layout;        /* of the ranks that wrote it */
    pl_kept_values *kept;    /* [tensors of the model], owned */
    struct json_t *settings; /* owned; an object: every key of the run file, or NULL */
    struct json_t
        *provenance;         /* owned; an object: program, version, commit, command, ... or NULL */
    pl_manifest_rank *ranks; /* owned; those that wrote something, ascending */
    int64_t rank_count;
    pl_file_facts index;
} pl_manifest;

/* Copy MODEL and the patterns that were applied to it into OUT. Errors: PL_NO_MEMORY; those of
 * pl_model_parse and pl_model_apply_patterns. */
pl_status pl_manifest_set_model(pl_manifest *out, const pl_model *model,
                                const char *const *keep_fp32, int keep_fp32_count,
                                const char *const *frozen, int frozen_count);

/* Replace TEXT by the whole text of the file. Errors: PL_NO_MEMORY. */
pl_status pl_manifest_write(pl_text *text, const pl_manifest *manifest);

/* Read the manifest from LENGTH bytes of TEXT; SOURCE stands for the file in messages. Errors:
 * PL_BAD_INPUT for a hash that is not that of the text, for anything that breaks the rules of the
 * format, with the key; PL_UNSUPPORTED for another version or a feature that is not known;
 * PL_NO_MEMORY. The caller frees. */
pl_status pl_manifest_parse(pl_manifest *out, const char *text, size_t length, const char *source);

/* The same from the folder of a checkpoint. Further errors: PL_IO_FAILED; PL_BAD_INPUT when there
 * is no such file. */
pl_status pl_manifest_read(pl_manifest *out, const char *folder);

void pl_manifest_free(pl_manifest *manifest);

/* "rank-00007.h5" and so on in BUFFER of PL_MANIFEST_NAME bytes; ENDING is ".h5", ".json" or
 * ".sums". Returns BUFFER. */
const char *pl_manifest_rank_file(int64_t rank, const char *ending, char *buffer);

/* Replace PATH by that of FILE in FOLDER. Errors: PL_NO_MEMORY. */
pl_status pl_manifest_path(pl_text *path, const char *folder, const char *file);

#ifdef __cplusplus
}
#endif
#endif
