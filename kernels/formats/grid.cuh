// What the I-quants share: signs for four codes at once, codes out of words, values out of nibbles.
#pragma once
#include "../common.cuh"
#include "words.cuh"

// Four bytes of 1…127, of which byte i is negated where bit i of `negative` is set. ~x + 1 is at most 255: no carry.
__device__ __forceinline__ int with_signs(uint32_t bytes, int negative) {
    const uint32_t one = (negative & 15) * 0x00204081 & 0x01010101;  // bit i to byte i
    return (int)((bytes ^ one * 255) + one);
}

// The four signed bytes of a word.
__device__ __forceinline__ void store_codes(int8_t* q, int word) {
    for (int i = 0; i < 4; ++i) q[i] = (int8_t)(word >> 8 * i);
}
