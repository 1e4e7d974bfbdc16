/* The HDF5 files of ranks. */
#include "ckpt/store_layout.h"

#include <unistd.h>

#include "ckpt/store_hdf5.h"
#include "common/file_bytes.h"

/* "rows": the first row of the piece, and that after its last. */
static bool add_rows(hid_t dataset, const pl_checkpoint_box *box)
{
    const hsize_t two = 2;
    const int64_t rows[2] = {box->row_begin, box->row_end};
    hid_t space = H5Screate_simple(1, &two, NULL);
    hid_t attribute = H5Acreate2(dataset, "rows", H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
    bool done = attribute >= 0 && H5Awrite(attribute, H5T_NATIVE_INT64, rows) >= 0;
    if (attribute >= 0) H5Aclose(attribute);
    H5Sclose(space);
    return done;
}

static pl_status add_dataset(pl_hdf5_file *s, pl_checkpoint_box *box, const pl_tensor *tensor,
                             const char *name)
{
    PL_TRY(pl_hdf5_group(s, (pl_value_kind)box->kind));
    hid_t space = pl_hdf5_space(tensor, box->row_end - box->row_begin);
    hid_t dataset = H5Dcreate2(s->group[box->kind], name, pl_hdf5_type((pl_dtype)box->dtype), space,
                               H5P_DEFAULT, s->dataset_creation, H5P_DEFAULT);
    haddr_t place = dataset >= 0 ? H5Dget_offset(dataset) : HADDR_UNDEF;
    bool done = place != HADDR_UNDEF && add_rows(dataset, box) &&
                pl_hdf5_add_dtype(dataset, (pl_dtype)box->dtype);
    box->offset = (int64_t)place;
    pl_status status = done ? PL_OK : pl_hdf5_fail(s->path, "make a dataset");
    if (dataset >= 0) H5Dclose(dataset);
    if (space >= 0) H5Sclose(space);
    return status;
}

static pl_status add_datasets(pl_hdf5_file *s, pl_checkpoint_boxes *boxes, const pl_model *model)
{
    pl_text name = {0};
    pl_status status = PL_OK;
    for (size_t i = 0; status == PL_OK && i < boxes->count; ++i) {
        const pl_tensor *tensor = &model->tensors[boxes->box[i].tensor];
        pl_text_clear(&name);
        pl_tensor_name(&name, tensor);
        status = pl_text_status(&name);
        if (status == PL_OK) status = add_dataset(s, &boxes->box[i], tensor, pl_text_string(&name));
    }
    pl_text_free(&name);
    return status;
}

static pl_status length_of(const char *path, int64_t *bytes_out)
{
    int descriptor = -1;
    PL_TRY(pl_file_open(&descriptor, bytes_out, path));
    close(descriptor);
    return PL_OK;
}

pl_status pl_store_lay_out(const char *path, pl_checkpoint_boxes *boxes, const pl_model *model,
                           int64_t *bytes_out)
{
    pl_hdf5_file s;
    pl_hdf5_enter();
    pl_status status = pl_hdf5_create(&s, path);
    if (status == PL_OK) status = add_datasets(&s, boxes, model);
    status = pl_hdf5_close(&s, status);
    pl_hdf5_leave();
    return status == PL_OK ? length_of(path, bytes_out) : status;
}
