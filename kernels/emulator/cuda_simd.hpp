// CUDA's functions of two 16-bit or four 8-bit numbers in a word (CUDA Math API, "SIMD Intrinsics"). All give the bits
// of the hardware.
#pragma once
#include "cuda_integers.hpp"

namespace cuda_on_cpu {

// The number in a lane, widened: signed or unsigned.
template <class CudaLane>
int lane_of(unsigned word, int i) {
    return (CudaLane)(word >> 8 * (int)sizeof(CudaLane) * i);
}

// The word whose lanes are function(lane of a, lane of b), modulo their width.
template <class CudaLane, class Function>
inline __attribute__((always_inline)) unsigned by_lanes(unsigned a, unsigned b, Function function) {
    constexpr int BITS = 8 * (int)sizeof(CudaLane);
    unsigned made = 0;
    for (int i = 0; i < 32 / BITS; ++i) {
        const unsigned lane = (unsigned)function(lane_of<CudaLane>(a, i), lane_of<CudaLane>(b, i));
        made |= (lane & (0xFFFFFFFFu >> (32 - BITS))) << BITS * i;
    }
    return made;
}

template <class CudaLane>
int saturated(int value) {
    constexpr int LEAST = std::numeric_limits<CudaLane>::min(), MOST = std::numeric_limits<CudaLane>::max();
    return value < LEAST ? LEAST : value > MOST ? MOST : value;
}

inline int magnitude(int value) { return value < 0 ? -value : value; }

template <class CudaLane>
unsigned sum_of_differences(unsigned a, unsigned b) {
    unsigned sum = 0;
    for (int i = 0; i < 4 / (int)sizeof(CudaLane); ++i)
        sum += (unsigned)magnitude(lane_of<CudaLane>(a, i) - lane_of<CudaLane>(b, i));
    return sum;
}

}  // namespace cuda_on_cpu

#define CUDA_ON_CPU_BY_LANES(NAME, LANE, ...)                                                                        \
    inline unsigned NAME(unsigned a, unsigned b) {                                                                   \
        return cuda_on_cpu::by_lanes<LANE>(a, b, [](int x, int y) { return __VA_ARGS__; });                          \
    }
#define CUDA_ON_CPU_BY_LANE(NAME, LANE, ...)                                                                         \
    inline unsigned NAME(unsigned a) {                                                                               \
        return cuda_on_cpu::by_lanes<LANE>(a, 0, [](int x, int) { return __VA_ARGS__; });                            \
    }
// A comparison as a mask of ones (vcmp), or as 1 (vset).
#define CUDA_ON_CPU_COMPARED(NAME, LANE, OPERATOR)                                                                   \
    CUDA_ON_CPU_BY_LANES(__vcmp##NAME, LANE, x OPERATOR y ? -1 : 0)                                                  \
    CUDA_ON_CPU_BY_LANES(__vset##NAME, LANE, x OPERATOR y ? 1 : 0)

#define CUDA_ON_CPU_SIMD(LANES, SIGNED, UNSIGNED)                                                                    \
    CUDA_ON_CPU_BY_LANES(__vadd##LANES, UNSIGNED, x + y)                                                             \
    CUDA_ON_CPU_BY_LANES(__vsub##LANES, UNSIGNED, x - y)                                                             \
    CUDA_ON_CPU_BY_LANES(__vaddss##LANES, SIGNED, cuda_on_cpu::saturated<SIGNED>(x + y))                             \
    CUDA_ON_CPU_BY_LANES(__vsubss##LANES, SIGNED, cuda_on_cpu::saturated<SIGNED>(x - y))                             \
    CUDA_ON_CPU_BY_LANES(__vaddus##LANES, UNSIGNED, cuda_on_cpu::saturated<UNSIGNED>(x + y))                         \
    CUDA_ON_CPU_BY_LANES(__vsubus##LANES, UNSIGNED, cuda_on_cpu::saturated<UNSIGNED>(x - y))                         \
    CUDA_ON_CPU_BY_LANE(__vneg##LANES, SIGNED, -x)                                                                   \
    CUDA_ON_CPU_BY_LANE(__vnegss##LANES, SIGNED, cuda_on_cpu::saturated<SIGNED>(-x))                                 \
    CUDA_ON_CPU_BY_LANE(__vabs##LANES, SIGNED, cuda_on_cpu::magnitude(x))                                            \
    CUDA_ON_CPU_BY_LANE(__vabsss##LANES, SIGNED, cuda_on_cpu::saturated<SIGNED>(cuda_on_cpu::magnitude(x)))          \
    CUDA_ON_CPU_BY_LANES(__vabsdiffs##LANES, SIGNED, cuda_on_cpu::magnitude(x - y))                                  \
    CUDA_ON_CPU_BY_LANES(__vabsdiffu##LANES, UNSIGNED, cuda_on_cpu::magnitude(x - y))                                \
    CUDA_ON_CPU_BY_LANES(__vavgs##LANES, SIGNED, (x + y + (x + y >= 0)) >> 1) /* halves away from zero */            \
    CUDA_ON_CPU_BY_LANES(__vavgu##LANES, UNSIGNED, (x + y + 1) >> 1)                                                 \
    CUDA_ON_CPU_BY_LANES(__vhaddu##LANES, UNSIGNED, (x + y) >> 1)                                                    \
    CUDA_ON_CPU_BY_LANES(__vmaxs##LANES, SIGNED, x > y ? x : y)                                                      \
    CUDA_ON_CPU_BY_LANES(__vmaxu##LANES, UNSIGNED, x > y ? x : y)                                                    \
    CUDA_ON_CPU_BY_LANES(__vmins##LANES, SIGNED, x < y ? x : y)                                                      \
    CUDA_ON_CPU_BY_LANES(__vminu##LANES, UNSIGNED, x < y ? x : y)                                                    \
    CUDA_ON_CPU_COMPARED(eq##LANES, UNSIGNED, ==)                                                                    \
    CUDA_ON_CPU_COMPARED(ne##LANES, UNSIGNED, !=)                                                                    \
    CUDA_ON_CPU_COMPARED(ges##LANES, SIGNED, >=)                                                                     \
    CUDA_ON_CPU_COMPARED(geu##LANES, UNSIGNED, >=)                                                                   \
    CUDA_ON_CPU_COMPARED(gts##LANES, SIGNED, >)                                                                      \
    CUDA_ON_CPU_COMPARED(gtu##LANES, UNSIGNED, >)                                                                    \
    CUDA_ON_CPU_COMPARED(les##LANES, SIGNED, <=)                                                                     \
    CUDA_ON_CPU_COMPARED(leu##LANES, UNSIGNED, <=)                                                                   \
    CUDA_ON_CPU_COMPARED(lts##LANES, SIGNED, <)                                                                      \
    CUDA_ON_CPU_COMPARED(ltu##LANES, UNSIGNED, <)                                                                    \
    inline unsigned __vsads##LANES(unsigned a, unsigned b) { return cuda_on_cpu::sum_of_differences<SIGNED>(a, b); } \
    inline unsigned __vsadu##LANES(unsigned a, unsigned b) { return cuda_on_cpu::sum_of_differences<UNSIGNED>(a, b); }

CUDA_ON_CPU_SIMD(2, int16_t, uint16_t)
CUDA_ON_CPU_SIMD(4, int8_t, uint8_t)
#undef CUDA_ON_CPU_SIMD
#undef CUDA_ON_CPU_COMPARED
#undef CUDA_ON_CPU_BY_LANE
#undef CUDA_ON_CPU_BY_LANES

