/* Two spellings of one config make one model; writing and reading back; opening by name, file and
 * folder. */
#include <stdio.h>

#include "common/memory.h"
#include "common/model.h"
#include "tests/test.h"

static int tensor_equal(const pl_tensor *a, const pl_tensor *b)
{
    return a->role == b->role && a->class_ == b->class_ && a->frozen == b->frozen &&
           a->layer == b->layer && strcmp(a->suffix, b->suffix) == 0 && a->experts == b->experts &&
           a->rows == b->rows && a->cols == b->cols && a->dimensions == b->dimensions;
}

static int rope_equal(const pl_model *a, const pl_model *b)
{
    const pl_rope_scaling *s = &a->rope_scaling, *t = &b->rope_scaling;
    return a->rope_theta == b->rope_theta && s->llama3 == t->llama3 && s->factor == t->factor &&
           s->low_freq_factor == t->low_freq_factor && s->high_freq_factor == t->high_freq_factor &&
           s->yarn == t->yarn && s->beta_fast == t->beta_fast && s->beta_slow == t->beta_slow &&
           s->mscale == t->mscale && s->mscale_all_dim == t->mscale_all_dim &&
           s->original_max_position_embeddings == t->original_max_position_embeddings;
}

/* What DeepSeek-V2 alone has. */
static int deepseek_equal(const pl_model *a, const pl_model *b)
{
    return a->latent.q_lora_rank == b->latent.q_lora_rank &&
           a->latent.kv_lora_rank == b->latent.kv_lora_rank &&
           a->latent.qk_nope_head_dim == b->latent.qk_nope_head_dim &&
           a->latent.qk_rope_head_dim == b->latent.qk_rope_head_dim &&
           a->latent.v_head_dim == b->latent.v_head_dim &&
           a->n_shared_experts == b->n_shared_experts && a->n_group == b->n_group &&
           a->topk_group == b->topk_group && a->seq_aux == b->seq_aux &&
           a->routed_scaling_factor == b->routed_scaling_factor;
}

static int facts_equal(const pl_model *a, const pl_model *b)
{
    return a->family == b->family && a->vocab_size == b->vocab_size &&
           a->hidden_size == b->hidden_size && a->num_hidden_layers == b->num_hidden_layers &&
           a->num_attention_heads == b->num_attention_heads &&
           a->num_key_value_heads == b->num_key_value_heads && a->head_dim == b->head_dim &&
           a->intermediate_size == b->intermediate_size && a->num_experts == b->num_experts &&
           a->num_experts_per_tok == b->num_experts_per_tok &&
           a->moe_intermediate_size == b->moe_intermediate_size &&
           a->max_position_embeddings == b->max_position_embeddings &&
           a->norm_topk_prob == b->norm_topk_prob &&
           a->tie_word_embeddings == b->tie_word_embeddings &&
           a->attention_bias == b->attention_bias && a->mlp_bias == b->mlp_bias &&
           a->rms_norm_eps == b->rms_norm_eps && a->initializer_range == b->initializer_range &&
           a->router_aux_loss_coef == b->router_aux_loss_coef &&
           a->stored_dtype == b->stored_dtype && a->tensor_count == b->tensor_count;
}

static int models_equal(const pl_model *a, const pl_model *b)
{
    if (strcmp(a->name, b->name) != 0 || !facts_equal(a, b) || !rope_equal(a, b)) return 0;
    if (!deepseek_equal(a, b)) return 0;
    for (int64_t i = 0; i < a->num_hidden_layers; ++i)
        if (a->layer_is_moe[i] != b->layer_is_moe[i]) return 0;
    for (int64_t i = 0; i < a->tensor_count; ++i)
        if (!tensor_equal(&a->tensors[i], &b->tensors[i])) return 0;
    return 1;
}

static void both_spellings_are_one_model(void **state)
{
    (void)state;
    static const char *const folders[] = {"qwen3-moe-tiny", "qwen3-moe-dense-first",
                                          "qwen3-moe-tied", "deepseek-v2-tiny",
                                          "deepseek-v2-group"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; ++i) {
        pl_model four, five;
        char file[128];
        snprintf(file, sizeof file, "testdata/hf-configs/%s", folders[i]);
        assert_ok(pl_model_open(&four, file));
        snprintf(file, sizeof file, "testdata/hf-configs/%s/config.v5.json", folders[i]);
        assert_ok(pl_model_read(&five, file));
        assert_string_equal(five.name, "config.v5");
        assert_false(models_equal(&four, &five)); /* so far by name only */
        memcpy(five.name, four.name, sizeof five.name);
        assert_true(models_equal(&four, &five));
        five.rope_theta += 1;
        assert_false(models_equal(&four, &five));
        pl_model_free(&four);
        pl_model_free(&five);
    }
}

