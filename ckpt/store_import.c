#include "ckpt/store_import.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/store_folder.h"
#include "ckpt/store_writer.h"
#include "ckpt/weights_folder.h"
#include "common/file_bytes.h"
#include "common/json_text.h"
#include "common/memory.h"
#include "common/placement.h"

/* What one task moves: whole blocks of a box. */
enum { PIECE = 4 * PL_CHECKPOINT_BLOCK, MOST_CONFIG = 1 << 24 };

typedef struct importing {
    const pl_import_request *request;
    pl_text root;    /* the folder that gets "step-N" */
    size_t made;     /* letters of the first folder of it that was not there; 0: all were */
    pl_text config;  /* the text of config.json */
    bool has_config; /* not so for built-in models */
    pl_model model;
    bool has_model;
    pl_weights *weights;
    pl_manifest manifest;
    uint64_t nonce;
    int lock; /* -1: none */
    int64_t done, bytes;
    /* of the rank that is written */
    pl_store_writer *writer;
    int64_t *first_task; /* [boxes + 1] */
} importing;

/* --- names --- */

/* The step of a folder named "step-N"; -1 for other names. */
static int64_t step_of(const char *name)
{
    static const char lead[] = "step-";
    char again[48];
    int64_t step = 0;
    if (strncmp(name, lead, sizeof lead - 1) != 0) return -1;
    if (!pl_parse_integer(&step, name + sizeof lead - 1) || step < 0) return -1;
    snprintf(again, sizeof again, "%s%" PRId64, lead, step);
    return strcmp(again, name) == 0 ? step : -1;
}

/* Root and step of the checkpoint that is to be made. */
static pl_status read_destination(importing *i)
{
    const char *given = i->request->checkpoint;
    size_t length = strlen(given);
    while (length > 1 && given[length - 1] == '/') --length;
    if (length == 0) return PL_FAIL(PL_BAD_INPUT, "the name of the checkpoint is empty");
    pl_text_add_bytes(&i->root, given, length);
    PL_TRY(pl_text_status(&i->root));
    char *slash = strrchr(i->root.bytes, '/');
    int64_t step = step_of(slash ? slash + 1 : i->root.bytes);
    i->manifest.progress.step = step < 0 ? 0 : step;
    if (step < 0) return PL_OK;
    if (!slash) {
        pl_text_clear(&i->root);
        pl_text_add_string(&i->root, ".");
        return pl_text_status(&i->root);
    }
    i->root.length = slash == i->root.bytes ? 1 : (size_t)(slash - i->root.bytes);
    i->root.bytes[i->root.length] = '\0';
    return PL_OK;
}

/* Nothing is made before it is known that there is no such checkpoint yet. */
static pl_status check_root(const importing *i)
{
    struct stat info;
    const char *root = pl_text_string(&i->root);
    if (stat(root, &info) != 0) return PL_OK;
    if (S_ISDIR(info.st_mode))
        return pl_checkpoint_check(root, i->manifest.progress.step, i->bytes);
    return PL_FAIL(PL_BAD_INPUT, "%s: not a folder; a checkpoint is made in one", root);
}

/* Make the folder of the first LENGTH letters of the root, unless it is there. */
static pl_status make_folder(importing *i, size_t length)
{
    struct stat info;
    pl_text path = {0};
    pl_text_add_bytes(&path, pl_text_string(&i->root), length);
    pl_status status = pl_text_status(&path);
    if (status == PL_OK && stat(pl_text_string(&path), &info) != 0) {
        if (mkdir(pl_text_string(&path), 0777) == 0) {
            if (i->made == 0) i->made = length;
        } else if (errno != EEXIST) {
            status = PL_FAIL(pl_file_is_wrong_name(errno) ? PL_BAD_INPUT : PL_IO_FAILED,
                             "%s: making the folder: %s", pl_text_string(&path), strerror(errno));
        }
    }
    pl_text_free(&path);
    return status;
}

/* The root, with the folders around it. */
static pl_status make_root(importing *i)
{
    for (size_t length = 1; length <= i->root.length; ++length) {
        char next = i->root.bytes[length];
        if ((next == '/' || next == '\0') && i->root.bytes[length - 1] != '/')
            PL_TRY(make_folder(i, length));
    }
    return PL_OK;
}

/* What was made goes again, with the file of the lock. */
static void remove_root(importing *i)
{
    pl_text path = {0};
    if (i->made == 0) return;
    if (pl_manifest_path(&path, pl_text_string(&i->root), ".lock") == PL_OK)
        (void)unlink(pl_text_string(&path));
    pl_text_free(&path);
    while (i->root.length >= i->made && rmdir(pl_text_string(&i->root)) == 0) {
        while (i->root.length > 0 && i->root.bytes[i->root.length - 1] != '/') --i->root.length;
        while (i->root.length > 0 && i->root.bytes[i->root.length - 1] == '/') --i->root.length;
        i->root.bytes[i->root.length] = '\0';
    }
}

/* --- the model --- */

