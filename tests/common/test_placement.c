/* Meshes, groups and boxes of forty layouts as PyTorch makes them (testdata/placements), and the
 * placement of whole models. Random layouts are in test_placement_properties.c.
 */
#include "tests/test.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/layout.h"
#include "common/memory.h"
#include "common/placement.h"
#include "tests/common/placement_answers.h"

enum { GOLDEN_FILES = 40 };

/* What was compared, and how often it differed. */
typedef struct tally {
    int64_t coordinates, members, boxes, empty, paddings;
    int64_t coordinate_faults, member_faults, box_faults, padding_faults;
} tally;

static int64_t number_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static int64_t number_at(const json_t *array, int64_t index)
{
    const json_t *value = json_array_get(array, (size_t)index);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static pl_layout layout_of(const json_t *file, const char *kind)
{
    char notation[200];
    snprintf(notation, sizeof notation,
             "%s:world=%" PRId64 ",pp=%" PRId64 ",cp=%" PRId64 ",ep=%" PRId64 ",replicas=%" PRId64
             ",dp=%" PRId64,
             kind, number_of(file, "world"), number_of(file, "pp"), number_of(file, "cp"),
             number_of(file, "ep"), number_of(file, "replicas"), number_of(file, "dp"));
    pl_layout layout;
    assert_ok(pl_layout_parse(&layout, notation));
    assert_int_equal(layout.stage_ranks, number_of(file, "stage_ranks"));
    return layout;
}

/* The file's "experts" mesh of folded layouts has (replicate, eshard) as one axis; the split form
 * has our axes. */
static int mesh_named(const pl_layout *layout, const char *name)
{
    if (strcmp(name, "experts_split") == 0) name = "experts";
    for (int m = 0; m < layout->meshes; ++m)
        if (strcmp(layout->mesh[m].name, name) == 0) return m;
    return -1;
}

static void compare_mesh(tally *t, const pl_layout *layout, const char *name, json_t *axes,
                         const json_t *coordinates)
{
    int m = mesh_named(layout, name), a = 0;
    assert_true(m >= 0);
    const pl_mesh *mesh = &layout->mesh[m];
    const char *axis;
    json_t *size;
    bool joined = json_object_get(axes, "edp") != NULL;
    t->coordinate_faults += mesh->axes != (int)json_object_size(axes) + joined;
    json_object_foreach(axes, axis, size)
    {
        int64_t own = mesh->axis[a].size;
        if (strcmp(axis, "edp") == 0)
            own *= mesh->axis[++a].size;
        else
            t->coordinate_faults += strcmp(mesh->axis[a].name, axis) != 0;
        t->coordinate_faults += own != json_integer_value(size);
        ++a;
    }
    for (int64_t rank = 0; rank < layout->world; ++rank) {
        const json_t *row = json_array_get(coordinates, (size_t)rank);
        for (int i = 0, b = 0; i < (int)json_array_size(row); ++i, ++b) {
            int64_t own = pl_layout_coordinate(layout, m, b, rank);
            if (joined && i == 1) {
                ++b;
                own = own * mesh->axis[b].size + pl_layout_coordinate(layout, m, b, rank);
            }
            ++t->coordinates;
            t->coordinate_faults += own != number_at(row, i);
        }
    }
}

static void compare_meshes(tally *t, const pl_layout *layout, const json_t *file)
{
    const char *name;
    json_t *axes;
    json_object_foreach(json_object_get(file, "axes"), name, axes)
    {
        const json_t *coordinates = json_object_get(json_object_get(file, "coords"), name);
        assert_int_equal(json_array_size(coordinates), layout->world);
        compare_mesh(t, layout, name, axes, coordinates);
    }
}

static const struct {
    const char *key;
    pl_group_role role;
} role_keys[] = {
    {"pp", PL_GROUP_PIPELINE},
    {"data", PL_GROUP_DATA},
    {"cp", PL_GROUP_CONTEXT},
    {"dense_shard", PL_GROUP_DENSE_SHARD},
    {"dense_replica", PL_GROUP_DENSE_REPLICA},
    {"expert_owner", PL_GROUP_EXPERT_OWNER},
    {"expert_shard", PL_GROUP_EXPERT_SHARD},
    {"expert_replica", PL_GROUP_EXPERT_REPLICA},
};

enum { ROLE_KEYS = sizeof role_keys / sizeof *role_keys };

static void compare_group(tally *t, const pl_layout *layout, pl_group_role role,
                          const pl_rank_set *set, const json_t *group, const json_t *indices,
                          int64_t rank)
{
    int64_t size = (int64_t)json_array_size(group), index = number_at(indices, rank);
    t->member_faults += number_at(group, index) != rank;
    t->member_faults += pl_rank_set_size(set) != size;
    t->member_faults += pl_rank_set_index(set, rank) != index;
    t->member_faults += pl_layout_group_index(layout, role, rank) != index;
    t->member_faults += pl_layout_group_size(layout, role) != size;
    for (int64_t i = 0; i < size && i < pl_rank_set_size(set); ++i) {
        ++t->members;
        t->member_faults += pl_rank_set_member(set, i) != number_at(group, i);
    }
}

static void compare_groups(tally *t, const pl_layout *layout, const json_t *file,
                           const answers *from)
{
    json_t *all_groups = json_object_get(file, "groups");
    json_t *all_indices = json_object_get(file, "index");
    assert_int_equal(json_object_size(all_groups), ROLE_KEYS);
    for (int k = 0; k < ROLE_KEYS; ++k) {
        json_t *groups = json_object_get(all_groups, role_keys[k].key), *group;
        const json_t *indices = json_object_get(all_indices, role_keys[k].key);
        size_t g;
        int64_t ranks = 0;
        json_array_foreach(groups, g, group)
        {
            for (size_t i = 0; i < json_array_size(group); ++i, ++ranks) {
                int64_t rank = number_at(group, (int64_t)i);
                pl_rank_set set = from->group(layout, role_keys[k].role, rank);
                compare_group(t, layout, role_keys[k].role, &set, group, indices, rank);
            }
        }
        assert_int_equal(ranks, layout->world);
    }
}

static void compare_box(tally *t, pl_box box, const json_t *pair)
{
    int64_t begin = number_at(pair, 0), end = number_at(pair, 1);
    ++t->boxes;
    t->empty += begin == end;
    /* All empty ranges are one. */
    if (begin == end)
        t->box_faults += box.begin != box.end;
    else
        t->box_faults += box.begin != begin || box.end != end;
}

static void compare_boxes(tally *t, const pl_layout *layout, const json_t *file,
                          const answers *from)
{
    const char *key;
    json_t *pairs, *pair;
    size_t rank;
    json_object_foreach(json_object_get(file, "dense"), key, pairs)
    {
        int64_t rows = strtoll(key, NULL, 10);
        assert_int_equal(json_array_size(pairs), layout->world);
        json_array_foreach(pairs, rank, pair)
            compare_box(t, from->dense(layout, rows, (int64_t)rank), pair);
        ++t->paddings;
        t->padding_faults += pl_placement_dense_padded(layout, rows) !=
                             number_of(json_object_get(file, "dense_padded"), key);
    }
    json_object_foreach(json_object_get(file, "experts"), key, pairs)
    {
        char *rest = NULL;
        int64_t experts = strtoll(key, &rest, 10), rows = strtoll(rest + 1, NULL, 10);
        assert_int_equal(json_array_size(pairs), layout->world);
        json_array_foreach(pairs, rank, pair)
            compare_box(t, from->expert(layout, experts, rows, (int64_t)rank), pair);
        ++t->paddings;
        t->padding_faults += pl_placement_expert_padded(layout, experts, rows) !=
                             number_of(json_object_get(file, "experts_padded"), key);
    }
}

static json_t *load_golden(const char *name)
{
    char path[160];
    json_error_t error;
    snprintf(path, sizeof path, "testdata/placements/%s.json", name);
    json_t *file = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!file) fail_msg("%s:%d: %s", path, error.line, error.text);
    return file;
}

