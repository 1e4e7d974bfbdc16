/* Samples: every layout reads the same ones in the same step, each once, and all of them before any
 * comes again. */
#include <math.h>
#include <pthread.h>
#include <stdbool.h>

#include "common/memory.h"
#include "tests/train/token_files.h"
#include "train/data_permutation.h"
#include "train/samples.h"

enum { TOKENS = 5 * 121 + 4, SAMPLES = 121, VOCABULARY = 1 << 20 };
#define SEQUENCE INT64_C(5)

/* A stream whose tokens count from 0, so that a window says where it is from; 3 tokens at the end
 * fill no sample. */
static pl_samples *open_counting(const scratch *s, uint64_t seed)
{
    static bytes_made made;
    static int64_t values[TOKENS];
    pl_samples *samples = NULL;
    for (int i = 0; i < TOKENS; ++i) values[i] = i;
    make_llm_c(&made, 20240801, 7, TOKENS, values, TOKENS, 4);
    save(s, "x.bin", &made);
    const char *path = in_scratch(s, "x.bin");
    assert_ok(pl_samples_open(&samples, &path, 1, VOCABULARY, SEQUENCE, seed));
    assert_int_equal(pl_samples_count(samples), SAMPLES);
    return samples;
}

/* Which sample stands at TOKENS and LABELS. */
static int64_t sample_at(const int32_t *tokens, const int32_t *labels)
{
    assert_int_equal(tokens[0] % SEQUENCE, 0);
    for (int i = 0; i < SEQUENCE; ++i) {
        assert_int_equal(tokens[i], tokens[0] + i);
        assert_int_equal(labels[i], tokens[i] + 1);
    }
    return tokens[0] / SEQUENCE;
}

