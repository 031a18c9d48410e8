// The codes of IQ4_NL and IQ4_XS: a nibble is an index into 16 values that are denser around zero.
#pragma once
#include "../common.cuh"
#include "tables/kvalues.cuh"
#include "words.cuh"

// The values of the low nibbles of four bytes, and of the high ones.
__device__ __forceinline__ void iq4_words(uint32_t nibbles, int& low, int& high) {
    look_up(KVALUES, nibbles, low, high);
}
