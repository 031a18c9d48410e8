// CUDA's <cuda_bf16.h>: __nv_bfloat16 and __nv_bfloat162, with the bits of the hardware except for the functions that
// are approximate there (docs/cuda-functions.md).
#pragma once
#include "cuda_fp16.h"

#if !defined(__CUDA_NO_BFLOAT16_CONVERSIONS__)
CUDA_ON_CPU_NARROW_TYPES(__nv_bfloat16, __nv_bfloat162, __half,
                         CUDA_ON_CPU_CONVERTIBLE(__nv_bfloat16, __half, cuda_on_cpu::Bfloat16Format))
inline __nv_bfloat16::__nv_bfloat16(__half value)
    : __x(cuda_on_cpu::Bfloat16Format::nearest(cuda_on_cpu::HalfFormat::widened(value.__x))) {}
#else
CUDA_ON_CPU_NARROW_TYPES(__nv_bfloat16, __nv_bfloat162, __half, )
#endif
#if !defined(__CUDA_NO_HALF_CONVERSIONS__)
inline __half::__half(__nv_bfloat16 value)
    : __x(cuda_on_cpu::HalfFormat::nearest(cuda_on_cpu::Bfloat16Format::widened(value.__x))) {}
#endif
CUDA_ON_CPU_NARROW_FUNCTIONS(__nv_bfloat16, __nv_bfloat162, cuda_on_cpu::Bfloat16Format)
CUDA_ON_CPU_NARROW_CONVERSIONS(bfloat16, __nv_bfloat16, __nv_bfloat162, cuda_on_cpu::Bfloat16Format)
#if !defined(__CUDA_NO_BFLOAT16_OPERATORS__)
CUDA_ON_CPU_SCALAR_OPERATORS(__nv_bfloat16, cuda_on_cpu::Bfloat16Format)
#endif
#if !defined(__CUDA_NO_BFLOAT162_OPERATORS__)
CUDA_ON_CPU_PAIR_OPERATORS(__nv_bfloat162, cuda_on_cpu::Bfloat16Format)
#endif

typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

#define CUDART_INF_BF16 __ushort_as_bfloat16((unsigned short)0x7F80U)
#define CUDART_NAN_BF16 __ushort_as_bfloat16((unsigned short)0x7FFFU)
#define CUDART_MIN_DENORM_BF16 __ushort_as_bfloat16((unsigned short)0x0001U)
#define CUDART_MAX_NORMAL_BF16 __ushort_as_bfloat16((unsigned short)0x7F7FU)
#define CUDART_NEG_ZERO_BF16 __ushort_as_bfloat16((unsigned short)0x8000U)
#define CUDART_ZERO_BF16 __ushort_as_bfloat16((unsigned short)0x0000U)
#define CUDART_ONE_BF16 __ushort_as_bfloat16((unsigned short)0x3F80U)
