/* The index: virtual datasets over the ranks' files; and a look whether a rank's file is laid out
 * as its list says. */
#include <inttypes.h>

#include "ckpt/store_hdf5.h"
#include "ckpt/store_layout.h"

/* Map rows of the whole tensor to the dataset of the same name in the file of one rank. */
static bool map_piece(hid_t list, hid_t whole, const pl_tensor *tensor,
                      const pl_checkpoint_piece *piece, const char *file, const char *dataset)
{
    int64_t rows = piece->row_end - piece->row_begin;
    const hsize_t start[2] = {(hsize_t)piece->row_begin, 0};
    const hsize_t count[2] = {(hsize_t)rows, (hsize_t)tensor->cols};
    hid_t source = pl_hdf5_space(tensor, rows);
    bool done = source >= 0 &&
                H5Sselect_hyperslab(whole, H5S_SELECT_SET, start, NULL, count, NULL) >= 0 &&
                H5Pset_virtual(list, whole, file, dataset, source) >= 0;
    if (source >= 0) H5Sclose(source);
    return done;
}

typedef struct index_writer {
    pl_hdf5_file *file;
    const pl_manifest *manifest;
    const pl_checkpoint_map *map;
} index_writer;

static bool map_pieces(const index_writer *w, hid_t list, hid_t whole, pl_value_kind kind,
                       int64_t tensor, const char *name)
{
    size_t count = 0;
    pl_text dataset = {0};
    const pl_checkpoint_piece *pieces =
        pl_checkpoint_map_pieces(w->map, w->manifest->model.tensor_count, kind, tensor, &count);
    pl_text_add(&dataset, "/%s/%s", pl_value_kind_name(kind), name);
    bool done = list >= 0 && whole >= 0 && pl_text_status(&dataset) == PL_OK &&
                H5Pset_obj_track_times(list, false) >= 0;
    for (size_t i = 0; done && i < count; ++i) {
        char file[PL_MANIFEST_NAME];
        pl_manifest_rank_file(w->map->source[pieces[i].source].rank, ".h5", file);
        done = map_piece(list, whole, &w->manifest->model.tensors[tensor], &pieces[i], file,
                         pl_text_string(&dataset));
    }
    pl_text_free(&dataset);
    return done && H5Sselect_all(whole) >= 0;
}

static pl_status add_tensor(const index_writer *w, pl_value_kind kind, int64_t number,
                            const char *name)
{
    const pl_tensor *tensor = &w->manifest->model.tensors[number];
    pl_dtype dtype = w->manifest->kept[number].dtype[kind];
    PL_TRY(pl_hdf5_group(w->file, kind));
    hid_t list = H5Pcreate(H5P_DATASET_CREATE), dataset = -1;
    hid_t whole = pl_hdf5_space(tensor, pl_tensor_total_rows(tensor));
    bool done = map_pieces(w, list, whole, kind, number, name);
    if (done)
        dataset = H5Dcreate2(w->file->group[kind], name, pl_hdf5_type(dtype), whole, H5P_DEFAULT,
                             list, H5P_DEFAULT);
    done = dataset >= 0 && pl_hdf5_add_dtype(dataset, dtype);
    pl_status status = done ? PL_OK : pl_hdf5_fail(w->file->path, "make a virtual dataset");
    if (dataset >= 0) H5Dclose(dataset);
    if (whole >= 0) H5Sclose(whole);
    if (list >= 0) H5Pclose(list);
    return status;
}

static pl_status add_tensors(const index_writer *w)
{
    pl_text name = {0};
    pl_status status = PL_OK;
    for (int kind = 0; kind < PL_VALUE_KIND_COUNT; ++kind) {
        for (int64_t i = 0; status == PL_OK && i < w->manifest->model.tensor_count; ++i) {
            if (!pl_keeps(&w->manifest->kept[i], (pl_value_kind)kind)) continue;
            pl_text_clear(&name);
            pl_tensor_name(&name, &w->manifest->model.tensors[i]);
            status = pl_text_status(&name);
            if (status == PL_OK)
                status = add_tensor(w, (pl_value_kind)kind, i, pl_text_string(&name));
        }
    }
    pl_text_free(&name);
    return status;
}

pl_status pl_store_write_index(const char *path, const pl_manifest *manifest,
                               const pl_checkpoint_map *map)
{
    pl_hdf5_file file;
    const index_writer w = {&file, manifest, map};
    pl_hdf5_enter();
    pl_status status = pl_hdf5_create(&file, path);
    if (status == PL_OK) status = add_tensors(&w);
    status = pl_hdf5_close(&file, status);
    pl_hdf5_leave();
    return status;
}

/* --- a look --- */

static bool has_shape(hid_t dataset, const pl_tensor *tensor, int64_t rows)
{
    hsize_t sizes[2] = {0, 1};
    hid_t space = H5Dget_space(dataset);
    bool same = space >= 0 && H5Sget_simple_extent_ndims(space) == tensor->dimensions &&
                H5Sget_simple_extent_dims(space, sizes, NULL) >= 0 && sizes[0] == (hsize_t)rows &&
                sizes[1] == (hsize_t)tensor->cols;
    if (space >= 0) H5Sclose(space);
    return same;
}

static pl_status look_at(hid_t file, const char *path, const pl_checkpoint_box *box,
                         const pl_tensor *tensor)
{
    pl_text name = {0};
    pl_text_add(&name, "/%s/", pl_value_kind_name((pl_value_kind)box->kind));
    pl_tensor_name(&name, tensor);
    pl_status status = pl_text_status(&name);
    if (status == PL_OK) {
        hid_t dataset = H5Dopen2(file, pl_text_string(&name), H5P_DEFAULT);
        bool right = dataset >= 0 && H5Dget_offset(dataset) == (haddr_t)box->offset &&
                     has_shape(dataset, tensor, box->row_end - box->row_begin);
        if (!right && pl_hdf5_lacks_memory()) status = pl_hdf5_fail(path, "look at a dataset");
        if (dataset >= 0) H5Dclose(dataset);
        if (!right && status == PL_OK)
            status =
                PL_FAIL(PL_BAD_INPUT,
                        "%s: dataset %s is not there, or not of %" PRId64 " rows at byte %" PRId64
                        ", as the rank's list says",
                        path, pl_text_string(&name), box->row_end - box->row_begin, box->offset);
    }
    pl_text_free(&name);
    return status;
}

pl_status pl_store_check_layout(const char *path, const pl_checkpoint_boxes *boxes,
                                const pl_model *model)
{
    pl_status status = PL_OK;
    pl_hdf5_enter();
    hid_t access = H5Pcreate(H5P_FILE_ACCESS), file = -1;
    if (access < 0 || H5Pset_file_locking(access, false, true) < 0)
        status = PL_FAIL(PL_NO_MEMORY, "out of memory for HDF5");
    if (status == PL_OK) file = H5Fopen(path, H5F_ACC_RDONLY, access);
    if (status == PL_OK && file < 0) status = pl_hdf5_fail(path, "open the file");
    for (size_t i = 0; status == PL_OK && i < boxes->count; ++i)
        status = look_at(file, path, &boxes->box[i], &model->tensors[boxes->box[i].tensor]);
    if (file >= 0) H5Fclose(file);
    if (access >= 0) H5Pclose(access);
    pl_hdf5_leave();
    return status;
}
