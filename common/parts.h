/* Parts and units: how a model's parameters are grouped for gathering and reducing.
 *
 * A *part* is what one buffer of parameters holds: the embedding, a layer without its routed
 * experts, the routed experts of a layer, the final norm, the head. A *unit* is what is gathered
 * and reduced together (FSDP's unit): one part, except that `legacy` gathers a layer and its
 * experts in one unit. A tied head is no part: it uses the embedding's.
 */
#ifndef PL_COMMON_PARTS_H
#define PL_COMMON_PARTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/entry.h"
#include "common/layout.h"
#include "common/model.h"
#include "common/settings.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The modules of a layer whose backward passes are entries of their own. Other parts have only
 * the first. */
typedef enum pl_module {
    PL_MODULE_FIRST,  /* input norm and attention; all of a part that is no layer */
    PL_MODULE_SECOND, /* post-attention norm, router or dense MLP */
    PL_MODULE_COUNT
} pl_module;

typedef struct pl_part {
    pl_subject subject; /* one of the five kinds of part */
    int32_t layer;      /* -1 outside the layers */
    int32_t unit;       /* index of the unit that holds it */
    int32_t like;       /* the first part that holds equal tensors, layer number aside */
    int64_t first_tensor, tensor_count; /* in the model's list */
    pl_group_role shard_role, replica_role;
    /* of one member's shard, padded; the same on every rank */
    int64_t trained_elements, frozen_elements;
    int64_t wire_bytes;                    /* of the shard as it is gathered */
    pl_dtype wire;                         /* type of all of it; u8 where there are several */
    int64_t ignored_elements;              /* held whole, trained */
    int64_t ignored_frozen_elements;       /* held whole, frozen */
    bool cast_after_gather;                /* some wire dtype is not the compute dtype */
    bool trained_sharded[PL_MODULE_COUNT]; /* the module has sharded tensors with gradients */
    bool trained_ignored[PL_MODULE_COUNT]; /* ... whole ones with gradients */
} pl_part;

typedef struct pl_unit {
    int32_t part_count, part[2];
    pl_group_role shard_role;
    int64_t shards;     /* size of the shard group */
    int64_t wire_bytes; /* of one member's shard, all parts */
    pl_dtype wire;      /* type of all of it; u8 where there are several */
} pl_unit;

/* Owned by the caller, freed with pl_parts_free. Borrows nothing. */
typedef struct pl_parts {
    int32_t part_count, unit_count, layer_count;
    pl_part *part;
    pl_unit *unit;
    int32_t embedding, norm, head; /* part numbers; head is the embedding's when tied */
    int32_t *layer;                /* [layer_count] part number of the layer */
    int32_t *experts;              /* [layer_count] part number of its experts, or -1 */
} pl_parts;

/* Divide MODEL into parts and units under LAYOUT. Errors: PL_NO_MEMORY, PL_BAD_INPUT when a size
 * does not fit 63 bits. */
pl_status pl_parts_make(pl_parts *out, const pl_model *model, const pl_layout *layout,
                        const pl_precision *precision);
void pl_parts_free(pl_parts *parts);

/* One tensor in the payload of a part: what a gather moves, tensor by tensor, so that each can
 * land contiguous, travel in a type of its own, and carry scales (FP8, to come) beside it. */
typedef struct pl_payload_item {
    int64_t tensor;       /* in the model's list */
    pl_dtype wire;        /* type it travels in */
    int64_t padded_rows;  /* of one member's shard */
    int64_t offset_bytes; /* of that shard in the part's parameter buffer */
    int64_t scale_bytes;  /* of the scales that travel with it: 0 so far */
} pl_payload_item;

/* The sharded tensors of PART in order, at most MOST of them into ITEMS; returns how many there
 * are. Ignored tensors are not among them. */
int64_t pl_parts_payload(const pl_parts *parts, const pl_model *model, const pl_layout *layout,
                         const pl_precision *precision, int32_t part, pl_payload_item *items,
                         int64_t most);

/* Type in which TENSOR travels when gathered: the precision's, or its own when frozen. */
pl_dtype pl_parts_wire_dtype(const pl_model *model, const pl_precision *precision,
                             const pl_tensor *tensor);

/* Elements that RANK really holds of PART's trained (or frozen) sharded tensors: no padding. */
int64_t pl_parts_local_elements(const pl_parts *parts, const pl_model *model,
                                const pl_layout *layout, int32_t part, int64_t rank, bool frozen);

#ifdef __cplusplus
}
#endif
#endif
