/* Token streams: text, llm.c's and Megatron's files read as they were written, over the ends of
 * files, and their entropy. */
#include <math.h>
#include <pthread.h>
#include <stdbool.h>

#include "common/memory.h"
#include "tests/train/token_files.h"
#include "train/tokens.h"

static const int64_t seven[] = {5, 0, 300, 9, 17, 65535, 2};

static pl_tokens *open_one(const scratch *s, const char *name, int64_t vocabulary)
{
    pl_tokens *tokens = NULL;
    const char *path = in_scratch(s, name);
    assert_ok(pl_tokens_open(&tokens, &path, 1, vocabulary));
    return tokens;
}

static void expect_tokens(const pl_tokens *tokens, const int64_t *expected, int64_t count)
{
    int32_t out[64];
    assert_int_equal(pl_tokens_count(tokens), count);
    for (int64_t first = 0; first <= count; ++first)
        for (int64_t length = 0; length <= count - first; ++length) {
            memset(out, 0x77, sizeof out);
            assert_ok(pl_tokens_read(tokens, first, length, out));
            for (int64_t i = 0; i < length; ++i) assert_int_equal(out[i], expected[first + i]);
            assert_int_equal(out[length], 0x77777777);
        }
}

static void text_is_its_bytes_and_an_end(void **state)
{
    (void)state;
    static const int64_t expected[] = {'a', 0, 255, '\n', 256};
    scratch s = make_scratch();
    write_bytes(&s, "text", "a\0\xff\n", 4);
    pl_tokens *tokens = open_one(&s, "text", PL_BYTE_TOKENS);
    expect_tokens(tokens, expected, 5);
    pl_tokens_close(tokens);
    remove_scratch(&s);
}

static void llm_c_files_are_read(void **state)
{
    (void)state;
    static const int64_t wide[] = {5, 128255, 0, 128000, 7};
    bytes_made made;
    scratch s = make_scratch();
    make_llm_c(&made, 20240520, 1, 7, seven, 7, 2);
    save(&s, "gpt2.bin", &made);
    make_llm_c(&made, 20240801, 7, 5, wide, 5, 4);
    save(&s, "llama.bin", &made);
    pl_tokens *tokens = open_one(&s, "gpt2.bin", 65536);
    expect_tokens(tokens, seven, 7);
    pl_tokens_close(tokens);
    tokens = open_one(&s, "llama.bin", 128256);
    expect_tokens(tokens, wide, 5);
    pl_tokens_close(tokens);
    remove_scratch(&s);
}

static void megatron_files_of_all_types_are_read(void **state)
{
    (void)state;
    static const int64_t small[] = {1, 2, 127, 4, 5, 6, 0}, large[] = {1, 2, 100000, 4, 5, 6, 0};
    static const struct {
        int64_t code, width;
        const int64_t *tokens;
    } types[] = {{1, 1, small}, {2, 1, small}, {3, 2, small},
                 {4, 4, large}, {5, 8, large}, {8, 2, seven}};
    for (size_t i = 0; i < sizeof types / sizeof *types; ++i) {
        scratch s = make_scratch();
        index_facts facts = sound_index(types[i].code, types[i].width);
        save_megatron(&s, "data", &facts, types[i].tokens, 7);
        pl_tokens *tokens = open_one(&s, "data.bin", 200000);
        expect_tokens(tokens, types[i].tokens, 7);
        pl_tokens_close(tokens);
        tokens = open_one(&s, "", 200000); /* the folder: the index is not read as text */
        assert_int_equal(pl_tokens_files(tokens), 1);
        expect_tokens(tokens, types[i].tokens, 7);
        pl_tokens_close(tokens);
        remove_scratch(&s);
    }
}

