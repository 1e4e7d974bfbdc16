/* What is wrong with a checkpoint: a list of damages, each with the file that it is in, and where
 * it can be said the tensor, its rows and the bytes of the file.
 */
#ifndef PL_CKPT_STORE_DAMAGE_H
#define PL_CKPT_STORE_DAMAGE_H

#include "ckpt/manifest.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pl_damage_kind {
    PL_DAMAGE_MANIFEST,
    PL_DAMAGE_MISSING,
    PL_DAMAGE_LENGTH,
    PL_DAMAGE_LIST,
    PL_DAMAGE_SUMS,
    PL_DAMAGE_VALUES,
    PL_DAMAGE_OUTSIDE,
    PL_DAMAGE_DATASETS,
    PL_DAMAGE_INDEX,
    PL_DAMAGE_COVER,
    PL_DAMAGE_SURPLUS, /* a note: whoever reads the checkpoint does not meet it */
    PL_DAMAGE_KIND_COUNT
} pl_damage_kind;

/* "manifest", "missing", ... and what it means, one line. Static storage. */
const char *pl_damage_kind_name(pl_damage_kind kind);
const char *pl_damage_kind_meaning(pl_damage_kind kind);

typedef struct pl_damage {
    pl_damage_kind kind;
    char *file;         /* name in the folder, owned */
    char *words;        /* what more there is to say, owned; "": nothing */
    int64_t tensor;     /* number in the model's list; -1: none */
    pl_value_kind kept; /* where there is a tensor, like the rows */
    int64_t row_begin, row_end;
    int64_t byte_begin, byte_end; /* in the file; byte_end 0: not said */
} pl_damage;

/* Owned by the caller, freed with pl_damages_free. All zeroes is the empty list. */
typedef struct pl_damages {
    pl_damage *list;
    size_t count, capacity;
} pl_damages;

/* Add DAMAGE with FILE and WORDS, which are copied (its own are ignored). Errors: PL_NO_MEMORY. */
pl_status pl_damages_add(pl_damages *damages, const pl_damage *damage, const char *file,
                         const char *words);

/* Order them by file and place, and join damages of values that follow each other in one piece. */
void pl_damages_sort(pl_damages *damages);

/* How many are more than a note. */
size_t pl_damages_count(const pl_damages *damages);

/* Add "rows 0-15 of model.norm.weight (param), bytes 2048 to 4095: WORDS", as far as it is known.
 * MODEL may be NULL where no damage names a tensor. */
void pl_damage_print(pl_text *text, const pl_damage *damage, const pl_model *model);

void pl_damages_free(pl_damages *damages);

#ifdef __cplusplus
}
#endif
#endif
