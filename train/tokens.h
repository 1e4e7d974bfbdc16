/* Tokens: the files a run trains on, as one long stream.
 *
 * pl_tokens_describe lists the kinds of files, which are told apart by name and by how they begin.
 * All numbers are little-endian. The stream is the files in the order of pl_walk_paths; documents
 * are not kept apart. Nothing is loaded ahead, so the files may be of any size.
 *
 * Sources: llm.c, dev/data/data_common.py and llmc/dataloader.h; Megatron-LM,
 * megatron/core/datasets/indexed_dataset.py.
 */
#ifndef PL_TRAIN_TOKENS_H
#define PL_TRAIN_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PL_END_OF_DOCUMENT = 256, /* of the byte tokenizer */
    PL_BYTE_TOKENS = 257      /* different tokens that it makes */
};

typedef struct pl_tokens pl_tokens;

/* Add the kinds of files and how each is read, a Markdown table. */
void pl_tokens_describe(pl_text *text);

/* Open the files and folders PATHS (COUNT > 0 of them) for a model whose tokens are 0 to
 * VOCABULARY - 1. Headers are checked against the sizes of files, indexes whole; tokens are checked
 * when they are read. The caller closes. Not collective. Errors: PL_BAD_INPUT with file, field,
 * what was found and what would be right, for files that are damaged, of no known kind, or text for
 * a vocabulary smaller than PL_BYTE_TOKENS, and all that pl_walk_paths refuses; PL_UNSUPPORTED for
 * element types and index forms that pleat does not read; PL_IO_FAILED, PL_NO_MEMORY. */
pl_status pl_tokens_open(pl_tokens **out, const char *const *paths, size_t count,
                         int64_t vocabulary);
void pl_tokens_close(pl_tokens *tokens); /* NULL is allowed */

/* Tokens of the whole stream. */
int64_t pl_tokens_count(const pl_tokens *tokens);
int64_t pl_tokens_files(const pl_tokens *tokens);

/* Whether all files are plain text, so that tokens are bytes. */
bool pl_tokens_are_text(const pl_tokens *tokens);

/* Read tokens [FIRST, FIRST + COUNT) of the stream. Any number of threads may read from one.
 * Errors: PL_BAD_INPUT for a token outside the vocabulary, with its file and place; PL_IO_FAILED,
 * also when a file is gone or no longer as long as it was; PL_INTERNAL when they are not there. */
pl_status pl_tokens_read(const pl_tokens *tokens, int64_t first, int64_t count, int32_t *out);

/* *NATS_OUT = - sum over v of p_v ln p_v, p_v being the part of token v among tokens [FIRST,
 * FIRST + COUNT), COUNT > 0: the loss of a model that knows only how frequent tokens are. Errors:
 * those of pl_tokens_read; PL_NO_MEMORY. */
pl_status pl_tokens_entropy(const pl_tokens *tokens, int64_t first, int64_t count,
                            double *nats_out);

/* A number made of kinds and sizes of all files in their order: ranks that are processes compare it
 * to see that they read the same data. Names and contents do not enter it. */
uint64_t pl_tokens_fingerprint(const pl_tokens *tokens);

/* What was left out of folders, a line each; "" when nothing was. Borrowed. */
const char *pl_tokens_notes(const pl_tokens *tokens);

#ifdef __cplusplus
}
#endif
#endif