/* An index of more sequences than are checked at a time. */
static void long_indexes_are_read(void **state)
{
    (void)state;
    enum { SEQUENCES = 2500 };
    static bytes_made index, data;
    index.count = data.count = 0;
    scratch s = make_scratch();
    put(&index, "MMIDIDX\0\0", 9);
    put_number(&index, 1, 8);
    put_number(&index, 8, 1);
    put_number(&index, SEQUENCES, 8);
    put_number(&index, 2, 8);
    for (int i = 0; i < SEQUENCES; ++i) put_number(&index, i % 3, 4);
    for (int64_t i = 0, place = 0; i < SEQUENCES; place += i % 3 * 2, ++i)
        put_number(&index, place, 8);
    put_number(&index, 0, 8);
    put_number(&index, SEQUENCES, 8);
    for (int i = 0; i < SEQUENCES; ++i)
        for (int j = 0; j < i % 3; ++j) put_number(&data, i, 2);
    save(&s, "data.idx", &index);
    save(&s, "data.bin", &data);
    int32_t last = 0;
    pl_tokens *tokens = open_one(&s, "data.bin", SEQUENCES);
    assert_int_equal(pl_tokens_count(tokens), data.count / 2);
    assert_ok(pl_tokens_read(tokens, (int64_t)data.count / 2 - 1, 1, &last));
    assert_int_equal(last, 2498);
    pl_tokens_close(tokens);
    remove_scratch(&s);
}

static void kinds_mix_in_one_stream(void **state)
{
    (void)state;
    static const int64_t expected[] = {'h', 'i', 256, 5, 0, 300, 9,   17,  65535, 2,   1,
                                       2,   3,   4,   5, 6, 7,   '!', 256, 'h',   'i', 256};
    static const int64_t ones[] = {1, 2, 3, 4, 5, 6, 7};
    pl_tokens *tokens = NULL;
    bytes_made made;
    scratch s = make_scratch();
    index_facts facts = sound_index(4, 4);
    make_folder(&s, "rest");
    write_words(&s, "one", "hi");
    make_llm_c(&made, 20240520, 1, 7, seven, 7, 2);
    save(&s, "two.bin", &made);
    save_megatron(&s, "rest/a", &facts, ones, 7);
    write_words(&s, "rest/b with blank", "!");
    write_words(&s, "rest/empty", "");
    const char *paths[] = {in_scratch(&s, "one"), in_scratch(&s, "two.bin"), in_scratch(&s, "rest"),
                           in_scratch(&s, "one")};
    assert_ok(pl_tokens_open(&tokens, paths, 4, 65536));
    assert_int_equal(pl_tokens_files(tokens), 5);
    expect_tokens(tokens, expected, sizeof expected / sizeof *expected);
    assert_non_null(strstr(pl_tokens_notes(tokens), "rest/empty: left out"));
    pl_tokens_close(tokens);
    remove_scratch(&s);
}

static void large_files_are_read_in_pieces(void **state)
{
    (void)state;
    enum { COUNT = 30000 };
    static int32_t out[COUNT];
    static bytes_made made;
    static int64_t values[COUNT];
    scratch s = make_scratch();
    for (int i = 0; i < COUNT; ++i) values[i] = (i * 7919) % 50000;
    make_llm_c(&made, 20240520, 1, COUNT, values, COUNT, 2);
    save(&s, "x.bin", &made);
    pl_tokens *tokens = open_one(&s, "x.bin", 50000);
    for (int64_t first = 0; first < COUNT; first += 4999) {
        assert_ok(pl_tokens_read(tokens, first, COUNT - first, out));
        for (int64_t i = first; i < COUNT; ++i) assert_int_equal(out[i - first], values[i]);
    }
    pl_tokens_close(tokens);
    remove_scratch(&s);
}

typedef struct reader {
    const pl_tokens *tokens;
    int seed;
    bool wrong;
} reader;

static void *read_much(void *argument)
{
    reader *r = argument;
    int32_t out[100];
    for (int round = 0; round < 500; ++round) {
        int64_t first = (round * 37 + r->seed * 11) % 200, count = (round + r->seed) % 60;
        if (pl_tokens_read(r->tokens, first, count, out) != PL_OK) r->wrong = true;
        for (int64_t i = 0; i < count; ++i) /* files of 9 letters and an end */
            if (out[i] != ((first + i) % 10 == 9 ? 256 : 'a' + (first + i) / 10)) r->wrong = true;
    }
    return NULL;
}

