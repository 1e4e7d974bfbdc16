/* The index of Megatron's token files: "MMIDIDX" and two NUL, u64 version 1, u8 element type, u64
 * number of sequences, u64 number of document entries, then i32 lengths, i64 byte offsets, and i64
 * document entries. Sequences follow each other in the .bin without gaps. */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "common/file_bytes.h"
#include "train/tokens_file.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are used as they lie there");

enum {
    MAGIC_BYTES = 9,
    HEADER_BYTES = MAGIC_BYTES + 8 + 1 + 8 + 8,
    LENGTH_BYTES = 4, /* of a sequence's length; its offset and a document entry have 8 */
    PLACE_BYTES = 8,
    PIECE = 1024 /* sequences that are checked at a time */
};

typedef struct index_file {
    const char *path, *bin;
    int descriptor;
    int64_t bytes;
    int64_t sequences, documents;
} index_file;

static pl_status element_type(pl_tokens_file *out, const index_file *index, int code)
{
    static const struct {
        int code, width;
        bool is_signed;
    } types[] = {{1, 1, false}, {2, 1, true}, {3, 2, true},
                 {4, 4, true},  {5, 8, true}, {8, 2, false}};
    for (size_t i = 0; i < sizeof types / sizeof *types; ++i) {
        if (types[i].code != code) continue;
        out->width = types[i].width;
        out->is_signed = types[i].is_signed;
        return PL_OK;
    }
    return PL_FAIL(PL_UNSUPPORTED,
                   "%s: element type %d; tokens may be 1 (u8), 2 (i8), 3 (i16), 4 (i32), 5 (i64) "
                   "or 8 (u16)%s",
                   index->path, code, code == 6 || code == 7 ? ", and this one has fractions" : "");
}

static pl_status check_magic(const index_file *index, const char *header)
{
    static const char magic[MAGIC_BYTES] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
    uint64_t version = 0;
    if (memcmp(header, "TNTIDX", 6) == 0)
        return PL_FAIL(PL_UNSUPPORTED,
                       "%s: an index of an older form (TNTIDX); allowed: MMIDIDX, as Megatron-LM "
                       "writes it today",
                       index->path);
    if (memcmp(header, magic, MAGIC_BYTES) != 0)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: not an index of Megatron's: it does not begin with MMIDIDX",
                       index->path);
    memcpy(&version, header + MAGIC_BYTES, sizeof version);
    if (version != 1)
        return PL_FAIL(PL_BAD_INPUT, "%s: version %" PRIu64 "; allowed: 1", index->path, version);
    return PL_OK;
}

/* Both numbers fit the index's size, which is then exact. */
static pl_status check_counts(index_file *index, const char *header)
{
    uint64_t sequences = 0, documents = 0;
    const uint64_t most = (uint64_t)index->bytes;
    memcpy(&sequences, header + MAGIC_BYTES + 9, sizeof sequences);
    memcpy(&documents, header + MAGIC_BYTES + 17, sizeof documents);
    if (sequences > most || documents > most)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: %" PRIu64 " sequences and %" PRIu64
                       " document entries cannot stand in its %" PRId64 " bytes",
                       index->path, sequences, documents, index->bytes);
    uint64_t needed =
        HEADER_BYTES + sequences * (LENGTH_BYTES + PLACE_BYTES) + documents * PLACE_BYTES;
    if (most == needed + sequences && sequences > 0)
        return PL_FAIL(PL_UNSUPPORTED,
                       "%s: it has a mode for every sequence (multimodal data), which pleat does "
                       "not read",
                       index->path);
    if (most != needed)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: %" PRId64 " bytes; %" PRIu64 " sequences and %" PRIu64
                       " document entries need %" PRIu64,
                       index->path, index->bytes, sequences, documents, needed);
    index->sequences = (int64_t)sequences;
    index->documents = (int64_t)documents;
    return PL_OK;
}

static pl_status check_sequence(const index_file *index, int64_t number, int32_t length,
                                int64_t place, int64_t expected)
{
    if (length < 0)
        return PL_FAIL(PL_BAD_INPUT, "%s: sequence %" PRId64 " has length %" PRId32, index->path,
                       number, length);
    if (place != expected)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: sequence %" PRId64 " stands at byte %" PRId64
                       "; the sequences before it end at %" PRId64,
                       index->path, number, place, expected);
    return PL_OK;
}

