/* Resharding: what comes out is what the ranks of the new layout would have written, byte for byte;
 * bounded, gone on with after a kill, and refused in words. */
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "ckpt/store_reshard.h"
#include "common/memory.h"
#include "common/placement.h"
#include "tests/ckpt/checkpoint_trial.h"

static const char *const tiny = "testdata/hf/qwen3-moe-tiny/config.json";

/* Of different placements: uneven rows, empty shards, replicas, both grains. */
static const char *const layouts[] = {
    "single:world=1",
    "single:world=2",
    "legacy:world=3",
    "legacy:world=4",
    "legacy:world=5",
    "legacy:world=7",
    "legacy:world=8,ep=2",
    "legacy:world=8,ep=4",
    "legacy:world=16,ep=4",
    "legacy:world=4,replicas=2",
    "legacy:world=6,replicas=6",
    "decoupled:world=4,ep=2",
    "decoupled:world=8,ep=4",
    "decoupled:world=8,ep=4,replicas=2",
    "decoupled:world=12,ep=2",
    "decoupled:world=16,ep=2,replicas=2",
    "folded:world=8,ep=1,replicas=4",
    "folded:world=6,ep=2,grain=expert",
    "decoupled:world=9,ep=1,grain=expert",
    "legacy:world=12,ep=4,grain=expert",
    "folded:world=24,ep=4",
};

enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static pl_status reshard(const char *from, const char *to, const char *root, int64_t memory,
                         int threads, pl_reshard_result *result)
{
    pl_store_reader *reader = NULL;
    pl_layout layout;
    PL_TRY(pl_layout_parse(&layout, to));
    PL_TRY(pl_store_reader_open(&reader, from));
    const pl_reshard_request request = {
        .from = reader, .layout = &layout, .root = root, .memory = memory, .threads = threads};
    pl_status status = pl_store_reshard(result, &request);
    pl_store_reader_close(reader);
    return status;
}

static void same_file(const char *a, const char *b, const char *name)
{
    char one[SCRATCH_PATH], other[SCRATCH_PATH];
    size_t counts[2] = {0};
    snprintf(one, sizeof one, "%s/%s", a, name);
    snprintf(other, sizeof other, "%s/%s", b, name);
    char *left = read_bytes(one, &counts[0]), *right = read_bytes(other, &counts[1]);
    if (counts[0] != counts[1] || memcmp(left, right, counts[0]) != 0)
        fail_msg("%s and %s differ", one, other);
    free(left);
    free(right);
}

/* Every file but the manifest, which says how it came about. */
static void same_checkpoint(const char *a, const char *b)
{
    pl_manifest m;
    assert_ok(pl_manifest_read(&m, a));
    same_file(a, b, PL_MANIFEST_INDEX);
    for (int64_t i = 0; i < m.rank_count; ++i) {
        static const char *const endings[] = {".json", ".sums", ".h5"};
        char name[PL_MANIFEST_NAME];
        for (int e = 0; e < 3; ++e)
            same_file(a, b, pl_manifest_rank_file(m.ranks[i].rank, endings[e], name));
    }
    pl_manifest_free(&m);
}

static void placements_differ(const checkpoint_trial *t)
{
    for (int i = 0; i < LAYOUTS; ++i) {
        for (int j = 0; j < i; ++j) {
            pl_layout a, b;
            bool same = true;
            assert_ok(pl_layout_parse(&a, layouts[i]));
            assert_ok(pl_layout_parse(&b, layouts[j]));
            same = a.world == b.world;
            for (int64_t r = 0; same && r < a.world; ++r)
                for (int64_t k = 0; same && k < t->model.tensor_count; ++k) {
                    pl_box x = pl_placement_box(&a, &t->model.tensors[k], r);
                    pl_box y = pl_placement_box(&b, &t->model.tensors[k], r);
                    same = x.begin == y.begin && x.end == y.end;
                }
            if (same) fail_msg("%s and %s place everything alike", layouts[i], layouts[j]);
        }
    }
}

/* Each layout into five others; into every other one where PLEAT_ALL_PAIRS is set. */
static bool is_chosen(int from, int to)
{
    int distance = (to - from + LAYOUTS) % LAYOUTS;
    return getenv("PLEAT_ALL_PAIRS") || distance % 4 == 1;
}

static void every_layout_into_others(void **state)
{
    scratch s = make_scratch();
    checkpoint_trial t;
    (void)state;
    trial_open(&t, tiny, PL_BF16, PL_OPTIMIZER_ADAMW, "norm", NULL);
    placements_differ(&t);
    for (int i = 0; i < LAYOUTS; ++i) assert_ok(trial_write(&t, s.folder, i, layouts[i]));
    for (int i = 0; i < LAYOUTS; ++i) {
        for (int j = 0; j < LAYOUTS; ++j) {
            char from[96], to[96], root[96], made[128];
            pl_reshard_result result;
            if (!is_chosen(i, j)) continue;
            snprintf(from, sizeof from, "%s/step-%d", s.folder, i);
            snprintf(to, sizeof to, "%s/step-%d", s.folder, j);
            snprintf(root, sizeof root, "%s/new", s.folder);
            snprintf(made, sizeof made, "%s/step-%d", root, i);
            assert_ok(reshard(from, layouts[j], root, 4 << 20, 1 + (i + j) % 3, &result));
            same_checkpoint(to, made);
            remove_tree(root);
        }
    }
    trial_close(&t);
    remove_scratch(&s);
}

