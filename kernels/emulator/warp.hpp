// Warp functions of CUDA C++ (Programming Guide, "Warp Vote", "Warp Match", "Warp Reduce" and "Warp Shuffle Functions";
// which lane a shuffle reads: runner.hpp). A mask that names every lane of the warp stands for those that have
// not exited; any other mask for the lanes that it names.
#pragma once
#include "cuda_on_cpu.hpp"

static constexpr int warpSize = 32;

TO_RUNNER void __syncwarp(unsigned mask = ~0u) { cuda_on_cpu::sync_warp(mask); }
TO_RUNNER int __syncthreads_count(int value) { return (int)cuda_on_cpu::sync_block_count(value != 0); }
TO_RUNNER int __syncthreads_or(int value) { return cuda_on_cpu::sync_block_count(value != 0) != 0; }
TO_RUNNER int __syncthreads_and(int value) { return cuda_on_cpu::sync_block_count(value == 0) == 0; }
TO_RUNNER unsigned __activemask() { return cuda_on_cpu::active_lanes(); }

namespace cuda_on_cpu {

template <class T>
TO_RUNNER T shuffled(Way way, unsigned mask, T v, int operand, int width) {
    return from_slot<T>(shuffle(to_slot(v), operand, mask, way, width));
}

}  // namespace cuda_on_cpu

template <class T>
TO_RUNNER T __shfl_sync(unsigned mask, T v, int lane, int width = 32) {
    return cuda_on_cpu::shuffled(cuda_on_cpu::SHUFFLE, mask, v, lane, width);
}

template <class T>
TO_RUNNER T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32) {
    return cuda_on_cpu::shuffled(cuda_on_cpu::SHUFFLE_XOR, mask, v, lanes, width);
}

template <class T>
TO_RUNNER T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32) {
    return cuda_on_cpu::shuffled(cuda_on_cpu::SHUFFLE_DOWN, mask, v, (int)delta, width);
}

template <class T>
TO_RUNNER T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32) {
    return cuda_on_cpu::shuffled(cuda_on_cpu::SHUFFLE_UP, mask, v, (int)delta, width);
}

// The functions of before CUDA 9, for all lanes.
template <class T>
TO_RUNNER T __shfl(T v, int lane, int width = 32) {
    return __shfl_sync(~0u, v, lane, width);
}
template <class T>
TO_RUNNER T __shfl_xor(T v, int lanes, int width = 32) {
    return __shfl_xor_sync(~0u, v, lanes, width);
}
template <class T>
TO_RUNNER T __shfl_down(T v, unsigned delta, int width = 32) {
    return __shfl_down_sync(~0u, v, delta, width);
}
template <class T>
TO_RUNNER T __shfl_up(T v, unsigned delta, int width = 32) {
    return __shfl_up_sync(~0u, v, delta, width);
}

namespace cuda_on_cpu {

// start, combined with the values of the lanes of a mask that have not exited, in ascending order.
template <class Combine>
TO_RUNNER unsigned of_lanes(Way way, unsigned mask, uint64_t value, unsigned start, Combine combine) {
    const uint64_t* given = gather(value, mask, way);
    const unsigned among = (unsigned)given[32];
    for (unsigned l = 0; l < 32; ++l)
        if (among >> l & 1) start = combine(start, given[l], l);
    return start;
}
TO_RUNNER unsigned ballot(Way way, unsigned mask, bool predicate) {
    return of_lanes(way, mask, predicate, 0, [](unsigned a, uint64_t b, unsigned l) { return a | (unsigned)b << l; });
}
TO_RUNNER unsigned match(Way way, unsigned mask, uint64_t own) {
    return of_lanes(way, mask, own, 0, [own](unsigned a, uint64_t b, unsigned l) { return a | (unsigned)(b == own) << l; });
}

}  // namespace cuda_on_cpu

