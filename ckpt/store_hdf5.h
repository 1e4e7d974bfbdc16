/* What store_layout.c and store_index.c share of HDF5; for nobody else.
 *
 * Everything between pl_hdf5_enter and pl_hdf5_leave is alone with the library.
 */
#ifndef PL_CKPT_STORE_HDF5_H
#define PL_CKPT_STORE_HDF5_H

#include <hdf5.h>
#include <stdbool.h>

#include "common/model.h"
#include "common/value_kind.h"

void pl_hdf5_enter(void);
void pl_hdf5_leave(void);

/* PL_IO_FAILED, or PL_NO_MEMORY where it was that: "PATH: HDF5 could not WHAT: ..." with what the
 * library says. */
pl_status pl_hdf5_fail(const char *path, const char *what);

/* Whether the library's last failure was one of memory. */
bool pl_hdf5_lacks_memory(void);

/* A file that is being made; -1 where something is not open. */
typedef struct pl_hdf5_file {
    const char *path;
    hid_t file_access, file_creation, dataset_creation, group_creation;
    hid_t file, group[PL_VALUE_KIND_COUNT];
} pl_hdf5_file;

/* Make a new file. Closing goes for failed ones too, and returns STATUS or the failure to close. */
pl_status pl_hdf5_create(pl_hdf5_file *s, const char *path);
pl_status pl_hdf5_close(pl_hdf5_file *s, pl_status status);

/* See to it that s->group[KIND] is open. */
pl_status pl_hdf5_group(pl_hdf5_file *s, pl_value_kind kind);

/* The library's type for DTYPE (not to be closed), the shape of ROWS rows of TENSOR (to be closed),
 * and the attribute "dtype" where the type does not say what the bits mean. */
hid_t pl_hdf5_type(pl_dtype dtype);
hid_t pl_hdf5_space(const pl_tensor *tensor, int64_t rows);
bool pl_hdf5_add_dtype(hid_t dataset, pl_dtype dtype);

#endif
