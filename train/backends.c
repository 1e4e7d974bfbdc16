#include "train/backends.h"

#include "kernels/cpu/cpu.h"
#include "kernels/plugin.h"

pl_status pl_backends_open_cpu(pl_backend **out, int64_t workers)
{
    return pl_backend_cpu_open(out, (int)workers);
}

/* A backend without some operations cannot train: better said before a run than within it. */
static pl_status require_operations(const pl_backend *backend)
{
    pl_text missing = {0};
    int count = pl_backend_lacks(backend, &missing);
    pl_status status = pl_text_status(&missing);
    if (status == PL_OK && count > 0)
        status = PL_FAIL(PL_UNSUPPORTED, "%s: backend %s does not have the operations %s yet",
                         backend->functions->describe(backend), backend->functions->name,
                         pl_text_string(&missing));
    pl_text_free(&missing);
    return status;
}

pl_status pl_backends_open_cuda(pl_backend **out)
{
    pl_backend *backend = NULL;
    PL_TRY(pl_plugin_open(&backend, NULL));
    pl_status status = require_operations(backend);
    if (status != PL_OK) {
        pl_backends_close(backend);
        return status;
    }
    *out = backend;
    return PL_OK;
}

pl_status pl_backends_settle(pl_run *run, pl_text *remark)
{
    pl_backend *cuda = NULL;
    if (run->backend != PL_BACKEND_AUTO) return PL_OK;
    if (pl_backends_open_cuda(&cuda) == PL_OK) {
        pl_backends_close(cuda);
        return pl_run_set_key(run, "backend", "cuda", "backend auto");
    }
    pl_text_add(remark, "backend auto: cpu, since cuda cannot be used: %s\n", pl_error_text());
    PL_TRY(pl_text_status(remark));
    return pl_run_set_key(run, "backend", "cpu", "backend auto");
}

pl_status pl_backends_open(pl_backend **out, pl_backend_choice choice, int64_t workers)
{
    return choice == PL_BACKEND_CPU ? pl_backends_open_cpu(out, workers)
                                    : pl_backends_open_cuda(out);
}

void pl_backends_close(pl_backend *backend)
{
    if (backend) backend->functions->close(backend);
}
