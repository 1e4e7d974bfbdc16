/* Opening, finding and reading. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/safetensors_internal.h"
#include "common/file_bytes.h"
#include "common/memory.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "elements are used as they lie there");

/* What a file of another kind is, for the most usual ones; NULL otherwise. */
static const char *other_kind(const char *start, int64_t bytes)
{
    static const struct {
        const char *magic, *words;
    } kinds[] = {
        {"version https://git-lfs", "this is a Git LFS pointer: fetch the file it stands for"},
        {"\x89HDF\r\n\x1a\n", "this is an HDF5 file"},
        {"PK\x03\x04", "this is a ZIP file, as PyTorch saves: convert it to safetensors"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
        size_t length = strlen(kinds[i].magic);
        if ((uint64_t)bytes >= length && memcmp(start, kinds[i].magic, length) == 0)
            return kinds[i].words;
    }
    return NULL;
}

pl_status pl_safetensors_header_length(int64_t *out, const char *start, int64_t start_bytes,
                                       int64_t bytes, const char *file)
{
    uint64_t length = 0;
    if (bytes < PL_SAFETENSORS_LENGTH)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: %" PRId64 " bytes; a safetensors file has at least the 8 that say how "
                       "long its header is",
                       file, bytes);
    memcpy(&length, start, sizeof length);
    const char *words = other_kind(start, start_bytes);
    if (words) return PL_FAIL(PL_BAD_INPUT, "%s: not a safetensors file: %s", file, words);
    if (length > PL_SAFETENSORS_MOST_HEADER)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: a header of %" PRIu64 " bytes; allowed: at most %d. Is this a "
                       "safetensors file?",
                       file, length, PL_SAFETENSORS_MOST_HEADER);
    if ((int64_t)length > bytes - PL_SAFETENSORS_LENGTH)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: a header of %" PRIu64 " bytes, and %" PRId64
                       " bytes are there: the file was cut short",
                       file, length, bytes - PL_SAFETENSORS_LENGTH);
    if (length == 0) return PL_FAIL(PL_BAD_INPUT, "%s: the header is empty; allowed: {...}", file);
    *out = (int64_t)length;
    return PL_OK;
}

static pl_status parse(pl_safetensors *out, const char *header, int64_t header_bytes, int64_t bytes,
                       const char *file)
{
    int64_t length = 0;
    PL_TRY(pl_safetensors_header_length(&length, header, header_bytes, bytes, file));
    if (header_bytes < PL_SAFETENSORS_LENGTH + length)
        return PL_FAIL(PL_INTERNAL, "%s: %" PRId64 " bytes of a header of %" PRId64, file,
                       header_bytes, length);
    PL_TRY(pl_duplicate(&out->file, file, "name of a safetensors file"));
    out->bytes = bytes;
    return pl_safetensors_read_header(out, header + PL_SAFETENSORS_LENGTH, length);
}

pl_status pl_safetensors_parse(pl_safetensors *out, const char *header, int64_t header_bytes,
                               int64_t bytes, const char *file)
{
    pl_safetensors made = {.descriptor = -1};
    pl_status status = parse(&made, header, header_bytes, bytes, file);
    if (status == PL_OK)
        *out = made;
    else
        pl_safetensors_close(&made);
    return status;
}

/* The 8 bytes and the JSON of an open file. */
static pl_status read_start(char **out, int64_t *length_out, int descriptor, int64_t bytes,
                            const char *file)
{
    char start[32] = {0}, *header = NULL;
    int64_t length = 0, known = bytes < (int64_t)sizeof start ? bytes : (int64_t)sizeof start;
    PL_TRY(pl_file_read(descriptor, file, 0, known, start));
    PL_TRY(pl_safetensors_header_length(&length, start, known, bytes, file));
    length += PL_SAFETENSORS_LENGTH;
    PL_TRY(pl_allocate(&header, (size_t)length, 1, "header of a safetensors file"));
    pl_status status = pl_file_read(descriptor, file, 0, length, header);
    if (status == PL_OK) {
        *out = header;
        *length_out = length;
    } else {
        pl_free(header);
    }
    return status;
}

