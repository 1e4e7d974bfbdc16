#include "ckpt/manifest_rank.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/manifest_keys.h"
#include "common/json.h"
#include "common/memory.h"

/* Longest file that is read: about ten million boxes. */
enum { MOST_BYTES = 1 << 30 };

/* --- writing --- */

static void add_box(pl_text *text, const pl_checkpoint_box *box, bool first)
{
    pl_text_add_string(text, first ? "\n[" : ",\n[");
    pl_text_add_number(text, box->tensor);
    pl_text_add_string(text, ",");
    pl_text_add_number(text, box->row_begin);
    pl_text_add_string(text, ",");
    pl_text_add_number(text, box->row_end);
    pl_text_add_string(text, ",\"");
    pl_text_add_string(text, pl_dtype_name((pl_dtype)box->dtype));
    pl_text_add_string(text, "\",");
    pl_text_add_number(text, box->offset);
    pl_text_add_string(text, "]");
}

/* One box a line: [tensor, first row, row after the last, type, offset]. */
pl_status pl_rank_boxes_write(pl_text *text, const pl_rank_boxes *rank)
{
    char outside[PL_HASH_TEXT], sums[PL_HASH_TEXT];
    pl_text_clear(text);
    pl_text_add(text, "{\"rank\": %" PRId64 ",\n\"bytes\": %" PRId64 ",\n", rank->rank,
                rank->data_bytes);
    pl_text_add(text, "\"outside\": \"%s\",\n\"sums\": \"%s\",\n\"boxes\": {",
                pl_hash_print(rank->outside_hash, outside), pl_hash_print(rank->sums_hash, sums));
    size_t next = 0;
    for (int kind = 0; kind < PL_VALUE_KIND_COUNT; ++kind) {
        pl_text_add(text, "%s\"%s\": [", kind ? ",\n" : "\n",
                    pl_value_kind_name((pl_value_kind)kind));
        for (bool first = true; next < rank->boxes.count && rank->boxes.box[next].kind == kind;
             ++next, first = false)
            add_box(text, &rank->boxes.box[next], first);
        pl_text_add_string(text, "]");
    }
    pl_text_add_string(text, "}}\n");
    return pl_text_status(text);
}

/* --- reading --- */

typedef struct reader {
    const pl_manifest *manifest;
    pl_rank_boxes *rank;
} reader;

static pl_status read_hash(uint64_t *out, const pl_json_node *object, const char *key)
{
    pl_json_node node;
    const char *digits = NULL;
    PL_TRY(pl_json_member(&node, object, key, "16 hexadecimal digits"));
    PL_TRY(pl_json_as_string(&digits, &node));
    return pl_hash_parse(out, digits) ? PL_OK : pl_json_refuse(&node, "16 hexadecimal digits");
}

static pl_status read_place(int64_t *number, const pl_json_node *box, int64_t index,
                            int64_t minimum, int64_t maximum)
{
    const pl_json_node node = pl_json_element(box, index);
    return pl_json_as_integer(number, &node, minimum, maximum);
}

static pl_status read_dtype(const pl_json_node *node, pl_dtype expected)
{
    const char *name = NULL;
    PL_TRY(pl_json_as_string(&name, node));
    if (strcmp(name, pl_dtype_name(expected)) == 0) return PL_OK;
    char allowed[80];
    snprintf(allowed, sizeof allowed, "\"%s\", which the manifest has for this tensor",
             pl_dtype_name(expected));
    return pl_json_refuse(node, allowed);
}

static pl_status read_box(const reader *r, const pl_json_node *node, pl_value_kind kind,
                          int64_t *next_tensor)
{
    enum { NUMBERS = 5 };
    const pl_manifest *m = r->manifest;
    pl_checkpoint_box box = {.kind = (uint8_t)kind};
    int64_t tensor = 0;
    if (pl_json_length(node) != NUMBERS)
        return pl_json_refuse(node, "[tensor, first row, row after the last, type, offset]");
    PL_TRY(read_place(&tensor, node, 0, *next_tensor, m->model.tensor_count - 1));
    const pl_tensor *t = &m->model.tensors[tensor];
    const pl_json_node dtype = pl_json_element(node, 3);
    if (!pl_keeps(&m->kept[tensor], kind))
        return pl_json_refuse(node, "a box of a tensor that has such values in the manifest");
    PL_TRY(read_place(&box.row_begin, node, 1, 0, pl_tensor_total_rows(t) - 1));
    PL_TRY(read_place(&box.row_end, node, 2, box.row_begin + 1, pl_tensor_total_rows(t)));
    PL_TRY(read_dtype(&dtype, m->kept[tensor].dtype[kind]));
    box.bytes = (box.row_end - box.row_begin) * pl_kept_kind_row_bytes(t, &m->kept[tensor], kind);
    if (box.bytes > r->rank->data_bytes)
        return pl_json_refuse(node, "a box that fits into the file");
    PL_TRY(read_place(&box.offset, node, 4, 0, r->rank->data_bytes - box.bytes));
    box.tensor = (int32_t)tensor;
    box.dtype = (uint8_t)m->kept[tensor].dtype[kind];
    *next_tensor = tensor + 1;
    return pl_checkpoint_boxes_add(&r->rank->boxes, &box);
}

static pl_status read_kind(const reader *r, const pl_json_node *boxes, pl_value_kind kind)
{
    pl_json_node list;
    int64_t next_tensor = 0;
    PL_TRY(pl_json_array(&list, boxes, pl_value_kind_name(kind)));
    for (int64_t i = 0; i < pl_json_length(&list); ++i) {
        const pl_json_node node = pl_json_element(&list, i);
        PL_TRY(read_box(r, &node, kind, &next_tensor));
    }
    return PL_OK;
}

