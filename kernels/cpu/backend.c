#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/text.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/processors.h"

enum { COPY_BLOCK = 256 << 10, WORKSPACE_ALIGNMENT = 64, WORKERS_MOST = 4096 };

/* --- instruction sets --- */

const pl_operations *pl_cpu_operations_baseline(void);
#ifdef PL_ISA_AVX512
const pl_operations *pl_cpu_operations_avx2(void);
const pl_operations *pl_cpu_operations_avx512(void);
#endif

typedef struct isa_row {
    const char *name, *title;
    const pl_operations *(*operations)(void); /* NULL: not built for this kind of processor */
} isa_row;

static const isa_row isas[PL_CPU_ISA_COUNT] = {
    [PL_CPU_BASELINE] = {"baseline", "no vector extensions", pl_cpu_operations_baseline},
#ifdef PL_ISA_AVX512
    [PL_CPU_AVX2] = {"avx2", "AVX2", pl_cpu_operations_avx2},
    [PL_CPU_AVX512] = {"avx512", "AVX-512", pl_cpu_operations_avx512},
#else
    [PL_CPU_AVX2] = {"avx2", "AVX2", NULL},
    [PL_CPU_AVX512] = {"avx512", "AVX-512", NULL},
#endif
};

const char *pl_cpu_isa_name(pl_cpu_isa isa) { return isas[isa].name; }

bool pl_cpu_isa_usable(pl_cpu_isa isa)
{
    if (isa == PL_CPU_BASELINE) return true;
#ifdef PL_ISA_AVX512
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == PL_CPU_AVX2) return avx2;
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}

static pl_status choose_isa(pl_cpu_isa *out)
{
    int best = PL_CPU_ISA_COUNT - 1;
    while (!pl_cpu_isa_usable((pl_cpu_isa)best)) --best;
    const char *wanted = getenv("PLEAT_CPU_ISA");
    int chosen = best;
    if (wanted && *wanted) {
        for (chosen = 0; chosen < PL_CPU_ISA_COUNT; ++chosen)
            if (strcmp(wanted, isas[chosen].name) == 0) break;
        if (chosen == PL_CPU_ISA_COUNT)
            return PL_FAIL(PL_BAD_INPUT,
                           "PLEAT_CPU_ISA is '%.40s'; allowed: baseline, avx2, avx512", wanted);
        if (!pl_cpu_isa_usable((pl_cpu_isa)chosen))
            return PL_FAIL(PL_UNSUPPORTED,
                           "PLEAT_CPU_ISA=%s: this processor, or this build, does not have that; "
                           "the most it has is %s",
                           wanted, isas[best].name);
    }
    *out = (pl_cpu_isa)chosen;
    return PL_OK;
}

/* --- devices --- */

static pl_cpu_device *cpu_device(pl_device *device) { return (pl_cpu_device *)device; }

static pl_status allocate(pl_device *device, void **out, int64_t bytes, const char *what)
{
    return pl_cpu_memory_allocate(cpu_device(device)->memory, out, bytes, what);
}

static void release(pl_device *device, void *memory)
{
    pl_cpu_memory_release(cpu_device(device)->memory, memory);
}

/* A copy (FROM is set) or a fill, in blocks. */
typedef struct move {
    char *to;
    const char *from;
    int64_t bytes;
    int byte;
} move;

static void move_block(void *context, int64_t index, void *scratch)
{
    (void)scratch;
    const move *m = context;
    int64_t begin = index * COPY_BLOCK, left = m->bytes - begin;
    size_t bytes = (size_t)(left < COPY_BLOCK ? left : COPY_BLOCK);
    if (m->from)
        memcpy(m->to + begin, m->from + begin, bytes);
    else
        memset(m->to + begin, m->byte, bytes);
}

static pl_status run_move(pl_device *device, move *m)
{
    return pl_pool_run(pl_cpu_pool(device), pl_divide_up(m->bytes, COPY_BLOCK), 0, move_block, m);
}

static pl_status copy(pl_device *device, pl_stream stream, void *to, const void *from,
                      int64_t bytes, pl_copy_kind kind)
{
    (void)kind;
    PL_TRY(pl_cpu_require(device, "copy", bytes >= 0 && (bytes == 0 || (to && from)),
                          "the size is at least 0 and both ends are given"));
    pl_touch touches[] = {pl_touch_read(from, bytes), pl_touch_write(to, bytes)};
    pl_device_note(device, stream, "copy", 0, touches, 2);
    if (bytes == 0 || to == from) return PL_OK;
    return run_move(device, &(move){.to = to, .from = from, .bytes = bytes});
}

