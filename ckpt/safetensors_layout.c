#include "ckpt/safetensors_layout.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/safetensors_internal.h"
#include "common/memory.h"

/* A JSON string of UTF-8 bytes. */
static void add_string(pl_text *text, const char *string)
{
    pl_text_add_string(text, "\"");
    for (const char *c = string; *c; ++c) {
        if (*c == '"' || *c == '\\')
            pl_text_add(text, "\\%c", *c);
        else if ((unsigned char)*c < 0x20)
            pl_text_add(text, "\\u%04x", (unsigned)(unsigned char)*c);
        else
            pl_text_add_bytes(text, c, 1);
    }
    pl_text_add_string(text, "\"");
}

/* An item, or a pair, in the order in which it is written. */
typedef struct item_place {
    pl_safetensors_item *item;
} item_place;

typedef struct pair_place {
    const pl_safetensors_pair *pair;
} pair_place;

static int by_type_and_name(const void *a, const void *b)
{
    const pl_safetensors_item *x = ((const item_place *)a)->item;
    const pl_safetensors_item *y = ((const item_place *)b)->item;
    if (x->type != y->type) return x->type > y->type ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b)
{
    const pl_safetensors_item *x = ((const item_place *)a)->item;
    const pl_safetensors_item *y = ((const item_place *)b)->item;
    return strcmp(x->name, y->name);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const pair_place *)a)->pair->key, ((const pair_place *)b)->pair->key);
}

static pl_status check_names(item_place *sorted, int64_t count)
{
    char shown[PL_SAFETENSORS_SHOWN];
    qsort(sorted, (size_t)count, sizeof *sorted, by_name);
    for (int64_t i = 0; i < count; ++i) {
        const char *name = sorted[i].item->name;
        if (strcmp(name, "__metadata__") == 0)
            return PL_FAIL(PL_BAD_INPUT, "a tensor may not be named '__metadata__'");
        if (i > 0 && strcmp(sorted[i - 1].item->name, name) == 0)
            return PL_FAIL(PL_BAD_INPUT, "two tensors are named '%s'",
                           pl_safetensors_show(name, shown));
    }
    return PL_OK;
}

static pl_status count_bytes(pl_safetensors_item *item)
{
    int64_t bits = pl_safetensors_type_bits(item->type);
    for (int64_t i = 0; i < item->dimensions; ++i)
        PL_TRY(pl_multiply(&bits, bits, item->shape[i], item->name));
    if (bits % 8 != 0)
        return PL_FAIL(PL_BAD_INPUT, "tensor '%s': %" PRId64 " bits do not fill whole bytes",
                       item->name, bits);
    item->bytes = bits / 8;
    return PL_OK;
}

static void add_item(pl_text *header, const pl_safetensors_item *item)
{
    add_string(header, item->name);
    pl_text_add(header, ":{\"dtype\":\"%s\",\"shape\":[", pl_safetensors_type_name(item->type));
    for (int64_t i = 0; i < item->dimensions; ++i)
        pl_text_add(header, "%s%" PRId64, i > 0 ? "," : "", item->shape[i]);
    pl_text_add(header, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", item->offset,
                item->offset + item->bytes);
}

static pl_status add_metadata(pl_text *header, const pl_safetensors_pair *metadata, int64_t count)
{
    pair_place *sorted = NULL;
    if (count == 0) return PL_OK;
    PL_TRY(pl_allocate(&sorted, (size_t)count, sizeof *sorted, "order of metadata"));
    for (int64_t i = 0; i < count; ++i) sorted[i].pair = &metadata[i];
    qsort(sorted, (size_t)count, sizeof *sorted, by_key);
    pl_text_add_string(header, "\"__metadata__\":{");
    for (int64_t i = 0; i < count; ++i) {
        if (i > 0) pl_text_add_string(header, ",");
        add_string(header, sorted[i].pair->key);
        pl_text_add_string(header, ":");
        add_string(header, sorted[i].pair->value);
    }
    pl_text_add_string(header, "}");
    pl_free(sorted);
    return PL_OK;
}

/* Places in the data, in the order of SORTED; the end of the last one. */
static pl_status place(item_place *sorted, int64_t count, int64_t *end)
{
    for (int64_t i = 0; i < count; ++i) {
        PL_TRY(count_bytes(sorted[i].item));
        sorted[i].item->offset = *end;
        PL_TRY(pl_add(end, *end, sorted[i].item->bytes, "bytes of a safetensors file"));
    }
    return PL_OK;
}

/* The length and the JSON behind the USED bytes that HEADER has already. */
static pl_status write_header(pl_text *header, item_place *sorted, int64_t count,
                              const pl_safetensors_pair *metadata, int64_t metadata_count)
{
    size_t used = header->length;
    const char room[PL_SAFETENSORS_LENGTH] = {0};
    pl_text_add_bytes(header, room, sizeof room);
    pl_text_add_string(header, "{");
    PL_TRY(add_metadata(header, metadata, metadata_count));
    for (int64_t i = 0; i < count; ++i) {
        if (i > 0 || metadata_count > 0) pl_text_add_string(header, ",");
        add_item(header, sorted[i].item);
    }
    pl_text_add_string(header, "}");
    while (!header->out_of_memory && (header->length - used) % PL_SAFETENSORS_LENGTH != 0)
        pl_text_add_string(header, " ");
    PL_TRY(pl_text_status(header));
    uint64_t length = header->length - used - sizeof room;
    if (length > PL_SAFETENSORS_MOST_HEADER)
        return PL_FAIL(PL_BAD_INPUT,
                       "%" PRId64 " tensors need a header of %" PRIu64
                       " bytes; safetensors allows %d",
                       count, length, PL_SAFETENSORS_MOST_HEADER);
    memcpy(header->bytes + used, &length, sizeof length);
    return PL_OK;
}

static pl_status lay_out(item_place *sorted, int64_t count, const pl_safetensors_pair *metadata,
                         int64_t metadata_count, pl_text *header, int64_t *bytes_out)
{
    int64_t data_bytes = 0;
    size_t used = header->length;
    PL_TRY(check_names(sorted, count));
    qsort(sorted, (size_t)count, sizeof *sorted, by_type_and_name);
    PL_TRY(place(sorted, count, &data_bytes));
    PL_TRY(write_header(header, sorted, count, metadata, metadata_count));
    int64_t begin = (int64_t)(header->length - used), bytes = 0;
    PL_TRY(pl_add(&bytes, begin, data_bytes, "bytes of a safetensors file"));
    for (int64_t i = 0; i < count; ++i) sorted[i].item->offset += begin;
    *bytes_out = bytes;
    return PL_OK;
}

pl_status pl_safetensors_layout(pl_safetensors_item *items, int64_t count,
                                const pl_safetensors_pair *metadata, int64_t metadata_count,
                                pl_text *header, int64_t *bytes_out)
{
    item_place *sorted = NULL;
    PL_TRY(pl_allocate(&sorted, (size_t)count, sizeof *sorted, "order of tensors"));
    for (int64_t i = 0; i < count; ++i) sorted[i].item = &items[i];
    pl_status status = lay_out(sorted, count, metadata, metadata_count, header, bytes_out);
    pl_free(sorted);
    return status;
}