static bool is_builtin(const char *name)
{
    int count = 0;
    const char *const *names = pl_model_builtin_names(&count);
    for (int i = 0; i < count; ++i)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

static pl_status read_config(importing *i, const char *source)
{
    struct stat info;
    pl_text path = {0};
    char *text = NULL;
    size_t length = 0;
    bool folder = stat(source, &info) == 0 && S_ISDIR(info.st_mode);
    pl_text_add(&path, folder ? "%s/config.json" : "%s", source);
    pl_status status = pl_text_status(&path);
    if (status == PL_OK) status = pl_read_file(&text, &length, pl_text_string(&path), MOST_CONFIG);
    if (status == PL_OK) {
        pl_text_add_bytes(&i->config, text, length);
        status = pl_text_status(&i->config);
        i->has_config = true;
    }
    pl_free(text);
    pl_text_free(&path);
    return status;
}

static pl_status open_model(importing *i)
{
    struct stat info;
    const char *folder = i->request->folder, *source = i->request->model;
    if (!source && stat(folder, &info) == 0 && S_ISREG(info.st_mode))
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: a file of tensors does not say which model they are of: name its "
                       "folder, or the model with --model",
                       folder);
    if (!source && stat(folder, &info) != 0)
        return PL_FAIL(PL_BAD_INPUT, "%s: %s", folder, strerror(errno));
    if (!source || !is_builtin(source)) PL_TRY(read_config(i, source ? source : folder));
    PL_TRY(pl_model_open(&i->model, source ? source : folder));
    i->has_model = true;
    if (i->request->layout.pp > 1)
        return PL_FAIL(PL_UNSUPPORTED,
                       "pp=%" PRId64 ": checkpoints are written for pp=1 so far; pleat-sim layout "
                       "shows all axes",
                       i->request->layout.pp);
    return pl_placement_check(&i->request->layout, &i->model);
}

/* --- the manifest --- */

static pl_status find_types(importing *i)
{
    pl_manifest *m = &i->manifest;
    PL_TRY(pl_manifest_set_model(m, &i->model, NULL, 0, NULL, 0));
    PL_TRY(pl_allocate(&m->kept, (size_t)m->model.tensor_count, sizeof *m->kept, "kept values"));
    for (int64_t t = 0; t < m->model.tensor_count; ++t) {
        pl_dtype dtype = i->request->dtype;
        for (int kind = 0; kind < PL_VALUE_KIND_COUNT; ++kind)
            m->kept[t].dtype[kind] = PL_DTYPE_COUNT;
        if (dtype == PL_DTYPE_COUNT)
            PL_TRY(pl_weights_stored_dtype(&dtype, i->weights, &m->model.tensors[t]));
        m->kept[t].dtype[PL_VALUE_PARAMETER] = dtype;
        i->bytes += pl_tensor_elements(&m->model.tensors[t]) * pl_dtype_bytes(dtype);
    }
    return PL_OK;
}

static bool put(json_t *object, const char *key, json_t *value)
{
    return value && json_object_set_new(object, key, value) == 0;
}

static pl_status make_provenance(importing *i)
{
    const pl_import_request *request = i->request;
    json_t *object = request->provenance ? json_copy(request->provenance) : json_object();
    bool whole = object && put(object, PL_IMPORT_FROM, pl_json_words(request->folder));
    i->manifest.provenance = object;
    if (request->dtype != PL_DTYPE_COUNT)
        whole = whole && put(object, PL_IMPORT_DTYPE, json_string(pl_dtype_name(request->dtype)));
    if (i->has_config)
        whole = whole && put(object, PL_IMPORT_CONFIG,
                             json_stringn(pl_text_string(&i->config), i->config.length));
    pl_library_forget_failure();
    if (whole) return PL_OK;
    return PL_FAIL(PL_NO_MEMORY, "out of memory for the provenance of an import");
}

static pl_status make_manifest(importing *i)
{
    pl_manifest *m = &i->manifest;
    m->trained = false;
    m->layout = i->request->layout;
    PL_TRY(find_types(i));
    PL_TRY(make_provenance(i));
    return pl_allocate(&m->ranks, (size_t)m->layout.world, sizeof *m->ranks, "files of ranks");
}

/* --- values --- */

