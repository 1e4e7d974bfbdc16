/* Where tensors stand in the buffers of their parts, against what the plan says that buffers hold
 * and against the payloads that a gather moves.
 */
#include <stdlib.h>

#include "common/memory.h"
#include "tests/common/plan_cases.h"
#include "tests/test.h"
#include "train/part_map.h"

static const char *const layouts[] = {
    "single:world=1", "legacy:world=8,ep=4", "decoupled:world=8,ep=2,replicas=2",
    "decoupled:world=12,ep=2,grain=expert", "folded:world=8,ep=8"};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static void make_plan(pl_plan *plan, const char *layout, bool bf16, const char *frozen)
{
    plan_case c = {.model = "mixed",
                   .layout = layout,
                   .bf16 = bf16,
                   .frozen = {frozen},
                   .keep_fp32 = {"k_norm"}};
    assert_ok(plan_case_build(plan, &c, false));
}

static pl_part_map make_map(const pl_plan *plan, int64_t rank)
{
    pl_part_map map;
    assert_ok(pl_part_map_make(&map, &plan->model, &plan->layout, &plan->settings.precision, rank));
    return map;
}

/* Every buffer of a part, of all programs: how many. */
static int compare_buffers(const pl_plan *plan, const pl_part_map *map, int64_t rank)
{
    int compared = 0;
    for (int p = 0; p < PL_PROGRAM_COUNT; ++p) {
        const pl_section *section = pl_plan_section(plan, (pl_program)p, rank);
        for (size_t i = 0; section && i < section->buffer_count; ++i) {
            const pl_buffer *buffer = &section->buffers[i];
            pl_buffer_kind kind = (pl_buffer_kind)buffer->kind;
            if (pl_buffer_kind_scope(kind) != PL_SCOPE_PART) continue;
            int32_t part = pl_part_map_part(map, (pl_subject)buffer->subject, buffer->layer);
            assert_true(part >= 0);
            assert_int_equal(pl_part_map_bytes(map, kind, part), buffer->bytes);
            ++compared;
        }
    }
    return compared;
}

static void sizes_are_those_of_the_plan(void **state)
{
    (void)state;
    for (int i = 0; i < LAYOUTS; ++i) {
        for (int variant = 0; variant < 2; ++variant) {
            pl_plan plan;
            /* Types of two sizes lie aligned only where there are no odd shards. */
            const char *frozen = i == 0 || variant == 0 ? "q_norm" : "*embed_tokens*";
            make_plan(&plan, layouts[i], variant > 0, frozen);
            for (int64_t rank = 0; rank < plan.layout.world; rank += 3) {
                pl_part_map map = make_map(&plan, rank);
                assert_true(compare_buffers(&plan, &map, rank) > 60);
                pl_part_map_free(&map);
            }
            pl_plan_free(&plan);
        }
    }
}

/* In buffers of KIND, tensors stand one behind the other, without gaps, from 0 to the end. */
static void assert_tiled(const pl_part_map *map, pl_buffer_kind kind, int32_t part)
{
    const pl_part *p = &map->parts.part[part];
    int64_t end = 0;
    for (int64_t i = p->first_tensor; i < p->first_tensor + p->tensor_count; ++i) {
        pl_map_place place;
        if (!pl_part_map_place(map, kind, i, &place)) continue;
        assert_int_equal(place.offset, end);
        assert_true(place.end - place.begin <= place.room);
        end += place.room * place.cols * pl_dtype_bytes(place.dtype);
    }
    assert_int_equal(end, pl_part_map_bytes(map, kind, part));
}

static void tensors_tile_every_buffer(void **state)
{
    (void)state;
    for (int i = 0; i < LAYOUTS; ++i) {
        pl_plan plan;
        make_plan(&plan, layouts[i], true, i == 0 ? "q_norm" : "*embed_tokens*");
        pl_part_map map = make_map(&plan, plan.layout.world - 1);
        for (int32_t part = 0; part < map.parts.part_count; ++part)
            for (int kind = PL_BUF_PARAMETER; kind <= PL_BUF_IGNORED_GRADIENT; ++kind)
                assert_tiled(&map, (pl_buffer_kind)kind, part);
        pl_part_map_free(&map);
        pl_plan_free(&plan);
    }
}

static void parameters_stand_where_payloads_say(void **state)
{
    (void)state;
    for (int i = 0; i < LAYOUTS; ++i) {
        pl_plan plan;
        make_plan(&plan, layouts[i], true, i == 0 ? "q_norm" : "*embed_tokens*");
        const pl_precision *precision = &plan.settings.precision;
        pl_part_map map = make_map(&plan, 0);
        int64_t items = 0;
        for (int32_t part = 0; part < map.parts.part_count; ++part) {
            pl_payload_item item[32];
            int64_t count =
                pl_parts_payload(&map.parts, &plan.model, &plan.layout, precision, part, item, 32);
            for (int64_t j = 0; j < count; ++j, ++items) {
                pl_map_place shard, whole;
                assert_true(pl_part_map_place(&map, PL_BUF_PARAMETER, item[j].tensor, &shard));
                assert_true(pl_part_map_place(&map, PL_BUF_WIRE, item[j].tensor, &whole));
                assert_int_equal(shard.offset, item[j].offset_bytes);
                assert_int_equal(shard.room, item[j].padded_rows);
                assert_int_equal(shard.dtype, item[j].wire);
                assert_int_equal(whole.offset, item[j].offset_bytes * map.shards[part]);
                assert_int_equal(whole.room, item[j].padded_rows * map.shards[part]);
            }
        }
        assert_true(items > 20);
        pl_part_map_free(&map);
        pl_plan_free(&plan);
    }
}

