/* One file of tokens: what kind it is and where its tokens stand. For tokens.c alone. */
#ifndef PL_TRAIN_TOKENS_FILE_H
#define PL_TRAIN_TOKENS_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "train/folder_walk.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pl_tokens_kind { PL_TOKENS_TEXT, PL_TOKENS_LLM_C, PL_TOKENS_MEGATRON } pl_tokens_kind;

typedef struct pl_tokens_file {
    const char *path; /* borrowed from the walk */
    pl_tokens_kind kind;
    int64_t bytes;  /* of the file */
    int64_t offset; /* of the first token */
    int64_t width;  /* bytes of a token */
    bool is_signed; /* of their type */
    int64_t count;  /* tokens, the end of document of a text included */
} pl_tokens_file;

/* Find out what WALKED is. *USED_OUT is false for the index of a file of tokens, which is no file
 * of tokens itself. Errors: see pl_tokens_open. */
pl_status pl_tokens_file_open(pl_tokens_file *out, bool *used_out, const pl_walked_file *walked);

/* The index of Megatron's data, a file named PATH: check it against the data, a file of BYTES bytes
 * named BIN, and fill kind, offset, width, is_signed and count of OUT. */
pl_status pl_tokens_read_index(pl_tokens_file *out, const char *path, const char *bin,
                               int64_t bytes);

/* Read the tokens [FIRST, FIRST + COUNT) of FILE, all of them from 0 to VOCABULARY - 1. */
pl_status pl_tokens_file_read(const pl_tokens_file *file, int64_t first, int64_t count,
                              int64_t vocabulary, int32_t *out);

#ifdef __cplusplus
}
#endif
#endif
