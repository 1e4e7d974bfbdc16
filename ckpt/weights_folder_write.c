/* Writing the weights of a run, by all its ranks together. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/safetensors_layout.h"
#include "ckpt/weights_folder.h"
#include "ckpt/weights_folder_values.h"
#include "common/file_bytes.h"
#include "common/memory.h"

/* Values that are converted at a time. */
enum { PIECE = 4096, MOST_BYTES = 4 };

typedef struct item_name {
    char *name; /* owned */
    int64_t item;
    int64_t shape[2];
} item_name;

struct pl_weights_writer {
    char *folder;
    char *file, *temporary; /* model.safetensors and what is written until it is whole */
    char *config, *config_temporary;
    int descriptor; /* of the temporary file; -1: none */
    pl_dtype dtype;
    item_name *names; /* [count], sorted by name once the items are made */
    pl_safetensors_item *items;
    int64_t count;
    int64_t bytes; /* of the whole file */
    pl_text header, config_text;
};

static pl_status make_path(char **out, const char *folder, const char *name)
{
    pl_text path = {0};
    pl_text_add(&path, "%s/%s", folder, name);
    pl_status status = pl_text_status(&path);
    if (status == PL_OK) status = pl_duplicate(out, pl_text_string(&path), "path of weights");
    pl_text_free(&path);
    return status;
}

static pl_status make_paths(pl_weights_writer *w, const char *folder)
{
    PL_TRY(pl_duplicate(&w->folder, folder, "folder of weights"));
    PL_TRY(make_path(&w->file, folder, "model.safetensors"));
    PL_TRY(make_path(&w->temporary, folder, "model.safetensors.tmp"));
    PL_TRY(make_path(&w->config, folder, "config.json"));
    return make_path(&w->config_temporary, folder, "config.json.tmp");
}

static pl_status sync_folder(const char *folder);

static pl_status make_folder(const char *folder)
{
    struct stat info;
    if (mkdir(folder, 0777) == 0) {
        char *parent = NULL;
        PL_TRY(make_path(&parent, folder, ".."));
        pl_status status = sync_folder(parent);
        pl_free(parent);
        return status;
    }
    int cause = errno;
    if (cause == EEXIST && stat(folder, &info) == 0) {
        if (S_ISDIR(info.st_mode)) return PL_OK;
        return PL_FAIL(PL_BAD_INPUT, "%s: not a folder; the weights need one", folder);
    }
    return PL_FAIL(pl_file_is_wrong_name(cause) ? PL_BAD_INPUT : PL_IO_FAILED,
                   "%s: the folder for the weights cannot be made: %s", folder, strerror(cause));
}

/* An index would say that the shards beside it are the weights. */
static pl_status refuse_index(const char *folder)
{
    struct stat info;
    char *path = NULL;
    PL_TRY(make_path(&path, folder, "model.safetensors.index.json"));
    bool there = stat(path, &info) == 0;
    pl_free(path);
    if (there)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: it holds weights in shards (model.safetensors.index.json); name "
                       "another folder",
                       folder);
    return PL_OK;
}

static pl_status add_names(pl_weights_writer *w, const pl_tensor *tensor, pl_text *text)
{
    for (int64_t expert = 0; expert < pl_weights_count(tensor); ++expert) {
        item_name *name = &w->names[w->count];
        pl_safetensors_item *item = &w->items[w->count];
        PL_TRY(pl_weights_name(text, tensor, expert));
        PL_TRY(pl_duplicate(&name->name, pl_text_string(text), "name of a tensor"));
        name->item = w->count;
        name->shape[0] = tensor->rows;
        name->shape[1] = tensor->cols;
        *item = (pl_safetensors_item){.name = name->name,
                                      .type = pl_safetensors_type_of(w->dtype),
                                      .dimensions = tensor->dimensions,
                                      .shape = name->shape};
        ++w->count;
    }
    return PL_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const item_name *)a)->name, ((const item_name *)b)->name);
}

