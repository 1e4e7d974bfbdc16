/* Where each tensor stands in the buffers of its part: offsets, rows and types, for one rank.
 *
 * All buffers of a part hold its tensors one after another, in the order of the model's list:
 *
 *   param            the rank's shard, padded rows, each tensor in the type it is gathered in
 *   initial,         the same rows, trained tensors in fp32, frozen ones in the stored type
 *   outgoing
 *   master, adam_m,  the same rows of the trained tensors, fp32
 *   adam_v, grad
 *   gradpiece        ... in the gradient's wire type
 *   wire             every member's shard of a tensor, then of the next: a tensor is contiguous
 *   full             the same in the compute type
 *   gradsum,         the same of the trained tensors, fp32 and in the wire type
 *   gradwire
 *   ignored*         whole tensors that are kept on every rank, fp32; _m, _v and _grad without
 *                    frozen ones
 *   host_*           as the buffer of that name
 *
 * Shards of a tensor are consecutive rows, so that its real rows stand together in wire and full,
 * and padding is behind them.
 */
#ifndef PL_TRAIN_PART_MAP_H
#define PL_TRAIN_PART_MAP_H

#include "common/parts.h"
#include "common/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One tensor of the model; its number is the tensor's. */
typedef struct pl_map_item {
    const pl_tensor *tensor;
    int32_t part;
    bool ignored, frozen;
    pl_dtype wire, initial;         /* types in param and wire, and in initial and outgoing */
    int64_t padded_rows;            /* of a shard; of the whole where ignored */
    int64_t shard_begin, shard_end; /* the rank's rows of the whole (stacked) tensor */
    int64_t whole_begin, whole_end; /* rows in full: all, or those of the owner's experts */
    /* what stands before it in its part: elements of shards, bytes of shards */
    int64_t elements_before, trained_before, ignored_before, ignored_trained_before;
    int64_t wire_before, initial_before;
} pl_map_item;

typedef struct pl_part_map {
    const pl_model *model; /* borrowed */
    pl_precision precision;
    pl_parts parts;
    pl_map_item *items; /* [tensors of the model] */
    int64_t *shards;    /* [parts] size of the part's shard group */
} pl_part_map;

/* A tensor in one kind of buffer. */
typedef struct pl_map_place {
    int64_t offset; /* bytes */
    pl_dtype dtype;
    int64_t room;       /* rows, padding included */
    int64_t begin, end; /* real rows, of the whole tensor; they stand first */
    int64_t cols;
} pl_map_place;

/* The map of RANK. MODEL is borrowed. Errors: PL_NO_MEMORY; PL_BAD_INPUT for sizes that cannot be
 * counted; PL_UNSUPPORTED when tensors of several types would stand at addresses that their types
 * do not allow, naming the tensor. The caller frees. */
pl_status pl_part_map_make(pl_part_map *out, const pl_model *model, const pl_layout *layout,
                           const pl_precision *precision, int64_t rank);
void pl_part_map_free(pl_part_map *map);

/* Number of the part of SUBJECT and LAYER; the embedding's for a tied head; -1: no such part. */
int32_t pl_part_map_part(const pl_part_map *map, pl_subject subject, int32_t layer);

/* Number of the tensor of PART that is called SUFFIX (pl_tensor.suffix); -1: no such tensor. */
int64_t pl_part_map_find(const pl_part_map *map, int32_t part, const char *suffix);

/* Where tensor number ITEM stands in buffers of KIND. False when it is in none of that kind. */
bool pl_part_map_place(const pl_part_map *map, pl_buffer_kind kind, int64_t item,
                       pl_map_place *out);

/* Bytes of PART's buffer of KIND; -1 when KIND is not of a part. */
int64_t pl_part_map_bytes(const pl_part_map *map, pl_buffer_kind kind, int32_t part);

#ifdef __cplusplus
}
#endif
#endif
