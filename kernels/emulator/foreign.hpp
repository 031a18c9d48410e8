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

// Follow each cast to a type of few bits, or precede the value that a variable of one begins with (hosts/for_cpu.py):
// whether the type holds a wider integer is one more comparison.
extern "C" __attribute__((visibility("hidden"))) void cuda_on_cpu_narrows(int64_t value, int64_t most);
namespace cuda_on_cpu {
template <class Narrow, class Wide>
__attribute__((always_inline)) constexpr Narrow narrowed(Wide value) {
    using Limits = std::numeric_limits<Narrow>;
    if constexpr (std::is_integral<Wide>::value && sizeof(Wide) > sizeof(Narrow) && !std::is_same<Narrow, bool>::value)
        if (!__builtin_is_constant_evaluated())
            cuda_on_cpu_narrows((int64_t)value, Limits::is_integer      ? (int64_t)Limits::max()
                                                : Limits::is_specialized ? (int64_t)1 << Limits::digits
                                                                         : (int64_t)1 << (sizeof(Narrow) == 2 ? 11 : 62));
    return (Narrow)value;
}
template <class Narrow>
struct Narrows {
    Narrow value;
    template <class Wide>
    __attribute__((always_inline)) constexpr Narrows(Wide wide) : value(narrowed<Narrow>(wide)) {}
    __attribute__((always_inline)) constexpr operator Narrow() const { return value; }
};
template <class Narrow>
struct Narrowed {
    template <class Wide>
    __attribute__((always_inline)) constexpr Narrow operator=(Wide wide) const {
        return narrowed<Narrow>(wide);
    }
};
}  // namespace cuda_on_cpu
#define GGUF_VERIFY_NARROWS(...) (::cuda_on_cpu::Narrows<__VA_ARGS__>)
#define GGUF_VERIFY_NARROWED(...) ::cuda_on_cpu::Narrowed<__VA_ARGS__>() =
#else
#define GGUF_VERIFY_CHOOSES
#define GGUF_VERIFY_NARROWS(...)
#define GGUF_VERIFY_NARROWED(...)
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
