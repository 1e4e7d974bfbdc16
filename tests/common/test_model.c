/* Models against lists that other software made: names, shapes, roles, totals; the order of
 * tensors; which layers and biases there are. */
#include <jansson.h>
#include <stdio.h>

#include "common/model.h"
#include "tests/test.h"

static const char *const golden_models[] = {"qwen3-30b-a3b",    "qwen3-235b-a22b", "qwen3-8b",
                                            "llama-3-8b",       "llama-3.1-8b",    "deepseek-v2",
                                            "deepseek-v2-lite", "mixtral-8x7b"};

enum { GOLDEN_MODELS = sizeof golden_models / sizeof *golden_models };

static json_t *load_oracle(const char *name)
{
    char file[128];
    json_error_t error;
    snprintf(file, sizeof file, "testdata/models/%s.tensors.json", name);
    json_t *oracle = json_load_file(file, 0, &error);
    if (!oracle) fail_msg("%s: %s", file, error.text);
    return oracle;
}

/* NAME with {L} and {E} of PATTERN replaced. */
static void expand(char *name, size_t size, const char *pattern, int64_t layer, int64_t expert)
{
    size_t used = 0;
    for (const char *at = pattern; *at && used + 24 < size;) {
        if (strncmp(at, "{L}", 3) == 0 || strncmp(at, "{E}", 3) == 0) {
            int64_t number = at[1] == 'L' ? layer : expert;
            used += (size_t)snprintf(name + used, size - used, "%lld", (long long)number);
            at += 3;
        } else {
            name[used++] = *at++;
        }
    }
    name[used] = '\0';
}

/* One row of the oracle as names -> [shape, role], one a tensor on disk. */
static void expand_row(json_t *names, const json_t *row)
{
    char name[160];
    const char *pattern = json_string_value(json_object_get(row, "pattern"));
    const json_t *range = json_object_get(row, "layers");
    json_int_t experts = json_integer_value(json_object_get(row, "experts")), added = 0;
    json_int_t first = 0, end = 1;
    assert_null(json_object_get(row, "layer_list")); /* no golden model has one */
    if (range) {
        first = json_integer_value(json_array_get(range, 0));
        end = json_integer_value(json_array_get(range, 1));
    }
    for (json_int_t layer = first; layer < end; ++layer) {
        for (json_int_t expert = 0; expert < (experts ? experts : 1); ++expert, ++added) {
            json_t *value =
                json_pack("[O, O]", json_object_get(row, "shape"), json_object_get(row, "role"));
            expand(name, sizeof name, pattern, layer, expert);
            assert_int_equal(json_object_set_new(names, name, value), 0);
        }
    }
    assert_int_equal(added, json_integer_value(json_object_get(row, "count")));
}

static json_t *expand_oracle(const json_t *oracle)
{
    const json_t *rows = json_object_get(oracle, "tensors");
    json_t *names = json_object();
    for (size_t i = 0; i < json_array_size(rows); ++i) expand_row(names, json_array_get(rows, i));
    assert_int_equal(json_object_size(names), json_integer_value(json_object_get(
                                                  json_object_get(oracle, "totals"), "tensors")));
    return names;
}

/* Cross NAME off the list if its shape and role agree. */
static int cross_off(json_t *names, const char *name, const pl_tensor *tensor)
{
    const json_t *entry = json_object_get(names, name);
    const json_t *shape = json_array_get(entry, 0);
    const char *role = json_string_value(json_array_get(entry, 1));
    if (!entry || (int)json_array_size(shape) != tensor->dimensions) return 0;
    if (json_integer_value(json_array_get(shape, 0)) != tensor->rows) return 0;
    if (tensor->dimensions == 2 && json_integer_value(json_array_get(shape, 1)) != tensor->cols)
        return 0;
    if (tensor->dimensions == 1 && tensor->cols != 1) return 0;
    if (strcmp(role, pl_tensor_role_name(tensor->role)) != 0) return 0;
    return json_object_del(names, name) == 0;
}

