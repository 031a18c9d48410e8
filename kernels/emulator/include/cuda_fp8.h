// CUDA's <cuda_fp8.h>: e4m3 and e5m2, with the bits of the hardware (PTX ISA, "cvt" to and from .e4m3x2 and .e5m2x2).
// Only conversions: CUDA has no arithmetic for them either.
#pragma once
#include "cuda_bf16.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned __nv_fp8x4_storage_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

namespace cuda_on_cpu {

// Like the formats of cuda_narrow.hpp; values that are too large become INFINITE, which in e4m3 is the NaN, since it
// has no infinity.
struct E4m3Format {
    static constexpr int DIGITS = 4, LEAST = -6;
    static constexpr uint16_t INFINITE = 0x7F, LARGEST = 0x7E;
};
struct E5m2Format {
    static constexpr int DIGITS = 3, LEAST = -14;
    static constexpr uint16_t INFINITE = 0x7C, LARGEST = 0x7B;
};

// Returns `of_nan` for a NaN.
template <class Format>
uint8_t byte_of(double value, bool saturates, uint8_t of_nan) {
    if (value != value) return of_nan;
    const uint16_t bits = narrowed<Format>(__builtin_fabs(value), rn);
    return (uint8_t)((saturates && bits == Format::INFINITE ? Format::LARGEST : bits) | (__builtin_signbit(value) ? 0x80 : 0));
}
inline uint8_t byte_of(double value, __nv_saturation_t saturation, __nv_fp8_interpretation_t as, uint8_t of_nan = 0x7F) {
    const bool saturates = saturation == __NV_SATFINITE;
    return as == __NV_E5M2 ? byte_of<E5m2Format>(value, saturates, of_nan) : byte_of<E4m3Format>(value, saturates, of_nan);
}

// The bits of the half with the value of a byte.
inline uint16_t half_of_byte(uint8_t byte, __nv_fp8_interpretation_t as) {
    const uint32_t size = byte & 0x7F;
    if (size > (as == __NV_E5M2 ? E5m2Format::INFINITE : E4m3Format::LARGEST)) return NARROW_NAN;
    if (as == __NV_E5M2) return (uint16_t)(byte << 8);
    const float value = __uint_as_float(size << 20) * 0x1p120f;  // the exponent bias is 7, a float's 127
    return (uint16_t)(HalfFormat::nearest(value) | (byte & 0x80) << 8);
}

}  // namespace cuda_on_cpu

// A NaN of double keeps its sign and, in e5m2, the upper bits of its payload; every other one becomes 0x7F.
inline __nv_fp8_storage_t __nv_cvt_double_to_fp8(double x, __nv_saturation_t saturation, __nv_fp8_interpretation_t as) {
    const unsigned upper = (unsigned)__double2hiint(x);
    const unsigned of_nan = as == __NV_E5M2 ? 0x7E | (upper >> 18 & 3) : 0x7F;
    return cuda_on_cpu::byte_of(x, saturation, as, (uint8_t)(of_nan | (upper >> 24 & 0x80)));
}
inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t saturation, __nv_fp8_interpretation_t as) {
    return cuda_on_cpu::byte_of(x, saturation, as);
}
inline __nv_fp8_storage_t __nv_cvt_halfraw_to_fp8(__half_raw x, __nv_saturation_t saturation, __nv_fp8_interpretation_t as) {
    return cuda_on_cpu::byte_of(__half2float(x), saturation, as);
}
inline __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16_raw x, __nv_saturation_t saturation,
                                                      __nv_fp8_interpretation_t as) {
    return cuda_on_cpu::byte_of(__bfloat162float(x), saturation, as);
}
inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, __nv_fp8_interpretation_t as) {
    return {cuda_on_cpu::half_of_byte(x, as)};
}
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t x, __nv_fp8_interpretation_t as) {
    return {cuda_on_cpu::half_of_byte((uint8_t)x, as), cuda_on_cpu::half_of_byte((uint8_t)(x >> 8), as)};
}
#define CUDA_ON_CPU_TWO_BYTES(NAME, TYPE, OF_ONE, MAKE)                                                              \
    inline __nv_fp8x2_storage_t NAME(TYPE v, __nv_saturation_t saturation, __nv_fp8_interpretation_t as) {           \
        return (__nv_fp8x2_storage_t)(OF_ONE(MAKE{v.x}, saturation, as) | OF_ONE(MAKE{v.y}, saturation, as) << 8);   \
    }
