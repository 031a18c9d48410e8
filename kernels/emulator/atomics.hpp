// Atomic operations and fences of CUDA C++ (Programming Guide, "Atomic Functions" and "Memory Fence Functions"). Blocks on
// several operating-system threads meet in global memory, so they are the processor's own.
#pragma once
#include "cuda_on_cpu.hpp"

namespace cuda_on_cpu {

// The old value; the new one is change(old). Not instrumented: before_atomic() tells the checks.
template <class T, class Change>
__attribute__((no_sanitize("thread", "alignment"))) T replaced(T* at, Change change) {
    T old, now;
    __atomic_load(at, &old, __ATOMIC_SEQ_CST);
    do now = change(old);
    while (!__atomic_compare_exchange(at, &old, &now, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
}

template <class T, class Change>
TO_RUNNER T atomically(T* at, Change change, bool reads = true) {
    before_atomic(at, sizeof(T), reads);
    const T old = replaced(at, change);
    after_atomic();
    return old;
}

template <class T>
T wrapping_sum(T a, T b) {
    using Bits = std::make_unsigned_t<T>;
    return (T)((Bits)a + (Bits)b);
}

// Exists where a unit adds floats of a type: a template, so that one that does not has none.
template <class T>
struct Adds {
    static AddsFloats floats;
};
template <class T>
AddsFloats Adds<T>::floats;
template <class T>
using Float = std::enable_if_t<std::is_floating_point<T>::value, T>;

}  // namespace cuda_on_cpu

// NAME of a type T, the value that it leaves where it found `a` and is given `b`; and the forms for a thread block and
// for the whole system.
#define ATOMIC_OF(NAME, T, READS, ...)                                                                   \
    TO_RUNNER T NAME(T* at, T b) {                                                                       \
        return cuda_on_cpu::atomically(at, [b](T a) -> T { return (void)a, __VA_ARGS__; }, READS);       \
    }
#define ATOMIC(NAME, T, READS, ...)               \
    ATOMIC_OF(NAME, T, READS, __VA_ARGS__)        \
    ATOMIC_OF(NAME##_block, T, READS, __VA_ARGS__) \
    ATOMIC_OF(NAME##_system, T, READS, __VA_ARGS__)
#define COMPARE_AND_SWAP_OF(NAME, T)                                                                     \
    TO_RUNNER T NAME(T* at, T compare, T value) {                                                        \
        return cuda_on_cpu::atomically(at, [=](T a) { return a == compare ? value : a; });               \
    }
#define COMPARE_AND_SWAP(T)                   \
    COMPARE_AND_SWAP_OF(atomicCAS, T)         \
    COMPARE_AND_SWAP_OF(atomicCAS_block, T)   \
    COMPARE_AND_SWAP_OF(atomicCAS_system, T)
#define OF_INTEGERS(T)                                          \
    ATOMIC(atomicAdd, T, true, cuda_on_cpu::wrapping_sum(a, b)) \
    ATOMIC(atomicExch, T, false, b)                             \
    ATOMIC(atomicMin, T, true, a < b ? a : b)                   \
    ATOMIC(atomicMax, T, true, a > b ? a : b)                   \
    ATOMIC(atomicAnd, T, true, a & b)                           \
    ATOMIC(atomicOr, T, true, a | b)                            \
    ATOMIC(atomicXor, T, true, a ^ b)                           \
    COMPARE_AND_SWAP(T)
#define ADD_FLOATS(NAME)                                                                                \
    template <class T>                                                                                  \
    TO_RUNNER cuda_on_cpu::Float<T> NAME(T* at, std::common_type_t<T> b) {                              \
        (void)&cuda_on_cpu::Adds<T>::floats;                                                            \
        return cuda_on_cpu::atomically(at, [b](T a) -> T { return a + b; });                            \
    }

OF_INTEGERS(int)
OF_INTEGERS(unsigned)
OF_INTEGERS(long long)
OF_INTEGERS(unsigned long long)
ATOMIC(atomicSub, int, true, (int)((unsigned)a - (unsigned)b))
ATOMIC(atomicSub, unsigned, true, a - b)
ATOMIC(atomicInc, unsigned, true, a >= b ? 0 : a + 1)
ATOMIC(atomicDec, unsigned, true, a == 0 || a > b ? b : a - 1)
COMPARE_AND_SWAP(unsigned short)
ATOMIC(atomicExch, float, false, b)
ADD_FLOATS(atomicAdd)
ADD_FLOATS(atomicAdd_block)
ADD_FLOATS(atomicAdd_system)

TO_RUNNER void __threadfence() { cuda_on_cpu::fence(true); }
TO_RUNNER void __threadfence_system() { cuda_on_cpu::fence(true); }
TO_RUNNER void __threadfence_block() { cuda_on_cpu::fence(false); }
