/* The CPU backend itself: opening it, the BLAS library behind it, memory, copies, the log. */
#include <math.h>
#include <stdlib.h>

#include "common/memory.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/processors.h"
#include "tests/kernels/kernel_test.h"

/* --- opening --- */

static void the_backend_describes_itself(void **state)
{
    (void)state;
    pl_backend *backend = NULL;
    assert_ok(pl_backend_cpu_open(&backend, 2));
    assert_string_equal(backend->functions->name, "cpu");
    const char *words = backend->functions->describe(backend);
    assert_non_null(strstr(words, "OpenBLAS "));
    assert_non_null(strstr(words, ", 2 workers"));
    backend->functions->close(backend);
    assert_ok(pl_backend_cpu_open(&backend, 0));
    assert_int_equal(pl_pool_workers(((pl_cpu_backend *)backend)->pool), pl_cpu_processors());
    assert_true(pl_cpu_processors() >= 1);
    backend->functions->close(backend);
}

static void wrong_numbers_of_workers_are_refused(void **state)
{
    (void)state;
    pl_backend *backend = NULL;
    assert_fails(PL_BAD_INPUT, pl_backend_cpu_open(&backend, -1), "-1 workers", "allowed: 0");
    assert_fails(PL_BAD_INPUT, pl_backend_cpu_open(&backend, 5000), "5000 workers", "4096");
    assert_null(backend);
}

static void an_instruction_set_can_be_named(void **state)
{
    (void)state;
    static const char *const titles[] = {"no vector extensions", "AVX2", "AVX-512"};
    pl_backend *backend = NULL;
    for (int isa = 0; isa < PL_CPU_ISA_COUNT; ++isa) {
        setenv("PLEAT_CPU_ISA", pl_cpu_isa_name((pl_cpu_isa)isa), 1);
        pl_status status = pl_backend_cpu_open(&backend, 1);
        if (!pl_cpu_isa_usable((pl_cpu_isa)isa)) {
            assert_int_equal(status, PL_UNSUPPORTED);
            assert_non_null(strstr(pl_error_text(), "the most it has is"));
            continue;
        }
        assert_int_equal(status, PL_OK);
        const char *words = backend->functions->describe(backend);
        assert_ptr_equal(strstr(words, titles[isa]), words);
        assert_non_null(strstr(words, ", 1 worker"));
        backend->functions->close(backend);
    }
    setenv("PLEAT_CPU_ISA", "sse9", 1);
    assert_fails(PL_BAD_INPUT, pl_backend_cpu_open(&backend, 1), "'sse9'",
                 "baseline, avx2, avx512");
    setenv("PLEAT_CPU_ISA", "", 1);
    assert_ok(pl_backend_cpu_open(&backend, 1));
    backend->functions->close(backend);
    unsetenv("PLEAT_CPU_ISA");
}

static void instruction_sets_have_tables_of_their_own(void **state)
{
    (void)state;
    const pl_operations *tables[PL_CPU_ISA_COUNT];
    int count = 0;
    for (int isa = 0; isa < PL_CPU_ISA_COUNT; ++isa) {
        if (!pl_cpu_isa_usable((pl_cpu_isa)isa)) continue;
        kernel_test t;
        kernel_test_open(&t, (pl_cpu_isa)isa, 1);
        tables[count++] = t.operations;
        for (int i = 0; i + 1 < count; ++i) assert_ptr_not_equal(tables[i], tables[count - 1]);
        kernel_test_close(&t);
    }
    assert_true(count >= 1);
}

static void opening_without_memory_says_so(void **state)
{
    (void)state;
    int failures = 0;
    for (int64_t after = 0;; ++after) {
        pl_backend *backend = NULL;
        pl_device *device = NULL;
        pl_allocation_fail_after(after);
        pl_status status = pl_backend_cpu_open(&backend, 2);
        if (status == PL_OK) status = backend->functions->open_device(backend, &device, 0, 0);
        bool failed = pl_allocation_failed();
        pl_allocation_fail_after(-1);
        if (device) device->functions->close(device);
        if (backend) backend->functions->close(backend);
        assert_int_equal(status, failed ? PL_NO_MEMORY : PL_OK);
        if (!failed) break;
        ++failures;
    }
    assert_true(failures >= 6);
}

/* --- BLAS --- */

static void the_library_computes_products(void **state)
{
    (void)state;
    pl_cpu_blas_open();
    assert_ok(pl_cpu_blas_check(pl_cpu_multiply));
}

static float at(pl_cpu_factor factor, int64_t row, int64_t col)
{
    return factor.values[factor.transpose ? col * factor.stride + row : row * factor.stride + col];
}

