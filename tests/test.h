/* What every suite includes: CMocka with the headers it needs, and asserts on statuses.
 *
 * CMocka's asserts jump out of the function, so they may be used on the main thread only: bodies
 * that run as ranks record what happened, and the test asserts after joining them.
 */
#ifndef PL_TESTS_TEST_H
#define PL_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/status.h"

/* EXPRESSION succeeds; if not, its words are printed. */
#define assert_ok(expression)                                                                      \
    do {                                                                                           \
        if ((expression) != PL_OK) fail_msg("%s", pl_error_text());                                \
    } while (0)

/* EXPRESSION fails with CODE and its words contain each of the following strings. */
#define assert_fails(code, expression, ...)                                                        \
    do {                                                                                           \
        pl_error_clear();                                                                          \
        pl_status assert_status_ = (expression);                                                   \
        const char *const assert_words_[] = {__VA_ARGS__};                                         \
        if (assert_status_ != (code))                                                              \
            fail_msg("status %s, expected %s: %s", pl_status_name(assert_status_),                 \
                     pl_status_name(code), pl_error_text());                                       \
        for (size_t assert_i_ = 0; assert_i_ < sizeof assert_words_ / sizeof *assert_words_;       \
             ++assert_i_)                                                                          \
            if (!strstr(pl_error_text(), assert_words_[assert_i_]))                                \
                fail_msg("no '%s' in: %s", assert_words_[assert_i_], pl_error_text());             \
    } while (0)

#endif
