/* Kernels and calls that are wrong on purpose, and right ones beside them: what the stand-in for
 * the CUDA runtime must report, and what it must let pass. */
#ifndef PL_TESTS_CUDA_PLANTED_H
#define PL_TESTS_CUDA_PLANTED_H

#ifdef __cplusplus
extern "C" {
#endif

/* 64 threads turn an array round through shared memory. Returns how many elements are wrong. */
int planted_with_barrier(void);
int planted_missing_barrier(void);

/* 64 threads read shared memory that nobody wrote. Returns how many find NaN. */
int planted_unwritten_shared(void);

/* Each starts a kernel and waits for it; returns the CUDA error. */
int planted_divergent_barrier(void);
int planted_divergent_mask(void);
int planted_foreign_mask(void);
int planted_ended_threads(void); /* right: those that ended are not waited for */
int planted_write_behind(void);
int planted_write_before(void);
int planted_write_freed(void);
int planted_read_behind(void);

/* The host follows an address of device memory. */
int planted_host_read(void);

/* Calls of the runtime with wrong arguments, by number from 0: the CUDA error that the call gives
 * and the one that is right. Returns 0 behind the last. */
int planted_call(int number, int *given, int *right);

#ifdef __cplusplus
}
#endif
#endif
