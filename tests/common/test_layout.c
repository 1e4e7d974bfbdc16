/* The notation of layouts, its refusals, and meshes and groups of single layouts by hand.
 * Golden meshes and groups are in test_placement.c, random layouts in test_placement_properties.c.
 */
#include "tests/test.h"

#include <stdio.h>

#include "common/layout.h"
#include "common/memory.h"

static pl_layout parsed(const char *notation)
{
    pl_layout layout;
    assert_ok(pl_layout_parse(&layout, notation));
    return layout;
}

static void test_notation(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"folded:world=64,pp=2,cp=4,ep=8,replicas=2", "folded:world=64,pp=2,cp=4,ep=8,replicas=2"},
        {"single:world=1", "single:world=1"},
        {"legacy:world=8,ep=4,grain=row", "legacy:world=8,ep=4"},
        {"legacy:grain=expert,ep=4,world=8", "legacy:world=8,ep=4,grain=expert"},
        {" decoupled :\tworld = 16 , replicas=2,ep= 4 ", "decoupled:world=16,ep=4,replicas=2"},
        {"folded:world=8,cp=1,pp=1,ep=1,replicas=1", "folded:world=8"},
        {"folded:world=8,tp=1,etp=1", "folded:world=8"},
        {"folded:world=0008,ep=02", "folded:world=8,ep=2"},
        {"folded:world=2147483647", "folded:world=2147483647"},
        {"decoupled:world=2147483647,pp=2147483647,grain=expert",
         "decoupled:world=2147483647,pp=2147483647,grain=expert"},
        {"decoupled:world=24,cp=3,ep=2,replicas=3,dp=8,dp_shard=8,efsdp=4",
         "decoupled:world=24,cp=3,ep=2,replicas=3"},
        {"legacy:world=16,pp=2,cp=2,ep=4,dp=4,fsdp=2", "legacy:world=16,pp=2,cp=2,ep=4"},
        {"legacy:world=16,replicas=4,fsdp=4,dp=16", "legacy:world=16,replicas=4"},
        {"folded:dp=3,edp=6,world=24,pp=2,cp=4,ep=2", "folded:world=24,pp=2,cp=4,ep=2"},
        {"single:world=24,cp=2,ep=4,dp=3", "single:world=24,cp=2,ep=4"},
    };
    char text[PL_LAYOUT_TEXT];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        pl_layout layout = parsed(cases[i][0]), again = parsed(cases[i][1]);
        assert_ptr_equal(pl_layout_format(&layout, text), text);
        assert_string_equal(text, cases[i][1]);
        assert_true(pl_layout_equal(&layout, &again));
    }
}

static void test_equality(void **state)
{
    (void)state;
    static const char *const different[] = {
        "folded:world=64,pp=2,cp=2,ep=4,replicas=2",
        "decoupled:world=64,pp=2,cp=2,ep=4,replicas=2",
        "folded:world=32,pp=2,cp=2,ep=4,replicas=2",
        "folded:world=64,cp=2,ep=4,replicas=2",
        "folded:world=64,pp=2,cp=4,ep=4,replicas=2",
        "folded:world=64,pp=2,cp=2,ep=8,replicas=2",
        "folded:world=64,pp=2,cp=2,ep=4,replicas=4",
        "folded:world=64,pp=2,cp=2,ep=4,replicas=2,grain=expert",
    };
    enum { COUNT = sizeof different / sizeof *different };
    for (int i = 0; i < COUNT; ++i) {
        for (int j = 0; j < COUNT; ++j) {
            pl_layout a = parsed(different[i]), b = parsed(different[j]);
            assert_int_equal(pl_layout_equal(&a, &b), i == j);
        }
    }
}

typedef struct refusal {
    const char *notation;
    pl_status status;
    const char *words[4];
} refusal;