/* The samples of STEP under SHAPE and RANKS, all ranks; by micro-step, then in no order. */
static void load_step(const pl_samples *samples, int64_t step, const pl_shape *shape, int64_t ranks,
                      int64_t *out)
{
    int32_t batch[2 * SEQUENCE * 64];
    int64_t steps = shape->rounds * shape->intra_layer, count = shape->micro_batch;
    for (int64_t rank = 0; rank < ranks; ++rank) {
        assert_in_range(steps * count, 1, 64);
        assert_ok(pl_samples_load(samples, step, shape, rank, ranks, batch));
        for (int64_t m = 0; m < steps; ++m)
            for (int64_t p = 0; p < count; ++p) {
                const int32_t *tokens = batch + m * 2 * count * SEQUENCE + p * SEQUENCE;
                out[(m * ranks + rank) * count + p] = sample_at(tokens, tokens + count * SEQUENCE);
            }
    }
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static const struct {
    int64_t rounds, intra_layer, ranks, micro_batch;
} layouts[] = {{1, 1, 1, 24}, {24, 1, 1, 1}, {1, 24, 1, 1}, {1, 1, 24, 1}, {2, 3, 4, 1},
               {3, 2, 2, 2},  {1, 2, 3, 4},  {4, 3, 2, 1},  {2, 1, 12, 1}, {2, 1, 1, 12}};

static void all_layouts_read_the_same_samples(void **state)
{
    (void)state;
    enum { GLOBAL = 24, STEPS = 12, LAYOUTS = sizeof layouts / sizeof *layouts };
    scratch s = make_scratch();
    pl_samples *samples = open_counting(&s, 1);
    for (int64_t step = 0; step < STEPS; ++step) {
        int64_t first[GLOBAL], other[GLOBAL];
        for (int l = 0; l < LAYOUTS; ++l) {
            const pl_shape shape = {.sequence = SEQUENCE,
                                    .micro_batch = layouts[l].micro_batch,
                                    .intra_layer = layouts[l].intra_layer,
                                    .rounds = layouts[l].rounds};
            int64_t *found = l == 0 ? first : other;
            load_step(samples, step, &shape, layouts[l].ranks, found);
            qsort(found, GLOBAL, sizeof *found, by_value);
            assert_memory_equal(found, first, sizeof first);
        }
    }
    pl_samples_close(samples);
    remove_scratch(&s);
}

/* ... and in the same micro-step, where ranks times micro-batch are equal. */
static void equal_micro_steps_hold_the_same_samples(void **state)
{
    (void)state;
    static const int64_t ranks[] = {1, 2, 3, 4, 6, 12};
    scratch s = make_scratch();
    pl_samples *samples = open_counting(&s, 1);
    int64_t first[24], other[24];
    for (int64_t step = 0; step < 12; ++step)
        for (int r = 0; r < 6; ++r) {
            const pl_shape shape = {.sequence = SEQUENCE,
                                    .micro_batch = 12 / ranks[r],
                                    .intra_layer = r % 2 + 1,
                                    .rounds = 2 - r % 2};
            int64_t *found = r == 0 ? first : other;
            load_step(samples, step, &shape, ranks[r], found);
            assert_memory_equal(found, first, sizeof first); /* not even the order differs */
        }
    pl_samples_close(samples);
    remove_scratch(&s);
}

static void every_epoch_reads_every_sample_once(void **state)
{
    (void)state;
    enum { GLOBAL = 11, EPOCHS = 4, ALL = SAMPLES * EPOCHS };
    static int64_t order[ALL];
    scratch s = make_scratch();
    pl_samples *samples = open_counting(&s, 9);
    const pl_shape shape = {
        .sequence = SEQUENCE, .micro_batch = GLOBAL, .intra_layer = 1, .rounds = 1};
    for (int64_t step = 0; step < ALL / GLOBAL; ++step)
        load_step(samples, step, &shape, 1, order + step * GLOBAL);
    for (int64_t epoch = 0; epoch < EPOCHS; ++epoch) {
        bool met[SAMPLES] = {false};
        pl_permutation p = pl_permutation_make(SAMPLES, 9, (uint64_t)epoch);
        for (int64_t i = 0; i < SAMPLES; ++i) {
            int64_t sample = order[epoch * SAMPLES + i];
            assert_false(met[sample]);
            met[sample] = true;
            assert_int_equal(sample, pl_permutation_at(&p, i));
        }
        if (epoch > 0)
            assert_memory_not_equal(order, order + epoch * SAMPLES, SAMPLES * sizeof *order);
    }
    pl_samples_close(samples);
    remove_scratch(&s);
}

static void a_step_may_be_longer_than_the_data(void **state)
{
    (void)state;
    pl_samples *samples = NULL;
    int32_t batch[2 * 4 * 16];
    int seen[3] = {0};
    scratch s = make_scratch();
    write_words(&s, "text", "0123456789abc"); /* 14 tokens: 3 samples of 4 */
    const char *path = in_scratch(&s, "text");
    assert_ok(pl_samples_open(&samples, &path, 1, 300, 4, 1));
    const pl_shape shape = {.sequence = 4, .micro_batch = 16, .intra_layer = 1, .rounds = 1};
    assert_ok(pl_samples_load(samples, 0, &shape, 0, 1, batch));
    for (int64_t i = 0; i < 16; ++i) ++seen[batch[i * 4] == '0' ? 0 : batch[i * 4] == '4' ? 1 : 2];
    for (int i = 0; i < 3; ++i) assert_in_range(seen[i], 5, 6);
    pl_samples_close(samples);
    remove_scratch(&s);
}

static void held_out_samples_come_in_order_and_end(void **state)
{
    (void)state;
    int32_t batch[2][6 * SEQUENCE];
    scratch s = make_scratch();
    pl_samples *samples = open_counting(&s, 3);
    const pl_shape shape = {.sequence = SEQUENCE, .micro_batch = 3, .intra_layer = 2, .rounds = 1};
    /* 12 numbers from 115 on, of which 6 are there, or of which 4 are wanted */
    for (int64_t trial = 0; trial < 4; ++trial) {
        int64_t rank = trial % 2, most = trial < 2 ? INT64_MAX : 119;
        int64_t there = most < SAMPLES ? most : SAMPLES;
        assert_ok(pl_samples_load_in_order(samples, 115, most, &shape, rank, 2, batch[0]));
        for (int64_t m = 0; m < 2; ++m)
            for (int64_t p = 0; p < 3; ++p) {
                const int32_t *tokens = batch[m] + p * SEQUENCE;
                const int32_t *labels = tokens + 3 * SEQUENCE;
                int64_t number = 115 + (m * 2 + rank) * 3 + p;
                if (number < there) assert_int_equal(sample_at(tokens, labels), number);
                for (int i = 0; number >= there && i < SEQUENCE; ++i)
                    assert_true(tokens[i] == 0 && labels[i] == -1);
            }
    }
    assert_ok(pl_samples_load_in_order(samples, INT64_MAX - 12, INT64_MAX, &shape, 1, 2, batch[0]));
    assert_int_equal(batch[1][6 * SEQUENCE - 1], -1);
    pl_samples_close(samples);
    remove_scratch(&s);
}

static void what_cannot_be_meant_is_refused(void **state)
{
    (void)state;
    int32_t batch[2 * SEQUENCE];
    scratch s = make_scratch();
    pl_samples *samples = open_counting(&s, 3);
    pl_shape shape = {.sequence = SEQUENCE, .micro_batch = 1, .intra_layer = 1, .rounds = 1};
    assert_fails(PL_INTERNAL, pl_samples_load(samples, 0, &shape, 2, 2, batch), "data rank 2 of 2");
    assert_fails(PL_INTERNAL, pl_samples_load(samples, 0, &shape, -1, 2, batch), "data rank -1");
    assert_fails(PL_BAD_INPUT, pl_samples_load(samples, INT64_MAX, &shape, 0, 2, batch),
                 "samples of the run", "does not fit 63 bits");
    assert_fails(PL_BAD_INPUT, pl_samples_load(samples, -1, &shape, 0, 2, batch), "-1 x 2");
    assert_fails(PL_INTERNAL, pl_samples_load_in_order(samples, -1, 9, &shape, 0, 2, batch),
                 "first sample -1");
    assert_fails(PL_BAD_INPUT, pl_samples_load_in_order(samples, INT64_MAX, 9, &shape, 0, 2, batch),
                 "does not fit 63 bits");
    shape.sequence = SEQUENCE + 1;
    assert_fails(PL_INTERNAL, pl_samples_load(samples, 0, &shape, 0, 1, batch),
                 "sequences of 6 from samples of 5");
    pl_samples_close(samples);
    remove_scratch(&s);
}

static void wrong_tokens_are_named_when_they_are_met(void **state)
{
    (void)state;
    static const int64_t values[] = {1, 2, 3, 4, 5, 6, 70, 8, 9};
    pl_samples *samples = NULL;
    bytes_made made;
    int32_t batch[2 * 2];
    int bad = 0;
    scratch s = make_scratch();
    make_llm_c(&made, 20240520, 1, 9, values, 9, 2);
    save(&s, "x.bin", &made);
    const char *path = in_scratch(&s, "x.bin");
    assert_ok(pl_samples_open(&samples, &path, 1, 50, 2, 1));
    const pl_shape shape = {.sequence = 2, .micro_batch = 1, .intra_layer = 1, .rounds = 1};
    for (int64_t step = 0; step < 4; ++step) {
        pl_status status = pl_samples_load(samples, step, &shape, 0, 1, batch);
        if (status == PL_OK) continue;
        assert_int_equal(status, PL_BAD_INPUT);
        assert_non_null(strstr(pl_error_text(), "x.bin: token 6 (at byte 1036) is 70"));
        ++bad;
    }
    assert_int_equal(bad, 2); /* it is a label of one sample and a token of the next */
    pl_samples_close(samples);
    remove_scratch(&s);
}

static void entropy_is_that_of_the_labels(void **state)
{
    (void)state;
    double nats = 0, same = 0;
    pl_samples *samples = NULL;
    scratch s = make_scratch();
    write_words(&s, "text", "xaabbzzz"); /* 9 tokens; 4 samples of 2: labels a a b b z z z end */
    const char *path = in_scratch(&s, "text");
    assert_ok(pl_samples_open(&samples, &path, 1, 300, 2, 1));
    assert_ok(pl_samples_entropy(samples, 2, &nats));
    assert_true(fabs(nats - log(2)) < 1e-15);
    assert_ok(pl_samples_entropy(samples, 4, &nats));
    assert_ok(pl_samples_entropy(samples, INT64_MAX, &same));
    double expected = 2 * 0.25 * log(4) + 0.375 * log(8.0 / 3) + 0.125 * log(8);
    assert_true(fabs(nats - expected) < 1e-15 && same == nats);
    assert_fails(PL_INTERNAL, pl_samples_entropy(samples, 0, &nats), "entropy of 0 samples");
    pl_samples_close(samples);
    remove_scratch(&s);
}

typedef struct rank_load {
    const pl_samples *samples;
    int64_t rank;
    int32_t batch[2 * SEQUENCE * 4];
    pl_status status;
} rank_load;

static void *load_as_rank(void *argument)
{
    rank_load *load = argument;
    const pl_shape shape = {.sequence = SEQUENCE, .micro_batch = 4, .intra_layer = 1, .rounds = 1};
    for (int64_t step = 0; step < 50 && load->status == PL_OK; ++step)
        load->status = pl_samples_load(load->samples, step, &shape, load->rank, 8, load->batch);
    return NULL;
}

static void ranks_that_are_threads_share_one(void **state)
{
    (void)state;
    enum { RANKS = 8 };
    static rank_load loads[RANKS];
    pthread_t threads[RANKS];
    int64_t last[RANKS * 4];
    scratch s = make_scratch();
    pl_samples *samples = open_counting(&s, 3);
    const pl_shape shape = {.sequence = SEQUENCE, .micro_batch = 4, .intra_layer = 1, .rounds = 1};
    load_step(samples, 49, &shape, RANKS, last);
    for (int r = 0; r < RANKS; ++r) {
        loads[r] = (rank_load){.samples = samples, .rank = r};
        assert_int_equal(pthread_create(&threads[r], NULL, load_as_rank, &loads[r]), 0);
    }
    for (int r = 0; r < RANKS; ++r) pthread_join(threads[r], NULL);
    for (int r = 0; r < RANKS; ++r) {
        assert_int_equal(loads[r].status, PL_OK);
        for (int64_t p = 0; p < 4; ++p) {
            const int32_t *tokens = loads[r].batch + p * SEQUENCE;
            assert_int_equal(sample_at(tokens, tokens + 4 * SEQUENCE), last[INT64_C(4) * r + p]);
        }
    }
    pl_samples_close(samples);
    remove_scratch(&s);
}

static void failing_allocations_are_survived(void **state)
{
    (void)state;
    int32_t batch[2 * 4];
    pl_status status = PL_NO_MEMORY;
    scratch s = make_scratch();
    write_words(&s, "text", "0123456789abc");
    const char *path = in_scratch(&s, "text");
    const pl_shape shape = {.sequence = 4, .micro_batch = 1, .intra_layer = 1, .rounds = 1};
    for (int64_t after = 0; status != PL_OK; ++after) {
        pl_samples *samples = NULL;
        pl_allocation_fail_after(after);
        status = pl_samples_open(&samples, &path, 1, 300, 4, 1);
        if (status == PL_OK) status = pl_samples_load(samples, 0, &shape, 0, 1, batch);
        if (status != PL_OK) assert_int_equal(status, PL_NO_MEMORY);
        if (status == PL_OK) assert_false(pl_allocation_failed());
        pl_samples_close(samples);
        assert_in_range(after, 0, 100);
    }
    pl_allocation_fail_after(-1);
    remove_scratch(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_layouts_read_the_same_samples),
        cmocka_unit_test(equal_micro_steps_hold_the_same_samples),
        cmocka_unit_test(every_epoch_reads_every_sample_once),
        cmocka_unit_test(a_step_may_be_longer_than_the_data),
        cmocka_unit_test(held_out_samples_come_in_order_and_end),
        cmocka_unit_test(what_cannot_be_meant_is_refused),
        cmocka_unit_test(wrong_tokens_are_named_when_they_are_met),
        cmocka_unit_test(entropy_is_that_of_the_labels),
        cmocka_unit_test(ranks_that_are_threads_share_one),
        cmocka_unit_test(failing_allocations_are_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
