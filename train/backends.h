/* Which backend computes: the CPU's, or a CUDA plugin's. */
#ifndef PL_TRAIN_BACKENDS_H
#define PL_TRAIN_BACKENDS_H

#include "common/run_file.h"
#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Open the CPU backend with WORKERS workers (0: one for each processor), or the CUDA plugin. The
 * caller closes. Errors: PL_UNSUPPORTED with the reason why it cannot be used; PL_NO_MEMORY. */
pl_status pl_backends_open_cpu(pl_backend **out, int64_t workers);
pl_status pl_backends_open_cuda(pl_backend **out);

/* Where RUN asks for `auto`, make that cuda if it can be used, else cpu, with the defaults that
 * follow from it; *REMARK then says why ("": nothing to say). Errors: PL_NO_MEMORY. */
pl_status pl_backends_settle(pl_run *run, pl_text *remark);

/* Open CHOICE, cpu or cuda. Errors: as above. */
pl_status pl_backends_open(pl_backend **out, pl_backend_choice choice, int64_t workers);

/* NULL is allowed. */
void pl_backends_close(pl_backend *backend);

#ifdef __cplusplus
}
#endif
#endif