static int by_offset(const void *a, const void *b)
{
    const pl_checkpoint_box *const *left = a, *const *right = b;
    return ((*left)->offset > (*right)->offset) - ((*left)->offset < (*right)->offset);
}

static pl_status check_apart(const pl_rank_boxes *rank, const pl_manifest *manifest,
                             const char *source)
{
    const pl_checkpoint_box **order = NULL;
    pl_status status = PL_OK;
    PL_TRY(pl_allocate(&order, rank->boxes.count, sizeof(pl_checkpoint_box *), "boxes of a rank"));
    for (size_t i = 0; i < rank->boxes.count; ++i) order[i] = &rank->boxes.box[i];
    qsort(order, rank->boxes.count, sizeof(pl_checkpoint_box *), by_offset);
    for (size_t i = 1; status == PL_OK && i < rank->boxes.count; ++i) {
        const pl_checkpoint_box *before = order[i - 1];
        if (order[i]->offset - before->offset >= before->bytes) continue;
        pl_text name = {0};
        pl_tensor_name(&name, &manifest->model.tensors[order[i]->tensor]);
        status = PL_FAIL(PL_BAD_INPUT,
                         "%s: the box of %s (%s) begins at byte %" PRId64
                         ", inside another, which ends at %" PRId64,
                         source, pl_text_string(&name),
                         pl_value_kind_name((pl_value_kind)order[i]->kind), order[i]->offset,
                         before->offset + before->bytes);
        pl_text_free(&name);
    }
    pl_free(order);
    return status;
}

static pl_status read_all(const reader *r, const pl_json_node *top)
{
    static const char *const kinds[] = {"param", "master", "adam_m", "adam_v"};
    pl_rank_boxes *rank = r->rank;
    pl_json_node boxes;
    PL_TRY(pl_manifest_check_keys(top, PL_KEYS_RANK));
    PL_TRY(pl_json_integer(&rank->rank, top, "rank", 0, r->manifest->layout.world - 1));
    PL_TRY(pl_json_integer(&rank->data_bytes, top, "bytes", 0, INT64_MAX));
    PL_TRY(read_hash(&rank->outside_hash, top, "outside"));
    PL_TRY(read_hash(&rank->sums_hash, top, "sums"));
    PL_TRY(pl_json_object(&boxes, top, "boxes"));
    PL_TRY(pl_json_check_keys(&boxes, kinds, PL_VALUE_KIND_COUNT));
    for (int kind = 0; kind < PL_VALUE_KIND_COUNT; ++kind)
        PL_TRY(read_kind(r, &boxes, (pl_value_kind)kind));
    return check_apart(rank, r->manifest, top->source);
}

pl_status pl_rank_boxes_parse(pl_rank_boxes *out, const pl_manifest *manifest, const char *text,
                              size_t length, const char *source)
{
    struct json_t *tree = NULL;
    pl_json_node top;
    pl_rank_boxes rank = {0};
    const reader r = {manifest, &rank};
    PL_TRY(pl_json_parse(&tree, text, length, source));
    pl_status status = pl_json_top_object(&top, tree, source);
    if (status == PL_OK) status = read_all(&r, &top);
    pl_json_free(tree);
    if (status == PL_OK)
        *out = rank;
    else
        pl_rank_boxes_free(&rank);
    return status;
}

static pl_status compare(const pl_rank_boxes *rank, const pl_manifest_rank *facts,
                         const char *source)
{
    uint64_t hash = pl_hash_pair(rank->sums_hash, rank->outside_hash);
    if (rank->rank == facts->rank && rank->data_bytes == facts->data.bytes &&
        hash == facts->data.hash && rank->sums_hash == facts->sums.hash &&
        rank->boxes.sums == facts->sums.bytes / 8)
        return PL_OK;
    return PL_FAIL(PL_BAD_INPUT,
                   "%s: it says otherwise of the files of rank %" PRId64 " than the manifest does",
                   source, facts->rank);
}

static pl_status read_checked(pl_rank_boxes *out, const pl_manifest *manifest, const char *file,
                              const pl_manifest_rank *facts)
{
    char *text = NULL, found[PL_HASH_TEXT], wanted[PL_HASH_TEXT];
    size_t length = 0;
    PL_TRY(pl_read_file(&text, &length, file, MOST_BYTES));
    uint64_t hash = pl_hash(text, length);
    pl_status status = PL_OK;
    if ((int64_t)length != facts->boxes.bytes || hash != facts->boxes.hash)
        status = PL_FAIL(PL_BAD_INPUT,
                         "%s: damaged: %zu bytes with hash %s; the manifest has %" PRId64
                         " bytes with hash %s",
                         file, length, pl_hash_print(hash, found), facts->boxes.bytes,
                         pl_hash_print(facts->boxes.hash, wanted));
    if (status == PL_OK) status = pl_rank_boxes_parse(out, manifest, text, length, file);
    pl_free(text);
    if (status == PL_OK) {
        status = compare(out, facts, file);
        if (status != PL_OK) pl_rank_boxes_free(out);
    }
    return status;
}

pl_status pl_rank_boxes_read(pl_rank_boxes *out, const pl_manifest *manifest, const char *folder,
                             int64_t index)
{
    const pl_manifest_rank *facts = &manifest->ranks[index];
    char name[PL_MANIFEST_NAME];
    pl_text path = {0};
    pl_status status =
        pl_manifest_path(&path, folder, pl_manifest_rank_file(facts->rank, ".json", name));
    if (status == PL_OK) status = read_checked(out, manifest, pl_text_string(&path), facts);
    pl_text_free(&path);
    return status;
}

void pl_rank_boxes_free(pl_rank_boxes *rank)
{
    pl_checkpoint_boxes_free(&rank->boxes);
    *rank = (pl_rank_boxes){0};
}
