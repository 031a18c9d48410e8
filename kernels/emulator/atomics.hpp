// Atomic operations and fences of CUDA C++ (Programming Guide, "Atomic Functions" and "Memory Fence Functions"). Blocks
// on several operating-system threads share global memory, so they use the processor's atomic operations.
#pragma once
#include "cuda_on_cpu.hpp"

namespace cuda_on_cpu {

// Returns the old value; the new one is change(old). Not instrumented: before_atomic() informs the checks.
template <class T, class Change>
__attribute__((no_sanitize("thread", "alignment"))) T replaced(T* at, Change change, bool& changed) {
    T old, now;
    __atomic_load(at, &old, __ATOMIC_SEQ_CST);
    do now = change(old);
    while (!__atomic_compare_exchange(at, &old, &now, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    changed = memcmp((const void*)&old, (const void*)&now, sizeof old) != 0;
    return old;
}

constexpr uint32_t UPDATE = LOADS | STORES;

template <class T, class Change>
TO_RUNNER T atomically(T* at, Change change, uint32_t how = UPDATE) {
    bool changed = false;
    before_atomic(at, sizeof(T), how);
    const T old = replaced(at, change, changed);
    after_atomic(changed);
    return old;
}

// Loads and stores that are relaxed, acquire or release.
template <class T>
__attribute__((no_sanitize("thread", "alignment"))) T loaded(const T* at) {
    T value;
    __atomic_load((T*)at, &value, __ATOMIC_SEQ_CST);
    return value;
}
template <class T>
__attribute__((no_sanitize("thread", "alignment"))) void stored(T* at, T value) {
    __atomic_store(at, &value, __ATOMIC_SEQ_CST);
}
template <class T>
TO_RUNNER T strong_load(const T* at, uint32_t how) {
    before_atomic(at, sizeof(T), how | LOADS | OF_ANY_SIZE);
    const T value = loaded(at);
    after_atomic(false);
    return value;
}
template <class T>
TO_RUNNER void strong_store(T* at, T value, uint32_t how) {
    before_atomic(at, sizeof(T), how | STORES | OF_ANY_SIZE);
    stored(at, value);
    after_atomic(true);
}

template <class T>
T wrapping_sum(T a, T b) {
    using Bits = std::make_unsigned_t<T>;
    return (T)((Bits)a + (Bits)b);
}

// Exists if a unit adds floats of a type: a template, so that a unit that does not has none.
template <class T>
struct Adds {
    static AddsFloats floats;
};
template <class T>
AddsFloats Adds<T>::floats;
template <class T>
using Float = std::enable_if_t<std::is_floating_point<T>::value, T>;

}  // namespace cuda_on_cpu

// Defines NAME for a type T with the new value in terms of the old value `a` and the operand `b`; and the forms for a
// thread block and for the whole system. HOW: cuda_on_cpu::Strong.
#define ATOMIC_OF(NAME, T, HOW, ...)                                                                     \
    TO_RUNNER T NAME(T* at, T b) {                                                                       \
        using namespace cuda_on_cpu;                                                                     \
        return atomically(at, [b](T a) -> T { return (void)a, __VA_ARGS__; }, HOW);                      \
    }
#define ATOMIC(NAME, T, HOW, ...)                               \
    ATOMIC_OF(NAME, T, HOW, __VA_ARGS__)                        \
    ATOMIC_OF(NAME##_block, T, HOW | OF_ONE_BLOCK, __VA_ARGS__) \
    ATOMIC_OF(NAME##_system, T, HOW, __VA_ARGS__)
#define COMPARE_AND_SWAP_OF(NAME, T, HOW)                                                                \
    TO_RUNNER T NAME(T* at, T compare, T value) {                                                        \
        using namespace cuda_on_cpu;                                                                     \
        return atomically(at, [=](T a) { return a == compare ? value : a; }, HOW);                       \
    }
#define COMPARE_AND_SWAP(T)                                        \
    COMPARE_AND_SWAP_OF(atomicCAS, T, UPDATE)                      \
    COMPARE_AND_SWAP_OF(atomicCAS_block, T, UPDATE | OF_ONE_BLOCK) \
    COMPARE_AND_SWAP_OF(atomicCAS_system, T, UPDATE)
#define OF_INTEGERS(T)                                            \
    ATOMIC(atomicAdd, T, UPDATE, cuda_on_cpu::wrapping_sum(a, b)) \
    ATOMIC(atomicExch, T, UPDATE | UNREAD, b)                     \
    ATOMIC(atomicMin, T, UPDATE, a < b ? a : b)                   \
    ATOMIC(atomicMax, T, UPDATE, a > b ? a : b)                   \
    ATOMIC(atomicAnd, T, UPDATE, a & b)                           \
    ATOMIC(atomicOr, T, UPDATE, a | b)                            \
    ATOMIC(atomicXor, T, UPDATE, a ^ b)                           \
    COMPARE_AND_SWAP(T)
#define ADD_FLOATS(NAME, HOW)                                                                           \
    template <class T>                                                                                  \
    TO_RUNNER cuda_on_cpu::Float<T> NAME(T* at, std::common_type_t<T> b) {                              \
        using namespace cuda_on_cpu;                                                                    \
        (void)&Adds<T>::floats;                                                                         \
        return atomically(at, [b](T a) -> T { return a + b; }, HOW);                                    \
    }

OF_INTEGERS(int)
OF_INTEGERS(unsigned)
OF_INTEGERS(long long)
OF_INTEGERS(unsigned long long)
ATOMIC(atomicSub, int, UPDATE, (int)((unsigned)a - (unsigned)b))
ATOMIC(atomicSub, unsigned, UPDATE, a - b)
ATOMIC(atomicInc, unsigned, UPDATE, a >= b ? 0 : a + 1)
ATOMIC(atomicDec, unsigned, UPDATE, a == 0 || a > b ? b : a - 1)
COMPARE_AND_SWAP(unsigned short)
ATOMIC(atomicExch, float, UPDATE | UNREAD, b)
ADD_FLOATS(atomicAdd, UPDATE)
ADD_FLOATS(atomicAdd_block, UPDATE | OF_ONE_BLOCK)
ADD_FLOATS(atomicAdd_system, UPDATE)

TO_RUNNER void __threadfence() { cuda_on_cpu::fence(true); }
TO_RUNNER void __threadfence_system() { cuda_on_cpu::fence(true); }
TO_RUNNER void __threadfence_block() { cuda_on_cpu::fence(false); }
