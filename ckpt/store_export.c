/* From the checkpoint to files under temporary names. The folder itself: store_export_folder.c. */
#include "ckpt/store_export.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/safetensors.h"
#include "ckpt/store_export_folder.h"
#include "ckpt/store_reader.h"
#include "ckpt/weights_folder_values.h"
#include "common/file_bytes.h"
#include "common/memory.h"

/* Most bytes that a task reads or writes at once; a single row may be longer. */
enum { PIECE = 4 << 20 };

typedef struct exporting {
    const pl_export_request *request;
    pl_store_reader *reader;
    const pl_manifest *manifest;
    pl_value_kind *kinds; /* [tensors]: which values are written */
    pl_dtype *dtypes;     /* [tensors]: as what */
    pl_shards shards;
    pl_text config;
    pl_export_folder folder;
    pl_export_report report;
    int64_t done;
    /* of the file that is written */
    const pl_shard *shard;
    const char *path;
    int descriptor;
    int64_t *first_task; /* [items + 1] */
} exporting;

/* --- what is written --- */

static pl_status choose(exporting *e)
{
    const pl_manifest *m = e->manifest;
    size_t count = (size_t)m->model.tensor_count;
    PL_TRY(pl_allocate(&e->kinds, count, sizeof *e->kinds, "kinds of values"));
    PL_TRY(pl_allocate(&e->dtypes, count, sizeof *e->dtypes, "types of tensors"));
    for (size_t t = 0; t < count; ++t) {
        bool master = e->request->masters && pl_keeps(&m->kept[t], PL_VALUE_MASTER);
        e->kinds[t] = master ? PL_VALUE_MASTER : PL_VALUE_PARAMETER;
        e->dtypes[t] = e->request->dtype;
        if (e->dtypes[t] == PL_DTYPE_COUNT) e->dtypes[t] = m->kept[t].dtype[e->kinds[t]];
        e->report.masters += master;
    }
    return PL_OK;
}

/* --- one file --- */

/* Rows of one expert, or of a whole tensor, that a task moves. */
static int64_t rows_at_once(const exporting *e, const pl_shard_item *item)
{
    const pl_tensor *tensor = &e->manifest->model.tensors[item->tensor];
    pl_dtype stored = e->manifest->kept[item->tensor].dtype[e->kinds[item->tensor]];
    int64_t from = pl_dtype_bytes(stored), to = pl_dtype_bytes(item->dtype);
    int64_t rows = PIECE / (tensor->cols * (from > to ? from : to));
    return rows > 0 ? rows : 1;
}

/* Room for a piece as it is stored and, behind it, as it is written. */
static int64_t room_of(const exporting *e, const pl_shard_item *item)
{
    const pl_tensor *tensor = &e->manifest->model.tensors[item->tensor];
    int64_t most = rows_at_once(e, item), rows = tensor->rows < most ? tensor->rows : most;
    return 2 * rows * tensor->cols * pl_dtype_bytes(PL_FP32);
}

