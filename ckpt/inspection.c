#include "ckpt/inspection.h"

#include <fnmatch.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/store_folder.h"
#include "common/memory.h"

int64_t pl_inspection_rank_bytes(const pl_manifest_rank *rank)
{
    return rank->data.bytes + rank->boxes.bytes + rank->sums.bytes;
}

int64_t pl_inspection_pieces(const pl_inspection *inspection, pl_value_kind kind, int64_t tensor)
{
    size_t count = 0;
    pl_checkpoint_map_pieces(pl_store_reader_map(inspection->reader),
                             inspection->m->model.tensor_count, kind, tensor, &count);
    return (int64_t)count;
}

int64_t pl_inspection_tensor_bytes(const pl_inspection *inspection, pl_value_kind kind,
                                   int64_t tensor)
{
    const pl_tensor *facts = &inspection->m->model.tensors[tensor];
    return pl_tensor_total_rows(facts) *
           pl_kept_kind_row_bytes(facts, &inspection->m->kept[tensor], kind);
}

/* --- sizes --- */

static pl_status find_file(bool *found, int64_t *bytes, const char *folder, const char *name)
{
    struct stat info;
    pl_text path = {0};
    pl_status status = pl_manifest_path(&path, folder, name);
    *found = status == PL_OK && stat(pl_text_string(&path), &info) == 0;
    *bytes = *found ? info.st_size : 0;
    pl_text_free(&path);
    return status;
}

static pl_status add_up(pl_inspection *i)
{
    const pl_manifest *m = i->m;
    int64_t ignored = 0;
    bool found = false;
    PL_TRY(find_file(&found, &i->manifest_bytes, i->folder, PL_MANIFEST_FILE));
    PL_TRY(find_file(&i->pinned, &ignored, i->folder, PL_CHECKPOINT_PIN));
    i->bytes = i->manifest_bytes + m->index.bytes;
    for (int64_t r = 0; r < m->rank_count; ++r) i->bytes += pl_inspection_rank_bytes(&m->ranks[r]);
    for (int64_t t = 0; t < m->model.tensor_count; ++t) {
        for (int kind = 0; kind < PL_VALUE_KIND_COUNT; ++kind) {
            pl_kind_total *total = &i->kinds[kind];
            if (!pl_keeps(&m->kept[t], (pl_value_kind)kind)) continue;
            ++total->tensors;
            total->values += pl_tensor_elements(&m->model.tensors[t]);
            total->bytes += pl_inspection_tensor_bytes(i, (pl_value_kind)kind, t);
            total->dtype[m->kept[t].dtype[kind]] = true;
        }
    }
    return PL_OK;
}

/* --- tensors --- */

/* A part of NAME between dots, which may have dots in it. */
static bool is_part(const char *part, const char *name)
{
    size_t length = strlen(part);
    for (const char *found = strstr(name, part); found && length > 0;
         found = strstr(found + 1, part))
        if ((found == name || found[-1] == '.') && (found[length] == '\0' || found[length] == '.'))
            return true;
    return false;
}

static bool matches(const char *pattern, const char *name)
{
    if (!pattern) return true;
    return strpbrk(pattern, "*?") ? fnmatch(pattern, name, 0) == 0 : is_part(pattern, name);
}

static pl_status choose(pl_inspection *i, const char *pattern)
{
    const pl_model *model = &i->m->model;
    pl_text name = {0};
    PL_TRY(pl_allocate(&i->chosen, (size_t)model->tensor_count, sizeof *i->chosen, "tensors"));
    for (int64_t t = 0; t < model->tensor_count; ++t) {
        pl_text_clear(&name);
        pl_tensor_name(&name, &model->tensors[t]);
        if (matches(pattern, pl_text_string(&name))) i->chosen[i->chosen_count++] = t;
    }
    pl_status status = pl_text_status(&name);
    pl_text_free(&name);
    if (status == PL_OK && i->chosen_count == 0) {
        pl_text words = {0};
        pl_text_add_quoted(&words, pattern);
        status = PL_FAIL(PL_BAD_INPUT, "%s matches no tensor of %s", pl_text_string(&words),
                         model->name);
        pl_text_free(&words);
    }
    return status;
}

static pl_status add_statistics(pl_inspection *i)
{
    PL_TRY(pl_allocate(&i->statistics, (size_t)i->chosen_count * PL_VALUE_KIND_COUNT,
                       sizeof *i->statistics, "statistics of tensors"));
    for (int64_t c = 0; c < i->chosen_count; ++c)
        for (int kind = 0; kind < PL_VALUE_KIND_COUNT; ++kind)
            if (pl_keeps(&i->m->kept[i->chosen[c]], (pl_value_kind)kind))
                PL_TRY(pl_store_statistics(&i->statistics[c * PL_VALUE_KIND_COUNT + kind],
                                           i->reader, (pl_value_kind)kind, i->chosen[c]));
    return PL_OK;
}

/* --- the whole --- */

static pl_status make(pl_inspection *i, const pl_inspection_request *request)
{
    i->folder = request->folder;
    i->has_tensors = request->tensors;
    if (request->tensors) {
        PL_TRY(pl_store_reader_open(&i->reader, request->folder));
        i->m = pl_store_reader_manifest(i->reader);
        PL_TRY(choose(i, request->pattern));
    } else {
        PL_TRY(pl_manifest_read(&i->manifest, request->folder));
        i->m = &i->manifest;
    }
    PL_TRY(add_up(i));
    return request->statistics ? add_statistics(i) : PL_OK;
}

pl_status pl_inspection_make(pl_inspection *out, const pl_inspection_request *request)
{
    *out = (pl_inspection){0};
    pl_status status = make(out, request);
    if (status != PL_OK) pl_inspection_free(out);
    return status;
}

void pl_inspection_free(pl_inspection *inspection)
{
    pl_store_reader_close(inspection->reader);
    pl_manifest_free(&inspection->manifest);
    pl_free(inspection->chosen);
    pl_free(inspection->statistics);
    *inspection = (pl_inspection){0};
}
