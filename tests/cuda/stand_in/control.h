/* What a test may set and ask of the stand-in for the CUDA runtime (cuda_runtime.h). C, so that
 * CMocka suites use it. */
#ifndef PL_TESTS_CUDA_STAND_IN_CONTROL_H
#define PL_TESTS_CUDA_STAND_IN_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As at the start: two devices, all defaults below, no error. Memory, streams and events must be
 * gone; what is left over is let go, and false returned. */
bool cuda_on_cpu_reset(void);

/* Order of blocks, and of the threads between barriers: 0 as numbered (default), 1 backwards, else
 * shuffled, anew after each barrier. With an even SEED a warp runs ahead until it must wait for
 * others, with an odd one all warps go from exchange to exchange together. */
void cuda_on_cpu_schedule(uint64_t seed);

/* Work is done when queued, not when waited for. */
void cuda_on_cpu_at_once(bool at_once);

/* The machine: how many devices, their compute capability, what the driver serves (1000 times the
 * major number of CUDA; 0: there is no driver), bytes of memory of each device. */
typedef struct cuda_on_cpu_machine {
    int devices, major, driver;
    int64_t memory;
} cuda_on_cpu_machine;
void cuda_on_cpu_set_machine(const cuda_on_cpu_machine *machine);

/* Call number AFTER of the runtime (0: the next) fails with the CUDA error of that number; -1:
 * none. And whether that happened. */
void cuda_on_cpu_fail_after(int64_t after, int error);
bool cuda_on_cpu_failed(void);

/* What the stand-in has found wrong since the reset, first things first; "" when nothing. */
const char *cuda_on_cpu_report(void);

/* Pieces of memory on devices and of pinned host memory, streams and events that are open. */
int cuda_on_cpu_live(void);

/* Pieces of work that are queued and not done. */
int cuda_on_cpu_queued(void);

/* Number of the device that memory at ADDRESS is on; -1: on none. */
int cuda_on_cpu_device_of(const void *address);

#ifdef __cplusplus
}
#endif
#endif