/* Compare every file of list.txt whose name begins with KIND, read as a layout of kind AS. */
static tally compare_golden(const char *kind, const char *as, const answers *from, int *files)
{
    tally t = {0};
    char name[100];
    FILE *list = fopen("testdata/placements/list.txt", "r");
    assert_non_null(list);
    *files = 0;
    while (fscanf(list, "%99s", name) == 1) {
        if (strncmp(name, kind, strlen(kind)) != 0) continue;
        json_t *file = load_golden(name);
        const char *own = json_string_value(json_object_get(file, "kind"));
        pl_layout layout = layout_of(file, as ? as : own);
        if (!as) compare_meshes(&t, &layout, file);
        compare_groups(&t, &layout, file, from);
        compare_boxes(&t, &layout, file, from);
        json_decref(file);
        ++*files;
    }
    fclose(list);
    return t;
}

static void test_golden_placements(void **state)
{
    (void)state;
    int files = 0;
    tally t = compare_golden("", NULL, &own_answers, &files);
    printf("%d files: %" PRId64 " coordinates, %" PRId64 " members, %" PRId64 " boxes (%" PRId64
           " empty), %" PRId64 " paddings\n",
           files, t.coordinates, t.members, t.boxes, t.empty, t.paddings);
    assert_int_equal(files, GOLDEN_FILES);
    assert_true(t.coordinates > 0 && t.members > 0 && t.boxes > t.empty && t.empty > 0);
    assert_int_equal(t.coordinate_faults, 0);
    assert_int_equal(t.member_faults, 0);
    assert_int_equal(t.box_faults, 0);
    assert_int_equal(t.padding_faults, 0);
}

