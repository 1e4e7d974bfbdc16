/* Writing weights by many ranks: the same bytes in every layout, and those of the library's own
 * writer; nothing half-done in place of a good file. */
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include "ckpt/weights_folder.h"
#include "common/dtype_convert.h"
#include "common/json.h"
#include "common/layout.h"
#include "common/memory.h"
#include "common/placement.h"
#include "tests/scratch.h"

static const char *const tiny = "testdata/hf/qwen3-moe-tiny";

enum { MOST_RANKS = 16, MOST_VALUES = 1 << 16 };

typedef struct rank_run {
    const pl_model *model;
    const pl_layout *layout;
    const pl_weights *source;
    const char *folder;
    int64_t rank;
    pl_dtype dtype;
    pl_status status;
    char words[512];
} rank_run;

/* What a rank does with its boxes, piece by piece. */
static pl_status write_boxes(rank_run *run, pl_weights_writer *writer, float *values)
{
    for (int64_t t = 0; t < run->model->tensor_count; ++t) {
        const pl_tensor *tensor = &run->model->tensors[t];
        pl_box box = pl_placement_box(run->layout, tensor, run->rank);
        int64_t step = 1 + t % 7 * 40;
        for (int64_t row = box.begin; row < box.end; row += step) {
            int64_t end = row + step < box.end ? row + step : box.end;
            PL_TRY(pl_weights_read(run->source, tensor, row, end, PL_FP32, values));
            PL_TRY(pl_weights_write(writer, tensor, row, end, PL_FP32, values));
        }
    }
    return pl_weights_sync(writer);
}

static void *run_rank(void *argument)
{
    rank_run *run = argument;
    pl_weights_writer *writer = NULL;
    float *values = malloc(MOST_VALUES * sizeof *values);
    run->status = values ? PL_OK : PL_NO_MEMORY;
    if (run->status == PL_OK)
        run->status = pl_weights_begin(&writer, run->folder, run->model, run->dtype);
    if (run->status == PL_OK) run->status = write_boxes(run, writer, values);
    pl_weights_writer_close(writer);
    free(values);
    snprintf(run->words, sizeof run->words, "%s", pl_error_text());
    return NULL;
}

/* All ranks of NOTATION write the weights at SOURCE to FOLDER; another writer finishes. */
static void write_in_layout(const char *notation, const char *source, const char *folder,
                            pl_dtype dtype)
{
    pl_model model;
    pl_layout layout;
    pl_weights *weights = NULL;
    pl_weights_writer *writer = NULL;
    rank_run runs[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    assert_ok(pl_model_open(&model, source));
    assert_ok(pl_layout_parse(&layout, notation));
    assert_ok(pl_weights_open(&weights, source, &model));
    assert_in_range(layout.world, 1, MOST_RANKS);
    for (int64_t r = 0; r < layout.world; ++r) {
        runs[r] = (rank_run){&model, &layout, weights, folder, r, dtype, PL_OK, ""};
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &runs[r]), 0);
    }
    for (int64_t r = 0; r < layout.world; ++r) pthread_join(threads[r], NULL);
    for (int64_t r = 0; r < layout.world; ++r)
        if (runs[r].status != PL_OK) fail_msg("rank %d: %s", (int)r, runs[r].words);
    assert_ok(pl_weights_begin(&writer, folder, &model, dtype));
    assert_ok(pl_weights_finish(writer));
    pl_weights_writer_close(writer);
    pl_weights_close(weights);
    pl_model_free(&model);
}

static void expect_same_file(const char *a, const char *b)
{
    size_t a_count = 0, b_count = 0;
    char *a_bytes = read_bytes(a, &a_count), *b_bytes = read_bytes(b, &b_count);
    assert_int_equal(a_count, b_count);
    if (memcmp(a_bytes, b_bytes, a_count) != 0) fail_msg("%s and %s differ", a, b);
    free(a_bytes);
    free(b_bytes);
}

static void every_layout_writes_the_librarys_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *notation, *model;
    } cases[] = {
        {"legacy:world=1", "testdata/hf/qwen3-moe-tiny"},
        {"legacy:world=8,ep=4", "testdata/hf/qwen3-moe-tiny"},
        {"legacy:world=7", "testdata/hf/qwen3-moe-tiny"},
        {"decoupled:world=8,ep=4,replicas=2", "testdata/hf/qwen3-moe-tiny"},
        {"folded:world=16,ep=8", "testdata/hf/qwen3-moe-tiny"},
        {"single:world=8,ep=2", "testdata/hf/qwen3-moe-dense-first"},
        {"legacy:world=6,ep=3,grain=expert", "testdata/hf/qwen3-moe-tied"},
        {"legacy:world=8,ep=4", "testdata/hf/deepseek-v2-tiny"},
        {"folded:world=16,ep=8", "testdata/hf/deepseek-v2-group"},
        {"single:world=10,ep=2,grain=expert", "testdata/hf/deepseek-v2-group"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        char golden[SCRATCH_PATH];
        pl_model before, after;
        pl_text a = {0}, b = {0};
        scratch s = make_scratch();
        write_in_layout(cases[i].notation, cases[i].model, in_scratch(&s, "out"), PL_FP32);
        snprintf(golden, sizeof golden, "%s/model.safetensors", cases[i].model);
        expect_same_file(in_scratch(&s, "out/model.safetensors"), golden);
        assert_ok(pl_model_open(&before, cases[i].model));
        assert_ok(pl_model_open(&after, in_scratch(&s, "out")));
        pl_model_write(&a, &before);
        pl_model_write(&b, &after);
        assert_string_equal(pl_text_string(&a), pl_text_string(&b));
        assert_int_not_equal(access(in_scratch(&s, "out/model.safetensors.tmp"), F_OK), 0);
        assert_int_not_equal(access(in_scratch(&s, "out/config.json.tmp"), F_OK), 0);
        pl_text_free(&a);
        pl_text_free(&b);
        pl_model_free(&before);
        pl_model_free(&after);
        remove_scratch(&s);
    }
}

