/* keep_fp32 and frozen patterns. */
#include "common/memory.h"
#include "common/model.h"
#include "tests/test.h"

static pl_model open_model(const char *name)
{
    pl_model model;
    assert_ok(pl_model_open(&model, name));
    return model;
}

static pl_status keep(pl_model *model, const char *pattern)
{
    return pl_model_apply_patterns(model, &pattern, 1, NULL, 0);
}

static pl_status freeze(pl_model *model, const char *pattern)
{
    return pl_model_apply_patterns(model, NULL, 0, &pattern, 1);
}

static int ignored(const pl_model *model)
{
    int count = 0;
    for (int64_t i = 0; i < model->tensor_count; ++i)
        count += model->tensors[i].class_ == PL_CLASS_IGNORED;
    return count;
}

static int frozen(const pl_model *model)
{
    int count = 0;
    for (int64_t i = 0; i < model->tensor_count; ++i) count += model->tensors[i].frozen;
    return count;
}

/* tiny-moe: 4 layers of 12 tensors; embedding, norm and head. */
static void patterns_match_the_whole_name_or_a_part(void **state)
{
    (void)state;
    static const struct {
        const char *pattern;
        int tensors;
    } cases[] = {
        {"q_norm", 4},
        {"self_attn.q_norm", 4},
        {"model.layers.3.self_attn.q_norm.weight", 1},
        {"layers.1", 0 /* an expert, refused */},
        {"norm", 1},
        {"model.norm.weight", 1},
        {"*norm*", 4 * 4 + 1},
        {"*.q_norm.*", 4},
        {"*q_norm", 0},
        {"model.layers.?.mlp.gate.weight", 4},
        {"mlp.gate", 4},
        {"gate", 4},
        {"lm_head.weigh?", 1},
        {"lm_head.weight?", 0},
        {"model.*.self_attn.*.weight", 4 * 6},
        {"**lm_head**", 1},
        {"q_nor", 0},
        {"", 0},
        {".", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        pl_model model = open_model("tiny-moe");
        pl_status status = keep(&model, cases[i].pattern);
        assert_int_equal(status, cases[i].tensors ? PL_OK : PL_BAD_INPUT);
        assert_int_equal(ignored(&model), cases[i].tensors);
        assert_int_equal(frozen(&model), 0);
        pl_model_free(&model);
    }
}

/* A part is a whole word between dots: layer 1 is not layer 11. */
static void parts_end_at_dots(void **state)
{
    (void)state;
    pl_model model = open_model("qwen3-8b");
    assert_ok(keep(&model, "layers.1"));
    assert_int_equal(ignored(&model), 11);
    for (int64_t i = 0; i < model.tensor_count; ++i)
        assert_int_equal(model.tensors[i].class_ == PL_CLASS_IGNORED, model.tensors[i].layer == 1);
    pl_model_free(&model);
}

static void experts_cannot_be_kept_whole(void **state)
{
    (void)state;
    static const char *const patterns[] = {
        "*",
        "experts",
        "gate_proj",
        "*.down_proj.weight",
        "model.layers.2.mlp.experts.up_proj.weight",
        "model.layers.2.mlp.experts.5.up_proj.weight",
        "model.layers.2.mlp.experts.*.up_proj.weight",
        "experts.7",
    };
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; ++i) {
        pl_model model = open_model("tiny-moe");
        assert_fails(PL_BAD_INPUT, keep(&model, patterns[i]), "keep_fp32: pattern", patterns[i],
                     "routed experts", "mlp.experts.");
        assert_int_equal(ignored(&model), 0);
        pl_model_free(&model);
    }
}

static void experts_can_be_frozen_a_layer_at_a_time(void **state)
{
    (void)state;
    pl_model model = open_model("tiny-moe");
    assert_ok(freeze(&model, "model.layers.2.mlp.experts.*.up_proj.weight"));
    assert_int_equal(frozen(&model), 1);
    assert_ok(freeze(&model, "experts"));
    assert_int_equal(frozen(&model), 12);
    assert_int_equal(ignored(&model), 0);
    pl_model_free(&model);
    model = open_model("tiny-moe");
    assert_fails(PL_BAD_INPUT, freeze(&model, "experts.7"), "frozen: pattern 'experts.7'",
                 "mlp.experts.7.gate_proj.weight", "1 of its layer's 8 experts");
    assert_int_equal(frozen(&model), 0);
    pl_model_free(&model);
}

