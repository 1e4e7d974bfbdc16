/* The CUDA backend on the stand-in, linked into the suite. */
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/stand_in/control.h"

pl_status pl_plugin_open_backend(pl_backend **out, int32_t interface);

pl_status cuda_test_backend(pl_backend **out)
{
    return pl_plugin_open_backend(out, PL_DEVICE_INTERFACE);
}

/* In order, backwards, and three shuffles. */
static const uint64_t seeds[] = {0, 1, 2, 77, 123456789};

int cuda_test_schedules(void) { return sizeof seeds / sizeof *seeds; }

void cuda_test_schedule(int schedule) { cuda_on_cpu_schedule(seeds[schedule]); }

void cuda_test_sound(bool closed)
{
    assert_string_equal(cuda_on_cpu_report(), "");
    if (closed) assert_int_equal(cuda_on_cpu_live(), 0);
}
