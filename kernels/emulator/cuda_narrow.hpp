// The common parts of CUDA's half and bfloat16: formats, arithmetic, and macros that define the types and functions,
// whose names are equal for both or differ in the name of the type (CUDA Math API, "Half" and "Bfloat16 Precision
// Intrinsics"; PTX ISA for NaN and zeros). include/cuda_fp16.h and cuda_bf16.h have one each.
//
// Values are widened to float, which is exact. A sum, product, quotient or root rounded to float and then to P bits
// equals one rounding to P bits, since float has 24 ≥ 2·P + 2 bits (Figueroa, "When is double rounding innocuous?",
// 1995). This also holds below the least normal number: that of half is far above float's; for bfloat16, sums there are
// exact, and a product or quotient of two 8-bit significands that is no midpoint of subnormal numbers is at least 2^-16
// of itself away from one, which is more than float's spacing there. It does not hold for a fused multiply-add, see
// `fused`.
#pragma once
#include "cuda_on_cpu.hpp"

namespace cuda_on_cpu {

// ---- formats ---------------------------------------------------------------------------------------------------------

constexpr uint16_t NARROW_NAN = 0x7FFF;  // the only NaN that operations return

// Significands of DIGITS bits; 2^LEAST is the least normal number; bits of infinity and of one.
struct HalfFormat {
    static constexpr int DIGITS = 11, LEAST = -14;
    static constexpr uint16_t INFINITE = 0x7C00, ONE = 0x3C00;
    static float widened(uint16_t bits) {
#if defined(__F16C__) && defined(__FLT16_MANT_DIG__) && !defined(CUDA_ON_CPU_PORTABLE)
        return (bits & 0x7FFF) > INFINITE ? __uint_as_float(0x7FFFFFFF) : (float)word_as<_Float16>(bits);
#else
        if ((bits & 0x7FFF) > INFINITE) return __uint_as_float(0x7FFFFFFF);
        const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, magnitude = bits & 0x7FFF;
        if (magnitude == INFINITE) return __uint_as_float(sign | 0x7F800000);
        // read as a float, exponent and significand are the value times 2^-112, also for a subnormal number
        return __uint_as_float(sign | __float_as_uint(__uint_as_float(magnitude << 13) * 0x1p112f));
#endif
    }
    static uint16_t nearest(float value) {
#if defined(__F16C__) && defined(__FLT16_MANT_DIG__) && !defined(CUDA_ON_CPU_PORTABLE)
        return value != value ? NARROW_NAN : word_as<uint16_t>((_Float16)value);
#else
        const uint32_t bits = __float_as_uint(value), magnitude = bits & 0x7FFFFFFF;
        const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
        if (magnitude > 0x7F800000) return NARROW_NAN;
        if (magnitude >= 0x477FF000) return (uint16_t)(sign | INFINITE);  // 65520 and up
        if (magnitude < 0x38800000)  // subnormal: 0.5 has an ulp of 2^-24, as they do
            return (uint16_t)(sign | (__float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3F000000));
        return (uint16_t)(sign | ((magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1)) >> 13));
#endif
    }
};

