/* Reading a manifest. Its hash is looked at before anything else. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/manifest.h"
#include "ckpt/manifest_keys.h"
#include "common/json.h"
#include "common/memory.h"

enum { MOST_BYTES = 1 << 30, MOST_STEPS_SHIFT = 60 };

static const int64_t most = INT64_C(1) << MOST_STEPS_SHIFT;

static pl_status check_hash(const char *text, size_t length, const char *source)
{
    static const char lead[] = "\"hash\": \"", end[] = "\"\n}\n";
    enum { LEAD = sizeof lead - 1, END = sizeof end - 1, TAIL = LEAD + PL_HASH_DIGITS + END };
    static const char zeroes[PL_HASH_DIGITS + 1] = "0000000000000000";
    char found[PL_HASH_TEXT], digits[PL_HASH_TEXT] = {0};
    uint64_t wanted = 0;
    const char *tail = text + length - TAIL;
    if (length < TAIL || memcmp(tail, lead, LEAD) != 0 ||
        memcmp(text + length - END, end, END) != 0)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: it does not end in \"hash\": \"16 digits\" and }: cut short, damaged, "
                       "or no manifest",
                       source);
    memcpy(digits, tail + LEAD, PL_HASH_DIGITS);
    pl_hash_stream *stream = pl_hash_begin();
    if (!stream) return PL_NO_MEMORY;
    pl_hash_add(stream, text, length - END - PL_HASH_DIGITS);
    pl_hash_add(stream, zeroes, PL_HASH_DIGITS);
    pl_hash_add(stream, end, END);
    uint64_t hash = pl_hash_so_far(stream);
    pl_hash_end(stream);
    if (pl_hash_parse(&wanted, digits) && wanted == hash) return PL_OK;
    return PL_FAIL(PL_BAD_INPUT, "%s: damaged: its hash is %s, and it says %s", source,
                   pl_hash_print(hash, found), digits);
}

/* --- what it says --- */

static pl_status read_version(const pl_json_node *top)
{
    int64_t format = 0;
    pl_json_node requires;
    PL_TRY(pl_json_integer(&format, top, "format", 1, INT64_MAX));
    if (format != PL_MANIFEST_FORMAT)
        return PL_FAIL(PL_UNSUPPORTED, "%s: format %" PRId64 "; this program reads format %d",
                       top->source, format, PL_MANIFEST_FORMAT);
    PL_TRY(pl_json_array(&requires, top, "requires"));
    if (pl_json_length(&requires) == 0) return PL_OK;
    const pl_json_node first = pl_json_element(&requires, 0);
    const char *name = NULL;
    PL_TRY(pl_json_as_string(&name, &first));
    return PL_FAIL(PL_UNSUPPORTED, "%s: it requires '%s', which this program does not know",
                   top->source, name);
}

static pl_status read_optimizer(pl_manifest *m, const pl_json_node *top)
{
    int count = 0;
    const char *const *names = pl_optimizer_names(&count), *given = NULL;
    if (!m->trained) return PL_OK;
    pl_json_node node;
    PL_TRY(pl_json_member(&node, top, "optimizer", "adamw or sgd"));
    PL_TRY(pl_json_as_string(&given, &node));
    for (int i = 0; i < count; ++i) {
        if (strcmp(given, names[i]) != 0) continue;
        m->optimizer = (pl_optimizer)i;
        return PL_OK;
    }
    return pl_json_refuse_choice(&node, given, names, count);
}

static pl_status read_progress(pl_manifest *m, const pl_json_node *top)
{
    pl_manifest_progress *p = &m->progress;
    PL_TRY(pl_json_boolean(&m->trained, top, "trained"));
    PL_TRY(pl_json_integer(&p->step, top, "step", 0, most));
    PL_TRY(pl_json_integer(&p->updates, top, "updates", 0, p->step));
    PL_TRY(pl_json_integer(&p->tokens, top, "tokens", 0, most));
    PL_TRY(pl_json_integer(&p->windows, top, "windows", 0, most));
    PL_TRY(pl_json_integer(&p->seed, top, "seed", INT64_MIN, INT64_MAX));
    return read_optimizer(m, top);
}

