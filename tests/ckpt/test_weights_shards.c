/* How weights are cut into files: by Hugging Face's rule, against published files. */
#include <jansson.h>

#include "ckpt/safetensors.h"
#include "ckpt/weights_folder_values.h"
#include "ckpt/weights_shards.h"
#include "common/json.h"
#include "common/memory.h"
#include "tests/scratch.h"

enum { MOST_TENSORS = 4096 };

static void make_plan(pl_shards *out, pl_model *model, const char *name, pl_dtype dtype,
                      int64_t most)
{
    pl_dtype dtypes[MOST_TENSORS];
    assert_ok(pl_model_open(model, name));
    assert_in_range(model->tensor_count, 1, MOST_TENSORS);
    for (int64_t i = 0; i < model->tensor_count; ++i) dtypes[i] = dtype;
    assert_ok(pl_shards_plan(out, model, dtypes, most));
}

/* The 19 files of mistralai/Mixtral-8x7B-Instruct-v0.1 on the hub, and its index of 92,658 bytes:
 * lengths as a public list of that repository's files has them. */
static void published_files_have_these_lengths(void **state)
{
    static const int64_t bytes[] = {4892809584, 4983004016, 4983004016, 4899035200, 4983004016,
                                    4983004016, 4899035248, 4983004072, 4983004072, 4899035248,
                                    4983004072, 4983004072, 4983004072, 4899035248, 4983004072,
                                    4983004072, 4899035248, 4983004072, 4221679088};
    pl_shards shards;
    pl_model model;
    (void)state;
    make_plan(&shards, &model, "mixtral-8x7b", PL_BF16, 5000000000);
    assert_int_equal(shards.shard_count, 19);
    for (int i = 0; i < 19; ++i) assert_int_equal(shards.shards[i].bytes, bytes[i]);
    assert_int_equal(shards.bytes, 93405585408);
    assert_int_equal(shards.index.length, 92658);
    assert_string_equal(shards.shards[6].name, "model-00007-of-00019.safetensors");
    pl_shards_free(&shards);
    pl_model_free(&model);
}

/* The name of item I. */
static const char *name_of(const pl_shards *shards, const pl_model *model, int64_t i, pl_text *text)
{
    assert_ok(
        pl_weights_name(text, &model->tensors[shards->items[i].tensor], shards->items[i].expert));
    return pl_text_string(text);
}

static void tensors_stand_in_the_order_of_the_classes(void **state)
{
    static const struct {
        const char *model;
        int64_t at;
        const char *name;
    } cases[] = {
        {"testdata/hf/qwen3-moe-tiny", 0, "model.embed_tokens.weight"},
        {"testdata/hf/qwen3-moe-tiny", 1, "model.layers.0.self_attn.q_proj.weight"},
        {"testdata/hf/qwen3-moe-tiny", 6, "model.layers.0.self_attn.k_norm.weight"},
        {"testdata/hf/qwen3-moe-tiny", 7, "model.layers.0.mlp.gate.weight"},
        {"testdata/hf/qwen3-moe-tiny", 8, "model.layers.0.mlp.experts.0.gate_proj.weight"},
        {"testdata/hf/qwen3-moe-tiny", 9, "model.layers.0.mlp.experts.0.up_proj.weight"},
        {"testdata/hf/qwen3-moe-tiny", 10, "model.layers.0.mlp.experts.0.down_proj.weight"},
        {"testdata/hf/qwen3-moe-tiny", 11, "model.layers.0.mlp.experts.1.gate_proj.weight"},
        {"testdata/hf/qwen3-moe-tiny", 32, "model.layers.0.input_layernorm.weight"},
        {"testdata/hf/qwen3-moe-tiny", 33, "model.layers.0.post_attention_layernorm.weight"},
        {"testdata/hf/qwen3-moe-tiny", 34, "model.layers.1.self_attn.q_proj.weight"},
        {"testdata/hf/qwen3-moe-tiny", 101, "lm_head.weight"},
        {"testdata/hf/deepseek-v2-tiny", 16, "model.layers.1.mlp.experts.0.gate_proj.weight"},
        {"testdata/hf/deepseek-v2-tiny", 40, "model.layers.1.mlp.gate.weight"},
        {"mixtral-8x7b", 6, "model.layers.0.block_sparse_moe.experts.0.w1.weight"},
        {"mixtral-8x7b", 7, "model.layers.0.block_sparse_moe.experts.0.w2.weight"},
        {"mixtral-8x7b", 8, "model.layers.0.block_sparse_moe.experts.0.w3.weight"},
        {"qwen3-8b", 7, "model.layers.0.mlp.gate_proj.weight"},
    };
    pl_text text = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        pl_shards shards;
        pl_model model;
        make_plan(&shards, &model, cases[i].model, PL_FP32, INT64_MAX);
        assert_int_equal(shards.shard_count, 1);
        assert_string_equal(shards.shards[0].name, "model.safetensors");
        assert_int_equal(shards.index.length, 0);
        assert_string_equal(name_of(&shards, &model, cases[i].at, &text), cases[i].name);
        pl_shards_free(&shards);
        pl_model_free(&model);
    }
    pl_text_free(&text);
}