/* Shards of the members, one behind the other, are the real rows of the whole without a gap. */
static void shards_make_up_the_whole(void **state)
{
    (void)state;
    for (int i = 0; i < LAYOUTS; ++i) {
        pl_plan plan;
        make_plan(&plan, layouts[i], false, "q_norm");
        for (int64_t t = 0; t < plan.model.tensor_count; ++t) {
            if (plan.model.tensors[t].class_ == PL_CLASS_IGNORED) continue;
            pl_map_place whole, shard;
            pl_part_map map = make_map(&plan, 0);
            pl_group_role role = map.parts.part[map.items[t].part].shard_role;
            pl_rank_set members = pl_layout_group(&plan.layout, role, 0);
            assert_true(pl_part_map_place(&map, PL_BUF_FULL, t, &whole));
            int64_t next = whole.begin;
            for (int64_t m = 0; m < pl_rank_set_size(&members); ++m) {
                pl_part_map other = make_map(&plan, pl_rank_set_member(&members, m));
                assert_true(pl_part_map_place(&other, PL_BUF_PARAMETER, t, &shard));
                if (shard.begin < shard.end) {
                    assert_int_equal(shard.begin, next);
                    assert_int_equal(shard.begin - whole.begin, m * shard.room);
                    next = shard.end;
                }
                pl_part_map_free(&other);
            }
            assert_int_equal(next, whole.end);
            pl_part_map_free(&map);
        }
        pl_plan_free(&plan);
    }
}

static void places_and_parts_that_are_not_there(void **state)
{
    (void)state;
    pl_plan plan;
    pl_map_place place;
    make_plan(&plan, "single:world=1", false, "q_norm");
    pl_part_map map = make_map(&plan, 0);
    int32_t layer = pl_part_map_part(&map, PL_SUBJECT_LAYER, 1);
    int64_t ignored = pl_part_map_find(&map, layer, "self_attn.k_norm.weight");
    int64_t frozen = pl_part_map_find(&map, layer, "self_attn.q_norm.weight");
    assert_true(ignored >= 0 && frozen >= 0);
    assert_false(pl_part_map_place(&map, PL_BUF_PARAMETER, ignored, &place));
    assert_true(pl_part_map_place(&map, PL_BUF_IGNORED_GRADIENT, ignored, &place));
    assert_true(pl_part_map_place(&map, PL_BUF_PARAMETER, frozen, &place));
    assert_false(pl_part_map_place(&map, PL_BUF_GRADIENT, frozen, &place));
    assert_false(pl_part_map_place(&map, PL_BUF_INPUT, frozen, &place));
    assert_int_equal(pl_part_map_bytes(&map, PL_BUF_CLIP, layer), -1);
    assert_int_equal(pl_part_map_find(&map, layer, "mlp.up_proj.weight"), -1);
    assert_int_equal(pl_part_map_part(&map, PL_SUBJECT_EXPERTS, 0), -1);
    assert_int_equal(pl_part_map_part(&map, PL_SUBJECT_LAYER, 3), -1);
    assert_int_equal(pl_part_map_part(&map, PL_SUBJECT_LAYER, -1), -1);
    assert_int_equal(pl_part_map_part(&map, PL_SUBJECT_GRADIENTS, -1), -1);
    pl_part_map_free(&map);
    pl_plan_free(&plan);
}

/* A frozen vector of 3 rows in bf16 before fp32 matrices: nobody could read those. */
static void types_that_would_not_be_aligned_are_refused(void **state)
{
    (void)state;
    static const char text[] =
        "{\"model_type\": \"qwen3\", \"num_hidden_layers\": 1, \"hidden_size\": 3, "
        "\"num_attention_heads\": 1, \"num_key_value_heads\": 1, \"head_dim\": 2, "
        "\"intermediate_size\": 3, \"vocab_size\": 5, \"max_position_embeddings\": 8, "
        "\"torch_dtype\": \"bfloat16\"}";
    static const char *const frozen[] = {"*input_layernorm*"};
    static const pl_precision fp32 = {PL_FP32, PL_FP32, PL_FP32, PL_FP32};
    pl_model model;
    pl_layout layout;
    pl_part_map map;
    assert_ok(pl_model_parse(&model, text, "odd", "odd"));
    assert_ok(pl_model_apply_patterns(&model, NULL, 0, frozen, 1));
    assert_ok(pl_layout_parse(&layout, "single:world=1"));
    assert_fails(PL_UNSUPPORTED, pl_part_map_make(&map, &model, &layout, &fp32, 0), "q_proj",
                 "fp32");
    pl_model_free(&model);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    pl_plan plan;
    make_plan(&plan, "legacy:world=8,ep=4", false, "q_norm");
    for (int64_t n = 0;; ++n) {
        pl_part_map map;
        pl_allocation_fail_after(n);
        pl_status status =
            pl_part_map_make(&map, &plan.model, &plan.layout, &plan.settings.precision, 0);
        int failed = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        assert_int_equal(status, failed ? PL_NO_MEMORY : PL_OK);
        if (status == PL_OK) pl_part_map_free(&map);
        if (!failed) break;
    }
    pl_plan_free(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_those_of_the_plan),
        cmocka_unit_test(tensors_tile_every_buffer),
        cmocka_unit_test(parameters_stand_where_payloads_say),
        cmocka_unit_test(shards_make_up_the_whole),
        cmocka_unit_test(places_and_parts_that_are_not_there),
        cmocka_unit_test(types_that_would_not_be_aligned_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests_name("train/part_map", tests, NULL, NULL);
}