pl_status pl_safetensors_open(pl_safetensors *out, const char *file)
{
    pl_safetensors made = {.descriptor = -1};
    int descriptor = -1;
    int64_t bytes = 0, length = 0;
    char *header = NULL;
    PL_TRY(pl_file_open(&descriptor, &bytes, file));
    pl_status status = read_start(&header, &length, descriptor, bytes, file);
    if (status == PL_OK) status = pl_safetensors_parse(&made, header, length, bytes, file);
    pl_free(header);
    if (status == PL_OK) {
        made.descriptor = descriptor;
        *out = made;
    } else {
        close(descriptor);
    }
    return status;
}

void pl_safetensors_close(pl_safetensors *file)
{
    for (int64_t i = 0; i < file->tensor_count; ++i) {
        pl_free(file->tensors[i].name);
        pl_free(file->tensors[i].shape);
    }
    for (int64_t i = 0; i < file->metadata_count; ++i) {
        pl_free(file->metadata[i].key);
        pl_free(file->metadata[i].value);
    }
    pl_free(file->tensors);
    pl_free(file->metadata);
    if (file->file && file->descriptor >= 0) close(file->descriptor);
    pl_free(file->file);
    *file = (pl_safetensors){.descriptor = -1};
}

static int compare_name(const void *name, const void *tensor)
{
    return strcmp(name, ((const pl_safetensors_tensor *)tensor)->name);
}

const pl_safetensors_tensor *pl_safetensors_find(const pl_safetensors *file, const char *name)
{
    if (file->tensor_count == 0) return NULL;
    return bsearch(name, file->tensors, (size_t)file->tensor_count, sizeof *file->tensors,
                   compare_name);
}

static int compare_key(const void *key, const void *pair)
{
    return strcmp(key, ((const pl_safetensors_pair *)pair)->key);
}

const char *pl_safetensors_metadata(const pl_safetensors *file, const char *key)
{
    if (file->metadata_count == 0) return NULL;
    const pl_safetensors_pair *pair = bsearch(key, file->metadata, (size_t)file->metadata_count,
                                              sizeof *file->metadata, compare_key);
    return pair ? pair->value : NULL;
}

pl_status pl_safetensors_read(const pl_safetensors *file, const pl_safetensors_tensor *tensor,
                              int64_t first, int64_t bytes, void *out)
{
    char shown[PL_SAFETENSORS_SHOWN];
    if (first < 0 || bytes < 0 || first > tensor->bytes || bytes > tensor->bytes - first)
        return PL_FAIL(PL_INTERNAL,
                       "%s: %" PRId64 " bytes from %" PRId64 " of tensor '%s', which has %" PRId64,
                       file->file, bytes, first, pl_safetensors_show(tensor->name, shown),
                       tensor->bytes);
    pl_status status =
        pl_file_read(file->descriptor, file->file, tensor->offset + first, bytes, out);
    if (status != PL_OK)
        pl_error_context("reading tensor '%s'", pl_safetensors_show(tensor->name, shown));
    return status;
}

pl_status pl_safetensors_read_rows(const pl_safetensors *file, const pl_safetensors_tensor *tensor,
                                   int64_t row_begin, int64_t row_end, void *out)
{
    char shown[PL_SAFETENSORS_SHOWN];
    int64_t rows = tensor->dimensions > 0 ? tensor->shape[0] : 1;
    if (row_begin < 0 || row_end < row_begin || row_end > rows)
        return PL_FAIL(PL_INTERNAL,
                       "%s: rows [%" PRId64 ", %" PRId64 ") of tensor '%s' of %" PRId64, file->file,
                       row_begin, row_end, pl_safetensors_show(tensor->name, shown), rows);
    if (row_begin == row_end) return PL_OK;
    if (tensor->bytes % rows != 0)
        return PL_FAIL(PL_INTERNAL, "%s: a row of tensor '%s' is no whole number of bytes",
                       file->file, pl_safetensors_show(tensor->name, shown));
    int64_t row = tensor->bytes / rows;
    return pl_safetensors_read(file, tensor, row_begin * row, (row_end - row_begin) * row, out);
}

const char *pl_safetensors_show(const char *name, char *buffer)
{
    const size_t most = PL_SAFETENSORS_SHOWN - 1;
    size_t length = strlen(name), used = 0;
    if (length > most) {
        memcpy(buffer, "...", 3);
        used = 3;
        name += length - (most - used);
    }
    for (; *name; ++name) {
        buffer[used] = *name;
        if ((unsigned char)*name < 0x20 || *name == 0x7f) buffer[used] = '?';
        ++used;
    }
    buffer[used] = '\0';
    return buffer;
}
