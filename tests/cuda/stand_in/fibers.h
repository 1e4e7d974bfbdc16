/* Running a grid on fibers, for the files of this folder. */
#ifndef PL_TESTS_CUDA_STAND_IN_FIBERS_H
#define PL_TESTS_CUDA_STAND_IN_FIBERS_H

#include <functional>
#include <string>

#include "tests/cuda/stand_in/cuda_runtime.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUDA_ON_CPU_ASAN 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define CUDA_ON_CPU_ASAN 1
#endif

namespace cuda_on_cpu
{
/* Run BODY as every thread of the grid. Returns what went wrong, "" if nothing did. */
std::string run_grid(dim3 grid, dim3 block, uint64_t schedule, const std::function<void()> &body);
} // namespace cuda_on_cpu

#endif
