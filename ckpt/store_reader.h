/* Reading a checkpoint: any rows of any tensor, whoever wrote them, each block checked against its
 * sum before a value of it is used.
 */
#ifndef PL_CKPT_STORE_READER_H
#define PL_CKPT_STORE_READER_H

#include "ckpt/manifest_map.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pl_store_reader pl_store_reader;

/* Open the checkpoint in FOLDER: read its manifest and lists, and look whether all files are there
 * in full length. Values are not read. The caller closes. Errors: PL_BAD_INPUT naming file and
 * fault, for damage as for what is no checkpoint; PL_UNSUPPORTED; PL_IO_FAILED; PL_NO_MEMORY. */
pl_status pl_store_reader_open(pl_store_reader **out, const char *folder);
void pl_store_reader_close(pl_store_reader *reader); /* NULL is allowed */

/* Borrowed. */
const pl_manifest *pl_store_reader_manifest(const pl_store_reader *reader);
const pl_checkpoint_map *pl_store_reader_map(const pl_store_reader *reader);
const char *pl_store_reader_folder(const pl_store_reader *reader);

/* Read rows [ROW_BEGIN, ROW_END) of KIND of TENSOR (a number of the manifest's model) as they are
 * stored. Only the blocks that they lie in are read. Any number of threads may read from one
 * reader. Errors: PL_INTERNAL for rows or kinds that are not there; PL_BAD_INPUT for damage, naming
 * file, tensor and rows; PL_IO_FAILED; PL_NO_MEMORY. */
pl_status pl_store_read(pl_store_reader *reader, pl_value_kind kind, int64_t tensor,
                        int64_t row_begin, int64_t row_end, void *out);

/* The same by bytes [BEGIN, END) of the whole tensor. */
pl_status pl_store_read_bytes(pl_store_reader *reader, pl_value_kind kind, int64_t tensor,
                              int64_t begin, int64_t end, void *out);

/* How many bytes were read from files of values so far, by all threads. */
int64_t pl_store_reader_bytes(const pl_store_reader *reader);

/* Bytes of PIECE. */
int64_t pl_store_piece_bytes(const pl_store_reader *reader, const pl_checkpoint_piece *piece);

/* Read the sums of a rank, *OUT for the caller to free with pl_free. Errors: PL_BAD_INPUT when
 * their file is not there or not what SOURCE says; PL_IO_FAILED; PL_NO_MEMORY. */
pl_status pl_store_read_sums(uint64_t **out, const char *folder,
                             const pl_checkpoint_source *source);

#ifdef __cplusplus
}
#endif
#endif