static const refusal refusals[] = {
    {"", PL_BAD_INPUT, {"none is given", "folded:world=8,ep=2"}},
    {"   ", PL_BAD_INPUT, {"no kind", "column 4"}},
    {":world=8", PL_BAD_INPUT, {"no kind", "column 1"}},
    {"world=8,ep=2", PL_BAD_INPUT, {"no kind", "column 1", "folded:"}},
    {"foldid:world=8", PL_BAD_INPUT, {"column 1", "'foldid'", "did you mean 'folded'", "legacy"}},
    {"Decoupled:world=8", PL_BAD_INPUT, {"'Decoupled'", "did you mean 'decoupled'"}},
    {"mesh:world=8", PL_BAD_INPUT, {"'mesh'", "allowed: single, legacy, decoupled, folded"}},
    {"legacy", PL_BAD_INPUT, {"world is missing", "legacy:world=8", "column 7"}},
    {"legacy:", PL_BAD_INPUT, {"world is missing", "column 8"}},
    {"legacy:ep=2", PL_BAD_INPUT, {"world is missing", "column 12"}},
    {"legacy:world", PL_BAD_INPUT, {"column 8", "'world' has no value"}},
    {"legacy:world=", PL_BAD_INPUT, {"column 14", "nothing after 'world='"}},
    {"legacy:world=8, =4", PL_BAD_INPUT, {"column 17", "no key"}},
    {"legacy:world=8,", PL_BAD_INPUT, {"column 16", "comma"}},
    {"legacy:,world=8", PL_BAD_INPUT, {"column 8", "comma"}},
    {"legacy:world=8,,ep=2", PL_BAD_INPUT, {"column 16", "comma"}},
    {"legacy:world=8,ep=2,ep=2", PL_BAD_INPUT, {"column 21", "ep is given twice", "column 16"}},
    {"legacy:world=8,dp=8,dp=8", PL_BAD_INPUT, {"column 21", "dp is given twice", "column 16"}},
    {"legacy:world=8,tp=1,tp=1", PL_BAD_INPUT, {"column 21", "tp is given twice"}},
    {"legacy:world=eight", PL_BAD_INPUT, {"column 14", "world=eight", "whole number"}},
    {"legacy:world=8.0", PL_BAD_INPUT, {"column 14", "world=8.0", "whole number"}},
    {"legacy:world=+8", PL_BAD_INPUT, {"column 14", "world=+8", "whole number"}},
    {"legacy:world=8 8", PL_BAD_INPUT, {"column 14", "world=8 8", "whole number"}},
    {"legacy:world=8:ep=2", PL_BAD_INPUT, {"column 14", "world=8:ep=2", "whole number"}},
    {"legacy:world=18446744073709551617", PL_BAD_INPUT, {"column 14", "18446744073709551617"}},
    {"legacy:world=2147483648", PL_BAD_INPUT, {"world=2147483648", "1 to 2147483647"}},
    {"legacy:world=0", PL_BAD_INPUT, {"column 8", "world=0", "1 to 2147483647"}},
    {"legacy:world=-8", PL_BAD_INPUT, {"column 8", "world=-8", "1 to 2147483647"}},
    {"legacy:world=8,pp=0", PL_BAD_INPUT, {"column 16", "pp=0", "at least 1"}},
    {"legacy:world=8,cp=-1", PL_BAD_INPUT, {"column 16", "cp=-1", "at least 1"}},
    {"legacy:world=8,replicas=0", PL_BAD_INPUT, {"column 16", "replicas=0", "at least 1"}},
    {"legacy:world=8,dp=-8", PL_BAD_INPUT, {"column 16", "dp=-8", "dp=8"}},
    {"folded:world=8,pp=3", PL_BAD_INPUT, {"column 16", "pp=3", "world=8", "pp=2 or pp=4"}},
    {"folded:world=8,pp=9", PL_BAD_INPUT, {"pp=9", "world=8; pp=8 would fit"}},
    {"folded:world=24,pp=2,cp=5", PL_BAD_INPUT, {"cp=5", "12 ranks", "24/2", "cp=4 or cp=6"}},
    {"folded:world=8,ep=3", PL_BAD_INPUT, {"ep=3", "8 ranks", "ep=2 or ep=4 would fit"}},
    {"legacy:world=8,ep=5", PL_BAD_INPUT, {"ep=5", "8 ranks", "ep=4 or ep=8 would fit"}},
    {"single:world=8,ep=3", PL_BAD_INPUT, {"ep=3", "8 ranks", "ep=2 or ep=4 would fit"}},
    {"single:world=16,cp=8,ep=4", PL_BAD_INPUT, {"column 22", "8*4", "16 ranks", "ep=2 would"}},
    {"single:world=8,replicas=2", PL_BAD_INPUT, {"column 16", "replicas=2", "decoupled"}},
    {"legacy:world=8,ep=4,replicas=2", PL_BAD_INPUT, {"replicas=2", "ep=4", "ep=1 would fit"}},
    {"legacy:world=8,replicas=3", PL_BAD_INPUT, {"replicas=3", "8 ranks", "replicas=2 or"}},
    {"folded:world=8,replicas=5", PL_BAD_INPUT, {"replicas=5", "8 ranks", "replicas=4 or"}},
    {"decoupled:world=8,ep=4,replicas=4", PL_BAD_INPUT, {"ep=4", "2 ranks", "8/4", "replicas=2"}},
    {"decoupled:world=8,ep=3,replicas=4", PL_BAD_INPUT, {"ep=3", "2 ranks", "ep=2 would fit"}},
    {"legacy:world=8,dp=4", PL_BAD_INPUT, {"column 16", "dp=4, but dp=8", "'legacy:world=8'"}},
    {"single:world=24,cp=2,ep=4,dp=12", PL_BAD_INPUT, {"dp=12, but dp=3"}},
    {"legacy:world=16,ep=4,fsdp=16", PL_BAD_INPUT, {"fsdp=16, but fsdp=4"}},
    {"decoupled:world=16,ep=4,dp_shard=4", PL_BAD_INPUT, {"dp_shard=4, but dp_shard=16"}},
    {"decoupled:world=16,ep=4,replicas=2,efsdp=4", PL_BAD_INPUT, {"efsdp=4, but efsdp=2"}},
    {"folded:world=16,ep=4,edp=2", PL_BAD_INPUT, {"edp=2, but edp=4"}},
    {"folded:world=16,fsdp=16", PL_BAD_INPUT, {"no axis fsdp", "dp=16", "edp=16"}},
    {"single:world=16,efsdp=16", PL_BAD_INPUT, {"no axis efsdp", "dp=16"}},
    {"legacy:world=8,repicas=2", PL_BAD_INPUT, {"column 16", "did you mean 'replicas'"}},
    {"legacy:world=8,EP=2", PL_BAD_INPUT, {"'EP'", "did you mean 'ep'"}},
    {"legacy:world=8,sizes=2", PL_BAD_INPUT, {"'sizes'", "allowed: world, pp, cp, ep"}},
    {"legacy:world=8,grain=exprt", PL_BAD_INPUT, {"column 22", "'exprt'", "'expert'"}},
    {"legacy:world=8,grain=2", PL_BAD_INPUT, {"column 22", "'2'", "allowed: row, expert"}},
    {"legacy:world=8,sharding_strategy=hsdp", PL_BAD_INPUT, {"column 16", "replicas=R"}},
    {"legacy:world=8,decouple_ep_fsdp=true", PL_BAD_INPUT, {"'decoupled:'", "'legacy:'"}},
    {"legacy:world=8,hsdp_sharding_size=4", PL_BAD_INPUT, {"replicas=R"}},
    {"legacy:world=8,hsdp_replica=2", PL_BAD_INPUT, {"write replicas=2"}},
    {"legacy:world=8,data_parallel_replicate_degree=2", PL_BAD_INPUT, {"write replicas=2"}},
    {"legacy:world=8,data_parallel_shard_degree=2", PL_BAD_INPUT, {"dp_shard=S"}},
    {"legacy:world=8,expert_model_parallel_size=4", PL_BAD_INPUT, {"column 16", "write ep=4"}},
    {"legacy:world=8,expert-model-parallel-size=4", PL_BAD_INPUT, {"write ep=4"}},
    {"legacy:world=8,Expert_Model_Paralel_Size=4", PL_BAD_INPUT, {"write ep=4"}},
    {"legacy:world=8,ep_size=4", PL_BAD_INPUT, {"write ep=4"}},
    {"legacy:world=8,pp_size=4", PL_BAD_INPUT, {"write pp=4"}},
    {"legacy:world=8,cp_size=4", PL_BAD_INPUT, {"write cp=4"}},
    {"legacy:world_size=8", PL_BAD_INPUT, {"column 8", "write world=8"}},
    {"legacy:world=8,tp=2", PL_UNSUPPORTED, {"column 16", "tp=2", "tensor parallelism"}},
    {"legacy:world=8,etp=2", PL_UNSUPPORTED, {"etp=2", "tensor parallelism"}},
    {"legacy:world=8,tp=0", PL_BAD_INPUT, {"tp=0", "1 would fit"}},
    {"legacy:world=8,tensor_model_parallel_size=4", PL_UNSUPPORTED, {"tensor parallelism"}},
    {"legacy:world=8,tensor_model_parallel_size=1", PL_BAD_INPUT, {"write tp=1"}},
    {"legacy:world=8,tensor_model_parallel_size=x", PL_BAD_INPUT, {"whole number"}},
};