static void other_types_are_written_rounded(void **state)
{
    (void)state;
    pl_model model, stored;
    pl_weights *weights = NULL, *back = NULL;
    scratch s = make_scratch();
    write_in_layout("legacy:world=4,ep=4", tiny, in_scratch(&s, "out"), PL_BF16);
    assert_ok(pl_model_open(&model, tiny));
    assert_ok(pl_model_open(&stored, in_scratch(&s, "out")));
    assert_int_equal(stored.stored_dtype, PL_BF16);
    assert_ok(pl_weights_open(&weights, tiny, &model));
    assert_ok(pl_weights_open(&back, in_scratch(&s, "out"), &model));
    float *values = malloc(MOST_VALUES * sizeof *values);
    uint16_t *halves = malloc(MOST_VALUES * sizeof *halves);
    assert_true(values && halves);
    for (int64_t t = 0; t < model.tensor_count; ++t) {
        const pl_tensor *tensor = &model.tensors[t];
        int64_t rows = pl_tensor_total_rows(tensor), count = pl_tensor_elements(tensor);
        assert_in_range(count, 1, MOST_VALUES);
        assert_ok(pl_weights_read(weights, tensor, 0, rows, PL_FP32, values));
        assert_ok(pl_weights_read(back, tensor, 0, rows, PL_BF16, halves));
        for (int64_t i = 0; i < count; ++i)
            assert_int_equal(halves[i], pl_float_to_bf16(values[i]));
    }
    free(values);
    free(halves);
    pl_weights_close(weights);
    pl_weights_close(back);
    pl_model_free(&model);
    pl_model_free(&stored);
    remove_scratch(&s);
}

static void what_a_killed_run_left_does_no_harm(void **state)
{
    (void)state;
    for (int larger = 0; larger < 2; ++larger) {
        scratch s = make_scratch();
        size_t count = larger ? 5000000 : 100;
        char *rubbish = malloc(count);
        assert_non_null(rubbish);
        memset(rubbish, 0xa5, count);
        make_folder(&s, "out");
        write_bytes(&s, "out/model.safetensors.tmp", rubbish, count);
        write_bytes(&s, "out/config.json.tmp", rubbish, count);
        free(rubbish);
        write_in_layout("legacy:world=3", tiny, in_scratch(&s, "out"), PL_FP32);
        expect_same_file(in_scratch(&s, "out/model.safetensors"),
                         "testdata/hf/qwen3-moe-tiny/model.safetensors");
        remove_scratch(&s);
    }
}

static void nothing_changes_before_the_finish(void **state)
{
    (void)state;
    pl_model model;
    pl_weights_writer *writer = NULL;
    float row[64] = {0};
    scratch s = make_scratch();
    write_in_layout("legacy:world=1", tiny, in_scratch(&s, "out"), PL_FP32);
    assert_ok(pl_model_open(&model, tiny));
    assert_ok(pl_weights_begin(&writer, in_scratch(&s, "out"), &model, PL_BF16));
    assert_ok(pl_weights_write(writer, &model.tensors[0], 0, 1, PL_FP32, row));
    pl_weights_writer_close(writer); /* as when killed here */
    expect_same_file(in_scratch(&s, "out/model.safetensors"),
                     "testdata/hf/qwen3-moe-tiny/model.safetensors");
    pl_model_free(&model);
    remove_scratch(&s);
}