/* Of every limit: each tensor once, each file within the limit unless it is of one tensor, and the
 * header of each file is one that the strict reader takes. */
static void check_cut(const pl_shards *shards, const pl_model *model, int64_t most)
{
    int64_t items = 0;
    for (int64_t f = 0; f < shards->shard_count; ++f) {
        const pl_shard *shard = &shards->shards[f];
        pl_safetensors file;
        int64_t bytes = 0;
        assert_int_equal(shard->first, items);
        assert_true(shard->count > 0);
        for (int64_t i = items; i < items + shard->count; ++i) bytes += shards->items[i].bytes;
        assert_true(bytes <= most || shard->count == 1);
        items += shard->count;
        const pl_text *header = &shards->headers[f];
        assert_ok(pl_safetensors_parse(&file, header->bytes, (int64_t)header->length, shard->bytes,
                                       shard->name));
        assert_int_equal(file.tensor_count, shard->count);
        pl_safetensors_close(&file);
    }
    assert_int_equal(items, shards->item_count);
    assert_int_equal(items, pl_model_count(model).tensors);
}

static void any_limit_cuts_whole_tensors(void **state)
{
    (void)state;
    for (int64_t most = 1; most < 3000000; most = most * 3 / 2 + 7) {
        pl_shards shards;
        pl_model model;
        make_plan(&shards, &model, "testdata/hf/deepseek-v2-group", PL_BF16, most);
        check_cut(&shards, &model, most);
        if (most == 1) assert_int_equal(shards.shard_count, 137);
        pl_shards_free(&shards);
        pl_model_free(&model);
    }
}

/* As in huggingface_hub, a tensor above the limit takes its number before the file that is being
 * filled, which goes on. */
static void a_large_tensor_does_not_end_a_file(void **state)
{
    pl_shards shards;
    pl_model model;
    pl_text text = {0};
    (void)state;
    make_plan(&shards, &model, "testdata/hf/qwen3-moe-tied", PL_FP32, 10000);
    /* The embedding of 127 rows of 32 is 16,256 bytes. */
    assert_string_equal(name_of(&shards, &model, 0, &text), "model.embed_tokens.weight");
    assert_int_equal(shards.shards[0].count, 1);
    check_cut(&shards, &model, 10000);
    pl_shards_free(&shards);
    pl_model_free(&model);
    pl_text_free(&text);
}

