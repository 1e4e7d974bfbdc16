/* The hash of checkpoints: XXH3-64 with seed 0, written as 16 hexadecimal digits. */
#ifndef PL_CKPT_MANIFEST_HASH_H
#define PL_CKPT_MANIFEST_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { PL_HASH_DIGITS = 16, PL_HASH_TEXT = PL_HASH_DIGITS + 1 };

uint64_t pl_hash(const void *bytes, size_t count);

/* Of two hashes together, in that order: of their 16 bytes, each little-endian. */
uint64_t pl_hash_pair(uint64_t first, uint64_t second);

/* HASH in BUFFER of PL_HASH_TEXT bytes, lower case. Returns BUFFER. */
const char *pl_hash_print(uint64_t hash, char *buffer);

/* Read exactly PL_HASH_DIGITS lower-case digits and the end of TEXT. False when it is not that. */
bool pl_hash_parse(uint64_t *out, const char *text);

/* A hash over bytes that come piece by piece. The caller lets it go with pl_hash_end. */
typedef struct pl_hash_stream pl_hash_stream;
pl_hash_stream *pl_hash_begin(void); /* NULL: out of memory */
void pl_hash_add(pl_hash_stream *stream, const void *bytes, size_t count);
uint64_t pl_hash_so_far(const pl_hash_stream *stream);
void pl_hash_end(pl_hash_stream *stream); /* NULL is allowed */

/* A 64-bit number as eight bytes, the lowest first, and back. */
void pl_put_little_endian(void *to, uint64_t number);
uint64_t pl_get_little_endian(const void *from);

#ifdef __cplusplus
}
#endif
#endif
