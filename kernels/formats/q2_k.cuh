// Q2_K: w[i] = d·scale[g]·q[i] - dmin·min[g], g = i / 16: a superblock of 256 values in 16 groups, in two halves of 128.
//
//   byte   0 … 15                        16 … 79                            80 81   82 83
//          scales, byte g:               qs, of each 32 bytes l:            d       dmin
//          7 6 5 4 │ 3 2 1 0             7 6     │ 5 4     │ 3 2     │ 1 0  half    half
//          min[g]  │ scale[g]            x[96+l] │ x[64+l] │ x[32+l] │ x[l]
#pragma once
#include "../common.cuh"
#include "words.cuh"

struct alignas(4) Q2_K {
    uint8_t scales[16];
    uint8_t qs[64];
    uint16_t d;
    uint16_t dmin;

    static constexpr int VALUES = 256, GROUP = 16;
    static constexpr Minimum MINIMUM = Minimum::MEETS_CODES;
    static constexpr float NORMAL = HALF_NORMAL;
    static constexpr bool STORES_M = true;

    __device__ float scale(int s, int h) const { return __fmul_rn(half_to_float(d), (float)(scales[2 * s + h] & 15)); }
    __device__ float minimum(int s, int h) const {
        return -__fmul_rn(half_to_float(dmin), (float)(scales[2 * s + h] >> 4));
    }
    __device__ float stored_scale() const { return half_to_float(d); }
    __device__ float stored_min() const { return half_to_float(dmin); }

    // Slice s is pair s % 4 of the bytes of half s / 4.
    __device__ void unpack(int s, int8_t* q) const {
        for (int i = 0; i < 32; ++i) q[i] = qs[s / 4 * 32 + i] >> s % 4 * 2 & 3;
    }

    __device__ void codes4(int s, int j, int& low, int& high) const {
        low = load_word_4(qs + s / 4 * 32, j) >> s % 4 * 2 & 0x03030303;
        high = load_word_4(qs + s / 4 * 32, j + 4) >> s % 4 * 2 & 0x03030303;
    }

    // llama.cpp's dequantize_row_q2_K
    __device__ static float value(float d, float m, int q) { return __fadd_rn(__fmul_rn((float)q, d), m); }
};
static_assert(sizeof(Q2_K) == 84, "Q2_K is 84 bytes without padding");
