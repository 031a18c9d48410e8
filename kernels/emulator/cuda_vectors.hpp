// CUDA's vector types with their alignments (CUDA C++ Programming Guide, "Built-in Vector Types"), make_…() and dim3.
#pragma once
#include "standard.hpp"

#define CUDA_ON_CPU_VECTORS(NAME, TYPE)                                                                             \
    struct NAME##1 { TYPE x; };                                                                                     \
    struct alignas(2 * sizeof(TYPE)) NAME##2 { TYPE x, y; };                                                        \
    struct NAME##3 { TYPE x, y, z; };                                                                               \
    struct alignas(sizeof(TYPE) < 4 ? 4 * sizeof(TYPE) : 16) NAME##4 { TYPE x, y, z, w; };                          \
    inline NAME##1 make_##NAME##1(TYPE x) { return {x}; }                                                           \
    inline NAME##2 make_##NAME##2(TYPE x, TYPE y) { return {x, y}; }                                                \
    inline NAME##3 make_##NAME##3(TYPE x, TYPE y, TYPE z) { return {x, y, z}; }                                     \
    inline NAME##4 make_##NAME##4(TYPE x, TYPE y, TYPE z, TYPE w) { return {x, y, z, w}; }
// The 32-byte types, which CUDA 13 has with two alignments.
#define CUDA_ON_CPU_LARGE(NAME, TYPE, ALIGNED)                                                                      \
    struct alignas(ALIGNED) NAME##4_##ALIGNED##a { TYPE x, y, z, w; };                                              \
    inline NAME##4_##ALIGNED##a make_##NAME##4_##ALIGNED##a(TYPE x, TYPE y, TYPE z, TYPE w) { return {x, y, z, w}; }

CUDA_ON_CPU_VECTORS(char, signed char)
CUDA_ON_CPU_VECTORS(uchar, unsigned char)
CUDA_ON_CPU_VECTORS(short, short)
CUDA_ON_CPU_VECTORS(ushort, unsigned short)
CUDA_ON_CPU_VECTORS(int, int)
CUDA_ON_CPU_VECTORS(uint, unsigned)
CUDA_ON_CPU_VECTORS(long, long)
CUDA_ON_CPU_VECTORS(ulong, unsigned long)
CUDA_ON_CPU_VECTORS(longlong, long long)
CUDA_ON_CPU_VECTORS(ulonglong, unsigned long long)
CUDA_ON_CPU_VECTORS(float, float)
CUDA_ON_CPU_VECTORS(double, double)
CUDA_ON_CPU_LARGE(long, long, 16)
CUDA_ON_CPU_LARGE(long, long, 32)
CUDA_ON_CPU_LARGE(ulong, unsigned long, 16)
CUDA_ON_CPU_LARGE(ulong, unsigned long, 32)
CUDA_ON_CPU_LARGE(longlong, long long, 16)
CUDA_ON_CPU_LARGE(longlong, long long, 32)
CUDA_ON_CPU_LARGE(ulonglong, unsigned long long, 16)
CUDA_ON_CPU_LARGE(ulonglong, unsigned long long, 32)
CUDA_ON_CPU_LARGE(double, double, 16)
CUDA_ON_CPU_LARGE(double, double, 32)
#undef CUDA_ON_CPU_LARGE
#undef CUDA_ON_CPU_VECTORS

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return {x, y, z}; }
};
