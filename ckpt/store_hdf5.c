#include "ckpt/store_hdf5.h"

#include <pthread.h>
#include <string.h>

#include "common/text.h"

enum { ALIGNED_FROM = 64 << 10, ALIGNMENT = 4 << 10 };

/* --- the library --- */

static pthread_mutex_t library = PTHREAD_MUTEX_INITIALIZER; /* HDF5 keeps state of its own */

static herr_t take_words(unsigned depth, const H5E_error2_t *error, void *text)
{
    (void)depth;
    if (error->desc && *error->desc) pl_text_add(text, ": %s", error->desc);
    return 0;
}

static herr_t look_for_memory(unsigned depth, const H5E_error2_t *error, void *lacks)
{
    (void)depth;
    if (error->maj_num == H5E_RESOURCE || error->min_num == H5E_CANTALLOC ||
        error->min_num == H5E_NOSPACE)
        *(bool *)lacks = true;
    return 0;
}

bool pl_hdf5_lacks_memory(void)
{
    bool lacks = false;
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, look_for_memory, &lacks);
    return lacks;
}

/* What the library says about a failure, innermost last. */
pl_status pl_hdf5_fail(const char *path, const char *what)
{
    pl_text words = {0};
    bool lacks = pl_hdf5_lacks_memory();
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, take_words, &words);
    pl_status status = PL_FAIL(lacks ? PL_NO_MEMORY : PL_IO_FAILED, "%s: HDF5 could not %s%s%.400s",
                               path, what, lacks ? ": out of memory" : "", pl_text_string(&words));
    pl_text_free(&words);
    return status;
}

void pl_hdf5_enter(void)
{
    pthread_mutex_lock(&library);
    (void)H5dont_atexit(); /* at the end it would crash on a file that a full disk left half open */
    (void)H5Eset_auto2(H5E_DEFAULT, NULL, NULL); /* words are taken, not printed */
}

void pl_hdf5_leave(void)
{
    (void)H5garbage_collect();
    pthread_mutex_unlock(&library);
}

static bool make_lists(pl_hdf5_file *s)
{
    s->file_access = H5Pcreate(H5P_FILE_ACCESS);
    s->file_creation = H5Pcreate(H5P_FILE_CREATE);
    s->dataset_creation = H5Pcreate(H5P_DATASET_CREATE);
    s->group_creation = H5Pcreate(H5P_GROUP_CREATE);
    return H5Pset_libver_bounds(s->file_access, H5F_LIBVER_V110, H5F_LIBVER_V110) >= 0 &&
           H5Pset_alignment(s->file_access, ALIGNED_FROM, ALIGNMENT) >= 0 &&
           H5Pset_file_locking(s->file_access, false, true) >= 0 &&
           /* without, what is written of each dataset stays in memory until the end */
           H5Pset_evict_on_close(s->file_access, true) >= 0 &&
           H5Pset_obj_track_times(s->file_creation, false) >= 0 &&
           H5Pset_obj_track_times(s->group_creation, false) >= 0 &&
           H5Pset_obj_track_times(s->dataset_creation, false) >= 0 &&
           H5Pset_layout(s->dataset_creation, H5D_CONTIGUOUS) >= 0 &&
           H5Pset_alloc_time(s->dataset_creation, H5D_ALLOC_TIME_EARLY) >= 0 &&
           H5Pset_fill_time(s->dataset_creation, H5D_FILL_TIME_NEVER) >= 0;
}

pl_status pl_hdf5_create(pl_hdf5_file *s, const char *path)
{
    *s = (pl_hdf5_file){path, -1, -1, -1, -1, -1, {-1, -1, -1, -1}};
    if (!make_lists(s)) return pl_hdf5_fail(path, "set up how a file is made");
    s->file = H5Fcreate(path, H5F_ACC_EXCL, s->file_creation, s->file_access);
    return s->file < 0 ? pl_hdf5_fail(path, "make the file") : PL_OK;
}

pl_status pl_hdf5_close(pl_hdf5_file *s, pl_status status)
{
    for (int i = 0; i < PL_VALUE_KIND_COUNT; ++i)
        if (s->group[i] >= 0) H5Gclose(s->group[i]);
    if (s->file >= 0 && H5Fclose(s->file) < 0 && status == PL_OK)
        status = pl_hdf5_fail(s->path, "close the file");
    const hid_t lists[] = {s->file_access, s->file_creation, s->dataset_creation,
                           s->group_creation};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; ++i)
        if (lists[i] >= 0) H5Pclose(lists[i]);
    return status;
}

pl_status pl_hdf5_group(pl_hdf5_file *s, pl_value_kind kind)
{
    if (s->group[kind] >= 0) return PL_OK;
    s->group[kind] =
        H5Gcreate2(s->file, pl_value_kind_name(kind), H5P_DEFAULT, s->group_creation, H5P_DEFAULT);
    return s->group[kind] < 0 ? pl_hdf5_fail(s->path, "make a group") : PL_OK;
}

/* --- datasets --- */

hid_t pl_hdf5_type(pl_dtype dtype) { return dtype == PL_FP32 ? H5T_IEEE_F32LE : H5T_STD_U16LE; }

hid_t pl_hdf5_space(const pl_tensor *tensor, int64_t rows)
{
    const hsize_t sizes[2] = {(hsize_t)rows, (hsize_t)tensor->cols};
    return H5Screate_simple(tensor->dimensions, sizes, NULL);
}

/* "dtype" where the type of the file does not say it. */
bool pl_hdf5_add_dtype(hid_t dataset, pl_dtype dtype)
{
    if (dtype == PL_FP32) return true;
    const char *name = pl_dtype_name(dtype);
    hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR), attribute = -1;
    bool done = H5Tset_size(type, strlen(name)) >= 0 && H5Tset_strpad(type, H5T_STR_NULLPAD) >= 0;
    if (done) attribute = H5Acreate2(dataset, "dtype", type, space, H5P_DEFAULT, H5P_DEFAULT);
    done = attribute >= 0 && H5Awrite(attribute, type, name) >= 0;
    if (attribute >= 0) H5Aclose(attribute);
    H5Sclose(space);
    H5Tclose(type);
    return done;
}
