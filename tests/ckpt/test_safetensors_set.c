/* Folders of shards with an index: which are read, and what is said of the others
 * (testdata/safetensors/index). */
#include <jansson.h>

#include "ckpt/safetensors_set.h"
#include "common/json.h"
#include "common/memory.h"
#include "tests/scratch.h"

static const char *const folder = "testdata/safetensors/index";

static const struct {
    const char *fault, *words;
} faults[] = {
    {"shard-missing", "No such file"},
    {"tensor-not-in-shard", "and is not there; it stands in"},
    {"tensor-not-in-index", "and the index has it not"},
    {"tensor-in-two-shards", "stands in two files"},
    {"weight-map-not-string", "allowed: a string"},
    {"weight-map-missing", "'weight_map'"},
    {"path-escape", "the name of a file in the index's own folder"},
    {"index-not-json", "not JSON: "},
    {"duplicate-key", "duplicate object key"},
    {"end-past-buffer", "of data: it was cut short"},
};

static void expect_fault(const char *name, const char *fault)
{
    for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i) {
        if (strcmp(faults[i].fault, fault) != 0) continue;
        if (!strstr(pl_error_text(), faults[i].words))
            fail_msg("%s: no words of %s in: %s", name, fault, pl_error_text());
        return;
    }
    fail_msg("%s: unknown fault %s", name, fault);
}

static void expect_notes(const char *name, const pl_safetensors_set *set, const char *warn)
{
    const char *notes = pl_text_string(&set->notes);
    const char *words = !warn ? ""
                        : strcmp(warn, "total-size") == 0
                            ? "total_size is "
                            : "1 file of tensors not used: model-00003";
    if (!strstr(notes, words) || (!warn && *notes)) fail_msg("%s: notes: %s", name, notes);
}

static void sets_are_read_or_refused_as_they_should(void **state)
{
    (void)state;
    const char *name = NULL;
    json_t *expected = NULL;
    json_t *tree = json_load_file("testdata/safetensors/index/expect.json", 0, NULL);
    json_t *sets = json_object_get(tree, "sets");
    assert_int_equal(json_object_size(sets), 24);
    json_object_foreach(sets, name, expected)
    {
        char path[SCRATCH_PATH];
        pl_safetensors_set set = {0};
        const char *fault = json_string_value(json_object_get(expected, "fault"));
        snprintf(path, sizeof path, "%s/%s", folder, name);
        pl_error_clear();
        pl_status status = pl_safetensors_set_open(&set, path);
        if (status != (fault ? PL_BAD_INPUT : PL_OK))
            fail_msg("%s: status %s: %s", name, pl_status_name(status), pl_error_text());
        if (fault) {
            expect_fault(name, fault);
            continue;
        }
        expect_notes(name, &set, json_string_value(json_object_get(expected, "warn")));
        assert_int_equal(set.place_count, 4);
        assert_non_null(pl_safetensors_set_find(&set, "embed.weight"));
        assert_null(pl_safetensors_set_find(&set, "embed"));
        pl_safetensors_set_close(&set);
    }
    json_decref(tree);
}

static void tensors_come_from_the_file_the_index_names(void **state)
{
    (void)state;
    pl_safetensors_set whole, shards;
    assert_ok(pl_safetensors_set_open(&whole, "testdata/safetensors/index/no_index"));
    assert_ok(pl_safetensors_set_open(&shards, "testdata/safetensors/index/two_shards/"));
    assert_int_equal(shards.file_count, 2);
    for (int64_t i = 0; i < whole.place_count; ++i) {
        char a[256], b[256];
        const pl_safetensors_place *x = &whole.places[i];
        const pl_safetensors_place *y = pl_safetensors_set_find(&shards, x->tensor->name);
        assert_non_null(y);
        assert_int_equal(x->tensor->bytes, y->tensor->bytes);
        assert_in_range(x->tensor->bytes, 1, sizeof a);
        assert_ok(pl_safetensors_read(x->file, x->tensor, 0, x->tensor->bytes, a));
        assert_ok(pl_safetensors_read(y->file, y->tensor, 0, y->tensor->bytes, b));
        assert_memory_equal(a, b, (size_t)x->tensor->bytes);
    }
    pl_safetensors_set_close(&whole);
    pl_safetensors_set_close(&shards);
}

static void one_file_is_a_set(void **state)
{
    (void)state;
    pl_safetensors_set set;
    assert_ok(pl_safetensors_set_open(&set, "testdata/safetensors/good/moe_names.safetensors"));
    assert_int_equal(set.file_count, 1);
    assert_string_equal(pl_text_string(&set.notes), "");
    pl_safetensors_set_close(&set);
}

static void folders_that_are_none_are_refused(void **state)
{
    (void)state;
    pl_safetensors_set set;
    scratch s = make_scratch();
    assert_fails(PL_BAD_INPUT, pl_safetensors_set_open(&set, in_scratch(&s, "gone")), "gone",
                 "No such file");
    assert_fails(PL_BAD_INPUT, pl_safetensors_set_open(&set, s.folder), s.folder,
                 "neither model.safetensors nor model.safetensors.index.json");
    write_words(&s, "model.bin", "x");
    assert_fails(PL_BAD_INPUT, pl_safetensors_set_open(&set, in_scratch(&s, "model.bin")),
                 "neither a folder nor a file named *.safetensors");
    write_words(&s, "model.safetensors", "x");
    assert_fails(PL_BAD_INPUT, pl_safetensors_set_open(&set, s.folder), "model.safetensors",
                 "at least the 8");
    write_words(&s, "model.safetensors.index.json", "{}");
    assert_fails(PL_BAD_INPUT, pl_safetensors_set_open(&set, s.folder), "both model.safetensors");
    assert_int_equal(remove(in_scratch(&s, "model.safetensors")), 0);
    assert_fails(PL_BAD_INPUT, pl_safetensors_set_open(&set, s.folder), "weight_map", "is missing");
    remove_scratch(&s);
}

static void shards_may_be_links_that_lead_away(void **state)
{
    (void)state;
    char target[SCRATCH_PATH], here[SCRATCH_PATH / 2];
    pl_safetensors_set set;
    scratch s = make_scratch();
    assert_non_null(getcwd(here, sizeof here));
    snprintf(target, sizeof target, "%s/%s/no_index/model.safetensors", here, folder);
    make_link(&s, "model.safetensors", target);
    assert_ok(pl_safetensors_set_open(&set, s.folder));
    assert_int_equal(set.place_count, 4);
    pl_safetensors_set_close(&set);
    remove_scratch(&s);
}

static void failing_allocations_are_survived(void **state)
{
    (void)state;
    pl_safetensors_set set;
    pl_status status = PL_NO_MEMORY;
    for (int64_t after = 0; status != PL_OK; ++after) {
        pl_allocation_fail_after(after);
        status = pl_safetensors_set_open(&set, "testdata/safetensors/index/spare_shard_beside");
        if (status != PL_OK) assert_int_equal(status, PL_NO_MEMORY);
        if (status == PL_OK) assert_false(pl_allocation_failed());
        assert_in_range(after, 0, 1000);
    }
    pl_allocation_fail_after(-1);
    pl_safetensors_set_close(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_are_read_or_refused_as_they_should),
        cmocka_unit_test(tensors_come_from_the_file_the_index_names),
        cmocka_unit_test(one_file_is_a_set),
        cmocka_unit_test(folders_that_are_none_are_refused),
        cmocka_unit_test(shards_may_be_links_that_lead_away),
        cmocka_unit_test(failing_allocations_are_survived),
    };
    pl_json_check_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