static pl_rank_set swapped_group(const pl_layout *layout, pl_group_role role, int64_t rank)
{
    if (role == PL_GROUP_EXPERT_SHARD)
        role = PL_GROUP_EXPERT_OWNER;
    else if (role == PL_GROUP_EXPERT_OWNER)
        role = PL_GROUP_EXPERT_SHARD;
    return pl_layout_group(layout, role, rank);
}

static void test_golden_comparison_sees_faults(void **state)
{
    (void)state;
    int files = 0;
    answers faulty = own_answers;
    faulty.dense = balanced_box;
    tally t = compare_golden("", NULL, &faulty, &files);
    assert_true(t.box_faults > 0 && t.member_faults == 0);
    faulty = own_answers;
    faulty.expert = next_owner_box;
    t = compare_golden("", NULL, &faulty, &files);
    assert_true(t.box_faults > 0 && t.member_faults == 0);
    faulty = own_answers;
    faulty.group = swapped_group;
    t = compare_golden("", NULL, &faulty, &files);
    assert_true(t.member_faults > 0 && t.box_faults == 0);
    t = compare_golden("legacy-w8-pp1-dp8-cp1-ep2", "decoupled", &own_answers, &files);
    assert_int_equal(files, 1);
    assert_true(t.member_faults > 0 && t.box_faults > 0 && t.padding_faults > 0);
}

static void test_folded_and_decoupled_are_one_layout(void **state)
{
    (void)state;
    int files = 0;
    tally t = compare_golden("folded", "decoupled", &own_answers, &files);
    assert_true(files > 10);
    assert_int_equal(t.member_faults + t.box_faults + t.padding_faults, 0);
}

static pl_layout parsed(const char *notation)
{
    pl_layout layout;
    assert_ok(pl_layout_parse(&layout, notation));
    return layout;
}

static void assert_box(pl_box box, int64_t begin, int64_t end)
{
    if (box.begin != begin || box.end != end)
        fail_msg("[%" PRId64 ",%" PRId64 ") instead of [%" PRId64 ",%" PRId64 ")", box.begin,
                 box.end, begin, end);
}

