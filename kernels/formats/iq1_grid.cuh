// The grid of IQ1_S and IQ1_M: entries of eight values -1, 0 or 1. An eighth is added to each or subtracted, so eight
// times the result is the code: -9, -7, -1, 1, 7 or 9.
#pragma once
#include "../common.cuh"
#include "grid.cuh"
#include "tables/iq1.cuh"

// The shared form of an entry: eight nibbles e + 1 in order.
__device__ __forceinline__ uint32_t iq1_entry(int i) {
    return four_nibbles(IQ1_GRID[i] & 0x0F0F0F0F) | four_nibbles(IQ1_GRID[i] >> 4 & 0x0F0F0F0F) << 16;
}
__device__ __forceinline__ void iq1_codes(uint32_t entry, bool subtract, int& low, int& high) {
    const uint32_t codes = subtract ? 0x0007FFF7 : 0x000901F9;  // -9, -1, 7 or -7, 1, 9
    low = select_bytes(codes, 0, entry);
    high = select_bytes(codes, 0, entry >> 16);
}

// Codes 4·half … 4·half + 3 of an entry. The table holds nibbles e + 1, and 8·e ± 1 is 8·(e + 1) - 7 or - 9.
__device__ __forceinline__ int iq1_word(int entry, int half, bool subtract) {
    const uint32_t nibbles = IQ1_GRID[entry] >> 4 * half & 0x0F0F0F0F;
    return subtract_bytes(nibbles << 3, subtract ? 0x09090909 : 0x07070707);
}