CUDA_ON_CPU_TWO_BYTES(__nv_cvt_float2_to_fp8x2, float2, __nv_cvt_float_to_fp8, float)
CUDA_ON_CPU_TWO_BYTES(__nv_cvt_double2_to_fp8x2, double2, __nv_cvt_double_to_fp8, double)
CUDA_ON_CPU_TWO_BYTES(__nv_cvt_halfraw2_to_fp8x2, __half2_raw, __nv_cvt_halfraw_to_fp8, __half_raw)
CUDA_ON_CPU_TWO_BYTES(__nv_cvt_bfloat16raw2_to_fp8x2, __nv_bfloat162_raw, __nv_cvt_bfloat16raw_to_fp8, __nv_bfloat16_raw)
#undef CUDA_ON_CPU_TWO_BYTES

#define CUDA_ON_CPU_FP8(FORMAT, AS)                                                                                  \
    struct __nv_fp8_##FORMAT {                                                                                       \
        __nv_fp8_storage_t __x;                                                                                      \
        __nv_fp8_##FORMAT() = default;                                                                               \
        explicit __nv_fp8_##FORMAT(__half v) : __x(__nv_cvt_halfraw_to_fp8(v, __NV_SATFINITE, AS)) {}                \
        explicit __nv_fp8_##FORMAT(__nv_bfloat16 v) : __x(__nv_cvt_bfloat16raw_to_fp8(v, __NV_SATFINITE, AS)) {}     \
        explicit __nv_fp8_##FORMAT(float v) : __x(__nv_cvt_float_to_fp8(v, __NV_SATFINITE, AS)) {}                   \
        explicit __nv_fp8_##FORMAT(double v) : __x(__nv_cvt_double_to_fp8(v, __NV_SATFINITE, AS)) {}                 \
        explicit __nv_fp8_##FORMAT(int v) : __nv_fp8_##FORMAT((float)v) {}                                           \
        explicit __nv_fp8_##FORMAT(unsigned v) : __nv_fp8_##FORMAT((float)v) {}                                      \
        explicit operator __half() const { return __nv_cvt_fp8_to_halfraw(__x, AS); }                                \
        explicit operator float() const { return __half2float(__nv_cvt_fp8_to_halfraw(__x, AS)); }                   \
        explicit operator double() const { return (float)*this; }                                                    \
        explicit operator __nv_bfloat16() const { return __float2bfloat16_rz((float)*this); }                        \
        explicit operator int() const { return __half2int_rz(__nv_cvt_fp8_to_halfraw(__x, AS)); }                    \
        explicit operator bool() const { return __x & 0x7F; }                                                        \
    };                                                                                                               \
    struct alignas(2) __nv_fp8x2_##FORMAT {                                                                          \
        __nv_fp8x2_storage_t __x;                                                                                    \
        __nv_fp8x2_##FORMAT() = default;                                                                             \
        explicit __nv_fp8x2_##FORMAT(__half2 v) : __x(__nv_cvt_halfraw2_to_fp8x2(v, __NV_SATFINITE, AS)) {}          \
        explicit __nv_fp8x2_##FORMAT(__nv_bfloat162 v)                                                               \
            : __x(__nv_cvt_bfloat16raw2_to_fp8x2(v, __NV_SATFINITE, AS)) {}                                          \
        explicit __nv_fp8x2_##FORMAT(float2 v) : __x(__nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, AS)) {}             \
        explicit __nv_fp8x2_##FORMAT(double2 v) : __x(__nv_cvt_double2_to_fp8x2(v, __NV_SATFINITE, AS)) {}           \
        explicit operator __half2() const { return __nv_cvt_fp8x2_to_halfraw2(__x, AS); }                            \
        explicit operator float2() const { return __half22float2(__nv_cvt_fp8x2_to_halfraw2(__x, AS)); }             \
    };                                                                                                               \
    struct alignas(4) __nv_fp8x4_##FORMAT {                                                                          \
        __nv_fp8x4_storage_t __x;                                                                                    \
        __nv_fp8x4_##FORMAT() = default;                                                                             \
        explicit __nv_fp8x4_##FORMAT(float4 v)                                                                       \
            : __x(__nv_cvt_float2_to_fp8x2({v.x, v.y}, __NV_SATFINITE, AS) |                                         \
                  (unsigned)__nv_cvt_float2_to_fp8x2({v.z, v.w}, __NV_SATFINITE, AS) << 16) {}                       \
        explicit operator float4() const {                                                                           \
            const float2 low = __half22float2(__nv_cvt_fp8x2_to_halfraw2((unsigned short)__x, AS)),                  \
                         high = __half22float2(__nv_cvt_fp8x2_to_halfraw2((unsigned short)(__x >> 16), AS));         \
            return {low.x, low.y, high.x, high.y};                                                                   \
        }                                                                                                            \
    };
CUDA_ON_CPU_FP8(e4m3, __NV_E4M3)
CUDA_ON_CPU_FP8(e5m2, __NV_E5M2)
#undef CUDA_ON_CPU_FP8
