// Q4_1: w[i] = d·q[i] + m.
//
//   byte   0 1   2 3   4 … 19
//          d     m     qs          qs[j]:  7 6 5 4 │ 3 2 1 0
//          half  half                      x[j+16] │ x[j]
#pragma once
#include "../common.cuh"
#include "words.cuh"

struct alignas(4) Q4_1 {
    uint16_t d;
    uint16_t m;
    uint8_t qs[16];

    static constexpr int VALUES = 32, GROUP = 32;
    static constexpr float NORMAL = HALF_NORMAL;
    static constexpr bool STORES_M = true;
    static constexpr Minimum MINIMUM = Minimum::MEETS_S;

    __device__ float scale(int, int) const { return half_to_float(d); }
    __device__ float minimum(int, int) const { return half_to_float(m); }

    __device__ float stored_scale() const { return half_to_float(d); }
    __device__ float stored_min() const { return half_to_float(m); }

    __device__ void unpack(int, int8_t* q) const {
        for (int j = 0; j < 16; ++j) q[j] = qs[j] & 0x0F;
        for (int j = 0; j < 16; ++j) q[j + 16] = qs[j] >> 4;
    }

    __device__ void codes4(int, int j, int& low, int& high) const {
        const uint32_t word = load_word_4(qs, j);
        low = word & 0x0F0F0F0F;
        high = (word >> 4) & 0x0F0F0F0F;
    }

    // llama.cpp's dequantize_row_q4_1
    __device__ static float value(float d, float m, int q) { return __fadd_rn(__fmul_rn((float)q, d), m); }
};
static_assert(sizeof(Q4_1) == 20, "Q4_1 is 20 bytes without padding");
