// Q3_K: w[i] = d·(scale[g] - 32)·(q[i] - 4), g = i / 16: a superblock of 256 values in 16 groups, in two halves of 128.
//
//   byte   0 … 31                        32 … 95                            96 … 107         108 109
//          hmask, byte l:                qs, of each 32 bytes l:            scales           d
//          7        …  1       0         7 6     │ 5 4     │ 3 2     │ 1 0  see scale_of     half
//          x[224+l] …  x[32+l] x[l]      x[96+l] │ x[64+l] │ x[32+l] │ x[l]
//          (bit 2)                       (bits 1 and 0)
#pragma once
#include "../common.cuh"
#include "words.cuh"

struct Q3_K {
    uint8_t hmask[32];
    uint8_t qs[64];
    uint8_t scales[12];
    uint16_t d;

    static constexpr int VALUES = 256, GROUP = 16;
    static constexpr Minimum MINIMUM = Minimum::NONE;
    static constexpr float NORMAL = HALF_NORMAL;
    static constexpr bool STORES_M = false;

    // The four low bits are in the nibbles of bytes 0…7: the low nibbles for groups 0…7. The two high bits are in bytes
    // 8…11, each of which holds those of four groups with the same g % 4.
    __device__ int scale_of(int g) const {
        return (scales[g % 8] >> g / 8 * 4 & 15) | (scales[8 + g % 4] >> g / 4 * 2 & 3) << 4;
    }

    __device__ float scale(int s, int h) const {
        return __fmul_rn(half_to_float(d), (float)(scale_of(2 * s + h) - 32));
    }
    __device__ float minimum(int, int) const { return 0.0f; }
    __device__ float stored_scale() const { return half_to_float(d); }
    __device__ float stored_min() const { return 0.0f; }

    // Slice s is pair s % 4 of the bytes of half s / 4, and bit s of hmask's bytes.
    __device__ void unpack(int s, int8_t* q) const {
        for (int i = 0; i < 32; ++i)
            q[i] = (int8_t)((qs[s / 4 * 32 + i] >> s % 4 * 2 & 3) | (hmask[i] >> s & 1) << 2) - 4;
    }

    __device__ void codes4(int s, int j, int& low, int& high) const {
        low = word(s, j);
        high = word(s, j + 4);
    }

    __device__ int word(int s, int j) const {  // 110-byte blocks: only 2-byte aligned
        const uint32_t low = load_word_2(qs + s / 4 * 32, j) >> s % 4 * 2 & 0x03030303;
        const uint32_t high = load_word_2(hmask, j) >> s & 0x01010101;
        return subtract_bytes(low | high << 2, 0x04040404);
    }

    // llama.cpp's dequantize_row_q3_K
    __device__ static float value(float d, float, int q) { return __fmul_rn((float)q, d); }
};
static_assert(sizeof(Q3_K) == 110, "Q3_K is 110 bytes without padding");
