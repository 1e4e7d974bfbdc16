/* The order of samples: a permutation for every count, the same on every machine, other for every
 * seed and epoch, and without pattern that simple counting finds. */
#include <stdlib.h>

#include "tests/test.h"
#include "train/data_permutation.h"

/* testdata/gen/sample_order.py */
static const struct {
    int64_t count;
    uint64_t seed, epoch;
    int64_t index, place;
} golden[] = {
    {1, UINT64_C(1), UINT64_C(0), 0, 0},
    {2, UINT64_C(1), UINT64_C(0), 0, 1},
    {2, UINT64_C(1), UINT64_C(0), 1, 0},
    {3, UINT64_C(7), UINT64_C(1), 0, 1},
    {3, UINT64_C(7), UINT64_C(1), 1, 2},
    {3, UINT64_C(7), UINT64_C(1), 2, 0},
    {10, UINT64_C(1), UINT64_C(0), 0, 5},
    {10, UINT64_C(1), UINT64_C(0), 1, 0},
    {10, UINT64_C(1), UINT64_C(0), 2, 4},
    {10, UINT64_C(1), UINT64_C(0), 5, 2},
    {10, UINT64_C(1), UINT64_C(0), 9, 6},
    {10, UINT64_C(1), UINT64_C(1), 0, 6},
    {10, UINT64_C(1), UINT64_C(1), 1, 9},
    {10, UINT64_C(1), UINT64_C(1), 2, 2},
    {10, UINT64_C(1), UINT64_C(1), 5, 5},
    {10, UINT64_C(1), UINT64_C(1), 9, 7},
    {10, UINT64_C(2), UINT64_C(0), 0, 7},
    {10, UINT64_C(2), UINT64_C(0), 1, 4},
    {10, UINT64_C(2), UINT64_C(0), 2, 1},
    {10, UINT64_C(2), UINT64_C(0), 5, 3},
    {10, UINT64_C(2), UINT64_C(0), 9, 0},
    {1000003, UINT64_C(1), UINT64_C(0), 0, 472059},
    {1000003, UINT64_C(1), UINT64_C(0), 1, 18993},
    {1000003, UINT64_C(1), UINT64_C(0), 2, 751838},
    {1000003, UINT64_C(1), UINT64_C(0), 5, 861536},
    {1000003, UINT64_C(1), UINT64_C(0), 9, 560993},
    {1000003, UINT64_C(1), UINT64_C(0), 500001, 977795},
    {1000003, UINT64_C(1), UINT64_C(0), 1000002, 240874},
    {4294967297, UINT64_C(4611686018427387907), UINT64_C(8589934597), 0, 551810538},
    {4294967297, UINT64_C(4611686018427387907), UINT64_C(8589934597), 1, 1385073977},
    {4294967297, UINT64_C(4611686018427387907), UINT64_C(8589934597), 2, 2622231070},
    {4294967297, UINT64_C(4611686018427387907), UINT64_C(8589934597), 5, 928873373},
    {4294967297, UINT64_C(4611686018427387907), UINT64_C(8589934597), 9, 667202083},
    {4294967297, UINT64_C(4611686018427387907), UINT64_C(8589934597), 2147483648, 3967007215},
    {4294967297, UINT64_C(4611686018427387907), UINT64_C(8589934597), 4294967296, 1737199116},
    {4611686018427387904, UINT64_C(1), UINT64_C(0), 0, 3713549444144201640},
    {4611686018427387904, UINT64_C(1), UINT64_C(0), 1, 2008288202236807923},
    {4611686018427387904, UINT64_C(1), UINT64_C(0), 2, 1839688665166736281},
    {4611686018427387904, UINT64_C(1), UINT64_C(0), 5, 703503223540044225},
    {4611686018427387904, UINT64_C(1), UINT64_C(0), 9, 3526929871478888761},
    {4611686018427387904, UINT64_C(1), UINT64_C(0), 2305843009213693952, 1460160543743202167},
    {4611686018427387904, UINT64_C(1), UINT64_C(0), 4611686018427387903, 3532163096572254771},
};

static void places_are_the_same_everywhere(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof golden / sizeof *golden; ++i) {
        pl_permutation p = pl_permutation_make(golden[i].count, golden[i].seed, golden[i].epoch);
        assert_true(pl_permutation_at(&p, golden[i].index) == golden[i].place);
    }
}

