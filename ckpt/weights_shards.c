#include "ckpt/weights_shards.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ckpt/safetensors_layout.h"
#include "ckpt/weights_folder_values.h"
#include "common/memory.h"

/* --- the order --- */

/* Where a tensor stands in its layer. DeepSeek-V2's class has its experts before the router. */
static int place_in_layer(const pl_tensor *tensor, pl_family family)
{
    enum { ATTENTION, FIRST_OF_MLP, EXPERTS, SHARED, NORMS };
    bool late = family == PL_FAMILY_DEEPSEEK_V2;
    switch (tensor->role) {
    case PL_TENSOR_ATTENTION: return ATTENTION;
    case PL_TENSOR_ROUTER: return late ? SHARED : FIRST_OF_MLP;
    case PL_TENSOR_DENSE_MLP: return FIRST_OF_MLP;
    case PL_TENSOR_ROUTED: return EXPERTS;
    case PL_TENSOR_SHARED: return SHARED;
    default: return NORMS;
    }
}

/* An expert's matrices in the order of its class: Mixtral's w1, w2, w3 are gate, down, up. */
static int64_t place_in_expert(const pl_tensor *tensor, int64_t number)
{
    const char *name = strrchr(tensor->suffix, 'w');
    if (tensor->experts == 0 || !strstr(tensor->suffix, "block_sparse_moe")) return number;
    while (name > tensor->suffix && (name[1] < '1' || name[1] > '3')) --name;
    return name[1] - '0';
}

typedef struct item_place {
    pl_shard_item item;
    int64_t layer; /* the embedding's is -1, those behind the layers have the number of layers */
    int in_layer;
    int64_t in_expert;
} item_place;

static int compare_numbers(int64_t a, int64_t b) { return (a > b) - (a < b); }

static int by_place(const void *a, const void *b)
{
    const item_place *x = a, *y = b;
    int order = compare_numbers(x->layer, y->layer);
    if (order == 0) order = compare_numbers(x->in_layer, y->in_layer);
    if (order == 0) order = compare_numbers(x->item.expert, y->item.expert);
    if (order == 0) order = compare_numbers(x->in_expert, y->in_expert);
    return order != 0 ? order : compare_numbers(x->item.tensor, y->item.tensor);
}

static void place_tensor(item_place *places, const pl_model *model, int64_t number, pl_dtype dtype)
{
    const pl_tensor *tensor = &model->tensors[number];
    int64_t last = model->num_hidden_layers;
    int64_t outside = tensor->role == PL_TENSOR_EMBEDDING ? -1 : last;
    for (int64_t expert = 0; expert < pl_weights_count(tensor); ++expert)
        places[expert] =
            (item_place){.item = {.tensor = number,
                                  .expert = expert,
                                  .dtype = dtype,
                                  .bytes = tensor->rows * tensor->cols * pl_dtype_bytes(dtype)},
                         .layer = tensor->layer >= 0 ? tensor->layer : outside,
                         .in_layer = tensor->layer >= 0 ? place_in_layer(tensor, model->family) : 0,
                         .in_expert = place_in_expert(tensor, number)};
}

static pl_status order_items(pl_shards *s, const pl_model *model, const pl_dtype *dtypes)
{
    item_place *places = NULL;
    int64_t count = 0;
    for (int64_t t = 0; t < model->tensor_count; ++t) count += pl_weights_count(&model->tensors[t]);
    PL_TRY(pl_allocate(&places, (size_t)count, sizeof *places, "order of tensors"));
    pl_status status = pl_allocate(&s->items, (size_t)count, sizeof *s->items, "places of tensors");
    if (status == PL_OK) {
        for (int64_t t = 0; t < model->tensor_count; ++t) {
            place_tensor(places + s->item_count, model, t, dtypes[t]);
            s->item_count += pl_weights_count(&model->tensors[t]);
        }
        qsort(places, (size_t)count, sizeof *places, by_place);
        for (int64_t i = 0; i < count; ++i) s->items[i] = places[i].item;
    }
    pl_free(places);
    return status;
}

/* --- cutting --- */

/* Files get their numbers as they are closed, so that a tensor above the limit, whose file is
 * closed at once, comes before the file that was being filled. */
typedef struct cutting {
    int64_t *file_of; /* [items]: by opening */
    int64_t *number;  /* [files]: by closing */
    int64_t files, closed;
    int64_t open, filled; /* -1: no file is being filled; bytes in it */
} cutting;

static int64_t open_file(cutting *c) { return c->files++; }

static void close_file(cutting *c, int64_t file)
{
    c->number[file] = c->closed++;
    if (file == c->open) c->open = -1;
}

static void give_files(cutting *c, const pl_shards *s, int64_t most)
{
    for (int64_t i = 0; i < s->item_count; ++i) {
        int64_t bytes = s->items[i].bytes;
        if (bytes > most) {
            c->file_of[i] = open_file(c);
            close_file(c, c->file_of[i]);
            continue;
        }
        if (c->open >= 0 && bytes > most - c->filled) close_file(c, c->open);
        if (c->open < 0) {
            c->open = open_file(c);
            c->filled = 0;
        }
        c->file_of[i] = c->open;
        c->filled += bytes;
    }
    if (c->open >= 0) close_file(c, c->open);
}