struct Bfloat16Format {
    static constexpr int DIGITS = 8, LEAST = -126;
    static constexpr uint16_t INFINITE = 0x7F80, ONE = 0x3F80;
    static float widened(uint16_t bits) { return __uint_as_float((uint32_t)bits << 16); }
    static uint16_t nearest(float value) {
        const uint32_t bits = __float_as_uint(value);
        return value != value ? NARROW_NAN : (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    }
};

// The value with a directed rounding. Infinite only where the rounding leads there.
template <class Format>
uint16_t narrowed(double value, Rounding to) {
    if (value != value) return NARROW_NAN;
    const uint64_t bits = (uint64_t)__double_as_longlong(value);
    const uint16_t sign = (uint16_t)(bits >> 48 & 0x8000);
    const bool away = to == (sign ? rd : ru);
    const int exponent = (int)(bits >> 52 & 0x7FF) - 1023;
    if (exponent == 1024) return (uint16_t)(sign | Format::INFINITE);
    const uint64_t significand = (bits & 0xFFFFFFFFFFFFF) | (uint64_t)(exponent > -1023) << 52;
    const int above = exponent > Format::LEAST ? exponent - Format::LEAST : 0;  // the least normal number's exponent
    const int dropped = std::min(63, 53 - Format::DIGITS + above + Format::LEAST - exponent);
    uint64_t kept = significand >> dropped;
    const uint64_t rest = significand << (64 - dropped), half = 1ull << 63;
    kept += to == rn ? rest > half || (rest == half && (kept & 1)) : away && rest;
    kept += (uint64_t)above << (Format::DIGITS - 1);  // a carry goes on to the exponent
    if (kept >= Format::INFINITE) kept = Format::INFINITE - (to != rn && !away);
    return (uint16_t)(sign | kept);
}

// ---- exact values as doubles that round as they do -------------------------------------------------------------------
// A value that a double or a float cannot hold becomes the odd one of its two neighbours ("round to odd"). Rounding
// that to at least 2 bits fewer equals rounding the value itself (Boldo and Melquiond, "Emulation of a FMA", 2008).

// a·b + c; a·b is exact, and the error of the sum is Knuth's TwoSum.
inline double fused_to_odd(float a, float b, float c) {
    const double product = (double)a * b, sum = product + c, of_c = sum - product;
    const double error = (product - (sum - of_c)) + (c - of_c);
    if (__builtin_expect(error == 0 || sum - sum != 0, 1)) return sum;  // exact, infinite or NaN
    uint64_t bits = (uint64_t)__double_as_longlong(sum);
    if (bits & 1) return sum;
    return __longlong_as_double((long long)(bits + ((error > 0) == (sum > 0) ? 1 : -1)));
}

inline float float_to_odd(double value) {
    const float near = (float)value;
    if (near == value || value != value) return near;
    const uint32_t beyond = __builtin_fabs((double)near) > __builtin_fabs(value);
    return __uint_as_float((__float_as_uint(near) - beyond) | 1);
}

// NaN keeps its sign and the first bits of its fraction, and becomes quiet: an H100 does so, but only for doubles.
template <class Format>
uint16_t of_double(double value) {
    if (value == value) return Format::nearest(float_to_odd(value));
    const uint64_t bits = (uint64_t)__double_as_longlong(value);
    const uint16_t quiet = 1 << (Format::DIGITS - 2), fraction = bits >> (53 - Format::DIGITS) & (2 * quiet - 1);
    return (uint16_t)((bits >> 48 & 0x8000) | Format::INFINITE | quiet | fraction);
}

template <class CudaInteger>
double integer_to_odd(CudaInteger value) {
    if (sizeof value <= 4) return (double)value;
    const bool negative = value < 0;
    uint64_t size = negative ? 0 - (uint64_t)value : (uint64_t)value;
    if (size >> 53) size = (size & ~0xFFFull) | (uint64_t)((size & 0xFFF) != 0) << 11;
    return negative ? -(double)size : (double)size;
}

// ---- operations on bits ----------------------------------------------------------------------------------------------

template <class Format>
bool is_nan(uint16_t a) {
    return (a & 0x7FFF) > Format::INFINITE;
}
// Integers in the order of the numbers, -0 before +0.
inline int ordered(uint16_t a) { return a & 0x8000 ? ~(a & 0x7FFF) : a; }

// Rounded once: a double holds a·b, and the sum rounded to odd has more than the 2 extra bits that this needs.
template <class Format>
uint16_t fused(uint16_t a, uint16_t b, uint16_t c) {
    return Format::nearest(float_to_odd(
        fused_to_odd(Format::widened(a), Format::widened(b), Format::widened(c))));
}
// To [+0, 1]; NaN becomes +0.
template <class Format>
uint16_t clamped(uint16_t a) {
    return is_nan<Format>(a) || a & 0x8000 ? 0 : std::min(a, Format::ONE);
}
// Negative numbers become +0.
template <class Format>
uint16_t positive(uint16_t a) {
    return !is_nan<Format>(a) && a & 0x8000 ? 0 : a;
}
// Given a number and a NaN: the number, or NaN if it `spreads`. Inlined, so that a traced build shows the caller's line.
template <class Format>
inline __attribute__((always_inline)) uint16_t extreme(uint16_t a, uint16_t b, bool greatest, bool spreads) {
    const bool of_a = is_nan<Format>(a), of_b = is_nan<Format>(b);
    if (of_a || of_b) return spreads || (of_a && of_b) ? NARROW_NAN : of_a ? b : a;
    return (ordered(a) < ordered(b)) == greatest ? b : a;
}

}  // namespace cuda_on_cpu

