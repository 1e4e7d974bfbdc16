/* The JSON of a safetensors file and what it means. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/safetensors_internal.h"
#include "common/json.h"
#include "common/memory.h"

/* An entry nests three deep; more is an attack on the stack of a parser. */
enum { MOST_DEPTH = 8, MOST_VALUES = 8 * PL_SAFETENSORS_MOST_TENSORS };

static const char *const metadata_key = "__metadata__";

/* Behind the object only blanks may stand. */
static pl_status trim(int64_t *length, const char *text, const char *file)
{
    if (text[0] != '{')
        return PL_FAIL(PL_BAD_INPUT, "%s: the header begins with byte 0x%02x; allowed: '{'", file,
                       (unsigned)(unsigned char)text[0]);
    while (text[*length - 1] == ' ') --*length;
    char last = text[*length - 1];
    if (last == '\n' || last == '\r' || last == '\t')
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: the header is padded with byte 0x%02x; allowed: blanks, 0x20", file,
                       (unsigned)(unsigned char)last);
    return PL_OK;
}

/* Depth and number of values, before a parser makes a tree of them. */
static pl_status check_extent(const char *text, int64_t length, const char *file)
{
    bool in_string = false;
    int64_t depth = 0, objects = 0, values = 0;
    for (int64_t i = 0; i < length; ++i) {
        char c = text[i];
        if (in_string) {
            if (c == '\\') ++i;
            in_string = c != '"';
            continue;
        }
        in_string = c == '"';
        if (c == '{' || c == '[') ++depth;
        if (c == '}' || c == ']') --depth;
        if (c == '{') ++objects;
        if (c == ',') ++values;
        if (depth > MOST_DEPTH)
            return PL_FAIL(PL_BAD_INPUT,
                           "%s: the header nests more than %d deep at byte %" PRId64
                           "; tensors need 3",
                           file, MOST_DEPTH, i + PL_SAFETENSORS_LENGTH);
    }
    if (objects > PL_SAFETENSORS_MOST_TENSORS || values > MOST_VALUES)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: the header has %" PRId64 " objects and %" PRId64
                       " commas; at most %d and %d are read",
                       file, objects, values, PL_SAFETENSORS_MOST_TENSORS, MOST_VALUES);
    return PL_OK;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const pl_safetensors_pair *)a)->key, ((const pl_safetensors_pair *)b)->key);
}

static pl_status read_metadata(pl_safetensors *out, const pl_json_node *top)
{
    pl_json_node map;
    const char *key = NULL, *value = NULL;
    json_t *element = NULL;
    PL_TRY(pl_json_object(&map, top, metadata_key));
    PL_TRY(pl_allocate(&out->metadata, json_object_size(map.value), sizeof *out->metadata,
                       "metadata of a safetensors file"));
    json_object_foreach(map.value, key, element)
    {
        pl_safetensors_pair *pair = &out->metadata[out->metadata_count];
        pl_json_node node = {.value = element, .source = out->file, .parent = &map, .key = key};
        PL_TRY(pl_json_as_string(&value, &node));
        ++out->metadata_count;
        PL_TRY(pl_duplicate(&pair->key, key, "a key of metadata"));
        PL_TRY(pl_duplicate(&pair->value, value, "a value of metadata"));
    }
    qsort(out->metadata, (size_t)out->metadata_count, sizeof *out->metadata, by_key);
    return PL_OK;
}

static pl_status read_type(pl_safetensors_tensor *tensor, const pl_json_node *entry)
{
    const char *names[PL_SAFETENSORS_TYPE_COUNT], *given = NULL;
    pl_json_node node;
    PL_TRY(pl_json_member(&node, entry, "dtype", "a type such as \"F32\""));
    PL_TRY(pl_json_as_string(&given, &node));
    for (int type = 0; type < PL_SAFETENSORS_TYPE_COUNT; ++type) {
        names[type] = pl_safetensors_type_name((pl_safetensors_type)type);
        if (strcmp(given, names[type]) != 0) continue;
        tensor->type = (pl_safetensors_type)type;
        return PL_OK;
    }
    return pl_json_refuse_choice(&node, given, names, PL_SAFETENSORS_TYPE_COUNT);
}

static pl_status read_shape(pl_safetensors_tensor *tensor, const pl_json_node *entry)
{
    pl_json_node shape;
    PL_TRY(pl_json_array(&shape, entry, "shape"));
    int64_t dimensions = pl_json_length(&shape);
    PL_TRY(pl_allocate(&tensor->shape, (size_t)dimensions, sizeof *tensor->shape,
                       "shape of a safetensors tensor"));
    tensor->dimensions = dimensions;
    tensor->elements = 1;
    for (int64_t i = 0; i < dimensions; ++i) {
        pl_json_node element = pl_json_element(&shape, i);
        PL_TRY(pl_json_as_integer(&tensor->shape[i], &element, 0, INT64_MAX));
        PL_TRY(pl_multiply(&tensor->elements, tensor->elements, tensor->shape[i], "sizes"));
    }
    return PL_OK;
}

/* Bytes that type and shape make. */
static pl_status count_bytes(int64_t *out, const pl_safetensors_tensor *tensor)
{
    int64_t bits = 0;
    PL_TRY(pl_multiply(&bits, tensor->elements, pl_safetensors_type_bits(tensor->type), "bits"));
    if (bits % 8 != 0)
        return PL_FAIL(PL_BAD_INPUT,
                       "%" PRId64 " elements of %s are %" PRId64
                       " bits, which do not fill whole bytes",
                       tensor->elements, pl_safetensors_type_name(tensor->type), bits);
    *out = bits / 8;
    return PL_OK;
}