/* Names that one of both has alone, or that differ in shape or role. */
static int64_t differences(const pl_model *model, const json_t *oracle)
{
    int64_t wrong = 0;
    json_t *names = expand_oracle(oracle);
    pl_text name = {0};
    for (int64_t i = 0; i < model->tensor_count; ++i) {
        const pl_tensor *tensor = &model->tensors[i];
        for (int64_t expert = 0; expert < (tensor->experts ? tensor->experts : 1); ++expert) {
            pl_text_clear(&name);
            if (tensor->experts)
                pl_tensor_expert_name(&name, tensor, expert);
            else
                pl_tensor_name(&name, tensor);
            wrong += !cross_off(names, pl_text_string(&name), tensor);
        }
    }
    wrong += (int64_t)json_object_size(names);
    pl_text_free(&name);
    json_decref(names);
    return wrong;
}

static void tensors_equal_the_lists(void **state)
{
    (void)state;
    for (int i = 0; i < GOLDEN_MODELS; ++i) {
        pl_model model;
        json_t *oracle = load_oracle(golden_models[i]);
        assert_ok(pl_model_open(&model, golden_models[i]));
        assert_string_equal(model.name, golden_models[i]);
        assert_int_equal(differences(&model, oracle), 0);
        json_decref(oracle);
        pl_model_free(&model);
    }
}

static void expect_faults_seen(const char *name)
{
    pl_model model;
    json_t *oracle = load_oracle(name);
    assert_ok(pl_model_open(&model, name));
    for (int64_t i = 0; i < 12; ++i) {
        pl_tensor *tensor = &model.tensors[i], right = *tensor;
        tensor->rows += 1;
        assert_int_equal(differences(&model, oracle), 2); /* the tensor, and its row of the list */
        *tensor = right;
        tensor->cols += 1;
        assert_int_equal(differences(&model, oracle), 2);
        *tensor = right;
        tensor->role = PL_TENSOR_ROUTER;
        assert_int_equal(differences(&model, oracle), 2);
        *tensor = right;
        tensor->suffix = "mlp.extra.weight";
        assert_int_equal(differences(&model, oracle), 2);
        *tensor = right;
    }
    --model.tensor_count;
    assert_int_equal(differences(&model, oracle), 1);
    json_decref(oracle);
    pl_model_free(&model);
}

/* The comparison sees each kind of fault. */
static void planted_faults_are_seen(void **state)
{
    (void)state;
    expect_faults_seen("qwen3-8b");
    expect_faults_seen("deepseek-v2");
}

static void expect_missing_experts_seen(const char *name, int64_t stacks)
{
    pl_model model;
    json_t *oracle = load_oracle(name);
    assert_ok(pl_model_open(&model, name));
    for (int64_t i = 0; i < model.tensor_count; ++i)
        if (model.tensors[i].experts > 0) --model.tensors[i].experts;
    assert_int_equal(differences(&model, oracle), stacks);
    json_decref(oracle);
    pl_model_free(&model);
}

static void a_missing_expert_is_seen(void **state)
{
    (void)state;
    expect_missing_experts_seen("qwen3-30b-a3b", 48 * 3);
    expect_missing_experts_seen("mixtral-8x7b", 32 * 3);
    expect_missing_experts_seen("deepseek-v2-lite", 26 * 3);
}

/* w1 and w3 have one shape: exchanged, they still fit every list of shapes. */
static void mixtral_calls_gate_up_and_down_w1_w3_and_w2(void **state)
{
    (void)state;
    static const char *const names[] = {"model.layers.0.block_sparse_moe.gate.weight",
                                        "model.layers.0.block_sparse_moe.experts.w1.weight",
                                        "model.layers.0.block_sparse_moe.experts.w3.weight",
                                        "model.layers.0.block_sparse_moe.experts.w2.weight"};
    pl_model model;
    pl_text text = {0};
    assert_ok(pl_model_open(&model, "mixtral-8x7b"));
    for (int i = 0; i < 4; ++i) {
        pl_text_clear(&text);
        pl_tensor_name(&text, &model.tensors[7 + i]);
        assert_string_equal(pl_text_string(&text), names[i]);
    }
    pl_text_clear(&text);
    pl_tensor_expert_name(&text, &model.tensors[9], 7);
    assert_string_equal(pl_text_string(&text),
                        "model.layers.0.block_sparse_moe.experts.7.w3.weight");
    pl_text_free(&text);
    pl_model_free(&model);
}

static int64_t total(const json_t *totals, const char *key)
{
    const json_t *value = json_object_get(totals, key);
    assert_non_null(value);
    return json_integer_value(value);
}

