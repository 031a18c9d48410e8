// Inline PTX on the CPU: the code that hosts/ptx.py generates for asm statements calls these functions. A register is a
// 64-bit word, of which an instruction uses the bits of its type. PTX ISA 9.0, section 9.
//
// The bits are those of the GPU, except for approximate functions (ex2, lg2, rcp, rsqrt, tanh, sin and cos), which are
// correctly rounded or computed by the C library here, and for sums of floating-point matrix products, which are added
// in double and rounded once.
#pragma once
#include "cuda_on_cpu.hpp"

namespace cuda_on_cpu {
namespace ptx {

// ---- types ---------------------------------------------------------------------------------------------------------

template <class T>
struct Plain {
    typedef T type;
    static constexpr int LANES = 1;
    static T get(uint64_t word) {
        T v;
        memcpy(&v, &word, sizeof v);
        return v;
    }
    static uint64_t put(T v) {
        uint64_t word = 0;
        memcpy(&word, &v, sizeof v);
        return word;
    }
};
struct u8 : Plain<uint8_t> {};
struct u16 : Plain<uint16_t> {};
struct u32 : Plain<uint32_t> {};
struct u64 : Plain<uint64_t> {};
struct b8 : u8 {};
struct b16 : u16 {};
struct b32 : u32 {};
struct b64 : u64 {};
// A smaller signed number in a 32-bit register is sign-extended: ld and cvt do so.
template <class T>
struct Signed : Plain<T> {
    static uint64_t put(T v) { return sizeof(T) < 4 ? (uint32_t)(int32_t)v : Plain<T>::put(v); }
};
struct s8 : Signed<int8_t> {};
struct s16 : Signed<int16_t> {};
struct s32 : Signed<int32_t> {};
struct s64 : Signed<int64_t> {};
struct f32 : Plain<float> {};
struct f64 : Plain<double> {};
// Halves are computed in double, which holds their products.
struct f16 {
    typedef double type;
    static constexpr int LANES = 1;
    static double get(uint64_t word) { return half_to_float((uint16_t)word); }
    static uint64_t put(double v) { return rounded_to_half(v); }
    // to a float, keeping odd values odd: rounding that to a half is a single rounding
    static uint16_t rounded_to_half(double v) {
        float f = (float)v;
        if ((double)f != v && v == v && !std::isinf(f)) {
            uint32_t bits = (uint32_t)f32::put(f);
            if (std::fabs((double)f) > std::fabs(v)) --bits;  // towards zero
            bits |= 1;
            memcpy(&f, &bits, 4);
        }
        return float_to_half(f);
    }
};
struct bf16 {
    typedef double type;
    static constexpr int LANES = 1;
    static double get(uint64_t word) {
        const uint32_t bits = (uint32_t)word << 16;
        float f;
        memcpy(&f, &bits, 4);
        return f;
    }
    static uint64_t put(double v) {
        if (v != v) return 0x7FFF;
        float f = (float)v;
        uint32_t bits = (uint32_t)f32::put(f);
        if ((double)f != v && !std::isinf(f)) {
            if (std::fabs((double)f) > std::fabs(v)) --bits;
            bits |= 1;
        }
        return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF;
    }
};
template <class T>
struct Pair : T {
    typedef T one;
    static constexpr int LANES = 2;
};
struct f16x2 : Pair<f16> {};
struct bf16x2 : Pair<bf16> {};

template <class T>
constexpr bool FLOATS = std::is_floating_point<typename T::type>::value;

inline uint64_t ones(int bits) { return bits >= 64 ? ~0ull : (1ull << bits) - 1; }
template <class T, class V>
uint64_t bits(V v) {
    return T::put((typename T::type)v);
}

// An operand of the statement as a word. KIND is its constraint.
template <char KIND, class V>
uint64_t in(const V& v) {
    uint64_t word = 0;
    if constexpr (KIND == 'f') word = f32::put((float)v);
    else if constexpr (KIND == 'd') word = f64::put((double)v);
    else if constexpr (std::is_pointer<V>::value) word = (uint64_t)(uintptr_t)v;
    else if constexpr (std::is_integral<V>::value || std::is_enum<V>::value) word = (uint64_t)(long long)v;
    else memcpy(&word, (const void*)&v, sizeof v < 8 ? sizeof v : 8);
    return KIND == 'r' ? (uint32_t)word : KIND == 'h' ? (uint16_t)word : word;
}
template <char KIND, class V, size_t N>
uint64_t in(const V (&v)[N]) {
    return (uint64_t)(uintptr_t)&v;
}
template <class V>
void out(V& to, uint64_t word) {
    if constexpr (std::is_integral<V>::value) to = (V)word;
    else memcpy((void*)&to, &word, sizeof to < 8 ? sizeof to : 8);
}

// ---- arithmetic ----------------------------------------------------------------------------------------------------

template <class T, class Of>
uint64_t each(uint64_t a, uint64_t b, uint64_t c, Of of) {
    if constexpr (T::LANES == 2) {
        const uint64_t low = T::put(of(T::get(a & 0xFFFF), T::get(b & 0xFFFF), T::get(c & 0xFFFF)));
        return low | T::put(of(T::get(a >> 16 & 0xFFFF), T::get(b >> 16 & 0xFFFF), T::get(c >> 16 & 0xFFFF))) << 16;
    } else {
        return T::put(of(T::get(a), T::get(b), T::get(c)));
    }
}
#define CUDA_ON_CPU_PTX(NAME, PARAMETERS, A, B, C, ...)                                                              \
    template <class T>                                                                                               \
    uint64_t NAME PARAMETERS {                                                                                       \
        typedef typename T::type V;                                                                                  \
        return each<T>(A, B, C, [](V a, V b, V c) -> V { return (void)a, (void)b, (void)c, (V)(__VA_ARGS__); });     \
    }
#define CUDA_ON_CPU_UNARY(NAME, ...) CUDA_ON_CPU_PTX(NAME, (uint64_t x), x, x, x, __VA_ARGS__)
#define CUDA_ON_CPU_BINARY(NAME, ...) CUDA_ON_CPU_PTX(NAME, (uint64_t x, uint64_t y), x, y, y, __VA_ARGS__)

template <class V>
auto wide(V v) {  // integers without overflow
    if constexpr (std::is_floating_point<V>::value) return v;
    else return (std::make_unsigned_t<V>)v;
}
template <class V>
V smaller(V a, V b) {
    return a != a ? b : b != b ? a : a < b || (a == b && std::signbit((double)a)) ? a : b;
}
template <class V>
V larger(V a, V b) {
    return a != a ? b : b != b ? a : a > b || (a == b && !std::signbit((double)a)) ? a : b;
}
// For halves, whose product is exact in double: an inexact sum is left odd, so that it is rounded only once.
template <class T, class V>
V fused(V a, V b, V c) {
    if constexpr (std::is_same<V, double>::value && !std::is_same<T, f64>::value) {
        const double product = a * b, sum = product + c, of_c = sum - product;
        const double left = (product - (sum - of_c)) + (c - of_c);
        uint64_t bits = f64::put(sum);
        if (left != left || left == 0 || std::isinf(sum) || bits & 1) return sum;
        bits += (left > 0) == (sum > 0) ? 1 : -1;
        return f64::get(bits);
    } else {
        return std::fma(a, b, c);
    }
}
CUDA_ON_CPU_BINARY(add_, wide(a) + wide(b))
CUDA_ON_CPU_BINARY(sub_, wide(a) - wide(b))
CUDA_ON_CPU_BINARY(min_, smaller(a, b))
CUDA_ON_CPU_BINARY(max_, larger(a, b))
CUDA_ON_CPU_BINARY(mul_, a * b)  // floats
CUDA_ON_CPU_BINARY(div_, a / b)
CUDA_ON_CPU_PTX(fma_, (uint64_t x, uint64_t y, uint64_t z), x, y, z, fused<T>(a, b, c))
CUDA_ON_CPU_UNARY(ex2_, std::exp2(a))
CUDA_ON_CPU_UNARY(lg2_, std::log2(a))
CUDA_ON_CPU_UNARY(rcp_, 1 / a)
CUDA_ON_CPU_UNARY(sqrt_, std::sqrt(a))
CUDA_ON_CPU_UNARY(rsqrt_, 1 / std::sqrt((double)a))
CUDA_ON_CPU_UNARY(tanh_, std::tanh(a))
CUDA_ON_CPU_UNARY(sin_, std::sin(a))
CUDA_ON_CPU_UNARY(cos_, std::cos(a))
template <class T>
uint64_t neg_(uint64_t x) {
    if constexpr (std::is_base_of<f16, T>::value || std::is_base_of<bf16, T>::value)
        return x ^ (T::LANES == 2 ? 0x80008000u : 0x8000u);  // NaN too
    else if constexpr (FLOATS<T>) return T::put(-T::get(x));
    else return T::put((typename T::type)(0 - wide(T::get(x))));
}
template <class T>
uint64_t abs_(uint64_t x) {
    if constexpr (std::is_base_of<f16, T>::value || std::is_base_of<bf16, T>::value)
        return x & (T::LANES == 2 ? 0x7FFF7FFFu : 0x7FFFu);
    else return T::get(x) < 0 || (FLOATS<T> && std::signbit((double)T::get(x))) ? neg_<T>(x) : x;
}
CUDA_ON_CPU_BINARY(rem_, a % b)
CUDA_ON_CPU_BINARY(and_, a & b)
CUDA_ON_CPU_BINARY(or_, a | b)
CUDA_ON_CPU_BINARY(xor_, a ^ b)
CUDA_ON_CPU_UNARY(not_, ~a)
CUDA_ON_CPU_UNARY(cnot_, a == 0)
// A shift by at least the number of bits gives zeros, or sign bits.
template <class T>
uint64_t shl_(uint64_t x, uint64_t by) {
    return (uint32_t)by >= 8 * sizeof(typename T::type) ? 0 : T::put((typename T::type)(wide(T::get(x)) << (uint32_t)by));
}
template <class T>
uint64_t shr_(uint64_t x, uint64_t by) {
    const uint32_t most = 8 * sizeof(typename T::type) - 1;
    return (uint32_t)by <= most ? T::put((typename T::type)(T::get(x) >> (uint32_t)by))
                                : T::put((typename T::type)(T::get(x) >> most >> 1));
}
template <class T>
uint64_t popc_(uint64_t x) {
    return (uint64_t)__builtin_popcountll(x & ones(8 * sizeof(typename T::type)));
}
template <class T>
uint64_t clz_(uint64_t x) {
    x &= ones(8 * sizeof(typename T::type));
    return x ? __builtin_clzll(x) - (64 - 8 * sizeof(typename T::type)) : 8 * sizeof(typename T::type);
}
template <class T>
uint64_t brev_(uint64_t x) {
    uint64_t out = 0;
    for (size_t i = 0; i < 8 * sizeof(typename T::type); ++i) out = out << 1 | (x >> i & 1);
    return out;
}
template <class T>
using Twice = std::conditional_t<sizeof(T) == 8, __int128,
                                 std::conditional_t<std::is_signed<T>::value, int64_t, uint64_t>>;
template <class T>
uint64_t mul_lo(uint64_t x, uint64_t y) {
    return T::put((typename T::type)((uint64_t)T::get(x) * (uint64_t)T::get(y)));
}
template <class T>
uint64_t mul_hi(uint64_t x, uint64_t y) {
    typedef typename T::type V;
    if constexpr (sizeof(V) == 8 && !std::is_signed<V>::value)
        return (uint64_t)((unsigned __int128)x * y >> 64);
    else return T::put((V)((Twice<V>)T::get(x) * (Twice<V>)T::get(y) >> 8 * sizeof(V)));
}
template <class T>
uint64_t mul_wide(uint64_t x, uint64_t y) {
    typedef typename T::type V;
    return (uint64_t)((Twice<V>)T::get(x) * (Twice<V>)T::get(y)) & ones(16 * sizeof(V));
}
template <class T>
uint64_t mad_lo(uint64_t x, uint64_t y, uint64_t z) {
    return add_<T>(mul_lo<T>(x, y), z);
}
template <class T>
uint64_t mad_hi(uint64_t x, uint64_t y, uint64_t z) {
    return add_<T>(mul_hi<T>(x, y), z);
}
template <class T>
uint64_t mad_wide(uint64_t x, uint64_t y, uint64_t z) {
    return (mul_wide<T>(x, y) + z) & ones(16 * sizeof(typename T::type));
}

// ---- bits ----------------------------------------------------------------------------------------------------------

inline uint64_t lop3(uint64_t a, uint64_t b, uint64_t c, uint64_t table) {
    uint32_t d = 0;
    for (int i = 0; i < 8; ++i)
        if (table >> i & 1) d |= (uint32_t)((i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c));
    return d;
}
// A selector's highest bit replicates the byte's sign.
inline uint64_t prmt(uint64_t a, uint64_t b, uint64_t selector) {
    const uint64_t both = (uint32_t)a | b << 32;
    uint32_t d = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32_t byte = (uint32_t)(both >> 8 * (selector >> 4 * i & 7) & 0xFF);
        d |= (selector >> 4 * i & 8 ? (byte & 0x80 ? 0xFFu : 0u) : byte) << 8 * i;
    }
    return d;
}
template <class T>
uint64_t bfe(uint64_t a, uint64_t b, uint64_t c) {
    typedef typename T::type V;
    const int most = 8 * sizeof(V) - 1, at = (int)(b & 0xFF), length = (int)(c & 0xFF);
    const uint64_t word = a & ones(most + 1);
    const bool negative = std::is_signed<V>::value && length && word >> std::min(at + length - 1, most) & 1;
    uint64_t d = 0;
    for (int i = 0; i <= most; ++i)
        d |= (uint64_t)(i < length && at + i <= most ? word >> (at + i) & 1 : negative) << i;
    return d;
}
template <class T>
uint64_t bfi(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    const int size = 8 * sizeof(typename T::type), at = (int)(c & 0xFF), length = (int)(d & 0xFF);
    uint64_t f = b & ones(size);
    for (int i = 0; i < length && at + i < size; ++i) f = (f & ~(1ull << (at + i))) | (a >> i & 1) << (at + i);
    return f;
}
template <bool CLAMP>
uint64_t funnel_left(uint64_t a, uint64_t b, uint64_t c) {
    const unsigned n = CLAMP ? std::min((uint32_t)c, 32u) : c & 31;
    return (uint32_t)((((uint64_t)(uint32_t)b << 32 | (uint32_t)a) << n) >> 32);
}
template <bool CLAMP>
uint64_t funnel_right(uint64_t a, uint64_t b, uint64_t c) {
    const unsigned n = CLAMP ? std::min((uint32_t)c, 32u) : c & 31;
    return (uint32_t)(((uint64_t)(uint32_t)b << 32 | (uint32_t)a) >> n);
}
template <class A, class B>
uint64_t dp4a(uint64_t a, uint64_t b, uint64_t c) {
    uint32_t d = (uint32_t)c;
    for (int i = 0; i < 4; ++i) d += (uint32_t)((int)A::get(a >> 8 * i & 0xFF) * (int)B::get(b >> 8 * i & 0xFF));
    return d;
}
template <class A, class B, bool HIGH>
uint64_t dp2a(uint64_t a, uint64_t b, uint64_t c) {
    uint32_t d = (uint32_t)c;
    for (int i = 0; i < 2; ++i)
        d += (uint32_t)((int)A::get(a >> 16 * i & 0xFFFF) * (int)B::get(b >> (16 * HIGH + 8 * i) & 0xFF));
    return d;
}
// Comparisons of floats are false if one is NaN, except ne and those that end with u.
template <class T>
uint64_t compare(uint64_t x, uint64_t y, const char* how) {
    const auto a = T::get(x);
    const auto b = T::get(y);
    const bool unordered = a != a || b != b;
    switch (how[0] << 8 | how[1]) {
        case 'e' << 8 | 'q': return a == b || (unordered && how[2]);
        case 'n' << 8 | 'e': return !unordered ? a != b : how[2] != 0;
        case 'l' << 8 | 't': case 'l' << 8 | 'o': return a < b || (unordered && how[2]);
        case 'l' << 8 | 'e': case 'l' << 8 | 's': return a <= b || (unordered && how[2]);
        case 'g' << 8 | 't': case 'h' << 8 | 'i': return a > b || (unordered && how[2]);
        default: return a >= b || (unordered && how[2]);
    }
}

// ---- conversions ---------------------------------------------------------------------------------------------------

inline double rounded(double v, char mode) {
    return mode == 'z' ? std::trunc(v) : mode == 'm' ? std::floor(v) : mode == 'p' ? std::ceil(v) : std::nearbyint(v);
}
// MODE: n, z, m or p, to the nearest, towards zero, down, up. SATURATES: to the range 0…1 of a float, or that of the
// integer.
template <class TO, class OF, char MODE, bool SATURATES = false>
uint64_t cvt(uint64_t x) {
    typedef typename TO::type V;
    const auto v = OF::get(x);
    constexpr bool to_float = std::is_floating_point<V>::value, of_float = std::is_floating_point<typename OF::type>::value;
    if constexpr (to_float) {
        if constexpr (SATURATES) return TO::put((V)(v != v ? 0 : (double)v < 0 ? 0 : (double)v > 1 ? 1 : (double)v));
        if constexpr (of_float && sizeof(V) >= sizeof(typename OF::type) && std::is_same<TO, OF>::value && MODE != 'n')
            return TO::put((V)rounded((double)v, MODE));
        return TO::put((V)v);
    } else if constexpr (of_float) {
        return TO::put(to_integer<V>(rounded((double)v, MODE), rz, sizeof(V) == 8 || std::is_same<OF, f64>::value));
    } else {
        if constexpr (SATURATES) {
            const __int128 least = std::numeric_limits<V>::min(), most = std::numeric_limits<V>::max();
            return TO::put((V)std::min(std::max((__int128)v, least), most));
        }
        return TO::put((V)v);
    }
}

// ---- memory --------------------------------------------------------------------------------------------------------

template <Space SPACE>
uint8_t* pointer(uint64_t address) {
    return (uint8_t*)(SPACE == SHARED ? of_shared_address((uint32_t)address) : (void*)(uintptr_t)address);
}
// The address of an access.
template <Space SPACE>
TO_RUNNER uint8_t* at(uint64_t address) {
    uint8_t* const found = pointer<SPACE>(address);
    if (SPACE != GENERIC) must_lie_in(SPACE, found);
    return found;
}
inline uint64_t to_shared(uint64_t address) { return to_shared_address((const void*)(uintptr_t)address); }
inline uint64_t of_shared(uint64_t address) { return (uint64_t)(uintptr_t)of_shared_address((uint32_t)address); }
// The type in memory.
template <class T>
using Stored = std::conditional_t<std::is_base_of<f16, T>::value || std::is_base_of<bf16, T>::value,
                                  std::conditional_t<T::LANES == 2, uint32_t, uint16_t>, typename T::type>;
// The start of a vector with that many elements.
template <class T, int COUNT>
TO_RUNNER uint8_t* vector(uint8_t* at) {
    must_align(at, COUNT * sizeof(Stored<T>));
    return at;
}
template <class T, int COUNT>
TO_RUNNER void constant(const uint8_t* at) {
    read_as_constant(at, COUNT * sizeof(Stored<T>));
}
template <class T>
TO_RUNNER uint64_t load(const uint8_t* at, int i) {
    typedef Stored<T> V;
    const V v = ((const V*)at)[i];
    if constexpr (std::is_same<V, typename T::type>::value) return T::put(v);
    else return v;
}
template <class T>
TO_RUNNER void store(uint8_t* at, int i, uint64_t v) {
    typedef Stored<T> V;
    if constexpr (std::is_same<V, typename T::type>::value) ((V*)at)[i] = T::get(v);
    else ((V*)at)[i] = (V)v;
}
// Copies `bytes` to shared memory; those from `taken` on become zeros.
TO_RUNNER void copy_async(uint8_t* to, const uint8_t* from, uint64_t bytes, uint64_t taken, bool past_l1) {
    copy_later(to, from, bytes, bytes - (uint32_t)taken, past_l1);
}
template <class T>
using Word = std::conditional_t<T::LANES == 2 || sizeof(typename T::type) == 4, uint32_t,
                                std::conditional_t<std::is_same<typename T::type, double>::value && !std::is_same<T, f64>::value,
                                                   uint16_t, uint64_t>>;
// Relaxed, acquire or release; HOW: OF_ONE_BLOCK, or 0.
template <class T, uint32_t HOW>
TO_RUNNER uint64_t load_strong(const uint8_t* at, int i) {
    typedef Stored<T> V;
    const V v = strong_load((const V*)at + i, HOW);
    if constexpr (std::is_same<V, typename T::type>::value) return T::put(v);
    else return v;
}
template <class T, uint32_t HOW>
TO_RUNNER void store_strong(uint8_t* at, int i, uint64_t v) {
    typedef Stored<T> V;
    if constexpr (std::is_same<V, typename T::type>::value) strong_store((V*)at + i, T::get(v), HOW);
    else strong_store((V*)at + i, (V)v, HOW);
}
#define CUDA_ON_CPU_ATOMIC(NAME, ...)                                                                                \
    template <class T, uint32_t HOW = 0>                                                                             \
    TO_RUNNER uint64_t atomic_##NAME(uint8_t* at, uint64_t b) {                                                      \
        return atomically((Word<T>*)at, [b](Word<T> a) { return (Word<T>)(__VA_ARGS__); }, UPDATE | HOW);            \
    }