// ---- the types -------------------------------------------------------------------------------------------------------

// The type's constructors from and conversions to C's numbers, which programs may disable.
#define CUDA_ON_CPU_FROM_INTEGER(SCALAR, FORMAT, TYPE)                                                               \
    SCALAR(TYPE value) : __x(cuda_on_cpu::narrowed<FORMAT>(cuda_on_cpu::integer_to_odd(value), cuda_on_cpu::rn)) {}  \
    SCALAR& operator=(TYPE value) { return *this = SCALAR(value); }
#define CUDA_ON_CPU_AS_INTEGER(FORMAT, TYPE)                                                                         \
    operator TYPE() const {                                                                                          \
        return cuda_on_cpu::to_integer<TYPE>(FORMAT::widened(__x), cuda_on_cpu::rz, sizeof(TYPE) > 4);               \
    }
#define CUDA_ON_CPU_CONVERTIBLE(SCALAR, OTHER, FORMAT)                                                               \
    explicit SCALAR(OTHER value);                                                                                    \
    SCALAR(float value) : __x(FORMAT::nearest(value)) {}                                                             \
    SCALAR(double value) : __x(cuda_on_cpu::of_double<FORMAT>(value)) {}                                             \
    operator float() const { return FORMAT::widened(__x); }                                                          \
    SCALAR& operator=(float value) { return *this = SCALAR(value); }                                                 \
    SCALAR& operator=(double value) { return *this = SCALAR(value); }                                                \
    CUDA_ON_CPU_FROM_INTEGER(SCALAR, FORMAT, short)                                                                  \
    CUDA_ON_CPU_FROM_INTEGER(SCALAR, FORMAT, unsigned short)                                                         \
    CUDA_ON_CPU_FROM_INTEGER(SCALAR, FORMAT, int)                                                                    \
    CUDA_ON_CPU_FROM_INTEGER(SCALAR, FORMAT, unsigned)                                                               \
    CUDA_ON_CPU_FROM_INTEGER(SCALAR, FORMAT, long)                                                                   \
    CUDA_ON_CPU_FROM_INTEGER(SCALAR, FORMAT, unsigned long)                                                          \
    CUDA_ON_CPU_FROM_INTEGER(SCALAR, FORMAT, long long)                                                              \
    CUDA_ON_CPU_FROM_INTEGER(SCALAR, FORMAT, unsigned long long)                                                     \
    CUDA_ON_CPU_AS_INTEGER(FORMAT, char)                                                                             \
    CUDA_ON_CPU_AS_INTEGER(FORMAT, signed char)                                                                      \
    CUDA_ON_CPU_AS_INTEGER(FORMAT, unsigned char)                                                                    \
    CUDA_ON_CPU_AS_INTEGER(FORMAT, short)                                                                            \
    CUDA_ON_CPU_AS_INTEGER(FORMAT, unsigned short)                                                                   \
    CUDA_ON_CPU_AS_INTEGER(FORMAT, int)                                                                              \
    CUDA_ON_CPU_AS_INTEGER(FORMAT, unsigned)                                                                         \
    CUDA_ON_CPU_AS_INTEGER(FORMAT, long)                                                                             \
    CUDA_ON_CPU_AS_INTEGER(FORMAT, unsigned long)                                                                    \
    CUDA_ON_CPU_AS_INTEGER(FORMAT, long long)                                                                        \
    CUDA_ON_CPU_AS_INTEGER(FORMAT, unsigned long long)

