/* Backend fake of common/process_group.h: all ranks in one thread, nothing ever blocks.
 *
 * A started call is posted; when the last member has posted it, the data moves for all. Waiting
 * for a call that some members have not started returns PL_TIMED_OUT at once, with who is
 * missing; that is no failure of the domain, and the request can be waited for again later.
 *
 * It carries integers only (PL_I64, PL_I32, PL_U8): what the proofs carry through reductions is
 * exact or not at all. Fractions become integers modulo a prime.
 */
#ifndef PL_SIM_FAKE_GROUP_H
#define PL_SIM_FAKE_GROUP_H

#include "common/process_group.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How elements of PL_I64 are summed. */
typedef enum pl_fake_sums {
    PL_FAKE_SUMS_WRAP,  /* modulo 2^64, like the other backends */
    PL_FAKE_SUMS_MODULO /* modulo PL_FAKE_PRIME; results are 0 to PL_FAKE_PRIME - 1 */
} pl_fake_sums;

/* 2^61 - 1, a Mersenne prime: every fraction with a smaller denominator is one residue. */
#define PL_FAKE_PRIME INT64_C(0x1fffffffffffffff)

/* The world's group of RANKS ranks, one handle a rank in OUT[RANKS]; the caller closes each.
 * Calls with other element types fail with PL_UNSUPPORTED. Errors: PL_BAD_INPUT for ranks below
 * 1, PL_NO_MEMORY. */
pl_status pl_group_fake_open(pl_process_group **out, int64_t ranks, pl_fake_sums sums);

/* Whether REQUEST, started by this handle of backend fake, can be waited for: what a scheduler of
 * ranks asks, since it costs no words. */
bool pl_group_fake_is_done(const pl_process_group *group, pl_request request);

#ifdef __cplusplus
}
#endif
#endif
