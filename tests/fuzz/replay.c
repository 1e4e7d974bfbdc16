/* The committed bytes of tests/fuzz/corpus/NAME through a harness, and each of them cut short and
 * with single bits turned: a short deterministic part of what tests/fuzz/run does. */
#include <dirent.h>

#include "tests/fuzz/fuzz.h"
#include "tests/scratch.h"

#ifndef FUZZ_NAME
#define FUZZ_NAME "none"
#endif

static void run_bytes(const char *bytes, size_t count)
{
    assert_int_equal(LLVMFuzzerTestOneInput((const uint8_t *)bytes, count), 0);
}

static void run_variants(const char *path)
{
    enum { CUTS = 64, FLIPS = 256 };
    size_t count = 0;
    char *bytes = read_bytes(path, &count);
    run_bytes(bytes, count);
    for (size_t i = 0; i < CUTS; ++i) run_bytes(bytes, count * i / CUTS);
    for (size_t i = 0; i < FLIPS && count > 0; ++i) {
        size_t place = i * 2654435761U % count;
        char bit = (char)(1 << i % 8);
        bytes[place] ^= bit;
        run_bytes(bytes, count);
        bytes[place] ^= bit;
    }
    free(bytes);
}

static void the_corpus_is_survived(void **state)
{
    static const char folder[] = "tests/fuzz/corpus/" FUZZ_NAME;
    int files = 0;
    DIR *listing = opendir(folder);
    (void)state;
    assert_non_null(listing);
    for (struct dirent *entry = readdir(listing); entry; entry = readdir(listing)) {
        char path[SCRATCH_PATH];
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        run_variants(path);
        ++files;
    }
    closedir(listing);
    assert_true(files > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_corpus_is_survived)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