// SCALAR of one number and PAIR of two, their raw forms, and the OTHER of the two formats. __VA_ARGS__: conversions.
#define CUDA_ON_CPU_NARROW_TYPES(SCALAR, PAIR, OTHER, ...)                                                           \
    struct alignas(2) SCALAR##_raw { unsigned short x; };                                                            \
    struct alignas(4) PAIR##_raw { unsigned short x, y; };                                                           \
    struct OTHER;                                                                                                    \
    struct alignas(2) SCALAR {                                                                                       \
        unsigned short __x;                                                                                          \
        SCALAR() = default;                                                                                          \
        constexpr SCALAR(const SCALAR##_raw& raw) : __x(raw.x) {}                                                    \
        SCALAR& operator=(const SCALAR##_raw& raw) { return __x = raw.x, *this; }                                    \
        void operator=(const SCALAR##_raw& raw) volatile { __x = raw.x; }                                            \
        operator SCALAR##_raw() const { return {__x}; }                                                              \
        operator SCALAR##_raw() const volatile { return {__x}; }                                                     \
        constexpr operator bool() const { return __x & 0x7FFF; }                                                     \
        __VA_ARGS__                                                                                                  \
    };                                                                                                               \
    struct alignas(4) PAIR {                                                                                         \
        SCALAR x, y;                                                                                                 \
        PAIR() = default;                                                                                            \
        constexpr PAIR(const SCALAR& x_, const SCALAR& y_) : x(x_), y(y_) {}                                         \
        constexpr PAIR(const PAIR##_raw& raw) : x(SCALAR##_raw{raw.x}), y(SCALAR##_raw{raw.y}) {}                    \
        PAIR& operator=(const PAIR##_raw& raw) { return *this = PAIR(raw); }                                         \
        operator PAIR##_raw() const { return {x.__x, y.__x}; }                                                       \
    };

// ---- functions of one name -------------------------------------------------------------------------------------------
// Each function for SCALAR, and for PAIR lane by lane. The bits of the operands are a, b, c; their values f(a), f(b),
// f(c).

#define CUDA_ON_CPU_UNARY(NAME, OF_PAIR, SCALAR, PAIR, FORMAT, ...)                                                  \
    inline SCALAR NAME(const SCALAR a_) {                                                                            \
        const uint16_t a = a_.__x;                                                                                   \
        [[maybe_unused]] constexpr auto f = FORMAT::widened;                                                         \
        return SCALAR##_raw{(uint16_t)(__VA_ARGS__)};                                                                \
    }                                                                                                                \
    inline PAIR OF_PAIR(const PAIR a) { return {NAME(a.x), NAME(a.y)}; }
#define CUDA_ON_CPU_BINARY(NAME, OF_PAIR, SCALAR, PAIR, FORMAT, ...)                                                 \
    inline SCALAR NAME(const SCALAR a_, const SCALAR b_) {                                                           \
        const uint16_t a = a_.__x, b = b_.__x;                                                                       \
        [[maybe_unused]] constexpr auto f = FORMAT::widened;                                                         \
        return SCALAR##_raw{(uint16_t)(__VA_ARGS__)};                                                                \
    }                                                                                                                \
    inline PAIR OF_PAIR(const PAIR a, const PAIR b) { return {NAME(a.x, b.x), NAME(a.y, b.y)}; }
#define CUDA_ON_CPU_FUSED(NAME, OF_PAIR, SCALAR, PAIR, FORMAT, OF_RESULT)                                            \
    inline SCALAR NAME(const SCALAR a, const SCALAR b, const SCALAR c) {                                             \
        return SCALAR##_raw{OF_RESULT(cuda_on_cpu::fused<FORMAT>(a.__x, b.__x, c.__x))};                             \
    }                                                                                                                \
    inline PAIR OF_PAIR(const PAIR a, const PAIR b, const PAIR c) { return {NAME(a.x, b.x, c.x), NAME(a.y, b.y, c.y)}; }
// A comparison that is false for a NaN, and the one that is true for it: as bool, as 1 and 0, as a mask, for both
// lanes.
#define CUDA_ON_CPU_COMPARISON(NAME, SCALAR, PAIR, FORMAT, OPERATOR)                                                 \
    CUDA_ON_CPU_COMPARISON_OF(NAME, SCALAR, PAIR, FORMAT,                                                            \
        !either && FORMAT::widened(a.__x) OPERATOR FORMAT::widened(b.__x))                                           \
    CUDA_ON_CPU_COMPARISON_OF(NAME##u, SCALAR, PAIR, FORMAT,                                                         \
        either || FORMAT::widened(a.__x) OPERATOR FORMAT::widened(b.__x))
#define CUDA_ON_CPU_COMPARISON_OF(NAME, SCALAR, PAIR, FORMAT, ...)                                                   \
    inline bool __h##NAME(const SCALAR a, const SCALAR b) {                                                          \
        const bool either = cuda_on_cpu::is_nan<FORMAT>(a.__x) || cuda_on_cpu::is_nan<FORMAT>(b.__x);                \
        return __VA_ARGS__;                                                                                          \
    }                                                                                                                \
    inline PAIR __h##NAME##2(const PAIR a, const PAIR b) {                                                           \
        return PAIR##_raw{__h##NAME(a.x, b.x) ? FORMAT::ONE : (uint16_t)0, __h##NAME(a.y, b.y) ? FORMAT::ONE : (uint16_t)0}; \
    }                                                                                                                \
    inline unsigned __h##NAME##2_mask(const PAIR a, const PAIR b) {                                                  \
        return (__h##NAME(a.x, b.x) ? 0xFFFFu : 0) | (__h##NAME(a.y, b.y) ? 0xFFFF0000u : 0);                        \
    }                                                                                                                \
    inline bool __hb##NAME##2(const PAIR a, const PAIR b) { return __h##NAME(a.x, b.x) && __h##NAME(a.y, b.y); }
// The function of double, rounded once; on a GPU it is approximate.
#define CUDA_ON_CPU_OF_DOUBLE(NAME, SCALAR, PAIR, FORMAT, ...)                                                       \
    CUDA_ON_CPU_UNARY(h##NAME, h2##NAME, SCALAR, PAIR, FORMAT, [](double x) {                                        \
        return FORMAT::nearest(cuda_on_cpu::float_to_odd(__VA_ARGS__));                                              \
    }(f(a)))

#define CUDA_ON_CPU_NARROW_FUNCTIONS(S, P, F)                                                                        \
    CUDA_ON_CPU_BINARY(__hadd, __hadd2, S, P, F, F::nearest(f(a) + f(b)))                                            \
    CUDA_ON_CPU_BINARY(__hsub, __hsub2, S, P, F, F::nearest(f(a) - f(b)))                                            \
    CUDA_ON_CPU_BINARY(__hmul, __hmul2, S, P, F, F::nearest(f(a) * f(b)))                                            \
    CUDA_ON_CPU_BINARY(__hdiv, __h2div, S, P, F, F::nearest(f(a) / f(b)))                                            \
    CUDA_ON_CPU_BINARY(__hadd_rn, __hadd2_rn, S, P, F, F::nearest(f(a) + f(b)))                                      \
    CUDA_ON_CPU_BINARY(__hsub_rn, __hsub2_rn, S, P, F, F::nearest(f(a) - f(b)))                                      \
    CUDA_ON_CPU_BINARY(__hmul_rn, __hmul2_rn, S, P, F, F::nearest(f(a) * f(b)))                                      \
    CUDA_ON_CPU_BINARY(__hadd_sat, __hadd2_sat, S, P, F, cuda_on_cpu::clamped<F>(F::nearest(f(a) + f(b))))           \
    CUDA_ON_CPU_BINARY(__hsub_sat, __hsub2_sat, S, P, F, cuda_on_cpu::clamped<F>(F::nearest(f(a) - f(b))))           \
    CUDA_ON_CPU_BINARY(__hmul_sat, __hmul2_sat, S, P, F, cuda_on_cpu::clamped<F>(F::nearest(f(a) * f(b))))           \
    CUDA_ON_CPU_BINARY(__hmax, __hmax2, S, P, F, cuda_on_cpu::extreme<F>(a, b, true, false))                         \
    CUDA_ON_CPU_BINARY(__hmin, __hmin2, S, P, F, cuda_on_cpu::extreme<F>(a, b, false, false))                        \
    CUDA_ON_CPU_BINARY(__hmax_nan, __hmax2_nan, S, P, F, cuda_on_cpu::extreme<F>(a, b, true, true))                  \
    CUDA_ON_CPU_BINARY(__hmin_nan, __hmin2_nan, S, P, F, cuda_on_cpu::extreme<F>(a, b, false, true))                 \
    CUDA_ON_CPU_FUSED(__hfma, __hfma2, S, P, F, )                                                                    \
    CUDA_ON_CPU_FUSED(__hfma_sat, __hfma2_sat, S, P, F, cuda_on_cpu::clamped<F>)                                     \
    CUDA_ON_CPU_FUSED(__hfma_relu, __hfma2_relu, S, P, F, cuda_on_cpu::positive<F>)                                  \
    CUDA_ON_CPU_UNARY(__hneg, __hneg2, S, P, F, cuda_on_cpu::is_nan<F>(a) ? cuda_on_cpu::NARROW_NAN : a ^ 0x8000)    \
    CUDA_ON_CPU_UNARY(__habs, __habs2, S, P, F, cuda_on_cpu::is_nan<F>(a) ? cuda_on_cpu::NARROW_NAN : a & 0x7FFF)    \
    CUDA_ON_CPU_UNARY(htrunc, h2trunc, S, P, F, F::nearest(__builtin_truncf(f(a))))                                  \
    CUDA_ON_CPU_UNARY(hceil, h2ceil, S, P, F, F::nearest(__builtin_ceilf(f(a))))                                     \
    CUDA_ON_CPU_UNARY(hfloor, h2floor, S, P, F, F::nearest(__builtin_floorf(f(a))))                                  \
    CUDA_ON_CPU_UNARY(hrint, h2rint, S, P, F, F::nearest(__builtin_rintf(f(a))))                                     \
    CUDA_ON_CPU_OF_DOUBLE(sqrt, S, P, F, ::sqrt(x))                                                                  \
    CUDA_ON_CPU_OF_DOUBLE(rsqrt, S, P, F, 1 / ::sqrt(x))                                                             \
    CUDA_ON_CPU_OF_DOUBLE(rcp, S, P, F, 1 / x)                                                                       \
    CUDA_ON_CPU_OF_DOUBLE(log, S, P, F, ::log(x))                                                                    \
    CUDA_ON_CPU_OF_DOUBLE(log2, S, P, F, ::log2(x))                                                                  \
    CUDA_ON_CPU_OF_DOUBLE(log10, S, P, F, ::log10(x))                                                                \
    CUDA_ON_CPU_OF_DOUBLE(exp, S, P, F, ::exp(x))                                                                    \
    CUDA_ON_CPU_OF_DOUBLE(exp2, S, P, F, ::exp2(x))                                                                  \
    CUDA_ON_CPU_OF_DOUBLE(exp10, S, P, F, ::exp(x * M_LN10))                                                         \
    CUDA_ON_CPU_OF_DOUBLE(sin, S, P, F, ::sin(x))                                                                    \
    CUDA_ON_CPU_OF_DOUBLE(cos, S, P, F, ::cos(x))                                                                    \
    CUDA_ON_CPU_OF_DOUBLE(tanh, S, P, F, ::tanh(x))                                                                  \
    CUDA_ON_CPU_OF_DOUBLE(tanh_approx, S, P, F, ::tanh(x))                                                           \
    CUDA_ON_CPU_COMPARISON(eq, S, P, F, ==)                                                                          \
    CUDA_ON_CPU_COMPARISON(ne, S, P, F, !=)                                                                          \
    CUDA_ON_CPU_COMPARISON(le, S, P, F, <=)                                                                          \
    CUDA_ON_CPU_COMPARISON(ge, S, P, F, >=)                                                                          \
    CUDA_ON_CPU_COMPARISON(lt, S, P, F, <)                                                                           \
    CUDA_ON_CPU_COMPARISON(gt, S, P, F, >)                                                                           \
    inline bool __hisnan(const S a) { return cuda_on_cpu::is_nan<F>(a.__x); }                                        \
    inline int __hisinf(const S a) { return a.__x == F::INFINITE ? 1 : a.__x == (F::INFINITE | 0x8000) ? -1 : 0; }   \
    inline P __hisnan2(const P a) {                                                                                  \
        return P##_raw{__hisnan(a.x) ? F::ONE : (uint16_t)0, __hisnan(a.y) ? F::ONE : (uint16_t)0};                  \
    }                                                                                                                \
    /* (a.x + i·a.y)·(b.x + i·b.y) + c, in four steps */                                                             \
    inline P __hcmadd(const P a, const P b, const P c) {                                                             \
        return {__hfma(__hneg(a.y), b.y, __hfma(a.x, b.x, c.x)), __hfma(a.y, b.x, __hfma(a.x, b.y, c.y))};           \
    }                                                                                                                \
    inline float __low2float(const P a) { return F::widened(a.x.__x); }                                              \
    inline float __high2float(const P a) { return F::widened(a.y.__x); }                                             \
    inline P __lowhigh2highlow(const P a) { return {a.y, a.x}; }                                                     \
    /* templates: a unit that calls neither adds no floats */                                                       \
    template <class T>                                                                                               \
    TO_RUNNER std::enable_if_t<std::is_same<T, S>::value, T> atomicAdd(T* at, const S b) {                           \
        (void)&cuda_on_cpu::Adds<T>::floats;                                                                         \
        return cuda_on_cpu::atomically(at, [b](T a) -> T { return __hadd(a, b); });                                  \
    }                                                                                                                \
    template <class T>                                                                                               \
    TO_RUNNER std::enable_if_t<std::is_same<T, P>::value, T> atomicAdd(T* at, const P b) {                           \
        (void)&cuda_on_cpu::Adds<T>::floats;                                                                         \
        return cuda_on_cpu::atomically(at, [b](T a) -> T { return __hadd2(a, b); },                                  \
                                       cuda_on_cpu::UPDATE | cuda_on_cpu::IN_HALVES);                                \
    }

// ---- functions of the type's name ------------------------------------------------------------------------------------

#define CUDA_ON_CPU_OF_INTEGER(N, S, F, NAME, TYPE, TO)                                                              \
    inline S __##NAME##2##N##_##TO(const TYPE i) {                                                                   \
        return S##_raw{cuda_on_cpu::narrowed<F>(cuda_on_cpu::integer_to_odd(i), cuda_on_cpu::TO)};                   \
    }                                                                                                                \
    inline TYPE __##N##2##NAME##_##TO(const S a) {                                                                   \
        return cuda_on_cpu::to_integer<TYPE>(F::widened(a.__x), cuda_on_cpu::TO, sizeof(TYPE) > 4);                  \
    }