static void test_refusals(void **state)
{
    (void)state;
    pl_layout untouched, layout;
    memset(&untouched, 0x5a, sizeof untouched);
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; ++i) {
        const refusal *r = &refusals[i];
        layout = untouched;
        assert_fails(r->status, pl_layout_parse(&layout, r->notation), "layout",
                     r->words[0] ? r->words[0] : "", r->words[1] ? r->words[1] : "",
                     r->words[2] ? r->words[2] : "", r->words[3] ? r->words[3] : "");
        assert_memory_equal(&layout, &untouched, sizeof layout);
    }
    assert_fails(PL_BAD_INPUT, pl_layout_parse(&layout, NULL), "none is given");
}

/* The reason still stands in the message when the notation is far too long. */
static void test_long_notations(void **state)
{
    (void)state;
    pl_layout layout;
    static char notation[8192];
    memset(notation, 'x', sizeof notation - 1);
    assert_fails(PL_BAD_INPUT, pl_layout_parse(&layout, notation), "8191 characters");
    memcpy(notation, "legacy:world=8,", 15);
    notation[4000] = '\0';
    assert_fails(PL_BAD_INPUT, pl_layout_parse(&layout, notation), "column 16", "has no value");
    notation[2000] = '=';
    assert_fails(PL_BAD_INPUT, pl_layout_parse(&layout, notation), "unknown key", "allowed: world");
    memcpy(notation + 15, "ep=", 3);
    assert_fails(PL_BAD_INPUT, pl_layout_parse(&layout, notation), "column 19", "whole number");
    memset(notation, ' ', 3000);
    memcpy(notation + 3000, "folded:world=8", sizeof "folded:world=8");
    assert_ok(pl_layout_parse(&layout, notation));
}

