// Included before a foreign kernel: the language, CUDA's headers, and no names other than those of `cuda_on_cpu` and
// those that begin with GGUF_VERIFY_.
#pragma once
#include "cuda_on_cpu.hpp"

#include "cooperative_groups.hpp"
#include "cuda_pipeline.h"
#include "ptx.hpp"
#include "runtime.hpp"

// Follows the condition of each `condition ? a : b` of a kernel (hosts/for_cpu.py). In a traced build it hides the
// comparison until GCC's front end can no longer make a minimum, a maximum or an absolute value of it, which are not
// traced.
#ifdef GGUF_VERIFY_TRACED
namespace cuda_on_cpu {
__attribute__((always_inline)) inline bool chooses_at_run_time() { return true; }
constexpr bool chooses() { return __builtin_is_constant_evaluated() ? true : chooses_at_run_time(); }
}  // namespace cuda_on_cpu
#define GGUF_VERIFY_CHOOSES &&::cuda_on_cpu::chooses()

// Around the values that become numbers of a type with fewer bits (hosts/narrow.py): whether the type holds a value is
// one more comparison. Values and their types stay as they are.
extern "C" __attribute__((visibility("hidden"))) void cuda_on_cpu_narrows(double value, double most, uint32_t floats,
                                                                           bool is_signed);
namespace cuda_on_cpu {
// The bits of an integer that a type holds; BITS: those of a bit field.
template <class Number, int BITS = 0>
constexpr int bits_of() {
    using Limits = std::numeric_limits<Number>;
    if (BITS) return BITS - Limits::is_signed;
    if (Limits::is_specialized) return Limits::digits;
    return sizeof(Number) == 2 && std::is_convertible<Number, float>::value ? 11 : 64;
}
// The number that an enumeration is.
template <class Type, bool IS_ENUM = std::is_enum<Type>::value>
struct Underlying {
    using type = Type;
};
template <class Type>
struct Underlying<Type, true> {
    using type = typename std::underlying_type<Type>::type;
};
template <class Narrow, int BITS = 0, class Wide>
__attribute__((always_inline)) constexpr void narrows(Wide value) {
    using Number = typename Underlying<Narrow>::type;
    using To = std::numeric_limits<Number>;
    using From = std::numeric_limits<Wide>;
    constexpr int held = bits_of<Number, BITS>();
    // an index in a float is exact as far as all smaller integers are
    constexpr int exact = From::is_integer || From::digits > held ? held : From::digits;
    constexpr double limit = (double)((uint64_t)1 << (exact < 63 ? exact : 63)) - (To::is_integer && From::is_integer);
    constexpr bool smaller = sizeof(Wide) > sizeof(Narrow) || sizeof(Wide) < 4 || !To::is_integer || BITS;
    constexpr bool loses = From::is_integer ? From::digits > held && smaller : To::is_integer;
    if constexpr (From::is_specialized && !std::is_same<Narrow, bool>::value && loses)
        if (!__builtin_is_constant_evaluated())
            cuda_on_cpu_narrows((double)value, limit, !From::is_integer + 2 * !To::is_integer, To::is_signed);
}
template <class Narrow, int BITS = 0>
struct Fits {
    template <class Wide>
    __attribute__((always_inline)) constexpr Wide operator=(Wide value) const {
        return narrows<Narrow, BITS>(value), value;
    }
};
template <class Narrow>
struct NarrowValue {
    Narrow value;
    template <class Wide>
    __attribute__((always_inline)) constexpr NarrowValue(Wide wide)
        : value((narrows<Narrow>(wide), (Narrow)wide)) {}
    __attribute__((always_inline)) constexpr operator Narrow() const { return value; }
};
// A cast to it reports what is cast; other casts than to numbers stay as they are.
template <class Narrow>
using Narrows = typename std::conditional<std::is_arithmetic<Narrow>::value || std::is_enum<Narrow>::value ||
                                              bits_of<Narrow>() == 11,
                                          NarrowValue<Narrow>, Narrow>::type;
// A variable that operators change.
template <class Number>
struct Stored {
    Number& to;
#define CUDA_ON_CPU_STORED(SIGN)                                                                             \
    template <class By>                                                                                      \
    __attribute__((always_inline)) constexpr Number& operator SIGN##=(By&& by) const {                       \
        using Narrow = typename std::remove_cv<Number>::type;                                                \
        if constexpr (std::is_arithmetic<Narrow>::value && std::is_arithmetic<std::decay_t<By>>::value)      \
            narrows<Narrow>(to SIGN by);                                                                     \
        to SIGN##= std::forward<By>(by);                                                                     \
        return to;                                                                                           \
    }
    CUDA_ON_CPU_STORED(+)
    CUDA_ON_CPU_STORED(-)
    CUDA_ON_CPU_STORED(*)
    CUDA_ON_CPU_STORED(/)
    CUDA_ON_CPU_STORED(%)
    CUDA_ON_CPU_STORED(&)
    CUDA_ON_CPU_STORED(|)
    CUDA_ON_CPU_STORED(^)
    CUDA_ON_CPU_STORED(<<)
    CUDA_ON_CPU_STORED(>>)
#undef CUDA_ON_CPU_STORED
    __attribute__((always_inline)) constexpr void steps(int by) const {
        if constexpr (std::is_integral<Number>::value && sizeof(Number) < sizeof(int))
            narrows<typename std::remove_cv<Number>::type>(to + by);
    }
    constexpr decltype(auto) operator++() const { return steps(1), ++to; }
    constexpr decltype(auto) operator--() const { return steps(-1), --to; }
    constexpr decltype(auto) operator++(int) const { return steps(1), to++; }
    constexpr decltype(auto) operator--(int) const { return steps(-1), to--; }
};
template <class Number>
__attribute__((always_inline)) constexpr Stored<Number> stored(Number& to) {
    return {to};
}
}  // namespace cuda_on_cpu
#else
#define GGUF_VERIFY_CHOOSES
#endif

