/* The arena: memory lent in blocks out of chunks that are taken from a source (a device, or its
 * host memory). Bookkeeping is on the host, addresses are arithmetic: no block is ever followed.
 *
 * Best fit: the smallest free block that is large enough is cut; neighbours that are free join. A
 * free block remembers how far each stream must have come before it may be written again: the
 * entry that let it go. Who gets it is told, and has to wait for that.
 */
#ifndef PL_TRAIN_ARENA_H
#define PL_TRAIN_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/entry.h"
#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PL_ARENA_ALIGNMENT = 256, PL_ARENA_NO_BLOCK = -1 };

/* How far streams have come: for each a tick, a number that grows with every entry; 0 is before
 * the first. */
typedef struct pl_ticks {
    int64_t of[PL_STREAM_COUNT];
} pl_ticks;

/* Where chunks come from. */
typedef struct pl_arena_source {
    void *context;
    pl_status (*allocate)(void *context, void **out, int64_t bytes);
    void (*release)(void *context, void *memory);
} pl_arena_source;

typedef struct pl_arena_block {
    char *start;
    int64_t bytes;
    pl_ticks after;         /* of a free block */
    int32_t before, behind; /* neighbours in the chunk */
    int32_t previous, next; /* in the list of free blocks, or of unused places */
    bool used;
} pl_arena_block;

/* All zeroes but the source is an arena that holds nothing. */
typedef struct pl_arena {
    pl_arena_source source;
    pl_arena_block *blocks;
    size_t block_count, block_capacity;
    bool lists;               /* the heads below are set */
    int32_t free, unused;     /* heads of lists; PL_ARENA_NO_BLOCK */
    int64_t held, used, most; /* bytes: taken from the source; lent; most ever lent */
} pl_arena;

/* A block that was lent. */
typedef struct pl_arena_grant {
    void *memory;   /* aligned to PL_ARENA_ALIGNMENT if the source's is; NULL for no bytes */
    int32_t block;  /* for pl_arena_free */
    pl_ticks after; /* streams must have come this far before the block is written */
} pl_arena_grant;

/* Lend BYTES >= 0. Errors: PL_BAD_INPUT when they cannot be counted; PL_NO_MEMORY, or what the
 * source says. Nothing changes on failure. */
pl_status pl_arena_allocate(pl_arena *arena, int64_t bytes, pl_arena_grant *out);

/* Take BLOCK back; AFTER says when it may be written again. PL_ARENA_NO_BLOCK is allowed. */
void pl_arena_free(pl_arena *arena, int32_t block, const pl_ticks *after);

/* All streams have passed: no free block needs to be waited for. */
void pl_arena_forget(pl_arena *arena);

/* Give chunks of which nothing is lent back to the source. All streams must have passed. */
void pl_arena_trim(pl_arena *arena);

/* Give all chunks back, lent or not. */
void pl_arena_close(pl_arena *arena);

#ifdef __cplusplus
}
#endif
#endif
