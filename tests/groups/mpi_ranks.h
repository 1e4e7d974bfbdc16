/* Suites whose ranks are processes: mpirun starts the suite, and each process runs all of it.
 *
 * The processes go through the tests side by side; what each found out is given to all before
 * anything is asserted, so that their asserts agree. Rank 0 prints what CMocka has to say. */
#ifndef PL_TESTS_GROUPS_MPI_RANKS_H
#define PL_TESTS_GROUPS_MPI_RANKS_H

#include "tests/test.h"

#include <stdatomic.h>

#include "common/process_group.h"

/* What processes share: counters, 0 at first. */
typedef struct mpi_counters {
    atomic_int ended;
    atomic_llong at_barrier;
} mpi_counters;

/* Start MPI, run TESTS[COUNT], end MPI. What main returns. */
int mpi_run_suite(const char *name, const struct CMUnitTest *tests, size_t count);

/* Open a world of the first RANKS processes. False in the others; their *OUT is NULL. The counters
 * are 0 again. */
bool mpi_open(pl_process_group **out, int64_t ranks, double limit);

mpi_counters *mpi_shared(void);

int mpi_rank(void);

/* Wait, without using the processor, until all processes are here. */
void mpi_meet(void);

/* Give BYTES at OWN to all: ALL gets those of rank 0, rank 1, ... */
void mpi_share(const void *own, void *all, size_t bytes);

#endif
