/* Writing safetensors: where everything stands is settled first, so that any number of threads or
 * processes can then write their rows into one file (pl_file_write), in any order.
 */
#ifndef PL_CKPT_SAFETENSORS_LAYOUT_H
#define PL_CKPT_SAFETENSORS_LAYOUT_H

#include <stdint.h>

#include "ckpt/safetensors.h"
#include "common/status.h"
#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor that is to be in the file. */
typedef struct pl_safetensors_item {
    const char *name; /* borrowed; UTF-8 */
    pl_safetensors_type type;
    int64_t dimensions;
    const int64_t *shape;  /* [dimensions]; borrowed */
    int64_t offset, bytes; /* set here: in the file, header included */
} pl_safetensors_item;

/* Set offset and bytes of the COUNT items, and add to HEADER what the file begins with: the length
 * and the JSON. *BYTES_OUT is the length of the whole file. The same items and metadata, in any
 * order, make the same bytes as the library's own writer does (metadata of one key: it sorts no
 * keys): later types of pl_safetensors_type first, then by name; a header padded to a multiple of
 * eight. Errors: PL_BAD_INPUT for a name that stands twice, sizes that do not fit 63 bits, elements
 * that do not fill whole bytes, or a header of more than PL_SAFETENSORS_MOST_HEADER bytes;
 * PL_NO_MEMORY. HEADER may then hold a part. */
pl_status pl_safetensors_layout(pl_safetensors_item *items, int64_t count,
                                const pl_safetensors_pair *metadata, int64_t metadata_count,
                                pl_text *header, int64_t *bytes_out);

#ifdef __cplusplus
}
#endif
#endif