static void unmatched_patterns_are_answered(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"q_nrom", "did you mean 'q_norm'?"},
        {"*.q_nrom.*", "did you mean '*.q_norm.*'?"},
        {"model.layers.0.self_atn.q_norm.weight",
         "did you mean 'model.layers.0.self_attn.q_norm.weight'?"},
        {"layers.9", "layers 0 to 3"},
        {"zzz", "Names are like 'model.layers.0.input_layernorm.weight'"},
        {"", "pattern '' matches no tensor of tiny-moe."},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        pl_model model = open_model("tiny-moe");
        assert_fails(PL_BAD_INPUT, freeze(&model, cases[i][0]), "frozen: pattern", cases[i][0],
                     "matches no tensor", cases[i][1]);
        assert_int_equal(frozen(&model), 0);
        pl_model_free(&model);
    }
    /* Only words of this model are proposed: llama has no q_norm. */
    pl_model model = open_model("llama-3-8b");
    assert_fails(PL_BAD_INPUT, freeze(&model, "q_norm"), "matches no tensor");
    assert_null(strstr(pl_error_text(), "q_norm'?"));
    pl_model_free(&model);
}

/* Words that DeepSeek-V2 and Mixtral alone have. */
static void other_families_have_names_of_their_own(void **state)
{
    (void)state;
    pl_model model = open_model("deepseek-v2-lite");
    assert_ok(keep(&model, "kv_a_layernorm"));
    assert_int_equal(ignored(&model), 27);
    assert_ok(keep(&model, "shared_experts")); /* which are no routed ones */
    assert_int_equal(ignored(&model), 27 + 26 * 3);
    assert_fails(PL_BAD_INPUT, freeze(&model, "kv_a_layrnorm"), "did you mean 'kv_a_layernorm'?");
    assert_fails(PL_BAD_INPUT, freeze(&model, "shared_expert"), "did you mean 'shared_experts'?");
    assert_fails(PL_BAD_INPUT, freeze(&model, "q_a_proj"), "matches no tensor");
    pl_model_free(&model);
    model = open_model("mixtral-8x7b");
    assert_fails(PL_BAD_INPUT, keep(&model, "w1"), "routed experts",
                 "model.layers.0.block_sparse_moe.experts.w1.weight");
    assert_fails(PL_BAD_INPUT, freeze(&model, "experts.7"), "block_sparse_moe.experts.7.w1.weight",
                 "1 of its layer's 8 experts");
    assert_ok(freeze(&model, "model.layers.3.block_sparse_moe.experts.*.w2.weight"));
    assert_int_equal(frozen(&model), 1);
    pl_model_free(&model);
}

/* One wrong pattern among several: nothing happens. */
static void all_patterns_or_none(void **state)
{
    (void)state;
    static const char *const kept[] = {"q_norm", "k_norm"}, *const still[] = {"lm_head", "nothing"};
    pl_model model = open_model("tiny-moe");
    assert_fails(PL_BAD_INPUT, pl_model_apply_patterns(&model, kept, 2, still, 2), "frozen",
                 "'nothing'");
    assert_int_equal(ignored(&model) + frozen(&model), 0);
    assert_ok(pl_model_apply_patterns(&model, kept, 2, still, 1));
    assert_int_equal(ignored(&model), 8);
    assert_int_equal(frozen(&model), 1);
    assert_true(model.tensors[model.tensor_count - 1].frozen);
    assert_ok(pl_model_apply_patterns(&model, NULL, 0, NULL, 0));
    assert_int_equal(ignored(&model), 8);
    pl_model_free(&model);
}

/* A pattern made to defeat naive matching, on the model with the most tensors. */
static void hard_patterns_end(void **state)
{
    (void)state;
    pl_model model = open_model("qwen3-235b-a22b");
    assert_fails(PL_BAD_INPUT, freeze(&model, "*a*e*l*e*r*s*o*e*t*a*e*l*e*r*s*o*e*t*x"),
                 "matches no tensor");
    pl_model_free(&model);
}

static void check_allocation_failures(const char *kept, const char *still, pl_status last)
{
    for (int64_t after = 0;; ++after) {
        pl_model model = open_model("tiny-moe");
        pl_allocation_fail_after(after);
        pl_status status = pl_model_apply_patterns(&model, &kept, 1, &still, 1);
        bool failed = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        assert_int_equal(status, failed ? PL_NO_MEMORY : last);
        assert_int_equal(ignored(&model) + frozen(&model), status == PL_OK ? 5 : 0);
        pl_model_free(&model);
        if (failed) continue;
        assert_true(after > 1);
        return;
    }
}

static void allocation_failures_are_reported(void **state)
{
    (void)state;
    check_allocation_failures("q_norm", "lm_head", PL_OK);
    check_allocation_failures("q_norm", "lm_haed", PL_BAD_INPUT);
    check_allocation_failures("experts.3", "lm_head", PL_BAD_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_match_the_whole_name_or_a_part),
        cmocka_unit_test(parts_end_at_dots),
        cmocka_unit_test(experts_cannot_be_kept_whole),
        cmocka_unit_test(experts_can_be_frozen_a_layer_at_a_time),
        cmocka_unit_test(unmatched_patterns_are_answered),
        cmocka_unit_test(other_families_have_names_of_their_own),
        cmocka_unit_test(all_patterns_or_none),
        cmocka_unit_test(hard_patterns_end),
        cmocka_unit_test(allocation_failures_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
