/* Devices whose memory nobody may follow: outside the device's own calls it is out of reach, and a
 * single look at it ends the program. A whole start, step, evaluation and export pass.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/memory.h"
#include "tests/test.h"
#include "tests/train/lone_rank.h"

enum { BLOCKS = 64 };

/* A device that hands every call on to another one, its own memory opened for the time. */
typedef struct fence {
    pl_device head;
    pl_device *inner;
    int calls;
    struct {
        void *start;
        size_t bytes;
    } block[BLOCKS];
    int blocks;
} fence;

static fence *fence_of(pl_device *device) { return (fence *)device; }

static void protect(const fence *f, int access)
{
    for (int i = 0; i < f->blocks; ++i)
        if (mprotect(f->block[i].start, f->block[i].bytes, access) != 0) abort();
}

static fence *enter(pl_device *device)
{
    fence *f = fence_of(device);
    f->inner->entry = device->entry;
    ++f->calls;
    protect(f, PROT_READ | PROT_WRITE);
    return f;
}

static pl_status leave(const fence *f, pl_status status)
{
    protect(f, PROT_NONE);
    return status;
}

#define FENCED(name, arguments)                                                                    \
    static pl_status fenced_##name(pl_device *device, pl_stream stream, const arguments *a)        \
    {                                                                                              \
        fence *f = enter(device);                                                                  \
        return leave(f, f->inner->operations->name(f->inner, stream, a));                          \
    }
PL_DEVICE_OPERATIONS(FENCED)
#undef FENCED

#define FENCED(name, arguments) .name = fenced_##name,
static const pl_operations operations = {PL_DEVICE_OPERATIONS(FENCED)};
#undef FENCED

/* Whole pages, so that nothing else is fenced. */
static pl_status fenced_allocate(pl_device *device, void **out, int64_t bytes, const char *what)
{
    fence *f = fence_of(device);
    size_t page = (size_t)sysconf(_SC_PAGESIZE), rounded = ((size_t)bytes + page - 1) / page * page;
    void *memory = NULL;
    *out = NULL;
    if (bytes == 0) return PL_OK;
    if (f->blocks == BLOCKS) return PL_FAIL(PL_NO_MEMORY, "more blocks than %s may have", what);
    if (posix_memalign(&memory, page, rounded) != 0)
        return PL_FAIL(PL_NO_MEMORY, "no memory for %s", what);
    if (mprotect(memory, rounded, PROT_NONE) != 0) abort();
    f->block[f->blocks].start = memory;
    f->block[f->blocks++].bytes = rounded;
    *out = memory;
    return PL_OK;
}

static void fenced_release(pl_device *device, void *memory)
{
    fence *f = fence_of(device);
    for (int i = 0; i < f->blocks; ++i) {
        if (f->block[i].start != memory) continue;
        if (mprotect(memory, f->block[i].bytes, PROT_READ | PROT_WRITE) != 0) abort();
        f->block[i] = f->block[--f->blocks];
        free(memory);
        return;
    }
}

static pl_status fenced_allocate_host(pl_device *device, void **out, int64_t bytes,
                                      const char *what)
{
    pl_device *inner = fence_of(device)->inner;
    return inner->functions->allocate_host(inner, out, bytes, what);
}

static void fenced_release_host(pl_device *device, void *memory)
{
    pl_device *inner = fence_of(device)->inner;
    inner->functions->release_host(inner, memory);
}

static pl_status fenced_copy(pl_device *device, pl_stream stream, void *to, const void *from,
                             int64_t bytes, pl_copy_kind kind)
{
    fence *f = enter(device);
    return leave(f, f->inner->functions->copy(f->inner, stream, to, from, bytes, kind));
}

static pl_status fenced_fill(pl_device *device, pl_stream stream, void *to, int byte, int64_t bytes)
{
    fence *f = enter(device);
    return leave(f, f->inner->functions->fill(f->inner, stream, to, byte, bytes));
}

static pl_status fenced_record(pl_device *device, pl_stream stream, int32_t event)
{
    pl_device *inner = fence_of(device)->inner;
    return inner->functions->record(inner, stream, event);
}

static pl_status fenced_wait(pl_device *device, pl_stream stream, int32_t event)
{
    pl_device *inner = fence_of(device)->inner;
    return inner->functions->wait(inner, stream, event);
}

static pl_status fenced_synchronize(pl_device *device, pl_stream stream)
{
    pl_device *inner = fence_of(device)->inner;
    return inner->functions->synchronize(inner, stream);
}

