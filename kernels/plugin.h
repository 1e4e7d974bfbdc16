/* Backends that are opened at run time, so that one program serves machines with and without CUDA.
 *
 * A plugin is a shared library that exports PL_PLUGIN_ENTRY (kernels/device.h) and nothing else. It
 * takes pleat's own functions (pl_error_record, pl_allocate, pl_device_note, ...) from the program
 * that opens it, which therefore exports its symbols (ENABLE_EXPORTS in CMake): there is one text
 * of a thread's latest failure, one count of allocations, and nothing to pass on.
 */
#ifndef PL_KERNELS_PLUGIN_H
#define PL_KERNELS_PLUGIN_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Names the file to open where the caller names none; empty counts as unset. */
#define PL_PLUGIN_VARIABLE "PLEAT_CUDA_PLUGIN"

/* The file's name where it is looked for. */
#define PL_PLUGIN_FILE "pleat_cuda.so"

/* Open the plugin in FILE and let it open its backend, which the caller closes. FILE NULL: the file
 * that the environment variable PLEAT_CUDA_PLUGIN names; without it, pleat_cuda.so beside the
 * running program or in ../lib/pleat from there.
 *
 * A plugin that was entered stays in memory until the program ends, since its libraries may have
 * threads and exit handlers.
 *
 * Errors, each naming the file: PL_UNSUPPORTED when it is not there, cannot be loaded (the loader's
 * words say which library or symbol is missing), is no plugin, speaks another interface, or
 * refuses, with its own words; other codes are the plugin's. */
pl_status pl_plugin_open(pl_backend **out, const char *file);

#ifdef __cplusplus
}
#endif
#endif
