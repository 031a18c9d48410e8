// Q6_K: w[i] = d·scale[g]·(q[i] - 32), g = i / 16: a superblock of 256 values in 16 groups, in two halves of 128.
//
//   byte   0 … 127                          128 … 191                           192 … 207    208 209
//          ql, of each 64 bytes l:          qh, of each 32 bytes l:             scales       d
//          7 6 5 4  │ 3 2 1 0               7 6     │ 5 4     │ 3 2     │ 1 0   int8         half
//          x[64+l]  │ x[l]                  x[96+l] │ x[64+l] │ x[32+l] │ x[l]  (high bits)
#pragma once
#include "../common.cuh"
#include "words.cuh"

struct Q6_K {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    uint16_t d;

    static constexpr int VALUES = 256, GROUP = 16;
    static constexpr Minimum MINIMUM = Minimum::NONE;
    static constexpr float NORMAL = HALF_NORMAL;
    static constexpr bool STORES_M = false;

    __device__ float scale(int s, int h) const { return __fmul_rn(half_to_float(d), (float)scales[2 * s + h]); }
    __device__ float minimum(int, int) const { return 0.0f; }
    __device__ float stored_scale() const { return half_to_float(d); }
    __device__ float stored_min() const { return 0.0f; }

    // Slice s is quarter s % 4 of half s / 4: the nibbles of quarters 2 and 3 are the high ones of 0 and 1.
    __device__ void unpack(int s, int8_t* q) const {
        const uint8_t* low = ql + s / 4 * 64 + s % 2 * 32;
        const uint8_t* high = qh + s / 4 * 32;
        const int nibble = s % 4 / 2 * 4, pair = s % 4 * 2;
        for (int i = 0; i < 32; ++i) q[i] = (int8_t)((low[i] >> nibble & 15) | (high[i] >> pair & 3) << 4) - 32;
    }

    __device__ void codes4(int s, int j, int& low, int& high) const {
        low = word(s, j);
        high = word(s, j + 4);
    }

    __device__ int word(int s, int j) const {  // 210-byte blocks: only 2-byte aligned
        const uint32_t low = load_word_2(ql + s / 4 * 64 + s % 2 * 32, j) >> s % 4 / 2 * 4 & 0x0F0F0F0F;
        const uint32_t high = load_word_2(qh + s / 4 * 32, j) >> s % 4 * 2 & 0x03030303;
        return subtract_bytes(low | high << 4, 0x20202020);
    }

    // llama.cpp's dequantize_row_q6_K
    __device__ static float value(float d, float, int q) { return __fmul_rn((float)q, d); }
};
static_assert(sizeof(Q6_K) == 210, "Q6_K is 210 bytes without padding");
