/* safetensors: files of the library's own and of a malformed collection (testdata/safetensors),
 * with what a strict reader must say of each. */
#include <fcntl.h>
#include <jansson.h>
#include <sys/resource.h>

#include "ckpt/safetensors_layout.h"
#include "ckpt/safetensors_set.h"
#include "common/json.h"
#include "common/memory.h"
#include "common/text.h"
#include "tests/scratch.h"

static const char *const folder = "testdata/safetensors";

static json_t *expectations(const char *part, const char *key)
{
    char path[SCRATCH_PATH];
    snprintf(path, sizeof path, "%s/%s/expect.json", folder, part);
    json_t *tree = json_load_file(path, 0, NULL);
    assert_non_null(tree);
    json_t *files = json_incref(json_object_get(tree, key));
    json_decref(tree);
    assert_non_null(files);
    return files;
}

static const char *word(const json_t *entry, const char *key)
{
    return json_string_value(json_object_get(entry, key));
}

static int digit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

static void compare_tensor(const pl_safetensors *file, const char *name, const json_t *expected)
{
    const pl_safetensors_tensor *tensor = pl_safetensors_find(file, name);
    if (!tensor) fail_msg("%s: no tensor '%s'", file->file, name);
    assert_string_equal(pl_safetensors_type_name(tensor->type), word(expected, "dtype"));
    const json_t *shape = json_object_get(expected, "shape");
    assert_int_equal(tensor->dimensions, json_array_size(shape));
    for (size_t i = 0; i < json_array_size(shape); ++i)
        assert_int_equal(tensor->shape[i], json_integer_value(json_array_get(shape, i)));
    const json_t *offsets = json_object_get(expected, "data_offsets");
    json_int_t begin = json_integer_value(json_array_get(offsets, 0));
    assert_int_equal(tensor->bytes, json_integer_value(json_array_get(offsets, 1)) - begin);
    const char *hex = word(expected, "hex");
    char *bytes = malloc((size_t)tensor->bytes + 1);
    assert_non_null(bytes);
    assert_ok(pl_safetensors_read(file, tensor, 0, tensor->bytes, bytes));
    for (int64_t i = 0; i < tensor->bytes; ++i)
        assert_int_equal((unsigned char)bytes[i], digit(hex[2 * i]) * 16 + digit(hex[2 * i + 1]));
    free(bytes);
}

static void compare_file(const pl_safetensors *file, const json_t *expected)
{
    const char *name = NULL;
    json_t *value = NULL;
    json_t *tensors = json_object_get(expected, "tensors");
    json_t *metadata = json_object_get(expected, "metadata");
    assert_int_equal(file->tensor_count, json_object_size(tensors));
    json_object_foreach(tensors, name, value) compare_tensor(file, name, value);
    assert_int_equal(file->metadata_count, json_object_size(metadata));
    json_object_foreach(metadata, name, value)
        assert_string_equal(pl_safetensors_metadata(file, name), json_string_value(value));
    assert_null(pl_safetensors_find(file, "no such tensor"));
    assert_null(pl_safetensors_metadata(file, "no such key"));
}

static void good_files_are_read_bit_for_bit(void **state)
{
    (void)state;
    const char *name = NULL;
    json_t *expected = NULL, *files = expectations("good", "files");
    json_object_foreach(files, name, expected)
    {
        char path[SCRATCH_PATH];
        pl_safetensors file;
        snprintf(path, sizeof path, "%s/good/%s", folder, name);
        pl_status status = pl_safetensors_open(&file, path);
        if (status == PL_BAD_INPUT && json_object_get(expected, "arguable")) continue;
        if (status != PL_OK) fail_msg("%s: %s", name, pl_error_text());
        compare_file(&file, expected);
        pl_safetensors_close(&file);
    }
    assert_int_equal(json_object_size(files), 40);
    json_decref(files);
}

