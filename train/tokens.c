#include "train/tokens.h"

#include <inttypes.h>
#include <math.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/memory.h"
#include "common/text.h"
#include "train/folder_walk.h"
#include "train/tokens_file.h"

struct pl_tokens {
    pl_walk walk; /* owns the paths */
    pl_tokens_file *files;
    int64_t *ends; /* [file_count] tokens of the stream up to and with the file */
    int64_t file_count;
    int64_t vocabulary;
};

/* Tokens that are counted at a time. */
enum { PIECE = 1 << 14 };

void pl_tokens_describe(pl_text *text)
{
    pl_text_add_string(
        text,
        "| File | Kind | Tokens |\n|---|---|---|\n"
        "| `NAME.bin` with a `NAME.idx` beside it | Megatron's indexed data | those of all "
        "sequences in order; element types 1 (u8), 2 (i8), 3 (i16), 4 (i32), 5 (i64), 8 (u16) |\n"
        "| `NAME.bin` that begins with 20240520, version 1 | llm.c's | uint16 behind 256 "
        "int32, the third of which counts them |\n"
        "| `NAME.bin` that begins with 20240801, version 7 | llm.c's | the same with uint32 |\n"
        "| any other name, and not the beginning of one of those | plain text | a byte is a token, "
        "0 to 255; 256 stands behind every file |\n");
}

static pl_status add_file(pl_tokens *tokens, const pl_walked_file *walked)
{
    bool used = false;
    pl_tokens_file *file = &tokens->files[tokens->file_count];
    int64_t before = tokens->file_count > 0 ? tokens->ends[tokens->file_count - 1] : 0;
    PL_TRY(pl_tokens_file_open(file, &used, walked));
    if (!used) return PL_OK;
    if (file->kind == PL_TOKENS_TEXT && tokens->vocabulary < PL_BYTE_TOKENS)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: plain text has %d different tokens (256 bytes and the end of a "
                       "document), and the model's vocab_size is %" PRId64,
                       file->path, PL_BYTE_TOKENS, tokens->vocabulary);
    PL_TRY(pl_add(&tokens->ends[tokens->file_count], before, file->count, "tokens of all files"));
    ++tokens->file_count;
    return PL_OK;
}

static pl_status open_files(pl_tokens *tokens, const char *const *paths, size_t count)
{
    PL_TRY(pl_walk_paths(&tokens->walk, paths, count));
    size_t room = tokens->walk.count;
    PL_TRY(pl_allocate(&tokens->files, room, sizeof *tokens->files, "files of tokens"));
    PL_TRY(pl_allocate(&tokens->ends, room, sizeof *tokens->ends, "ends of files of tokens"));
    for (size_t i = 0; i < room; ++i) PL_TRY(add_file(tokens, &tokens->walk.files[i]));
    return PL_OK;
}

pl_status pl_tokens_open(pl_tokens **out, const char *const *paths, size_t count,
                         int64_t vocabulary)
{
    pl_tokens *tokens = NULL;
    if (count == 0) return PL_FAIL(PL_BAD_INPUT, "no file or folder with data is named");
    PL_TRY(pl_allocate(&tokens, 1, sizeof *tokens, "tokens"));
    tokens->vocabulary = vocabulary;
    pl_status status = open_files(tokens, paths, count);
    if (status == PL_OK)
        *out = tokens;
    else
        pl_tokens_close(tokens);
    return status;
}

void pl_tokens_close(pl_tokens *tokens)
{
    if (!tokens) return;
    pl_walk_free(&tokens->walk);
    pl_free(tokens->files);
    pl_free(tokens->ends);
    pl_free(tokens);
}

int64_t pl_tokens_count(const pl_tokens *tokens)
{
    return tokens->file_count > 0 ? tokens->ends[tokens->file_count - 1] : 0;
}

int64_t pl_tokens_files(const pl_tokens *tokens) { return tokens->file_count; }

bool pl_tokens_are_text(const pl_tokens *tokens)
{
    for (int64_t i = 0; i < tokens->file_count; ++i)
        if (tokens->files[i].kind != PL_TOKENS_TEXT) return false;
    return true;
}

const char *pl_tokens_notes(const pl_tokens *tokens) { return pl_text_string(&tokens->walk.notes); }

/* The file that holds token NUMBER of the stream: the first that ends behind it. */
static int64_t file_of(const pl_tokens *tokens, int64_t number)
{
    int64_t low = 0, high = tokens->file_count - 1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (tokens->ends[middle] > number)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

pl_status pl_tokens_read(const pl_tokens *tokens, int64_t first, int64_t count, int32_t *out)
{
    int64_t total = pl_tokens_count(tokens);
    if (first < 0 || count < 0 || first > total || count > total - first)
        return PL_FAIL(PL_INTERNAL, "%" PRId64 " tokens from %" PRId64 " of %" PRId64, count, first,
                       total);
    if (count == 0) return PL_OK;
    for (int64_t f = file_of(tokens, first); count > 0; ++f) {
        const pl_tokens_file *file = &tokens->files[f];
        int64_t start = first - (tokens->ends[f] - file->count);
        int64_t rest = file->count - start, now = count < rest ? count : rest;
        PL_TRY(pl_tokens_file_read(file, start, now, tokens->vocabulary, out));
        first += now;
        count -= now;
        out += now;
    }
    return PL_OK;
}

static pl_status count_tokens(const pl_tokens *tokens, int64_t first, int64_t count,
                              int64_t *counts)
{
    int32_t *piece = NULL;
    pl_status status = pl_allocate(&piece, PIECE, sizeof *piece, "tokens to count");
    while (status == PL_OK && count > 0) {
        int64_t now = count < PIECE ? count : PIECE;
        status = pl_tokens_read(tokens, first, now, piece);
        for (int64_t i = 0; status == PL_OK && i < now; ++i) ++counts[piece[i]];
        first += now;
        count -= now;
    }
    pl_free(piece);
    return status;
}

pl_status pl_tokens_entropy(const pl_tokens *tokens, int64_t first, int64_t count, double *nats_out)
{
    int64_t *counts = NULL;
    double nats = 0;
    if (count <= 0) return PL_FAIL(PL_INTERNAL, "entropy of no tokens");
    PL_TRY(pl_allocate(&counts, (size_t)tokens->vocabulary, sizeof *counts, "counts of tokens"));
    pl_status status = count_tokens(tokens, first, count, counts);
    for (int64_t v = 0; status == PL_OK && v < tokens->vocabulary; ++v) {
        double part = (double)counts[v] / (double)count;
        if (counts[v] > 0) nats -= part * log(part);
    }
    pl_free(counts);
    if (status == PL_OK) *nats_out = nats;
    return status;
}

uint64_t pl_tokens_fingerprint(const pl_tokens *tokens)
{
    uint64_t fingerprint = 0;
    for (int64_t f = 0; f < tokens->file_count; ++f) {
        const pl_tokens_file *file = &tokens->files[f];
        const int64_t facts[4] = {(int64_t)file->kind, file->bytes, file->width, file->count};
        fingerprint = XXH3_64bits_withSeed(facts, sizeof facts, fingerprint);
    }
    return fingerprint;
}
