/* How the weights of a model are cut into files: which tensor stands in which, and where. Nothing
 * is written here.
 *
 * The rule is Hugging Face's: tensors in the order in which the classes of transformers have them
 * (embedding; of each layer attention, then the MLP with its experts one after another, then the
 * two norms; final norm; head) fill one file after another, each up to the limit. A tensor above
 * the limit has a file of its own. One file is "model.safetensors"; more are
 * "model-00001-of-00003.safetensors" and so on, with "model.safetensors.index.json".
 */
#ifndef PL_CKPT_WEIGHTS_SHARDS_H
#define PL_CKPT_WEIGHTS_SHARDS_H

#include <stdint.h>

#include "common/dtype.h"
#include "common/model.h"
#include "common/status.h"
#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PL_WEIGHTS_SINGLE "model.safetensors"
#define PL_WEIGHTS_INDEX  "model.safetensors.index.json"

enum { PL_WEIGHTS_SHARD_NAME = 64 };

/* A tensor of a file: a tensor of the model, or one expert of it. */
typedef struct pl_shard_item {
    int64_t tensor, expert; /* number in the model's list; 0 for tensors that are no stack */
    pl_dtype dtype;
    int64_t offset, bytes; /* in its file, header included */
} pl_shard_item;

typedef struct pl_shard {
    char name[PL_WEIGHTS_SHARD_NAME];
    int64_t first, count; /* of its items */
    int64_t bytes;        /* of the whole file */
} pl_shard;

/* Owned by the caller, freed with pl_shards_free. */
typedef struct pl_shards {
    pl_shard_item *items; /* file after file */
    int64_t item_count;
    pl_shard *shards;
    int64_t shard_count;
    int64_t bytes;    /* of all tensors: the index's total_size */
    pl_text *headers; /* [shard_count]: what each file begins with */
    pl_text index;    /* text of the index; empty for one file */
} pl_shards;

/* Cut the tensors of MODEL, of which number i is written as DTYPES[i] (fp32, bf16 or fp16), into
 * files of at most MOST bytes of tensors. Errors: PL_BAD_INPUT for a header that grows too long;
 * PL_NO_MEMORY. */
pl_status pl_shards_plan(pl_shards *out, const pl_model *model, const pl_dtype *dtypes,
                         int64_t most);
void pl_shards_free(pl_shards *shards);

/* Whether NAME is that of a file of a set: "model.safetensors", its index or a shard. */
bool pl_shards_owns(const char *name);

/* Read a size as Hugging Face writes it: "5GB" is 5 * 10^9 bytes, "512MB", "1GiB" is 2^30, "700000"
 * bytes; letters of either case. Errors: PL_BAD_INPUT with what is allowed. */
pl_status pl_shards_parse_size(int64_t *out, const char *words);

#ifdef __cplusplus
}
#endif
#endif
