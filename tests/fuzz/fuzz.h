/* What the harnesses of this folder are: one function that takes any bytes, calls the parser that
 * its file is about, and asserts what must hold of anything that the parser takes.
 *
 * tests/fuzz/run builds each with libFuzzer; replay.c runs the committed bytes of corpus/ through
 * the same function, as a suite.
 */
#ifndef PL_TESTS_FUZZ_FUZZ_H
#define PL_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* libFuzzer's name for it. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

/* Unlike assert, also where NDEBUG is set. */
#define FUZZ_HOLDS(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);         \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif
