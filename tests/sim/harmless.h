/* Why a damaged plan that no proof objects to is as good as the sound one, decided from the two
 * texts alone. */
#ifndef PL_TESTS_SIM_HARMLESS_H
#define PL_TESTS_SIM_HARMLESS_H

#include "common/status.h"

/* *REASON is static words, or NULL when nothing known makes the change from the text BEFORE to
 * the text AFTER harmless. Errors: PL_NO_MEMORY; PL_BAD_INPUT when a text cannot be read. */
pl_status harmless_reason(const char **reason, const char *before, const char *after);

#endif