static void loops(int64_t m, int64_t n, int64_t k, pl_cpu_factor a, pl_cpu_factor b, bool add,
                  float *c, int64_t c_stride)
{
    for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
            float sum = add ? c[i * c_stride + j] : 0;
            for (int64_t l = 0; l < k; ++l) sum += at(a, i, l) * at(b, l, j);
            c[i * c_stride + j] = sum;
        }
    }
}

/* Right but for one element of odd shapes, ... */
static void wrong_at_the_end(int64_t m, int64_t n, int64_t k, pl_cpu_factor a, pl_cpu_factor b,
                             bool add, float *c, int64_t c_stride)
{
    loops(m, n, k, a, b, add, c, c_stride);
    if (m % 2 == 1 && n > 1 && k > 1) c[(m - 1) * c_stride + n - 1] += 1e-3f;
}

/* ... when something is added, ... */
static void wrong_when_adding(int64_t m, int64_t n, int64_t k, pl_cpu_factor a, pl_cpu_factor b,
                              bool add, float *c, int64_t c_stride)
{
    (void)add;
    loops(m, n, k, a, b, false, c, c_stride);
}

/* ... when both factors are transposed, ... */
static void wrong_when_transposed(int64_t m, int64_t n, int64_t k, pl_cpu_factor a, pl_cpu_factor b,
                                  bool add, float *c, int64_t c_stride)
{
    loops(m, n, k, a, b, add, c, c_stride);
    if (a.transpose && b.transpose && m > 1) c[1] = -c[1];
}

/* ... in large products alone, ... */
static void wrong_when_large(int64_t m, int64_t n, int64_t k, pl_cpu_factor a, pl_cpu_factor b,
                             bool add, float *c, int64_t c_stride)
{
    loops(m, n, k, a, b, add, c, c_stride);
    if (m * n * k > 1000000) c[c_stride + 64] = 0;
}

/* ... and never. */
static void spoils(int64_t m, int64_t n, int64_t k, pl_cpu_factor a, pl_cpu_factor b, bool add,
                   float *c, int64_t c_stride)
{
    loops(m, n, k, a, b, add, c, c_stride);
    for (int64_t i = 0; i < m * n; ++i) c[i / n * c_stride + i % n] = (float)NAN;
}

static void a_wrong_library_is_refused(void **state)
{
    (void)state;
    assert_ok(pl_cpu_blas_check(loops));
    assert_fails(PL_UNSUPPORTED, pl_cpu_blas_check(wrong_at_the_end), "OpenBLAS",
                 "computes wrongly", "element (2, 4) of a 3 x 5 x 7 product", "should be",
                 "OPENBLAS_CORETYPE");
    assert_fails(PL_UNSUPPORTED, pl_cpu_blas_check(wrong_when_adding), "computes wrongly");
    assert_fails(PL_UNSUPPORTED, pl_cpu_blas_check(wrong_when_transposed),
                 "left transposed, right transposed");
    assert_fails(PL_UNSUPPORTED, pl_cpu_blas_check(wrong_when_large), "element (1, 64)");
    assert_fails(PL_UNSUPPORTED, pl_cpu_blas_check(spoils), "nan");
    pl_allocation_fail_after(0);
    assert_fails(PL_NO_MEMORY, pl_cpu_blas_check(loops), "BLAS");
    pl_allocation_fail_after(-1);
}

static void faster_kernels_are_named_only_where_there_are_some(void **state)
{
    (void)state;
    const char *better = pl_cpu_blas_better_core();
    if (better) assert_true(strcmp(better, "SkylakeX") == 0 || strcmp(better, "Haswell") == 0);
    char *before = getenv("OPENBLAS_CORETYPE"), *kept = NULL;
    if (before) assert_ok(pl_duplicate(&kept, before, "a variable"));
    setenv("OPENBLAS_CORETYPE", "Nehalem", 1); /* somebody's choice is left alone */
    assert_null(pl_cpu_blas_better_core());
    unsetenv("OPENBLAS_CORETYPE");
    if (kept) setenv("OPENBLAS_CORETYPE", kept, 1);
    pl_free(kept);
}

/* --- memory --- */