template <class T, uint32_t HOW = 0>
TO_RUNNER uint64_t atomic_add(uint8_t* at, uint64_t b) {
    if constexpr (FLOATS<T>) (void)&Adds<T>::floats;
    constexpr uint32_t how = UPDATE | HOW | (FLOATS<T> && T::LANES == 2 ? IN_HALVES : 0);
    return atomically((Word<T>*)at, [b](Word<T> a) { return (Word<T>)add_<T>(a, b); }, how);
}
CUDA_ON_CPU_ATOMIC(min, min_<T>(a, b))
CUDA_ON_CPU_ATOMIC(max, max_<T>(a, b))
CUDA_ON_CPU_ATOMIC(and, a & b)
CUDA_ON_CPU_ATOMIC(or, a | b)
CUDA_ON_CPU_ATOMIC(xor, a ^ b)
CUDA_ON_CPU_ATOMIC(exch, b)
CUDA_ON_CPU_ATOMIC(inc, a >= (Word<T>)b ? 0 : a + 1)
CUDA_ON_CPU_ATOMIC(dec, a == 0 || a > (Word<T>)b ? (Word<T>)b : a - 1)
template <class T, uint32_t HOW = 0>
TO_RUNNER uint64_t atomic_cas(uint8_t* at, uint64_t compared, uint64_t value) {
    const auto change = [=](Word<T> a) { return a == (Word<T>)compared ? (Word<T>)value : a; };
    return atomically((Word<T>*)at, change, UPDATE | HOW);
}

