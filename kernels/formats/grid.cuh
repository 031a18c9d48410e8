// Common code of the I-quants: signs for four codes at once, codes from words, values from nibbles.
#pragma once
#include "../common.cuh"
#include "words.cuh"

// Negates byte i of four bytes of 1…127 if bit i of `negative` is set. ~x + 1 is at most 255: no carry.
__device__ __forceinline__ int with_signs(uint32_t bytes, int negative) {
    const uint32_t one = (negative & 15) * 0x00204081 & 0x01010101;  // bit i to byte i
    return (int)((bytes ^ one * 255) + one);
}

// The following functions serve `codes`, which looks up an entry as one word (common.cuh). Its codes and their signs
// are then found by byte selection.

// Selects four bytes among those of a (0…3) and b (4…7), with one nibble each.
__device__ __forceinline__ int select_bytes(uint32_t a, uint32_t b, uint32_t selector) {
#ifdef __CUDACC__
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return (int)d;
#else
    return (int)__byte_perm(a, b, selector);
#endif
}

// Packs four bytes below 16 into nibbles, the first one lowest.
__device__ __forceinline__ uint32_t four_nibbles(uint32_t bytes) {
    bytes = (bytes | bytes >> 4) & 0x00FF00FF;
    return (bytes | bytes >> 8) & 0xFFFF;
}

// Moves bit i of `signs` to bit 4i + 2, i = 0…7: a set bit selects the bytes of the second operand.
__device__ __forceinline__ uint32_t sign_selector(uint32_t signs) {
    const uint32_t fours = signs * 0x4004 & 0x003C003C, twos = fours * 65 & 0x0C0C0C0C;
    return twos * 9 & 0x44444444;
}

// Eight signs from the seven stored ones, in the lowest bits: the eighth makes the number of negative ones even.
__device__ __forceinline__ uint32_t eight_signs(uint32_t seven) {
    seven &= 127;
    return seven + ((uint32_t)__popc(seven) << 7);  // bits above the eighth are ignored
}

// Eight codes of a grid of 8, 25 and 43, whose entry is eight nibbles 0, 1 or 2, with signs applied.
__device__ __forceinline__ uint32_t iq2_entry(const uint32_t (&bytes)[2]) {
    return four_nibbles(bytes[0] >> 4 & 0x03030303) | four_nibbles(bytes[1] >> 4 & 0x03030303) << 16;
}
__device__ __forceinline__ void iq2_codes(uint32_t entry, uint32_t signs, int& low, int& high) {
    const uint32_t selector = entry | sign_selector(signs);
    low = select_bytes(0x002B1908, 0x00D5E7F8, selector);
    high = select_bytes(0x002B1908, 0x00D5E7F8, selector >> 16);
}

// Applies eight signs to two words of bytes 1…127.
__device__ __forceinline__ void signed_codes(uint32_t first, uint32_t second, uint32_t signs, int& low, int& high) {
    const uint32_t selector = sign_selector(signs) | 0x32103210;
    low = select_bytes(first, 0x01010100 - first, selector);  // 256 - byte each: no borrow
    high = select_bytes(second, 0x01010100 - second, selector >> 16);
}

// The four signed bytes of a word.
__device__ __forceinline__ void store_codes(int8_t* q, int word) {
    for (int i = 0; i < 4; ++i) q[i] = (int8_t)(word >> 8 * i);
}