/* Sequences follow each other and fill the data. */
static pl_status check_sequences(const index_file *index, int64_t width, int64_t data_bytes)
{
    int32_t lengths[PIECE];
    int64_t places[PIECE], expected = 0;
    const int64_t first_place = HEADER_BYTES + index->sequences * LENGTH_BYTES;
    for (int64_t done = 0; done < index->sequences; done += PIECE) {
        int64_t rest = index->sequences - done, now = rest < PIECE ? rest : PIECE;
        PL_TRY(pl_file_read(index->descriptor, index->path, HEADER_BYTES + done * LENGTH_BYTES,
                            now * LENGTH_BYTES, lengths));
        PL_TRY(pl_file_read(index->descriptor, index->path, first_place + done * PLACE_BYTES,
                            now * PLACE_BYTES, places));
        for (int64_t i = 0; i < now; ++i) {
            PL_TRY(check_sequence(index, done + i, lengths[i], places[i], expected));
            expected += lengths[i] * width;
            if (expected > data_bytes) /* here, so that it cannot grow until it overflows */
                return PL_FAIL(PL_BAD_INPUT,
                               "%s: sequence %" PRId64 " goes beyond the end of %s, which has "
                               "%" PRId64 " bytes",
                               index->path, done + i, index->bin, data_bytes);
        }
    }
    if (expected < data_bytes)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: its sequences end at byte %" PRId64 " of %s, which has %" PRId64
                       " bytes",
                       index->path, expected, index->bin, data_bytes);
    return PL_OK;
}

/* Entries begin with sequence 0, do not fall, and end with the number of sequences. */
static pl_status check_documents(const index_file *index)
{
    int64_t entries[PIECE], before = 0;
    const int64_t first = HEADER_BYTES + index->sequences * (LENGTH_BYTES + PLACE_BYTES);
    for (int64_t done = 0; done < index->documents; done += PIECE) {
        int64_t rest = index->documents - done, now = rest < PIECE ? rest : PIECE;
        PL_TRY(pl_file_read(index->descriptor, index->path, first + done * PLACE_BYTES,
                            now * PLACE_BYTES, entries));
        for (int64_t i = 0; i < now; ++i) {
            bool begins = done + i > 0 || entries[i] == 0;
            if (!begins || entries[i] < before || entries[i] > index->sequences)
                return PL_FAIL(PL_BAD_INPUT,
                               "%s: document entry %" PRId64 " is %" PRId64
                               "; allowed: 0 first, then from %" PRId64 " to %" PRId64,
                               index->path, done + i, entries[i], before, index->sequences);
            before = entries[i];
        }
    }
    if (index->documents == 0 || before != index->sequences)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: %" PRId64 " document entries, the last of which is %" PRId64
                       "; it should be the number of sequences, %" PRId64,
                       index->path, index->documents, before, index->sequences);
    return PL_OK;
}

static pl_status read_index(pl_tokens_file *out, index_file *index, int64_t data_bytes)
{
    char header[HEADER_BYTES];
    if (index->bytes < HEADER_BYTES)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: %" PRId64 " bytes; an index of Megatron's has at least %d", index->path,
                       index->bytes, HEADER_BYTES);
    PL_TRY(pl_file_read(index->descriptor, index->path, 0, HEADER_BYTES, header));
    PL_TRY(check_magic(index, header));
    PL_TRY(element_type(out, index, (unsigned char)header[MAGIC_BYTES + 8]));
    PL_TRY(check_counts(index, header));
    PL_TRY(check_sequences(index, out->width, data_bytes));
    PL_TRY(check_documents(index));
    out->kind = PL_TOKENS_MEGATRON;
    out->offset = 0;
    out->count = data_bytes / out->width;
    return PL_OK;
}

pl_status pl_tokens_read_index(pl_tokens_file *out, const char *path, const char *bin,
                               int64_t bytes)
{
    index_file index = {.path = path, .bin = bin, .descriptor = -1};
    PL_TRY(pl_file_open(&index.descriptor, &index.bytes, path));
    pl_status status = read_index(out, &index, bytes);
    close(index.descriptor);
    return status;
}