static pl_status fill(pl_device *device, pl_stream stream, void *to, int byte, int64_t bytes)
{
    PL_TRY(pl_cpu_require(device, "fill", bytes >= 0 && (bytes == 0 || to),
                          "the size is at least 0 and the memory is given"));
    pl_touch touch = pl_touch_write(to, bytes);
    pl_device_note(device, stream, "fill", 0, &touch, 1);
    return run_move(device, &(move){.to = to, .bytes = bytes, .byte = byte});
}

/* Every call is done when it returns: events and streams have nothing to order. */

static pl_status use_event(pl_device *device, pl_stream stream, int32_t event)
{
    (void)stream;
    return pl_cpu_require(device, "event", event >= 0 && event < PL_DEVICE_EVENTS,
                          "events are numbered below PL_DEVICE_EVENTS");
}

static pl_status synchronize(pl_device *device, pl_stream stream)
{
    (void)device;
    (void)stream;
    return PL_OK;
}

static void close_device(pl_device *device)
{
    pl_cpu_device *closed = cpu_device(device);
    pl_free(closed->workspace);
    pl_cpu_memory_close(closed->memory);
    pl_free(closed);
}

pl_status pl_cpu_workspace(pl_device *device, int64_t bytes, void **out)
{
    pl_cpu_device *owner = cpu_device(device);
    int64_t padded = 0;
    PL_TRY(pl_add(&padded, bytes, WORKSPACE_ALIGNMENT, "an operation's workspace"));
    if ((size_t)padded > owner->workspace_bytes) {
        void *grown = NULL;
        PL_TRY(pl_allocate(&grown, (size_t)padded, 1, "an operation's workspace"));
        pl_free(owner->workspace);
        owner->workspace = grown;
        owner->workspace_bytes = (size_t)padded;
    }
    uintptr_t gap = WORKSPACE_ALIGNMENT - (uintptr_t)owner->workspace % WORKSPACE_ALIGNMENT;
    *out = (char *)owner->workspace + gap;
    return PL_OK;
}

/* --- the backend --- */

static const pl_device_functions device_functions = {
    .allocate = allocate,
    .release = release,
    .allocate_host = allocate,
    .release_host = release,
    .copy = copy,
    .fill = fill,
    .record = use_event,
    .wait = use_event,
    .synchronize = synchronize,
    .close = close_device,
};

static pl_status open_device(pl_backend *backend, pl_device **out, int64_t rank,
                             int64_t local_index)
{
    (void)local_index; /* all ranks share processors and pool */
    pl_cpu_backend *owner = (pl_cpu_backend *)backend;
    pl_cpu_device *device = NULL;
    PL_TRY(pl_allocate(&device, 1, sizeof *device, "a CPU device"));
    pl_status status = pl_cpu_memory_open(&device->memory);
    if (status != PL_OK) {
        pl_free(device);
        return status;
    }
    device->head.functions = &device_functions;
    device->head.operations = backend->operations;
    device->head.backend = backend;
    device->head.rank = rank;
    device->head.entry = pl_entry_name_make(PL_OP_CONTROL, PL_SUBJECT_FLAGS);
    device->pool = owner->pool;
    *out = &device->head;
    return PL_OK;
}

static const char *describe(const pl_backend *backend)
{
    return ((const pl_cpu_backend *)backend)->description;
}

static void close_backend(pl_backend *backend)
{
    pl_cpu_backend *closed = (pl_cpu_backend *)backend;
    pl_pool_close(closed->pool);
    pl_free(closed);
}

static const pl_backend_functions backend_functions = {
    .name = "cpu", .open_device = open_device, .describe = describe, .close = close_backend};

pl_status pl_backend_cpu_open(pl_backend **out, int workers)
{
    pl_cpu_isa isa = PL_CPU_BASELINE;
    char library[96];
    if (workers < 0 || workers > WORKERS_MOST)
        return PL_FAIL(PL_BAD_INPUT, "%d workers; allowed: 0 (one a processor) to %d", workers,
                       WORKERS_MOST);
    if (workers == 0) workers = pl_cpu_processors();
    PL_TRY(choose_isa(&isa));
    pl_cpu_blas_open();
    PL_TRY(pl_cpu_blas_check(pl_cpu_multiply));
    pl_cpu_backend *backend = NULL;
    PL_TRY(pl_allocate(&backend, 1, sizeof *backend, "the CPU backend"));
    pl_status status = pl_pool_open(&backend->pool, workers);
    if (status != PL_OK) {
        pl_free(backend);
        return status;
    }
    backend->head.functions = &backend_functions;
    backend->head.operations = isas[isa].operations();
    (void)snprintf(backend->description, sizeof backend->description, "%s, %s, %d worker%s",
                   isas[isa].title, pl_cpu_blas_describe(library, sizeof library), workers,
                   workers == 1 ? "" : "s");
    *out = &backend->head;
    return PL_OK;
}
