// Q4_0: w[i] = d·(q[i] - 8). Codes stay 0..15 here; the -8 enters a term once, as -8 times the sum s.
//
//   byte   0 1   2 … 17
//          d     qs          qs[j]:  7 6 5 4 │ 3 2 1 0
//          half                      x[j+16] │ x[j]
#pragma once
#include "../common.cuh"
#include "words.cuh"

struct Q4_0 {
    uint16_t d;
    uint8_t qs[16];

    static constexpr int VALUES = 32, GROUP = 32;
    static constexpr float NORMAL = HALF_NORMAL;
    static constexpr bool STORES_M = false;
    static constexpr Minimum MINIMUM = Minimum::OFFSET;
    static constexpr float ZERO = 8.0f;

    __device__ float scale(int, int) const { return half_to_float(d); }
    __device__ float minimum(int, int) const { return __fmul_rn(-8.0f, half_to_float(d)); }

    __device__ float stored_scale() const { return half_to_float(d); }
    __device__ float stored_min() const { return 0.0f; }

    __device__ void unpack(int, int8_t* q) const {
        for (int j = 0; j < 16; ++j) q[j] = qs[j] & 0x0F;
        for (int j = 0; j < 16; ++j) q[j + 16] = qs[j] >> 4;
    }

    // Codes of x[4j..4j+3] in `low` and of x[16+4j..] in `high`, four to a word.
    __device__ void codes4(int, int j, int& low, int& high) const {
        const uint32_t word = load_word_2(qs, j);  // 18-byte blocks: only 2-byte aligned
        low = word & 0x0F0F0F0F;
        high = (word >> 4) & 0x0F0F0F0F;
    }

    // llama.cpp's dequantize_row_q4_0
    __device__ static float value(float d, float, int q) { return __fmul_rn((float)(q - 8), d); }
};
static_assert(sizeof(Q4_0) == 18, "Q4_0 is 18 bytes without padding");
