/* Conversions of two headers that both call themselves cuda_bf16.h, each compiled by itself. */
#ifndef PL_TESTS_CUDA_BF16_H
#define PL_TESTS_CUDA_BF16_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

uint16_t stand_in_to_bf16(float value);
float stand_in_from_bf16(uint16_t bits);

/* NVIDIA's, where there is a CUDA toolkit. */
uint16_t nvidia_to_bf16(float value);
float nvidia_from_bf16(uint16_t bits);

#ifdef __cplusplus
}
#endif
#endif
