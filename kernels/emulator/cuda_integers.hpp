// CUDA's integer functions (CUDA Math API, "Integer Intrinsics"; PTX ISA for shifts and selectors out of range), and
// its loads and stores with a cache operator. All give the bits of the hardware.
#pragma once
#include "cuda_vectors.hpp"

// ---- bits --------------------------------------------------------------------------------------------------------

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }

inline unsigned __brev(unsigned x) {
    x = (x >> 1 & 0x55555555) | (x & 0x55555555) << 1;
    x = (x >> 2 & 0x33333333) | (x & 0x33333333) << 2;
    x = (x >> 4 & 0x0F0F0F0F) | (x & 0x0F0F0F0F) << 4;
    return __builtin_bswap32(x);
}
inline unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32));
}

// The upper or the lower word of hi:lo, shifted by the lowest 5 bits of the shift, or by at most 32.
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift) {
    return (unsigned)(((uint64_t)hi << 32 | lo) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) {
    return (unsigned)(((uint64_t)hi << 32 | lo) >> (shift & 31));
}
inline unsigned __funnelshift_lc(unsigned lo, unsigned hi, unsigned shift) {
    return shift >= 32 ? lo : __funnelshift_l(lo, hi, shift);
}
inline unsigned __funnelshift_rc(unsigned lo, unsigned hi, unsigned shift) {
    return shift >= 32 ? hi : __funnelshift_r(lo, hi, shift);
}

// The bytes of a (0…3) and b (4…7) selected by the nibbles of `selector`, the lowest first.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t both = a | (uint64_t)b << 32;
    unsigned d = 0;
    for (int i = 0; i < 4; ++i) d |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
    return d;
}

// ---- products, averages, differences -----------------------------------------------------------------------------

inline int __mulhi(int x, int y) { return (int)((int64_t)x * y >> 32); }
inline unsigned __umulhi(unsigned x, unsigned y) { return (unsigned)((uint64_t)x * y >> 32); }
__extension__ inline long long __mul64hi(long long x, long long y) { return (long long)((__int128)x * y >> 64); }
__extension__ inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
// The lower 32 bits of the product of the lower 24 bits.
inline int __mul24(int x, int y) {
    const int a = (int)((unsigned)x << 8) >> 8, b = (int)((unsigned)y << 8) >> 8;
    return (int)((unsigned)a * (unsigned)b);
}
inline unsigned __umul24(unsigned x, unsigned y) { return (x & 0xFFFFFF) * (y & 0xFFFFFF); }

// Averages without overflow, rounded down (hadd) or up (rhadd).
inline int __hadd(int x, int y) { return (int)(((int64_t)x + y) >> 1); }
inline int __rhadd(int x, int y) { return (int)(((int64_t)x + y + 1) >> 1); }
inline unsigned __uhadd(unsigned x, unsigned y) { return (unsigned)(((uint64_t)x + y) >> 1); }
inline unsigned __urhadd(unsigned x, unsigned y) { return (unsigned)(((uint64_t)x + y + 1) >> 1); }

inline unsigned __sad(int x, int y, unsigned z) {
    return (x > y ? (unsigned)x - (unsigned)y : (unsigned)y - (unsigned)x) + z;
}
inline unsigned __usad(unsigned x, unsigned y, unsigned z) { return (x > y ? x - y : y - x) + z; }

// ---- dot products of bytes ---------------------------------------------------------------------------------------

namespace cuda_on_cpu {
template <class CudaTo, class CudaFrom>
CudaTo word_as(CudaFrom from) {
    static_assert(sizeof(CudaTo) == sizeof(CudaFrom), "one word");
    CudaTo to;
    memcpy(&to, &from, sizeof to);
    return to;
}
// Two products of 16 bits of a with 8 bits of b, starting at byte `first`, added to c.
template <class CudaWide, class CudaNarrow>
unsigned dot2(unsigned a, unsigned b, unsigned c, int first) {
    for (int i = 0; i < 2; ++i) {
        const int product = (CudaWide)(a >> 16 * i) * (CudaNarrow)(b >> 8 * (first + i));
        c += (unsigned)product;
    }
    return c;
}
}  // namespace cuda_on_cpu

