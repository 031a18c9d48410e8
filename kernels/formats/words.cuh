// Reading a block's bytes as 32-bit words at the widest alignment that the block size grants. Blocks of 18, 22 and 34
// bytes start on 2-byte boundaries only: a 4-byte load from them is a misaligned address. Blocks of 17 bytes start
// anywhere.
#pragma once
#include "../common.cuh"

constexpr float HALF_NORMAL = 0x1p-14f;  // the smallest half that is not subnormal

__device__ __forceinline__ uint32_t load_word_1(const uint8_t* bytes, int j) {
    const uint8_t* p = bytes + 4 * j;
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

__device__ __forceinline__ uint32_t load_word_2(const void* bytes, int j) {
    const uint16_t* p = (const uint16_t*)bytes + 2 * j;
    return (uint32_t)p[0] | (uint32_t)p[1] << 16;
}

__device__ __forceinline__ uint32_t load_word_4(const void* bytes, int j) { return ((const uint32_t*)bytes)[j]; }

// Four bytes a - b at once, without borrows between them: codes minus their zero point. Bytes of a and b are below 128.
__device__ __forceinline__ int subtract_bytes(uint32_t a, uint32_t b) {
    return (int)(((a | 0x80808080) - b) ^ 0x80808080);
}

// Bits 0..3 of `nibble` to bit 4 of the bytes 0..3: where the fifth bits of four Q5 codes belong.
__device__ __forceinline__ uint32_t spread_high_bits(uint32_t nibble) {
    return (nibble << 4 & 0x00000010) | (nibble << 11 & 0x00001000) | (nibble << 18 & 0x00100000) |
           (nibble << 25 & 0x10000000);
}

// Looks up eight nibbles in a table whose entries are compile-time constants: the low nibbles of four bytes into `low`,
// the high ones into `high`. A GPU selects bytes among eight values, four at a time, so each nibble is looked up in
// both halves of the table, and its highest bit then selects the result.
__device__ __forceinline__ void look_up(const int8_t (&table)[16], uint32_t nibbles, int& low, int& high) {
    uint32_t found[2] = {};
#ifdef __CUDACC__
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < 16; ++i) words[i / 4] |= (uint32_t)(uint8_t)table[i] << i % 4 * 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint32_t four = nibbles >> 16 * i;
        found[i] = __byte_perm(__byte_perm(words[0], words[1], four), __byte_perm(words[2], words[3], four),
                               0x3210 | (four >> 1 & 0x4444));
    }
    low = (int)__byte_perm(found[0], found[1], 0x6420);
    high = (int)__byte_perm(found[0], found[1], 0x7531);
#else
    for (int i = 0; i < 8; ++i) found[i % 2] |= (uint32_t)(uint8_t)table[nibbles >> 4 * i & 15] << i / 2 * 8;
    low = (int)found[0], high = (int)found[1];
#endif
}

// Two halves a - b at once; exact where the kernels use it.
__device__ __forceinline__ uint32_t subtract_halves(uint32_t a, uint32_t b) {
#ifdef __CUDACC__
    uint32_t d;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
#else
    uint32_t d = 0;
    for (int shift = 0; shift < 32; shift += 16)
        d |= (uint32_t)float_to_half(half_to_float((uint16_t)(a >> shift)) - half_to_float((uint16_t)(b >> shift))) << shift;
    return d;
#endif
}

// Two floats as halves, rounded to nearest even, the first in the low half.
__device__ __forceinline__ uint32_t two_halves(float a, float b) {
#if defined(__CUDACC__) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800)
    uint32_t two;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(b), "f"(a));
    return two;
#else
    return float_to_half(a) | (uint32_t)float_to_half(b) << 16;
#endif
}