/* Where every tensor stands. */
static pl_status lay_out(pl_weights_writer *w, const pl_model *model)
{
    char format[] = "format", pytorch[] = "pt";
    const pl_safetensors_pair metadata = {format, pytorch};
    int64_t count = 0;
    pl_text text = {0};
    for (int64_t i = 0; i < model->tensor_count; ++i) count += pl_weights_count(&model->tensors[i]);
    PL_TRY(pl_allocate(&w->names, (size_t)count, sizeof *w->names, "names of tensors"));
    PL_TRY(pl_allocate(&w->items, (size_t)count, sizeof *w->items, "places of tensors"));
    pl_status status = PL_OK;
    for (int64_t i = 0; i < model->tensor_count && status == PL_OK; ++i)
        status = add_names(w, &model->tensors[i], &text);
    pl_text_free(&text);
    PL_TRY(status);
    PL_TRY(pl_safetensors_layout(w->items, w->count, &metadata, 1, &w->header, &w->bytes));
    /* Sorting moves the shapes that the items borrowed to be laid out. */
    for (int64_t i = 0; i < w->count; ++i) w->items[i].shape = NULL;
    qsort(w->names, (size_t)w->count, sizeof *w->names, by_name);
    return PL_OK;
}

static pl_status write_config(pl_weights_writer *w, const pl_model *model)
{
    pl_model stored = *model;
    stored.stored_dtype = w->dtype;
    pl_model_write(&w->config_text, &stored);
    pl_text_add_string(&w->config_text, "\n");
    return pl_text_status(&w->config_text);
}

