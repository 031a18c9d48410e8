// CUDA's functions of float and double beyond C's (CUDA Math API, "Single/Double Precision Intrinsics", "Type Casting
// Intrinsics"), and its min and max. Roundings, conversions, minima and square roots give the bits of the hardware;
// functions that are approximate there return the exact value, rounded once (docs/cuda-functions.md has the list). A
// NaN from arithmetic is the processor's, not the GPU's 0x7FFFFFFF.
#pragma once
#include "cuda_vectors.hpp"

// ---- bits ------------------------------------------------------------------------------------------------------------

inline float __uint_as_float(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
inline uint32_t __float_as_uint(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
inline float __int_as_float(int i) { return __uint_as_float((uint32_t)i); }
inline int __float_as_int(float f) { return (int)__float_as_uint(f); }
inline double __longlong_as_double(long long i) {
    double d;
    memcpy(&d, &i, 8);
    return d;
}
inline long long __double_as_longlong(double d) {
    long long i;
    memcpy(&i, &d, 8);
    return i;
}
inline int __double2hiint(double d) { return (int)(__double_as_longlong(d) >> 32); }
inline int __double2loint(double d) { return (int)__double_as_longlong(d); }
inline double __hiloint2double(int hi, int lo) {
    return __longlong_as_double((long long)((unsigned long long)(unsigned)hi << 32 | (unsigned)lo));
}

namespace cuda_on_cpu {

// ---- roundings -------------------------------------------------------------------------------------------------------

enum class Rounding { NEAREST, ZERO, UP, DOWN };
constexpr Rounding rn = Rounding::NEAREST, rz = Rounding::ZERO, ru = Rounding::UP, rd = Rounding::DOWN;

template <class CudaFloat>
CudaFloat unforeseen(CudaFloat value) {
    const volatile CudaFloat hidden = value;
    return hidden;
}

// function(operands) as rounded by the processor: the compiler cannot evaluate it in advance.
template <class Function, class... Operands>
auto rounded(Rounding to, Function function, Operands... operands) {
    const int was = fegetround();
    fesetround(to == ru ? FE_UPWARD : to == rd ? FE_DOWNWARD : to == rz ? FE_TOWARDZERO : FE_TONEAREST);
    const volatile auto value = function(unforeseen(operands)...);
    fesetround(was);
    return +value;
}

// Rounds to an integer; ties go to even.
inline double whole(double x, Rounding to) {
    return to == rz ? __builtin_trunc(x) : to == ru ? __builtin_ceil(x) : to == rd ? __builtin_floor(x) : __builtin_rint(x);
}

// Result of cvt.{rni,rzi,rpi,rmi} (PTX ISA, "cvt"): the nearest integer of the type if x is out of range; for a NaN the
// largest power of two if `wide`, which is when source or destination have 64 bits, otherwise 0.
template <class CudaInteger>
CudaInteger to_integer(double x, Rounding to, bool wide) {
    constexpr CudaInteger LEAST = std::numeric_limits<CudaInteger>::min(), MOST = std::numeric_limits<CudaInteger>::max();
    if (x != x) return wide ? (CudaInteger)(1ull << (8 * sizeof(CudaInteger) - 1)) : 0;
    x = whole(x, to);
    if (x >= 2.0 * (double)(MOST / 2 + 1)) return MOST;
    return x < (double)LEAST ? LEAST : (CudaInteger)x;
}

// fminf and fmaxf of the hardware: -0 is smaller than +0; of a number and a NaN, the number.
template <class CudaFloat>
CudaFloat smaller(CudaFloat a, CudaFloat b) {
    if (a == b) return __builtin_signbit(a) ? a : b;
    return a < b || b != b ? a : b;
}
template <class CudaFloat>
CudaFloat larger(CudaFloat a, CudaFloat b) {
    if (a == b) return __builtin_signbit(a) ? b : a;
    return a > b || b != b ? a : b;
}

}  // namespace cuda_on_cpu

// NAME_rn, _rz, _ru and _rd; the first is the ordinary rounding.
#define CUDA_ON_CPU_LIST(...) __VA_ARGS__
#define CUDA_ON_CPU_ROUNDED_TO(TO, RESULT, NAME, PARAMETERS, OPERANDS, ...)                                          \
    inline RESULT NAME##_##TO PARAMETERS {                                                                           \
        return cuda_on_cpu::rounded(cuda_on_cpu::TO, [] PARAMETERS -> RESULT { return __VA_ARGS__; },                \
                                    CUDA_ON_CPU_LIST OPERANDS);                                                      \
    }
#define CUDA_ON_CPU_ROUNDINGS(RESULT, NAME, PARAMETERS, OPERANDS, ...)                                               \
    inline RESULT NAME##_rn PARAMETERS { return __VA_ARGS__; }                                                       \
    CUDA_ON_CPU_ROUNDED_TO(rz, RESULT, NAME, PARAMETERS, OPERANDS, __VA_ARGS__)                                      \
    CUDA_ON_CPU_ROUNDED_TO(ru, RESULT, NAME, PARAMETERS, OPERANDS, __VA_ARGS__)                                      \
    CUDA_ON_CPU_ROUNDED_TO(rd, RESULT, NAME, PARAMETERS, OPERANDS, __VA_ARGS__)

CUDA_ON_CPU_ROUNDINGS(float, __fadd, (float a, float b), (a, b), a + b)
CUDA_ON_CPU_ROUNDINGS(float, __fsub, (float a, float b), (a, b), a - b)
CUDA_ON_CPU_ROUNDINGS(float, __fmul, (float a, float b), (a, b), a * b)
CUDA_ON_CPU_ROUNDINGS(float, __fdiv, (float a, float b), (a, b), a / b)
CUDA_ON_CPU_ROUNDINGS(float, __frcp, (float a), (a), 1.0f / a)
CUDA_ON_CPU_ROUNDINGS(float, __fsqrt, (float a), (a), __builtin_sqrtf(a))
CUDA_ON_CPU_ROUNDINGS(float, __fmaf, (float a, float b, float c), (a, b, c), __builtin_fmaf(a, b, c))
CUDA_ON_CPU_ROUNDINGS(float, __fmaf_ieee, (float a, float b, float c), (a, b, c), __builtin_fmaf(a, b, c))
CUDA_ON_CPU_ROUNDINGS(double, __dadd, (double a, double b), (a, b), a + b)
CUDA_ON_CPU_ROUNDINGS(double, __dsub, (double a, double b), (a, b), a - b)
CUDA_ON_CPU_ROUNDINGS(double, __dmul, (double a, double b), (a, b), a * b)
CUDA_ON_CPU_ROUNDINGS(double, __ddiv, (double a, double b), (a, b), a / b)
CUDA_ON_CPU_ROUNDINGS(double, __drcp, (double a), (a), 1.0 / a)
CUDA_ON_CPU_ROUNDINGS(double, __dsqrt, (double a), (a), __builtin_sqrt(a))
CUDA_ON_CPU_ROUNDINGS(double, __fma, (double a, double b, double c), (a, b, c), __builtin_fma(a, b, c))

// 1/√a rounded once: verified for every float in [1, 4) by exact arithmetic, and thus for all, since a factor 4^n is
// exact.
inline float __frsqrt_rn(float a) { return (float)(1.0 / __builtin_sqrt((double)a)); }

// ---- conversions -----------------------------------------------------------------------------------------------------

CUDA_ON_CPU_ROUNDINGS(float, __double2float, (double a), (a), (float)a)
CUDA_ON_CPU_ROUNDINGS(float, __int2float, (int a), (a), (float)a)
CUDA_ON_CPU_ROUNDINGS(float, __uint2float, (unsigned a), (a), (float)a)
CUDA_ON_CPU_ROUNDINGS(float, __ll2float, (long long a), (a), (float)a)
CUDA_ON_CPU_ROUNDINGS(float, __ull2float, (unsigned long long a), (a), (float)a)
CUDA_ON_CPU_ROUNDINGS(double, __ll2double, (long long a), (a), (double)a)
CUDA_ON_CPU_ROUNDINGS(double, __ull2double, (unsigned long long a), (a), (double)a)
inline double __int2double_rn(int a) { return a; }
inline double __uint2double_rn(unsigned a) { return a; }
#undef CUDA_ON_CPU_ROUNDINGS
#undef CUDA_ON_CPU_ROUNDED_TO
#undef CUDA_ON_CPU_LIST

#define CUDA_ON_CPU_TO_INTEGER(NAME, FROM, TO)                                                                       \
    inline TO NAME##_rn(FROM a) { return cuda_on_cpu::to_integer<TO>(a, cuda_on_cpu::rn, sizeof a + sizeof(TO) > 8); } \
    inline TO NAME##_rz(FROM a) { return cuda_on_cpu::to_integer<TO>(a, cuda_on_cpu::rz, sizeof a + sizeof(TO) > 8); } \
    inline TO NAME##_ru(FROM a) { return cuda_on_cpu::to_integer<TO>(a, cuda_on_cpu::ru, sizeof a + sizeof(TO) > 8); } \
    inline TO NAME##_rd(FROM a) { return cuda_on_cpu::to_integer<TO>(a, cuda_on_cpu::rd, sizeof a + sizeof(TO) > 8); }
CUDA_ON_CPU_TO_INTEGER(__float2int, float, int)
CUDA_ON_CPU_TO_INTEGER(__float2uint, float, unsigned)
CUDA_ON_CPU_TO_INTEGER(__float2ll, float, long long)
CUDA_ON_CPU_TO_INTEGER(__float2ull, float, unsigned long long)
CUDA_ON_CPU_TO_INTEGER(__double2int, double, int)
CUDA_ON_CPU_TO_INTEGER(__double2uint, double, unsigned)
CUDA_ON_CPU_TO_INTEGER(__double2ll, double, long long)
CUDA_ON_CPU_TO_INTEGER(__double2ull, double, unsigned long long)
#undef CUDA_ON_CPU_TO_INTEGER

// To [0, 1]; NaN becomes 0.
inline float __saturatef(float a) { return a >= 1 ? 1.0f : a > 0 ? a : 0.0f; }

// ---- functions that are approximate on a card ---------------------------------------------------------------------------
// If CUDA computes one from ex2, lg2 or a quotient and a product, the product is rounded here as there.

// 0 if |b| is between 2^126 and 2^128, as in CUDA: the reciprocal underflows.
inline float __fdividef(float a, float b) {
    const float size = __builtin_fabsf(b);
    return size > 0x1p126f && size <= 3.4028234e38f ? a * __builtin_copysignf(0.0f, b) : a / b;
}
inline float fdividef(float a, float b) { return a / b; }
namespace cuda_on_cpu {
inline float exp2_of(float a) { return (float)::exp2((double)a); }
inline float log2_of(float a) { return (float)::log2((double)a); }
}  // namespace cuda_on_cpu
inline float __exp2f(float a) { return cuda_on_cpu::exp2_of(a); }
inline float __expf(float a) { return cuda_on_cpu::exp2_of(a * 1.44269504f); }
inline float __exp10f(float a) { return cuda_on_cpu::exp2_of(a * 3.32192809f); }
inline float __log2f(float a) { return cuda_on_cpu::log2_of(a); }
inline float __logf(float a) { return cuda_on_cpu::log2_of(a) * 0.693147181f; }
inline float __log10f(float a) { return cuda_on_cpu::log2_of(a) * 0.301029996f; }
inline float __powf(float a, float b) { return cuda_on_cpu::exp2_of(b * cuda_on_cpu::log2_of(a)); }
inline float __sinf(float a) { return (float)::sin((double)a); }
inline float __cosf(float a) { return (float)::cos((double)a); }
inline float __tanf(float a) { return __sinf(a) / __cosf(a); }
inline float __tanhf(float a) { return (float)::tanh((double)a); }
inline void __sincosf(float a, float* sine, float* cosine) { *sine = __sinf(a), *cosine = __cosf(a); }

inline double rsqrt(double a) { return 1 / __builtin_sqrt(a); }
inline float rsqrtf(float a) { return __frsqrt_rn(a); }
inline float rsqrt(float a) { return rsqrtf(a); }
inline double rcbrt(double a) { return 1 / ::cbrt(a); }
inline float rcbrtf(float a) { return (float)rcbrt((double)a); }
inline double sinpi(double a) { return ::sin(M_PI * ::remainder(a, 2.0)); }
inline double cospi(double a) { return ::cos(M_PI * ::remainder(a, 2.0)); }
inline float sinpif(float a) { return (float)sinpi((double)a); }
inline float cospif(float a) { return (float)cospi((double)a); }
inline float normcdff(float a) { return (float)(::erfc(-(double)a * M_SQRT1_2) / 2); }
inline double normcdf(double a) { return ::erfc(-a * M_SQRT1_2) / 2; }
inline float rhypotf(float a, float b) { return (float)(1 / ::hypot((double)a, (double)b)); }
inline float norm3df(float a, float b, float c) { return (float)::sqrt((double)a * a + (double)b * b + (double)c * c); }

// ---- minima and maxima -----------------------------------------------------------------------------------------------

// The C library's versions may return either of two zeros. Redefined as its headers may do it (gnu_inline): other code
// keeps the library's functions.
#define CUDA_ON_CPU_EXTREME(NAME, TYPE, OF)                                                                          \
    extern "C" inline __attribute__((gnu_inline, always_inline)) TYPE NAME(TYPE a, TYPE b) noexcept {                \
        return cuda_on_cpu::OF(a, b);                                                                                \
    }
CUDA_ON_CPU_EXTREME(fminf, float, smaller)
CUDA_ON_CPU_EXTREME(fmaxf, float, larger)
CUDA_ON_CPU_EXTREME(fmin, double, smaller)
CUDA_ON_CPU_EXTREME(fmax, double, larger)
#undef CUDA_ON_CPU_EXTREME

// The common type that C converts two types to.
#define CUDA_ON_CPU_MIN_MAX(FIRST, SECOND, TYPE)                                                                     \
    inline TYPE min(FIRST a, SECOND b) { return (TYPE)a < (TYPE)b ? (TYPE)a : (TYPE)b; }                             \
    inline TYPE max(FIRST a, SECOND b) { return (TYPE)a > (TYPE)b ? (TYPE)a : (TYPE)b; }
#define CUDA_ON_CPU_MIN_MAX_OF_FLOATS(FIRST, SECOND, TYPE)                                                           \
    inline TYPE min(FIRST a, SECOND b) { return cuda_on_cpu::smaller<TYPE>(a, b); }                                  \
    inline TYPE max(FIRST a, SECOND b) { return cuda_on_cpu::larger<TYPE>(a, b); }
#define CUDA_ON_CPU_MIN_MAX_OF_INTEGERS(SIGNED, UNSIGNED)                                                            \
    CUDA_ON_CPU_MIN_MAX(SIGNED, SIGNED, SIGNED)                                                                      \
    CUDA_ON_CPU_MIN_MAX(SIGNED, UNSIGNED, UNSIGNED)                                                                  \
    CUDA_ON_CPU_MIN_MAX(UNSIGNED, SIGNED, UNSIGNED)                                                                  \
    CUDA_ON_CPU_MIN_MAX(UNSIGNED, UNSIGNED, UNSIGNED)
CUDA_ON_CPU_MIN_MAX_OF_INTEGERS(int, unsigned)
CUDA_ON_CPU_MIN_MAX_OF_INTEGERS(long, unsigned long)
CUDA_ON_CPU_MIN_MAX_OF_INTEGERS(long long, unsigned long long)
CUDA_ON_CPU_MIN_MAX_OF_FLOATS(float, float, float)
CUDA_ON_CPU_MIN_MAX_OF_FLOATS(float, double, double)
CUDA_ON_CPU_MIN_MAX_OF_FLOATS(double, float, double)
CUDA_ON_CPU_MIN_MAX_OF_FLOATS(double, double, double)
#undef CUDA_ON_CPU_MIN_MAX_OF_INTEGERS
#undef CUDA_ON_CPU_MIN_MAX_OF_FLOATS
#undef CUDA_ON_CPU_MIN_MAX
inline unsigned umin(unsigned a, unsigned b) { return min(a, b); }
inline unsigned umax(unsigned a, unsigned b) { return max(a, b); }
inline long long llmin(long long a, long long b) { return min(a, b); }
inline long long llmax(long long a, long long b) { return max(a, b); }
inline unsigned long long ullmin(unsigned long long a, unsigned long long b) { return min(a, b); }
inline unsigned long long ullmax(unsigned long long a, unsigned long long b) { return max(a, b); }