static void many_threads_read_one_stream(void **state)
{
    (void)state;
    enum { THREADS = 6 };
    pthread_t threads[THREADS];
    reader readers[THREADS];
    scratch s = make_scratch();
    for (char name[] = "a"; name[0] <= 'z'; ++name[0]) {
        char words[10];
        memset(words, name[0], 9);
        words[9] = '\0';
        write_words(&s, name, words);
    }
    pl_tokens *tokens = open_one(&s, "", PL_BYTE_TOKENS);
    for (int i = 0; i < THREADS; ++i) {
        readers[i] = (reader){tokens, i, false};
        assert_int_equal(pthread_create(&threads[i], NULL, read_much, &readers[i]), 0);
    }
    for (int i = 0; i < THREADS; ++i) {
        pthread_join(threads[i], NULL);
        assert_false(readers[i].wrong);
    }
    pl_tokens_close(tokens);
    remove_scratch(&s);
}

static void entropy_is_that_of_the_counts(void **state)
{
    (void)state;
    double nats = 0;
    scratch s = make_scratch();
    write_words(&s, "text", "aaaabbcd");
    pl_tokens *tokens = open_one(&s, "text", PL_BYTE_TOKENS);
    /* 4/8, 2/8, 1/8, 1/8: 1.75 bits */
    assert_ok(pl_tokens_entropy(tokens, 0, 8, &nats));
    assert_true(fabs(nats - 1.75 * log(2)) < 1e-15);
    assert_ok(pl_tokens_entropy(tokens, 0, 4, &nats));
    assert_true(nats == 0);
    assert_ok(pl_tokens_entropy(tokens, 7, 2, &nats)); /* the end of a document counts */
    assert_true(fabs(nats - log(2)) < 1e-15);
    assert_fails(PL_INTERNAL, pl_tokens_entropy(tokens, 0, 0, &nats), "no tokens");
    assert_fails(PL_INTERNAL, pl_tokens_entropy(tokens, 0, 10, &nats), "10 tokens from 0 of 9");
    pl_tokens_close(tokens);
    remove_scratch(&s);
}

static void fingerprints_tell_data_apart(void **state)
{
    (void)state;
    uint64_t seen[4];
    static const char *const words[] = {"abc", "xyz", "abcd", "ab"};
    for (int i = 0; i < 4; ++i) {
        scratch s = make_scratch();
        write_words(&s, "text", words[i]);
        pl_tokens *tokens = open_one(&s, "text", PL_BYTE_TOKENS);
        seen[i] = pl_tokens_fingerprint(tokens);
        pl_tokens_close(tokens);
        remove_scratch(&s);
    }
    assert_true(seen[0] == seen[1]); /* sizes only: the folder's name is another one, too */
    assert_true(seen[0] != seen[2] && seen[0] != seen[3] && seen[2] != seen[3]);
}

static void failing_allocations_are_survived(void **state)
{
    (void)state;
    pl_status status = PL_NO_MEMORY;
    scratch s = make_scratch();
    index_facts facts = sound_index(8, 2);
    save_megatron(&s, "a", &facts, seven, 7);
    write_words(&s, "text", "text");
    const char *path = s.folder;
    for (int64_t after = 0; status != PL_OK; ++after) {
        double nats = 0;
        pl_tokens *tokens = NULL;
        pl_allocation_fail_after(after);
        status = pl_tokens_open(&tokens, &path, 1, 65536);
        if (status == PL_OK) status = pl_tokens_entropy(tokens, 0, 12, &nats);
        if (status != PL_OK) assert_int_equal(status, PL_NO_MEMORY);
        if (status == PL_OK) assert_false(pl_allocation_failed());
        pl_tokens_close(tokens);
        assert_in_range(after, 0, 1000);
    }
    pl_allocation_fail_after(-1);
    remove_scratch(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_its_bytes_and_an_end),
        cmocka_unit_test(llm_c_files_are_read),
        cmocka_unit_test(megatron_files_of_all_types_are_read),
        cmocka_unit_test(long_indexes_are_read),
        cmocka_unit_test(kinds_mix_in_one_stream),
        cmocka_unit_test(large_files_are_read_in_pieces),
        cmocka_unit_test(many_threads_read_one_stream),
        cmocka_unit_test(entropy_is_that_of_the_counts),
        cmocka_unit_test(fingerprints_tell_data_apart),
        cmocka_unit_test(failing_allocations_are_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