static const pl_device_functions functions = {.allocate = fenced_allocate,
                                              .release = fenced_release,
                                              .allocate_host = fenced_allocate_host,
                                              .release_host = fenced_release_host,
                                              .copy = fenced_copy,
                                              .fill = fenced_fill,
                                              .record = fenced_record,
                                              .wait = fenced_wait,
                                              .synchronize = fenced_synchronize};

/* The device of the running test. */
static fence fenced;

static pl_device *put_fence(pl_device *device)
{
    fenced = (fence){.head = *device, .inner = device};
    fenced.head.functions = &functions;
    fenced.head.operations = &operations;
    return &fenced.head;
}

static pl_status take_values(void *context, const pl_tensor *tensor, int64_t row_begin,
                             int64_t row_end, pl_dtype dtype, const void *values)
{
    const float *value = values;
    (void)context;
    (void)row_begin;
    (void)row_end;
    if (dtype != PL_FP32 || !(value[0] > -1e9F))
        return PL_FAIL(PL_INTERNAL, "%s cannot be read", tensor->suffix);
    return PL_OK;
}

static pl_status take_saved(void *context, pl_value_kind kind, const pl_tensor *tensor,
                            int64_t row_begin, int64_t row_end, pl_dtype dtype, const void *values)
{
    (void)kind;
    return take_values(context, tensor, row_begin, row_end, dtype, values);
}

static pl_status give_saved(void *context, pl_value_kind kind, const pl_tensor *tensor,
                            int64_t row_begin, int64_t row_end, pl_dtype dtype, void *out)
{
    (void)context;
    (void)kind;
    memset(out, 0, (size_t)((row_end - row_begin) * tensor->cols * pl_dtype_bytes(dtype)));
    return PL_OK;
}

static void programs_pass_without_a_look(const char *model, pl_policy policy, bool loads)
{
    const pl_program order[] = {loads ? PL_PROGRAM_LOAD : PL_PROGRAM_START,
                                PL_PROGRAM_STEP,
                                PL_PROGRAM_STEP,
                                PL_PROGRAM_EVALUATE,
                                PL_PROGRAM_EXPORT,
                                PL_PROGRAM_SAVE};
    lone_rank lone = {.wrap = put_fence,
                      .outside = {.write_values = take_values,
                                  .save_values = take_saved,
                                  .load_values = give_saved}};
    pl_program_result result;
    uint32_t programs = 0;
    for (size_t i = 0; i < sizeof order / sizeof *order; ++i) programs |= 1U << order[i];
    assert_ok(
        lone_plan(&lone.plan, model, "single:world=1", programs, policy, (pl_shape){8, 1, 2, 2}));
    assert_ok(lone_open(&lone));
    for (size_t i = 0; i < sizeof order / sizeof *order; ++i)
        assert_ok(lone_run(&lone, order[i], &result));
    assert_true(fenced.calls > 200);
    assert_true(fenced.blocks > 0);
    lone_close(&lone);
    assert_int_equal(fenced.blocks, 0);
}

static void the_trainer_never_follows_a_device_pointer(void **state)
{
    (void)state;
    programs_pass_without_a_look("mixed", (pl_policy){0}, false);
    programs_pass_without_a_look(
        "moe-tied", (pl_policy){.dispatch = PL_DISPATCH_ALL_GATHER, .recompute = PL_RECOMPUTE_FULL},
        false);
    programs_pass_without_a_look("dense", (pl_policy){.routing = PL_ROUTING_BALANCED}, false);
    programs_pass_without_a_look("mixed", (pl_policy){0}, true);
}

/* The fence holds: the kernel itself, asked to read fenced memory, answers that it cannot. */
static void a_fence_keeps_everybody_out(void **state)
{
    (void)state;
    lone_rank lone = {.wrap = put_fence};
    int ends[2];
    assert_ok(lone_plan(&lone.plan, "dense", "single:world=1", 0, (pl_policy){0},
                        (pl_shape){8, 1, 1, 1}));
    assert_ok(lone_open(&lone));
    assert_int_equal(pipe(ends), 0);
    assert_true(fenced.blocks > 0);
    assert_int_equal(write(ends[1], fenced.block[0].start, 1), -1);
    close(ends[0]);
    close(ends[1]);
    lone_close(&lone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_trainer_never_follows_a_device_pointer),
        cmocka_unit_test(a_fence_keeps_everybody_out),
    };
    return cmocka_run_group_tests_name("train/executor_fence", tests, NULL, NULL);
}
