/* Weights of Hugging Face folders become checkpoints: every value by its bits, in any layout. */
#include <jansson.h>
#include <signal.h>
#include <sys/resource.h>

#include "ckpt/safetensors_layout.h"
#include "ckpt/store_folder.h"
#include "ckpt/store_import.h"
#include "ckpt/store_reader.h"
#include "ckpt/store_verify.h"
#include "ckpt/weights_folder.h"
#include "common/dtype_convert.h"
#include "common/json.h"
#include "common/memory.h"
#include "tests/scratch.h"

static const char *const tiny = "testdata/hf/qwen3-moe-tiny";
static const char *const tied = "testdata/hf/qwen3-moe-tied";

static pl_import_request request_of(const char *folder, const char *checkpoint,
                                    const char *notation)
{
    pl_import_request request = {
        .folder = folder, .checkpoint = checkpoint, .dtype = PL_DTYPE_COUNT, .threads = 3};
    assert_ok(pl_layout_parse(&request.layout, notation));
    return request;
}

static void import(const char *folder, const char *checkpoint, const char *notation, pl_dtype dtype)
{
    pl_import_report report;
    pl_import_request request = request_of(folder, checkpoint, notation);
    request.dtype = dtype;
    assert_ok(pl_store_import(&report, &request));
    assert_string_equal(pl_text_string(&report.notes), "");
    assert_true(report.bytes > 0 && report.tensors > 0 && report.ranks > 0);
    pl_import_report_free(&report);
}

/* All values of CHECKPOINT are those of the folder, as DTYPE or as stored. */
static void compare(const char *checkpoint, const char *folder, pl_dtype dtype)
{
    pl_store_reader *reader = NULL;
    pl_weights *weights = NULL;
    assert_ok(pl_store_reader_open(&reader, checkpoint));
    const pl_manifest *m = pl_store_reader_manifest(reader);
    assert_false(m->trained);
    assert_ok(pl_weights_open(&weights, folder, &m->model));
    for (int64_t t = 0; t < m->model.tensor_count; ++t) {
        const pl_tensor *tensor = &m->model.tensors[t];
        pl_dtype stored = dtype;
        if (dtype == PL_DTYPE_COUNT) assert_ok(pl_weights_stored_dtype(&stored, weights, tensor));
        assert_int_equal(m->kept[t].dtype[PL_VALUE_PARAMETER], stored);
        assert_false(pl_keeps(&m->kept[t], PL_VALUE_MASTER));
        assert_false(pl_keeps(&m->kept[t], PL_VALUE_ADAM_M));
        int64_t rows = pl_tensor_total_rows(tensor);
        size_t bytes = (size_t)(pl_tensor_elements(tensor) * pl_dtype_bytes(stored));
        char *want = malloc(bytes), *got = malloc(bytes);
        assert_true(want && got);
        assert_ok(pl_weights_read(weights, tensor, 0, rows, stored, want));
        assert_ok(pl_store_read(reader, PL_VALUE_PARAMETER, t, 0, rows, got));
        assert_memory_equal(want, got, bytes);
        free(want);
        free(got);
    }
    pl_weights_close(weights);
    pl_store_reader_close(reader);
}

static void verify(const char *checkpoint)
{
    pl_verify_report report;
    const pl_verify_request request = {.folder = checkpoint, .threads = 2};
    assert_ok(pl_store_verify(&report, &request));
    assert_true(report.has_manifest);
    assert_int_equal(report.damages.count, 0);
    pl_verify_report_free(&report);
}

