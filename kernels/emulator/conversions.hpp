// Conversions of floats to integers that cannot hold them. In C++ they are undefined and x86 gives 2^31 or 2^63, while
// a GPU gives the nearest integer. With -fsanitize=float-cast-overflow the compiler calls the function below before
// such a conversion, and then converts as the processor does. If a GPU would give a different integer, the launch ends,
// since its result would say nothing about a GPU. The functions of cuda_math.hpp (__float2int_rz and the like) convert
// as a GPU does, and so do those of <math.h>, which are replaced here.
#pragma once
#include "cuda_on_cpu.hpp"

namespace cuda_on_cpu {

// The arguments of compiler-rt's ubsan_handlers.h, as GCC (gcc/ubsan.cc) and Clang give them.
struct SourceLocation {
    const char* file;
    uint32_t line, column;
};
struct TypeDescriptor {
    uint16_t kind, info;  // an integer: 2·log2(bits), plus 1 if it is signed; a float: its bits
    char name[1];
};
struct Conversion {
    SourceLocation location;
    const TypeDescriptor *from, *to;
};

// Whether x, which an integer type cannot hold, gives the same integer here and on a GPU. nvcc converts to 8 and 16
// bits via 32 bits. GCC has more than one way for unsigned numbers of 32 and 64 bits.
inline bool converts_alike(double x, unsigned bits, bool is_signed, bool from_double) {
#if defined(__x86_64__)
    if (bits > 64 || (bits >= 32 && !is_signed)) return false;
    const bool wide = bits == 64;
    const double end = wide ? 0x1p63 : 0x1p31;
    const uint64_t here = x >= -end && x < end ? (uint64_t)(int64_t)x : (uint64_t)end;
    uint64_t there;
    if (wide) there = (uint64_t)to_integer<int64_t>(x, rz, true);
    else if (is_signed) there = (uint64_t)(int64_t)to_integer<int32_t>(x, rz, from_double);
    else there = to_integer<uint32_t>(x, rz, from_double);
    return (here ^ there) << (64 - bits) == 0;
#else
    (void)x, (void)bits, (void)is_signed, (void)from_double;
    return false;
#endif
}

}  // namespace cuda_on_cpu

extern "C" {
__attribute__((visibility("hidden"), used)) inline void __ubsan_handle_float_cast_overflow(cuda_on_cpu::Conversion* of,
                                                                                           unsigned long value) {
    const unsigned from = of->from->info, bits = 1u << (of->to->info >> 1);
    double x = 0;
    if (float narrow; from == 32) memcpy(&narrow, &value, sizeof narrow), x = narrow;
    else if (from == 64) memcpy(&x, &value, sizeof x);
    if ((from == 32 || from == 64) && cuda_on_cpu::converts_alike(x, bits, of->to->info & 1, from == 64)) return;
    cuda_on_cpu::ends_unlike_a_gpu(of->location.file, of->location.line);
}

#define NEAREST_INTEGER(NAME, TO, FROM, ...)                                          \
    __attribute__((visibility("hidden"), used)) TO NAME(FROM x) noexcept {            \
        return cuda_on_cpu::to_integer<TO>(__VA_ARGS__, cuda_on_cpu::rn, true);       \
    }
NEAREST_INTEGER(cuda_on_cpu_lrint, long long, double, x)
NEAREST_INTEGER(cuda_on_cpu_lround, long long, double, __builtin_round(x))
NEAREST_INTEGER(lrintf, long, float, x)
NEAREST_INTEGER(lrint, long, double, x)
NEAREST_INTEGER(llrintf, long long, float, x)
NEAREST_INTEGER(llrint, long long, double, x)
NEAREST_INTEGER(lroundf, long, float, __builtin_round(x))
NEAREST_INTEGER(lround, long, double, __builtin_round(x))
NEAREST_INTEGER(llroundf, long long, float, __builtin_round(x))
NEAREST_INTEGER(llround, long long, double, __builtin_round(x))
#undef NEAREST_INTEGER
}