static void memory_is_aligned_and_given_out_again(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 255, 256, 4096, 4097, 1 << 20, (8 << 20) + 5};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    pl_cpu_memory *memory = NULL;
    void *first[COUNT], *again = NULL;
    assert_ok(pl_cpu_memory_open(&memory));
    for (int i = 0; i < COUNT; ++i) {
        assert_ok(pl_cpu_memory_allocate(memory, &first[i], sizes[i], "a block"));
        assert_true((uintptr_t)first[i] % 256 == 0);
        memset(first[i], i, (size_t)sizes[i]);
    }
    for (int i = 0; i < COUNT; ++i) assert_int_equal(((char *)first[i])[sizes[i] - 1], i);
    int64_t used = pl_cpu_memory_used(memory);
    for (int i = 0; i < COUNT; ++i) pl_cpu_memory_release(memory, first[i]);
    assert_int_equal(pl_cpu_memory_used(memory), 0);
    assert_int_equal(pl_cpu_memory_kept(memory), used);
    assert_ok(pl_cpu_memory_allocate(memory, &again, (8 << 20) + 5, "a block"));
    assert_ptr_equal(again, first[COUNT - 1]);
    pl_cpu_memory_release(memory, again);
    assert_ok(pl_cpu_memory_allocate(memory, &again, 6 << 20, "a block")); /* would waste a third */
    assert_ptr_not_equal(again, first[COUNT - 1]);
    pl_cpu_memory_release(memory, again);
    assert_ok(pl_cpu_memory_allocate(memory, &again, 0, "nothing"));
    assert_null(again);
    pl_cpu_memory_release(memory, NULL);
    pl_cpu_memory_close(memory);
    pl_cpu_memory_close(NULL);
}

static void kept_memory_is_bounded_by_what_was_in_use(void **state)
{
    (void)state;
    enum { COUNT = 12, SIZE = 1 << 16, ODD = 9 * 4096 };
    pl_cpu_memory *memory = NULL;
    void *block = NULL;
    int64_t most = 0;
    assert_ok(pl_cpu_memory_open(&memory));
    for (int64_t i = 1; i <= COUNT; ++i) { /* sizes that do not fit one another */
        int64_t size = i % 2 ? SIZE * i : SIZE * (COUNT + 1 - i) + ODD;
        assert_ok(pl_cpu_memory_allocate(memory, &block, size, "a block"));
        if (pl_cpu_memory_used(memory) > most) most = pl_cpu_memory_used(memory);
        assert_true(pl_cpu_memory_used(memory) + pl_cpu_memory_kept(memory) <= most + most / 2);
        pl_cpu_memory_release(memory, block);
        assert_true(pl_cpu_memory_kept(memory) <= most + most / 2);
        assert_true(pl_cpu_memory_kept(memory) > 0);
    }
    pl_cpu_memory_close(memory);
}

static void memory_that_is_not_there_is_refused(void **state)
{
    (void)state;
    pl_cpu_memory *memory = NULL;
    void *block = NULL, *kept = NULL;
    pl_allocation_fail_after(0);
    assert_fails(PL_NO_MEMORY, pl_cpu_memory_open(&memory), "memory");
    pl_allocation_fail_after(-1);
    assert_ok(pl_cpu_memory_open(&memory));
    assert_fails(PL_BAD_INPUT, pl_cpu_memory_allocate(memory, &block, -1, "x of layer 3"),
                 "x of layer 3", "negative");
    assert_fails(PL_BAD_INPUT, pl_cpu_memory_allocate(memory, &block, INT64_MAX - 1, "giants"),
                 "giants");
    pl_allocation_fail_after(0);
    assert_fails(PL_NO_MEMORY, pl_cpu_memory_allocate(memory, &block, 100, "a block"), "a block");
    assert_null(block);
    /* What is kept goes first, then there is another try. */
    pl_allocation_fail_after(-1);
    assert_ok(pl_cpu_memory_allocate(memory, &kept, 1 << 20, "kept"));
    pl_cpu_memory_release(memory, kept);
    pl_allocation_fail_after(0);
    assert_ok(pl_cpu_memory_allocate(memory, &block, 100, "a block"));
    assert_true(pl_allocation_failed());
    assert_int_equal(pl_cpu_memory_kept(memory), 0);
    pl_allocation_fail_after(0); /* no room in the list: freed at once instead */
    pl_cpu_memory_release(memory, block);
    pl_allocation_fail_after(-1);
    assert_int_equal(pl_cpu_memory_used(memory), 0);
    pl_cpu_memory_close(memory);
}

/* --- device functions --- */

