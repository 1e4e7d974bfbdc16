/* safetensors: named tensors in one file, read strictly.
 *
 * A file is 8 bytes N (unsigned, little-endian), N bytes of JSON in UTF-8, and the data to its end:
 *
 *     {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
 *      "__metadata__": {"KEY": "WORDS"}}
 *
 * Offsets count from the beginning of the data; elements are little-endian and row-major. What a
 * file must keep to be read: at least 8 bytes; N at most 100,000,000 and within the file; JSON
 * that begins with '{' and has nothing behind its '}' but blanks; no key twice; metadata of words
 * alone; entries of exactly those three fields; known types; sizes and offsets whole numbers from
 * 0 up that fit 63 bits; as many bytes as type and shape make; and tensors that cover the data
 * without hole, overlap or rest. Alignment is not asked for.
 *
 * Source: the format's page at https://github.com/huggingface/safetensors; stricter than the
 * library where that lets two readers see two things (keys twice, unknown fields).
 */
#ifndef PL_CKPT_SAFETENSORS_H
#define PL_CKPT_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/dtype.h"
#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Element types, in the library's order. */
typedef enum pl_safetensors_type {
    PL_SAFETENSORS_BOOL,
    PL_SAFETENSORS_F4,
    PL_SAFETENSORS_F6_E2M3,
    PL_SAFETENSORS_F6_E3M2,
    PL_SAFETENSORS_U8,
    PL_SAFETENSORS_I8,
    PL_SAFETENSORS_F8_E5M2,
    PL_SAFETENSORS_F8_E4M3,
    PL_SAFETENSORS_F8_E8M0,
    PL_SAFETENSORS_F8_E4M3FNUZ,
    PL_SAFETENSORS_F8_E5M2FNUZ,
    PL_SAFETENSORS_I16,
    PL_SAFETENSORS_U16,
    PL_SAFETENSORS_F16,
    PL_SAFETENSORS_BF16,
    PL_SAFETENSORS_I32,
    PL_SAFETENSORS_U32,
    PL_SAFETENSORS_F32,
    PL_SAFETENSORS_C64,
    PL_SAFETENSORS_F64,
    PL_SAFETENSORS_I64,
    PL_SAFETENSORS_U64,
    PL_SAFETENSORS_TYPE_COUNT
} pl_safetensors_type;

const char *pl_safetensors_type_name(pl_safetensors_type type); /* "BF16"; static storage */
int pl_safetensors_type_bits(pl_safetensors_type type);         /* of one element: 4, 6, 8 ... 64 */

/* The type as pleat has it, and back. False when pleat does not compute with such elements (the
 * way back never fails). */
bool pl_safetensors_type_dtype(pl_dtype *out, pl_safetensors_type type);
pl_safetensors_type pl_safetensors_type_of(pl_dtype dtype);

enum {
    PL_SAFETENSORS_MOST_HEADER = 100000000, /* bytes; the format's own limit */
    PL_SAFETENSORS_MOST_TENSORS = 1 << 20   /* bounds what a header can make us allocate */
};

typedef struct pl_safetensors_tensor {
    char *name; /* without NUL characters, otherwise anything; owned by the file */
    pl_safetensors_type type;
    int64_t dimensions;
    int64_t *shape;        /* [dimensions]; owned by the file */
    int64_t elements;      /* 1 for a scalar */
    int64_t offset, bytes; /* in the file, header included */
} pl_safetensors_tensor;

typedef struct pl_safetensors_pair {
    char *key, *value;
} pl_safetensors_pair;

/* An open file. Plain reading: any number of threads may use one. */
typedef struct pl_safetensors {
    char *file;                     /* its name */
    int descriptor;                 /* -1: none */
    int64_t bytes;                  /* of the whole file */
    pl_safetensors_tensor *tensors; /* sorted by name, as bytes */
    int64_t tensor_count;
    pl_safetensors_pair *metadata; /* sorted by key */
    int64_t metadata_count;
} pl_safetensors;

/* Open FILE and read its header. The caller lets it go with pl_safetensors_close. Errors:
 * PL_BAD_INPUT naming the file, the tensor where there is one, what was found and what would be
 * right; PL_IO_FAILED; PL_NO_MEMORY. */
pl_status pl_safetensors_open(pl_safetensors *out, const char *file);

/* The same of a file in memory, of which BYTES is the whole length and HEADER the first
 * HEADER_BYTES (all that is ever looked at: the 8 bytes and the JSON); FILE stands for it in
 * messages. Data cannot be read from it. */
pl_status pl_safetensors_parse(pl_safetensors *out, const char *header, int64_t header_bytes,
                               int64_t bytes, const char *file);

/* All zeroes is allowed. */
void pl_safetensors_close(pl_safetensors *file);

/* The tensor of that name, or NULL. */
const pl_safetensors_tensor *pl_safetensors_find(const pl_safetensors *file, const char *name);

/* The value of a metadata key, or NULL. */
const char *pl_safetensors_metadata(const pl_safetensors *file, const char *key);

/* Read BYTES bytes from byte FIRST of TENSOR (one of FILE's) as they lie there. Errors:
 * PL_INTERNAL when they are not the tensor's; PL_IO_FAILED. */
pl_status pl_safetensors_read(const pl_safetensors *file, const pl_safetensors_tensor *tensor,
                              int64_t first, int64_t bytes, void *out);

/* Read rows [ROW_BEGIN, ROW_END) of TENSOR as they lie there: a row is all elements of one index of
 * the first dimension (a scalar is one row). Errors: PL_INTERNAL when they are not the tensor's,
 * or a row is no whole number of bytes; PL_IO_FAILED. */
pl_status pl_safetensors_read_rows(const pl_safetensors *file, const pl_safetensors_tensor *tensor,
                                   int64_t row_begin, int64_t row_end, void *out);

enum { PL_SAFETENSORS_SHOWN = 100 };

/* NAME for a message, in BUFFER of PL_SAFETENSORS_SHOWN bytes: control characters as '?', long
 * names cut from the left ("...experts.3.up_proj.weight"). Returns BUFFER. */
const char *pl_safetensors_show(const char *name, char *buffer);

#ifdef __cplusplus
}
#endif
#endif
