/* How verdicts look in what commands print.
 */
#ifndef PL_SIM_VERDICT_TEXT_H
#define PL_SIM_VERDICT_TEXT_H

#include "sim/command.h"
#include "sim/proof.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Add "proved", "FAILED" or "undecided", in colour for terminals, padded to one width. */
void pl_verdict_add(pl_output *output, pl_outcome outcome);

/* The same word for machines: "proved", "failed", "undecided". */
const char *pl_verdict_name(pl_outcome outcome);

/* Add the lines of WORDS, indented to stand below a verdict. */
void pl_verdict_add_words(pl_text *text, const char *words);

#ifdef __cplusplus
}
#endif
#endif
