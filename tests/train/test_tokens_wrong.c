/* Data sets that are wrong: what is said of each, and that nothing worse happens. */
#include <stdbool.h>

#include "common/text.h"
#include "tests/train/token_files.h"
#include "train/samples.h"

enum { VOCABULARY = 1000, SEQUENCE = 4 };

static const int64_t seven[] = {1, 2, 3, 4, 5, 6, 999};

/* Opening PATH, and reading all of it. */
static pl_status try_data(const char *path, int64_t vocabulary)
{
    int32_t out[64];
    pl_samples *samples = NULL;
    PL_TRY(pl_samples_open(&samples, &path, 1, vocabulary, SEQUENCE, 1));
    const pl_tokens *tokens = pl_samples_tokens(samples);
    pl_status status = pl_tokens_read(tokens, 0, pl_tokens_count(tokens), out);
    pl_samples_close(samples);
    return status;
}

static void wrong_llm_c_files_are_refused(void **state)
{
    (void)state;
    static const struct {
        int32_t magic, version, counted;
        size_t written, width, cut; /* bytes that are left; 0: all */
        const char *words;
    } cases[] = {
        {20240520, 2, 7, 7, 2, 0, "x.bin: version 2; with magic 20240520 llm.c writes 1"},
        {20240520, 7, 7, 7, 2, 0, "version 7; with magic 20240520"},
        {20240801, 1, 7, 7, 4, 0, "x.bin: version 1; with magic 20240801 llm.c writes 7"},
        {20240520, 1, 8, 7, 2, 0, "counts 8 tokens of 2 bytes, and 14 bytes stand behind it"},
        {20240520, 1, 6, 7, 2, 0, "counts 6 tokens of 2 bytes, and 14 bytes"},
        {20240520, 1, 7, 7, 4, 0, "counts 7 tokens of 2 bytes, and 28 bytes"},
        {20240801, 7, 7, 7, 2, 0, "counts 7 tokens of 4 bytes, and 14 bytes"},
        {20240520, 1, -1, 7, 2, 0, "counts -1 tokens"},
        {20240520, 1, INT32_MIN, 7, 2, 0, "counts -2147483648 tokens"},
        {20240520, 1, 7, 7, 2, 1037, "counts 7 tokens of 2 bytes, and 13 bytes"},
        {20240520, 1, 7, 7, 2, 1023, "x.bin: 1023 bytes; the header of a token file of llm.c has"},
        {20240520, 1, 7, 7, 2, 4, "x.bin: 4 bytes; the header"},
        {20240520, 1, 0, 0, 2, 0, "x.bin: it holds no tokens"},
        {20240520, 1, 4, 4, 2, 0, "4 tokens in 1 file; a sequence of 4"},
        {20240521, 1, 7, 7, 2, 0, "neither a token file of llm.c (magic 20240520 or 20240801"},
        {20240326, 3, 7, 7, 2, 0, "nor one of Megatron's ("},
        {20240520, 1, 7, 7, 2, 3, "x.idx is not there); plain text may not be named *.bin"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        bytes_made made;
        scratch s = make_scratch();
        make_llm_c(&made, cases[i].magic, cases[i].version, cases[i].counted, seven,
                   cases[i].written, cases[i].width);
        if (cases[i].cut > 0) made.count = cases[i].cut;
        save(&s, "x.bin", &made);
        assert_fails(PL_BAD_INPUT, try_data(in_scratch(&s, "x.bin"), VOCABULARY), cases[i].words);
        remove_scratch(&s);
    }
}

static void wrong_magic_of(index_facts *f) { f->magic[3] = 'X'; }
static void older_form(index_facts *f) { memcpy(f->magic, "TNTIDX\0\0", 9); }
static void version_two(index_facts *f) { f->version = 2; }
static void floats(index_facts *f) { f->code = 7; }
static void unknown_type(index_facts *f) { f->code = 9; }
static void type_zero(index_facts *f) { f->code = 0; }
static void wider_type(index_facts *f) { f->code = 4; }
static void narrower_type(index_facts *f) { f->code = 1; }
static void sequence_too_many(index_facts *f) { f->sequences = 4; }
static void endless_sequences(index_facts *f) { f->sequences = INT64_MAX; }
static void negative_documents(index_facts *f) { f->documents = -1; }
static void documents_not_written(index_facts *f) { f->document_count = 3; }
static void negative_length(index_facts *f) { f->lengths[1] = -1; }
static void longer_sequence(index_facts *f) { f->lengths[2] = 5; }
static void shorter_sequence(index_facts *f) { f->lengths[2] = 3; }
static void longest_sequence(index_facts *f) { f->lengths[0] = INT32_MAX; }
static void gap(index_facts *f) { f->places[1] = f->places[2] = 8; }
static void overlap(index_facts *f) { f->places[2] = 4; }
static void negative_place(index_facts *f) { f->places[0] = -2; }
static void first_entry(index_facts *f) { f->entries[0] = 1; }
static void falling_entries(index_facts *f) { f->entries[1] = 2, f->entries[2] = 1; }
static void entry_beyond(index_facts *f) { f->entries[3] = 4; }
static void last_entry(index_facts *f) { f->entries[3] = 2; }
static void no_entries(index_facts *f) { f->documents = f->document_count = 0; }

static void wrong_indexes_are_refused(void **state)
{
    (void)state;
    static const struct {
        void (*damage)(index_facts *facts);
        const char *words;
    } cases[] = {
        {wrong_magic_of, "x.idx: not an index of Megatron's: it does not begin with MMIDIDX"},
        {older_form, "x.idx: an index of an older form (TNTIDX); allowed: MMIDIDX"},
        {version_two, "x.idx: version 2; allowed: 1"},
        {floats, "x.idx: element type 7; tokens may be 1 (u8), 2 (i8)"},
        {unknown_type, "element type 9"},
        {type_zero, "element type 0"},
        {wider_type, "x.idx: sequence 1 stands at byte 6; the sequences before it end at 12"},
        {narrower_type, "sequence 1 stands at byte 6; the sequences before it end at 3"},
        {sequence_too_many, "4 sequences and 4 document entries need 114"},
        {endless_sequences, "9223372036854775807 sequences and 4 document entries cannot stand"},
        {negative_documents, "cannot stand in its 102 bytes"},
        {documents_not_written, "x.idx: 94 bytes; 3 sequences and 4 document entries need 102"},
        {negative_length, "x.idx: sequence 1 has length -1"},
        {longer_sequence, "x.idx: sequence 2 goes beyond the end of "},
        {shorter_sequence, "its sequences end at byte 12 of "},
        {longest_sequence, "sequence 0 goes beyond the end of "},
        {gap, "sequence 1 stands at byte 8; the sequences before it end at 6"},
        {overlap, "sequence 2 stands at byte 4; the sequences before it end at 6"},
        {negative_place, "sequence 0 stands at byte -2"},
        {first_entry, "x.idx: document entry 0 is 1; allowed: 0 first"},
        {falling_entries, "document entry 2 is 1; allowed: 0 first, then from 2 to 3"},
        {entry_beyond, "document entry 3 is 4"},
        {last_entry, "the last of which is 2; it should be the number of sequences, 3"},
        {no_entries, "0 document entries"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        scratch s = make_scratch();
        index_facts facts = sound_index(8, 2);
        cases[i].damage(&facts);
        save_megatron(&s, "x", &facts, seven, 7);
        pl_error_clear();
        pl_status status = try_data(in_scratch(&s, "x.bin"), VOCABULARY);
        bool foreign = cases[i].damage == older_form || strstr(cases[i].words, "element type");
        assert_int_equal(status, foreign ? PL_UNSUPPORTED : PL_BAD_INPUT);
        if (!strstr(pl_error_text(), cases[i].words))
            fail_msg("no '%s' in: %s", cases[i].words, pl_error_text());
        remove_scratch(&s);
    }
}

static void indexes_that_are_cut_or_too_long_are_refused(void **state)
{
    (void)state;
    bytes_made made;
    scratch s = make_scratch();
    index_facts facts = sound_index(8, 2);
    save_megatron(&s, "x", &facts, seven, 7);
    make_index(&made, &facts);
    assert_ok(try_data(in_scratch(&s, "x.bin"), VOCABULARY));
    for (size_t cut = 0; cut < made.count; ++cut) {
        write_bytes(&s, "x.idx", made.bytes, cut);
        assert_fails(PL_BAD_INPUT, try_data(in_scratch(&s, "x.bin"), VOCABULARY),
                     "x.idx: ", cut < 34 ? "an index of Megatron's has at least 34" : "102");
    }
    put_number(&made, 0, 8);
    save(&s, "x.idx", &made);
    assert_fails(PL_BAD_INPUT, try_data(in_scratch(&s, "x.bin"), VOCABULARY), "x.idx: 110 bytes");
    made.count = 105; /* a mode for each of the three sequences */
    save(&s, "x.idx", &made);
    assert_fails(PL_UNSUPPORTED, try_data(in_scratch(&s, "x.bin"), VOCABULARY), "multimodal");
    assert_int_equal(remove(in_scratch(&s, "x.idx")), 0);
    make_folder(&s, "x.idx");
    assert_fails(PL_BAD_INPUT, try_data(in_scratch(&s, "x.bin"), VOCABULARY),
                 "x.idx: not a regular file");
    remove_scratch(&s);
}

static void data_without_its_other_half_is_refused(void **state)
{
    (void)state;
    scratch s = make_scratch();
    index_facts facts = sound_index(8, 2);
    save_megatron(&s, "x", &facts, seven, 7);
    assert_fails(PL_BAD_INPUT, try_data(in_scratch(&s, "x.idx"), VOCABULARY),
                 "x.idx: an index of Megatron's; name its data", "x.bin");
    assert_int_equal(rename(in_scratch(&s, "x.bin"), in_scratch(&s, "y.bin")), 0);
    assert_fails(PL_BAD_INPUT, try_data(in_scratch(&s, "x.idx"), VOCABULARY),
                 "x.idx: an index of Megatron's without its data: ", "x.bin is missing");
    assert_fails(PL_BAD_INPUT, try_data(in_scratch(&s, "y.bin"), VOCABULARY), "y.idx is not there");
    assert_int_equal(rename(in_scratch(&s, "x.idx"), in_scratch(&s, "index")), 0);
    assert_fails(PL_BAD_INPUT, try_data(in_scratch(&s, "index"), VOCABULARY),
                 "index: it begins like an index of Megatron's and is not named *.idx");
    bytes_made made;
    make_llm_c(&made, 20240801, 7, 7, seven, 7, 4);
    save(&s, "tokens", &made);
    assert_fails(PL_BAD_INPUT, try_data(in_scratch(&s, "tokens"), VOCABULARY),
                 "tokens: it begins like a token file of llm.c and is not named *.bin");
    make_folder(&s, "pair");
    facts = (index_facts){.magic = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0},
                          .version = 1,
                          .code = 8,
                          .width = 2,
                          .documents = 1,
                          .document_count = 1};
    save_megatron(&s, "pair/none", &facts, seven, 0);
    assert_fails(PL_BAD_INPUT, try_data(in_scratch(&s, "pair"), VOCABULARY),
                 "0 tokens in 0 files; a sequence of 4");
    remove_scratch(&s);
}

static void tokens_outside_the_vocabulary_are_named(void **state)
{
    (void)state;
    static const int64_t negative[] = {1, 2, -3, 4, 5, 6, 7},
                         huge[] = {1, 2, 3, 4, 5, INT64_MAX, 7};
    static const struct {
        int64_t code, width;
        const int64_t *tokens;
        const char *words;
    } cases[] = {
        {8, 2, seven, "x.bin: token 6 (at byte 12) is 999; allowed: 0 to 998"},
        {4, 4, seven, "x.bin: token 6 (at byte 24) is 999"},
        {2, 1, negative, "x.bin: token 2 (at byte 2) is -3"},
        {3, 2, negative, "x.bin: token 2 (at byte 4) is -3"},
        {4, 4, negative, "is -3"},
        {5, 8, negative, "is -3"},
        {5, 8, huge, "x.bin: token 5 (at byte 40) is 9223372036854775807"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        scratch s = make_scratch();
        index_facts facts = sound_index(cases[i].code, cases[i].width);
        save_megatron(&s, "x", &facts, cases[i].tokens, 7);
        assert_fails(PL_BAD_INPUT, try_data(in_scratch(&s, "x.bin"), 999), cases[i].words);
        remove_scratch(&s);
    }
    bytes_made made;
    scratch s = make_scratch();
    make_llm_c(&made, 20240520, 1, 7, seven, 7, 2);
    save(&s, "y.bin", &made);
    assert_fails(PL_BAD_INPUT, try_data(in_scratch(&s, "y.bin"), 999),
                 "y.bin: token 6 (at byte 1036) is 999", "the model's vocab_size being 999");
    const int64_t wide[] = {1, 2, 3, 4, 4294967295, 6, 7};
    make_llm_c(&made, 20240801, 7, 7, wide, 7, 4);
    save(&s, "y.bin", &made);
    assert_fails(PL_BAD_INPUT, try_data(in_scratch(&s, "y.bin"), 999), "is 4294967295");
    remove_scratch(&s);
}

static void text_needs_room_in_the_vocabulary(void **state)
{
    (void)state;
    scratch s = make_scratch();
    write_words(&s, "text", "longer than a sequence");
    assert_ok(try_data(in_scratch(&s, "text"), 257));
    assert_fails(PL_BAD_INPUT, try_data(in_scratch(&s, "text"), 256),
                 "text: plain text has 257 different tokens", "vocab_size is 256");
    bytes_made made;
    make_llm_c(&made, 20240520, 1, 6, seven, 6, 2);
    save(&s, "x.bin", &made);
    assert_ok(try_data(in_scratch(&s, "x.bin"), 7)); /* other files need what is in them */
    remove_scratch(&s);
}

static void too_little_data_is_refused_with_both_numbers(void **state)
{
    (void)state;
    scratch s = make_scratch();
    pl_samples *samples = NULL;
    write_words(&s, "text", "abc");
    assert_fails(PL_BAD_INPUT, try_data(in_scratch(&s, "text"), VOCABULARY),
                 "4 tokens in 1 file; a sequence of 4 and the label of its last token need 5");
    write_words(&s, "text", "abcd");
    assert_ok(try_data(in_scratch(&s, "text"), VOCABULARY));
    assert_fails(PL_BAD_INPUT, pl_samples_open(&samples, NULL, 0, VOCABULARY, SEQUENCE, 1),
                 "no file or folder with data is named");
    assert_fails(PL_BAD_INPUT, try_data(in_scratch(&s, "gone"), VOCABULARY), "gone: No such file");
    remove_scratch(&s);
}

static void files_that_may_not_be_read_are_named(void **state)
{
    (void)state;
    scratch s = make_scratch();
    bool is_root = geteuid() == 0;
    assert_int_equal(chmod(s.folder, 0755), 0);
    write_words(&s, "closed", "longer than a sequence");
    assert_int_equal(chmod(in_scratch(&s, "closed"), 0), 0);
    if (is_root) assert_int_equal(seteuid(65534), 0); /* whom it is closed to */
    assert_fails(PL_BAD_INPUT, try_data(s.folder, VOCABULARY), "closed: Permission denied");
    if (is_root) assert_int_equal(seteuid(0), 0);
    remove_scratch(&s);
}

static void files_that_change_during_a_run_stop_it(void **state)
{
    (void)state;
    int32_t out[16];
    pl_tokens *tokens = NULL;
    scratch s = make_scratch();
    write_words(&s, "text", "0123456789");
    const char *path = in_scratch(&s, "text");
    assert_ok(pl_tokens_open(&tokens, &path, 1, VOCABULARY));
    write_words(&s, "text", "01234");
    assert_fails(PL_IO_FAILED, pl_tokens_read(tokens, 0, 3, out),
                 "text: 5 bytes, and 10 when the run began");
    write_words(&s, "text", "0123456789a");
    assert_fails(PL_IO_FAILED, pl_tokens_read(tokens, 0, 3, out), "text: 11 bytes, and 10");
    assert_int_equal(remove(in_scratch(&s, "text")), 0);
    assert_fails(PL_IO_FAILED, pl_tokens_read(tokens, 0, 3, out), "text: No such file",
                 "it could be read when the run began");
    assert_int_equal(mkfifo(in_scratch(&s, "text"), 0600), 0);
    assert_fails(PL_IO_FAILED, pl_tokens_read(tokens, 0, 3, out), "text: not a regular file");
    pl_tokens_close(tokens);
    remove_scratch(&s);
}

static void places_that_are_none_are_refused(void **state)
{
    (void)state;
    int32_t out[16];
    pl_tokens *tokens = NULL;
    scratch s = make_scratch();
    write_words(&s, "text", "0123456789");
    const char *path = in_scratch(&s, "text");
    assert_ok(pl_tokens_open(&tokens, &path, 1, VOCABULARY));
    assert_fails(PL_INTERNAL, pl_tokens_read(tokens, 9, 3, out), "3 tokens from 9 of 11");
    assert_fails(PL_INTERNAL, pl_tokens_read(tokens, -1, 3, out), "3 tokens from -1");
    assert_fails(PL_INTERNAL, pl_tokens_read(tokens, 12, 0, out), "0 tokens from 12");
    assert_fails(PL_INTERNAL, pl_tokens_read(tokens, 1, INT64_MAX, out), "of 11");
    pl_tokens_close(tokens);
    remove_scratch(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_llm_c_files_are_refused),
        cmocka_unit_test(wrong_indexes_are_refused),
        cmocka_unit_test(indexes_that_are_cut_or_too_long_are_refused),
        cmocka_unit_test(data_without_its_other_half_is_refused),
        cmocka_unit_test(tokens_outside_the_vocabulary_are_named),
        cmocka_unit_test(text_needs_room_in_the_vocabulary),
        cmocka_unit_test(too_little_data_is_refused_with_both_numbers),
        cmocka_unit_test(files_that_may_not_be_read_are_named),
        cmocka_unit_test(files_that_change_during_a_run_stop_it),
        cmocka_unit_test(places_that_are_none_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
