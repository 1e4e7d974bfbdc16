/* Checkpoints become Hugging Face folders: what went in comes out, and nothing half-done. */
#include <jansson.h>
#include <signal.h>
#include <sys/resource.h>

#include "ckpt/safetensors_set.h"
#include "ckpt/store_export.h"
#include "ckpt/store_import.h"
#include "ckpt/weights_folder.h"
#include "common/dtype_convert.h"
#include "common/json.h"
#include "common/memory.h"
#include "tests/ckpt/checkpoint_trial.h"

static const char *const tiny = "testdata/hf/qwen3-moe-tiny";
static const char *const tied = "testdata/hf/qwen3-moe-tied";

static void import(const char *folder, const char *checkpoint, const char *notation, pl_dtype dtype)
{
    pl_import_report report;
    pl_import_request request = {
        .folder = folder, .checkpoint = checkpoint, .dtype = dtype, .threads = 2};
    assert_ok(pl_layout_parse(&request.layout, notation));
    assert_ok(pl_store_import(&report, &request));
    pl_import_report_free(&report);
}

/* Names are copied: those of in_scratch do not last. */
static pl_export_request request_of(const char *checkpoint, const char *folder)
{
    static char paths[2][SCRATCH_PATH];
    snprintf(paths[0], SCRATCH_PATH, "%s", checkpoint);
    snprintf(paths[1], SCRATCH_PATH, "%s", folder);
    checkpoint = paths[0];
    folder = paths[1];
    return (pl_export_request){.checkpoint = checkpoint,
                               .folder = folder,
                               .dtype = PL_DTYPE_COUNT,
                               .shard_bytes = PL_EXPORT_SHARD_BYTES,
                               .threads = 3};
}

static pl_export_report export(const pl_export_request *request)
{
    pl_export_report report;
    assert_ok(pl_store_export(&report, request));
    return report;
}

static void expect_same_file(const char *a, const char *b)
{
    size_t a_count = 0, b_count = 0;
    char *a_bytes = read_bytes(a, &a_count), *b_bytes = read_bytes(b, &b_count);
    if (a_count != b_count || memcmp(a_bytes, b_bytes, a_count) != 0)
        fail_msg("%s and %s differ", a, b);
    free(a_bytes);
    free(b_bytes);
}

/* Both sets hold the same tensors, with the same bits. */
static void expect_same_tensors(const char *a, const char *b)
{
    pl_safetensors_set x, y;
    assert_ok(pl_safetensors_set_open(&x, a));
    assert_ok(pl_safetensors_set_open(&y, b));
    assert_string_equal(pl_text_string(&y.notes), "");
    assert_int_equal(x.place_count, y.place_count);
    for (int64_t i = 0; i < x.place_count; ++i) {
        const pl_safetensors_tensor *left = x.places[i].tensor, *right = y.places[i].tensor;
        assert_string_equal(left->name, right->name);
        assert_int_equal(left->type, right->type);
        assert_int_equal(left->dimensions, right->dimensions);
        for (int64_t d = 0; d < left->dimensions; ++d)
            assert_int_equal(left->shape[d], right->shape[d]);
        char *one = malloc((size_t)left->bytes + 1), *two = malloc((size_t)left->bytes + 1);
        assert_true(one && two);
        assert_ok(pl_safetensors_read(x.places[i].file, left, 0, left->bytes, one));
        assert_ok(pl_safetensors_read(y.places[i].file, right, 0, right->bytes, two));
        if (memcmp(one, two, (size_t)left->bytes) != 0) fail_msg("%s differs", left->name);
        free(one);
        free(two);
    }
    pl_safetensors_set_close(&x);
    pl_safetensors_set_close(&y);
}

/* FOLDER holds exactly COUNT names. */
static void expect_names(const char *folder, int count)
{
    DIR *listing = opendir(folder);
    assert_non_null(listing);
    int names = -2; /* . and .. */
    for (struct dirent *entry = readdir(listing); entry; entry = readdir(listing)) {
        ++names;
        assert_null(strstr(entry->d_name, ".tmp"));
    }
    closedir(listing);
    assert_int_equal(names, count);
}

