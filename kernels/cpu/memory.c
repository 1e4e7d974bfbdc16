#define _DEFAULT_SOURCE /* madvise */

#include "kernels/cpu/memory.h"

#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#include "common/memory.h"

#if defined(__SANITIZE_ADDRESS__)
#define KEPT_MEMORY_IS_POISONED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KEPT_MEMORY_IS_POISONED 1
#endif
#endif
#ifdef KEPT_MEMORY_IS_POISONED
#include <sanitizer/asan_interface.h>
#endif

enum { ALIGNMENT = 256, STEP = 4096, HUGE_PAGE = 2 << 20, LARGE = 2 * HUGE_PAGE };

/* Stands in the ALIGNMENT bytes before the memory that is given out. */
typedef struct block {
    void *start; /* of the allocation */
    int64_t bytes;
} block;

typedef struct kept_block {
    int64_t bytes;
    block *at;
} kept_block;

struct pl_cpu_memory {
    kept_block *kept; /* those let go last are last: their pages are likely to be in a cache */
    size_t kept_count, kept_capacity;
    int64_t used, most_used, kept_bytes;
};

static char *memory_of(block *given) { return (char *)given + ALIGNMENT; }

/* For the address sanitizer: only the first USABLE bytes of GIVEN may be touched. */
static void allow(block *given, int64_t usable)
{
#ifdef KEPT_MEMORY_IS_POISONED
    ASAN_POISON_MEMORY_REGION(memory_of(given), (size_t)given->bytes);
    ASAN_UNPOISON_MEMORY_REGION(memory_of(given), (size_t)usable);
#else
    (void)given;
    (void)usable;
#endif
}

static void free_block(block *freed)
{
    allow(freed, freed->bytes);
    pl_free(freed->start);
}

static void free_kept(pl_cpu_memory *memory)
{
    for (size_t i = 0; i < memory->kept_count; ++i) free_block(memory->kept[i].at);
    memory->kept_count = 0;
    memory->kept_bytes = 0;
}

pl_status pl_cpu_memory_open(pl_cpu_memory **out)
{
    return pl_allocate(out, 1, sizeof **out, "a device's list of memory");
}

void pl_cpu_memory_close(pl_cpu_memory *memory)
{
    if (!memory) return;
    free_kept(memory);
    pl_free(memory->kept);
    pl_free(memory);
}

/* The smallest kept block of at least BYTES, the latest of these, that wastes no more than a
 * quarter. */
static block *take_kept(pl_cpu_memory *memory, int64_t bytes)
{
    size_t best = memory->kept_count;
    for (size_t i = memory->kept_count; i-- > 0;) {
        int64_t size = memory->kept[i].bytes;
        if (size < bytes || size - bytes > bytes / 4) continue;
        if (best == memory->kept_count || size < memory->kept[best].bytes) best = i;
        if (size == bytes) break;
    }
    if (best == memory->kept_count) return NULL;
    block *taken = memory->kept[best].at;
    size_t behind = --memory->kept_count - best;
    memmove(&memory->kept[best], &memory->kept[best + 1], behind * sizeof *memory->kept);
    memory->kept_bytes -= taken->bytes;
    return taken;
}

/* What is in use and kept when BYTES more are used. */
static bool within_bound(const pl_cpu_memory *memory, int64_t more)
{
    int64_t used = memory->used + more;
    int64_t most = used > memory->most_used ? used : memory->most_used;
    return used + memory->kept_bytes <= most + most / 2;
}

static void drop_oldest(pl_cpu_memory *memory)
{
    block *oldest = memory->kept[0].at;
    size_t behind = --memory->kept_count;
    memmove(&memory->kept[0], &memory->kept[1], behind * sizeof *memory->kept);
    memory->kept_bytes -= oldest->bytes;
    free_block(oldest);
}

static pl_status make_block(pl_cpu_memory *memory, block **out, int64_t bytes, const char *what)
{
    int64_t padded = 0;
    char *start = NULL;
    bool huge = bytes >= LARGE;
    size_t alignment = huge ? HUGE_PAGE : ALIGNMENT;
    PL_TRY(pl_add(&padded, bytes, (int64_t)alignment + ALIGNMENT, what));
    pl_status status = pl_allocate(&start, (size_t)padded, 1, what);
    if (status != PL_OK && memory->kept_count > 0) {
        free_kept(memory);
        status = pl_allocate(&start, (size_t)padded, 1, what);
    }
    PL_TRY(status);
    uintptr_t first = (uintptr_t)start + ALIGNMENT;
    char *given = start + ALIGNMENT + (alignment - first % alignment) % alignment;
    if (huge) (void)madvise(given, (size_t)(bytes - bytes % HUGE_PAGE), MADV_HUGEPAGE);
    block *made = (block *)(void *)(given - ALIGNMENT);
    made->start = start;
    made->bytes = bytes;
    *out = made;
    return PL_OK;
}

pl_status pl_cpu_memory_allocate(pl_cpu_memory *memory, void **out, int64_t bytes, const char *what)
{
    if (bytes < 0) return PL_FAIL(PL_BAD_INPUT, "%s: a negative number of bytes", what);
    if (bytes == 0) {
        *out = NULL;
        return PL_OK;
    }
    int64_t rounded = 0;
    PL_TRY(pl_add(&rounded, bytes, STEP - 1, what));
    rounded -= rounded % STEP;
    block *given = take_kept(memory, rounded);
    if (!given) {
        while (memory->kept_count > 0 && !within_bound(memory, rounded)) drop_oldest(memory);
        PL_TRY(make_block(memory, &given, rounded, what));
    }
    allow(given, bytes);
    memory->used += given->bytes;
    if (memory->used > memory->most_used) memory->most_used = memory->used;
    *out = memory_of(given);
    return PL_OK;
}

void pl_cpu_memory_release(pl_cpu_memory *memory, void *released)
{
    if (!released) return;
    block *given = (block *)(void *)((char *)released - ALIGNMENT);
    memory->used -= given->bytes;
    while (memory->kept_count > 0 && !within_bound(memory, given->bytes)) drop_oldest(memory);
    bool keep = within_bound(memory, given->bytes) &&
                pl_grow(&memory->kept, &memory->kept_capacity, memory->kept_count + 1,
                        sizeof *memory->kept, "a device's list of memory") == PL_OK;
    if (!keep) {
        free_block(given);
        return;
    }
    allow(given, 0);
    memory->kept[memory->kept_count++] = (kept_block){given->bytes, given};
    memory->kept_bytes += given->bytes;
}

int64_t pl_cpu_memory_used(const pl_cpu_memory *memory) { return memory->used; }

int64_t pl_cpu_memory_kept(const pl_cpu_memory *memory) { return memory->kept_bytes; }
