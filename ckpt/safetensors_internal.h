/* What the files safetensors*.c share; for nobody else. */
#ifndef PL_CKPT_SAFETENSORS_INTERNAL_H
#define PL_CKPT_SAFETENSORS_INTERNAL_H

#include <stdint.h>

#include "ckpt/safetensors.h"
#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PL_SAFETENSORS_LENGTH = 8 }; /* bytes of N */

/* N of a file of BYTES bytes that begins with START (START_BYTES of them: at least 8, or the whole
 * file; some more help to recognise files of another kind). Errors: PL_BAD_INPUT. */
pl_status pl_safetensors_header_length(int64_t *out, const char *start, int64_t start_bytes,
                                       int64_t bytes, const char *file);

/* Fill tensors and metadata of OUT, whose file and bytes are set, from the JSON: LENGTH bytes of
 * TEXT. OUT keeps what was made so far on failure. Errors: PL_BAD_INPUT, PL_NO_MEMORY. */
pl_status pl_safetensors_read_header(pl_safetensors *out, const char *text, int64_t length);

#ifdef __cplusplus
}
#endif
#endif