static pl_status open_temporary(pl_weights_writer *w)
{
    w->descriptor =
        open(w->temporary, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (w->descriptor < 0)
        return PL_FAIL(pl_file_is_wrong_name(errno) ? PL_BAD_INPUT : PL_IO_FAILED, "%s: %s",
                       w->temporary, strerror(errno));
    if (ftruncate(w->descriptor, (off_t)w->bytes) != 0)
        return PL_FAIL(PL_IO_FAILED, "%s: making it %" PRId64 " bytes long: %s", w->temporary,
                       w->bytes, strerror(errno));
    return PL_OK;
}

static pl_status begin(pl_weights_writer *w, const char *folder, const pl_model *model)
{
    PL_TRY(make_paths(w, folder));
    PL_TRY(lay_out(w, model));
    PL_TRY(write_config(w, model));
    PL_TRY(make_folder(folder));
    PL_TRY(refuse_index(folder));
    return open_temporary(w);
}

pl_status pl_weights_begin(pl_weights_writer **out, const char *folder, const pl_model *model,
                           pl_dtype dtype)
{
    pl_weights_writer *writer = NULL;
    if (!pl_weights_dtype_fits(dtype))
        return PL_FAIL(PL_INTERNAL, "weights as %s; allowed: fp32, bf16, fp16",
                       pl_dtype_name(dtype));
    if (!*folder) return PL_FAIL(PL_BAD_INPUT, "the name of the folder for the weights is empty");
    PL_TRY(pl_allocate(&writer, 1, sizeof *writer, "writer of weights"));
    writer->descriptor = -1;
    writer->dtype = dtype;
    pl_status status = begin(writer, folder, model);
    if (status == PL_OK)
        *out = writer;
    else
        pl_weights_writer_close(writer);
    return status;
}

/* COUNT values from number FIRST of ITEM. */
static pl_status write_values(const pl_weights_writer *w, const pl_safetensors_item *item,
                              int64_t first, int64_t count, pl_dtype dtype, const void *values)
{
    char piece[PIECE * MOST_BYTES];
    int64_t width = pl_dtype_bytes(w->dtype), offset = item->offset + first * width;
    if (dtype == w->dtype)
        return pl_file_write(w->descriptor, w->temporary, offset, count * width, values);
    for (int64_t done = 0; done < count; done += PIECE) {
        int64_t now = count - done < PIECE ? count - done : PIECE;
        pl_weights_convert(piece, w->dtype, (const char *)values + done * pl_dtype_bytes(dtype),
                           dtype, now);
        PL_TRY(
            pl_file_write(w->descriptor, w->temporary, offset + done * width, now * width, piece));
    }
    return PL_OK;
}

static int compare_name(const void *name, const void *item)
{
    return strcmp(name, ((const item_name *)item)->name);
}

/* The item of that name and shape, or NULL. */
static const pl_safetensors_item *find(const pl_weights_writer *w, const char *name,
                                       const pl_tensor *tensor)
{
    const item_name *found =
        bsearch(name, w->names, (size_t)w->count, sizeof *w->names, compare_name);
    if (!found || found->shape[0] != tensor->rows || found->shape[1] != tensor->cols) return NULL;
    return &w->items[found->item];
}

pl_status pl_weights_write(const pl_weights_writer *writer, const pl_tensor *tensor,
                           int64_t row_begin, int64_t row_end, pl_dtype dtype, const void *values)
{
    pl_text name = {0};
    pl_status status = pl_weights_check_rows(tensor, row_begin, row_end, dtype);
    for (int64_t row = row_begin; row < row_end && status == PL_OK;) {
        pl_weights_span span = pl_weights_first_span(tensor, row, row_end);
        int64_t rows = span.row_end - span.row_begin;
        status = pl_weights_name(&name, tensor, span.expert);
        if (status != PL_OK) break;
        const pl_safetensors_item *item = find(writer, pl_text_string(&name), tensor);
        if (!item)
            status = PL_FAIL(PL_INTERNAL, "%s is no tensor of the model that is written",
                             pl_text_string(&name));
        else
            status = write_values(
                writer, item, span.row_begin * tensor->cols, rows * tensor->cols, dtype,
                (const char *)values + (row - row_begin) * tensor->cols * pl_dtype_bytes(dtype));
        if (status != PL_OK) pl_error_context("writing %s", pl_text_string(&name));
        row += rows;
    }
    pl_text_free(&name);
    return status;
}

static pl_status sync_file(int descriptor, const char *file)
{
    if (fsync(descriptor) != 0)
        return PL_FAIL(PL_IO_FAILED, "%s: bringing it to the disk: %s", file, strerror(errno));
    return PL_OK;
}

static pl_status sync_folder(const char *folder)
{
    int descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return PL_FAIL(PL_IO_FAILED, "%s: %s", folder, strerror(errno));
    pl_status status = sync_file(descriptor, folder);
    close(descriptor);
    return status;
}

pl_status pl_weights_sync(const pl_weights_writer *writer)
{
    return sync_file(writer->descriptor, writer->temporary);
}

static pl_status put_config(const pl_weights_writer *w)
{
    int descriptor =
        open(w->config_temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (descriptor < 0)
        return PL_FAIL(PL_IO_FAILED, "%s: %s", w->config_temporary, strerror(errno));
    pl_status status = pl_file_write(descriptor, w->config_temporary, 0,
                                     (int64_t)w->config_text.length, w->config_text.bytes);
    if (status == PL_OK) status = sync_file(descriptor, w->config_temporary);
    if (close(descriptor) != 0 && status == PL_OK)
        status = PL_FAIL(PL_IO_FAILED, "%s: %s", w->config_temporary, strerror(errno));
    return status;
}

static pl_status rename_file(const char *from, const char *to)
{
    if (rename(from, to) != 0)
        return PL_FAIL(PL_IO_FAILED, "%s: renaming it to %s: %s", from, to, strerror(errno));
    return PL_OK;
}

/* What is about to be put in place can be read. */
static pl_status read_back(const pl_weights_writer *w)
{
    pl_safetensors file = {.descriptor = -1};
    pl_status status = pl_safetensors_open(&file, w->temporary);
    pl_safetensors_close(&file);
    if (status != PL_OK) pl_error_context("reading back what was written");
    return status == PL_BAD_INPUT ? PL_IO_FAILED : status;
}

pl_status pl_weights_finish(const pl_weights_writer *writer)
{
    PL_TRY(pl_file_write(writer->descriptor, writer->temporary, 0, (int64_t)writer->header.length,
                         writer->header.bytes));
    PL_TRY(pl_weights_sync(writer));
    PL_TRY(read_back(writer));
    PL_TRY(put_config(writer));
    PL_TRY(rename_file(writer->config_temporary, writer->config));
    PL_TRY(rename_file(writer->temporary, writer->file));
    return sync_folder(writer->folder);
}

void pl_weights_discard(const pl_weights_writer *writer)
{
    (void)unlink(writer->temporary);
    (void)rmdir(writer->folder); /* unless there are earlier weights in it */
}

void pl_weights_writer_close(pl_weights_writer *writer)
{
    if (!writer) return;
    if (writer->descriptor >= 0) close(writer->descriptor);
    for (int64_t i = 0; writer->names && i < writer->count; ++i) pl_free(writer->names[i].name);
    pl_free(writer->names);
    pl_free(writer->items);
    pl_text_free(&writer->header);
    pl_text_free(&writer->config_text);
    pl_free(writer->folder);
    pl_free(writer->file);
    pl_free(writer->temporary);
    pl_free(writer->config);
    pl_free(writer->config_temporary);
    pl_free(writer);
}