/* The classes of faults and words that tell each from the others. */
static const struct {
    const char *fault, *words[2];
} faults[] = {
    {"header-too-short", {"at least the 8 that say"}},
    {"header-over-limit", {"allowed: at most 100000000", "not a safetensors file: this is a"}},
    {"header-length-over-file", {"bytes are there: the file was cut short"}},
    {"header-empty", {"the header is empty"}},
    {"not-utf8", {"not JSON: unable to decode byte"}},
    {"start-not-brace", {"the header begins with byte 0x"}},
    {"json-depth", {"nests more than 8 deep"}},
    {"not-json", {"not JSON: "}},
    {"trailing-after-json", {"not JSON: end of file expected"}},
    {"bad-padding", {"is padded with byte 0x0a"}},
    {"duplicate-key", {"not JSON: duplicate object key"}},
    {"metadata-not-string", {"allowed: a string", "'__metadata__': given"}},
    {"name-has-nul", {"not JSON: NUL byte in object key"}},
    {"entry-not-object", {"allowed: an object, {...}"}},
    {"missing-field", {"is missing; allowed: "}},
    {"unknown-field", {"is unknown; "}},
    {"unknown-dtype", {".dtype': given "}},
    {"bad-shape", {".shape"}},
    {"bad-offsets", {".data_offsets"}},
    {"float-offsets", {"allowed: an integer of at least 0"}},
    {"number-too-big", {"not JSON: too big integer"}},
    {"negative-offset", {"given -"}},
    {"offset-reversed", {"an end that is not before its begin"}},
    {"shape-overflow", {"does not fit 63 bits"}},
    {"sub-byte-misaligned", {"bits, which do not fill whole bytes"}},
    {"size-mismatch-shape", {" elements of F32 are "}},
    {"offset-overlap", {"they overlap"}},
    {"offset-hole", {"there is a hole between them"}},
    {"end-past-buffer", {"bytes of data: it was cut short"}},
    {"trailing-bytes", {"which belong to no tensor"}},
};

static void expect_fault(const char *name, const char *fault)
{
    const char *text = pl_error_text();
    for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i) {
        if (strcmp(faults[i].fault, fault) != 0) continue;
        const char *second = faults[i].words[1];
        if (!strstr(text, faults[i].words[0]) && !(second && strstr(text, second)))
            fail_msg("%s: no words of %s in: %s", name, fault, text);
        if (!strstr(text, name)) fail_msg("%s is not named in: %s", name, text);
        return;
    }
    fail_msg("%s: unknown fault %s", name, fault);
}

static void bad_files_are_refused_in_words(void **state)
{
    (void)state;
    const char *name = NULL;
    json_t *expected = NULL, *files = expectations("bad", "files");
    json_object_foreach(files, name, expected)
    {
        char path[SCRATCH_PATH];
        pl_safetensors file = {0};
        snprintf(path, sizeof path, "%s/bad/%s", folder, name);
        pl_error_clear();
        pl_status status = pl_safetensors_open(&file, path);
        if (status == PL_OK && json_object_get(expected, "arguable")) {
            pl_safetensors_close(&file);
            continue;
        }
        if (status != PL_BAD_INPUT)
            fail_msg("%s: status %s: %s", name, pl_status_name(status), pl_error_text());
        expect_fault(name, word(expected, "fault"));
    }
    assert_int_equal(json_object_size(files), 99);
    json_decref(files);
}

static void files_that_are_none_are_refused(void **state)
{
    (void)state;
    pl_safetensors file;
    assert_fails(PL_BAD_INPUT, pl_safetensors_open(&file, "no/such/file"), "no/such/file",
                 "No such file");
    assert_fails(PL_BAD_INPUT, pl_safetensors_open(&file, "/dev/null"), "/dev/null",
                 "not a regular file");
    assert_fails(PL_BAD_INPUT, pl_safetensors_open(&file, "testdata"), "not a regular file");
}

/* A header of LENGTH bytes, blanks behind an empty object, with its length in front. */
static char *padded_header(int64_t length)
{
    char *header = malloc((size_t)length + 8);
    assert_non_null(header);
    memset(header + 8, ' ', (size_t)length);
    memcpy(header, &length, 8);
    header[8] = '{';
    header[9] = '}';
    return header;
}

static void the_longest_header_is_read_and_no_longer_one(void **state)
{
    (void)state;
    pl_safetensors file;
    int64_t most = PL_SAFETENSORS_MOST_HEADER;
    char *header = padded_header(most + 1);
    assert_fails(PL_BAD_INPUT, pl_safetensors_parse(&file, header, most + 9, most + 9, "long"),
                 "long: a header of 100000001 bytes");
    memcpy(header, &most, 8);
    assert_ok(pl_safetensors_parse(&file, header, most + 8, most + 8, "long"));
    assert_int_equal(file.tensor_count, 0);
    pl_safetensors_close(&file);
    free(header);
}

/* "{" PIECE COUNT times "}" with the last comma left out. */
static void refuse_many(const char *piece, int64_t count, const char *words)
{
    pl_safetensors file;
    pl_text text = {0};
    pl_text_add_bytes(&text, "\0\0\0\0\0\0\0\0{", 9);
    for (int64_t i = 0; i < count; ++i) pl_text_add_string(&text, piece);
    pl_text_add_string(&text, "}");
    assert_ok(pl_text_status(&text));
    int64_t length = (int64_t)text.length - 8;
    memcpy(text.bytes, &length, 8);
    assert_fails(PL_BAD_INPUT,
                 pl_safetensors_parse(&file, text.bytes, length + 8, length + 8, "crowd"), "crowd",
                 words);
    pl_text_free(&text);
}

