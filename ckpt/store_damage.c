#include "ckpt/store_damage.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/manifest_map.h"
#include "common/memory.h"

static const struct {
    const char *name, *meaning;
} kinds[PL_DAMAGE_KIND_COUNT] = {
    [PL_DAMAGE_MANIFEST] = {"manifest", "the manifest is not what its hash says, or breaks the "
                                        "rules; nothing else can be looked at"},
    [PL_DAMAGE_MISSING] = {"missing", "the file is not there, or cannot be opened"},
    [PL_DAMAGE_LENGTH] = {"length", "the file is shorter or longer than the manifest says"},
    [PL_DAMAGE_LIST] = {"list", "the list of a rank is not what the manifest says; the values of "
                                "the rank cannot be looked at"},
    [PL_DAMAGE_SUMS] = {"sums", "the sums of a rank are not what the manifest says"},
    [PL_DAMAGE_VALUES] = {"values", "values are not what their sum says, or cannot be read"},
    [PL_DAMAGE_OUTSIDE] = {"outside", "bytes of a rank's HDF5 file between and around the values "
                                      "are not what its list says"},
    [PL_DAMAGE_DATASETS] = {"datasets", "an HDF5 dataset is not where the list of the rank says"},
    [PL_DAMAGE_INDEX] = {"index", "the index is not what the manifest says"},
    [PL_DAMAGE_COVER] = {"cover", "rows of a tensor are in no rank's file, or in those of two"},
    [PL_DAMAGE_SURPLUS] = {"surplus", "a file that belongs to no checkpoint: a note, no damage"},
};

const char *pl_damage_kind_name(pl_damage_kind kind) { return kinds[kind].name; }

const char *pl_damage_kind_meaning(pl_damage_kind kind) { return kinds[kind].meaning; }

static void free_damage(pl_damage *damage)
{
    pl_free(damage->file);
    pl_free(damage->words);
}

pl_status pl_damages_add(pl_damages *damages, const pl_damage *damage, const char *file,
                         const char *words)
{
    pl_damage copy = *damage;
    copy.file = copy.words = NULL;
    PL_TRY(pl_grow(&damages->list, &damages->capacity, damages->count + 1, sizeof *damages->list,
                   "damages"));
    pl_status status = pl_duplicate(&copy.file, file, "the name of a file");
    if (status == PL_OK) status = pl_duplicate(&copy.words, words, "words about a damage");
    if (status == PL_OK)
        damages->list[damages->count++] = copy;
    else
        free_damage(&copy);
    return status;
}

void pl_damages_free(pl_damages *damages)
{
    for (size_t i = 0; i < damages->count; ++i) free_damage(&damages->list[i]);
    pl_free(damages->list);
    *damages = (pl_damages){0};
}

/* --- order --- */

static int compare_numbers(int64_t a, int64_t b) { return (a > b) - (a < b); }

static int compare(const void *a, const void *b)
{
    const pl_damage *left = a, *right = b;
    int order = strcmp(left->file, right->file);
    if (order == 0) order = compare_numbers(left->kind, right->kind);
    if (order == 0) order = compare_numbers(left->byte_begin, right->byte_begin);
    if (order == 0) order = compare_numbers(left->kept, right->kept);
    if (order == 0) order = compare_numbers(left->tensor, right->tensor);
    if (order == 0) order = compare_numbers(left->row_begin, right->row_begin);
    return order != 0 ? order : strcmp(left->words, right->words);
}

static bool follows(const pl_damage *a, const pl_damage *b)
{
    return a->kind == PL_DAMAGE_VALUES && b->kind == PL_DAMAGE_VALUES && a->tensor >= 0 &&
           a->tensor == b->tensor && a->kept == b->kept && a->byte_end == b->byte_begin &&
           strcmp(a->words, b->words) == 0 && strcmp(a->file, b->file) == 0;
}

void pl_damages_sort(pl_damages *damages)
{
    size_t count = 0;
    if (damages->count == 0) return;
    qsort(damages->list, damages->count, sizeof *damages->list, compare);
    for (size_t i = 1; i < damages->count; ++i) {
        pl_damage *last = &damages->list[count], *next = &damages->list[i];
        if (follows(last, next)) {
            last->row_end = next->row_end;
            last->byte_end = next->byte_end;
            free_damage(next);
        } else {
            damages->list[++count] = *next;
        }
    }
    damages->count = count + 1;
}

size_t pl_damages_count(const pl_damages *damages)
{
    size_t count = 0;
    for (size_t i = 0; i < damages->count; ++i) count += damages->list[i].kind != PL_DAMAGE_SURPLUS;
    return count;
}

/* --- words --- */

void pl_damage_print(pl_text *text, const pl_damage *damage, const pl_model *model)
{
    const char *lead = "";
    if (damage->tensor >= 0) {
        pl_checkpoint_rows_print(text, &model->tensors[damage->tensor], damage->kept,
                                 damage->row_begin, damage->row_end);
        lead = ", ";
    }
    if (damage->byte_end > 0) {
        pl_text_add(text, "%sbytes %" PRId64 " to %" PRId64, lead, damage->byte_begin,
                    damage->byte_end - 1);
        lead = ": ";
    } else if (*lead) {
        lead = " ";
    }
    if (*damage->words) pl_text_add(text, "%s%s", lead, damage->words);
}