/* Every number below COUNT is met once. */
static void expect_permutation(int64_t count, uint64_t seed, uint64_t epoch)
{
    unsigned char *met = calloc((size_t)count, 1);
    assert_non_null(met);
    pl_permutation p = pl_permutation_make(count, seed, epoch);
    for (int64_t i = 0; i < count; ++i) {
        int64_t place = pl_permutation_at(&p, i);
        assert_in_range(place, 0, count - 1);
        assert_int_equal(met[place]++, 0);
    }
    free(met);
}

static void every_number_is_met_once(void **state)
{
    (void)state;
    static const int64_t primes[] = {127, 257, 509, 1021, 10007, 65521};
    for (int64_t count = 1; count <= 70; ++count)
        for (uint64_t epoch = 0; epoch < 3; ++epoch) expect_permutation(count, 5, epoch);
    for (int k = 7; k <= 14; ++k)
        for (int64_t away = -1; away <= 1; ++away)
            expect_permutation((INT64_C(1) << k) + away, UINT64_MAX, UINT64_MAX);
    for (size_t i = 0; i < sizeof primes / sizeof *primes; ++i) expect_permutation(primes[i], 0, 0);
}

static void seeds_and_epochs_have_orders_of_their_own(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    static const uint64_t keys[][2] = {
        {1, 0}, {1, 1}, {2, 0}, {1, UINT64_C(1) << 32}, {UINT64_C(1) << 32, 0}, {0, 1}};
    for (size_t a = 0; a < sizeof keys / sizeof *keys; ++a)
        for (size_t b = 0; b < a; ++b) {
            pl_permutation x = pl_permutation_make(COUNT, keys[a][0], keys[a][1]);
            pl_permutation y = pl_permutation_make(COUNT, keys[b][0], keys[b][1]);
            int equal = 0;
            for (int i = 0; i < COUNT; ++i)
                equal += pl_permutation_at(&x, i) == pl_permutation_at(&y, i);
            assert_in_range(equal, 0, 8); /* one is expected; nine happen in 10^-6 of the cases */
        }
}

/* Small counts, where each order can be counted: all of them come about equally often. */
static void small_orders_are_equally_frequent(void **state)
{
    (void)state;
    enum { SEEDS = 24000 };
    static const int orders[] = {1, 1, 2, 6, 24};
    for (int64_t count = 2; count <= 4; ++count) {
        int seen[256] = {0}, different = 0;
        for (uint64_t seed = 0; seed < SEEDS; ++seed) {
            int code = 0;
            pl_permutation p = pl_permutation_make(count, seed, 0);
            for (int64_t i = 0; i < count; ++i) code = code * 4 + (int)pl_permutation_at(&p, i);
            ++seen[code];
        }
        for (int code = 0; code < 256; ++code) {
            if (seen[code] == 0) continue;
            int expected = SEEDS / orders[count];
            ++different;
            assert_in_range(seen[code], expected - expected / 5, expected + expected / 5);
        }
        assert_int_equal(different, orders[count]);
    }
}

/* Moves of neighbours, rises and fixed points of a larger one, against what chance gives. */
static void no_pattern_is_seen_by_counting(void **state)
{
    (void)state;
    enum { COUNT = 10000, EPOCHS = 20 };
    int fixed = 0, rises = 0, near = 0, parity = 0;
    for (uint64_t epoch = 0; epoch < EPOCHS; ++epoch) {
        pl_permutation p = pl_permutation_make(COUNT, 3, epoch);
        int64_t before = pl_permutation_at(&p, 0);
        for (int64_t i = 1; i < COUNT; ++i) {
            int64_t place = pl_permutation_at(&p, i);
            fixed += place == i;
            rises += place > before;
            near += llabs(place - before) < COUNT / 100;
            parity += place % 2 != i % 2;
            before = place;
        }
    }
    /* expected: 20; 100,000, deviation 130; 3,980, deviation 62; 100,000, deviation 220 */
    assert_in_range(fixed, 1, 45);
    assert_in_range(rises, 99200, 100800);
    assert_in_range(near, 3600, 4360);
    assert_in_range(parity, 98700, 101300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_are_the_same_everywhere),
        cmocka_unit_test(every_number_is_met_once),
        cmocka_unit_test(seeds_and_epochs_have_orders_of_their_own),
        cmocka_unit_test(small_orders_are_equally_frequent),
        cmocka_unit_test(no_pattern_is_seen_by_counting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