/* TENSOR's offset and bytes, which lie within DATA_BYTES from DATA_BEGIN. */
static pl_status read_offsets(pl_safetensors_tensor *tensor, const pl_json_node *entry,
                              int64_t data_begin, int64_t data_bytes)
{
    pl_json_node node, begin_node, end_node;
    int64_t begin = 0, end = 0, bytes = 0;
    PL_TRY(pl_json_array(&node, entry, "data_offsets"));
    if (pl_json_length(&node) != 2) return pl_json_refuse(&node, "two numbers, [begin, end]");
    begin_node = pl_json_element(&node, 0);
    end_node = pl_json_element(&node, 1);
    PL_TRY(pl_json_as_integer(&begin, &begin_node, 0, INT64_MAX));
    PL_TRY(pl_json_as_integer(&end, &end_node, 0, INT64_MAX));
    if (end < begin) return pl_json_refuse(&node, "an end that is not before its begin");
    PL_TRY(count_bytes(&bytes, tensor));
    if (end - begin != bytes)
        return PL_FAIL(PL_BAD_INPUT,
                       "data_offsets [%" PRId64 ", %" PRId64 "] hold %" PRId64 " bytes; %" PRId64
                       " elements of %s are %" PRId64,
                       begin, end, end - begin, tensor->elements,
                       pl_safetensors_type_name(tensor->type), bytes);
    if (end > data_bytes)
        return PL_FAIL(PL_BAD_INPUT,
                       "data_offsets [%" PRId64 ", %" PRId64 "] reach beyond the file's %" PRId64
                       " bytes of data: it was cut short",
                       begin, end, data_bytes);
    tensor->offset = data_begin + begin;
    tensor->bytes = bytes;
    return PL_OK;
}

static pl_status read_entry(pl_safetensors_tensor *tensor, const pl_json_node *entry,
                            int64_t data_begin, int64_t data_bytes)
{
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    if (!json_is_object(entry->value)) return pl_json_refuse(entry, "an object, {...}");
    PL_TRY(pl_json_check_keys(entry, fields, 3));
    PL_TRY(read_type(tensor, entry));
    PL_TRY(read_shape(tensor, entry));
    return read_offsets(tensor, entry, data_begin, data_bytes);
}

static pl_status read_tensors(pl_safetensors *out, const pl_json_node *top, int64_t data_begin)
{
    const char *key = NULL;
    json_t *value = NULL;
    char shown[PL_SAFETENSORS_SHOWN];
    PL_TRY(pl_allocate(&out->tensors, json_object_size(top->value), sizeof *out->tensors,
                       "tensors of a safetensors file"));
    json_object_foreach(top->value, key, value)
    {
        if (strcmp(key, metadata_key) == 0) continue;
        pl_safetensors_tensor *tensor = &out->tensors[out->tensor_count++];
        pl_json_node entry = {.value = value, .source = out->file, .parent = top, .key = key};
        PL_TRY(pl_duplicate(&tensor->name, key, "name of a safetensors tensor"));
        pl_status status = read_entry(tensor, &entry, data_begin, out->bytes - data_begin);
        if (status == PL_BAD_INPUT)
            pl_error_context("%s: tensor '%s'", out->file, pl_safetensors_show(key, shown));
        PL_TRY(status);
    }
    return PL_OK;
}

static int by_place(const void *a, const void *b)
{
    const pl_safetensors_tensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b)
{
    const pl_safetensors_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Tensors cover the data from its begin to its end, each byte once. */
static pl_status check_cover(pl_safetensors *out, int64_t data_begin)
{
    char shown[PL_SAFETENSORS_SHOWN];
    int64_t covered = data_begin;
    qsort(out->tensors, (size_t)out->tensor_count, sizeof *out->tensors, by_place);
    for (int64_t i = 0; i < out->tensor_count; ++i) {
        const pl_safetensors_tensor *tensor = &out->tensors[i];
        if (tensor->offset != covered)
            return PL_FAIL(PL_BAD_INPUT,
                           "%s: tensor '%s' begins at %" PRId64 " of the data, and the tensors "
                           "before it end at %" PRId64 ": %s",
                           out->file, pl_safetensors_show(tensor->name, shown),
                           tensor->offset - data_begin, covered - data_begin,
                           tensor->offset < covered ? "they overlap"
                                                    : "there is a hole between them");
        covered += tensor->bytes;
    }
    if (covered != out->bytes)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: the tensors end at %" PRId64 " of the data, and %" PRId64
                       " bytes stand behind them, which belong to no tensor",
                       out->file, covered - data_begin, out->bytes - covered);
    qsort(out->tensors, (size_t)out->tensor_count, sizeof *out->tensors, by_name);
    return PL_OK;
}

pl_status pl_safetensors_read_header(pl_safetensors *out, const char *text, int64_t length)
{
    struct json_t *tree = NULL;
    pl_json_node top;
    int64_t data_begin = PL_SAFETENSORS_LENGTH + length;
    PL_TRY(trim(&length, text, out->file));
    PL_TRY(check_extent(text, length, out->file));
    PL_TRY(pl_json_parse(&tree, text, (size_t)length, out->file));
    pl_status status = pl_json_top_object(&top, tree, out->file);
    if (status == PL_OK && json_object_get(tree, metadata_key)) status = read_metadata(out, &top);
    if (status == PL_OK) status = read_tensors(out, &top, data_begin);
    if (status == PL_OK) status = check_cover(out, data_begin);
    pl_json_free(tree);
    return status;
}