static void facts_add_up(void **state)
{
    scratch s = make_scratch();
    checkpoint_trial t;
    pl_store_reader *reader = NULL;
    (void)state;
    trial_open(&t, tiny, PL_FP32, PL_OPTIMIZER_ADAMW, NULL, NULL);
    assert_ok(trial_write(&t, s.folder, 3, "decoupled:world=8,ep=4"));
    assert_ok(pl_store_reader_open(&reader, in_scratch(&s, "step-3")));
    const pl_manifest *m = pl_store_reader_manifest(reader);
    const pl_checkpoint_map *map = pl_store_reader_map(reader);
    int64_t whole = 0;
    for (int64_t i = 0; i < m->model.tensor_count; ++i)
        whole += pl_tensor_total_rows(&m->model.tensors[i]) *
                 pl_kept_row_bytes(&m->model.tensors[i], &m->kept[i]);
    for (int i = 0; i < LAYOUTS; ++i) {
        pl_layout layout;
        pl_reshard_facts facts;
        assert_ok(pl_layout_parse(&layout, layouts[i]));
        assert_ok(pl_reshard_plan(&facts, m, map, &layout));
        assert_int_equal(facts.bytes, whole);
        assert_true(facts.bytes_read >= whole && facts.reads >= facts.boxes);
        assert_true(facts.ranks <= layout.world && facts.most_bytes * facts.ranks >= whole);
    }
    pl_layout same;
    pl_reshard_facts facts;
    assert_ok(pl_layout_parse(&same, "decoupled:world=8,ep=4"));
    assert_ok(pl_reshard_plan(&facts, m, map, &same));
    assert_true(facts.staying == whole && facts.bytes_read == whole && facts.reads == facts.boxes);
    pl_store_reader_close(reader);
    trial_close(&t);
    remove_scratch(&s);
}

static void wrong_jobs_are_refused(void **state)
{
    scratch s = make_scratch();
    checkpoint_trial t;
    pl_reshard_result result;
    (void)state;
    trial_open(&t, tiny, PL_FP32, PL_OPTIMIZER_SGD, NULL, NULL);
    assert_ok(trial_write(&t, s.folder, 3, "legacy:world=2"));
    const char *from = in_scratch(&s, "step-3");
    assert_fails(PL_UNSUPPORTED,
                 reshard(from, "folded:world=4,pp=2", in_scratch(&s, "new"), 4 << 20, 1, &result),
                 "pp=2", "still to come");
    assert_fails(PL_BAD_INPUT,
                 reshard(from, "legacy:world=9,ep=3", in_scratch(&s, "new"), 4 << 20, 1, &result),
                 "ep=3");
    assert_fails(PL_BAD_INPUT, reshard(from, "legacy:world=4", s.folder, 4 << 20, 1, &result),
                 "step-3: it is there already");
    assert_false(is_there(in_scratch(&s, "new")));
    trial_close(&t);
    remove_scratch(&s);
}

/* A repeat of a job that was done says so and changes nothing. */
static void a_repeat_is_no_error(void **state)
{
    scratch s = make_scratch();
    checkpoint_trial t;
    pl_reshard_result result;
    (void)state;
    trial_open(&t, tiny, PL_FP32, PL_OPTIMIZER_SGD, NULL, NULL);
    assert_ok(trial_write(&t, s.folder, 3, "legacy:world=2"));
    for (int i = 0; i < 2; ++i)
        assert_ok(reshard(in_scratch(&s, "step-3"), "legacy:world=4", in_scratch(&s, "new"),
                          4 << 20, 2, &result));
    assert_int_equal(result.bytes, 0);
    trial_check(in_scratch(&s, "new/step-3"), "legacy:world=4");
    trial_close(&t);
    remove_scratch(&s);
}

/* With a file size that the disk does not take, then with one: what was complete is not written
 * again. */
static void a_broken_job_is_gone_on_with(void **state)
{
    scratch s = make_scratch();
    checkpoint_trial t;
    pl_reshard_result result;
    struct rlimit before, tight;
    (void)state;
    trial_open(&t, tiny, PL_FP32, PL_OPTIMIZER_ADAMW, NULL, NULL);
    assert_ok(trial_write(&t, s.folder, 3, "legacy:world=1"));
    assert_ok(trial_write(&t, s.folder, 4, "legacy:world=8,ep=4"));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    tight = before;
    /* ranks 0 and 1 have less than rank 2, and are complete when the job breaks */
    tight.rlim_cur = file_bytes(in_scratch(&s, "step-4/rank-00002.h5")) - 1;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    pl_status status = reshard(in_scratch(&s, "step-3"), "legacy:world=8,ep=4",
                               in_scratch(&s, "new"), 4 << 20, 1, &result);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, PL_IO_FAILED);
    assert_false(is_there(in_scratch(&s, "new/step-3")));
    assert_ok(reshard(in_scratch(&s, "step-3"), "legacy:world=8,ep=4", in_scratch(&s, "new"),
                      4 << 20, 2, &result));
    assert_true(result.reused >= 1 && result.reused < result.ranks);
    trial_check(in_scratch(&s, "new/step-3"), "single:world=1");
    trial_close(&t);
    remove_scratch(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_into_others),     cmocka_unit_test(facts_add_up),
        cmocka_unit_test(wrong_jobs_are_refused),       cmocka_unit_test(a_repeat_is_no_error),
        cmocka_unit_test(a_broken_job_is_gone_on_with),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
