/* The HDF5 side of a checkpoint: files that lay values out, and the index that shows tensors whole.
 *
 * HDF5 only makes the files: it gives every box its place, and the values are moved by pread and
 * pwrite. Files are the same, byte for byte, for the same boxes. HDF5 is not safe for threads: all
 * calls go through one lock of the process.
 *
 * Values of type bf16 and fp16 are unsigned 16-bit integers to HDF5, with an attribute "dtype" that
 * says what the bits mean; fp32 is IEEE little-endian.
 */
#ifndef PL_CKPT_STORE_LAYOUT_H
#define PL_CKPT_STORE_LAYOUT_H

#include "ckpt/manifest_map.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Make the file of a rank at PATH, which must not be there yet, with a dataset "/KIND/TENSOR" for
 * each of BOXES, and set the boxes' offsets. Boxes of 64 KiB and more begin at multiples of 4 KiB.
 * No value is written. *BYTES_OUT is the length of the file. Errors: PL_IO_FAILED with what HDF5
 * says; PL_NO_MEMORY. */
pl_status pl_store_lay_out(const char *path, pl_checkpoint_boxes *boxes, const pl_model *model,
                           int64_t *bytes_out);

/* Make the index at PATH, in the folder of the ranks' files: a virtual dataset "/KIND/TENSOR" for
 * each kind and tensor that MAP has. Errors as above. */
pl_status pl_store_write_index(const char *path, const pl_manifest *manifest,
                               const pl_checkpoint_map *map);

/* Whether the file of a rank, whose bytes outside boxes are known to be right, has all BOXES where
 * they are said to be. Errors: PL_BAD_INPUT naming the file and the dataset; PL_IO_FAILED when HDF5
 * cannot open the file; PL_NO_MEMORY. */
pl_status pl_store_check_layout(const char *path, const pl_checkpoint_boxes *boxes,
                                const pl_model *model);

#ifdef __cplusplus
}
#endif
#endif