static const pl_shard_item *item_of(const exporting *e, int64_t number, int64_t *row)
{
    int64_t low = 0, high = e->shard->count;
    while (high - low > 1) { /* the last item that begins at the task or before it */
        int64_t middle = low + (high - low) / 2;
        if (e->first_task[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    const pl_shard_item *item = &e->shards.items[e->shard->first + low];
    *row = (number - e->first_task[low]) * rows_at_once(e, item);
    return item;
}

static pl_status move(void *context, int64_t number, char *room, int64_t *moved)
{
    exporting *e = context;
    int64_t row = 0;
    const pl_shard_item *item = item_of(e, number, &row);
    const pl_tensor *tensor = &e->manifest->model.tensors[item->tensor];
    pl_value_kind kind = e->kinds[item->tensor];
    pl_dtype stored = e->manifest->kept[item->tensor].dtype[kind];
    int64_t most = rows_at_once(e, item), left = tensor->rows - row;
    int64_t rows = left < most ? left : most, first = item->expert * tensor->rows + row;
    int64_t width = pl_dtype_bytes(item->dtype), count = rows * tensor->cols;
    char *values = room;
    PL_TRY(pl_store_read(e->reader, kind, item->tensor, first, first + rows, room));
    if (stored != item->dtype) {
        values = room + count * pl_dtype_bytes(stored);
        pl_weights_convert(values, item->dtype, room, stored, count);
    }
    *moved = count * width;
    return pl_file_write(e->descriptor, e->path, item->offset + row * tensor->cols * width,
                         count * width, values);
}

static pl_status move_items(exporting *e)
{
    const pl_export_request *request = e->request;
    int64_t room = 1;
    PL_TRY(
        pl_allocate(&e->first_task, (size_t)e->shard->count + 1, sizeof *e->first_task, "tasks"));
    for (int64_t i = 0; i < e->shard->count; ++i) {
        const pl_shard_item *item = &e->shards.items[e->shard->first + i];
        int64_t rows = e->manifest->model.tensors[item->tensor].rows, needs = room_of(e, item);
        e->first_task[i + 1] = e->first_task[i] + pl_divide_up(rows, rows_at_once(e, item));
        e->done += item->bytes;
        if (needs > room) room = needs;
    }
    const pl_store_tasks tasks = {.count = e->first_task[e->shard->count],
                                  .run = move,
                                  .context = e,
                                  .room = room,
                                  .threads = request->threads,
                                  .progress = request->progress,
                                  .progress_context = request->progress_context,
                                  .done = e->report.bytes,
                                  .bytes = e->shards.bytes};
    pl_status status = pl_store_do_tasks(&tasks);
    e->report.bytes = e->done;
    pl_free(e->first_task);
    e->first_task = NULL;
    return status;
}

/* What is about to be put in place can be read. */
static pl_status read_back(const char *path)
{
    pl_safetensors file = {.descriptor = -1};
    pl_status status = pl_safetensors_open(&file, path);
    pl_safetensors_close(&file);
    if (status != PL_OK) pl_error_context("reading back what was written");
    return status == PL_BAD_INPUT ? PL_IO_FAILED : status;
}

static pl_status fill_file(exporting *e, int64_t number)
{
    const pl_text *header = &e->shards.headers[number];
    if (ftruncate(e->descriptor, (off_t)e->shard->bytes) != 0)
        return PL_FAIL(PL_IO_FAILED, "%s: making it %" PRId64 " bytes long: %s", e->path,
                       e->shard->bytes, strerror(errno));
    PL_TRY(pl_file_write(e->descriptor, e->path, 0, (int64_t)header->length, header->bytes));
    PL_TRY(move_items(e));
    if (fsync(e->descriptor) != 0)
        return PL_FAIL(PL_IO_FAILED, "%s: bringing it to the disk: %s", e->path, strerror(errno));
    return PL_OK;
}

static pl_status write_file(exporting *e, int64_t number)
{
    pl_text path = {0};
    e->shard = &e->shards.shards[number];
    PL_TRY(pl_export_temporary(&path, e->request->folder, e->shard->name));
    e->path = pl_text_string(&path);
    e->descriptor = open(e->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    pl_status status = PL_OK;
    if (e->descriptor < 0) {
        status = PL_FAIL(PL_IO_FAILED, "%s: %s", e->path, strerror(errno));
    } else {
        status = fill_file(e, number);
        if (close(e->descriptor) != 0 && status == PL_OK)
            status = PL_FAIL(PL_IO_FAILED, "%s: %s", e->path, strerror(errno));
    }
    if (status == PL_OK) status = read_back(e->path);
    pl_text_free(&path);
    return status;
}

/* --- the whole --- */

static pl_status write_all(exporting *e)
{
    pl_status status = PL_OK;
    for (int64_t f = 0; status == PL_OK && f < e->shards.shard_count; ++f)
        status = write_file(e, f);
    if (status == PL_OK) status = pl_export_put_in_place(&e->folder, &e->shards, &e->config);
    if (status != PL_OK) pl_export_folder_discard(&e->folder);
    return status;
}

static pl_status run(exporting *e)
{
    const pl_export_request *request = e->request;
    PL_TRY(pl_store_reader_open(&e->reader, request->checkpoint));
    e->manifest = pl_store_reader_manifest(e->reader);
    PL_TRY(choose(e));
    PL_TRY(pl_shards_plan(&e->shards, &e->manifest->model, e->dtypes, request->shard_bytes));
    PL_TRY(pl_export_config(&e->config, e->manifest, e->dtypes, request->dtype != PL_DTYPE_COUNT));
    PL_TRY(pl_export_folder_open(&e->folder, request->folder, request->overwrite));
    return write_all(e);
}

pl_status pl_store_export(pl_export_report *out, const pl_export_request *request)
{
    exporting e = {.request = request, .descriptor = -1};
    pl_status status = run(&e);
    e.report.files = e.shards.shard_count;
    e.report.tensors = e.shards.item_count;
    if (status == PL_OK) *out = e.report;
    pl_store_reader_close(e.reader);
    pl_free(e.kinds);
    pl_free(e.dtypes);
    pl_shards_free(&e.shards);
    pl_text_free(&e.config);
    return status;
}