static pl_status read_words(char ***out, int *count_out, const pl_json_node *top, const char *key)
{
    pl_json_node list;
    PL_TRY(pl_json_array(&list, top, key));
    int64_t count = pl_json_length(&list);
    PL_TRY(pl_allocate(out, (size_t)count, sizeof(char *), "patterns"));
    for (int64_t i = 0; i < count; ++i) {
        const pl_json_node node = pl_json_element(&list, i);
        const char *word = NULL;
        PL_TRY(pl_json_as_string(&word, &node));
        PL_TRY(pl_duplicate(&(*out)[i], word, "a pattern"));
        *count_out = (int)i + 1;
    }
    return PL_OK;
}

static pl_status parse_model(pl_manifest *m, const pl_json_node *node, const char *name)
{
    enum { DIGITS = 17 };
    char *text = json_dumps(node->value, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(DIGITS));
    if (!text) return PL_FAIL(PL_NO_MEMORY, "out of memory for the model of %s", node->source);
    pl_status status = pl_model_parse(&m->model, text, node->source, name);
    pl_library_free(text);
    m->has_model = status == PL_OK;
    return status;
}

static pl_status read_model(pl_manifest *m, const pl_json_node *top)
{
    pl_json_node node;
    const char *name = NULL, *notation = NULL;
    PL_TRY(pl_json_string(&name, top, "model_name"));
    PL_TRY(pl_json_object(&node, top, "model"));
    PL_TRY(parse_model(m, &node, name));
    PL_TRY(read_words(&m->keep_fp32, &m->keep_fp32_count, top, "keep_fp32"));
    PL_TRY(read_words(&m->frozen, &m->frozen_count, top, "frozen"));
    PL_TRY(pl_model_apply_patterns(&m->model, (const char *const *)m->keep_fp32, m->keep_fp32_count,
                                   (const char *const *)m->frozen, m->frozen_count));
    PL_TRY(pl_json_string(&notation, top, "layout"));
    return pl_layout_parse(&m->layout, notation);
}

/* --- tensors --- */

static pl_status read_shape(const pl_json_node *object, const pl_tensor *tensor)
{
    pl_json_node shape;
    int64_t sizes[2] = {0, 1}, dimensions = 0;
    PL_TRY(pl_json_array(&shape, object, "shape"));
    dimensions = pl_json_length(&shape);
    for (int64_t i = 0; i < dimensions && i < 2; ++i) {
        const pl_json_node size = pl_json_element(&shape, i);
        PL_TRY(pl_json_as_integer(&sizes[i], &size, 1, INT64_MAX));
    }
    if (dimensions == tensor->dimensions && sizes[0] == pl_tensor_total_rows(tensor) &&
        sizes[1] == tensor->cols)
        return PL_OK;
    return pl_json_refuse(&shape, "the shape that the model gives this tensor");
}

static pl_status read_text(const pl_json_node *object, const char *key, const char *expected)
{
    pl_json_node node;
    const char *given = NULL;
    PL_TRY(pl_json_member(&node, object, key, expected));
    PL_TRY(pl_json_as_string(&given, &node));
    return strcmp(given, expected) == 0 ? PL_OK : pl_json_refuse(&node, expected);
}

static pl_status read_kept(pl_kept_values *kept, const pl_json_node *object, bool frozen)
{
    for (int kind = 0; kind < PL_VALUE_KIND_COUNT; ++kind) {
        const char *key = pl_value_kind_name((pl_value_kind)kind), *name = NULL;
        pl_json_node node;
        kept->dtype[kind] = PL_DTYPE_COUNT;
        if (kind != PL_VALUE_PARAMETER && !pl_json_has(object, key)) continue;
        PL_TRY(pl_json_member(&node, object, key, "fp32, bf16 or fp16"));
        PL_TRY(pl_json_as_string(&name, &node));
        bool known = pl_dtype_parse(&kept->dtype[kind], name);
        pl_dtype dtype = kept->dtype[kind];
        if (!known || (dtype != PL_FP32 && (dtype != PL_BF16 && dtype != PL_FP16)))
            return pl_json_refuse(&node, "fp32, bf16 or fp16");
        if (kind != PL_VALUE_PARAMETER && (frozen || dtype != PL_FP32))
            return pl_json_refuse(&node, frozen ? "nothing: the tensor is frozen" : "fp32");
    }
    return PL_OK;
}