static void the_index_is_sorted_json(void **state)
{
    pl_shards shards;
    pl_model model;
    struct json_t *tree = NULL;
    (void)state;
    make_plan(&shards, &model, "testdata/hf/qwen3-moe-tiny", PL_BF16, 150000);
    assert_ok(pl_json_parse(&tree, shards.index.bytes, shards.index.length, "index"));
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(tree, "metadata"), "total_size")),
        586048);
    assert_int_equal(json_object_size(json_object_get(tree, "weight_map")), 102);
    assert_int_equal(strncmp(shards.index.bytes,
                             "{\n  \"metadata\": {\n    \"total_size\": 586048\n  },\n"
                             "  \"weight_map\": {\n    \"lm_head.weight\": \"model-0000",
                             90),
                     0);
    pl_json_free(tree);
    pl_shards_free(&shards);
    pl_model_free(&model);
}

static void sizes_are_read_as_the_hub_writes_them(void **state)
{
    static const struct {
        const char *words;
        int64_t bytes;
    } cases[] = {
        {"5GB", 5000000000},   {"512MB", 512000000}, {"1GiB", 1073741824}, {"2TiB", 2199023255552},
        {"700000", 700000},    {"3kb", 3000},        {"4KIB", 4096},       {"9B", 9},
        {"1TB", 1000000000000}};
    static const char *const wrong[] = {
        "",  "GB",  "5 GB", "-5GB",         "1.5GB", "5GBs",
        "0", "0GB", "5PB",  "9999999999TB", "1e9",   "99999999999999999999999999999999"};
    int64_t bytes = 0;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        assert_ok(pl_shards_parse_size(&bytes, cases[i].words));
        assert_int_equal(bytes, cases[i].bytes);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i)
        assert_fails(PL_BAD_INPUT, pl_shards_parse_size(&bytes, wrong[i]), "allowed: ", "5GB");
}

static void names_of_sets_are_known(void **state)
{
    (void)state;
    assert_true(pl_shards_owns("model.safetensors"));
    assert_true(pl_shards_owns("model.safetensors.index.json"));
    assert_true(pl_shards_owns("model-00001-of-00002.safetensors"));
    assert_true(pl_shards_owns("model-100001-of-123456.safetensors"));
    assert_false(pl_shards_owns("model-1-of-2.safetensors"));
    assert_false(pl_shards_owns("model-00001-of-00002.safetensors.tmp"));
    assert_false(pl_shards_owns("model-00001-of-.safetensors"));
    assert_false(pl_shards_owns("model-00001.safetensors"));
    assert_false(pl_shards_owns("adapter_model.safetensors"));
    assert_false(pl_shards_owns("config.json"));
}

static void failing_allocations_are_survived(void **state)
{
    pl_model model;
    pl_dtype dtypes[MOST_TENSORS];
    pl_status status = PL_NO_MEMORY;
    (void)state;
    assert_ok(pl_model_open(&model, "testdata/hf/qwen3-moe-tied"));
    for (int64_t i = 0; i < model.tensor_count; ++i) dtypes[i] = PL_FP16;
    for (int64_t after = 0; status != PL_OK; ++after) {
        pl_shards shards;
        pl_allocation_fail_after(after);
        status = pl_shards_plan(&shards, &model, dtypes, 20000);
        if (status != PL_OK)
            assert_int_equal(status, PL_NO_MEMORY);
        else
            pl_shards_free(&shards);
        if (status == PL_OK) assert_false(pl_allocation_failed());
        assert_in_range(after, 0, 10000);
    }
    pl_allocation_fail_after(-1);
    pl_model_free(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_files_have_these_lengths),
        cmocka_unit_test(tensors_stand_in_the_order_of_the_classes),
        cmocka_unit_test(any_limit_cuts_whole_tensors),
        cmocka_unit_test(a_large_tensor_does_not_end_a_file),
        cmocka_unit_test(the_index_is_sorted_json),
        cmocka_unit_test(sizes_are_read_as_the_hub_writes_them),
        cmocka_unit_test(names_of_sets_are_known),
        cmocka_unit_test(failing_allocations_are_survived),
    };
    pl_json_check_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
