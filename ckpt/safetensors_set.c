#include "ckpt/safetensors_set.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/file_bytes.h"
#include "common/json.h"
#include "common/memory.h"

static const char *const single_name = "model.safetensors";
static const char *const index_name = "model.safetensors.index.json";
static const char *const ending = ".safetensors";

static bool ends_with(const char *word, const char *tail)
{
    size_t length = strlen(word), wanted = strlen(tail);
    return length >= wanted && strcmp(word + length - wanted, tail) == 0;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static pl_status join(pl_text *out, const char *folder, const char *name)
{
    pl_text_clear(out);
    pl_text_add(out, "%s%s%s", folder, ends_with(folder, "/") ? "" : "/", name);
    return pl_text_status(out);
}

static pl_status exists(bool *out, const char *folder, const char *name)
{
    struct stat info;
    pl_text path = {0};
    pl_status status = join(&path, folder, name);
    if (status == PL_OK) *out = stat(pl_text_string(&path), &info) == 0;
    pl_text_free(&path);
    return status;
}

/* Open FILES (COUNT names, sorted) of FOLDER. */
static pl_status open_files(pl_safetensors_set *set, const char *folder, const char *const *files,
                            int64_t count)
{
    pl_text path = {0};
    pl_status status = pl_allocate(&set->files, (size_t)count, sizeof *set->files, "shards");
    for (int64_t i = 0; i < count && status == PL_OK; ++i) {
        status = join(&path, folder, files[i]);
        if (status == PL_OK) status = pl_safetensors_open(&set->files[i], pl_text_string(&path));
        if (status == PL_OK) ++set->file_count;
    }
    pl_text_free(&path);
    return status;
}

static int by_name(const void *a, const void *b)
{
    const pl_safetensors_place *x = a, *y = b;
    return strcmp(x->tensor->name, y->tensor->name);
}

/* The table of all tensors; none stands in two files. */
static pl_status collect(pl_safetensors_set *set)
{
    char shown[PL_SAFETENSORS_SHOWN];
    int64_t total = 0;
    for (int64_t i = 0; i < set->file_count; ++i) total += set->files[i].tensor_count;
    PL_TRY(pl_allocate(&set->places, (size_t)total, sizeof *set->places, "places of tensors"));
    for (int64_t i = 0; i < set->file_count; ++i)
        for (int64_t j = 0; j < set->files[i].tensor_count; ++j)
            set->places[set->place_count++] =
                (pl_safetensors_place){&set->files[i], &set->files[i].tensors[j]};
    qsort(set->places, (size_t)total, sizeof *set->places, by_name);
    for (int64_t i = 1; i < total; ++i)
        if (by_name(&set->places[i - 1], &set->places[i]) == 0)
            return PL_FAIL(PL_BAD_INPUT, "tensor '%s' stands in two files: %s and %s",
                           pl_safetensors_show(set->places[i].tensor->name, shown),
                           set->places[i - 1].file->file, set->places[i].file->file);
    return PL_OK;
}

static pl_status check_file_name(const pl_json_node *node, const char *name)
{
    bool inside = *name && !strchr(name, '/') && !strchr(name, '\\') && strcmp(name, ".") != 0 &&
                  strcmp(name, "..") != 0;
    return inside ? PL_OK : pl_json_refuse(node, "the name of a file in the index's own folder");
}

static int by_words(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The files that MAP names, sorted, each once; the names are the tree's. */
static pl_status list_files(const char ***out, int64_t *count_out, const pl_json_node *map)
{
    const char *tensor = NULL, **files = NULL;
    json_t *value = NULL;
    int64_t count = 0, unique = 0;
    if (json_object_size(map->value) == 0)
        return pl_json_refuse(map, "an object that names a file for every tensor");
    PL_TRY(pl_allocate(&files, json_object_size(map->value), sizeof *files, "names of shards"));
    pl_status status = PL_OK;
    json_object_foreach(map->value, tensor, value)
    {
        pl_json_node node = {.value = value, .source = map->source, .parent = map, .key = tensor};
        status = pl_json_as_string(&files[count], &node);
        if (status == PL_OK) status = check_file_name(&node, files[count]);
        if (status != PL_OK) break;
        ++count;
    }
    if (status != PL_OK) {
        pl_free(files);
        return status;
    }
    qsort(files, (size_t)count, sizeof *files, by_words);
    for (int64_t i = 0; i < count; ++i)
        if (unique == 0 || strcmp(files[unique - 1], files[i]) != 0) files[unique++] = files[i];
    *out = files;
    *count_out = unique;
    return PL_OK;
}

/* Map and files say the same of every tensor. */
static pl_status compare_map(const pl_safetensors_set *set, const pl_json_node *map)
{
    const char *tensor = NULL;
    json_t *value = NULL;
    char shown[PL_SAFETENSORS_SHOWN];
    json_object_foreach(map->value, tensor, value)
    {
        const char *file = json_string_value(value);
        const pl_safetensors_place *place = pl_safetensors_set_find(set, tensor);
        if (!place || strcmp(base_name(place->file->file), file) != 0)
            return PL_FAIL(PL_BAD_INPUT,
                           "%s: tensor '%s' should stand in %s and is not there; it stands in %s",
                           map->source, pl_safetensors_show(tensor, shown), file,
                           place ? place->file->file : "no file of the index");
    }
    for (int64_t i = 0; i < set->place_count; ++i) {
        const pl_safetensors_place *place = &set->places[i];
        if (!json_object_get(map->value, place->tensor->name))
            return PL_FAIL(PL_BAD_INPUT, "%s: tensor '%s' stands in %s, and the index has it not",
                           map->source, pl_safetensors_show(place->tensor->name, shown),
                           place->file->file);
    }
    return PL_OK;
}

static void note_total_size(pl_safetensors_set *set, const pl_json_node *top)
{
    json_t *total = json_object_get(json_object_get(top->value, "metadata"), "total_size");
    int64_t bytes = 0;
    for (int64_t i = 0; i < set->place_count; ++i) bytes += set->places[i].tensor->bytes;
    if (json_is_integer(total) && json_integer_value(total) != bytes)
        pl_text_add(&set->notes,
                    "%s: total_size is %" PRId64 ", and the tensors are %" PRId64 " bytes\n",
                    top->source, (int64_t)json_integer_value(total), bytes);
}

static bool is_used(const pl_safetensors_set *set, const char *name)
{
    for (int64_t i = 0; i < set->file_count; ++i)
        if (strcmp(base_name(set->files[i].file), name) == 0) return true;
    return false;
}

/* Files beside the set are no fault; that they are not read should be known. */
static pl_status note_spare_files(pl_safetensors_set *set, const char *folder)
{
    pl_text first = {0};
    int64_t count = 0;
    DIR *listing = opendir(folder);
    if (!listing) return PL_FAIL(PL_IO_FAILED, "%s: %s", folder, strerror(errno));
    for (struct dirent *entry = readdir(listing); entry; entry = readdir(listing)) {
        if (!ends_with(entry->d_name, ending) || is_used(set, entry->d_name)) continue;
        if (count++ > 0 && strcmp(entry->d_name, pl_text_string(&first)) > 0) continue;
        pl_text_clear(&first);
        pl_text_add_string(&first, entry->d_name);
    }
    closedir(listing);
    if (count > 0)
        pl_text_add(&set->notes, "%s: %" PRId64 " file%s of tensors not used: %s%s\n", folder,
                    count, count == 1 ? "" : "s", pl_text_string(&first), count > 1 ? ", ..." : "");
    pl_status status = pl_text_status(&first);
    pl_text_free(&first);
    return status;
}

static pl_status open_indexed(pl_safetensors_set *set, const char *folder, struct json_t *tree,
                              const char *source)
{
    pl_json_node top, map;
    const char **files = NULL;
    int64_t count = 0;
    PL_TRY(pl_json_top_object(&top, tree, source));
    PL_TRY(pl_json_object(&map, &top, "weight_map"));
    PL_TRY(list_files(&files, &count, &map));
    pl_status status = open_files(set, folder, files, count);
    if (status != PL_OK) pl_error_context("opening what %s names", source);
    if (status == PL_OK) status = collect(set);
    if (status == PL_OK) status = compare_map(set, &map);
    if (status == PL_OK) note_total_size(set, &top);
    pl_free(files);
    return status;
}

static pl_status open_index(pl_safetensors_set *set, const char *folder)
{
    pl_text path = {0};
    struct json_t *tree = NULL;
    pl_status status = join(&path, folder, index_name);
    if (status == PL_OK)
        status = pl_json_read(&tree, pl_text_string(&path), PL_SAFETENSORS_MOST_HEADER);
    if (status == PL_OK) {
        status = open_indexed(set, folder, tree, pl_text_string(&path));
        pl_json_free(tree);
    }
    pl_text_free(&path);
    return status;
}

static pl_status open_folder(pl_safetensors_set *set, const char *folder)
{
    bool single = false, indexed = false;
    PL_TRY(exists(&single, folder, single_name));
    PL_TRY(exists(&indexed, folder, index_name));
    if (single && indexed)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: both %s and %s are there; keep the one that holds the weights", folder,
                       single_name, index_name);
    if (!single && !indexed)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: neither %s nor %s is there: no folder of Hugging Face weights", folder,
                       single_name, index_name);
    if (indexed) {
        PL_TRY(open_index(set, folder));
        return note_spare_files(set, folder);
    }
    PL_TRY(open_files(set, folder, &single_name, 1));
    return collect(set);
}

