// The codes of IQ4_NL and IQ4_XS: a nibble is an index into 16 values that lie closer together around zero.
#pragma once
#include "../common.cuh"
#include "tables/kvalues.cuh"

// The values of the low nibbles of four bytes.
__device__ __forceinline__ int iq4_word(uint32_t nibbles) {
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) word |= (uint32_t)(uint8_t)KVALUES[nibbles >> 8 * i & 15] << 8 * i;
    return (int)word;
}
