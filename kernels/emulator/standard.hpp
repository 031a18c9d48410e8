// The C++ standard library and system headers of the CPU host, separately: they are most of a kernel's source, so the
// harness precompiles them once for all kernels, if the compiler can.
#pragma once
// <cmath> implements lrint and lround of a float with the processor's instruction; here, conversions.hpp replaces them.
extern "C" __attribute__((visibility("hidden"))) long long cuda_on_cpu_lrint(double x) noexcept;
extern "C" __attribute__((visibility("hidden"))) long long cuda_on_cpu_lround(double x) noexcept;
constexpr long long gguf_verify_lrint(double x) {
    return __builtin_is_constant_evaluated() ? (long long)x : cuda_on_cpu_lrint(x);
}
constexpr long long gguf_verify_lround(double x) {
    return __builtin_is_constant_evaluated() ? (long long)x : cuda_on_cpu_lround(x);
}
#define __builtin_lrintf gguf_verify_lrint
#define __builtin_lrint gguf_verify_lrint
#define __builtin_llrintf gguf_verify_lrint
#define __builtin_llrint gguf_verify_lrint
#define __builtin_lroundf gguf_verify_lround
#define __builtin_lround gguf_verify_lround
#define __builtin_llroundf gguf_verify_lround
#define __builtin_llround gguf_verify_lround
#include <algorithm>
#include <atomic>
#include <cassert>
#include <cfenv>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

// with the names of <cmath> and <cstdlib> in the global namespace
#include <math.h>
#include <stdlib.h>
#undef __builtin_lrintf
#undef __builtin_lrint
#undef __builtin_llrintf
#undef __builtin_llrint
#undef __builtin_lroundf
#undef __builtin_lround
#undef __builtin_llroundf
#undef __builtin_llround

#if defined(__linux__)
#include <link.h>
#endif
#include <signal.h>
#include <sys/mman.h>
#if defined(__SSE4_1__)
#include <smmintrin.h>
#endif
#include <ucontext.h>