static void test_making_from_numbers(void **state)
{
    (void)state;
    pl_layout layout, same = parsed("folded:world=64,pp=2,cp=4,ep=8,replicas=2,grain=expert");
    assert_ok(pl_layout_make(&layout, PL_LAYOUT_FOLDED, 64, 2, 4, 8, 2, PL_GRAIN_EXPERT));
    assert_true(pl_layout_equal(&layout, &same));
    assert_fails(PL_BAD_INPUT,
                 pl_layout_make(&layout, PL_LAYOUT_FOLDED, 64, 3, 4, 8, 2, PL_GRAIN_ROW),
                 "layout: pp=3 does not divide world=64; pp=2 or pp=4 would fit");
    assert_fails(PL_BAD_INPUT,
                 pl_layout_make(&layout, PL_LAYOUT_SINGLE, INT64_MAX, 1, 1, 1, 1, PL_GRAIN_ROW),
                 "9223372036854775807", "2147483647");
    assert_fails(PL_BAD_INPUT,
                 pl_layout_make(&layout, PL_LAYOUT_SINGLE, 8, 1, 1, INT64_MIN, 1, PL_GRAIN_ROW),
                 "ep=-9223372036854775808");
    assert_fails(PL_BAD_INPUT,
                 pl_layout_make(&layout, PL_LAYOUT_SINGLE, 8, 1, INT64_MAX, 2, 1, PL_GRAIN_ROW),
                 "cp=9223372036854775807", "cp=8 would fit");
    assert_fails(PL_BAD_INPUT,
                 pl_layout_make(&layout, PL_LAYOUT_KIND_COUNT, 8, 1, 1, 1, 1, PL_GRAIN_ROW),
                 "no kind number 4");
    assert_fails(PL_BAD_INPUT,
                 pl_layout_make(&layout, PL_LAYOUT_SINGLE, 8, 1, 1, 1, 1, PL_GRAIN_COUNT),
                 "no grain number 2");
}