/* Items by the numbers of their files, those of one file in their order. */
static pl_status sort_items(pl_shards *s, const cutting *c)
{
    pl_shard_item *sorted = NULL;
    PL_TRY(pl_allocate(&s->shards, (size_t)c->files, sizeof *s->shards, "files of weights"));
    PL_TRY(pl_allocate(&s->headers, (size_t)c->files, sizeof *s->headers, "files of weights"));
    PL_TRY(pl_allocate(&sorted, (size_t)s->item_count, sizeof *sorted, "order of tensors"));
    s->shard_count = c->files;
    for (int64_t i = 0; i < s->item_count; ++i) ++s->shards[c->number[c->file_of[i]]].count;
    for (int64_t f = 1; f < s->shard_count; ++f)
        s->shards[f].first = s->shards[f - 1].first + s->shards[f - 1].count;
    for (int64_t f = 0; f < s->shard_count; ++f) s->shards[f].count = 0;
    for (int64_t i = 0; i < s->item_count; ++i) {
        pl_shard *shard = &s->shards[c->number[c->file_of[i]]];
        sorted[shard->first + shard->count++] = s->items[i];
        s->bytes += s->items[i].bytes;
    }
    pl_free(s->items);
    s->items = sorted;
    return PL_OK;
}

static pl_status cut(pl_shards *s, int64_t most)
{
    cutting c = {.open = -1};
    pl_status status = pl_allocate(&c.file_of, (size_t)s->item_count, sizeof *c.file_of, "tensors");
    if (status == PL_OK)
        status = pl_allocate(&c.number, (size_t)s->item_count, sizeof *c.number, "files");
    if (status == PL_OK) {
        give_files(&c, s, most);
        status = sort_items(s, &c);
    }
    pl_free(c.file_of);
    pl_free(c.number);
    for (int64_t f = 0; status == PL_OK && f < s->shard_count; ++f)
        snprintf(s->shards[f].name, sizeof s->shards[f].name,
                 "model-%05" PRId64 "-of-%05" PRId64 ".safetensors", f + 1, s->shard_count);
    if (status == PL_OK && s->shard_count == 1)
        snprintf(s->shards[0].name, sizeof s->shards[0].name, PL_WEIGHTS_SINGLE);
    return status;
}

/* --- headers --- */

/* What pl_safetensors_layout needs of the items of one file. */
typedef struct header_room {
    pl_safetensors_item *items;
    int64_t (*shapes)[2];
    char **names;
} header_room;

static pl_status describe(header_room *r, const pl_shards *s, const pl_shard *shard,
                          const pl_model *model, pl_text *name)
{
    size_t count = (size_t)shard->count;
    PL_TRY(pl_allocate(&r->items, count, sizeof *r->items, "tensors of a file"));
    PL_TRY(pl_allocate(&r->shapes, count, sizeof *r->shapes, "tensors of a file"));
    PL_TRY(pl_allocate(&r->names, count, sizeof(char *), "tensors of a file"));
    for (int64_t i = 0; i < shard->count; ++i) {
        const pl_shard_item *item = &s->items[shard->first + i];
        const pl_tensor *tensor = &model->tensors[item->tensor];
        PL_TRY(pl_weights_name(name, tensor, item->expert));
        PL_TRY(pl_duplicate(&r->names[i], pl_text_string(name), "name of a tensor"));
        r->shapes[i][0] = tensor->rows;
        r->shapes[i][1] = tensor->cols;
        r->items[i] = (pl_safetensors_item){.name = r->names[i],
                                            .type = pl_safetensors_type_of(item->dtype),
                                            .dimensions = tensor->dimensions,
                                            .shape = r->shapes[i]};
    }
    return PL_OK;
}

static pl_status lay_out(pl_shards *s, int64_t file, const pl_model *model, pl_text *name)
{
    char format[] = "format", pytorch[] = "pt";
    const pl_safetensors_pair metadata = {format, pytorch};
    pl_shard *shard = &s->shards[file];
    header_room r = {0};
    pl_status status = describe(&r, s, shard, model, name);
    if (status == PL_OK)
        status = pl_safetensors_layout(r.items, shard->count, &metadata, 1, &s->headers[file],
                                       &shard->bytes);
    for (int64_t i = 0; status == PL_OK && i < shard->count; ++i)
        s->items[shard->first + i].offset = r.items[i].offset;
    for (int64_t i = 0; r.names && i < shard->count; ++i) pl_free(r.names[i]);
    pl_free(r.names);
    pl_free(r.shapes);
    pl_free(r.items);
    return status;
}

/* --- the index --- */

static bool put(json_t *object, const char *key, json_t *value)
{
    return value && json_object_set_new(object, key, value) == 0;
}