/* FSDP2's examples: 10/4, 7/3 and more members than rows. */
static void test_chunks(void **state)
{
    (void)state;
    pl_layout four = parsed("decoupled:world=4"), three = parsed("decoupled:world=3");
    pl_layout eight = parsed("folded:world=8,ep=4");
    static const int64_t of_ten[] = {0, 3, 6, 9, 10}, of_seven[] = {0, 3, 6, 7};
    for (int r = 0; r < 4; ++r)
        assert_box(pl_placement_dense_box(&four, 10, r), of_ten[r], of_ten[r + 1]);
    for (int r = 0; r < 3; ++r)
        assert_box(pl_placement_dense_box(&three, 7, r), of_seven[r], of_seven[r + 1]);
    for (int r = 0; r < 8; ++r)
        assert_box(pl_placement_dense_box(&eight, 3, r), r < 3 ? r : 3, r < 3 ? r + 1 : 3);
    assert_int_equal(pl_placement_dense_padded(&four, 10), 3);
    assert_int_equal(pl_placement_dense_padded(&eight, 3), 1);
    assert_box(pl_placement_dense_box(&eight, 0, 5), 0, 0);
    assert_int_equal(pl_placement_dense_padded(&eight, 0), 0);
}

/* The last chunk's end does not overflow. */
static void test_largest_tensors(void **state)
{
    (void)state;
    pl_layout layout = parsed("decoupled:world=2147483647");
    int64_t rows = INT64_MAX, chunk = pl_placement_dense_padded(&layout, rows);
    pl_box last = pl_placement_dense_box(&layout, rows, 2147483646);
    assert_box(last, chunk * 2147483646, rows);
    assert_box(pl_placement_dense_box(&layout, 3, 2147483646), 3, 3);
    assert_box(pl_placement_expert_box(&layout, INT64_MAX, 1, 0), 0, chunk);
}

static void test_grain(void **state)
{
    (void)state;
    pl_layout row = parsed("folded:world=8,ep=2");
    pl_layout expert = parsed("folded:world=8,ep=2,grain=expert");
    /* 5 experts of 7 rows an owner, 4 members: chunks of 9 rows, or of 2 experts. */
    static const int64_t rows[] = {0, 9, 18, 27, 35}, experts[] = {0, 14, 28, 35, 35};
    for (int r = 0; r < 8; ++r) {
        int64_t first = r % 2 ? 35 : 0;
        assert_box(pl_placement_expert_box(&row, 10, 7, r), first + rows[r / 2],
                   first + rows[r / 2 + 1]);
        assert_box(pl_placement_expert_box(&expert, 10, 7, r), first + experts[r / 2],
                   first + experts[r / 2 + 1]);
        pl_box a = pl_placement_dense_box(&row, 13, r);
        assert_box(pl_placement_dense_box(&expert, 13, r), a.begin, a.end);
    }
    assert_int_equal(pl_placement_expert_padded(&row, 10, 7), 9);
    assert_int_equal(pl_placement_expert_padded(&expert, 10, 7), 14);
    assert_int_equal(pl_placement_expert_padded(&row, 10, 0), 0);
    assert_int_equal(pl_placement_expert_padded(&expert, 10, 0), 0);
}

