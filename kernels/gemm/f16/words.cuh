// Arithmetic on words of two halves, the first in the low bits; each result is rounded once, to nearest even.
#pragma once
#include "../../formats/words.cuh"

#ifdef __CUDACC__
// word & mask | bits as one instruction; for two constants the compiler generates two.
__device__ __forceinline__ uint32_t masked(uint32_t word, uint32_t mask, uint32_t bits) {
    uint32_t two;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(two) : "r"(word), "r"(mask), "r"(bits));
    return two;
}
__device__ __forceinline__ uint32_t multiply_halves(uint32_t a, uint32_t b) {
    uint32_t two;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(two) : "r"(a), "r"(b));
    return two;
}
__device__ __forceinline__ uint32_t multiply_add_halves(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t two;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(two) : "r"(a), "r"(b), "r"(c));
    return two;
}
#else
inline uint32_t masked(uint32_t word, uint32_t mask, uint32_t bits) { return (word & mask) | bits; }
// One rounding of a·b + c: doubles hold it, since codes are integers, and it is converted to a float with a sticky last
// bit.
inline uint16_t multiply_add_half(uint16_t a, uint16_t b, uint16_t c) {
    const double exact = (double)half_to_float(a) * half_to_float(b) + half_to_float(c);
    float near = (float)exact;
    uint32_t bits;
    memcpy(&bits, &near, 4);
    if ((double)near != exact && near - near == 0) {
        if (__builtin_fabs((double)near) > __builtin_fabs(exact)) --bits;
        bits |= 1;
        memcpy(&near, &bits, 4);
    }
    return float_to_half(near);
}
inline uint32_t multiply_add_halves(uint32_t a, uint32_t b, uint32_t c) {
    return multiply_add_half((uint16_t)a, (uint16_t)b, (uint16_t)c) |
           (uint32_t)multiply_add_half((uint16_t)(a >> 16), (uint16_t)(b >> 16), (uint16_t)(c >> 16)) << 16;
}
inline uint32_t multiply_halves(uint32_t a, uint32_t b) {
    return float_to_half(half_to_float((uint16_t)a) * half_to_float((uint16_t)b)) |
           (uint32_t)float_to_half(half_to_float((uint16_t)(a >> 16)) * half_to_float((uint16_t)(b >> 16))) << 16;
}
#endif