static pl_status open_path(pl_safetensors_set *set, const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return PL_FAIL(pl_file_is_wrong_name(errno) ? PL_BAD_INPUT : PL_IO_FAILED, "%s: %s", path,
                       strerror(errno));
    if (S_ISDIR(info.st_mode)) {
        PL_TRY(open_folder(set, path));
        return pl_text_status(&set->notes);
    }
    if (!ends_with(path, ending))
        return PL_FAIL(PL_BAD_INPUT, "%s: neither a folder nor a file named *%s", path, ending);
    PL_TRY(pl_allocate(&set->files, 1, sizeof *set->files, "a file of tensors"));
    PL_TRY(pl_safetensors_open(&set->files[0], path));
    set->file_count = 1;
    return collect(set);
}

pl_status pl_safetensors_set_open(pl_safetensors_set *out, const char *path)
{
    pl_safetensors_set set = {0};
    pl_status status = open_path(&set, path);
    if (status == PL_OK)
        *out = set;
    else
        pl_safetensors_set_close(&set);
    return status;
}

void pl_safetensors_set_close(pl_safetensors_set *set)
{
    for (int64_t i = 0; i < set->file_count; ++i) pl_safetensors_close(&set->files[i]);
    pl_free(set->files);
    pl_free(set->places);
    pl_text_free(&set->notes);
    *set = (pl_safetensors_set){0};
}

static int compare_name(const void *name, const void *place)
{
    return strcmp(name, ((const pl_safetensors_place *)place)->tensor->name);
}

const pl_safetensors_place *pl_safetensors_set_find(const pl_safetensors_set *set, const char *name)
{
    if (set->place_count == 0) return NULL;
    return bsearch(name, set->places, (size_t)set->place_count, sizeof *set->places, compare_name);
}
