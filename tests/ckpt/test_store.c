/* Checkpoints on the disk: written in one layout, read in another, byte by byte. */
#include "ckpt/store_layout.h"
#include "common/memory.h"
#include "tests/ckpt/checkpoint_trial.h"

static const char *const tiny = "testdata/hf/qwen3-moe-tiny/config.json";

static const char *const layouts[] = {
    "single:world=1",         "legacy:world=8,ep=4",
    "legacy:world=8",         "folded:world=8,ep=8",
    "decoupled:world=8,ep=4", "decoupled:world=8,ep=4,replicas=2",
    "folded:world=6,ep=2",    "single:world=16,ep=2,grain=expert",
    "legacy:world=3",         "legacy:world=4,replicas=4",
};

enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static void write_and_read(const checkpoint_trial *t)
{
    scratch s = make_scratch();
    for (int i = 0; i < LAYOUTS; ++i) {
        pl_text folder = {0};
        assert_ok(trial_write(t, s.folder, i, layouts[i]));
        assert_ok(pl_checkpoint_path(&folder, s.folder, i));
        for (int j = 0; j < LAYOUTS; ++j) trial_check(pl_text_string(&folder), layouts[j]);
        pl_text_free(&folder);
    }
    remove_scratch(&s);
}

static void any_layout_reads_any(void **state)
{
    checkpoint_trial t;
    (void)state;
    trial_open(&t, tiny, PL_FP32, PL_OPTIMIZER_ADAMW, "norm", NULL);
    write_and_read(&t);
    trial_close(&t);
    trial_open(&t, tiny, PL_BF16, PL_OPTIMIZER_ADAMW, NULL, "embed_tokens");
    write_and_read(&t);
    trial_close(&t);
    trial_open(&t, tiny, PL_BF16, PL_OPTIMIZER_SGD, NULL, NULL);
    write_and_read(&t);
    trial_close(&t);
}

static void replicas_share_the_writing(void **state)
{
    checkpoint_trial t;
    pl_layout layout;
    pl_kept_values kept[512];
    int64_t bytes[8], least = INT64_MAX, most = 0, all = 0, whole = 0;
    (void)state;
    trial_open(&t, tiny, PL_FP32, PL_OPTIMIZER_ADAMW, NULL, NULL);
    assert_ok(pl_layout_parse(&layout, "legacy:world=8,replicas=8"));
    pl_kept_values_of_training(kept, &t.model, &t.precision, t.optimizer);
    for (int64_t i = 0; i < t.model.tensor_count; ++i)
        whole += pl_tensor_total_rows(&t.model.tensors[i]) *
                 pl_kept_row_bytes(&t.model.tensors[i], &kept[i]);
    for (int rank = 0; rank < 8; ++rank) {
        pl_checkpoint_boxes boxes;
        assert_ok(pl_checkpoint_boxes_of_rank(&boxes, &t.model, kept, &layout, rank));
        bytes[rank] = boxes.bytes;
        all += bytes[rank];
        if (bytes[rank] < least) least = bytes[rank];
        if (bytes[rank] > most) most = bytes[rank];
        pl_checkpoint_boxes_free(&boxes);
    }
    assert_int_equal(all, whole); /* nothing twice */
    assert_true(least > 0 && most < all / 2);
    trial_close(&t);
}

static void hdf5_agrees_with_the_list(void **state)
{
    scratch s = make_scratch();
    checkpoint_trial t;
    pl_store_reader *reader = NULL;
    (void)state;
    trial_open(&t, tiny, PL_BF16, PL_OPTIMIZER_ADAMW, NULL, NULL);
    assert_ok(trial_write(&t, s.folder, 7, "decoupled:world=4,ep=2"));
    assert_ok(pl_store_reader_open(&reader, in_scratch(&s, "step-7")));
    const pl_manifest *m = pl_store_reader_manifest(reader);
    for (int64_t i = 0; i < m->rank_count; ++i) {
        char name[64];
        pl_rank_boxes rank;
        assert_ok(pl_rank_boxes_read(&rank, m, in_scratch(&s, "step-7"), i));
        snprintf(name, sizeof name, "step-7/rank-%05d.h5", (int)m->ranks[i].rank);
        assert_ok(pl_store_check_layout(in_scratch(&s, name), &rank.boxes, &m->model));
        rank.boxes.box[3].offset += 4;
        assert_fails(PL_BAD_INPUT,
                     pl_store_check_layout(in_scratch(&s, name), &rank.boxes, &m->model),
                     "is not there, or not of", "rank-0000");
        pl_rank_boxes_free(&rank);
    }
    pl_store_reader_close(reader);
    trial_close(&t);
    remove_scratch(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_layout_reads_any),
        cmocka_unit_test(replicas_share_the_writing),
        cmocka_unit_test(hdf5_agrees_with_the_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