// ---- threads -------------------------------------------------------------------------------------------------------

inline uint64_t thread() {
    return threadIdx.x + (uint64_t)blockDim.x * (threadIdx.y + (uint64_t)blockDim.y * threadIdx.z);
}
TO_RUNNER void sync(int id, int threads) {
    if (!id && !threads) sync_block();
    else sync_named(id, threads);
}
TO_RUNNER void arrive(int id, int threads) { arrive_named(id, threads); }
TO_RUNNER uint64_t shuffle(char way, uint32_t a, uint32_t b, uint32_t c, unsigned mask) {
    const int self = lane(), segments = (int)(c >> 8 & 31), clamp = (int)(c & 31), by = (int)(b & 31);
    const int most = (self & segments) | (clamp & ~segments), least = self & segments;
    const int source = way == 'u' ? self - by : way == 'd' ? self + by : way == 'b' ? self ^ by : least | (by & ~segments);
    const bool in_range = way == 'u' ? source >= most : source <= most;
    const Way kind = way == 'u' ? SHUFFLE_UP : way == 'd' ? SHUFFLE_DOWN : way == 'b' ? SHUFFLE_XOR : SHUFFLE;
    return (uint32_t)exchange(a, in_range ? source : self, mask, kind);
}

// ---- matrices ------------------------------------------------------------------------------------------------------
// The elements that a lane holds: PTX ISA, "Matrix Fragments for mma.m16n8k16" and the like. Of a row, a lane has the
// 32-bit words 4·i + l%4; rows l/4 and l/4 + 8 in turn, then the next words.