static void totals_equal_the_lists(void **state)
{
    (void)state;
    for (int i = 0; i < GOLDEN_MODELS; ++i) {
        pl_model model;
        json_t *oracle = load_oracle(golden_models[i]);
        const json_t *totals = json_object_get(oracle, "totals");
        const json_t *by_role = json_object_get(totals, "by_role");
        assert_ok(pl_model_open(&model, golden_models[i]));
        pl_parameter_counts counts = pl_model_count(&model);
        assert_int_equal(counts.total, total(totals, "parameters"));
        assert_int_equal(counts.routed, total(totals, "routed"));
        assert_int_equal(counts.dense, total(totals, "dense"));
        assert_int_equal(counts.tensors, total(totals, "tensors"));
        assert_int_equal(counts.active, total(totals, "active"));
        assert_int_equal(counts.active_without_embedding,
                         total(totals, "active_without_embedding"));
        assert_int_equal(counts.active_without_embedding_and_head,
                         total(totals, "active_without_embedding_and_head"));
        for (int role = 0; role < PL_TENSOR_ROLE_COUNT; ++role)
            assert_int_equal(counts.by_role[role],
                             json_integer_value(json_object_get(
                                 by_role, pl_tensor_role_name((pl_tensor_role)role))));
        assert_int_equal(model.num_experts, json_integer_value(json_object_get(oracle, "experts")));
        model.num_experts_per_tok += model.num_experts > 0;
        if (model.num_experts > 0)
            assert_int_not_equal(pl_model_count(&model).active, total(totals, "active"));
        json_decref(oracle);
        pl_model_free(&model);
    }
}

/* A closed form for a tied model; the published lists have none. */
static void tied_counts(void **state)
{
    (void)state;
    pl_model model;
    assert_ok(pl_model_open(&model, "testdata/hf-configs/qwen3-moe-tied"));
    pl_parameter_counts counts = pl_model_count(&model);
    int64_t routed = INT64_C(2) * 6 * 3 * 20 * 32;
    int64_t layer = INT64_C(2) * 32 + INT64_C(2) * 64 * 32 + INT64_C(2) * 32 * 32 +
                    INT64_C(2) * 16 + INT64_C(6) * 32;
    int64_t embedding = INT64_C(127) * 32, dense = embedding + 2 * layer + 32;
    assert_int_equal(counts.total, 40000); /* as its maker counted */
    assert_int_equal(counts.total, dense + routed);
    assert_int_equal(counts.active, dense + routed / 3);
    assert_int_equal(counts.active_without_embedding, counts.active);
    assert_int_equal(counts.active_without_embedding_and_head, counts.active - embedding);
    assert_int_equal(counts.by_role[PL_TENSOR_HEAD], 0);
    pl_model_free(&model);
}

static const char *name_of(pl_text *text, const pl_tensor *tensor)
{
    pl_text_clear(text);
    pl_tensor_name(text, tensor);
    return pl_text_string(text);
}

static void tensors_stand_in_forward_order(void **state)
{
    (void)state;
    static const char *const names[] = {
        "model.embed_tokens.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.self_attn.v_proj.weight",
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.0.self_attn.k_norm.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.1.input_layernorm.weight",
        "model.layers.1.self_attn.q_proj.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.1.self_attn.v_proj.weight",
        "model.layers.1.self_attn.o_proj.weight",
        "model.layers.1.self_attn.q_norm.weight",
        "model.layers.1.self_attn.k_norm.weight",
        "model.layers.1.post_attention_layernorm.weight",
        "model.layers.1.mlp.gate.weight",
        "model.layers.1.mlp.experts.gate_proj.weight",
        "model.layers.1.mlp.experts.up_proj.weight",
        "model.layers.1.mlp.experts.down_proj.weight",
    };
    enum { NAMES = sizeof names / sizeof *names };
    pl_model model;
    pl_text text = {0};
    assert_ok(pl_model_open(&model, "testdata/hf-configs/qwen3-moe-dense-first/config.json"));
    assert_string_equal(model.name, "qwen3-moe-dense-first");
    assert_int_equal(model.tensor_count, 1 + 11 + 2 * 12 + 2);
    for (int i = 0; i < NAMES; ++i)
        assert_string_equal(name_of(&text, &model.tensors[i]), names[i]);
    assert_string_equal(name_of(&text, &model.tensors[model.tensor_count - 2]),
                        "model.norm.weight");
    assert_string_equal(name_of(&text, &model.tensors[model.tensor_count - 1]), "lm_head.weight");
    assert_false(model.layer_is_moe[0]);
    assert_true(model.layer_is_moe[1] && model.layer_is_moe[2]);
    const pl_tensor *gate = &model.tensors[21];
    assert_int_equal(gate->class_, PL_CLASS_EXPERT);
    assert_int_equal(gate->experts, 16);
    assert_int_equal(gate->rows, 10);
    assert_int_equal(pl_tensor_total_rows(gate), 160);
    assert_int_equal(pl_tensor_elements(gate), 160 * 48);
    pl_text_clear(&text);
    pl_tensor_expert_name(&text, gate, 7);
    assert_string_equal(pl_text_string(&text), "model.layers.1.mlp.experts.7.gate_proj.weight");
    pl_text_free(&text);
    pl_model_free(&model);
}

