/* Files of tokens as llm.c and Megatron write them, made by the tests from the formats' own pages.
 */
#ifndef PL_TESTS_TRAIN_TOKEN_FILES_H
#define PL_TESTS_TRAIN_TOKEN_FILES_H

#include <stdint.h>

#include "tests/scratch.h"

/* A file that grows in memory. */
typedef struct bytes_made {
    unsigned char bytes[1 << 16];
    size_t count;
} bytes_made;

static inline void put(bytes_made *to, const void *bytes, size_t count)
{
    assert_in_range(count, 0, sizeof to->bytes - to->count);
    if (count > 0) memcpy(to->bytes + to->count, bytes, count);
    to->count += count;
}

/* The low WIDTH bytes of VALUE. */
static inline void put_number(bytes_made *to, int64_t value, size_t width)
{
    put(to, &value, width);
}

static inline void save(const scratch *s, const char *name, const bytes_made *made)
{
    write_bytes(s, name, made->bytes, made->count);
}

/* llm.c: MAGIC, VERSION, the number COUNTED, and COUNT tokens of WIDTH bytes. */
static inline void make_llm_c(bytes_made *to, int32_t magic, int32_t version, int32_t counted,
                              const int64_t *tokens, size_t count, size_t width)
{
    to->count = 0;
    put_number(to, magic, 4);
    put_number(to, version, 4);
    put_number(to, counted, 4);
    for (int i = 3; i < 256; ++i) put_number(to, 0, 4);
    for (size_t i = 0; i < count; ++i) put_number(to, tokens[i], width);
}

/* What an index of Megatron's says; a test changes what it wants to be wrong. */
typedef struct index_facts {
    char magic[9];
    int64_t version, code, width;
    int64_t sequences, documents; /* as counted in the header */
    int64_t lengths[4], places[4], entries[4];
    int sequence_count, document_count; /* as written */
} index_facts;

/* Three documents of 3, 0 and 4 tokens of WIDTH bytes. */
static inline index_facts sound_index(int64_t code, int64_t width)
{
    return (index_facts){.magic = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0},
                         .version = 1,
                         .code = code,
                         .width = width,
                         .sequences = 3,
                         .documents = 4,
                         .lengths = {3, 0, 4},
                         .places = {0, 3 * width, 3 * width},
                         .entries = {0, 1, 2, 3},
                         .sequence_count = 3,
                         .document_count = 4};
}

static inline void make_index(bytes_made *to, const index_facts *facts)
{
    to->count = 0;
    put(to, facts->magic, sizeof facts->magic);
    put_number(to, facts->version, 8);
    put_number(to, facts->code, 1);
    put_number(to, facts->sequences, 8);
    put_number(to, facts->documents, 8);
    for (int i = 0; i < facts->sequence_count; ++i) put_number(to, facts->lengths[i], 4);
    for (int i = 0; i < facts->sequence_count; ++i) put_number(to, facts->places[i], 8);
    for (int i = 0; i < facts->document_count; ++i) put_number(to, facts->entries[i], 8);
}

/* NAME.bin with COUNT tokens, and NAME.idx that says FACTS. */
static inline void save_megatron(const scratch *s, const char *name, const index_facts *facts,
                                 const int64_t *tokens, size_t count)
{
    char file[64];
    bytes_made made = {.count = 0};
    for (size_t i = 0; i < count; ++i) put_number(&made, tokens[i], (size_t)facts->width);
    snprintf(file, sizeof file, "%s.bin", name);
    save(s, file, &made);
    make_index(&made, facts);
    snprintf(file, sizeof file, "%s.idx", name);
    save(s, file, &made);
}

#endif