static json_t *make_map(const pl_shards *s, const pl_model *model, pl_text *name)
{
    json_t *map = json_object();
    bool whole = map != NULL;
    for (int64_t f = 0; whole && f < s->shard_count; ++f) {
        const pl_shard *shard = &s->shards[f];
        for (int64_t i = shard->first; whole && i < shard->first + shard->count; ++i)
            whole = pl_weights_name(name, &model->tensors[s->items[i].tensor],
                                    s->items[i].expert) == PL_OK &&
                    put(map, pl_text_string(name), json_string(shard->name));
    }
    if (whole) return map;
    json_decref(map);
    return NULL;
}

static int add_piece(const char *piece, size_t length, void *text)
{
    pl_text_add_bytes(text, piece, length);
    return 0;
}

/* In the form of Hugging Face's own: keys sorted, indented by two. */
static pl_status write_index(pl_shards *s, const pl_model *model, pl_text *name)
{
    json_t *top = json_object(), *metadata = json_object();
    bool whole =
        top && put(metadata, "total_size", json_integer(s->bytes)) &&
        put(top, "metadata", json_incref(metadata)) &&
        put(top, "weight_map", make_map(s, model, name)) &&
        json_dump_callback(top, add_piece, &s->index, JSON_INDENT(2) | JSON_SORT_KEYS) == 0;
    whole = whole && !pl_library_failed();
    pl_library_forget_failure();
    json_decref(metadata);
    json_decref(top);
    pl_text_add_string(&s->index, "\n");
    if (!whole) return PL_FAIL(PL_NO_MEMORY, "out of memory while writing an index of weights");
    return pl_text_status(&s->index);
}

/* --- the whole --- */

static pl_status plan(pl_shards *s, const pl_model *model, const pl_dtype *dtypes, int64_t most)
{
    pl_text name = {0};
    PL_TRY(order_items(s, model, dtypes));
    PL_TRY(cut(s, most));
    pl_status status = PL_OK;
    for (int64_t f = 0; status == PL_OK && f < s->shard_count; ++f)
        status = lay_out(s, f, model, &name);
    if (status == PL_OK && s->shard_count > 1) status = write_index(s, model, &name);
    pl_text_free(&name);
    return status;
}

pl_status pl_shards_plan(pl_shards *out, const pl_model *model, const pl_dtype *dtypes,
                         int64_t most)
{
    pl_shards shards = {0};
    pl_status status = plan(&shards, model, dtypes, most);
    if (status == PL_OK)
        *out = shards;
    else
        pl_shards_free(&shards);
    return status;
}

void pl_shards_free(pl_shards *shards)
{
    for (int64_t f = 0; shards->headers && f < shards->shard_count; ++f)
        pl_text_free(&shards->headers[f]);
    pl_free(shards->headers);
    pl_free(shards->shards);
    pl_free(shards->items);
    pl_text_free(&shards->index);
    *shards = (pl_shards){0};
}

/* --- words --- */

/* Digits from *NAME on, five or more; moves behind them. */
static bool take_number(const char **name)
{
    enum { LEAST = 5 };
    const char *from = *name;
    while (**name >= '0' && **name <= '9') ++*name;
    return *name - from >= LEAST;
}

bool pl_shards_owns(const char *name)
{
    if (strcmp(name, PL_WEIGHTS_SINGLE) == 0 || strcmp(name, PL_WEIGHTS_INDEX) == 0) return true;
    if (strncmp(name, "model-", 6) != 0) return false;
    name += 6;
    if (!take_number(&name) || strncmp(name, "-of-", 4) != 0) return false;
    name += 4;
    return take_number(&name) && strcmp(name, ".safetensors") == 0;
}

/* Bytes of a unit; 0 for other words. */
static int64_t unit_bytes(const char *word)
{
    static const struct {
        const char *word;
        int64_t bytes;
    } units[] = {{"", 1},
                 {"B", 1},
                 {"KB", 1000},
                 {"MB", 1000000},
                 {"GB", 1000000000},
                 {"TB", 1000000000000},
                 {"KiB", INT64_C(1) << 10},
                 {"MiB", INT64_C(1) << 20},
                 {"GiB", INT64_C(1) << 30},
                 {"TiB", INT64_C(1) << 40}};
    for (size_t i = 0; i < sizeof units / sizeof *units; ++i)
        if (strcasecmp(word, units[i].word) == 0) return units[i].bytes;
    return 0;
}

pl_status pl_shards_parse_size(int64_t *out, const char *words)
{
    char digits[24] = {0};
    int64_t number = 0, bytes = 0;
    size_t length = strspn(words, "0123456789");
    int64_t unit = unit_bytes(words + length);
    if (length < sizeof digits) memcpy(digits, words, length);
    if (unit > 0 && pl_parse_integer(&number, digits) && number > 0 &&
        pl_multiply(&bytes, number, unit, "bytes") == PL_OK) {
        *out = bytes;
        return PL_OK;
    }
    return PL_FAIL(
        PL_BAD_INPUT,
        "size '%.40s'; allowed: a whole number above 0 with B, KB, MB, GB, TB (powers of "
        "1000), KiB, MiB, GiB, TiB (of 1024) or nothing behind it: 5GB, 512MiB, 700000",
        words);
}
