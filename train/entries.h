/* The table from operation to function.
 *
 * Each function makes the device, group and outside calls of one entry and nothing besides; which
 * of an operation's forms it is (forward, backward, of which buffers) it sees from the pass and
 * the buffers that the entry names. Saved values are laid out as said beside the functions.
 */
#ifndef PL_TRAIN_ENTRIES_H
#define PL_TRAIN_ENTRIES_H

#include "train/executor_work.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef pl_status (*pl_entry_function)(pl_work *work);

/* The function of OPERATION; never NULL for 0 <= OPERATION < PL_OPERATION_COUNT. */
pl_entry_function pl_entry_function_of(pl_operation operation);

/* The second half of a control entry, once its reduction is done: flags and numbers become known
 * to the host. */
pl_status pl_do_control_finish(pl_work *work);

/* entries_batch.c */
pl_status pl_do_load_batch(pl_work *work);
pl_status pl_do_count_tokens(pl_work *work);
pl_status pl_do_copy_batch(pl_work *work);
/* entries_parameters.c */
pl_status pl_do_initialize(pl_work *work);
pl_status pl_do_copy(pl_work *work);
pl_status pl_do_write(pl_work *work);
pl_status pl_do_read(pl_work *work);
pl_status pl_do_zero(pl_work *work);
/* entries_units.c */
pl_status pl_do_cast(pl_work *work);
pl_status pl_do_gather(pl_work *work);
pl_status pl_do_reshard(pl_work *work);
pl_status pl_do_reduce(pl_work *work);
pl_status pl_do_accumulate(pl_work *work);
/* entries_dense.c */
pl_status pl_do_embed(pl_work *work);
pl_status pl_do_mlp(pl_work *work);
pl_status pl_do_final_norm(pl_work *work);
/* entries_attention.c */
pl_status pl_do_attention(pl_work *work);
/* entries_head.c */
pl_status pl_do_loss(pl_work *work);
pl_status pl_do_logits(pl_work *work);
pl_status pl_do_sample(pl_work *work);
/* entries_route.c */
pl_status pl_do_route(pl_work *work);
pl_status pl_do_balance(pl_work *work);
/* entries_rows.c */
pl_status pl_do_exchange_counts(pl_work *work);
pl_status pl_do_bind(pl_work *work);
pl_status pl_do_permute(pl_work *work);
pl_status pl_do_share_routes(pl_work *work);
pl_status pl_do_dispatch(pl_work *work);
pl_status pl_do_combine(pl_work *work);
pl_status pl_do_merge(pl_work *work);
/* entries_experts.c */
pl_status pl_do_experts(pl_work *work);
/* entries_update.c */
pl_status pl_do_all_reduce(pl_work *work);
pl_status pl_do_scale(pl_work *work);
pl_status pl_do_gradient_norm(pl_work *work);
pl_status pl_do_clip(pl_work *work);
pl_status pl_do_step(pl_work *work);
pl_status pl_do_control(pl_work *work);

#ifdef __cplusplus
}
#endif
#endif
