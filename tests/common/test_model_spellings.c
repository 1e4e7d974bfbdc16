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
           s->original_max_position_embeddings == t->original_max_position_embeddings;
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
                                          "qwen3-moe-tied"};
    for (int i = 0; i < 3; ++i) {
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
    for (int i = 0; i < count + 3; ++i) {
        static const char *const more[] = {"testdata/hf-configs/qwen3-moe-dense-first",
                                           "testdata/hf-configs/qwen3-moe-tied",
                                           "testdata/hf-configs/qwen3-moe-tiny-bf16-sharded"};
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
    assert_int_equal(written, 7 + 3);
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
                 "allowed: llama, qwen3, qwen3_moe");
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
        cmocka_unit_test(models_are_opened_by_name_file_and_folder),
        cmocka_unit_test(allocation_failures_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
