// Replaces common.cuh where a format's header is copied beside a foreign kernel (`gguf-verify new-kernel`): the
// definitions for the headers of formats, for nvcc, NVRTC and the C++ compiler, without other files.
#pragma once

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;

// The value of a half, given as its 16 bits.
__device__ __forceinline__ float half_to_float(uint16_t bits) {
    const uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7FFFu;
    if (magnitude >= 0x7C00u) return __uint_as_float(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
    // the exponent bias of a half is 15, that of a float 127: a factor of 2^112, also for subnormal numbers
    return __fmul_rn(__uint_as_float(sign | magnitude << 13), 5192296858534827628530496329220096.0f);
}

// A float rounded to half, to nearest even, as its 16 bits.
__device__ __forceinline__ uint16_t float_to_half(float f) {
    const uint32_t bits = __float_as_uint(f), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return (uint16_t)(sign | 0x7E00u);   // not a number
    if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7C00u);  // 65536 and more: infinity
    if (magnitude < 0x38800000u)  // a subnormal half counts in 2^-24: adding 1/2 leaves that many in the lowest bits
        return (uint16_t)(sign | (__float_as_uint(__fadd_rn(__uint_as_float(magnitude), 0.5f)) - 0x3F000000u));
    return (uint16_t)(sign | (magnitude - 0x38000000u + 0xFFFu + (magnitude >> 13 & 1)) >> 13);
}

// The value of a bfloat16, given as its 16 bits.
__device__ __forceinline__ float bfloat16_to_float(uint16_t bits) { return __uint_as_float((uint32_t)bits << 16); }

// A float rounded to bfloat16, to nearest even, as its 16 bits.
__device__ __forceinline__ uint16_t float_to_bfloat16(float f) {
    const uint32_t bits = __float_as_uint(f);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(bits >> 16 | 0x40u);  // not a number
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

// The factor of the minimum m in w = d·q + m, if activations are quantized: none, the activations' stored s (OFFSET: m
// is -d·ZERO), or d_a times the sum of their codes.
enum class Minimum { NONE, OFFSET, MEETS_S, MEETS_CODES };
