/* Parts and units: what they are, and what they hold, against sums over the boxes of all ranks. */
#include <inttypes.h>
#include <stdio.h>

#include "common/memory.h"
#include "common/parts.h"
#include "common/placement.h"
#include "tests/common/plan_cases.h"
#include "tests/test.h"

static const pl_precision fp32 = {PL_FP32, PL_FP32, PL_FP32, PL_FP32};
static const pl_precision bf16 = {PL_BF16, PL_BF16, PL_FP32, PL_FP32};

/* A model in parts. */
typedef struct cut {
    pl_model model;
    pl_layout layout;
    pl_parts parts;
} cut;

static cut cut_model(pl_model model, const char *notation, const pl_precision *precision)
{
    cut c = {.model = model};
    assert_ok(pl_layout_parse(&c.layout, notation));
    assert_ok(pl_placement_check(&c.layout, &c.model));
    assert_ok(pl_parts_make(&c.parts, &c.model, &c.layout, precision));
    return c;
}

static cut cut_case(const char *name, const char *notation, const char *keep, const char *frozen)
{
    pl_model model;
    assert_ok(plan_case_model(&model, name));
    assert_ok(pl_model_apply_patterns(&model, &keep, keep != NULL, &frozen, frozen != NULL));
    return cut_model(model, notation, &fp32);
}

static void free_cut(cut *c)
{
    pl_parts_free(&c->parts);
    pl_model_free(&c->model);
}

/* --- sums over boxes --- */

/* Rows of the largest box that any rank holds: what buffers must have room for. */
static int64_t largest_rows(const pl_layout *layout, const pl_tensor *tensor)
{
    int64_t most = 0;
    for (int64_t rank = 0; rank < layout->world; ++rank) {
        pl_box box = pl_placement_box(layout, tensor, rank);
        if (box.end - box.begin > most) most = box.end - box.begin;
    }
    return most;
}

/* How often PART's sums differ from those over the boxes of its tensors. SHARE stands for the rows
 * a buffer has: the right one, or a wrong one to show that the comparison sees it. */
static int64_t wrong_sums(const cut *c, int32_t number, const pl_precision *precision,
                          int64_t (*share)(const pl_layout *layout, const pl_tensor *tensor))
{
    const pl_part *part = &c->parts.part[number];
    int64_t trained = 0, frozen = 0, whole = 0, whole_frozen = 0, bytes = 0;
    bool cast = false;
    for (int64_t i = 0; i < part->tensor_count; ++i) {
        const pl_tensor *tensor = &c->model.tensors[part->first_tensor + i];
        if (tensor->class_ == PL_CLASS_IGNORED) {
            *(tensor->frozen ? &whole_frozen : &whole) += tensor->rows * tensor->cols;
            continue;
        }
        int64_t elements = share(&c->layout, tensor) * tensor->cols;
        pl_dtype wire = tensor->frozen ? c->model.stored_dtype : precision->gather;
        *(tensor->frozen ? &frozen : &trained) += elements;
        bytes += elements * (wire == PL_FP32 ? 4 : 2);
        cast |= wire != precision->compute;
    }
    return (part->trained_elements != trained) + (part->frozen_elements != frozen) +
           (part->ignored_elements != whole) + (part->ignored_frozen_elements != whole_frozen) +
           (part->wire_bytes != bytes) + (part->cast_after_gather != cast);
}

/* Forgets the padding: what one member has on average. */
static int64_t unpadded_rows(const pl_layout *layout, const pl_tensor *tensor)
{
    int64_t shards = pl_layout_group_size(layout, pl_placement_shard_role(tensor));
    int64_t rows = tensor->experts ? tensor->experts / layout->ep * tensor->rows : tensor->rows;
    return rows / shards;
}