static void test_names(void **state)
{
    (void)state;
    pl_layout_kind kind = PL_LAYOUT_SINGLE;
    pl_group_role role = PL_GROUP_NONE;
    for (int i = 0; i < PL_LAYOUT_KIND_COUNT; ++i) {
        assert_true(pl_layout_kind_parse(&kind, pl_layout_kind_name((pl_layout_kind)i)));
        assert_int_equal(kind, i);
    }
    for (int i = 0; i < PL_GROUP_ROLE_COUNT; ++i) {
        assert_true(pl_group_role_parse(&role, pl_group_role_name((pl_group_role)i)));
        assert_int_equal(role, i);
    }
    assert_string_equal(pl_group_role_name(PL_GROUP_DENSE_SHARD), "dense-shard");
    assert_string_equal(pl_group_role_name(PL_GROUP_EXPERT_BLOCK), "expert-block");
    assert_string_equal(pl_grain_name(PL_GRAIN_EXPERT), "expert");
    role = PL_GROUP_STAGE;
    assert_false(pl_layout_kind_parse(&kind, "Folded"));
    assert_false(pl_group_role_parse(&role, "dense_shard"));
    assert_int_equal(role, PL_GROUP_STAGE);
}

/* "pp=2 dp=4 cp=1" of a mesh, and "1 3 0" of a rank in it. */
static void print_mesh(char *buffer, size_t size, const pl_layout *layout, int m, int64_t rank)
{
    const pl_mesh *mesh = &layout->mesh[m];
    size_t used = (size_t)snprintf(buffer, size, "%s", mesh->name);
    for (int a = 0; a < mesh->axes; ++a)
        used += (size_t)snprintf(buffer + used, size - used, " %s=%d", mesh->axis[a].name,
                                 (int)mesh->axis[a].size);
    for (int a = 0; a < mesh->axes; ++a)
        used += (size_t)snprintf(buffer + used, size - used, " %d",
                                 (int)pl_layout_coordinate(layout, m, a, rank));
}

static void test_meshes(void **state)
{
    (void)state;
    static const struct {
        const char *notation;
        int64_t rank;
        const char *mesh[PL_LAYOUT_MESHES];
    } cases[] = {
        {"single:world=48,pp=2,cp=2,ep=4", 24 + 13, {"root pp=2 dp=3 cp=2 ep=4 1 1 1 1"}},
        {"legacy:world=16,cp=2,ep=4",
         13,
         {"root pp=1 replicate=1 fsdp=4 ep=4 0 0 3 1", "data pp=1 dp=8 cp=2 0 6 1"}},
        {"decoupled:world=64,ep=8,replicas=4",
         37,
         {"root pp=1 replicate=4 efsdp=2 ep=8 0 2 0 5", "data pp=1 dp=64 cp=1 0 37 0"}},
        {"folded:world=24,cp=6,ep=4,replicas=2",
         17,
         {"attention pp=1 dp=4 cp=6 0 2 5", "experts pp=1 replicate=2 eshard=3 ep=4 0 1 1 1",
          "dense pp=1 replicate=2 shard=12 0 1 5"}},
    };
    char text[128];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        pl_layout layout = parsed(cases[i].notation);
        for (int m = 0; m < PL_LAYOUT_MESHES; ++m) {
            assert_int_equal(m < layout.meshes, cases[i].mesh[m] != NULL);
            if (!cases[i].mesh[m]) continue;
            print_mesh(text, sizeof text, &layout, m, cases[i].rank);
            assert_string_equal(text, cases[i].mesh[m]);
        }
    }
}