#define LLAMA_SIZES                                                                                \
    "{\"model_type\": \"llama\", \"vocab_size\": 100, \"hidden_size\": 64, "                       \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "           \
    "\"intermediate_size\": 96, \"max_position_embeddings\": 128, "
#define LLAMA3                                                                                     \
    "\"factor\": 8, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "                         \
    "\"original_max_position_embeddings\": 64"

/* The llama config whose keys after the sizes are REST, which ends the object. */
static pl_model parse_llama(const char *rest)
{
    char text[1024];
    pl_model model;
    snprintf(text, sizeof text, "%s%s", LLAMA_SIZES, rest);
    assert_ok(pl_model_parse(&model, text, "x.json", "x"));
    return model;
}

/* Dense configs of transformers 5, and rope_theta inside rope_scaling. */
static void other_spellings_are_the_same_model(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"\"rope_theta\": 5e5, \"torch_dtype\": \"bfloat16\"}",
         "\"rope_scaling\": {\"rope_type\": \"default\", \"rope_theta\": 500000}, \"dtype\": "
         "\"bfloat16\", \"head_dim\": null}"},
        {"\"rope_theta\": 5e5, \"rope_scaling\": {\"type\": \"llama3\", " LLAMA3 "}}",
         "\"head_dim\": 16, \"rope_parameters\": {\"rope_theta\": 500000.0, \"rope_type\": "
         "\"llama3\", " LLAMA3 "}}"},
        {"\"torch_dtype\": \"float32\"}",
         "\"rope_theta\": 1e4, \"rope_scaling\": null, \"rope_parameters\": {\"rope_type\": "
         "\"default\", \"partial_rotary_factor\": 1.0}, \"mlp_bias\": false}"},
        {"\"rope_theta\": 7, \"dtype\": \"float16\", \"torch_dtype\": \"float16\"}",
         "\"rope_theta\": 7.0, \"rope_parameters\": {\"rope_theta\": 7}, \"dtype\": \"float16\", "
         "\"layer_types\": [\"full_attention\", \"full_attention\"], \"num_experts\": null}"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; ++i) {
        pl_model model[2] = {parse_llama(pairs[i][0]), parse_llama(pairs[i][1])};
        assert_true(models_equal(&model[0], &model[1]));
        assert_int_equal(model[0].head_dim, 16);
        assert_int_equal(model[0].rope_scaling.llama3, i == 1);
        pl_model_free(&model[0]);
        pl_model_free(&model[1]);
    }
}

static void writing_and_reading_back(void **state)
{
    (void)state;
    int count = 0, written = 0;
    const char *const *names = pl_model_builtin_names(&count);
    for (int i = 0; i < count + 5; ++i) {
        static const char *const more[] = {
            "testdata/hf-configs/qwen3-moe-dense-first", "testdata/hf-configs/qwen3-moe-tied",
            "testdata/hf-configs/qwen3-moe-tiny-bf16-sharded",
            "testdata/hf-configs/deepseek-v2-tiny", "testdata/hf-configs/deepseek-v2-group"};
        pl_model model, again;
        pl_text text = {0};
        if (pl_model_open(&model, i < count ? names[i] : more[i - count]) != PL_OK) continue;
        model.initializer_range = 0.1 + 0.2; /* needs all 17 digits */
        pl_model_write(&text, &model);
        assert_null(strchr(pl_text_string(&text), '\n'));
        assert_ok(pl_model_parse(&again, pl_text_string(&text), "written", model.name));
        assert_true(models_equal(&model, &again));
        again.tensors[again.tensor_count - 1].rows++;
        assert_false(models_equal(&model, &again));
        pl_model_free(&again);
        pl_model_free(&model);
        pl_text_free(&text);
        ++written;
    }
    assert_int_equal(written, 10 + 5);
}

