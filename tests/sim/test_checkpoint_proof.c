/* Proofs about a checkpoint: of whole ones in many layouts, and each fault that they are there for,
 * planted. */
#include "sim/checkpoint_proof.h"

#include <stdio.h>
#include <string.h>

#include "ckpt/manifest_reshard.h"
#include "common/memory.h"
#include "common/placement.h"
#include "tests/test.h"

static const char config[] =
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 21, \"hidden_size\": 8,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1,"
    " \"head_dim\": 4, \"intermediate_size\": 6, \"moe_intermediate_size\": 4, \"num_experts\": 12,"
    " \"num_experts_per_tok\": 2, \"norm_topk_prob\": true, \"decoder_sparse_step\": 1,"
    " \"router_aux_loss_coef\": 0.01, \"max_position_embeddings\": 16, \"rms_norm_eps\": 1e-6,"
    " \"rope_theta\": 10000.0, \"tie_word_embeddings\": false, \"torch_dtype\": \"float32\"}";

static const char *const layouts[] = {"single:world=1",
                                      "legacy:world=8,ep=4",
                                      "legacy:world=5",
                                      "legacy:world=6,ep=3",
                                      "legacy:world=4,ep=2",
                                      "folded:world=8,ep=4",
                                      "folded:world=12,ep=12",
                                      "decoupled:world=8,ep=4",
                                      "decoupled:world=8,ep=4,replicas=2",
                                      "legacy:world=30",
                                      "folded:world=12,ep=6,replicas=2"};

enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static pl_layout layout_of(const char *notation)
{
    pl_layout layout;
    assert_ok(pl_layout_parse(&layout, notation));
    return layout;
}

/* What the ranks of a layout would have written, without any file. */
static pl_checkpoint_subject subject_of(const char *notation)
{
    static const pl_precision precision = {PL_BF16, PL_BF16, PL_FP32, PL_FP32};
    pl_checkpoint_subject s;
    pl_model model;
    memset(&s, 0, sizeof s);
    assert_ok(pl_model_parse(&model, config, "config.json", "small"));
    assert_ok(pl_manifest_set_model(&s.manifest, &model, NULL, 0, NULL, 0));
    pl_model_free(&model);
    s.has_manifest = true;
    s.manifest.layout = layout_of(notation);
    assert_ok(pl_allocate(&s.manifest.kept, (size_t)s.manifest.model.tensor_count,
                          sizeof *s.manifest.kept, "kept values"));
    pl_kept_values_of_training(s.manifest.kept, &s.manifest.model, &precision, PL_OPTIMIZER_ADAMW);
    assert_ok(
        pl_checkpoint_map_plan(&s.map, &s.manifest.model, s.manifest.kept, &s.manifest.layout));
    return s;
}

static int64_t bytes_held(const pl_checkpoint_subject *s, const pl_layout *layout)
{
    int64_t bytes = 0;
    for (int64_t rank = 0; rank < layout->world; ++rank)
        for (int64_t i = 0; i < s->manifest.model.tensor_count; ++i) {
            const pl_tensor *tensor = &s->manifest.model.tensors[i];
            pl_box box = pl_placement_box(layout, tensor, rank);
            bytes += (box.end - box.begin) * pl_kept_row_bytes(tensor, &s->manifest.kept[i]);
        }
    return bytes;
}

static void every_layout_loads_every_other(void **state)
{
    (void)state;
    for (int from = 0; from < LAYOUTS; ++from) {
        pl_checkpoint_subject s = subject_of(layouts[from]);
        pl_checkpoint_verdict tiles;
        assert_ok(pl_checkpoint_prove_tiles(&tiles, &s));
        assert_false(tiles.failed);
        assert_int_equal(tiles.checked, s.map.count);
        for (int to = 0; to < LAYOUTS; ++to) {
            pl_layout layout = layout_of(layouts[to]);
            pl_checkpoint_load load;
            assert_ok(pl_checkpoint_prove_load(&load, &s, &layout));
            assert_false(load.verdict.failed);
            assert_int_equal(load.bytes, bytes_held(&s, &layout));
            assert_true(load.own_bytes <= load.bytes && load.most_bytes <= load.bytes);
            if (load.bytes == 0 || layout.world == 1) assert_int_equal(load.most_bytes, load.bytes);
            if (from == to && from == 0) assert_int_equal(load.own_bytes, load.bytes);
        }
        pl_checkpoint_subject_free(&s);
    }
}

