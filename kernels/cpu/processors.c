#define _GNU_SOURCE /* sched_getaffinity */

#include "kernels/cpu/processors.h"

#include <sched.h>
#include <unistd.h>

int pl_cpu_processors(void)
{
    cpu_set_t set; /* has room for 1,024; more: the call fails */
    CPU_ZERO(&set);
    int allowed = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (allowed > 0) return allowed;
    return online > 0 && online < 1 << 20 ? (int)online : 1;
}
