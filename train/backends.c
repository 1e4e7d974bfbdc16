#include "train/backends.h"

#include "kernels/cpu/cpu.h"

pl_status pl_backends_open_cpu(pl_backend **out, int64_t workers)
{
    return pl_backend_cpu_open(out, (int)workers);
}

pl_status pl_backends_open_cuda(pl_backend **out)
{
    *out = NULL;
    return PL_FAIL(PL_UNSUPPORTED, "this build has no CUDA plugin");
}

pl_status pl_backends_open(pl_backend **out, pl_backend_choice choice, int64_t workers,
                           pl_text *remark)
{
    if (choice == PL_BACKEND_CPU) return pl_backends_open_cpu(out, workers);
    pl_status status = pl_backends_open_cuda(out);
    if (status == PL_OK || choice == PL_BACKEND_CUDA) return status;
    pl_text_add(remark, "backend auto: cpu, since cuda cannot be used: %s", pl_error_text());
    PL_TRY(pl_text_status(remark));
    return pl_backends_open_cpu(out, workers);
}

void pl_backends_close(pl_backend *backend)
{
    if (backend) backend->functions->close(backend);
}