static void headers_that_would_fill_memory_are_refused(void **state)
{
    (void)state;
    refuse_many("\"a\":{},", PL_SAFETENSORS_MOST_TENSORS, "at most 1048576");
    refuse_many("0,", 8 * PL_SAFETENSORS_MOST_TENSORS + 1, "8388609 commas; at most");
    refuse_many("\"a\":{},", 2, "duplicate object key"); /* few ones come to the parser */
}

static void any_cut_is_refused_and_any_flip_survived(void **state)
{
    (void)state;
    char path[SCRATCH_PATH];
    size_t count = 0, refused = 0;
    pl_safetensors file;
    snprintf(path, sizeof path, "%s/good/moe_names.safetensors", folder);
    char *bytes = read_bytes(path, &count);
    int64_t total = (int64_t)count;
    for (int64_t cut = 0; cut < total; ++cut)
        assert_int_equal(pl_safetensors_parse(&file, bytes, cut, cut, "cut"), PL_BAD_INPUT);
    for (size_t bit = 0; bit < count * 8; ++bit) {
        bytes[bit / 8] = (char)(bytes[bit / 8] ^ (1 << bit % 8));
        pl_status status = pl_safetensors_parse(&file, bytes, total, total, "flip");
        bytes[bit / 8] = (char)(bytes[bit / 8] ^ (1 << bit % 8));
        assert_true(status == PL_OK || status == PL_BAD_INPUT);
        refused += status == PL_BAD_INPUT;
        if (status == PL_OK) pl_safetensors_close(&file);
    }
    assert_true(refused > count); /* of 8 bits a byte; names and data may hold anything */
    free(bytes);
}

static void rows_are_cut_from_the_whole(void **state)
{
    (void)state;
    pl_safetensors file;
    float whole[3 * 4], rows[4];
    scratch s = make_scratch();
    const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[3,4],\"data_offsets\":[0,48]},"
                          "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[48,52]},"
                          "\"z\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[52,52]}}";
    char bytes[8 + sizeof header - 1 + 52];
    int64_t length = sizeof header - 1;
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, sizeof header - 1);
    for (int i = 0; i < 12; ++i) whole[i] = (float)i;
    memcpy(bytes + 8 + length, whole, 48);
    memcpy(bytes + 8 + length + 48, &whole[7], 4);
    write_bytes(&s, "x.safetensors", bytes, sizeof bytes);
    assert_ok(pl_safetensors_open(&file, in_scratch(&s, "x.safetensors")));
    const pl_safetensors_tensor *a = pl_safetensors_find(&file, "a");
    assert_ok(pl_safetensors_read_rows(&file, a, 1, 2, rows));
    assert_memory_equal(rows, whole + 4, 16);
    assert_ok(pl_safetensors_read_rows(&file, a, 3, 3, rows));
    assert_ok(pl_safetensors_read_rows(&file, pl_safetensors_find(&file, "s"), 0, 1, rows));
    assert_true(rows[0] == 7);
    assert_ok(pl_safetensors_read_rows(&file, pl_safetensors_find(&file, "z"), 0, 0, rows));
    assert_fails(PL_INTERNAL, pl_safetensors_read_rows(&file, a, 2, 4, rows), "rows [2, 4)", "'a'");
    assert_fails(PL_INTERNAL, pl_safetensors_read_rows(&file, a, -1, 0, rows), "rows [-1, 0)");
    assert_fails(PL_INTERNAL, pl_safetensors_read(&file, a, 40, 9, rows), "9 bytes from 40");
    assert_int_equal(truncate(in_scratch(&s, "x.safetensors"), 8 + length + 20), 0);
    assert_fails(PL_IO_FAILED, pl_safetensors_read_rows(&file, a, 1, 2, rows),
                 "cut short meanwhile", "tensor 'a'");
    pl_safetensors_close(&file);
    remove_scratch(&s);
}

/* Blocks of 512 bytes that the process has read from disks and files. */
static long blocks_read(void)
{
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_inblock;
}

