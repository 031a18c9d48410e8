// CUDA's <cuda_fp16.h>: __half and __half2, with the bits of the hardware except for the functions that are approximate
// there (docs/cuda-functions.md).
#pragma once
#include "../cuda_narrow.hpp"

#if !defined(__CUDA_NO_HALF_CONVERSIONS__)
CUDA_ON_CPU_NARROW_TYPES(__half, __half2, __nv_bfloat16,
                         CUDA_ON_CPU_CONVERTIBLE(__half, __nv_bfloat16, cuda_on_cpu::HalfFormat))
#else
CUDA_ON_CPU_NARROW_TYPES(__half, __half2, __nv_bfloat16, )
#endif
CUDA_ON_CPU_NARROW_FUNCTIONS(__half, __half2, cuda_on_cpu::HalfFormat)
CUDA_ON_CPU_NARROW_CONVERSIONS(half, __half, __half2, cuda_on_cpu::HalfFormat)
#if !defined(__CUDA_NO_HALF_OPERATORS__)
CUDA_ON_CPU_SCALAR_OPERATORS(__half, cuda_on_cpu::HalfFormat)
#endif
#if !defined(__CUDA_NO_HALF2_OPERATORS__)
CUDA_ON_CPU_PAIR_OPERATORS(__half2, cuda_on_cpu::HalfFormat)
#endif

#if !defined(CUDA_NO_HALF)
typedef __half half;
typedef __half2 half2;
typedef __half __nv_half;
typedef __half2 __nv_half2;
typedef __half_raw __nv_half_raw;
typedef __half2_raw __nv_half2_raw;
typedef __half nv_half;
typedef __half2 nv_half2;
#endif

#define CUDART_INF_FP16 __ushort_as_half((unsigned short)0x7C00U)
#define CUDART_NAN_FP16 __ushort_as_half((unsigned short)0x7FFFU)
#define CUDART_MIN_DENORM_FP16 __ushort_as_half((unsigned short)0x0001U)
#define CUDART_MAX_NORMAL_FP16 __ushort_as_half((unsigned short)0x7BFFU)
#define CUDART_NEG_ZERO_FP16 __ushort_as_half((unsigned short)0x8000U)
#define CUDART_ZERO_FP16 __ushort_as_half((unsigned short)0x0000U)
#define CUDART_ONE_FP16 __ushort_as_half((unsigned short)0x3C00U)