static pl_status read_tensor(pl_kept_values *kept, const pl_json_node *object,
                             const pl_tensor *tensor)
{
    int64_t experts = 0;
    bool frozen = false;
    pl_text name = {0};
    PL_TRY(pl_manifest_check_keys(object, PL_KEYS_TENSOR));
    pl_tensor_name(&name, tensor);
    pl_status status = pl_text_status(&name);
    if (status == PL_OK) status = read_text(object, "name", pl_text_string(&name));
    pl_text_free(&name);
    PL_TRY(status);
    PL_TRY(read_shape(object, tensor));
    PL_TRY(pl_json_integer(&experts, object, "experts", tensor->experts, tensor->experts));
    PL_TRY(read_text(object, "class", pl_tensor_class_name(tensor->class_)));
    PL_TRY(pl_json_boolean(&frozen, object, "frozen"));
    if (frozen != tensor->frozen)
        return pl_json_refuse(object, "a tensor that is frozen where the patterns say so");
    return read_kept(kept, object, frozen);
}

static pl_status read_tensors(pl_manifest *m, const pl_json_node *top)
{
    pl_json_node list;
    PL_TRY(pl_json_array(&list, top, "tensors"));
    if (pl_json_length(&list) != m->model.tensor_count)
        return PL_FAIL(PL_BAD_INPUT, "%s: %" PRId64 " tensors; its model has %" PRId64, top->source,
                       pl_json_length(&list), m->model.tensor_count);
    PL_TRY(
        pl_allocate(&m->kept, (size_t)m->model.tensor_count, sizeof *m->kept, "values of tensors"));
    for (int64_t i = 0; i < m->model.tensor_count; ++i) {
        pl_json_node element = pl_json_element(&list, i), object;
        PL_TRY(pl_json_top_object(&object, element.value, top->source));
        PL_TRY(read_tensor(&m->kept[i], &object, &m->model.tensors[i]));
    }
    return PL_OK;
}

/* --- files --- */

static pl_status read_facts(pl_file_facts *out, const pl_json_node *files, int64_t index,
                            const char *name)
{
    enum { MEMBERS = 3 };
    const pl_json_node node = pl_json_element(files, index);
    const char *given = NULL, *digits = NULL;
    if (!json_is_array(node.value) || pl_json_length(&node) != MEMBERS)
        return pl_json_refuse(&node, "[file, bytes, hash]");
    const pl_json_node file = pl_json_element(&node, 0), bytes = pl_json_element(&node, 1),
                       hash = pl_json_element(&node, 2);
    PL_TRY(pl_json_as_string(&given, &file));
    if (strcmp(given, name) != 0) return pl_json_refuse(&file, name);
    PL_TRY(pl_json_as_integer(&out->bytes, &bytes, 0, INT64_MAX));
    PL_TRY(pl_json_as_string(&digits, &hash));
    return pl_hash_parse(&out->hash, digits) ? PL_OK
                                             : pl_json_refuse(&hash, "16 hexadecimal digits");
}

/* "rank-00012.json" is that of rank 12. */
static pl_status rank_of(int64_t *out, const pl_json_node *files, int64_t index, int64_t minimum,
                         int64_t maximum)
{
    const pl_json_node node = pl_json_element(files, index);
    const char *name = NULL, *end = NULL;
    char again[PL_MANIFEST_NAME];
    if (!json_is_array(node.value) || pl_json_length(&node) < 1)
        return pl_json_refuse(&node, "[file, bytes, hash]");
    const pl_json_node file = pl_json_element(&node, 0);
    PL_TRY(pl_json_as_string(&name, &file));
    int64_t rank = -1;
    if (strncmp(name, "rank-", 5) == 0 && name[5] >= '0' && name[5] <= '9') {
        char *after = NULL;
        rank = strtoll(name + 5, &after, 10);
        end = after;
    }
    if (end && rank >= minimum && rank <= maximum &&
        strcmp(name, pl_manifest_rank_file(rank, ".json", again)) == 0) {
        *out = rank;
        return PL_OK;
    }
    return pl_json_refuse(&file, "rank-NNNNN.json of a rank of the world, in order");
}