static void folders_that_will_not_do_are_refused(void **state)
{
    (void)state;
    pl_model model;
    pl_weights_writer *writer = NULL;
    scratch s = make_scratch();
    assert_ok(pl_model_open(&model, tiny));
    write_words(&s, "file", "x");
    assert_fails(PL_BAD_INPUT, pl_weights_begin(&writer, in_scratch(&s, "file"), &model, PL_FP32),
                 "file: not a folder");
    assert_fails(PL_BAD_INPUT, pl_weights_begin(&writer, in_scratch(&s, "a/b"), &model, PL_FP32),
                 "a/b: the folder for the weights cannot be made", "No such file");
    assert_fails(PL_BAD_INPUT, pl_weights_begin(&writer, "", &model, PL_FP32), "empty");
    make_folder(&s, "hub");
    write_words(&s, "hub/model.safetensors.index.json", "{}");
    assert_fails(PL_BAD_INPUT, pl_weights_begin(&writer, in_scratch(&s, "hub"), &model, PL_FP32),
                 "hub: it holds weights in shards", "name another folder");
    make_folder(&s, "link");
    make_link(&s, "link/model.safetensors.tmp", "../file");
    assert_fails(PL_BAD_INPUT, pl_weights_begin(&writer, in_scratch(&s, "link"), &model, PL_FP32),
                 "model.safetensors.tmp: ");
    assert_fails(PL_INTERNAL, pl_weights_begin(&writer, in_scratch(&s, "x"), &model, PL_I32), "i32",
                 "allowed: fp32, bf16, fp16");
    make_folder(&s, "blocked");
    make_folder(&s, "blocked/config.json");
    write_words(&s, "blocked/config.json/x", "x");
    assert_ok(pl_weights_begin(&writer, in_scratch(&s, "blocked"), &model, PL_FP32));
    assert_fails(PL_IO_FAILED, pl_weights_finish(writer), "config.json.tmp: renaming it to ");
    pl_weights_writer_close(writer);
    assert_null(strstr(pl_error_text(), "model.safetensors: "));
    pl_model_free(&model);
    remove_scratch(&s);
}

static void wrong_rows_are_refused(void **state)
{
    (void)state;
    pl_model model, other;
    pl_weights_writer *writer = NULL;
    float values[64] = {0};
    scratch s = make_scratch();
    assert_ok(pl_model_open(&model, tiny));
    assert_ok(pl_model_open(&other, "testdata/hf/qwen3-moe-dense-first"));
    assert_ok(pl_weights_begin(&writer, in_scratch(&s, "out"), &model, PL_FP32));
    const pl_tensor *embedding = &model.tensors[0];
    assert_fails(PL_INTERNAL, pl_weights_write(writer, embedding, 257, 258, PL_FP32, values),
                 "rows [257, 258)");
    assert_fails(PL_INTERNAL, pl_weights_write(writer, embedding, 0, 1, PL_I64, values), "i64");
    assert_fails(PL_INTERNAL, pl_weights_write(writer, &other.tensors[0], 0, 1, PL_FP32, values),
                 "no tensor of the model");
    pl_weights_writer_close(writer);
    pl_model_free(&model);
    pl_model_free(&other);
    remove_scratch(&s);
}

static void a_file_that_may_not_grow_has_words(void **state)
{
    (void)state;
    struct rlimit before, small;
    pl_model model;
    pl_weights_writer *writer = NULL;
    scratch s = make_scratch();
    assert_ok(pl_model_open(&model, tiny));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 1000000;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    pl_status status = pl_weights_begin(&writer, in_scratch(&s, "out"), &model, PL_FP32);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(status, PL_IO_FAILED);
    assert_non_null(strstr(pl_error_text(), "model.safetensors.tmp: making it 1183136 bytes long"));
    pl_model_free(&model);
    remove_scratch(&s);
}

static pl_status write_one(const char *folder, const pl_model *model, const float *values)
{
    pl_weights_writer *writer = NULL;
    PL_TRY(pl_weights_begin(&writer, folder, model, PL_FP32));
    pl_status status = pl_weights_write(writer, &model->tensors[0], 0, 1, PL_FP32, values);
    if (status == PL_OK) status = pl_weights_sync(writer);
    if (status == PL_OK) status = pl_weights_finish(writer);
    pl_weights_writer_close(writer);
    return status;
}

static void failing_allocations_are_survived(void **state)
{
    (void)state;
    pl_model model;
    float values[64] = {0};
    scratch s = make_scratch();
    assert_ok(pl_model_open(&model, "testdata/hf/qwen3-moe-tied"));
    make_folder(&s, "out");
    pl_status status = PL_NO_MEMORY;
    for (int64_t after = 0; status != PL_OK; ++after) {
        pl_allocation_fail_after(after);
        status = write_one(in_scratch(&s, "out"), &model, values);
        if (status != PL_OK) assert_int_equal(status, PL_NO_MEMORY);
        if (status == PL_OK) assert_false(pl_allocation_failed());
        int there = access(in_scratch(&s, "out/model.safetensors"), F_OK) == 0;
        assert_int_equal(there, status == PL_OK);
        assert_in_range(after, 0, 10000);
    }
    pl_allocation_fail_after(-1);
    pl_model_free(&model);
    remove_scratch(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_writes_the_librarys_bytes),
        cmocka_unit_test(other_types_are_written_rounded),
        cmocka_unit_test(what_a_killed_run_left_does_no_harm),
        cmocka_unit_test(nothing_changes_before_the_finish),
        cmocka_unit_test(folders_that_will_not_do_are_refused),
        cmocka_unit_test(wrong_rows_are_refused),
        cmocka_unit_test(a_file_that_may_not_grow_has_words),
        cmocka_unit_test(failing_allocations_are_survived),
    };
    pl_json_check_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