static void what_went_in_comes_out(void **state)
{
    static const struct {
        const char *folder, *notation;
        int64_t limit;
        int files;  /* of tensors */
        bool bytes; /* the one file is the library's own, byte for byte */
    } cases[] = {
        {"testdata/hf/qwen3-moe-tiny", "single:world=1", PL_EXPORT_SHARD_BYTES, 1, true},
        {"testdata/hf/qwen3-moe-tiny", "legacy:world=7", 200000, 6, false},
        {"testdata/hf/qwen3-moe-tiny", "decoupled:world=8,ep=4,replicas=2", 1180000, 1, true},
        {"testdata/hf/qwen3-moe-tiny-bf16-sharded", "legacy:world=8,ep=4", 150000, 4, false},
        {"testdata/hf/qwen3-moe-tiny-bf16-sharded", "single:world=1", PL_EXPORT_SHARD_BYTES, 1,
         false},
        {"testdata/hf/qwen3-moe-dense-first", "folded:world=16,ep=8", 484000, 1, true},
        {"testdata/hf/qwen3-moe-tied", "legacy:world=6,ep=3,grain=expert", 500000, 1, true},
        {"testdata/hf/qwen3-moe-tied", "single:world=1", 1, 56, false},
        {"testdata/hf/deepseek-v2-tiny", "single:world=10,ep=2", 400000, 1, true},
        {"testdata/hf/deepseek-v2-tiny", "legacy:world=5", 100000, 4, false},
        {"testdata/hf/deepseek-v2-group", "folded:world=16,cp=2,ep=8", 400000, 1, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        scratch s = make_scratch();
        char path[SCRATCH_PATH];
        import(cases[i].folder, in_scratch(&s, "in"), cases[i].notation, PL_DTYPE_COUNT);
        pl_export_request request = request_of(in_scratch(&s, "in/step-0"), in_scratch(&s, "out"));
        request.shard_bytes = cases[i].limit;
        pl_export_report report = export(&request);
        assert_int_equal(report.files, cases[i].files);
        assert_int_equal(report.masters, 0);
        expect_names(in_scratch(&s, "out"), cases[i].files + 1 + (cases[i].files > 1));
        expect_same_tensors(cases[i].folder, in_scratch(&s, "out"));
        snprintf(path, sizeof path, "%s/config.json", cases[i].folder);
        expect_same_file(path, in_scratch(&s, "out/config.json"));
        snprintf(path, sizeof path, "%s/model.safetensors", cases[i].folder);
        if (cases[i].bytes) expect_same_file(path, in_scratch(&s, "out/model.safetensors"));
        remove_scratch(&s);
    }
}

/* --- types --- */

static const char *dtype_of_config(const scratch *s, const char *key)
{
    static char word[32];
    struct json_t *tree = NULL;
    assert_ok(pl_json_read(&tree, in_scratch(s, "out/config.json"), 1 << 20));
    const char *name = json_string_value(json_object_get(tree, key));
    snprintf(word, sizeof word, "%s", name ? name : "none");
    pl_json_free(tree);
    return word;
}

/* Every number of the export is NEAREST of the one in the files, by its own function. */
static void expect_rounded(const char *source, const char *out, uint16_t (*nearest)(float))
{
    pl_safetensors_set x, y;
    assert_ok(pl_safetensors_set_open(&x, source));
    assert_ok(pl_safetensors_set_open(&y, out));
    assert_int_equal(x.place_count, y.place_count);
    for (int64_t i = 0; i < x.place_count; ++i) {
        const pl_safetensors_tensor *left = x.places[i].tensor, *right = y.places[i].tensor;
        float *one = malloc((size_t)left->bytes);
        uint16_t *two = malloc((size_t)right->bytes);
        assert_true(one && two);
        assert_ok(pl_safetensors_read(x.places[i].file, left, 0, left->bytes, one));
        assert_ok(pl_safetensors_read(y.places[i].file, right, 0, right->bytes, two));
        for (int64_t v = 0; v < left->elements; ++v) assert_int_equal(two[v], nearest(one[v]));
        free(one);
        free(two);
    }
    pl_safetensors_set_close(&x);
    pl_safetensors_set_close(&y);
}

static void values_are_rounded_once(void **state)
{
    (void)state;
    for (int at_import = 0; at_import < 2; ++at_import)
        for (int half = 0; half < 2; ++half) {
            scratch s = make_scratch();
            pl_dtype dtype = half ? PL_FP16 : PL_BF16;
            import(tiny, in_scratch(&s, "in"), "legacy:world=3",
                   at_import ? dtype : PL_DTYPE_COUNT);
            pl_export_request request =
                request_of(in_scratch(&s, "in/step-0"), in_scratch(&s, "out"));
            if (!at_import) request.dtype = dtype;
            assert_int_equal(export(&request).bytes, 2 * 293024);
            expect_rounded(tiny, in_scratch(&s, "out"), half ? pl_float_to_fp16 : pl_float_to_bf16);
            assert_string_equal(dtype_of_config(&s, "torch_dtype"), half ? "float16" : "bfloat16");
            assert_string_equal(dtype_of_config(&s, "dtype"), "none");
            remove_scratch(&s);
        }
}

/* bf16 to fp32 and back is the same again, and what PyTorch rounded is what pleat rounds. */
static void the_way_back_is_exact(void **state)
{
    scratch s = make_scratch();
    (void)state;
    import("testdata/hf/qwen3-moe-tiny-bf16-sharded", in_scratch(&s, "a"), "legacy:world=2",
           PL_FP32);
    pl_export_request request = request_of(in_scratch(&s, "a/step-0"), in_scratch(&s, "out"));
    export(&request);
    assert_string_equal(dtype_of_config(&s, "torch_dtype"), "float32");
    import(in_scratch(&s, "out"), in_scratch(&s, "b"), "folded:world=4,ep=4", PL_BF16);
    request = request_of(in_scratch(&s, "b/step-0"), in_scratch(&s, "bf16"));
    export(&request);
    expect_same_tensors("testdata/hf/qwen3-moe-tiny-bf16-sharded", in_scratch(&s, "bf16"));
    import(tiny, in_scratch(&s, "c"), "single:world=1", PL_BF16);
    request = request_of(in_scratch(&s, "c/step-0"), in_scratch(&s, "rounded"));
    export(&request);
    expect_same_tensors("testdata/hf/qwen3-moe-tiny-bf16-sharded", in_scratch(&s, "rounded"));
    remove_scratch(&s);
}

/* Only the type changes in a config.json; numbers stay what they are. */
static void configs_change_in_one_key(void **state)
{
    scratch s = make_scratch();
    struct json_t *before = NULL, *after = NULL;
    (void)state;
    import("testdata/hf/deepseek-v2-group", in_scratch(&s, "a"), "single:world=1", PL_DTYPE_COUNT);
    pl_export_request request = request_of(in_scratch(&s, "a/step-0"), in_scratch(&s, "out"));
    request.dtype = PL_FP16;
    export(&request);
    assert_ok(pl_json_read(&before, "testdata/hf/deepseek-v2-group/config.json", 1 << 20));
    assert_ok(pl_json_read(&after, in_scratch(&s, "out/config.json"), 1 << 20));
    const char *key = json_object_get(before, "dtype") ? "dtype" : "torch_dtype";
    assert_string_equal(json_string_value(json_object_get(after, key)), "float16");
    assert_int_equal(json_object_set(after, key, json_object_get(before, key)), 0);
    assert_true(json_equal(before, after));
    pl_json_free(before);
    pl_json_free(after);
    remove_scratch(&s);
}

/* --- trained checkpoints --- */

/* Numbers that are none of the special ones, different in each kind. */
static void fill_numbers(unsigned char *values, const pl_checkpoint_box *box)
{
    int64_t width = pl_dtype_bytes((pl_dtype)box->dtype);
    for (int64_t i = 0; i < box->bytes / width; ++i) {
        float number = (float)(box->row_begin * 1000 + i + 1) * (box->kind == 0 ? 1.0F : 1.37F);
        uint16_t half = pl_float_to_bf16(number);
        if (width == 4)
            memcpy(values + 4 * i, &number, 4);
        else
            memcpy(values + 2 * i, &half, 2);
    }
}

static void check_types(const scratch *s, pl_safetensors_type norms, pl_safetensors_type others)
{
    pl_safetensors file;
    assert_ok(pl_safetensors_open(&file, in_scratch(s, "out/model.safetensors")));
    assert_int_equal(file.tensor_count, 102);
    for (int64_t i = 0; i < file.tensor_count; ++i)
        assert_int_equal(file.tensors[i].type,
                         strstr(file.tensors[i].name, "norm") ? norms : others);
    pl_safetensors_close(&file);
}

static void trained_ones_in_parameters_or_masters(void **state)
{
    scratch s = make_scratch();
    checkpoint_trial t;
    (void)state;
    trial_open(&t, "testdata/hf/qwen3-moe-tiny/config.json", PL_BF16, PL_OPTIMIZER_ADAMW,
               "*norm.weight", NULL);
    t.fill = fill_numbers;
    assert_ok(trial_write(&t, s.folder, 5, "decoupled:world=8,ep=4,replicas=2"));
    pl_export_request request = request_of(in_scratch(&s, "step-5"), in_scratch(&s, "out"));
    pl_export_report report = export(&request);
    assert_int_equal(report.masters, 0);
    check_types(&s, PL_SAFETENSORS_F32, PL_SAFETENSORS_BF16);
    assert_string_equal(dtype_of_config(&s, "torch_dtype"), "bfloat16");
    assert_string_equal(dtype_of_config(&s, "model_type"), "qwen3_moe");
    request.overwrite = request.masters = true;
    report = export(&request);
    assert_true(report.masters > 0 && report.masters < t.model.tensor_count);
    check_types(&s, PL_SAFETENSORS_F32, PL_SAFETENSORS_F32);
    assert_string_equal(dtype_of_config(&s, "torch_dtype"), "float32");
    pl_weights *weights = NULL;
    float row[64];
    assert_ok(pl_weights_open(&weights, in_scratch(&s, "out"), &t.model));
    assert_ok(pl_weights_read(weights, &t.model.tensors[0], 1, 2, PL_FP32, row));
    assert_true(row[0] > 0);
    pl_weights_close(weights);
    request.dtype = PL_FP16;
    export(&request);
    check_types(&s, PL_SAFETENSORS_F16, PL_SAFETENSORS_F16);
    trial_close(&t);
    remove_scratch(&s);
}

/* --- folders --- */

static void a_folder_with_files_is_left_alone(void **state)
{
    scratch s = make_scratch();
    pl_export_report report;
    (void)state;
    import(tied, in_scratch(&s, "in"), "single:world=1", PL_DTYPE_COUNT);
    make_folder(&s, "out");
    write_words(&s, "out/tokenizer.json", "{}");
    pl_export_request request = request_of(in_scratch(&s, "in/step-0"), in_scratch(&s, "out"));
    assert_fails(PL_BAD_INPUT, pl_store_export(&report, &request),
                 "out: the folder holds files (tokenizer.json)", "--overwrite");
    expect_names(in_scratch(&s, "out"), 1);
    request.folder = in_scratch(&s, "out/tokenizer.json");
    assert_fails(PL_BAD_INPUT, pl_store_export(&report, &request), "not a folder");
    request.folder = in_scratch(&s, "no/such");
    assert_fails(PL_BAD_INPUT, pl_store_export(&report, &request), "cannot be made",
                 "No such file");
    request.folder = "";
    assert_fails(PL_BAD_INPUT, pl_store_export(&report, &request), "empty");
    request.folder = in_scratch(&s, "new");
    request.checkpoint = tied;
    assert_fails(PL_BAD_INPUT, pl_store_export(&report, &request), "manifest.json");
    assert_int_not_equal(access(in_scratch(&s, "new"), F_OK), 0);
    remove_scratch(&s);
}

/* One file, shards, fewer shards, one file: each time nothing of the former is left, and what is
 * not weights stays. */
static void weights_are_replaced_whole(void **state)
{
    static const struct {
        int64_t limit;
        int names; /* with config.json, the index and the tokenizer */
    } turns[] = {{1000000, 3}, {10000, 0}, {100000, 5}, {60000, 0}, {1000000, 3}};
    scratch s = make_scratch();
    (void)state;
    import(tied, in_scratch(&s, "in"), "single:world=1", PL_DTYPE_COUNT);
    make_folder(&s, "out");
    write_words(&s, "out/tokenizer.json", "{}");
    write_words(&s, "out/model-00001-of-00004.safetensors.tmp", "left by a killed export");
    for (size_t i = 0; i < sizeof turns / sizeof *turns; ++i) {
        pl_export_request request = request_of(in_scratch(&s, "in/step-0"), in_scratch(&s, "out"));
        request.overwrite = true;
        request.shard_bytes = turns[i].limit;
        pl_export_report report = export(&request);
        expect_names(in_scratch(&s, "out"), (int)report.files + 2 + (report.files > 1));
        if (turns[i].names) assert_int_equal(report.files + 2 + (report.files > 1), turns[i].names);
        expect_same_tensors(tied, in_scratch(&s, "out"));
    }
    remove_scratch(&s);
}

static void what_a_killed_export_left_is_no_file(void **state)
{
    scratch s = make_scratch();
    (void)state;
    import(tied, in_scratch(&s, "in"), "single:world=1", PL_DTYPE_COUNT);
    make_folder(&s, "out");
    write_words(&s, "out/model.safetensors.tmp", "x");
    write_words(&s, "out/config.json.tmp", "x");
    pl_export_request request = request_of(in_scratch(&s, "in/step-0"), in_scratch(&s, "out"));
    export(&request);
    expect_names(in_scratch(&s, "out"), 2);
    expect_same_tensors(tied, in_scratch(&s, "out"));
    remove_scratch(&s);
}

/* --- failures on the way --- */

static void a_file_that_may_not_grow_leaves_nothing(void **state)
{
    scratch s = make_scratch();
    struct rlimit before, small;
    (void)state;
    import(tiny, in_scratch(&s, "in"), "single:world=1", PL_DTYPE_COUNT);
    import(tied, in_scratch(&s, "small"), "single:world=1", PL_DTYPE_COUNT);
    pl_export_request request = request_of(in_scratch(&s, "small/step-0"), in_scratch(&s, "old"));
    export(&request);
    for (int i = 0; i < 4; ++i) {
        pl_export_report report;
        request = request_of(in_scratch(&s, "in/step-0"), in_scratch(&s, i % 2 ? "old" : "new"));
        request.overwrite = i % 2;
        request.shard_bytes = i < 2 ? PL_EXPORT_SHARD_BYTES : 400000;
        assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
        small = before;
        small.rlim_cur = i < 2 ? 1000000 : 390000;
        void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        pl_status status = pl_store_export(&report, &request);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        signal(SIGXFSZ, handler);
        assert_int_equal(status, PL_IO_FAILED);
        assert_non_null(strstr(pl_error_text(), ".safetensors.tmp: making it "));
        assert_int_not_equal(access(in_scratch(&s, "new"), F_OK), 0);
        expect_names(in_scratch(&s, "old"), 2);
        expect_same_tensors(tied, in_scratch(&s, "old"));
    }
    remove_scratch(&s);
}

static void damage_is_not_passed_on(void **state)
{
    scratch s = make_scratch();
    pl_export_report report;
    size_t count = 0;
    (void)state;
    import(tied, in_scratch(&s, "in"), "legacy:world=2", PL_DTYPE_COUNT);
    char *bytes = read_bytes(in_scratch(&s, "in/step-0/rank-00001.h5"), &count);
    bytes[count - 1000] ^= 1;
    write_bytes(&s, "in/step-0/rank-00001.h5", bytes, count);
    free(bytes);
    pl_export_request request = request_of(in_scratch(&s, "in/step-0"), in_scratch(&s, "out"));
    assert_fails(PL_BAD_INPUT, pl_store_export(&report, &request), "rank-00001.h5: damaged");
    assert_int_not_equal(access(in_scratch(&s, "out"), F_OK), 0);
    remove_scratch(&s);
}

static void failing_allocations_are_survived(void **state)
{
    pl_status status = PL_NO_MEMORY;
    scratch s = make_scratch();
    (void)state;
    import(tied, in_scratch(&s, "in"), "legacy:world=2,ep=2", PL_DTYPE_COUNT);
    for (int64_t after = 0; status != PL_OK; after += after < 200 ? 1 : 13) {
        pl_export_report report;
        pl_export_request request = request_of(in_scratch(&s, "in/step-0"), in_scratch(&s, "out"));
        request.threads = 1;
        request.shard_bytes = 60000;
        request.dtype = PL_BF16;
        pl_allocation_fail_after(after);
        status = pl_store_export(&report, &request);
        pl_allocation_fail_after(-1);
        if (status != PL_OK) assert_int_equal(status, PL_NO_MEMORY);
        assert_int_equal(access(in_scratch(&s, "out"), F_OK) == 0, status == PL_OK);
        assert_in_range(after, 0, 100000);
    }
    remove_scratch(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_went_in_comes_out),
        cmocka_unit_test(values_are_rounded_once),
        cmocka_unit_test(the_way_back_is_exact),
        cmocka_unit_test(configs_change_in_one_key),
        cmocka_unit_test(trained_ones_in_parameters_or_masters),
        cmocka_unit_test(a_folder_with_files_is_left_alone),
        cmocka_unit_test(weights_are_replaced_whole),
        cmocka_unit_test(what_a_killed_export_left_is_no_file),
        cmocka_unit_test(a_file_that_may_not_grow_leaves_nothing),
        cmocka_unit_test(damage_is_not_passed_on),
        cmocka_unit_test(failing_allocations_are_survived),
    };
    pl_json_check_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