#define MIXTRAL_TEXT                                                                               \
    "{\"model_type\": \"mixtral\", \"vocab_size\": 100, \"hidden_size\": 64, "                     \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "           \
    "\"intermediate_size\": 96, \"max_position_embeddings\": 128, \"num_local_experts\": 4, "      \
    "\"num_experts_per_tok\": 2"
#define DEEPSEEK_TEXT                                                                              \
    "{\"model_type\": \"deepseek_v2\", \"vocab_size\": 100, \"hidden_size\": 64, "                 \
    "\"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"kv_lora_rank\": 12, "                 \
    "\"qk_nope_head_dim\": 10, \"qk_rope_head_dim\": 6, \"v_head_dim\": 14, "                      \
    "\"intermediate_size\": 96, \"max_position_embeddings\": 128, \"n_routed_experts\": 8, "       \
    "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, \"q_lora_rank\": null"
#define YARN "\"type\": \"yarn\", \"factor\": 40, \"original_max_position_embeddings\": 64"

/* Mixtral and DeepSeek-V2 with what the published ones do not have; no two are equal. */
static const char *const unusual[] = {
    MIXTRAL_TEXT "}",
    MIXTRAL_TEXT ", \"head_dim\": 10, \"router_aux_loss_coef\": 0.5}",
    MIXTRAL_TEXT ", \"tie_word_embeddings\": true, \"rms_norm_eps\": 0.25}",
    MIXTRAL_TEXT ", \"rope_scaling\": {\"rope_type\": \"llama3\", " LLAMA3 "}}",
    DEEPSEEK_TEXT ", \"n_shared_experts\": null}",
    DEEPSEEK_TEXT ", \"n_shared_experts\": 1, \"first_k_dense_replace\": 2}",
    DEEPSEEK_TEXT ", \"n_shared_experts\": 1, \"attention_bias\": true}",
    DEEPSEEK_TEXT ", \"n_shared_experts\": 1, \"tie_word_embeddings\": true}",
    DEEPSEEK_TEXT ", \"n_shared_experts\": 1, \"seq_aux\": false, \"aux_loss_alpha\": 0.5}",
    DEEPSEEK_TEXT ", \"n_shared_experts\": 1, \"rope_scaling\": {" YARN "}}",
    DEEPSEEK_TEXT ", \"n_shared_experts\": 1, \"rope_scaling\": {" YARN
                  ", \"beta_fast\": 16, \"beta_slow\": 2, \"mscale\": 2, \"mscale_all_dim\": 3}}",
    DEEPSEEK_TEXT ", \"n_shared_experts\": 1, \"topk_method\": \"group_limited_greedy\", "
                  "\"n_group\": 4, \"topk_group\": 2, \"routed_scaling_factor\": 3}",
    DEEPSEEK_TEXT ", \"n_shared_experts\": 1, \"topk_method\": \"group_limited_greedy\", "
                  "\"n_group\": 2, \"topk_group\": 1}",
};

enum { UNUSUAL = sizeof unusual / sizeof *unusual };

static void unusual_models_are_written_and_read_back(void **state)
{
    (void)state;
    pl_model models[UNUSUAL];
    for (int i = 0; i < UNUSUAL; ++i) {
        pl_model again;
        pl_text text = {0};
        assert_ok(pl_model_parse(&models[i], unusual[i], "x.json", "x"));
        pl_model_write(&text, &models[i]);
        assert_ok(pl_model_parse(&again, pl_text_string(&text), "written", "x"));
        assert_true(models_equal(&models[i], &again));
        for (int j = 0; j < i; ++j) assert_false(models_equal(&models[j], &again));
        pl_model_free(&again);
        pl_text_free(&text);
    }
    for (int i = 0; i < UNUSUAL; ++i) pl_model_free(&models[i]);
}

