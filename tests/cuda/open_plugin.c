/* The CUDA backend as programs open it, for a machine with a GPU. */
#include "kernels/plugin.h"
#include "tests/cuda/cuda_test.h"

pl_status cuda_test_backend(pl_backend **out) { return pl_plugin_open(out, CUDA_TEST_PLUGIN); }

/* A device chooses the order itself: the same again and again. */
int cuda_test_schedules(void) { return 3; }

void cuda_test_schedule(int schedule) { (void)schedule; }

void cuda_test_sound(bool closed) { (void)closed; }
