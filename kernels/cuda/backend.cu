/* The backend and the function by which a program opens it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/memory.h"
#include "kernels/cuda/cuda.cuh"

enum { DEVICES_MOST = 64, LEAST_MAJOR = 8 };

struct pl_cuda_backend {
    pl_backend head; /* first */
    int devices;
    char description[512];
};

static constexpr pl_operations make_operations()
{
    pl_operations o = {};
    o.rms_norm = pl_cuda_rms_norm;
    o.rms_norm_backward = pl_cuda_rms_norm_backward;
    o.swiglu = pl_cuda_swiglu;
    o.swiglu_backward = pl_cuda_swiglu_backward;
    return o;
}

static constexpr pl_operations operations = make_operations();

/* Ranks beyond the number of devices share them in turn. */
static pl_status open_device(pl_backend *backend, pl_device **out, int64_t rank,
                             int64_t local_index)
{
    const pl_cuda_backend *owner = reinterpret_cast<const pl_cuda_backend *>(backend);
    if (local_index < 0)
        return PL_FAIL(PL_INTERNAL, "rank %" PRId64 " is number %" PRId64 " of its process", rank,
                       local_index);
    return pl_cuda_device_open(backend, out, rank, static_cast<int>(local_index % owner->devices));
}

static const char *describe(const pl_backend *backend)
{
    return reinterpret_cast<const pl_cuda_backend *>(backend)->description;
}

static void close_backend(pl_backend *backend) { pl_free(backend); }

static constexpr pl_backend_functions functions = {"cuda", open_device, describe, close_backend};

/* --- what is there --- */

static pl_status refuse(const char *function, cudaError_t error)
{
    (void)cudaGetLastError();
    return PL_FAIL(PL_UNSUPPORTED, "%s: %s (%s)", function, cudaGetErrorString(error),
                   cudaGetErrorName(error));
}

/* Versions are 1000 times the major number and 10 times the minor. */
static pl_status find_versions(int *driver, int *runtime)
{
    cudaError_t error = cudaDriverGetVersion(driver);
    if (error == cudaSuccess) error = cudaRuntimeGetVersion(runtime);
    if (error != cudaSuccess) return refuse("the versions of CUDA are not known", error);
    if (*driver == 0)
        return PL_FAIL(PL_UNSUPPORTED,
                       "no CUDA driver is installed here (there is no libcuda.so.1)");
    /* Within a major version newer runtimes run with older drivers. */
    if (*driver / 1000 < *runtime / 1000)
        return PL_FAIL(PL_UNSUPPORTED,
                       "the driver serves CUDA %d.%d; this plugin is built with CUDA %d.%d and "
                       "needs a driver for CUDA %d.0 or later",
                       *driver / 1000, *driver % 1000 / 10, *runtime / 1000, *runtime % 1000 / 10,
                       *runtime / 1000);
    return PL_OK;
}

static pl_status find_devices(int *count)
{
    cudaError_t error = cudaGetDeviceCount(count);
    if (error == cudaErrorNoDevice || (error == cudaSuccess && *count <= 0)) {
        (void)cudaGetLastError();
        return PL_FAIL(PL_UNSUPPORTED,
                       "there is a driver but no CUDA device; CUDA_VISIBLE_DEVICES may hide them");
    }
    if (error != cudaSuccess) return refuse("CUDA devices cannot be counted", error);
    if (*count > DEVICES_MOST) *count = DEVICES_MOST;
    return PL_OK;
}

/* Add the name of device ORDINAL to the description, unless the one before has the same. */
static pl_status look_at(int ordinal, char *last, size_t last_bytes, pl_text *description)
{
    cudaDeviceProp found;
    cudaError_t error = cudaGetDeviceProperties(&found, ordinal);
    if (error != cudaSuccess) return refuse("a CUDA device cannot be described", error);
    if (found.major < LEAST_MAJOR)
        return PL_FAIL(PL_UNSUPPORTED,
                       "CUDA device %d, %.80s, has compute capability %d.%d; at least %d.0 is "
                       "needed; CUDA_VISIBLE_DEVICES can leave it out",
                       ordinal, found.name, found.major, found.minor, LEAST_MAJOR);
    if (strncmp(found.name, last, last_bytes) != 0)
        pl_text_add(description, "%s%.80s", ordinal > 0 ? " and " : "", found.name);
    (void)snprintf(last, last_bytes, "%s", found.name);
    return PL_OK;
}

static pl_status describe_all(int count, int driver, int runtime, pl_text *description)
{
    char last[256] = "";
    pl_text_add(description, "%d x ", count);
    for (int i = 0; i < count; ++i) PL_TRY(look_at(i, last, sizeof last, description));
    pl_text_add(description, ", CUDA %d.%d, driver for %d.%d", runtime / 1000, runtime % 1000 / 10,
                driver / 1000, driver % 1000 / 10);
    return pl_text_status(description);
}

static pl_status open_backend(pl_backend **out, pl_text *description)
{
    int driver = 0, runtime = 0, count = 0;
    pl_cuda_backend *backend = NULL;
    PL_TRY(find_versions(&driver, &runtime));
    PL_TRY(find_devices(&count));
    PL_TRY(describe_all(count, driver, runtime, description));
    PL_TRY(pl_allocate(&backend, 1, sizeof *backend, "the CUDA backend"));
    backend->head.functions = &functions;
    backend->head.operations = &operations;
    backend->devices = count;
    (void)snprintf(backend->description, sizeof backend->description, "%s",
                   pl_text_string(description));
    *out = &backend->head;
    return PL_OK;
}

extern "C" __attribute__((visibility("default"))) pl_status
pl_plugin_open_backend(pl_backend **out, int32_t interface)
{
    if (interface != PL_DEVICE_INTERFACE)
        return PL_FAIL(PL_UNSUPPORTED,
                       "the plugin has interface %d of pleat's devices and the program interface "
                       "%" PRId32 ": build both from the same sources",
                       static_cast<int>(PL_DEVICE_INTERFACE), interface);
    pl_text description = {};
    pl_status status = open_backend(out, &description);
    pl_text_free(&description);
    return status;
}