/* 100 GB, of which the disk holds next to nothing: opened, listed and cut without reading data. */
static void a_file_of_100_gigabytes_is_only_looked_at(void **state)
{
    scratch s = make_scratch();
    const int64_t rows = 24400000, cols = 1024, row = cols * 4;
    const int64_t shape[] = {rows, cols}, small[] = {3};
    pl_safetensors_item items[] = {
        {.name = "large", .type = PL_SAFETENSORS_F32, .dimensions = 2, .shape = shape},
        {.name = "small", .type = PL_SAFETENSORS_BF16, .dimensions = 1, .shape = small}};
    pl_text header = {0};
    pl_safetensors file;
    pl_safetensors_set set;
    int64_t bytes = 0;
    float values[1024] = {0}, found[1024];
    (void)state;
    assert_ok(pl_safetensors_layout(items, 2, NULL, 0, &header, &bytes));
    assert_in_range(bytes, INT64_C(99900000000), INT64_C(100000000000));
    write_bytes(&s, "model.safetensors", header.bytes, header.length);
    int descriptor = open(in_scratch(&s, "model.safetensors"), O_RDWR);
    assert_true(descriptor >= 0);
    for (int i = 0; i < 1024; ++i) values[i] = (float)i;
    if (ftruncate(descriptor, bytes) != 0) skip(); /* a file system without such files */
    assert_int_equal(pwrite(descriptor, values, sizeof values, items[0].offset + (rows - 1) * row),
                     row);
    close(descriptor);
    long before = blocks_read();
    assert_ok(pl_safetensors_open(&file, in_scratch(&s, "model.safetensors")));
    assert_int_equal(file.tensor_count, 2);
    assert_int_equal(pl_safetensors_find(&file, "large")->bytes, rows * row);
    assert_ok(pl_safetensors_read_rows(&file, pl_safetensors_find(&file, "large"), rows - 1, rows,
                                       found));
    assert_memory_equal(found, values, sizeof values);
    pl_safetensors_close(&file);
    assert_ok(pl_safetensors_set_open(&set, s.folder));
    assert_int_equal(set.place_count, 2);
    pl_safetensors_set_close(&set);
    assert_in_range(blocks_read() - before, 0, 20000); /* 10 MB: far from 100 GB */
    pl_text_free(&header);
    remove_scratch(&s);
}

static void names_are_shown_on_one_line(void **state)
{
    (void)state;
    char shown[PL_SAFETENSORS_SHOWN], name[301];
    assert_string_equal(pl_safetensors_show("a.b", shown), "a.b");
    assert_string_equal(pl_safetensors_show("a\n\tb\x7f", shown), "a??b?");
    for (int i = 0; i < 300; ++i) name[i] = (char)('a' + i % 26);
    name[300] = '\0';
    pl_safetensors_show(name, shown);
    assert_int_equal(strlen(shown), PL_SAFETENSORS_SHOWN - 1);
    assert_memory_equal(shown, "...", 3);
    assert_string_equal(shown + 3, name + 300 - 96);
}

static void types_have_names_and_sizes(void **state)
{
    (void)state;
    for (int i = 0; i < PL_DTYPE_COUNT; ++i) {
        pl_dtype back = PL_DTYPE_COUNT;
        pl_safetensors_type type = pl_safetensors_type_of((pl_dtype)i);
        assert_true(pl_safetensors_type_dtype(&back, type));
        assert_int_equal(back, i);
        assert_int_equal(pl_safetensors_type_bits(type), 8 * pl_dtype_bytes((pl_dtype)i));
    }
    pl_dtype none;
    assert_false(pl_safetensors_type_dtype(&none, PL_SAFETENSORS_F8_E4M3));
}

static void failing_allocations_are_survived(void **state)
{
    (void)state;
    char path[SCRATCH_PATH];
    pl_safetensors file;
    pl_status status = PL_NO_MEMORY;
    snprintf(path, sizeof path, "%s/good/metadata_strings.safetensors", folder);
    for (int64_t after = 0; status != PL_OK; ++after) {
        pl_allocation_fail_after(after);
        status = pl_safetensors_open(&file, path);
        if (status != PL_OK) assert_int_equal(status, PL_NO_MEMORY);
        if (status == PL_OK) assert_false(pl_allocation_failed());
        assert_in_range(after, 0, 1000);
    }
    pl_allocation_fail_after(-1);
    pl_safetensors_close(&file);
    pl_safetensors_close(&file); /* again: nothing is left */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_files_are_read_bit_for_bit),
        cmocka_unit_test(bad_files_are_refused_in_words),
        cmocka_unit_test(files_that_are_none_are_refused),
        cmocka_unit_test(the_longest_header_is_read_and_no_longer_one),
        cmocka_unit_test(headers_that_would_fill_memory_are_refused),
        cmocka_unit_test(any_cut_is_refused_and_any_flip_survived),
        cmocka_unit_test(rows_are_cut_from_the_whole),
        cmocka_unit_test(a_file_of_100_gigabytes_is_only_looked_at),
        cmocka_unit_test(names_are_shown_on_one_line),
        cmocka_unit_test(types_have_names_and_sizes),
        cmocka_unit_test(failing_allocations_are_survived),
    };
    pl_json_check_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