static void test_groups(void **state)
{
    (void)state;
    static const struct {
        const char *notation;
        int64_t rank;
        pl_group_role role;
        const char *group;
    } cases[] = {
        {"decoupled:world=64,ep=8", 37, PL_GROUP_NONE, "{37}"},
        {"decoupled:world=64,pp=2,ep=8", 37, PL_GROUP_WORLD, "{0..63}"},
        {"decoupled:world=64,pp=2,ep=8", 37, PL_GROUP_STAGE, "{32..63}"},
        {"decoupled:world=64,pp=4,ep=8", 37, PL_GROUP_PIPELINE, "{5..53:16}"},
        {"decoupled:world=64,ep=8,replicas=4", 37, PL_GROUP_EXPERT_SHARD, "{37,45}"},
        {"decoupled:world=64,ep=8,replicas=4", 37, PL_GROUP_EXPERT_REPLICA, "{5..53:16}"},
        {"decoupled:world=64,ep=8,replicas=4", 37, PL_GROUP_DENSE_SHARD, "{32..47}"},
        {"decoupled:world=64,ep=8,replicas=4", 37, PL_GROUP_EXPERT_BLOCK, "{32..47}"},
        {"legacy:world=64,ep=8", 37, PL_GROUP_DENSE_SHARD, "{5..61:8}"},
        {"legacy:world=64,ep=8", 37, PL_GROUP_DENSE_REPLICA, "{32..39}"},
        {"legacy:world=16,replicas=2", 11, PL_GROUP_DENSE_SHARD, "{8..15}"},
        {"legacy:world=16,replicas=2", 11, PL_GROUP_DENSE_REPLICA, "{3,11}"},
        {"single:world=24,cp=2,ep=4", 5, PL_GROUP_DATA, "{4,5,6,7,12,13,14,15,... 12 ranks}"},
        {"single:world=24,cp=2,ep=4", 5, PL_GROUP_CONTEXT, "{1,5}"},
        {"single:world=24,cp=2,ep=4", 5, PL_GROUP_EXPERT_SHARD, "{1..21:4}"},
        {"folded:world=2147483646,ep=2", 2147483645, PL_GROUP_EXPERT_SHARD, "{1..2147483645:2}"},
    };
    pl_text text = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        pl_layout layout = parsed(cases[i].notation);
        pl_rank_set group = pl_layout_group(&layout, cases[i].role, cases[i].rank);
        pl_text_clear(&text);
        pl_rank_set_print(&text, &group);
        assert_string_equal(pl_text_string(&text), cases[i].group);
        assert_int_equal(pl_layout_group_size(&layout, cases[i].role), pl_rank_set_size(&group));
        assert_int_equal(pl_layout_group_index(&layout, cases[i].role, cases[i].rank),
                         pl_rank_set_index(&group, cases[i].rank));
    }
    pl_text_free(&text);
}

/* A layout needs no memory; the words of a refusal do. */
static void test_refusing_without_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; ++i) {
        for (int64_t n = 0;; ++n) {
            pl_layout layout;
            pl_allocation_fail_after(n);
            pl_status status = pl_layout_parse(&layout, refusals[i].notation);
            int failed = pl_allocation_failed();
            pl_allocation_fail_after(-1);
            assert_int_equal(status, failed ? PL_NO_MEMORY : refusals[i].status);
            if (!failed) break;
        }
    }
    pl_layout layout;
    pl_allocation_fail_after(0);
    pl_status status = pl_layout_parse(&layout, "folded:world=64,pp=2,cp=4,ep=8,dp=8,edp=4");
    int failed = pl_allocation_failed();
    pl_allocation_fail_after(-1);
    assert_ok(status);
    assert_false(failed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_notation),
        cmocka_unit_test(test_equality),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_long_notations),
        cmocka_unit_test(test_making_from_numbers),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_meshes),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_refusing_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