// The kernel's entry point NAME_launch. Everything after the kernel's source, whose macros may have any name.
#define GGUF_VERIFY_ENTRY(gguf_verify_name, ...)                                                                     \
    extern "C" __attribute__((__visibility__("default"))) int gguf_verify_name(                                      \
        const unsigned* gguf_verify_1, const unsigned* gguf_verify_2, void** gguf_verify_3, unsigned gguf_verify_4,  \
        int gguf_verify_5, const gguf_verify_asked* gguf_verify_6, gguf_verify_said* gguf_verify_7) {                \
        return gguf_verify_start(__VA_ARGS__, gguf_verify_1, gguf_verify_2, gguf_verify_3, gguf_verify_4,            \
                                 gguf_verify_5, gguf_verify_6, gguf_verify_7);                                       \
    }
typedef cuda_on_cpu::Request gguf_verify_asked;
typedef cuda_on_cpu::Report gguf_verify_said;

template <class... A>
int gguf_verify_start(void (*kernel)(A...), const unsigned* grid, const unsigned* block, void** args, unsigned shared,
                      int threads, const cuda_on_cpu::Request* request, cuda_on_cpu::Report* report) {
    return cuda_on_cpu::launch(kernel, grid, block, args, shared, threads, request, report);
}

// Whether a kernel's parameters have these sizes in bytes; 0: a pointer.
template <size_t... SIZES, class... A>
constexpr bool gguf_verify_fits(void (*)(A...)) {
    constexpr size_t is[] = {1, (std::is_pointer<A>::value ? 0 : sizeof(A))...}, declared[] = {1, SIZES...};
    if (sizeof is != sizeof declared) return false;
    for (size_t i = 0; i < sizeof is / sizeof *is; ++i)
        if (is[i] != declared[i]) return false;
    return true;
}

// The compiler lists where the bytes before such a function begin (hosts/launch_limits.py).
#if !defined(__clang__)
namespace cuda_on_cpu {
template <class... T>
constexpr unsigned first(unsigned value, T...) {
    return value;
}
}  // namespace cuda_on_cpu
#undef __launch_bounds__
#define __launch_bounds__(...) \
    __attribute__((patchable_function_entry(cuda_on_cpu::first(__VA_ARGS__), cuda_on_cpu::first(__VA_ARGS__))))
#endif

// A kernel cannot distinguish the checked build from the ordinary one.
#undef CUDA_ON_CPU_CHECKS
#undef CPU_KERNEL
#undef IN_RUNNER
#undef PER_THREAD
#undef OF_THREAD
#undef ATOMIC_OF
#undef ATOMIC
#undef COMPARE_AND_SWAP_OF
#undef COMPARE_AND_SWAP
#undef OF_INTEGERS
#undef ADD_FLOATS

#define GGUF_VERIFY_ON_CPU 1
#define __CUDACC__ 1
#define __NVCC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __CUDACC_VER_BUILD__ 0
#define CUDA_VERSION 13000
#define CUDART_VERSION 13000
#define __CUDA_API_VERSION 13000
