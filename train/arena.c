#include "train/arena.h"

#include <inttypes.h>
#include <string.h>

#include "common/memory.h"

/* A chunk is at least this large, and at least a quarter of what is held up to the second. */
static const int64_t least_chunk = INT64_C(1) << 20, most_slack = INT64_C(256) << 20;

/* --- places in the table of blocks --- */

static void push(pl_arena *arena, int32_t *head, int32_t number)
{
    pl_arena_block *block = &arena->blocks[number];
    block->previous = PL_ARENA_NO_BLOCK;
    block->next = *head;
    if (*head != PL_ARENA_NO_BLOCK) arena->blocks[*head].previous = number;
    *head = number;
}

static void unlink_from(pl_arena *arena, int32_t *head, int32_t number)
{
    const pl_arena_block *block = &arena->blocks[number];
    if (block->previous == PL_ARENA_NO_BLOCK)
        *head = block->next;
    else
        arena->blocks[block->previous].next = block->next;
    if (block->next != PL_ARENA_NO_BLOCK) arena->blocks[block->next].previous = block->previous;
}

static void give_place(pl_arena *arena, int32_t number)
{
    memset(&arena->blocks[number], 0, sizeof *arena->blocks);
    push(arena, &arena->unused, number);
}

/* Make sure that two places can be taken: one for a chunk, one for what a cut leaves. */
static pl_status reserve_places(pl_arena *arena)
{
    int found = 0;
    if (!arena->lists) arena->free = arena->unused = PL_ARENA_NO_BLOCK;
    arena->lists = true;
    for (int32_t i = arena->unused; i != PL_ARENA_NO_BLOCK && found < 2; ++found)
        i = arena->blocks[i].next;
    for (; found < 2; ++found) {
        if (arena->block_count >= INT32_MAX)
            return PL_FAIL(PL_NO_MEMORY, "more than %" PRId32 " blocks of memory", INT32_MAX);
        PL_TRY(pl_grow(&arena->blocks, &arena->block_capacity, arena->block_count + 1,
                       sizeof *arena->blocks, "blocks of memory"));
        give_place(arena, (int32_t)arena->block_count++);
    }
    return PL_OK;
}

static int32_t take_place(pl_arena *arena)
{
    int32_t number = arena->unused;
    unlink_from(arena, &arena->unused, number);
    memset(&arena->blocks[number], 0, sizeof *arena->blocks);
    return number;
}

/* --- lending --- */

static int32_t best_fit(const pl_arena *arena, int64_t bytes)
{
    int32_t best = PL_ARENA_NO_BLOCK;
    for (int32_t i = arena->free; i != PL_ARENA_NO_BLOCK; i = arena->blocks[i].next) {
        if (arena->blocks[i].bytes < bytes) continue;
        if (best == PL_ARENA_NO_BLOCK || arena->blocks[i].bytes < arena->blocks[best].bytes ||
            (arena->blocks[i].bytes == arena->blocks[best].bytes &&
             arena->blocks[i].start < arena->blocks[best].start))
            best = i;
    }
    return best;
}

/* A new chunk for BYTES: with room for more if the source has it. */
static pl_status add_chunk(pl_arena *arena, int64_t bytes)
{
    int64_t wanted = arena->held / 4 < most_slack ? arena->held / 4 : most_slack;
    if (wanted < least_chunk) wanted = least_chunk;
    wanted -= wanted % PL_ARENA_ALIGNMENT;
    void *memory = NULL;
    pl_status status = PL_NO_MEMORY;
    if (wanted > bytes) status = arena->source.allocate(arena->source.context, &memory, wanted);
    if (status == PL_NO_MEMORY) {
        wanted = bytes;
        status = arena->source.allocate(arena->source.context, &memory, wanted);
    }
    PL_TRY(status);
    int32_t number = take_place(arena);
    pl_arena_block *block = &arena->blocks[number];
    block->start = memory;
    block->bytes = wanted;
    block->before = block->behind = PL_ARENA_NO_BLOCK;
    push(arena, &arena->free, number);
    arena->held += wanted;
    return PL_OK;
}