static void copies_and_fills(kernel_test *t, const void *context)
{
    (void)context;
    static const int64_t sizes[] = {0, 1, 4095, (256 << 10) - 1, (512 << 10) + 3};
    const pl_device_functions *f = t->device->functions;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        int64_t bytes = sizes[i];
        unsigned char *host = NULL, *device = kernel_bytes(t, bytes),
                      *back = kernel_bytes(t, bytes);
        void *made = NULL;
        assert_ok(f->allocate_host(t->device, &made, bytes, "host memory"));
        host = made;
        for (int64_t j = 0; j < bytes; ++j) host[j] = (unsigned char)(j * 7);
        assert_ok(f->copy(t->device, PL_STREAM_COPY, device, host, bytes, PL_COPY_TO_DEVICE));
        kernel_recorded(t, "copy", 0, bytes ? 2 : 0);
        assert_int_equal(t->record.stream, PL_STREAM_COPY);
        if (bytes) kernel_touched(t, host, bytes, "r");
        if (bytes) kernel_touched(t, device, bytes, "w");
        assert_ok(f->copy(t->device, PL_STREAM_COPY, back, device, bytes, PL_COPY_TO_HOST));
        kernel_same(back, host, (size_t)bytes, "a copy of a copy");
        kernel_result(t, back, (size_t)bytes);
        assert_ok(f->fill(t->device, PL_STREAM_COMPUTE, back, 0x3c, bytes));
        kernel_recorded(t, "fill", 0, bytes ? 1 : 0);
        if (bytes) kernel_touched(t, back, bytes, "w");
        for (int64_t j = 0; j < bytes; ++j) assert_int_equal(back[j], 0x3c);
        f->release_host(t->device, host);
    }
    assert_fails(PL_INTERNAL,
                 f->copy(t->device, PL_STREAM_COPY, NULL, "x", 1, PL_COPY_WITHIN_DEVICE), "copy",
                 "loss head", "both ends");
    assert_fails(PL_INTERNAL, f->fill(t->device, PL_STREAM_COPY, NULL, 0, 1), "fill");
    assert_fails(PL_INTERNAL, f->fill(t->device, PL_STREAM_COPY, NULL, 0, -1), "fill");
}

static void copies_and_fills_move_bytes_and_are_logged(void **state)
{
    (void)state;
    kernel_everywhere(copies_and_fills, NULL);
}

static void events(kernel_test *t, const void *context)
{
    (void)context;
    const pl_device_functions *f = t->device->functions;
    assert_ok(f->record(t->device, PL_STREAM_COMPUTE, 0));
    assert_ok(f->wait(t->device, PL_STREAM_COPY, PL_DEVICE_EVENTS - 1));
    assert_ok(f->synchronize(t->device, PL_STREAM_COPY));
    assert_fails(PL_INTERNAL, f->record(t->device, PL_STREAM_COMPUTE, -1), "event");
    assert_fails(PL_INTERNAL, f->wait(t->device, PL_STREAM_COMPUTE, PL_DEVICE_EVENTS), "event");
    assert_int_equal(t->records, 0);
    t->device->log = NULL; /* no log: nothing is noted */
    assert_ok(f->fill(t->device, PL_STREAM_COPY, kernel_bytes(t, 4), 0, 4));
    assert_int_equal(t->records, 0);
}

static void events_have_nothing_to_order(void **state)
{
    (void)state;
    kernel_once(events, NULL, 1);
}

static void workspace(kernel_test *t, const void *context)
{
    (void)context;
    void *small = NULL, *large = NULL, *again = NULL;
    assert_ok(pl_cpu_workspace(t->device, 100, &small));
    assert_true((uintptr_t)small % 64 == 0);
    memset(small, 1, 100);
    assert_ok(pl_cpu_workspace(t->device, 1 << 20, &large));
    memset(large, 2, 1 << 20);
    assert_ok(pl_cpu_workspace(t->device, 50, &again));
    assert_ptr_equal(again, large);
    pl_allocation_fail_after(0);
    assert_fails(PL_NO_MEMORY, pl_cpu_workspace(t->device, 2 << 20, &again), "workspace");
    pl_allocation_fail_after(-1);
    assert_fails(PL_BAD_INPUT, pl_cpu_workspace(t->device, -1, &again), "workspace");
}

static void the_workspace_grows(void **state)
{
    (void)state;
    kernel_once(workspace, NULL, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_backend_describes_itself),
        cmocka_unit_test(wrong_numbers_of_workers_are_refused),
        cmocka_unit_test(an_instruction_set_can_be_named),
        cmocka_unit_test(instruction_sets_have_tables_of_their_own),
        cmocka_unit_test(opening_without_memory_says_so),
        cmocka_unit_test(the_library_computes_products),
        cmocka_unit_test(a_wrong_library_is_refused),
        cmocka_unit_test(faster_kernels_are_named_only_where_there_are_some),
        cmocka_unit_test(memory_is_aligned_and_given_out_again),
        cmocka_unit_test(kept_memory_is_bounded_by_what_was_in_use),
        cmocka_unit_test(memory_that_is_not_there_is_refused),
        cmocka_unit_test(copies_and_fills_move_bytes_and_are_logged),
        cmocka_unit_test(events_have_nothing_to_order),
        cmocka_unit_test(the_workspace_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
