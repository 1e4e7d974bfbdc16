#include "ckpt/manifest_hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/memory.h"

uint64_t pl_hash(const void *bytes, size_t count) { return XXH3_64bits(bytes, count); }

uint64_t pl_hash_pair(uint64_t first, uint64_t second)
{
    unsigned char both[16];
    pl_put_little_endian(both, first);
    pl_put_little_endian(both + 8, second);
    return pl_hash(both, sizeof both);
}

const char *pl_hash_print(uint64_t hash, char *buffer)
{
    snprintf(buffer, PL_HASH_TEXT, "%016" PRIx64, hash);
    return buffer;
}

bool pl_hash_parse(uint64_t *out, const char *text)
{
    static const char digits[] = "0123456789abcdef";
    uint64_t hash = 0;
    if (strlen(text) != PL_HASH_DIGITS) return false;
    for (int i = 0; i < PL_HASH_DIGITS; ++i) {
        const char *digit = strchr(digits, text[i]);
        if (!digit) return false;
        hash = hash << 4 | (uint64_t)(digit - digits);
    }
    *out = hash;
    return true;
}

/* The library's state wants to stand at a multiple of 64 bytes. */
enum { STATE_ALIGNMENT = 64 };

struct pl_hash_stream {
    XXH3_state_t *state;
    char room[sizeof(XXH3_state_t) + STATE_ALIGNMENT];
};

pl_hash_stream *pl_hash_begin(void)
{
    pl_hash_stream *stream = NULL;
    if (pl_allocate(&stream, 1, sizeof *stream, "a hash") != PL_OK) return NULL;
    uintptr_t room = (uintptr_t)stream->room;
    size_t skipped = (STATE_ALIGNMENT - room % STATE_ALIGNMENT) % STATE_ALIGNMENT;
    stream->state = (XXH3_state_t *)(void *)(stream->room + skipped);
    (void)XXH3_64bits_reset(stream->state);
    return stream;
}

void pl_hash_add(pl_hash_stream *stream, const void *bytes, size_t count)
{
    (void)XXH3_64bits_update(stream->state, bytes, count);
}

uint64_t pl_hash_so_far(const pl_hash_stream *stream) { return XXH3_64bits_digest(stream->state); }

void pl_hash_end(pl_hash_stream *stream) { pl_free(stream); }

void pl_put_little_endian(void *to, uint64_t number)
{
    unsigned char *bytes = to;
    for (int i = 0; i < 8; ++i) bytes[i] = (unsigned char)(number >> (8 * i));
}

uint64_t pl_get_little_endian(const void *from)
{
    const unsigned char *bytes = from;
    uint64_t number = 0;
    for (int i = 0; i < 8; ++i) number |= (uint64_t)bytes[i] << (8 * i);
    return number;
}