/* The box of task NUMBER of the rank. */
static const pl_checkpoint_box *box_of(const importing *i, int64_t number, int64_t *first)
{
    const pl_checkpoint_boxes *boxes = pl_store_writer_boxes(i->writer);
    size_t low = 0, high = boxes->count;
    while (high - low > 1) { /* the last box that begins at the task or before it */
        size_t middle = low + (high - low) / 2;
        if (i->first_task[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    *first = (number - i->first_task[low]) * PIECE;
    return &boxes->box[low];
}

static pl_status move(void *context, int64_t number, char *room, int64_t *moved)
{
    importing *i = context;
    int64_t first = 0;
    const pl_checkpoint_box *box = box_of(i, number, &first);
    const pl_tensor *tensor = &i->manifest.model.tensors[box->tensor];
    int64_t width = pl_dtype_bytes((pl_dtype)box->dtype);
    int64_t bytes = box->bytes - first < PIECE ? box->bytes - first : PIECE;
    PL_TRY(pl_weights_read_values(i->weights, tensor, box->row_begin * tensor->cols + first / width,
                                  bytes / width, (pl_dtype)box->dtype, room));
    *moved = bytes;
    return pl_store_write(i->writer, box, first, bytes, room);
}

static pl_status move_boxes(importing *i)
{
    const pl_import_request *request = i->request;
    const pl_checkpoint_boxes *boxes = pl_store_writer_boxes(i->writer);
    PL_TRY(pl_allocate(&i->first_task, boxes->count + 1, sizeof *i->first_task, "tasks"));
    for (size_t b = 0; b < boxes->count; ++b)
        i->first_task[b + 1] = i->first_task[b] + pl_divide_up(boxes->box[b].bytes, PIECE);
    const pl_store_tasks tasks = {.count = i->first_task[boxes->count],
                                  .run = move,
                                  .context = i,
                                  .room = PIECE,
                                  .threads = request->threads,
                                  .progress = request->progress,
                                  .progress_context = request->progress_context,
                                  .done = i->done,
                                  .bytes = i->bytes};
    pl_status status = pl_store_do_tasks(&tasks);
    i->done += boxes->bytes;
    pl_free(i->first_task);
    i->first_task = NULL;
    return status;
}

static pl_status write_rank(importing *i, const char *folder, int64_t rank)
{
    pl_manifest *m = &i->manifest;
    pl_checkpoint_boxes boxes;
    PL_TRY(pl_checkpoint_boxes_of_rank(&boxes, &m->model, m->kept, &m->layout, rank));
    if (boxes.count == 0) {
        pl_checkpoint_boxes_free(&boxes);
        return PL_OK;
    }
    PL_TRY(pl_store_writer_open(&i->writer, folder, rank, &m->model, &boxes));
    pl_status status = move_boxes(i);
    if (status == PL_OK) status = pl_store_writer_finish(i->writer, &m->ranks[m->rank_count]);
    m->rank_count += status == PL_OK;
    pl_store_writer_close(i->writer);
    i->writer = NULL;
    return status;
}

/* --- the whole --- */

static pl_status write_ranks(importing *i)
{
    pl_text folder = {0};
    const char *root = pl_text_string(&i->root);
    pl_manifest *m = &i->manifest;
    pl_status status = pl_checkpoint_begin(&folder, root, m->progress.step, i->nonce);
    for (int64_t rank = 0; status == PL_OK && rank < m->layout.world; ++rank)
        status = write_rank(i, pl_text_string(&folder), rank);
    pl_text_free(&folder);
    return status == PL_OK ? pl_checkpoint_commit(root, i->nonce, m) : status;
}

static pl_status write_checked(importing *i)
{
    const char *root = pl_text_string(&i->root);
    int64_t step = i->manifest.progress.step;
    PL_TRY(pl_checkpoint_lock(&i->lock, root));
    PL_TRY(pl_checkpoint_check(root, step, i->bytes));
    pl_status status = write_ranks(i);
    if (status != PL_OK) pl_checkpoint_discard(root, step, i->nonce);
    return status;
}

static pl_status write_all(importing *i)
{
    PL_TRY(pl_checkpoint_draw_nonce(&i->nonce));
    pl_status status = make_root(i);
    if (status == PL_OK) status = write_checked(i);
    if (status != PL_OK) remove_root(i);
    return status;
}

static pl_status import(importing *i)
{
    PL_TRY(read_destination(i));
    PL_TRY(open_model(i));
    PL_TRY(pl_weights_open(&i->weights, i->request->folder, &i->model));
    PL_TRY(make_manifest(i));
    PL_TRY(check_root(i));
    return write_all(i);
}

static pl_status report(pl_import_report *out, const importing *i)
{
    const pl_manifest *m = &i->manifest;
    *out = (pl_import_report){
        .tensors = m->model.tensor_count, .ranks = m->rank_count, .bytes = i->bytes};
    pl_text_add_string(&out->notes, pl_weights_notes(i->weights));
    pl_status status =
        pl_checkpoint_path(&out->checkpoint, pl_text_string(&i->root), m->progress.step);
    if (status == PL_OK) status = pl_text_status(&out->notes);
    if (status != PL_OK) pl_import_report_free(out);
    return status;
}

pl_status pl_store_import(pl_import_report *out, const pl_import_request *request)
{
    importing i = {.request = request, .lock = -1};
    pl_status status = import(&i);
    if (status == PL_OK) status = report(out, &i);
    pl_checkpoint_unlock(i.lock);
    pl_weights_close(i.weights);
    if (i.has_model) pl_model_free(&i.model);
    pl_manifest_free(&i.manifest);
    pl_text_free(&i.root);
    pl_text_free(&i.config);
    return status;
}

void pl_import_report_free(pl_import_report *report)
{
    pl_text_free(&report->checkpoint);
    pl_text_free(&report->notes);
    *report = (pl_import_report){0};
}