// Sum of four products of signed bytes, added to c.
inline int __dp4a(int a, int b, int c) {
#if defined(__SSE4_1__)
    const __m128i pairs = _mm_madd_epi16(_mm_cvtepi8_epi16(_mm_cvtsi32_si128(a)), _mm_cvtepi8_epi16(_mm_cvtsi32_si128(b)));
    const int64_t two = _mm_cvtsi128_si64(pairs);
    return c + (int)two + (int)(two >> 32);
#else
    for (int shift = 0; shift < 32; shift += 8) c += (int)(int8_t)(a >> shift) * (int)(int8_t)(b >> shift);
    return c;
#endif
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int shift = 0; shift < 32; shift += 8) c += (a >> shift & 0xFF) * (b >> shift & 0xFF);
    return c;
}
inline int __dp4a(char4 a, char4 b, int c) {
    return __dp4a(cuda_on_cpu::word_as<int>(a), cuda_on_cpu::word_as<int>(b), c);
}
inline unsigned __dp4a(uchar4 a, uchar4 b, unsigned c) {
    return __dp4a(cuda_on_cpu::word_as<unsigned>(a), cuda_on_cpu::word_as<unsigned>(b), c);
}
#define CUDA_ON_CPU_DP2A(NAME, FIRST)                                                                                \
    inline int NAME(int a, int b, int c) {                                                                           \
        return (int)cuda_on_cpu::dot2<int16_t, int8_t>((unsigned)a, (unsigned)b, (unsigned)c, FIRST);                \
    }                                                                                                                \
    inline unsigned NAME(unsigned a, unsigned b, unsigned c) {                                                       \
        return cuda_on_cpu::dot2<uint16_t, uint8_t>(a, b, c, FIRST);                                                 \
    }                                                                                                                \
    inline int NAME(short2 a, char4 b, int c) {                                                                      \
        return NAME(cuda_on_cpu::word_as<int>(a), cuda_on_cpu::word_as<int>(b), c);                                  \
    }                                                                                                                \
    inline unsigned NAME(ushort2 a, uchar4 b, unsigned c) {                                                          \
        return NAME(cuda_on_cpu::word_as<unsigned>(a), cuda_on_cpu::word_as<unsigned>(b), c);                        \
    }
CUDA_ON_CPU_DP2A(__dp2a_lo, 0)
CUDA_ON_CPU_DP2A(__dp2a_hi, 2)
#undef CUDA_ON_CPU_DP2A

// ---- loads and stores with a cache operator: a CPU has no such caches ------------------------------------------------

// Reloaded each time, so a loop may poll with it.
template <class CudaValue>
inline __attribute__((always_inline)) CudaValue __ldcv(const CudaValue* at) {
    cuda_on_cpu::must_lie_in(cuda_on_cpu::GLOBAL, at);
    cuda_on_cpu::may_wait(at);
    asm volatile("" ::: "memory");
    return *at;
}

#define CUDA_ON_CPU_LOAD(NAME)                                                                                       \
    template <class CudaValue>                                                                                       \
    inline __attribute__((always_inline)) CudaValue NAME(const CudaValue* at) {                                      \
        cuda_on_cpu::must_lie_in(cuda_on_cpu::GLOBAL, at);                                                           \
        return *at;                                                                                                  \
    }
template <class CudaValue>
inline __attribute__((always_inline)) CudaValue __ldg(const CudaValue* at) {
    cuda_on_cpu::read_as_constant(at, sizeof *at);
    return *at;
}
#define CUDA_ON_CPU_STORE(NAME)                                                                                      \
    template <class CudaValue>                                                                                       \
    inline __attribute__((always_inline)) void NAME(CudaValue* at, std::common_type_t<CudaValue> value) {            \
        cuda_on_cpu::must_lie_in(cuda_on_cpu::GLOBAL, at);                                                           \
        *at = value;                                                                                                 \
    }
CUDA_ON_CPU_LOAD(__ldca)
CUDA_ON_CPU_LOAD(__ldcg)
CUDA_ON_CPU_LOAD(__ldcs)
CUDA_ON_CPU_LOAD(__ldlu)
CUDA_ON_CPU_STORE(__stcg)
CUDA_ON_CPU_STORE(__stcs)
CUDA_ON_CPU_STORE(__stwb)
CUDA_ON_CPU_STORE(__stwt)
#undef CUDA_ON_CPU_LOAD
#undef CUDA_ON_CPU_STORE