static void test_tensor_classes(void **state)
{
    (void)state;
    pl_layout layout = parsed("decoupled:world=16,pp=2,ep=2,replicas=2");
    pl_tensor dense = {.role = PL_TENSOR_ATTENTION, .class_ = PL_CLASS_DENSE, .rows = 10};
    pl_tensor routed = {
        .role = PL_TENSOR_ROUTED, .class_ = PL_CLASS_EXPERT, .experts = 6, .rows = 5};
    pl_tensor ignored = {.role = PL_TENSOR_NORM, .class_ = PL_CLASS_IGNORED, .rows = 10};
    pl_tensor stack = {.role = PL_TENSOR_SHARED, .class_ = PL_CLASS_DENSE, .experts = 2, .rows = 5};
    for (int64_t rank = 0; rank < 16; ++rank) {
        pl_box want = pl_placement_dense_box(&layout, 10, rank);
        assert_box(pl_placement_box(&layout, &dense, rank), want.begin, want.end);
        assert_box(pl_placement_box(&layout, &stack, rank), want.begin, want.end);
        want = pl_placement_expert_box(&layout, 6, 5, rank);
        assert_box(pl_placement_box(&layout, &routed, rank), want.begin, want.end);
        assert_box(pl_placement_box(&layout, &ignored, rank), 0, 10);
    }
    assert_int_equal(pl_placement_padded_rows(&layout, &dense), 3);
    assert_int_equal(pl_placement_padded_rows(&layout, &stack), 3);
    assert_int_equal(pl_placement_padded_rows(&layout, &routed), 8);
    assert_int_equal(pl_placement_padded_rows(&layout, &ignored), 10);
    assert_int_equal(pl_placement_shard_role(&dense), PL_GROUP_DENSE_SHARD);
    assert_int_equal(pl_placement_replica_role(&dense), PL_GROUP_DENSE_REPLICA);
    assert_int_equal(pl_placement_shard_role(&routed), PL_GROUP_EXPERT_SHARD);
    assert_int_equal(pl_placement_replica_role(&routed), PL_GROUP_EXPERT_REPLICA);
    assert_int_equal(pl_placement_shard_role(&ignored), PL_GROUP_NONE);
    assert_int_equal(pl_placement_replica_role(&ignored), PL_GROUP_STAGE);
}

static void test_models_that_fit(void **state)
{
    (void)state;
    static const struct {
        const char *notation;
        int64_t experts, layers;
        const char *words[3]; /* none: it fits */
    } cases[] = {
        {"folded:world=64,pp=4,cp=4,ep=8,replicas=2", 128, 48, {0}},
        {"folded:world=64,pp=4", 0, 4, {0}},
        {"folded:world=8,ep=8", 60, 24, {"ep=8", "60 experts", "ep=4 would fit"}},
        {"folded:world=24,ep=8", 60, 24, {"ep=8", "60 experts", "ep=6 or ep=12 would fit"}},
        {"folded:world=24,ep=8,replicas=3", 60, 24, {"ep=8", "60 experts", "ep=4 would fit"}},
        {"single:world=24,cp=3,ep=8", 60, 24, {"ep=8", "60 experts", "ep=4 would fit"}},
        {"legacy:world=16,ep=16", 8, 24, {"ep=16", "8 experts", "ep=8 would fit"}},
        {"folded:world=8,ep=2", 0, 24, {"ep=2", "0 routed experts", "ep=1 would fit"}},
        {"folded:world=8,pp=8", 8, 7, {"pp=8", "7 layers", "pp=4 would fit"}},
        {"folded:world=9,pp=9", 8, 2, {"pp=9", "2 layers", "pp=1 would fit"}},
    };
    pl_model model = {.name = "some-moe"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        pl_layout layout = parsed(cases[i].notation);
        model.num_experts = cases[i].experts;
        model.num_hidden_layers = cases[i].layers;
        if (!cases[i].words[0])
            assert_ok(pl_placement_check(&layout, &model));
        else
            assert_fails(PL_BAD_INPUT, pl_placement_check(&layout, &model), cases[i].notation,
                         "some-moe", cases[i].words[0], cases[i].words[1], cases[i].words[2]);
    }
}

static void test_refusing_a_model_without_memory(void **state)
{
    (void)state;
    pl_layout layout = parsed("folded:world=8,ep=8");
    pl_model model = {.name = "some-moe", .num_experts = 60, .num_hidden_layers = 4};
    int refused = 0;
    for (int64_t n = 0;; ++n) {
        pl_allocation_fail_after(n);
        pl_status status = pl_placement_check(&layout, &model);
        int failed = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        assert_int_equal(status, failed ? PL_NO_MEMORY : PL_BAD_INPUT);
        if (!failed) break;
        ++refused;
    }
    assert_true(refused > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_placements),
        cmocka_unit_test(test_golden_comparison_sees_faults),
        cmocka_unit_test(test_folded_and_decoupled_are_one_layout),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_largest_tensors),
        cmocka_unit_test(test_grain),
        cmocka_unit_test(test_tensor_classes),
        cmocka_unit_test(test_models_that_fit),
        cmocka_unit_test(test_refusing_a_model_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
