#include "train/tokens_file.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file_bytes.h"
#include "common/text.h"
#include "train/tokens.h"

enum {
    LLM_C_HEADER = 256 * 4,
    LLM_C_GPT2 = 20240520,  /* version 1, uint16 */
    LLM_C_LLAMA = 20240801, /* version 7, uint32 */
    START = 16,             /* bytes that tell kinds apart */
    PIECE = 4096            /* bytes that are turned into tokens at a time */
};

static const char index_magic[] = "MMIDIDX";

static bool ends_with(const char *path, const char *ending)
{
    size_t length = strlen(path), wanted = strlen(ending);
    return length >= wanted && strcmp(path + length - wanted, ending) == 0;
}

/* PATH, which ends in a dot and three letters, with another ending. */
static pl_status with_ending(pl_text *out, const char *path, const char *ending)
{
    pl_text_add_bytes(out, path, strlen(path) - strlen(ending));
    pl_text_add_string(out, ending);
    return pl_text_status(out);
}

static bool is_llm_c(const char *start)
{
    int32_t magic = 0;
    memcpy(&magic, start, sizeof magic);
    return magic == LLM_C_GPT2 || magic == LLM_C_LLAMA;
}

static pl_status read_llm_c(pl_tokens_file *out, int descriptor)
{
    int32_t header[3] = {0};
    if (out->bytes < LLM_C_HEADER)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: %" PRId64 " bytes; the header of a token file of llm.c has %d",
                       out->path, out->bytes, LLM_C_HEADER);
    PL_TRY(pl_file_read(descriptor, out->path, 0, sizeof header, header));
    bool short_tokens = header[0] == LLM_C_GPT2;
    int32_t version = short_tokens ? 1 : 7;
    if (header[1] != version)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: version %" PRId32 "; with magic %" PRId32 " llm.c writes %" PRId32,
                       out->path, header[1], header[0], version);
    out->kind = PL_TOKENS_LLM_C;
    out->offset = LLM_C_HEADER;
    out->width = short_tokens ? 2 : 4;
    out->count = header[2];
    if (out->bytes - LLM_C_HEADER != out->count * out->width)
        return PL_FAIL(PL_BAD_INPUT,
                       "%s: its header counts %" PRId32 " tokens of %" PRId64 " bytes, and %" PRId64
                       " bytes stand behind it",
                       out->path, header[2], out->width, out->bytes - LLM_C_HEADER);
    return PL_OK;
}

/* A .bin: by the index beside it, or by its own beginning. */
static pl_status open_bin(pl_tokens_file *out, int descriptor, const char *start)
{
    struct stat info;
    pl_text index = {0};
    pl_status status = with_ending(&index, out->path, ".idx");
    const char *index_path = pl_text_string(&index);
    if (status == PL_OK && stat(index_path, &info) == 0)
        status = pl_tokens_read_index(out, index_path, out->path, out->bytes);
    else if (status == PL_OK && is_llm_c(start))
        status = read_llm_c(out, descriptor);
    else if (status == PL_OK)
        status = PL_FAIL(PL_BAD_INPUT,
                         "%s: neither a token file of llm.c (magic %d or %d in its first 4 bytes) "
                         "nor one of Megatron's (%s is not there); plain text may not be named "
                         "*.bin",
                         out->path, LLM_C_GPT2, LLM_C_LLAMA, index_path);
    pl_text_free(&index);
    if (status == PL_OK && out->count == 0)
        return PL_FAIL(PL_BAD_INPUT, "%s: it holds no tokens", out->path);
    return status;
}

/* An index goes with its data and is no text. */
static pl_status check_index(const pl_walked_file *walked)
{
    struct stat info;
    pl_text bin = {0};
    pl_status status = with_ending(&bin, walked->path, ".bin");
    const char *bin_path = pl_text_string(&bin);
    if (status == PL_OK && stat(bin_path, &info) != 0)
        status = PL_FAIL(PL_BAD_INPUT, "%s: an index of Megatron's without its data: %s is missing",
                         walked->path, bin_path);
    else if (status == PL_OK && walked->named)
        status = PL_FAIL(PL_BAD_INPUT, "%s: an index of Megatron's; name its data, %s",
                         walked->path, bin_path);
    pl_text_free(&bin);
    return status;
}