static void every_folder_in_every_layout(void **state)
{
    static const struct {
        const char *folder, *notation;
    } cases[] = {
        {"testdata/hf/qwen3-moe-tiny", "single:world=1"},
        {"testdata/hf/qwen3-moe-tiny", "legacy:world=8,ep=4"},
        {"testdata/hf/qwen3-moe-tiny", "legacy:world=7"},
        {"testdata/hf/qwen3-moe-tiny", "single:world=6,cp=3,ep=2"},
        {"testdata/hf/qwen3-moe-tiny-bf16-sharded", "single:world=1"},
        {"testdata/hf/qwen3-moe-tiny-bf16-sharded", "decoupled:world=8,ep=4,replicas=2"},
        {"testdata/hf/qwen3-moe-dense-first", "folded:world=16,ep=8"},
        {"testdata/hf/qwen3-moe-tied", "legacy:world=6,ep=3,grain=expert"},
        {"testdata/hf/deepseek-v2-tiny", "single:world=10,ep=2"},
        {"testdata/hf/deepseek-v2-group", "folded:world=16,cp=2,ep=8"},
        {"testdata/hf/deepseek-v2-group", "legacy:world=5"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        scratch s = make_scratch();
        import(cases[i].folder, in_scratch(&s, "new/step-12"), cases[i].notation, PL_DTYPE_COUNT);
        compare(in_scratch(&s, "new/step-12"), cases[i].folder, PL_DTYPE_COUNT);
        verify(in_scratch(&s, "new/step-12"));
        remove_scratch(&s);
    }
}

static void values_round_to_the_nearest(void **state)
{
    static const pl_dtype dtypes[] = {PL_FP32, PL_BF16, PL_FP16};
    static const char *const folders[] = {"testdata/hf/qwen3-moe-tied",
                                          "testdata/hf/qwen3-moe-tiny-bf16-sharded"};
    (void)state;
    for (int f = 0; f < 2; ++f)
        for (int d = 0; d < 3; ++d) {
            scratch s = make_scratch();
            import(folders[f], in_scratch(&s, "a"), "legacy:world=3", dtypes[d]);
            compare(in_scratch(&s, "a/step-0"), folders[f], dtypes[d]);
            remove_scratch(&s);
        }
}

/* Spelled out for one tensor, so that the reader of weights is not judged by itself. */
static void rounding_is_that_of_single_values(void **state)
{
    scratch s = make_scratch();
    pl_store_reader *reader = NULL;
    pl_safetensors file;
    uint16_t half[32];
    float whole[32];
    (void)state;
    import(tied, in_scratch(&s, "a"), "single:world=1", PL_BF16);
    assert_ok(pl_store_reader_open(&reader, in_scratch(&s, "a/step-0")));
    assert_ok(pl_safetensors_open(&file, "testdata/hf/qwen3-moe-tied/model.safetensors"));
    const pl_safetensors_tensor *embedding =
        pl_safetensors_find(&file, "model.embed_tokens.weight");
    for (int64_t row = 0; row < 127; ++row) {
        assert_ok(pl_safetensors_read_rows(&file, embedding, row, row + 1, whole));
        assert_ok(pl_store_read(reader, PL_VALUE_PARAMETER, 0, row, row + 1, half));
        for (int i = 0; i < 32; ++i) assert_int_equal(half[i], pl_float_to_bf16(whole[i]));
    }
    pl_safetensors_close(&file);
    pl_store_reader_close(reader);
    remove_scratch(&s);
}

static void names_say_where_it_goes(void **state)
{
    static const struct {
        const char *given, *made;
        int64_t step;
    } cases[] = {
        {"a", "a/step-0", 0},
        {"b/", "b/step-0", 0},
        {"c/step-7", "c/step-7", 7},
        {"d/step-0//", "d/step-0", 0},
        {"step-3", "step-3", 3},
        {"step-07", "step-07/step-0", 0},
        {"step-", "step-/step-0", 0},
        {"c/step-8", "c/step-8", 8},
        {"e/f//g/step-9", "e/f//g/step-9", 9},
    };
    scratch s = make_scratch();
    char here[SCRATCH_PATH], folder[SCRATCH_PATH + 64];
    (void)state;
    assert_non_null(getcwd(here, sizeof here));
    snprintf(folder, sizeof folder, "%s/%s", here, tied);
    assert_int_equal(chdir(s.folder), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        pl_import_report report;
        pl_manifest m;
        const pl_import_request request = request_of(folder, cases[i].given, "single:world=1");
        assert_ok(pl_store_import(&report, &request));
        assert_ok(pl_manifest_read(&m, cases[i].made));
        assert_int_equal(m.progress.step, cases[i].step);
        assert_string_equal(m.model.name, "qwen3-moe-tied");
        pl_manifest_free(&m);
        pl_import_report_free(&report);
    }
    assert_int_equal(chdir(here), 0);
    remove_scratch(&s);
}

static void the_manifest_says_where_it_comes_from(void **state)
{
    scratch s = make_scratch();
    pl_import_report report;
    pl_manifest m;
    size_t length = 0;
    pl_import_request request = request_of(tiny, in_scratch(&s, "a"), "single:world=2,ep=2");
    (void)state;
    json_t *provenance = json_pack("{s:s}", "program", "pleat-ckpt");
    request.provenance = provenance;
    request.dtype = PL_BF16;
    assert_ok(pl_store_import(&report, &request));
    assert_ok(pl_manifest_read(&m, pl_text_string(&report.checkpoint)));
    char *config = read_bytes("testdata/hf/qwen3-moe-tiny/config.json", &length);
    assert_string_equal(json_string_value(json_object_get(m.provenance, "config")), config);
    assert_string_equal(json_string_value(json_object_get(m.provenance, "from")), tiny);
    assert_string_equal(json_string_value(json_object_get(m.provenance, "dtype")), "bf16");
    assert_string_equal(json_string_value(json_object_get(m.provenance, "program")), "pleat-ckpt");
    assert_int_equal(json_object_size(provenance), 1);
    assert_int_equal(m.model.stored_dtype, PL_FP32); /* so that runs of this config start from it */
    free(config);
    json_decref(provenance);
    pl_manifest_free(&m);
    pl_import_report_free(&report);
    remove_scratch(&s);
}

/* --- refusals --- */

/* The folder holds nothing but what it held before. */
static void expect_empty(const scratch *s)
{
    DIR *listing = opendir(s->folder);
    assert_non_null(listing);
    int names = 0;
    for (struct dirent *entry = readdir(listing); entry; entry = readdir(listing)) ++names;
    closedir(listing);
    assert_int_equal(names, 2); /* . and .. */
}

static void what_does_not_fit_is_refused(void **state)
{
    scratch s = make_scratch();
    pl_import_report report;
    pl_import_request request = request_of(tiny, in_scratch(&s, "a"), "legacy:world=9,ep=3");
    (void)state;
    assert_fails(PL_BAD_INPUT, pl_store_import(&report, &request), "ep=3", "8");
    assert_ok(pl_layout_parse(&request.layout, "single:world=1"));
    request.layout.pp = 2;
    assert_fails(PL_UNSUPPORTED, pl_store_import(&report, &request), "pp=2", "so far");
    request.layout.pp = 1;
    request.model = "testdata/hf/qwen3-moe-dense-first";
    assert_fails(PL_BAD_INPUT, pl_store_import(&report, &request),
                 "these are not the weights of model 'qwen3-moe-dense-first'", "missing (",
                 "wrong (", "unexpected (");
    request.model = NULL;
    request.folder = "testdata/hf/qwen3-moe-tiny/model.safetensors";
    assert_fails(PL_BAD_INPUT, pl_store_import(&report, &request), "does not say which model",
                 "--model");
    request.folder = "testdata/none";
    assert_fails(PL_BAD_INPUT, pl_store_import(&report, &request), "testdata/none: No such file");
    request.folder = "testdata/hf-configs";
    assert_fails(PL_BAD_INPUT, pl_store_import(&report, &request), "config.json");
    request.folder = tiny;
    request.checkpoint = "";
    assert_fails(PL_BAD_INPUT, pl_store_import(&report, &request), "empty");
    request.checkpoint = "testdata/hf/README.md/step-0";
    assert_fails(PL_BAD_INPUT, pl_store_import(&report, &request), "README.md: not a folder");
    expect_empty(&s);
    remove_scratch(&s);
}

static void a_checkpoint_is_never_written_over(void **state)
{
    scratch s = make_scratch();
    pl_import_report report;
    int lock = -1;
    const pl_import_request request = request_of(tied, in_scratch(&s, "a"), "single:world=1");
    (void)state;
    import(tiny, in_scratch(&s, "a"), "single:world=1", PL_DTYPE_COUNT);
    assert_fails(PL_BAD_INPUT, pl_store_import(&report, &request), "a/step-0: it is there already");
    compare(in_scratch(&s, "a/step-0"), tiny, PL_DTYPE_COUNT);
    assert_ok(pl_checkpoint_lock(&lock, in_scratch(&s, "b")));
    pl_import_request other = request_of(tied, in_scratch(&s, "b"), "single:world=1");
    assert_fails(PL_BAD_INPUT, pl_store_import(&report, &other), "another process");
    pl_checkpoint_unlock(lock);
    assert_ok(pl_store_import(&report, &other));
    pl_import_report_free(&report);
    remove_scratch(&s);
}

/* A copy of the tied model's folder with each tensor as EDIT wants it. */
typedef void (*edit)(pl_safetensors_item *items, int64_t count);

static void write_edited(const scratch *s, edit change)
{
    pl_safetensors file;
    pl_text header = {0};
    size_t length = 0;
    int64_t bytes = 0;
    assert_ok(pl_safetensors_open(&file, "testdata/hf/qwen3-moe-tied/model.safetensors"));
    int64_t count = file.tensor_count;
    pl_safetensors_item *items = calloc((size_t)count, sizeof *items);
    assert_non_null(items);
    for (int64_t i = 0; i < count; ++i)
        items[i] = (pl_safetensors_item){.name = file.tensors[i].name,
                                         .type = file.tensors[i].type,
                                         .dimensions = file.tensors[i].dimensions,
                                         .shape = file.tensors[i].shape};
    change(items, count);
    assert_ok(pl_safetensors_layout(items, count, NULL, 0, &header, &bytes));
    char *whole = calloc(1, (size_t)bytes);
    assert_non_null(whole);
    memcpy(whole, header.bytes, header.length);
    make_folder(s, "in");
    write_bytes(s, "in/model.safetensors", whole, (size_t)bytes);
    char *config = read_bytes("testdata/hf/qwen3-moe-tied/config.json", &length);
    write_bytes(s, "in/config.json", config, length);
    free(config);
    free(whole);
    free(items);
    pl_text_free(&header);
    pl_safetensors_close(&file);
}

static void one_expert_of_another_type(pl_safetensors_item *items, int64_t count)
{
    for (int64_t i = 0; i < count; ++i)
        if (strcmp(items[i].name, "model.layers.1.mlp.experts.4.up_proj.weight") == 0)
            items[i].type = PL_SAFETENSORS_BF16;
}

static void norms_of_other_types(pl_safetensors_item *items, int64_t count)
{
    for (int64_t i = 0; i < count; ++i) {
        if (strstr(items[i].name, "norm")) items[i].type = PL_SAFETENSORS_BF16;
        if (strstr(items[i].name, "q_proj")) items[i].type = PL_SAFETENSORS_F16;
    }
}

static void eight_bits(pl_safetensors_item *items, int64_t count)
{
    for (int64_t i = 0; i < count; ++i)
        if (strstr(items[i].name, "q_proj")) items[i].type = PL_SAFETENSORS_F8_E4M3;
}

static void types_are_kept_tensor_by_tensor(void **state)
{
    scratch s = make_scratch();
    (void)state;
    write_edited(&s, norms_of_other_types);
    import(in_scratch(&s, "in"), in_scratch(&s, "a"), "legacy:world=3,ep=3", PL_DTYPE_COUNT);
    compare(in_scratch(&s, "a/step-0"), in_scratch(&s, "in"), PL_DTYPE_COUNT);
    remove_scratch(&s);
}

static void experts_of_several_types_are_refused(void **state)
{
    scratch s = make_scratch();
    pl_import_report report;
    (void)state;
    write_edited(&s, one_expert_of_another_type);
    const pl_import_request request =
        request_of(in_scratch(&s, "in"), in_scratch(&s, "a"), "legacy:world=3,ep=3");
    assert_fails(PL_UNSUPPORTED, pl_store_import(&report, &request),
                 "model.layers.1.mlp.experts.4.up_proj.weight is BF16", "expert 0 is F32");
    import(in_scratch(&s, "in"), in_scratch(&s, "a"), "legacy:world=3,ep=3", PL_FP32);
    compare(in_scratch(&s, "a/step-0"), in_scratch(&s, "in"), PL_FP32);
    remove_scratch(&s);
}

static void other_types_are_refused(void **state)
{
    scratch s = make_scratch();
    pl_import_report report;
    (void)state;
    write_edited(&s, eight_bits);
    const pl_import_request request =
        request_of(in_scratch(&s, "in"), in_scratch(&s, "a"), "single:world=1");
    assert_fails(PL_BAD_INPUT, pl_store_import(&report, &request), "wrong (2)",
                 "q_proj.weight is F8_E4M3 [", "allowed: F32, BF16 or F16");
    remove_scratch(&s);
}

static void built_in_models_have_no_text(void **state)
{
    scratch s = make_scratch();
    pl_import_report report;
    pl_import_request request = request_of(tiny, in_scratch(&s, "a"), "single:world=1");
    (void)state;
    request.model = "tiny-moe";
    assert_fails(PL_BAD_INPUT, pl_store_import(&report, &request),
                 "these are not the weights of model 'tiny-moe'");
    request.model = "testdata/hf/qwen3-moe-tiny/config.json";
    request.folder = "testdata/hf/qwen3-moe-tiny/model.safetensors";
    assert_ok(pl_store_import(&report, &request));
    pl_import_report_free(&report);
    compare(in_scratch(&s, "a/step-0"), tiny, PL_DTYPE_COUNT);
    remove_scratch(&s);
}

/* --- failures on the way --- */

static void a_file_that_may_not_grow_leaves_nothing(void **state)
{
    scratch s = make_scratch();
    struct rlimit before, small;
    (void)state;
    make_folder(&s, "old");
    for (int i = 0; i < 2; ++i) {
        pl_import_report report;
        const pl_import_request request = request_of(
            tiny, in_scratch(&s, i == 0 ? "new/and/new/step-4" : "old/step-4"), "legacy:world=2");
        assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
        small = before;
        small.rlim_cur = 300000;
        void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        pl_status status = pl_store_import(&report, &request);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        signal(SIGXFSZ, handler);
        assert_int_equal(status, PL_IO_FAILED);
        assert_non_null(strstr(pl_error_text(), "rank-0000"));
        assert_non_null(strstr(pl_error_text(), "File too large"));
    }
    assert_int_equal(unlink(in_scratch(&s, "old/.lock")), 0);
    assert_int_equal(rmdir(in_scratch(&s, "old")), 0); /* which is so far empty */
    expect_empty(&s);
    remove_scratch(&s);
}

static void failing_allocations_are_survived(void **state)
{
    pl_status status = PL_NO_MEMORY;
    (void)state;
    for (int64_t after = 0; status != PL_OK; after += after < 300 ? 1 : 17) {
        scratch s = make_scratch();
        pl_import_report report;
        pl_import_request request = request_of(tied, in_scratch(&s, "a"), "legacy:world=2,ep=2");
        request.threads = 1;
        pl_allocation_fail_after(after);
        status = pl_store_import(&report, &request);
        pl_allocation_fail_after(-1);
        if (status == PL_OK) {
            pl_import_report_free(&report);
            compare(in_scratch(&s, "a/step-0"), tied, PL_DTYPE_COUNT);
        } else {
            /* What HDF5 was to be given and could not be made is a failure of HDF5. */
            if (status != PL_NO_MEMORY && !strstr(pl_error_text(), "index.h5: HDF5 could not"))
                fail_msg("allocation %d: %s", (int)after, pl_error_text());
            assert_int_not_equal(access(in_scratch(&s, "a/step-0"), F_OK), 0);
        }
        assert_in_range(after, 0, 100000);
        remove_scratch(&s);
    }
}

static void old_files_with_frequencies_are_noted(void **state)
{
    scratch s = make_scratch();
    pl_import_report report;
    pl_safetensors file;
    pl_text header = {0};
    size_t length = 0;
    int64_t bytes = 0;
    const int64_t shape[] = {8};
    (void)state;
    assert_ok(pl_safetensors_open(&file, "testdata/hf/qwen3-moe-tied/model.safetensors"));
    int64_t count = file.tensor_count + 1;
    pl_safetensors_item *items = calloc((size_t)count, sizeof *items);
    assert_non_null(items);
    for (int64_t i = 0; i + 1 < count; ++i)
        items[i] = (pl_safetensors_item){.name = file.tensors[i].name,
                                         .type = file.tensors[i].type,
                                         .dimensions = file.tensors[i].dimensions,
                                         .shape = file.tensors[i].shape};
    items[count - 1] = (pl_safetensors_item){.name = "model.layers.0.self_attn.rotary_emb.inv_freq",
                                             .type = PL_SAFETENSORS_F32,
                                             .dimensions = 1,
                                             .shape = shape};
    assert_ok(pl_safetensors_layout(items, count, NULL, 0, &header, &bytes));
    char *whole = calloc(1, (size_t)bytes);
    assert_non_null(whole);
    memcpy(whole, header.bytes, header.length);
    make_folder(&s, "in");
    write_bytes(&s, "in/model.safetensors", whole, (size_t)bytes);
    char *config = read_bytes("testdata/hf/qwen3-moe-tied/config.json", &length);
    write_bytes(&s, "in/config.json", config, length);
    const pl_import_request request =
        request_of(in_scratch(&s, "in"), in_scratch(&s, "a"), "single:world=1");
    assert_ok(pl_store_import(&report, &request));
    assert_non_null(strstr(pl_text_string(&report.notes),
                           "not read, since they are no parameters (1): "
                           "model.layers.0.self_attn.rotary_emb.inv_freq\n"));
    pl_import_report_free(&report);
    free(config);
    free(whole);
    free(items);
    pl_text_free(&header);
    pl_safetensors_close(&file);
    remove_scratch(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_folder_in_every_layout),
        cmocka_unit_test(values_round_to_the_nearest),
        cmocka_unit_test(rounding_is_that_of_single_values),
        cmocka_unit_test(names_say_where_it_goes),
        cmocka_unit_test(the_manifest_says_where_it_comes_from),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(a_checkpoint_is_never_written_over),
        cmocka_unit_test(types_are_kept_tensor_by_tensor),
        cmocka_unit_test(experts_of_several_types_are_refused),
        cmocka_unit_test(other_types_are_refused),
        cmocka_unit_test(built_in_models_have_no_text),
        cmocka_unit_test(old_files_with_frequencies_are_noted),
        cmocka_unit_test(a_file_that_may_not_grow_leaves_nothing),
        cmocka_unit_test(failing_allocations_are_survived),
    };
    pl_json_check_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
