/* The arena: blocks out of chunks, over a source that counts and can run dry. */
#include <stdlib.h>

#include "common/memory.h"
#include "tests/test.h"
#include "train/arena.h"

enum { CHUNKS = 64 };

/* A source whose addresses are numbers: whoever follows one crashes. */
typedef struct counter {
    int64_t held, limit;
    int chunks;
    uintptr_t next;
    struct {
        uintptr_t start;
        int64_t bytes;
    } chunk[CHUNKS];
} counter;

static pl_status take(void *context, void **out, int64_t bytes)
{
    counter *c = context;
    if (c->chunks == CHUNKS || c->held + bytes > c->limit)
        return PL_FAIL(PL_NO_MEMORY, "the source is dry");
    c->chunk[c->chunks].start = c->next;
    c->chunk[c->chunks++].bytes = bytes;
    c->held += bytes;
    *out = (void *)c->next;
    /* A page between two chunks, so that they can never join. */
    c->next += ((uintptr_t)bytes + 8191) / 4096 * 4096;
    return PL_OK;
}

static void give(void *context, void *memory)
{
    counter *c = context;
    for (int i = 0; i < c->chunks; ++i) {
        if (c->chunk[i].start != (uintptr_t)memory) continue;
        c->held -= c->chunk[i].bytes;
        c->chunk[i] = c->chunk[--c->chunks];
        return;
    }
    fail_msg("a chunk is given back that was never taken");
}

static counter make_counter(int64_t limit) { return (counter){.limit = limit, .next = 1 << 20}; }

static pl_arena make_arena(counter *c) { return (pl_arena){.source = {c, take, give}}; }

static const pl_ticks none = {{0}};

static pl_arena_grant lend(pl_arena *arena, int64_t bytes)
{
    pl_arena_grant grant;
    assert_ok(pl_arena_allocate(arena, bytes, &grant));
    return grant;
}

static void blocks_are_aligned_and_apart(void **state)
{
    (void)state;
    counter c = make_counter(INT64_MAX);
    pl_arena arena = make_arena(&c);
    pl_arena_grant a = lend(&arena, 1), b = lend(&arena, 257), nothing = lend(&arena, 0);
    assert_int_equal((uintptr_t)a.memory % PL_ARENA_ALIGNMENT, 0);
    assert_int_equal((uintptr_t)b.memory % PL_ARENA_ALIGNMENT, 0);
    assert_true((char *)b.memory >= (char *)a.memory + 256);
    assert_null(nothing.memory);
    assert_int_equal(nothing.block, PL_ARENA_NO_BLOCK);
    pl_arena_free(&arena, nothing.block, &none);
    assert_int_equal(arena.used, 256 + 512);
    pl_arena_free(&arena, a.block, &none);
    pl_arena_free(&arena, b.block, &none);
    assert_int_equal(arena.used, 0);
    assert_int_equal(arena.most, 768);
    pl_arena_close(&arena);
    assert_int_equal(c.held, 0);
}

static void neighbours_join_whatever_the_order(void **state)
{
    (void)state;
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int o = 0; o < 6; ++o) {
        counter c = make_counter(INT64_MAX);
        pl_arena arena = make_arena(&c);
        pl_arena_grant grant[3];
        for (int i = 0; i < 3; ++i) grant[i] = lend(&arena, 1024);
        for (int i = 0; i < 3; ++i) pl_arena_free(&arena, grant[orders[o][i]].block, &none);
        /* What the three were, and the rest of the chunk, is one block again. */
        int64_t whole = arena.held;
        pl_arena_grant all = lend(&arena, whole);
        assert_ptr_equal(all.memory, grant[0].memory);
        assert_int_equal(arena.held, whole);
        pl_arena_free(&arena, all.block, &none);
        pl_arena_trim(&arena);
        assert_int_equal(c.chunks, 0);
        pl_arena_close(&arena);
    }
}

static void the_smallest_block_that_fits_is_cut(void **state)
{
    (void)state;
    counter c = make_counter(INT64_MAX);
    pl_arena arena = make_arena(&c);
    pl_arena_grant large = lend(&arena, 4096), first = lend(&arena, 256);
    pl_arena_grant small = lend(&arena, 1024), second = lend(&arena, 256);
    pl_arena_free(&arena, large.block, &none);
    pl_arena_free(&arena, small.block, &none);
    assert_ptr_equal(lend(&arena, 1000).memory, small.memory);
    assert_ptr_equal(lend(&arena, 2048).memory, large.memory);
    (void)first;
    (void)second;
    pl_arena_close(&arena);
    assert_int_equal(c.held, 0);
}

static void a_block_remembers_who_let_it_go(void **state)
{
    (void)state;
    counter c = make_counter(INT64_MAX);
    pl_arena arena = make_arena(&c);
    pl_arena_grant a = lend(&arena, 256), b = lend(&arena, 256), rest = lend(&arena, 256);
    assert_memory_equal(&a.after, &none, sizeof none);
    pl_arena_free(&arena, a.block, &(pl_ticks){{7, 0, 0, 0}});
    pl_arena_free(&arena, b.block, &(pl_ticks){{3, 9, 0, 0}});
    /* Joined: after the later of both, on each stream. The cut keeps it on both sides. */
    pl_arena_grant again = lend(&arena, 256), other = lend(&arena, 256);
    assert_ptr_equal(again.memory, a.memory);
    assert_ptr_equal(other.memory, b.memory);
    assert_int_equal(again.after.of[0], 7);
    assert_int_equal(again.after.of[1], 9);
    assert_int_equal(other.after.of[0], 7);
    assert_int_equal(other.after.of[1], 9);
    pl_arena_free(&arena, again.block, &(pl_ticks){{11, 0, 0, 0}});
    pl_arena_forget(&arena);
    again = lend(&arena, 256);
    assert_memory_equal(&again.after, &none, sizeof none);
    (void)rest;
    pl_arena_close(&arena);
}