static pl_status read_rank(pl_manifest *m, const pl_json_node *files, int64_t at)
{
    pl_manifest_rank *rank = &m->ranks[m->rank_count];
    int64_t next = m->rank_count > 0 ? m->ranks[m->rank_count - 1].rank + 1 : 0;
    char name[PL_MANIFEST_NAME];
    PL_TRY(rank_of(&rank->rank, files, at, next, m->layout.world - 1));
    pl_manifest_rank_file(rank->rank, ".json", name);
    PL_TRY(read_facts(&rank->boxes, files, at, name));
    pl_manifest_rank_file(rank->rank, ".sums", name);
    PL_TRY(read_facts(&rank->sums, files, at + 1, name));
    pl_manifest_rank_file(rank->rank, ".h5", name);
    PL_TRY(read_facts(&rank->data, files, at + 2, name));
    ++m->rank_count;
    return PL_OK;
}

static pl_status read_files(pl_manifest *m, const pl_json_node *top)
{
    enum { FILES = 3 };
    pl_json_node files;
    PL_TRY(pl_json_array(&files, top, "files"));
    int64_t count = pl_json_length(&files);
    if (count % FILES != 1)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: %" PRId64 " files; allowed: " PL_MANIFEST_INDEX " and three for each "
                       "rank",
                       top->source, count);
    PL_TRY(read_facts(&m->index, &files, 0, PL_MANIFEST_INDEX));
    PL_TRY(pl_allocate(&m->ranks, (size_t)(count / FILES), sizeof *m->ranks, "files of ranks"));
    for (int64_t i = 1; i < count; i += FILES) PL_TRY(read_rank(m, &files, i));
    return PL_OK;
}

/* --- the whole --- */

static pl_status keep_object(struct json_t **out, const pl_json_node *top, const char *key)
{
    pl_json_node node;
    PL_TRY(pl_json_object(&node, top, key));
    *out = json_incref(node.value);
    return PL_OK;
}

static pl_status read_all(pl_manifest *m, const pl_json_node *top)
{
    PL_TRY(read_version(top));
    PL_TRY(pl_manifest_check_keys(top, PL_KEYS_MANIFEST));
    PL_TRY(read_progress(m, top));
    PL_TRY(read_model(m, top));
    PL_TRY(keep_object(&m->settings, top, "settings"));
    PL_TRY(keep_object(&m->provenance, top, "provenance"));
    PL_TRY(read_tensors(m, top));
    return read_files(m, top);
}

pl_status pl_manifest_parse(pl_manifest *out, const char *text, size_t length, const char *source)
{
    struct json_t *tree = NULL;
    pl_json_node top;
    pl_manifest manifest = {0};
    PL_TRY(check_hash(text, length, source));
    PL_TRY(pl_json_parse(&tree, text, length, source));
    pl_status status = pl_json_top_object(&top, tree, source);
    if (status == PL_OK) status = read_all(&manifest, &top);
    pl_json_free(tree);
    if (status == PL_OK)
        *out = manifest;
    else
        pl_manifest_free(&manifest);
    return status;
}

pl_status pl_manifest_read(pl_manifest *out, const char *folder)
{
    char *text = NULL;
    size_t length = 0;
    pl_text path = {0};
    pl_status status = pl_manifest_path(&path, folder, PL_MANIFEST_FILE);
    if (status == PL_OK) status = pl_read_file(&text, &length, pl_text_string(&path), MOST_BYTES);
    if (status == PL_OK) status = pl_manifest_parse(out, text, length, pl_text_string(&path));
    pl_free(text);
    pl_text_free(&path);
    return status;
}
