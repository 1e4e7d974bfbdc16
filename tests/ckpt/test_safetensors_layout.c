/* Writing safetensors: the bytes of the library's own writer, and files that read back equal. */
#include <jansson.h>

#include "ckpt/safetensors_layout.h"
#include "common/json.h"
#include "common/memory.h"
#include "tests/scratch.h"

static const char *const folder = "testdata/safetensors/good";

/* Items of FILE's tensors, last one first: borrowed from it; the caller frees. */
static pl_safetensors_item *items_of(const pl_safetensors *file)
{
    pl_safetensors_item *items = malloc(((size_t)file->tensor_count + 1) * sizeof *items);
    assert_non_null(items);
    for (int64_t i = 0; i < file->tensor_count; ++i) {
        const pl_safetensors_tensor *tensor = &file->tensors[file->tensor_count - 1 - i];
        items[i] = (pl_safetensors_item){.name = tensor->name,
                                         .type = tensor->type,
                                         .dimensions = tensor->dimensions,
                                         .shape = tensor->shape};
    }
    return items;
}

static void the_librarys_own_bytes_come_out(void **state)
{
    (void)state;
    static const char *const golden[] = {"writer_mixed", "writer_plain_names"};
    for (int g = 0; g < 2; ++g) {
        char path[SCRATCH_PATH];
        pl_safetensors file;
        pl_text header = {0};
        size_t count = 0;
        int64_t bytes = 0;
        snprintf(path, sizeof path, "%s/%s.safetensors", folder, golden[g]);
        assert_ok(pl_safetensors_open(&file, path));
        char *whole = read_bytes(path, &count);
        pl_safetensors_item *items = items_of(&file);
        assert_ok(pl_safetensors_layout(items, file.tensor_count, file.metadata,
                                        file.metadata_count, &header, &bytes));
        assert_int_equal(bytes, count);
        assert_in_range(header.length, 1, count);
        assert_memory_equal(header.bytes, whole, header.length);
        for (int64_t i = 0; i < file.tensor_count; ++i) {
            const pl_safetensors_tensor *tensor = pl_safetensors_find(&file, items[i].name);
            assert_int_equal(items[i].offset, tensor->offset);
            assert_int_equal(items[i].bytes, tensor->bytes);
        }
        pl_text_free(&header);
        free(items);
        free(whole);
        pl_safetensors_close(&file);
    }
}

/* What is laid out for the tensors of FILE reads back with equal names, types, shapes, metadata. */
static void expect_round_trip(const pl_safetensors *file)
{
    pl_safetensors back;
    pl_text header = {0};
    int64_t bytes = 0;
    pl_safetensors_item *items = items_of(file);
    assert_ok(pl_safetensors_layout(items, file->tensor_count, file->metadata, file->metadata_count,
                                    &header, &bytes));
    assert_int_equal(header.length % 8, 0);
    assert_ok(
        pl_safetensors_parse(&back, header.bytes, (int64_t)header.length, bytes, "round trip"));
    assert_int_equal(back.tensor_count, file->tensor_count);
    for (int64_t i = 0; i < file->tensor_count; ++i) {
        const pl_safetensors_tensor *a = &file->tensors[i], *b = &back.tensors[i];
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->type, b->type);
        assert_int_equal(a->bytes, b->bytes);
        assert_int_equal(a->dimensions, b->dimensions);
        for (int64_t j = 0; j < a->dimensions; ++j) assert_int_equal(a->shape[j], b->shape[j]);
    }
    assert_int_equal(back.metadata_count, file->metadata_count);
    for (int64_t i = 0; i < file->metadata_count; ++i)
        assert_string_equal(pl_safetensors_metadata(&back, file->metadata[i].key),
                            file->metadata[i].value);
    pl_safetensors_close(&back);
    pl_text_free(&header);
    free(items);
}

