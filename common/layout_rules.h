/* Which numbers make a layout, and the words of a refusal. Shared by the files of layouts and
 * placements only; everybody else uses common/layout.h.
 *
 * A refusal ends in what would fit, as "KEY=NUMBER would fit" or "KEY=NUMBER or KEY=NUMBER would
 * fit", in the spelling of the notation.
 */
#ifndef PL_COMMON_LAYOUT_RULES_H
#define PL_COMMON_LAYOUT_RULES_H

#include <stdint.h>

#include "common/layout.h"
#include "common/status.h"
#include "common/text.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pl_layout_key {
    PL_KEY_WORLD,
    PL_KEY_PP,
    PL_KEY_CP,
    PL_KEY_EP,
    PL_KEY_REPLICAS,
    PL_LAYOUT_KEY_COUNT
} pl_layout_key;

/* What was asked for, and where: column 0 stands for a number that was not typed. */
typedef struct pl_layout_request {
    pl_layout_kind kind;
    pl_grain grain;
    int64_t number[PL_LAYOUT_KEY_COUNT];
    int column[PL_LAYOUT_KEY_COUNT];
    const char *notation; /* as typed, borrowed; NULL when there is none */
} pl_layout_request;

/* The layout of REQUEST, or why there is none. Errors: PL_BAD_INPUT, PL_NO_MEMORY (for words). */
pl_status pl_layout_build(pl_layout *out, const pl_layout_request *request);

/* Whether the numbers of REQUEST are in range and all divisions exact. Errors as above. */
pl_status pl_layout_check_rules(const pl_layout_request *request);

/* Add "layout 'NOTATION', column C: "; without a notation "layout: ", without a column (0)
 * neither comma nor column. */
void pl_layout_add_place(pl_text *text, const char *notation, int column);

/* Add the divisors of NUMBER next to GIVEN, as "ep=2 or ep=4". NUMBER > 0. */
void pl_layout_add_divisors(pl_text *text, const char *key, int64_t number, int64_t given);

/* Make TEXT the thread's failure, free it, and return CODE; PL_NO_MEMORY when words were lost. */
pl_status pl_layout_refuse(pl_status code, pl_text *text);

#ifdef __cplusplus
}
#endif
#endif