#define CUDA_ON_CPU_OF_INTEGERS(N, S, F, NAME, TYPE)                                                                 \
    CUDA_ON_CPU_OF_INTEGER(N, S, F, NAME, TYPE, rn)                                                                  \
    CUDA_ON_CPU_OF_INTEGER(N, S, F, NAME, TYPE, rz)                                                                  \
    CUDA_ON_CPU_OF_INTEGER(N, S, F, NAME, TYPE, ru)                                                                  \
    CUDA_ON_CPU_OF_INTEGER(N, S, F, NAME, TYPE, rd)
#define CUDA_ON_CPU_NARROW_CONVERSIONS(N, S, P, F)                                                                   \
    inline float __##N##2float(const S a) { return F::widened(a.__x); }                                              \
    inline S __float2##N(const float a) { return S##_raw{F::nearest(a)}; }                                           \
    inline S __float2##N##_rn(const float a) { return S##_raw{F::nearest(a)}; }                                      \
    inline S __float2##N##_rz(const float a) { return S##_raw{cuda_on_cpu::narrowed<F>(a, cuda_on_cpu::rz)}; }       \
    inline S __float2##N##_ru(const float a) { return S##_raw{cuda_on_cpu::narrowed<F>(a, cuda_on_cpu::ru)}; }       \
    inline S __float2##N##_rd(const float a) { return S##_raw{cuda_on_cpu::narrowed<F>(a, cuda_on_cpu::rd)}; }       \
    inline S __double2##N(const double a) { return S##_raw{cuda_on_cpu::of_double<F>(a)}; }                          \
    inline P __float2##N##2_rn(const float a) { return {__float2##N(a), __float2##N(a)}; }                           \
    inline P __floats2##N##2_rn(const float a, const float b) { return {__float2##N(a), __float2##N(b)}; }           \
    inline P __float22##N##2_rn(const float2 a) { return __floats2##N##2_rn(a.x, a.y); }                             \
    inline float2 __##N##22float2(const P a) { return {__low2float(a), __high2float(a)}; }                           \
    inline S __low2##N(const P a) { return a.x; }                                                                    \
    inline S __high2##N(const P a) { return a.y; }                                                                   \
    inline P __##N##2##N##2(const S a) { return {a, a}; }                                                            \
    inline P __halves2##N##2(const S a, const S b) { return {a, b}; }                                                \
    inline P make_##N##2(const S a, const S b) { return {a, b}; }                                                    \
    inline P __low2##N##2(const P a) { return {a.x, a.x}; }                                                          \
    inline P __high2##N##2(const P a) { return {a.y, a.y}; }                                                         \
    inline P __lows2##N##2(const P a, const P b) { return {a.x, b.x}; }                                              \
    inline P __highs2##N##2(const P a, const P b) { return {a.y, b.y}; }                                             \
    inline short __##N##_as_short(const S a) { return (short)a.__x; }                                                \
    inline unsigned short __##N##_as_ushort(const S a) { return a.__x; }                                             \
    inline S __short_as_##N(const short a) { return S##_raw{(unsigned short)a}; }                                    \
    inline S __ushort_as_##N(const unsigned short a) { return S##_raw{a}; }                                          \
    inline signed char __##N##2char_rz(const S a) {                                                                  \
        return cuda_on_cpu::to_integer<signed char>(F::widened(a.__x), cuda_on_cpu::rz, false);                      \
    }                                                                                                                \
    inline unsigned char __##N##2uchar_rz(const S a) {                                                               \
        return cuda_on_cpu::to_integer<unsigned char>(F::widened(a.__x), cuda_on_cpu::rz, false);                    \
    }                                                                                                                \
    CUDA_ON_CPU_OF_INTEGERS(N, S, F, short, short)                                                                   \
    CUDA_ON_CPU_OF_INTEGERS(N, S, F, ushort, unsigned short)                                                         \
    CUDA_ON_CPU_OF_INTEGERS(N, S, F, int, int)                                                                       \
    CUDA_ON_CPU_OF_INTEGERS(N, S, F, uint, unsigned)                                                                 \
    CUDA_ON_CPU_OF_INTEGERS(N, S, F, ll, long long)                                                                  \
    CUDA_ON_CPU_OF_INTEGERS(N, S, F, ull, unsigned long long)