template <int COUNT, bool TRANSPOSED>
TO_RUNNER void ldmatrix(uint32_t (&d)[4], const uint8_t* row) {
    const int self = lane();
    if (self < 8 * COUNT) must_lie_in(SHARED, row), must_align(row, 16);
    const uint64_t* rows = gather((uint64_t)(uintptr_t)row);
    for (int i = 0; i < COUNT; ++i) {
        uint16_t two[2];
        for (int j = 0; j < 2; ++j) {
            const int r = TRANSPOSED ? self % 4 * 2 + j : self / 4, column = TRANSPOSED ? self / 4 : self % 4 * 2 + j;
            two[j] = ((const uint16_t*)(uintptr_t)rows[8 * i + r])[column];
        }
        memcpy(&d[i], two, 4);
    }
}

template <class T>
constexpr int BITS = std::is_base_of<Plain<uint8_t>, T>::value || std::is_base_of<Plain<int8_t>, T>::value ? 8 : 16;

struct MatrixLane {
    const uint64_t *a, *b;
};
// d[M, 8] = a[M, K]·b[K, 8] + c.
template <int M, int K, class D, class A, class B, class C>
void mma(uint32_t (&d)[4], const uint64_t* a, const uint64_t* b, const uint64_t* c) {
    constexpr int EACH = 32 / BITS<A>, ROWS = M / 8, WORDS = K / EACH / 4;  // of a lane in a row
    MatrixLane own{a, b};
    const uint64_t* lanes = gather((uint64_t)(uintptr_t)&own);
    const int self = lane();
    typedef std::conditional_t<std::is_same<D, s32>::value, int64_t, double> Sum;
    Sum sums[2 * ROWS];
    for (int i = 0; i < 2 * ROWS; ++i) {
        const int row = self / 4, part = i / 2, column = self % 4 * 2 + i % 2;
        Sum sum = 0;
        if constexpr (std::is_same<C, f16>::value) sum = f16::get(c[i / 2] >> 16 * (i % 2) & 0xFFFF);
        else sum = (Sum)C::get(c[i]);
        for (int k = 0; k < K; ++k) {
            const int word = k / EACH, shift = k % EACH * BITS<A>;
            const MatrixLane &of_a = *(const MatrixLane*)(uintptr_t)lanes[row * 4 + word % 4],
                             &of_b = *(const MatrixLane*)(uintptr_t)lanes[column * 4 + word % 4];
            const uint64_t x = of_a.a[word / 4 * ROWS + part] >> shift, y = of_b.b[word / 4] >> shift;
            sum += (Sum)A::get(x & ones(BITS<A>)) * (Sum)B::get(y & ones(BITS<B>));
        }
        sums[i] = sum;
    }
    static_assert(WORDS >= 1, "a lane has at least one word of a row");
    gather(0);  // others read this lane's words until here
    for (int i = 0; i < 2 * ROWS; ++i) {
        if constexpr (std::is_same<D, f16>::value) {
            if (i % 2 == 0) d[i / 2] = 0;
            d[i / 2] |= (uint32_t)f16::put(sums[i]) << 16 * (i % 2);
        } else {
            d[i] = (uint32_t)D::put((typename D::type)sums[i]);
        }
    }
}
#undef CUDA_ON_CPU_PTX
#undef CUDA_ON_CPU_UNARY
#undef CUDA_ON_CPU_BINARY
#undef CUDA_ON_CPU_ATOMIC

}  // namespace ptx
}  // namespace cuda_on_cpu