static void a_dry_source_is_asked_for_no_more_than_is_needed(void **state)
{
    (void)state;
    counter c = make_counter(4096);
    pl_arena arena = make_arena(&c);
    pl_arena_grant a = lend(&arena, 4000), none_left;
    assert_int_equal(c.held, 4096);
    assert_fails(PL_NO_MEMORY, pl_arena_allocate(&arena, 1, &none_left), "dry");
    assert_int_equal(arena.used, 4096);
    assert_int_equal(none_left.block, PL_ARENA_NO_BLOCK);
    pl_arena_free(&arena, a.block, &none);
    /* Free, but in the wrong chunk: it must go back first. */
    c.limit = 8192;
    assert_fails(PL_NO_MEMORY, pl_arena_allocate(&arena, 8192, &none_left), "dry");
    pl_arena_trim(&arena);
    assert_int_equal(c.held, 0);
    assert_ok(pl_arena_allocate(&arena, 8192, &a));
    pl_arena_close(&arena);
    assert_int_equal(c.held, 0);
}

static void sizes_that_cannot_be_counted_are_refused(void **state)
{
    (void)state;
    counter c = make_counter(INT64_MAX);
    pl_arena arena = make_arena(&c);
    pl_arena_grant grant;
    assert_fails(PL_BAD_INPUT, pl_arena_allocate(&arena, INT64_MAX, &grant), "63 bits");
    assert_fails(PL_BAD_INPUT, pl_arena_allocate(&arena, -1, &grant), "63 bits");
    pl_arena_close(&arena);
}

/* --- random sequences --- */

enum { MOST = 200, TURNS = 20000 };

typedef struct lent {
    char *start;
    int64_t bytes;
    int32_t block;
} lent;

static uint32_t draw(uint32_t *state_, uint32_t below)
{
    *state_ = *state_ * 1664525U + 1013904223U;
    return (*state_ >> 8) % below;
}

static void assert_apart(const lent *all, int count, const lent *one)
{
    for (int i = 0; i < count; ++i)
        assert_true(all[i].start + all[i].bytes <= one->start ||
                    one->start + one->bytes <= all[i].start);
}

static void assert_inside(const counter *c, const lent *one)
{
    uintptr_t start = (uintptr_t)one->start;
    for (int i = 0; i < c->chunks; ++i)
        if (start >= c->chunk[i].start &&
            start + (uintptr_t)one->bytes <= c->chunk[i].start + (uintptr_t)c->chunk[i].bytes)
            return;
    fail_msg("a block outside all chunks");
}

static void random_sequences_never_overlap_and_lose_nothing(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 3; ++seed) {
        counter c = make_counter(INT64_C(48) << 20);
        pl_arena arena = make_arena(&c);
        lent all[MOST];
        int count = 0, refused = 0;
        int64_t used = 0;
        uint32_t random = seed;
        for (int turn = 0; turn < TURNS; ++turn) {
            if (count == MOST || (count > 0 && draw(&random, 100) < 48)) {
                int i = (int)draw(&random, (uint32_t)count);
                pl_arena_free(&arena, all[i].block, &none);
                used -= (all[i].bytes + 255) / 256 * 256;
                all[i] = all[--count];
            } else {
                lent one = {.bytes = 1 + draw(&random, 1U << (4 + draw(&random, 18)))};
                pl_arena_grant grant;
                if (pl_arena_allocate(&arena, one.bytes, &grant) != PL_OK) {
                    ++refused;
                } else {
                    one.start = grant.memory;
                    one.block = grant.block;
                    assert_apart(all, count, &one);
                    assert_inside(&c, &one);
                    used += (one.bytes + 255) / 256 * 256;
                    all[count++] = one;
                }
            }
            assert_int_equal(arena.used, used);
            assert_int_equal(arena.held, c.held);
        }
        assert_true(refused < TURNS / 2);
        while (count > 0) pl_arena_free(&arena, all[--count].block, &none);
        assert_int_equal(arena.used, 0);
        pl_arena_trim(&arena);
        assert_int_equal(c.held, 0);
        pl_arena_close(&arena);
    }
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    for (int64_t n = 0;; ++n) {
        counter c = make_counter(INT64_MAX);
        pl_arena arena = make_arena(&c);
        pl_arena_grant grant;
        pl_allocation_fail_after(n);
        pl_status status = PL_OK;
        int lent_out = 0;
        for (; lent_out < 40 && status == PL_OK; ++lent_out)
            status = pl_arena_allocate(&arena, 300, &grant);
        int failed = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        assert_int_equal(status, failed ? PL_NO_MEMORY : PL_OK);
        if (failed) assert_int_equal(arena.used, (lent_out - 1) * 512);
        pl_arena_close(&arena);
        assert_int_equal(c.held, 0);
        if (!failed) break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_aligned_and_apart),
        cmocka_unit_test(neighbours_join_whatever_the_order),
        cmocka_unit_test(the_smallest_block_that_fits_is_cut),
        cmocka_unit_test(a_block_remembers_who_let_it_go),
        cmocka_unit_test(a_dry_source_is_asked_for_no_more_than_is_needed),
        cmocka_unit_test(sizes_that_cannot_be_counted_are_refused),
        cmocka_unit_test(random_sequences_never_overlap_and_lose_nothing),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests_name("train/arena", tests, NULL, NULL);
}