// ---- operators ---------------------------------------------------------------------------------------------------------

// Operators of a TYPE, from functions of these names.
#define CUDA_ON_CPU_OPERATORS(TYPE, UNIT, ADD, SUB, MUL, DIV, NEG, EQ, NE, GT, LT, GE, LE)                           \
    inline TYPE operator+(const TYPE& a, const TYPE& b) { return ADD(a, b); }                                        \
    inline TYPE operator-(const TYPE& a, const TYPE& b) { return SUB(a, b); }                                        \
    inline TYPE operator*(const TYPE& a, const TYPE& b) { return MUL(a, b); }                                        \
    inline TYPE operator/(const TYPE& a, const TYPE& b) { return DIV(a, b); }                                        \
    inline TYPE& operator+=(TYPE& a, const TYPE& b) { return a = ADD(a, b); }                                        \
    inline TYPE& operator-=(TYPE& a, const TYPE& b) { return a = SUB(a, b); }                                        \
    inline TYPE& operator*=(TYPE& a, const TYPE& b) { return a = MUL(a, b); }                                        \
    inline TYPE& operator/=(TYPE& a, const TYPE& b) { return a = DIV(a, b); }                                        \
    inline TYPE& operator++(TYPE& a) { return a = ADD(a, TYPE UNIT); }                                               \
    inline TYPE& operator--(TYPE& a) { return a = SUB(a, TYPE UNIT); }                                               \
    inline TYPE operator++(TYPE& a, int) { const TYPE was = a; return ++a, was; }                                    \
    inline TYPE operator--(TYPE& a, int) { const TYPE was = a; return --a, was; }                                    \
    inline TYPE operator+(const TYPE& a) { return a; }                                                               \
    inline TYPE operator-(const TYPE& a) { return NEG(a); }                                                          \
    inline bool operator==(const TYPE& a, const TYPE& b) { return EQ(a, b); }                                        \
    inline bool operator!=(const TYPE& a, const TYPE& b) { return NE(a, b); }                                        \
    inline bool operator>(const TYPE& a, const TYPE& b) { return GT(a, b); }                                         \
    inline bool operator<(const TYPE& a, const TYPE& b) { return LT(a, b); }                                         \
    inline bool operator>=(const TYPE& a, const TYPE& b) { return GE(a, b); }                                        \
    inline bool operator<=(const TYPE& a, const TYPE& b) { return LE(a, b); }
#define CUDA_ON_CPU_SCALAR_OPERATORS(SCALAR, FORMAT)                                                                 \
    CUDA_ON_CPU_OPERATORS(SCALAR, (SCALAR##_raw{FORMAT::ONE}), __hadd, __hsub, __hmul, __hdiv, __hneg,               \
                          __heq, __hneu, __hgt, __hlt, __hge, __hle)
#define CUDA_ON_CPU_PAIR_OPERATORS(PAIR, FORMAT)                                                                     \
    CUDA_ON_CPU_OPERATORS(PAIR, (PAIR##_raw{FORMAT::ONE, FORMAT::ONE}), __hadd2, __hsub2, __hmul2, __h2div, __hneg2, \
                          __hbeq2, __hbneu2, __hbgt2, __hblt2, __hbge2, __hble2)