/* Local elements of the ranks that together hold a part once come to all its elements. */
static int64_t wrong_local_sums(const cut *c, int32_t number)
{
    const pl_part *part = &c->parts.part[number];
    int64_t all[2] = {0, 0}, found[2] = {0, 0};
    for (int64_t i = 0; i < part->tensor_count; ++i) {
        const pl_tensor *tensor = &c->model.tensors[part->first_tensor + i];
        if (tensor->class_ != PL_CLASS_IGNORED) all[tensor->frozen] += pl_tensor_elements(tensor);
    }
    for (int64_t rank = 0; rank < c->layout.world; ++rank)
        for (int frozen = 0; frozen < 2; ++frozen)
            if (pl_layout_group_index(&c->layout, part->replica_role, rank) == 0)
                found[frozen] +=
                    pl_parts_local_elements(&c->parts, &c->model, &c->layout, number, rank, frozen);
    return (all[0] != found[0]) + (all[1] != found[1]);
}

static void expect_sums(const cut *c, const pl_precision *precision)
{
    for (int32_t i = 0; i < c->parts.part_count; ++i) {
        assert_int_equal(wrong_sums(c, i, precision, largest_rows), 0);
        assert_int_equal(wrong_local_sums(c, i), 0);
    }
}

static const char *const layouts[] = {"single:world=8,ep=4",
                                      "legacy:world=8,ep=4",
                                      "legacy:world=8,replicas=2",
                                      "decoupled:world=8,ep=2,replicas=2",
                                      "folded:world=8,ep=8",
                                      "decoupled:world=12,ep=2,grain=expert",
                                      "folded:world=1"};