/* A piece of the embedding's parameter that is neither its first nor its last. */
static pl_checkpoint_piece *inner_piece(pl_checkpoint_subject *s)
{
    pl_checkpoint_piece *piece = &s->map.piece[1];
    assert_int_equal(piece->kind, PL_VALUE_PARAMETER);
    assert_int_equal(piece->tensor, 0);
    assert_true(piece->row_begin == 3 && piece->row_end == 6);
    return piece;
}

static void expect(const pl_checkpoint_subject *s, const char *tiles_words, const char *load_words)
{
    pl_checkpoint_verdict tiles;
    pl_checkpoint_load load;
    pl_layout layout = layout_of("folded:world=2,ep=2");
    assert_ok(pl_checkpoint_prove_tiles(&tiles, s));
    assert_true(tiles.failed);
    assert_non_null(strstr(pl_text_string(&tiles.words), tiles_words));
    assert_ok(pl_checkpoint_prove_load(&load, s, &layout));
    assert_true(load.verdict.failed);
    assert_non_null(strstr(pl_text_string(&load.verdict.words), load_words));
    pl_text_free(&tiles.words);
    pl_text_free(&load.verdict.words);
}

static void rows_that_are_nowhere_are_named(void **state)
{
    pl_checkpoint_subject s = subject_of("folded:world=8,ep=4");
    (void)state;
    inner_piece(&s)->row_end = 4;
    expect(
        &s, "rows 4-5 of model.embed_tokens.weight (param) are in no rank's file",
        "rank 0 needs rows 4-5 of model.embed_tokens.weight (param), which are in no rank's file");
    pl_checkpoint_subject_free(&s);
}

static void rows_that_are_twice_there_are_named(void **state)
{
    pl_checkpoint_subject s = subject_of("folded:world=8,ep=4");
    (void)state;
    inner_piece(&s)->row_begin = 2;
    expect(&s, "are twice there: rank 0 and rank 1", "which are in two ranks' files");
    pl_checkpoint_subject_free(&s);
}

/* All rows of the second half of a tensor: those ranks that hold them say so, others do not. */
static void only_who_needs_them_lacks_rows(void **state)
{
    pl_checkpoint_subject s = subject_of("single:world=1");
    pl_checkpoint_load load;
    pl_layout layout = layout_of("legacy:world=2");
    (void)state;
    s.map.piece[0].row_end = 11;
    assert_ok(pl_checkpoint_prove_load(&load, &s, &layout));
    assert_true(load.verdict.failed);
    assert_null(strstr(pl_text_string(&load.verdict.words), "rank 0"));
    assert_non_null(strstr(pl_text_string(&load.verdict.words),
                           "rank 1 needs rows 11-20 of model.embed_tokens.weight (param)"));
    pl_text_free(&load.verdict.words);
    pl_checkpoint_subject_free(&s);
}

static void many_faults_are_counted(void **state)
{
    pl_checkpoint_subject s = subject_of("single:world=1");
    pl_checkpoint_verdict tiles;
    (void)state;
    for (int i = 0; i < 9; ++i) s.map.piece[i].row_end = s.map.piece[i].row_begin;
    assert_ok(pl_checkpoint_prove_tiles(&tiles, &s));
    assert_non_null(strstr(pl_text_string(&tiles.words), "and 5 more\n"));
    pl_text_free(&tiles.words);
    pl_checkpoint_subject_free(&s);
}

static void layouts_that_do_not_fit_are_refused(void **state)
{
    pl_checkpoint_subject s = subject_of("single:world=1");
    pl_checkpoint_load load;
    pl_layout layout = layout_of("legacy:world=10,ep=5");
    (void)state;
    assert_fails(PL_BAD_INPUT, pl_checkpoint_prove_load(&load, &s, &layout), "ep=5", "12 experts");
    layout = layout_of("legacy:world=4,pp=2");
    assert_fails(PL_UNSUPPORTED, pl_checkpoint_prove_load(&load, &s, &layout), "pp=1 would fit");
    pl_checkpoint_subject_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_loads_every_other),
        cmocka_unit_test(rows_that_are_nowhere_are_named),
        cmocka_unit_test(rows_that_are_twice_there_are_named),
        cmocka_unit_test(only_who_needs_them_lacks_rows),
        cmocka_unit_test(many_faults_are_counted),
        cmocka_unit_test(layouts_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