static pl_status open_text(pl_tokens_file *out, const char *start)
{
    if (is_llm_c(start) || memcmp(start, index_magic, sizeof index_magic) == 0)
        return PL_FAIL(PL_BAD_INPUT, "%s: it begins like %s and is not named *.%s", out->path,
                       is_llm_c(start) ? "a token file of llm.c" : "an index of Megatron's",
                       is_llm_c(start) ? "bin" : "idx");
    out->kind = PL_TOKENS_TEXT;
    out->width = 1;
    out->count = out->bytes + 1;
    return PL_OK;
}

static pl_status open_kind(pl_tokens_file *out, bool *used_out, const pl_walked_file *walked,
                           int descriptor)
{
    char start[START] = {0};
    PL_TRY(pl_file_read(descriptor, out->path, 0, out->bytes < START ? out->bytes : START, start));
    *used_out = true;
    if (ends_with(out->path, ".bin")) return open_bin(out, descriptor, start);
    if (ends_with(out->path, ".idx") && memcmp(start, index_magic, sizeof index_magic) == 0) {
        *used_out = false;
        return check_index(walked);
    }
    return open_text(out, start);
}

pl_status pl_tokens_file_open(pl_tokens_file *out, bool *used_out, const pl_walked_file *walked)
{
    int descriptor = -1;
    pl_tokens_file file = {.path = walked->path};
    PL_TRY(pl_file_open(&descriptor, &file.bytes, file.path));
    pl_status status = open_kind(&file, used_out, walked, descriptor);
    close(descriptor);
    if (status == PL_OK) *out = file;
    return status;
}

/* Element I of BYTES; what needs more than 63 bits is negative. */
static int64_t element(const pl_tokens_file *file, const char *bytes, int64_t i)
{
    uint64_t value = 0;
    int unused = 64 - 8 * (int)file->width;
    memcpy(&value, bytes + i * file->width, (size_t)file->width);
    if (!file->is_signed) return (int64_t)value;
    return (int64_t)(value << unused) >> unused;
}

static pl_status convert(const pl_tokens_file *file, const char *bytes, int64_t first,
                         int64_t count, int64_t vocabulary, int32_t *out)
{
    for (int64_t i = 0; i < count; ++i) {
        int64_t token = element(file, bytes, i);
        if (token < 0 || token >= vocabulary)
            return PL_FAIL(PL_BAD_INPUT,
                           "%s: token %" PRId64 " (at byte %" PRId64 ") is %" PRId64
                           "; allowed: 0 to %" PRId64 ", the model's vocab_size being %" PRId64,
                           file->path, first + i, file->offset + (first + i) * file->width, token,
                           vocabulary - 1, vocabulary);
        out[i] = (int32_t)token;
    }
    return PL_OK;
}

static pl_status read_elements(const pl_tokens_file *file, int descriptor, int64_t first,
                               int64_t count, int64_t vocabulary, int32_t *out)
{
    char piece[PIECE];
    const int64_t most = PIECE / file->width;
    for (int64_t done = 0; done < count; done += most) {
        int64_t now = count - done < most ? count - done : most;
        PL_TRY(pl_file_read(descriptor, file->path, file->offset + (first + done) * file->width,
                            now * file->width, piece));
        PL_TRY(convert(file, piece, first + done, now, vocabulary, out + done));
    }
    return PL_OK;
}

pl_status pl_tokens_file_read(const pl_tokens_file *file, int64_t first, int64_t count,
                              int64_t vocabulary, int32_t *out)
{
    int descriptor = -1;
    int64_t bytes = 0, stored = count;
    if (file->kind == PL_TOKENS_TEXT && first + count == file->count) {
        out[count - 1] = PL_END_OF_DOCUMENT;
        --stored;
    }
    if (stored == 0) return PL_OK;
    pl_status status = pl_file_open(&descriptor, &bytes, file->path);
    if (status == PL_BAD_INPUT) {
        pl_error_context("it could be read when the run began");
        return PL_IO_FAILED;
    }
    PL_TRY(status);
    if (bytes == file->bytes)
        status = read_elements(file, descriptor, first, stored, vocabulary, out);
    else
        status = PL_FAIL(PL_IO_FAILED,
                         "%s: %" PRId64 " bytes, and %" PRId64
                         " when the run began: data may not change during a run",
                         file->path, bytes, file->bytes);
    close(descriptor);
    return status;
}
