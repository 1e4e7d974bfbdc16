/* Writing the files of one rank of a checkpoint.
 *
 * The boxes have their places from the beginning (store_layout.h): values may come in any order,
 * from any number of threads, in whole blocks. Each block is hashed as it is written.
 */
#ifndef PL_CKPT_STORE_WRITER_H
#define PL_CKPT_STORE_WRITER_H

#include "ckpt/manifest_rank.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_store_writer pl_store_writer;

/* Make the HDF5 file of RANK in FOLDER for BOXES, which are taken over and freed with the writer
 * (also on failure). MODEL is borrowed. The caller closes. Errors: PL_IO_FAILED, PL_NO_MEMORY. */
pl_status pl_store_writer_open(pl_store_writer **out, const char *folder, int64_t rank,
                               const pl_model *model, pl_checkpoint_boxes *boxes);

const pl_checkpoint_boxes *pl_store_writer_boxes(const pl_store_writer *writer);

/* Write BYTES bytes from byte FIRST of BOX, one of the writer's: FIRST is the beginning of a block,
 * and what is written ends with one or with the box. Errors: PL_INTERNAL for other ranges;
 * PL_IO_FAILED with the box's tensor. */
pl_status pl_store_write(pl_store_writer *writer, const pl_checkpoint_box *box, int64_t first,
                         int64_t bytes, const void *values);

/* After all blocks are written: write the sums and the list, wait until all three files are on the
 * disk, and say what the manifest is to have of them. Errors: PL_INTERNAL when a block was not
 * written; PL_IO_FAILED; PL_NO_MEMORY. */
pl_status pl_store_writer_finish(pl_store_writer *writer, pl_manifest_rank *facts);

void pl_store_writer_close(pl_store_writer *writer); /* NULL is allowed */

/* Write LENGTH bytes as the new file PATH and wait until they are on the disk. Errors:
 * PL_IO_FAILED, also when there is such a file. */
pl_status pl_store_new_file(const char *path, const void *bytes, size_t length);

/* The hash of the bytes of an open file of LENGTH bytes that are in none of BOXES. FILE names it in
 * messages. Errors: PL_IO_FAILED, PL_NO_MEMORY. */
pl_status pl_store_outside_hash(uint64_t *out, int descriptor, const char *file, int64_t length,
                                const pl_checkpoint_boxes *boxes);

/* The hash of all bytes of an open file of LENGTH bytes. Errors as above. */
pl_status pl_store_whole_hash(uint64_t *out, int descriptor, const char *file, int64_t length);

#ifdef __cplusplus
}
#endif
#endif