static void all_good_files_survive_a_round_trip(void **state)
{
    (void)state;
    int64_t seen = 0;
    DIR *listing = opendir(folder);
    assert_non_null(listing);
    for (struct dirent *entry = readdir(listing); entry; entry = readdir(listing)) {
        char path[SCRATCH_PATH];
        pl_safetensors file;
        if (!strstr(entry->d_name, ".safetensors")) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        assert_ok(pl_safetensors_open(&file, path));
        expect_round_trip(&file);
        pl_safetensors_close(&file);
        ++seen;
    }
    closedir(listing);
    assert_int_equal(seen, 40);
}

static pl_status lay_out(const char *name_a, const char *name_b, pl_safetensors_type type,
                         int64_t rows)
{
    const int64_t shape[2] = {rows, 3};
    pl_safetensors_item items[2] = {
        {.name = name_a, .type = type, .dimensions = 2, .shape = shape},
        {.name = name_b, .type = type, .dimensions = 2, .shape = shape},
    };
    pl_text header = {0};
    int64_t bytes = 0;
    pl_status status = pl_safetensors_layout(items, 2, NULL, 0, &header, &bytes);
    pl_text_free(&header);
    return status;
}

static void what_cannot_be_written_is_refused(void **state)
{
    (void)state;
    assert_ok(lay_out("a", "b", PL_SAFETENSORS_F32, 5));
    assert_ok(lay_out("a", "b", PL_SAFETENSORS_F32, 0));
    assert_fails(PL_BAD_INPUT, lay_out("a", "a", PL_SAFETENSORS_F32, 5), "two tensors", "'a'");
    assert_fails(PL_BAD_INPUT, lay_out("a", "__metadata__", PL_SAFETENSORS_F32, 5), "__metadata__");
    assert_fails(PL_BAD_INPUT, lay_out("a", "b", PL_SAFETENSORS_F4, 5), "60 bits", "whole bytes");
    assert_fails(PL_BAD_INPUT, lay_out("a", "b", PL_SAFETENSORS_F32, INT64_MAX / 4),
                 "a: ", "does not fit 63 bits");
    assert_fails(PL_BAD_INPUT, lay_out("a", "b", PL_SAFETENSORS_F32, -1), "32 x -1");
}

static void failing_allocations_are_survived(void **state)
{
    (void)state;
    pl_safetensors_pair pairs[2] = {{(char[]){"b"}, (char[]){"2"}}, {(char[]){"a"}, (char[]){"1"}}};
    const int64_t shape[1] = {7};
    pl_status status = PL_NO_MEMORY;
    for (int64_t after = 0; status != PL_OK; ++after) {
        pl_safetensors_item items[40];
        char names[40][32];
        pl_text header = {0};
        int64_t bytes = 0;
        for (int i = 0; i < 40; ++i) {
            snprintf(names[i], sizeof names[i], "tensor.%d", i);
            items[i] = (pl_safetensors_item){
                .name = names[i], .type = PL_SAFETENSORS_BF16, .dimensions = 1, .shape = shape};
        }
        pl_allocation_fail_after(after);
        status = pl_safetensors_layout(items, 40, pairs, 2, &header, &bytes);
        if (status != PL_OK) assert_int_equal(status, PL_NO_MEMORY);
        if (status == PL_OK) {
            assert_false(pl_allocation_failed());
            assert_non_null(
                strstr(header.bytes + 8, "{\"__metadata__\":{\"a\":\"1\",\"b\":\"2\"},"));
            assert_int_equal(bytes, (int64_t)header.length + 560 /* 40 times 7 halves */);
        }
        pl_text_free(&header);
        assert_in_range(after, 0, 1000);
    }
    pl_allocation_fail_after(-1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_librarys_own_bytes_come_out),
        cmocka_unit_test(all_good_files_survive_a_round_trip),
        cmocka_unit_test(what_cannot_be_written_is_refused),
        cmocka_unit_test(failing_allocations_are_survived),
    };
    pl_json_check_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