/* What transformers fills in where a file is silent. */
static void silent_files_get_the_defaults_of_their_class(void **state)
{
    (void)state;
    pl_model model;
    assert_ok(pl_model_parse(&model, MIXTRAL_TEXT "}", "x.json", "x"));
    assert_true(model.rope_theta == 1e6 && model.rms_norm_eps == 1e-5 && model.norm_topk_prob);
    assert_int_equal(model.head_dim, 16);
    assert_int_equal(model.moe_intermediate_size, 96);
    assert_int_equal(model.intermediate_size, 0); /* no layer is dense */
    pl_model_free(&model);
    assert_ok(pl_model_parse(&model, DEEPSEEK_TEXT ", \"n_shared_experts\": 2, \"n_group\": 4}",
                             "x.json", "x"));
    assert_true(model.rope_theta == 1e4 && model.rms_norm_eps == 1e-6 && !model.norm_topk_prob);
    assert_true(model.routed_scaling_factor == 1 && model.seq_aux && !model.rope_scaling.yarn);
    assert_int_equal(model.n_group, 0); /* which greedy does not use */
    pl_model_free(&model);
}

static void models_are_opened_by_name_file_and_folder(void **state)
{
    (void)state;
    pl_model by_name, by_file, kept;
    int count = 0;
    const char *const *names = pl_model_builtin_names(&count);
    assert_int_equal(count, 15);
    for (int i = 1; i < count; ++i) assert_true(strcmp(names[i - 1], names[i]) < 0);
    assert_ok(pl_model_open(&by_name, "tiny-moe"));
    assert_ok(pl_model_open(&by_file, "testdata/models/tiny-moe.json"));
    assert_true(models_equal(&by_name, &by_file));
    pl_model_free(&by_name);
    assert_ok(pl_model_open(&by_name, "testdata/hf-configs/qwen3-moe-tiny/"));
    assert_int_equal(by_name.vocab_size, 257);
    pl_model_free(&by_name);
    pl_model_free(&by_file);
    memset(&kept, 0x5a, sizeof kept);
    memset(&by_name, 0x5a, sizeof by_name);
    assert_fails(PL_BAD_INPUT, pl_model_open(&by_name, "qwen3-30b-a3"), "'qwen3-30b-a3'",
                 "did you mean 'qwen3-30b-a3b'?");
    assert_fails(PL_BAD_INPUT, pl_model_open(&by_name, "zzzzzzzzzzzz"), "allowed: deepseek-v2,",
                 "tiny-moe");
    assert_fails(PL_BAD_INPUT, pl_model_open(&by_name, "testdata/models"), "testdata/models/config",
                 "No such file");
    assert_fails(PL_BAD_INPUT, pl_model_open(&by_name, ""), "no built-in model");
    assert_fails(PL_UNSUPPORTED, pl_model_open(&by_name, "deepseek-v3"),
                 "built-in model deepseek-v3: key 'model_type': given \"deepseek_v3\"",
                 "allowed: llama, qwen3, qwen3_moe, mixtral, deepseek_v2");
    assert_null(strstr(pl_error_text(), "did you mean")); /* another version is no slip */
    assert_memory_equal(&by_name, &kept, sizeof kept);
}

static pl_status open_write_and_read(void)
{
    pl_model model, again;
    pl_text text = {0};
    PL_TRY(pl_model_open(&model, "testdata/hf-configs/qwen3-moe-dense-first"));
    pl_model_write(&text, &model);
    pl_status status = pl_text_status(&text);
    if (status == PL_OK) status = pl_model_parse(&again, pl_text_string(&text), "x", "y");
    if (status == PL_OK) pl_model_free(&again);
    pl_model_free(&model);
    pl_text_free(&text);
    return status;
}

static pl_status open_nonsense(void)
{
    pl_model model;
    return pl_model_open(&model, "qwen3-30b-a3");
}

static void assert_reports_allocation_failures(pl_status (*body)(void), pl_status last)
{
    for (int64_t after = 0;; ++after) {
        pl_allocation_fail_after(after);
        pl_status status = body();
        bool failed = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        assert_int_equal(status, failed ? PL_NO_MEMORY : last);
        if (failed) continue;
        assert_true(after > 0);
        return;
    }
}

static void allocation_failures_are_reported(void **state)
{
    (void)state;
    assert_reports_allocation_failures(open_write_and_read, PL_OK);
    assert_reports_allocation_failures(open_nonsense, PL_BAD_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_spellings_are_one_model),
        cmocka_unit_test(other_spellings_are_the_same_model),
        cmocka_unit_test(writing_and_reading_back),
        cmocka_unit_test(unusual_models_are_written_and_read_back),
        cmocka_unit_test(silent_files_get_the_defaults_of_their_class),
        cmocka_unit_test(models_are_opened_by_name_file_and_folder),
        cmocka_unit_test(allocation_failures_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