TO_RUNNER unsigned __ballot_sync(unsigned mask, int predicate) { return cuda_on_cpu::ballot(cuda_on_cpu::BALLOT, mask, predicate); }
TO_RUNNER int __any_sync(unsigned mask, int predicate) { return cuda_on_cpu::ballot(cuda_on_cpu::ANY, mask, predicate) != 0; }
TO_RUNNER int __all_sync(unsigned mask, int predicate) { return cuda_on_cpu::ballot(cuda_on_cpu::ALL, mask, !predicate) == 0; }
TO_RUNNER unsigned __ballot(int predicate) { return __ballot_sync(~0u, predicate); }
TO_RUNNER int __any(int predicate) { return __any_sync(~0u, predicate); }
TO_RUNNER int __all(int predicate) { return __all_sync(~0u, predicate); }
template <class T>
TO_RUNNER unsigned __match_any_sync(unsigned mask, T value) {
    return cuda_on_cpu::match(cuda_on_cpu::MATCH_ANY, mask, cuda_on_cpu::to_slot(value));
}
template <class T>
TO_RUNNER unsigned __match_all_sync(unsigned mask, T value, int* all) {
    const unsigned same = cuda_on_cpu::match(cuda_on_cpu::MATCH_ALL, mask, cuda_on_cpu::to_slot(value));
    *all = same == mask;
    return *all ? same : 0;
}

#define CUDA_ON_CPU_REDUCE(NAME, T, START, ...)                                                                      \
    TO_RUNNER T NAME(unsigned mask, T value) {                                                                       \
        const auto combine = [](unsigned x, uint64_t y, unsigned) {                                                  \
            const T a = (T)x, b = (T)(unsigned)y;                                                                    \
            return (unsigned)(__VA_ARGS__);                                                                          \
        };                                                                                                           \
        return (T)cuda_on_cpu::of_lanes(cuda_on_cpu::REDUCE, mask, (uint64_t)(unsigned)value, (unsigned)(START), combine); \
    }
CUDA_ON_CPU_REDUCE(__reduce_add_sync, int, 0, (unsigned)a + (unsigned)b)
CUDA_ON_CPU_REDUCE(__reduce_add_sync, unsigned, 0, a + b)
CUDA_ON_CPU_REDUCE(__reduce_min_sync, int, 0x7FFFFFFF, a < b ? a : b)
CUDA_ON_CPU_REDUCE(__reduce_min_sync, unsigned, ~0u, a < b ? a : b)
CUDA_ON_CPU_REDUCE(__reduce_max_sync, int, 0x80000000, a > b ? a : b)
CUDA_ON_CPU_REDUCE(__reduce_max_sync, unsigned, 0, a > b ? a : b)
CUDA_ON_CPU_REDUCE(__reduce_and_sync, unsigned, ~0u, a & b)
CUDA_ON_CPU_REDUCE(__reduce_or_sync, unsigned, 0, a | b)
CUDA_ON_CPU_REDUCE(__reduce_xor_sync, unsigned, 0, a ^ b)
#undef CUDA_ON_CPU_REDUCE

// ---- time and ends ---------------------------------------------------------------------------------------------------

inline long long clock64() { return (long long)cuda_on_cpu::clock_now(); }
inline void __nanosleep(unsigned) { cuda_on_cpu::clock_now(); }
[[noreturn]] inline void __trap() { cuda_on_cpu::trap("the kernel calls __trap()"); }
inline void __brkpt() {}

// ---- addresses -------------------------------------------------------------------------------------------------------

inline size_t __cvta_generic_to_shared(const void* p) { return cuda_on_cpu::to_shared_address(p); }
inline void* __cvta_shared_to_generic(size_t address) { return cuda_on_cpu::of_shared_address((uint32_t)address); }
inline size_t __cvta_generic_to_global(const void* p) { return (size_t)(uintptr_t)p; }
inline void* __cvta_global_to_generic(size_t address) { return (void*)(uintptr_t)address; }