static void sums_are_those_of_the_boxes(void **state)
{
    static const struct {
        const char *model, *keep, *frozen;
    } cases[] = {{"moe", NULL, NULL},
                 {"moe", "*mlp.gate.*", "*experts.down_proj*"},
                 {"mixed", "q_norm", "model.layers.1.*"},
                 {"moe-tied", "*norm*", "*norm*"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        for (size_t j = 0; j < sizeof layouts / sizeof *layouts; ++j) {
            cut c = cut_case(cases[i].model, layouts[j], cases[i].keep, cases[i].frozen);
            expect_sums(&c, &fp32);
            free_cut(&c);
        }
    }
}

static void forgotten_padding_would_be_seen(void **state)
{
    (void)state;
    cut c = cut_case("moe", "decoupled:world=8,ep=4", NULL, NULL);
    assert_int_not_equal(wrong_sums(&c, c.parts.embedding, &fp32, unpadded_rows), 0);
    assert_int_not_equal(wrong_sums(&c, c.parts.layer[1], &fp32, unpadded_rows), 0);
    free_cut(&c);
    /* 8 experts of 5 rows over 3 shards: 40 rows in chunks of 14 */
    c = cut_case("moe", "decoupled:world=3", NULL, NULL);
    assert_int_not_equal(wrong_sums(&c, c.parts.experts[0], &fp32, unpadded_rows), 0);
    free_cut(&c);
}

static void late_members_hold_less_or_nothing(void **state)
{
    /* 11 rows of 6 over 8 members: 2, 2, 2, 2, 2, 1, 0, 0 */
    static const int64_t rows[8] = {2, 2, 2, 2, 2, 1, 0, 0};
    (void)state;
    cut c = cut_case("moe", "decoupled:world=8,ep=4", NULL, NULL);
    for (int64_t rank = 0; rank < 8; ++rank)
        assert_int_equal(
            pl_parts_local_elements(&c.parts, &c.model, &c.layout, c.parts.embedding, rank, false),
            6 * rows[rank]);
    assert_int_equal(c.parts.part[c.parts.embedding].trained_elements, 12);
    free_cut(&c);
}

/* --- which parts and units there are --- */

static void expect_part(const cut *c, int32_t number, pl_subject subject, int32_t layer)
{
    assert_in_range(number, 0, c->parts.part_count - 1);
    assert_int_equal(c->parts.part[number].subject, subject);
    assert_int_equal(c->parts.part[number].layer, layer);
}

/* Parts stand in the order of the model and cover each tensor once; units lead to them. */
static void expect_order(const cut *c)
{
    int64_t next = 0;
    int32_t part = 0;
    for (int32_t i = 0; i < c->parts.part_count; ++i) {
        assert_int_equal(c->parts.part[i].first_tensor, next);
        next += c->parts.part[i].tensor_count;
    }
    assert_int_equal(next, c->model.tensor_count);
    for (int32_t i = 0; i < c->parts.unit_count; ++i) {
        const pl_unit *unit = &c->parts.unit[i];
        int64_t bytes = 0;
        for (int32_t j = 0; j < unit->part_count; ++j, ++part) {
            assert_int_equal(unit->part[j], part);
            assert_int_equal(c->parts.part[part].unit, i);
            bytes += c->parts.part[part].wire_bytes;
        }
        assert_int_equal(unit->wire_bytes, bytes);
        assert_int_equal(unit->shards, pl_layout_group_size(&c->layout, unit->shard_role));
    }
    assert_int_equal(part, c->parts.part_count);
}

static void expect_qwen(const char *notation, int32_t units, int64_t dense, int64_t experts)
{
    pl_model model;
    assert_ok(pl_model_open(&model, "qwen3-30b-a3b"));
    cut c = cut_model(model, notation, &bf16);
    assert_int_equal(c.parts.layer_count, 48);
    assert_int_equal(c.parts.part_count, 2 * 48 + 3);
    assert_int_equal(c.parts.unit_count, units);
    expect_part(&c, c.parts.embedding, PL_SUBJECT_EMBEDDING, -1);
    expect_part(&c, c.parts.norm, PL_SUBJECT_NORM, -1);
    expect_part(&c, c.parts.head, PL_SUBJECT_HEAD, -1);
    for (int32_t i = 0; i < 48; ++i) {
        expect_part(&c, c.parts.layer[i], PL_SUBJECT_LAYER, i);
        expect_part(&c, c.parts.experts[i], PL_SUBJECT_EXPERTS, i);
        assert_int_equal(c.parts.part[c.parts.layer[i]].like, c.parts.layer[0]);
        assert_int_equal(c.parts.part[c.parts.experts[i]].like, c.parts.experts[0]);
        assert_int_equal(c.parts.part[c.parts.layer[i]].shard_role, PL_GROUP_DENSE_SHARD);
        assert_int_equal(c.parts.part[c.parts.experts[i]].shard_role, PL_GROUP_EXPERT_SHARD);
        assert_int_equal(c.parts.part[c.parts.experts[i]].replica_role, PL_GROUP_EXPERT_REPLICA);
        bool same = c.parts.part[c.parts.layer[i]].unit == c.parts.part[c.parts.experts[i]].unit;
        assert_int_equal(same, c.layout.kind == PL_LAYOUT_LEGACY);
    }
    expect_order(&c);
    expect_sums(&c, &bf16);
    /* 151,936 rows of 2,048; 128 experts of three matrices of 768 x 2,048 */
    const pl_part *embedding = &c.parts.part[c.parts.embedding];
    assert_int_equal(embedding->trained_elements * dense, INT64_C(151936) * 2048);
    assert_int_equal(embedding->wire_bytes, 2 * embedding->trained_elements);
    assert_int_equal(c.parts.part[c.parts.experts[7]].trained_elements * experts * c.layout.ep,
                     INT64_C(128) * 3 * 768 * 2048);
    free_cut(&c);
}

static void qwen3_30b_has_these_units(void **state)
{
    (void)state;
    expect_qwen("single:world=16,ep=4", 99, 16, 4);
    expect_qwen("legacy:world=16,ep=4", 51, 4, 4);
    expect_qwen("decoupled:world=16,ep=4,replicas=2", 99, 8, 2);
    expect_qwen("folded:world=16,ep=8", 99, 16, 2);
}

/* DeepSeek-V2's first layer has no experts, its others have shared ones in the layer's own part. */
static void other_families_have_parts_too(void **state)
{
    (void)state;
    static const char *const names[] = {"deepseek-v2-lite", "mixtral-8x7b"};
    static const int32_t layers[] = {27, 32}, parts[] = {2 * 27 + 2, 2 * 32 + 3};
    static const char *const notations[] = {"legacy:world=8,ep=4", "folded:world=16,ep=8",
                                            "single:world=7,grain=expert"};
    for (int m = 0; m < 2; ++m)
        for (int n = 0; n < 3; ++n) {
            pl_model model;
            assert_ok(pl_model_open(&model, names[m]));
            cut c = cut_model(model, notations[n], &bf16);
            assert_int_equal(c.parts.layer_count, layers[m]);
            assert_int_equal(c.parts.part_count, parts[m]);
            assert_int_equal(c.parts.experts[0] < 0, m == 0);
            for (int32_t i = 1; i < layers[m]; ++i) {
                expect_part(&c, c.parts.layer[i], PL_SUBJECT_LAYER, i);
                expect_part(&c, c.parts.experts[i], PL_SUBJECT_EXPERTS, i);
                assert_int_equal(c.parts.part[c.parts.experts[i]].tensor_count, 3);
            }
            expect_order(&c);
            expect_sums(&c, &bf16);
            free_cut(&c);
        }
}

static void a_tied_head_is_the_embedding(void **state)
{
    (void)state;
    cut c = cut_case("moe-tied", "legacy:world=8,ep=4", NULL, NULL);
    assert_int_equal(c.parts.head, c.parts.embedding);
    assert_int_equal(c.parts.part_count, 2 * 2 + 2);
    assert_int_equal(c.parts.unit_count, 2 + 2);
    expect_order(&c);
    free_cut(&c);
}

static void dense_models_have_no_experts(void **state)
{
    (void)state;
    cut c = cut_case("dense", "legacy:world=8", NULL, NULL);
    assert_int_equal(c.parts.part_count, 2 + 3);
    assert_int_equal(c.parts.unit_count, 2 + 3);
    for (int32_t i = 0; i < 2; ++i) assert_int_equal(c.parts.experts[i], -1);
    expect_order(&c);
    free_cut(&c);
}

static void mixed_layers_have_two_shapes(void **state)
{
    (void)state;
    for (int legacy = 0; legacy < 2; ++legacy) {
        cut c =
            cut_case("mixed", legacy ? "legacy:world=8,ep=4" : "folded:world=8,ep=4", NULL, NULL);
        const pl_parts *p = &c.parts;
        assert_int_equal(p->part_count, 3 + 2 + 3);
        assert_int_equal(p->unit_count, legacy ? 3 + 3 : 3 + 2 + 3);
        assert_int_equal(p->experts[0], -1);
        expect_part(&c, p->experts[1], PL_SUBJECT_EXPERTS, 1);
        assert_int_not_equal(p->part[p->layer[0]].like, p->part[p->layer[1]].like);
        assert_int_equal(p->part[p->layer[2]].like, p->part[p->layer[1]].like);
        expect_order(&c);
        free_cut(&c);
    }
}

static void equal_layers_differ_once_one_is_frozen_or_whole(void **state)
{
    (void)state;
    cut c = cut_case("moe", "folded:world=8,ep=4", NULL, "model.layers.1.mlp.gate.weight");
    assert_int_not_equal(c.parts.part[c.parts.layer[0]].like, c.parts.part[c.parts.layer[1]].like);
    assert_int_equal(c.parts.part[c.parts.experts[0]].like, c.parts.part[c.parts.experts[1]].like);
    free_cut(&c);
    c = cut_case("moe", "folded:world=8,ep=4", "model.layers.0.mlp.gate.weight", NULL);
    assert_int_not_equal(c.parts.part[c.parts.layer[0]].like, c.parts.part[c.parts.layer[1]].like);
    free_cut(&c);
}

/* --- what trains --- */

/* Four bits: sharded attention, sharded feed, whole attention, whole feed. */
static int trained_bits(const cut *c, int32_t number)
{
    const pl_part *p = &c->parts.part[number];
    return p->trained_sharded[0] * 8 + p->trained_sharded[1] * 4 + p->trained_ignored[0] * 2 +
           p->trained_ignored[1];
}

static void modules_know_what_trains(void **state)
{
    static const struct {
        const char *keep, *frozen;
        int layer, experts, norm;
    } cases[] = {
        {NULL, NULL, 12, 8, 8},
        {NULL, "*self_attn*", 12, 8, 8}, /* the input norm still trains */
        {NULL, "*mlp*", 12, 0, 8},       /* so does the other one */
        {NULL, "model.layers.1.*", 0, 0, 8},
        {"*mlp.gate.*", NULL, 13, 8, 8},
        {"q_norm", "*experts*", 14, 0, 8},
        {"*norm*", "*norm*", 12, 8, 0},
        {"*norm*", NULL, 15, 8, 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        cut c = cut_case("moe", "decoupled:world=8,ep=4", cases[i].keep, cases[i].frozen);
        assert_int_equal(trained_bits(&c, c.parts.layer[1]), cases[i].layer);
        assert_int_equal(trained_bits(&c, c.parts.experts[1]), cases[i].experts);
        assert_int_equal(trained_bits(&c, c.parts.norm), cases[i].norm);
        free_cut(&c);
    }
}

static void wire_types_follow_precision_and_storage(void **state)
{
    const char *frozen = "q_proj";
    pl_model model;
    (void)state;
    assert_ok(plan_case_model(&model, "moe"));
    assert_ok(pl_model_apply_patterns(&model, NULL, 0, &frozen, 1));
    cut c = cut_model(model, "decoupled:world=4,ep=2", &bf16);
    expect_sums(&c, &bf16);
    /* stored as fp32: the frozen tensor travels so and is cast; the experts are not */
    assert_true(c.parts.part[c.parts.layer[0]].cast_after_gather);
    assert_false(c.parts.part[c.parts.experts[0]].cast_after_gather);
    for (int64_t i = 0; i < c.model.tensor_count; ++i)
        assert_int_equal(pl_parts_wire_dtype(&c.model, &bf16, &c.model.tensors[i]),
                         c.model.tensors[i].frozen ? PL_FP32 : PL_BF16);
    free_cut(&c);
}

/* --- what goes wrong --- */

static void sizes_that_overflow_are_refused(void **state)
{
    pl_model model;
    pl_layout layout;
    pl_parts parts;
    (void)state;
    assert_ok(plan_case_model(&model, "moe"));
    assert_ok(pl_layout_parse(&layout, "folded:world=4,ep=4"));
    int64_t rows = model.tensors[0].rows, cols = model.tensors[0].cols;
    model.tensors[0].rows = INT64_MAX / 2;
    assert_fails(PL_BAD_INPUT, pl_parts_make(&parts, &model, &layout, &fp32), "63 bits");
    model.tensors[0].rows = INT64_MAX; /* a shard fits in elements, not in bytes */
    model.tensors[0].cols = 1;
    assert_fails(PL_BAD_INPUT, pl_parts_make(&parts, &model, &layout, &fp32), "63 bits", "x 4");
    model.tensors[0].rows = rows;
    model.tensors[0].cols = cols;
    model.tensors[1].class_ = PL_CLASS_IGNORED;
    model.tensors[1].rows = INT64_MAX - 1;
    assert_ok(pl_parts_make(&parts, &model, &layout, &fp32));
    pl_parts_free(&parts);
    model.tensors[2].class_ = PL_CLASS_IGNORED;
    assert_fails(PL_BAD_INPUT, pl_parts_make(&parts, &model, &layout, &fp32), "63 bits", "+");
    pl_model_free(&model);
}

static void failed_allocations_are_reported(void **state)
{
    pl_model model;
    pl_layout layout;
    pl_parts parts = {0};
    pl_status status = PL_OK;
    int64_t n = -1;
    (void)state;
    assert_ok(plan_case_model(&model, "mixed"));
    assert_ok(pl_layout_parse(&layout, "legacy:world=4,ep=2"));
    for (int failed = 1; failed;) {
        pl_allocation_fail_after(++n);
        status = pl_parts_make(&parts, &model, &layout, &fp32);
        failed = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        if (failed) assert_int_equal(status, PL_NO_MEMORY);
    }
    assert_ok(status);
    assert_true(n >= 4);
    pl_parts_free(&parts);
    pl_model_free(&model);
}

/* --- payloads --- */

/* How many things are wrong about the payload of a part, with OFF bytes added to each offset. */
static int64_t wrong_payload(const cut *c, int32_t number, const pl_precision *precision,
                             int64_t off)
{
    enum { MOST = 32 };
    const pl_part *part = &c->parts.part[number];
    pl_payload_item items[MOST];
    int64_t next = 0, wrong = 0, sharded = 0;
    int64_t count =
        pl_parts_payload(&c->parts, &c->model, &c->layout, precision, number, items, MOST);
    for (int64_t i = 0; i < part->tensor_count; ++i)
        sharded += c->model.tensors[part->first_tensor + i].class_ != PL_CLASS_IGNORED;
    assert_true(count <= MOST);
    for (int64_t i = 0; i < count; ++i) {
        const pl_tensor *tensor = &c->model.tensors[items[i].tensor];
        pl_dtype stored = tensor->frozen ? c->model.stored_dtype : precision->gather;
        wrong += items[i].offset_bytes + off != next || items[i].wire != stored;
        wrong += items[i].padded_rows != largest_rows(&c->layout, tensor);
        wrong += tensor->class_ == PL_CLASS_IGNORED || items[i].scale_bytes != 0;
        next += items[i].padded_rows * tensor->cols * pl_dtype_bytes(stored);
    }
    return wrong + (count != sharded) + (next != part->wire_bytes);
}

static void payloads_are_the_parts_tensor_by_tensor(void **state)
{
    static const char *const notations[] = {"legacy:world=4,ep=2", "decoupled:world=4,ep=2",
                                            "folded:world=8,ep=2,replicas=2", "single:world=2"};
    (void)state;
    for (size_t i = 0; i < sizeof notations / sizeof *notations; ++i) {
        cut c = cut_case("moe", notations[i], "mlp.gate.weight", "q_proj");
        for (int32_t part = 0; part < c.parts.part_count; ++part) {
            pl_payload_item first;
            assert_int_equal(wrong_payload(&c, part, &fp32, 0), 0);
            assert_true(wrong_payload(&c, part, &fp32, 1) > 0);
            int64_t count = pl_parts_payload(&c.parts, &c.model, &c.layout, &fp32, part, &first, 1);
            assert_true(count >= 1 && first.offset_bytes == 0);
        }
        free_cut(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_those_of_the_boxes),
        cmocka_unit_test(forgotten_padding_would_be_seen),
        cmocka_unit_test(late_members_hold_less_or_nothing),
        cmocka_unit_test(qwen3_30b_has_these_units),
        cmocka_unit_test(other_families_have_parts_too),
        cmocka_unit_test(a_tied_head_is_the_embedding),
        cmocka_unit_test(dense_models_have_no_experts),
        cmocka_unit_test(mixed_layers_have_two_shapes),
        cmocka_unit_test(equal_layers_differ_once_one_is_frozen_or_whole),
        cmocka_unit_test(modules_know_what_trains),
        cmocka_unit_test(wire_types_follow_precision_and_storage),
        cmocka_unit_test(payloads_are_the_parts_tensor_by_tensor),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(failed_allocations_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
