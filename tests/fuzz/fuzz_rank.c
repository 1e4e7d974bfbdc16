/* Lists of ranks, for a checkpoint of a small model that four ranks wrote. */
#include <string.h>

#include "ckpt/manifest_rank.h"
#include "common/json.h"
#include "common/memory.h"
#include "tests/fuzz/fuzz.h"

static const pl_manifest *manifest_of_all(void)
{
    static pl_manifest manifest; /* for as long as the process lives */
    const pl_precision precision = {PL_BF16, PL_BF16, PL_FP32, PL_FP32};
    pl_model model;
    if (manifest.has_model) return &manifest;
    pl_json_check_memory();
    FUZZ_HOLDS(pl_model_open(&model, "tiny-moe") == PL_OK);
    FUZZ_HOLDS(pl_manifest_set_model(&manifest, &model, NULL, 0, NULL, 0) == PL_OK);
    pl_model_free(&model);
    FUZZ_HOLDS(pl_layout_parse(&manifest.layout, "legacy:world=4,ep=2") == PL_OK);
    FUZZ_HOLDS(pl_allocate(&manifest.kept, (size_t)manifest.model.tensor_count,
                           sizeof *manifest.kept, "kept values") == PL_OK);
    pl_kept_values_of_training(manifest.kept, &manifest.model, &precision, PL_OPTIMIZER_ADAMW);
    return &manifest;
}

static void check(const pl_rank_boxes *rank, const pl_manifest *manifest)
{
    pl_rank_boxes again;
    pl_text first = {0}, second = {0};
    for (size_t i = 0; i < rank->boxes.count; ++i) {
        const pl_checkpoint_box *box = &rank->boxes.box[i];
        FUZZ_HOLDS(box->tensor >= 0 && box->tensor < manifest->model.tensor_count);
        FUZZ_HOLDS(box->row_begin >= 0 && box->row_begin < box->row_end);
        FUZZ_HOLDS(box->offset >= 0 && box->bytes > 0);
        FUZZ_HOLDS(box->bytes <= rank->data_bytes - box->offset);
        FUZZ_HOLDS(box->first_sum >= 0 && box->first_sum < rank->boxes.sums);
    }
    FUZZ_HOLDS(pl_rank_boxes_write(&first, rank) == PL_OK);
    FUZZ_HOLDS(pl_rank_boxes_parse(&again, manifest, first.bytes, first.length, "again") == PL_OK);
    FUZZ_HOLDS(pl_rank_boxes_write(&second, &again) == PL_OK);
    FUZZ_HOLDS(strcmp(pl_text_string(&first), pl_text_string(&second)) == 0);
    pl_rank_boxes_free(&again);
    pl_text_free(&first);
    pl_text_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    const pl_manifest *manifest = manifest_of_all();
    pl_rank_boxes rank;
    char *copy = malloc(count + 1); /* of its own length, so that reading past it is seen */
    FUZZ_HOLDS(copy);
    if (count > 0) memcpy(copy, bytes, count);
    pl_error_clear();
    if (pl_rank_boxes_parse(&rank, manifest, copy, count, "rank-00000.json") == PL_OK) {
        check(&rank, manifest);
        pl_rank_boxes_free(&rank);
    } else {
        FUZZ_HOLDS(*pl_error_text());
    }
    free(copy);
    return 0;
}