/* Leave BYTES in block NUMBER and make a free block of the rest. */
static void cut(pl_arena *arena, int32_t number, int64_t bytes)
{
    if (arena->blocks[number].bytes == bytes) return;
    int32_t rest_number = take_place(arena);
    pl_arena_block *block = &arena->blocks[number], *rest = &arena->blocks[rest_number];
    rest->start = block->start + bytes;
    rest->bytes = block->bytes - bytes;
    rest->after = block->after;
    rest->before = number;
    rest->behind = block->behind;
    if (rest->behind != PL_ARENA_NO_BLOCK) arena->blocks[rest->behind].before = rest_number;
    block->behind = rest_number;
    block->bytes = bytes;
    push(arena, &arena->free, rest_number);
}

pl_status pl_arena_allocate(pl_arena *arena, int64_t bytes, pl_arena_grant *out)
{
    int64_t rounded = 0;
    memset(out, 0, sizeof *out);
    out->block = PL_ARENA_NO_BLOCK;
    if (bytes == 0) return PL_OK;
    PL_TRY(pl_add(&rounded, bytes, PL_ARENA_ALIGNMENT - 1, "bytes of a block"));
    rounded -= rounded % PL_ARENA_ALIGNMENT;
    PL_TRY(reserve_places(arena));
    int32_t number = best_fit(arena, rounded);
    if (number == PL_ARENA_NO_BLOCK) {
        PL_TRY(add_chunk(arena, rounded));
        number = best_fit(arena, rounded);
    }
    unlink_from(arena, &arena->free, number);
    cut(arena, number, rounded);
    pl_arena_block *block = &arena->blocks[number];
    block->used = true;
    arena->used += rounded;
    if (arena->used > arena->most) arena->most = arena->used;
    *out = (pl_arena_grant){block->start, number, block->after};
    return PL_OK;
}

/* --- taking back --- */

static void join(pl_arena *arena, int32_t number, int32_t behind)
{
    pl_arena_block *block = &arena->blocks[number], *other = &arena->blocks[behind];
    block->bytes += other->bytes;
    for (int i = 0; i < PL_STREAM_COUNT; ++i)
        if (other->after.of[i] > block->after.of[i]) block->after.of[i] = other->after.of[i];
    block->behind = other->behind;
    if (block->behind != PL_ARENA_NO_BLOCK) arena->blocks[block->behind].before = number;
    give_place(arena, behind);
}

static bool is_free(const pl_arena *arena, int32_t number)
{
    return number != PL_ARENA_NO_BLOCK && !arena->blocks[number].used;
}

void pl_arena_free(pl_arena *arena, int32_t block, const pl_ticks *after)
{
    if (block == PL_ARENA_NO_BLOCK) return;
    pl_arena_block *own = &arena->blocks[block];
    arena->used -= own->bytes;
    own->used = false;
    own->after = *after;
    int32_t before = own->before, behind = own->behind;
    if (is_free(arena, behind)) {
        unlink_from(arena, &arena->free, behind);
        join(arena, block, behind);
    }
    if (is_free(arena, before))
        join(arena, before, block);
    else
        push(arena, &arena->free, block);
}

void pl_arena_forget(pl_arena *arena)
{
    if (!arena->lists) return;
    for (int32_t i = arena->free; i != PL_ARENA_NO_BLOCK; i = arena->blocks[i].next)
        memset(&arena->blocks[i].after, 0, sizeof arena->blocks[i].after);
}

void pl_arena_trim(pl_arena *arena)
{
    if (!arena->lists) return;
    for (int32_t i = arena->free, next; i != PL_ARENA_NO_BLOCK; i = next) {
        pl_arena_block *block = &arena->blocks[i];
        next = block->next;
        if (block->before != PL_ARENA_NO_BLOCK || block->behind != PL_ARENA_NO_BLOCK) continue;
        arena->source.release(arena->source.context, block->start);
        arena->held -= block->bytes;
        unlink_from(arena, &arena->free, i);
        give_place(arena, i);
    }
}

void pl_arena_close(pl_arena *arena)
{
    for (size_t i = 0; i < arena->block_count; ++i) {
        pl_arena_block *block = &arena->blocks[i];
        if (block->bytes > 0 && block->before == PL_ARENA_NO_BLOCK)
            arena->source.release(arena->source.context, block->start);
    }
    pl_free(arena->blocks);
    arena->blocks = NULL;
    arena->block_count = arena->block_capacity = 0;
    arena->lists = false;
    arena->held = arena->used = 0;
}
