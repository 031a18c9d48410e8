// The grid of IQ1_S and IQ1_M: entries of eight -1, 0 or 1. An eighth is added to each or subtracted, so eight times
// that is the code: -9, -7, -1, 1, 7 or 9.
#pragma once
#include "../common.cuh"
#include "grid.cuh"
#include "tables/iq1.cuh"

// Codes 4·half … 4·half + 3 of an entry. The table holds nibbles e + 1, and 8·e ± 1 is 8·(e + 1) - 7 or - 9.
__device__ __forceinline__ int iq1_word(int entry, int half, bool subtract) {
    const uint32_t nibbles = IQ1_GRID[entry] >> 4 * half & 0x0F0F0F0F;
    return subtract_bytes(nibbles << 3, subtract ? 0x09090909 : 0x07070707);
}
