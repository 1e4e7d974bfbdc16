/* Headers of safetensors files. The first byte is even: JSON follows behind two bytes that say how
 * long the data are, and the length in front is made right. It is odd: the file itself follows. */
#include <string.h>

#include "ckpt/safetensors.h"
#include "ckpt/safetensors_layout.h"
#include "common/json.h"
#include "tests/fuzz/fuzz.h"

/* A file that was read can be written, and is then read again. */
static void write_again(const pl_safetensors *file)
{
    pl_safetensors again;
    pl_text header = {0};
    int64_t bytes = 0;
    size_t count = (size_t)file->tensor_count;
    pl_safetensors_item *items = calloc(count + 1, sizeof *items);
    FUZZ_HOLDS(items);
    for (size_t i = 0; i < count; ++i)
        items[i] = (pl_safetensors_item){.name = file->tensors[i].name,
                                         .type = file->tensors[i].type,
                                         .dimensions = file->tensors[i].dimensions,
                                         .shape = file->tensors[i].shape};
    FUZZ_HOLDS(pl_safetensors_layout(items, (int64_t)count, file->metadata, file->metadata_count,
                                     &header, &bytes) == PL_OK);
    FUZZ_HOLDS(pl_safetensors_parse(&again, header.bytes, (int64_t)header.length, bytes, "again") ==
               PL_OK);
    FUZZ_HOLDS(again.tensor_count == file->tensor_count);
    FUZZ_HOLDS(again.metadata_count == file->metadata_count);
    for (size_t i = 0; i < count; ++i) {
        FUZZ_HOLDS(strcmp(again.tensors[i].name, file->tensors[i].name) == 0);
        FUZZ_HOLDS(again.tensors[i].bytes == file->tensors[i].bytes);
    }
    pl_safetensors_close(&again);
    pl_text_free(&header);
    free(items);
}

static void parse(const char *start, int64_t count, int64_t bytes)
{
    pl_safetensors file;
    pl_error_clear();
    if (pl_safetensors_parse(&file, start, count, bytes, "file") != PL_OK) {
        FUZZ_HOLDS(*pl_error_text());
        return;
    }
    for (int64_t i = 0; i < file.tensor_count; ++i) {
        const pl_safetensors_tensor *t = &file.tensors[i];
        FUZZ_HOLDS(t->offset >= 8 && t->bytes >= 0 && t->offset + t->bytes <= bytes);
        FUZZ_HOLDS(pl_safetensors_find(&file, t->name) == t);
    }
    write_again(&file);
    pl_safetensors_close(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    enum { LEAD = 3, LENGTH = 8 };
    pl_json_check_memory();
    if (count < LEAD) return 0;
    if (bytes[0] % 2 == 1) {
        char *copy = malloc(count); /* of its own length, so that reading past it is seen */
        FUZZ_HOLDS(copy);
        memcpy(copy, bytes + 1, count - 1);
        parse(copy, (int64_t)count - 1, (int64_t)count - 1);
        free(copy);
        return 0;
    }
    uint64_t length = count - LEAD;
    int64_t data = bytes[1] + 256 * bytes[2];
    char *copy = malloc(LENGTH + length);
    FUZZ_HOLDS(copy);
    memcpy(copy, &length, LENGTH);
    memcpy(copy + LENGTH, bytes + LEAD, length);
    parse(copy, (int64_t)(LENGTH + length), (int64_t)(LENGTH + length) + data);
    free(copy);
    return 0;
}