/* MODEL's layer LAYER has just these tensors, in this order. */
static void expect_layer(const pl_model *model, int layer, const char *const *suffixes, int count)
{
    int found = 0;
    for (int64_t i = 0; i < model->tensor_count; ++i) {
        if (model->tensors[i].layer != layer) continue;
        assert_in_range(found, 0, count - 1);
        assert_string_equal(model->tensors[i].suffix, suffixes[found++]);
    }
    assert_int_equal(found, count);
}

/* Shared experts stand before the routed ones, so that these end the layer. */
static void deepseek_layers_stand_in_forward_order(void **state)
{
    (void)state;
    static const char *const dense[] = {"input_layernorm.weight",
                                        "self_attn.q_a_proj.weight",
                                        "self_attn.q_a_layernorm.weight",
                                        "self_attn.q_b_proj.weight",
                                        "self_attn.kv_a_proj_with_mqa.weight",
                                        "self_attn.kv_a_layernorm.weight",
                                        "self_attn.kv_b_proj.weight",
                                        "self_attn.o_proj.weight",
                                        "post_attention_layernorm.weight",
                                        "mlp.gate_proj.weight",
                                        "mlp.up_proj.weight",
                                        "mlp.down_proj.weight"};
    static const char *const sparse[] = {"input_layernorm.weight",
                                         "self_attn.q_proj.weight",
                                         "self_attn.kv_a_proj_with_mqa.weight",
                                         "self_attn.kv_a_layernorm.weight",
                                         "self_attn.kv_b_proj.weight",
                                         "self_attn.o_proj.weight",
                                         "post_attention_layernorm.weight",
                                         "mlp.gate.weight",
                                         "mlp.shared_experts.gate_proj.weight",
                                         "mlp.shared_experts.up_proj.weight",
                                         "mlp.shared_experts.down_proj.weight",
                                         "mlp.experts.gate_proj.weight",
                                         "mlp.experts.up_proj.weight",
                                         "mlp.experts.down_proj.weight"};
    pl_model model;
    assert_ok(pl_model_open(&model, "deepseek-v2"));
    expect_layer(&model, 0, dense, 12);
    pl_model_free(&model);
    assert_ok(pl_model_open(&model, "deepseek-v2-lite"));
    expect_layer(&model, 26, sparse, 14);
    pl_model_free(&model);
}

#define DEEPSEEK_SIZES                                                                             \
    "{\"model_type\": \"deepseek_v2\", \"vocab_size\": 100, \"hidden_size\": 64, "                 \
    "\"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"kv_lora_rank\": 12, "                 \
    "\"qk_nope_head_dim\": 10, \"qk_rope_head_dim\": 6, \"v_head_dim\": 14, "                      \
    "\"intermediate_size\": 96, \"max_position_embeddings\": 128, \"n_routed_experts\": 8, "       \
    "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "

/* Where the hidden state comes in and goes out; no other product of the attention has one. */
static void latent_attention_has_biases_at_its_ends(void **state)
{
    (void)state;
    static const struct {
        const char *suffix;
        int64_t rows;
    } biases[] = {{"self_attn.q_a_proj.bias", 20},
                  {"self_attn.kv_a_proj_with_mqa.bias", 18},
                  {"self_attn.o_proj.bias", 64}};
    pl_model model;
    int found = 0;
    assert_ok(pl_model_parse(&model,
                             DEEPSEEK_SIZES "\"q_lora_rank\": 20, \"n_shared_experts\": null, "
                                            "\"attention_bias\": true}",
                             "x.json", "x"));
    assert_int_equal(model.tensor_count, 1 + 3 * (2 + 7 + 3 + 4) + 2); /* all layers MoE */
    for (int64_t i = 0; i < model.tensor_count; ++i) {
        const pl_tensor *tensor = &model.tensors[i];
        assert_int_not_equal(tensor->role, PL_TENSOR_SHARED);
        if (!strstr(tensor->suffix, ".bias")) continue;
        assert_string_equal(tensor->suffix, biases[found % 3].suffix);
        assert_int_equal(tensor->rows, biases[found++ % 3].rows);
        assert_int_equal(tensor->rows, tensor[-1].rows);
        assert_int_equal(tensor->dimensions, 1);
    }
    assert_int_equal(found, 9);
    pl_model_free(&model);
}

static void first_layers_are_dense(void **state)
{
    (void)state;
    static const bool moe[] = {false, false, true};
    pl_model model;
    assert_ok(pl_model_parse(&model,
                             DEEPSEEK_SIZES "\"q_lora_rank\": null, \"n_shared_experts\": 3, "
                                            "\"first_k_dense_replace\": 2}",
                             "x.json", "x"));
    assert_memory_equal(model.layer_is_moe, moe, sizeof moe);
    assert_int_equal(pl_model_count(&model).by_role[PL_TENSOR_SHARED], 3 * 64 * 3 * 24);
    assert_int_equal(model.head_dim, 16);
    assert_int_equal(model.num_key_value_heads, 4);
    pl_model_free(&model);
}

static void biases_have_tensors(void **state)
{
    (void)state;
    static const char text[] =
        "{\"model_type\": \"llama\", \"vocab_size\": 100, \"hidden_size\": 64, "
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
        "\"intermediate_size\": 96, \"max_position_embeddings\": 128, "
        "\"attention_bias\": true, \"mlp_bias\": true}";
    pl_model model;
    int biases = 0;
    assert_ok(pl_model_parse(&model, text, "x.json", "x"));
    assert_int_equal(model.tensor_count, 1 + 2 * (2 + 8 + 6) + 2);
    for (int64_t i = 0; i < model.tensor_count; ++i) {
        const pl_tensor *tensor = &model.tensors[i];
        if (!strstr(tensor->suffix, ".bias")) continue;
        ++biases;
        assert_int_equal(tensor->dimensions, 1);
        assert_int_equal(tensor->cols, 1);
        assert_int_equal(tensor->rows, tensor[-1].rows); /* its weight stands before it */
        assert_int_equal(tensor->role, tensor[-1].role);
    }
    assert_int_equal(biases, 14);
    pl_model_free(&model);
}

static void sparse_step_chooses_layers(void **state)
{
    (void)state;
    static const char text[] =
        "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 100, \"hidden_size\": 64, "
        "\"num_hidden_layers\": 6, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
        "\"head_dim\": 8, \"intermediate_size\": 96, \"max_position_embeddings\": 128, "
        "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
        "\"decoder_sparse_step\": 2, \"mlp_only_layers\": [3, 3]}";
    static const bool moe[] = {false, true, false, false, false, true};
    pl_model model;
    assert_ok(pl_model_parse(&model, text, "x.json", "x"));
    assert_memory_equal(model.layer_is_moe, moe, sizeof moe);
    assert_int_equal(model.intermediate_size, 96);
    pl_model_free(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_equal_the_lists),
        cmocka_unit_test(planted_faults_are_seen),
        cmocka_unit_test(a_missing_expert_is_seen),
        cmocka_unit_test(totals_equal_the_lists),
        cmocka_unit_test(tied_counts),
        cmocka_unit_test(tensors_stand_in_forward_order),
        cmocka_unit_test(mixtral_calls_gate_up_and_down_w1_w3_and_w2),
        cmocka_unit_test(deepseek_layers_stand_in_forward_order),
        cmocka_unit_test(latent_attention_has_biases_at_its_ends),
        cmocka_unit_test(first_layers_are_dense),
        cmocka_unit_test(biases_have_tensors),
        cmocka_unit_test(sparse_step_chooses_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
